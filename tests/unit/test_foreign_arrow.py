"""Arrow bytes that others send: they are refused, or read as they were sent; no process ends, and nothing leaks.

The cases of the fuzz follow from the seed. `DETENT_SOAK=1` (`make fuzz`) runs a million:

    DETENT_FUZZ_SEED=… pytest tests/unit/test_foreign_arrow.py -k 'stream'
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from arrowfuzz import CANARY, TARGETS, Target, content, file_of, fuzz, stamped, stream_of
from detent.codec import block, foreign
from detent.errors import Corrupt, Exists, Invalid, LimitExceeded
from detent.journal import operations as ops
from detent.journal.fragments import new_fragment_id, object_name
from detent.server.arrow import read_table
from world import World

SEED = os.environ.get("DETENT_FUZZ_SEED", "1")
CASES = 170_000 if os.environ.get("DETENT_SOAK") else 800


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_arrow_bytes_are_refused_or_read_as_they_were_sent(target: Target) -> None:
    problem = fuzz(target, SEED, CASES)
    assert problem is None, problem


class TestTheFuzzCanFail:
    """Readers with the usual mistakes; each must be found."""

    def found(self, read: Any) -> str:
        problem = fuzz(Target("broken", read, [stream_of(content(3))]), "1", 200)
        assert problem is not None
        return problem

    def test_a_reader_that_ends_the_process(self) -> None:
        def read(data: memoryview) -> Iterator[Any]:
            if len(data) % 8:
                os.kill(os.getpid(), signal.SIGSEGV)
            yield content(1).slice(1)

        assert "ended by signal 11" in self.found(read)

    def test_a_reader_that_gives_more_than_was_sent(self) -> None:
        def read(data: memoryview) -> Iterator[Any]:
            held = data.obj
            yield block.content_batch([bytes(held[len(CANARY) :][: len(data) + 1] if len(data) % 8 else data)])

        assert "was never sent" in self.found(read)

    def test_a_reader_that_believes_a_length(self) -> None:
        def read(data: memoryview) -> Iterator[Any]:
            yield content(1).slice(1)
            bytearray(1 << 20 if len(data) % 8 else 0)

        assert "bytes of memory" in self.found(read)

    def test_a_reader_that_raises_whatever_comes(self) -> None:
        def read(data: memoryview) -> Iterator[Any]:
            yield content(1).slice((1, 1)[len(data) % 8])

        assert "IndexError" in self.found(read)


# -- streams --------------------------------------------------------------------------------------------------------


def patched(data: bytes, **at: int) -> bytes:
    changed = bytearray(data)
    for place, value in at.items():
        changed[int(place[1:])] = value
    return bytes(changed)


def test_a_stream_of_304_bytes_whose_first_message_is_of_no_kind() -> None:
    body = stream_of(content(1).select(["body"]))
    assert len(body) == 304
    with pytest.raises(Invalid):
        read_table(patched(body, _29=127, _56=0, _59=128, _81=127))


def test_columns_of_other_types_are_refused_by_their_name() -> None:
    for column in (
        pa.array([1, 2]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([[b"a"], []]),
        pa.array([{"a": 1}, None]),
        pa.array([b"a", b"b"], pa.binary_view()),
    ):
        with pytest.raises(Invalid, match="the column 'body' of type"):
            read_table(stream_of(pa.record_batch({"body": column})))
    two = pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, names=["body", "body"])
    with pytest.raises(Invalid, match="two columns of one name"):
        read_table(stream_of(two))


def test_a_schema_may_bring_notes_of_its_own() -> None:
    schema = pa.schema([pa.field("body", pa.binary(), metadata={"ARROW:extension:name": "x"})], {"pandas": "{}" * 999})
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"])], schema=schema)
    assert read_table(stream_of(batch)).column("body").to_pylist() == [b"a"]


def test_slices_and_nulls_are_read_as_they_are() -> None:
    batch = pa.record_batch(
        {
            "key": pa.array([None, b"k", None, b"", b"x"]),
            "headers": pa.array([[], [("a", "1")], [("b", "2"), ("c", "")], [], []], block.HEADERS),
            "body": pa.array(["", "é", "three", "4", "5"], pa.large_string()),
        }
    ).slice(1, 3)
    assert read_table(stream_of(batch, batch.slice(0, 0), batch)).to_pylist() == batch.to_pylist() * 2


def test_offsets_that_lie_are_refused() -> None:
    def sent(ends: list[int], data: bytes) -> bytes:
        buffers = [None, pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends)), pa.py_buffer(data)]
        return stream_of(
            pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)], names=["body"])
        )

    assert read_table(sent([0, 1, 8], b"12345678")).column("body").to_pylist() == [b"1", b"2345678"]
    whole = sent([0, 1, 8], b"12345678")
    at = whole.index(struct.pack("<3i", 0, 1, 8))
    for ends in ([0, 1, 8 << 20], [0, 9, 8], [-8, 1, 8], [0, 1, 9]):
        with pytest.raises(Invalid):
            read_table(whole[:at] + struct.pack("<3i", *ends) + whole[at + 12 :])


def test_a_batch_that_lies_across_the_memory_is_read_all_the_same() -> None:
    data = bytes(stamped(3).serialize())
    for shift in range(1, 8):
        assert foreign.read_stamped(memoryview(b"\x00" * shift + data)[shift:]).equals(stamped(3))


# -- fragments ------------------------------------------------------------------------------------------------------


class Fragments:
    """A store, and files that were put beside it."""

    def __init__(self) -> None:
        self.world = World()
        self._count = 0

    def adopt(self, data: bytes, rows: int, checksum: int | None = None) -> Any:
        self._count += 1
        fragment = new_fragment_id(self.world.now_ms, self._count.to_bytes(10, "big"))
        self.world.writer.objects.put(object_name(fragment), [data])
        return self.adopt_again(fragment, data, rows, checksum)

    def adopt_again(self, fragment: bytes, data: bytes, rows: int, checksum: int | None = None) -> Any:
        known = xxhash.xxh3_64_intdigest(data) if checksum is None else checksum
        return self.world.commit(ops.AdoptFragments("j", [ops.FragmentRef(fragment, rows, len(data), known)]))


@pytest.fixture
def fragments() -> Fragments:
    return Fragments()


def bodies_at(data: bytes) -> int:
    """Where the offsets of the bodies of `stamped(3)` stand."""
    return data.index(struct.pack("<4i", 0, 6, 12, 18))


def test_a_fragment_whose_offsets_point_outside_of_it_is_not_adopted(fragments: Fragments) -> None:
    data = file_of(stamped(3))
    at = bodies_at(data)
    for ends in ((0, 6, 12, 8 << 20), (0, 6, 12, 2**31 - 1), (0, 600, 12, 18), (-(2**31), 6, 12, 18)):
        with pytest.raises(Corrupt, match="cannot be read"):
            fragments.adopt(data[:at] + struct.pack("<4i", *ends) + data[at + 16 :], 3)
    fragments.adopt(data, 3)
    assert fragments.world.bodies("j") == [b"body-0", b"body-1", b"body-2"]


def test_rows_of_a_fragment_count_once(fragments: Fragments) -> None:
    data = file_of(stamped(1), stamped(2))
    size = struct.unpack_from("<i", data, len(data) - 10)[0]
    footer = len(data) - 10 - size
    first = foreign.MessageFile(data)._places[0]
    second = foreign.MessageFile(data)._places[1]
    places = [struct.pack("<qiiq", start, metadata, 0, body) for start, metadata, body in (first, second)]
    at = data.index(places[0], footer)
    for both in ((places[1], places[1]), (places[1], places[0])):
        with pytest.raises(Corrupt, match="do not follow one another"):
            fragments.adopt(data[:at] + b"".join(both) + data[at + 48 :], 4)


def test_a_fragment_holds_what_readers_can_tell(fragments: Fragments) -> None:
    def with_stamps(flags: int, time: int) -> bytes:
        content_columns = content(1).columns
        return file_of(
            block.stamped(
                1, b"maker!", struct.pack("<Q", 1), struct.pack("<H", flags), struct.pack("<q", time), content_columns
            )
        )

    for flags, time in ((1, 0), (2, 0), (1024, 0), (0, -1), (0, 2**63 - 1)):
        with pytest.raises(Corrupt, match=r"flags|published"):
            fragments.adopt(with_stamps(flags, time), 1)
    fragments.adopt(with_stamps(0, 253_402_300_799_999), 1)
    assert fragments.world.committed("j")[0].published_ms == 253_402_300_799_999


def test_the_checksum_of_each_adoption_is_compared(fragments: Fragments) -> None:
    data = file_of(stamped(1))
    fragments.adopt(data, 1)
    fragment = new_fragment_id(fragments.world.now_ms, (1).to_bytes(10, "big"))
    with pytest.raises(Corrupt, match="checksum"):
        fragments.adopt_again(fragment, data, 1, checksum=7)


def test_a_fragment_is_named_once_in_an_adoption(fragments: Fragments) -> None:
    ref = ops.FragmentRef(new_fragment_id(1, b"0123456789"), 1, 100, 1)
    with pytest.raises(Exists, match="twice"):
        fragments.world.commit(ops.AdoptFragments("j", [ref, ref]))


def test_other_files_are_no_fragments(fragments: Fragments) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, block.SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(stamped(1))
    for data in (sink.getvalue().to_pybytes(), stream_of(stamped(1)), b"", b"ARROW1", b"ARROW1\0\0" + bytes(40)):
        if data:
            with pytest.raises(Corrupt):
                fragments.adopt(data, 1)


class TestPassing:
    """Fragments that pass through a server on their way to an object store."""

    def passed(self, data: bytes, size: int = 1000, most: int = 1 << 20) -> list[bytes]:
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        return list(foreign.StreamedFile(iter(parts), most))

    @pytest.mark.parametrize("size", [1, 13, 4096, 1 << 20])
    def test_a_right_one_passes_as_it_is(self, size: int) -> None:
        data = file_of(stamped(3), stamped(500), stamped(1))
        assert b"".join(self.passed(data, size)) == data

    def test_a_wrong_one_is_stopped_before_its_end(self) -> None:
        data = file_of(stamped(3))
        at = bodies_at(data)
        for wrong in (
            data[: at + 12] + struct.pack("<i", 8 << 20) + data[at + 16 :],
            data[:-1],
            data + b"\0",
            data[:-10] + b"\xff" + data[-9:],
            data[: len(data) // 2],
        ):
            with pytest.raises(Invalid):
                self.passed(wrong)

    def test_no_more_than_a_batch_is_held(self) -> None:
        with pytest.raises(LimitExceeded, match="a record batch of"):
            self.passed(file_of(stamped(500)), most=1000)


def test_a_fragment_is_compared_with_its_checksum_in_each_store(fragments: Fragments) -> None:
    """The same id and the same checksum, and other bytes: what was seen of the one says nothing of the other."""
    right = file_of(stamped(3))
    at = bodies_at(right)
    wrong = right[:at] + struct.pack("<4i", 0, 6, 12, 8 << 20) + right[at + 16 :]
    known = xxhash.xxh3_64_intdigest(right)
    fragments.adopt(right, 3)
    assert len(fragments.world.bodies("j")) == 3
    with pytest.raises(Corrupt, match="checksum"):
        Fragments().adopt(wrong, 3, known)


def test_any_rows_of_a_fragment_are_read_again_as_they_were(fragments: Fragments) -> None:
    sizes = (3, 1, 40, 2)
    fragments.adopt(file_of(*map(stamped, sizes)), sum(sizes))
    whole = [b"body-%d" % row for size in sizes for row in range(size)]
    reader = fragments.world.reader
    for start in range(0, len(whole), 3):
        for end in range(start + 1, len(whole) + 1, 7):
            found = [
                body for _, batch in reader.committed("j", start, end) for body in batch.column("body").to_pylist()
            ]
            assert found == whole[start:end]
