"""Arrow bytes as no writer makes them, and what a reader of them must never do.

Each case is a valid stream, record batch or file with a few changes: bits and bytes, numbers of 32 and 64 bits (as
lengths and offsets are), cuts, pieces and whole messages of others. Readers run in a child process, because what is to
be found would end it. A reader fails if it ends the process, raises anything but our errors, gives a byte that was not
sent, or allocates more than `MEMORY_FACTOR` times what was sent, and `MEMORY_BASE`.
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from detent.codec import block, foreign
from detent.errors import Corrupt, DetentError
from detent.remote import batches
from detent.server.arrow import read_table

MEMORY_FACTOR = 8
MEMORY_BASE = 64 << 10
CANARY = b"\xc5\x5cbeyond\x9a\xa9" * 8
"""Stands before and behind what is sent; no value of a row may have any of it."""

_NUMBERS = (0, 1, -1, 2, 7, 8, 16, 64, 4096, 8 << 20, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))

Rows = Callable[[memoryview], Iterator[Any]]
"""Reads record batches; or raises one of our errors."""


class Target(NamedTuple):
    """A reader and what its writers write."""

    name: str
    read: Rows
    samples: list[bytes]


# -- samples --------------------------------------------------------------------------------------------------------


def content(rows: int) -> Any:
    """Messages of which some have keys and headers."""
    keys = [b"key%d" % row if row % 2 else None for row in range(rows)]
    headers = [{"n": str(row), "é": ""} if row % 3 else None for row in range(rows)]
    return block.content_batch([b"body-%d" % row for row in range(rows)], keys, headers)


def stamped(rows: int) -> Any:
    """The same with ids."""
    clocks = struct.pack(f"<{rows}Q", *range(1, rows + 1))
    return block.stamped(rows, b"maker!" * rows, clocks, bytes(2 * rows), bytes(8 * rows), content(rows).columns)


def stream_of(*parts: Any) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, parts[0].schema) as writer:
        for part in parts:
            writer.write_batch(part)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def file_of(*parts: Any) -> bytes:
    """An Arrow IPC file of stored messages."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, block.SCHEMA) as writer:
        for part in parts:
            writer.write_batch(part)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _streams() -> list[bytes]:
    bodies = [pa.record_batch({"body": pa.array(["a", "bé", ""], kind)}) for kind in (pa.string(), pa.large_string())]
    wide = pa.record_batch({"key": pa.nulls(2), "body": pa.array([b"12345678", b""], pa.large_binary())})
    return [
        stream_of(content(3)),
        stream_of(content(1).select(["body"])),
        *map(stream_of, bodies),
        stream_of(wide, wide),
    ]


# -- readers --------------------------------------------------------------------------------------------------------


def _stream(data: memoryview) -> Iterator[Any]:
    batch = block.content_from_arrow(read_table(data))  # type: ignore[arg-type]  # any bytes will do
    block.check_content(batch)
    yield batch


def _append(reads: Callable[[memoryview], Any]) -> Rows:
    def read(data: memoryview) -> Iterator[Any]:
        batch = reads(data)
        block.check_content(batch)
        yield batch

    return read


def _file(data: memoryview) -> Iterator[Any]:
    found = foreign.MessageFile(data)
    for number in range(found.num_record_batches):
        batch = found.get_batch(number)
        if not batch.equals(found.get_batch(number, again=True)) or batch.num_rows != found.rows(number):
            raise AssertionError("what was checked before is read in another way")
        yield batch


def _passing(data: memoryview) -> Iterator[Any]:
    """What a server lets pass is what was sent, and can be read."""
    parts = (bytes(data[start : start + 100]) for start in range(0, len(data), 100))
    passed = b"".join(foreign.StreamedFile(parts, 1 << 20))
    if passed != data:
        raise AssertionError("other bytes passed than were sent")
    try:
        yield from list(_file(data))
    except DetentError as error:
        raise AssertionError(f"what passed cannot be read: {error}") from error


def _answer(data: memoryview) -> Iterator[Any]:
    """What a client takes from a server; a problem in it is one of our errors."""
    return (batch for _, batch in batches.decode(iter([bytes(data[:50]), bytes(data[50:])])))


_FILES = [file_of(stamped(3)), file_of(stamped(1), stamped(2))]

TARGETS = [
    Target("stream", _stream, _streams()),
    Target("append", _append(foreign.read_content), [bytes(content(n).serialize()) for n in (1, 3, 9)]),
    Target("stamped append", _append(foreign.read_stamped), [bytes(stamped(n).serialize()) for n in (1, 3)]),
    Target("fragment", _file, _FILES),
    Target("fragment that passes", _passing, _FILES),
    Target("answer", _answer, [b"".join(batches.encode([(0, stamped(3)), (3, stamped(1))]))]),
]


# -- changes --------------------------------------------------------------------------------------------------------


def _flip(rng: random.Random, data: bytearray, _: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, _: bytes) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 4, 8, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(rng: random.Random, data: bytearray, _: bytes) -> None:
    """A length, an offset or a reference becomes extreme, or only a little wrong."""
    width, code = rng.choice(((4, "<I"), (8, "<Q"), (2, "<H")))
    at = rng.randrange(max(1, len(data) // width)) * width
    if at + width > len(data):
        return
    was = struct.unpack_from(code, data, at)[0]
    near = (was + 1, was - 1, was + 8, was - 8, 2 * was, was + rng.randrange(-64, 64), len(data))
    struct.pack_into(code, data, at, rng.choice(near if rng.random() < 0.5 else _NUMBERS) % (1 << 8 * width))


def _swap(rng: random.Random, data: bytearray, _: bytes) -> None:
    """Two numbers change places: offsets that go back, buffers that overlap."""
    places = len(data) // 8
    if places > 1:
        a, b = (8 * rng.randrange(places) for _ in range(2))
        data[a : a + 8], data[b : b + 8] = data[b : b + 8], data[a : a + 8]


def _cut(rng: random.Random, data: bytearray, _: bytes) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 4, 8, 8 * rng.randrange(1, 20), len(data)))]


def _insert(rng: random.Random, data: bytearray, other: bytes) -> None:
    """A piece of another one, from and to places where messages and numbers may begin."""
    width = rng.choice((1, 8))
    at, start = rng.randrange(len(data) // width + 1) * width, rng.randrange(len(other) // width + 1) * width
    piece = other[start : start + rng.choice((8, 24, 64, len(other)))]
    data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece


_CHANGES = [_flip, _byte, _number, _number, _number, _swap, _cut, _insert]


def case(target: Target, seed: str, number: int) -> bytes:
    """One case; it follows from seed and number alone."""
    rng = random.Random(f"{target.name}/{seed}/{number}")
    data = bytearray(rng.choice(target.samples))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if data:
            rng.choice(_CHANGES)(rng, data, rng.choice(target.samples))
    return bytes(data)


# -- running --------------------------------------------------------------------------------------------------------


def _values(batch: Any) -> Iterator[bytes]:
    """All values of a batch as bytes."""
    for row in batch.to_pylist():
        for name in ("producer", "key", "body"):
            value = row.get(name)
            if value is not None:
                yield value
        if "clock" in row:
            yield row["clock"].to_bytes(8, "little")
        for pair in row["headers"]:
            for text in pair:
                yield text.encode()


def problem_of(target: Target, data: bytes) -> str | None:
    """What a reader does wrong with these bytes, if it lives to tell."""
    held = CANARY + data + CANARY
    sent = memoryview(held)[len(CANARY) : len(CANARY) + len(data)]
    tracemalloc.reset_peak()
    arrow_before, before = pa.total_allocated_bytes(), tracemalloc.get_traced_memory()[0]
    try:
        found = list(target.read(sent))
    except DetentError:
        found = []
    except BaseException as error:  # whatever it is, it is not one of ours
        return f"{type(error).__name__}: {error}"
    used = tracemalloc.get_traced_memory()[1] - before + pa.total_allocated_bytes() - arrow_before
    if used > MEMORY_FACTOR * len(data) + MEMORY_BASE:
        return f"{used} bytes of memory for {len(data)} bytes"
    for batch in found:
        batch.validate(full=True)
        batch.serialize()
        for value in _values(batch):
            if value not in data:
                return f"{value[:40]!r} was never sent"
    return None


_REPORT = struct.Struct("<Q")
_MARK = b"\nfailed at "


def fuzz(target: Target, seed: str, count: int) -> str | None:
    """Run so many cases in a child process. The first failure, told so that it can be repeated; or None."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            _run(target, seed, count, writing)
        except BaseException as error:
            os.write(writing, _MARK + f"a sample: {type(error).__name__}: {error}".encode()[:2000])
        finally:
            os._exit(1)
    os.close(writing)
    said = b""
    while part := os.read(reading, 1 << 16):
        said = (said + part)[-4096:]
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return None
    if status > 0:
        return f"{target.name}, seed {seed}, {said.rpartition(_MARK)[2].decode()}"
    number = _REPORT.unpack(said[-_REPORT.size :])[0]
    sent = case(target, seed, number).hex()
    return f"{target.name}, seed {seed}, case {number}: the process ended by signal {-status}; input {sent}"


def _run(target: Target, seed: str, count: int, report: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    tracemalloc.start()
    for sample in target.samples:  # also warms up what is imported and kept
        if not list(target.read(memoryview(sample))):
            raise Corrupt("a sample has no rows")
    for number in range(count):
        data = case(target, seed, number)
        os.write(report, _REPORT.pack(number))
        problem = problem_of(target, data)
        if problem is not None:
            os.write(report, _MARK + f"case {number}: {problem[:300]}; input {data.hex()[:1500]}".encode())
            os._exit(1)
    os._exit(0)
