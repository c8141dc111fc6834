"""What every kv engine must do with keys, views and opening; written once, run on each."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from contract.kvengine import Engine, eventually_is, everything, get, put
from detent.errors import DetentError, Invalid, LimitExceeded, NotFound
from detent.kv import Batch, Reader, View, Writer, prefix_end
from detent.kv.base import BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX


class TestKeysAndValues:
    def test_an_empty_store(self, kv_writer: Writer) -> None:
        with kv_writer.view() as view:
            assert view.get(b"k") is None
            assert list(view.scan(b"")) == []
            assert list(view.scan(b"\x00")) == []
            assert list(view.scan(b"", reverse=True)) == []
        assert kv_writer.size_bytes() >= 0

    def test_put_get_overwrite_delete(self, kv_writer: Writer) -> None:
        put(kv_writer, (b"k", b"1"), (b"l", b""))
        assert (get(kv_writer, b"k"), get(kv_writer, b"l"), get(kv_writer, b"m")) == (b"1", b"", None)
        put(kv_writer, (b"k", b"2"))
        assert get(kv_writer, b"k") == b"2"
        put(kv_writer, (b"k", None), (b"never there", None))
        assert everything(kv_writer) == {b"l": b""}

    def test_the_last_word_on_a_key_wins(self, kv_writer: Writer) -> None:
        put(kv_writer, (b"k", b"1"), (b"k", None), (b"l", None), (b"l", b"2"), (b"m", b"3"), (b"m", b"4"))
        assert everything(kv_writer) == {b"l": b"2", b"m": b"4"}

    def test_an_empty_batch(self, kv_writer: Writer) -> None:
        kv_writer.commit(Batch())
        assert everything(kv_writer) == {}

    def test_keys_and_values_come_back_as_bytes_of_their_own(self, kv_writer: Writer) -> None:
        put(kv_writer, (b"k", b"v" * 5000))
        with kv_writer.view() as view:
            value = view.get(b"k")
            [(key, scanned)] = view.scan(b"k")
        put(kv_writer, (b"k", b"w" * 5000))
        assert (type(value), type(key), type(scanned)) == (bytes, bytes, bytes)
        assert value == scanned == b"v" * 5000

    def test_limits(self, kv_writer: Writer) -> None:
        longest = b"\xff" * KEY_BYTES_MAX
        big = os.urandom(3 << 20)
        put(kv_writer, (longest, b"x"), (b"big", big))
        assert everything(kv_writer) == {b"big": big, longest: b"x"}
        for key in (b"", longest + b"\xff", b"\x00", b"\x00abc"):
            with pytest.raises(Invalid):
                Batch().put(key, b"")
            with pytest.raises(Invalid):
                Batch().delete(key)
        with pytest.raises(LimitExceeded):
            Batch().put(b"k", bytes(VALUE_BYTES_MAX + 1))

    def test_a_batch_that_is_too_big(self, kv_writer: Writer) -> None:
        batch = Batch()
        batch.bytes = BATCH_BYTES_MAX

        def overfill() -> None:
            batch.put(b"k", b"v")
            kv_writer.commit(batch)

        with pytest.raises(LimitExceeded):
            overfill()
        assert everything(kv_writer) == {}
        put(kv_writer, (b"k", b"v"))

    @pytest.mark.parametrize("key", [b"", b"\x00", b"\x00epoch", b"k" * (KEY_BYTES_MAX + 1), b"k" * 70_000])
    def test_keys_that_cannot_exist_are_not_found(self, kv_writer: Writer, key: bytes) -> None:
        put(kv_writer, (b"k", b"1"))
        with kv_writer.view() as view:
            with contextlib.suppress(DetentError):
                assert view.get(key) is None
            with contextlib.suppress(DetentError):
                assert dict(view.scan(key)) == ({b"k": b"1"} if key < b"k" else {})
                assert dict(view.scan(b"", key, reverse=True)) == ({b"k": b"1"} if key > b"k" else {})

    def test_many_in_one_batch(self, kv_writer: Writer) -> None:
        keys = [b"k%05d" % number for number in range(3000)]
        put(kv_writer, *((key, key) for key in keys))
        put(kv_writer, *((key, None if number % 3 else b"new") for number, key in enumerate(keys)))
        assert everything(kv_writer) == dict.fromkeys(keys[::3], b"new")


class TestScans:
    KEYS = (
        b"\x01",
        b"a",
        b"a\x00",
        b"a\x00\x00",
        b"a\xff",
        b"a\xff\xff",
        b"b",
        b"b\x01",
        b"\xfe",
        b"\xff",
        b"\xff\xff",
    )

    @pytest.fixture
    def view(self, kv_writer: Writer) -> Iterator[View]:
        put(kv_writer, *((key, b"v" + key) for key in self.KEYS))
        with kv_writer.view() as view:
            yield view

    def test_bounds_both_ways_and_limits(self, view: View) -> None:
        bounds = [b"", b"\x00", b"a\x00\x01", b"c", b"\xff\xff\xff", *self.KEYS]
        for start, end in itertools.product(bounds, [None, *bounds]):
            expected = [(key, b"v" + key) for key in self.KEYS if start <= key and (end is None or key < end)]
            assert list(view.scan(start, end)) == expected
            assert list(view.scan(start, end, reverse=True)) == expected[::-1]
            for limit in (0, 1, 2, 100):
                assert list(view.scan(start, end, limit=limit)) == expected[:limit]
                assert list(view.scan(start, end, reverse=True, limit=limit)) == expected[::-1][:limit]

    def test_prefix_ends(self, view: View) -> None:
        for prefix in (b"a", b"a\x00", b"a\xff", b"b", b"\xfe", b"\xff", b"\xff\xff"):
            found = [key for key, _ in view.scan(prefix, prefix_end(prefix))]
            assert found == [key for key in self.KEYS if key.startswith(prefix)]

    def test_scans_interleave_and_may_be_left_early(self, view: View) -> None:
        forward, backward, left = view.scan(b""), view.scan(b"", reverse=True), view.scan(b"")
        next(left)
        assert [(next(forward)[0], next(backward)[0]) for _ in self.KEYS] == list(
            zip(self.KEYS, self.KEYS[::-1], strict=True)
        )
        assert next(forward, None) is None


class TestViews:
    def test_a_view_does_not_see_later_commits(self, kv_writer: Writer) -> None:
        put(kv_writer, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
        with kv_writer.view() as view:
            scan = view.scan(b"")
            assert next(scan) == (b"a", b"1")
            put(kv_writer, (b"a", b"2"), (b"b", None), (b"bb", b"2"))
            assert view.get(b"a") == b"1"
            assert list(scan) == [(b"b", b"1"), (b"c", b"1")]
            assert dict(view.scan(b"")) == {b"a": b"1", b"b": b"1", b"c": b"1"}
        assert everything(kv_writer) == {b"a": b"2", b"bb": b"2", b"c": b"1"}

    def test_many_views_each_of_its_own_time(self, kv_writer: Writer) -> None:
        with contextlib.ExitStack() as stack:
            views = []
            for number in range(20):
                put(kv_writer, (b"n", b"%d" % number), (b"k%d" % number, b""))
                views.append(stack.enter_context(kv_writer.view()))
            for number, view in reversed(list(enumerate(views))):
                assert view.get(b"n") == b"%d" % number
                assert len(list(view.scan(b"k"))) == number + 2

    def test_a_view_that_has_ended(self, kv_writer: Writer) -> None:
        """It may refuse or still show its own time, and nothing else."""
        put(kv_writer, (b"a", b"1"), (b"b", b"1"))
        with kv_writer.view() as view:
            scan = view.scan(b"")
            assert next(scan) == (b"a", b"1")
        put(kv_writer, (b"a", b"2"), (b"b", None))
        for read in (lambda: view.get(b"b") == b"1", lambda: dict(view.scan(b"b")) == {b"b": b"1"}):
            with contextlib.suppress(DetentError):
                assert read()
        with contextlib.suppress(DetentError):
            assert list(scan) == [(b"b", b"1")]
        assert everything(kv_writer) == {b"a": b"2"}

    def test_an_error_inside_a_view_comes_through(self, kv_writer: Writer) -> None:
        with pytest.raises(ZeroDivisionError), kv_writer.view():
            raise ZeroDivisionError
        put(kv_writer, (b"k", b"1"))
        assert get(kv_writer, b"k") == b"1"

    def test_threads_never_see_half_a_batch(self, kv_engine: Engine, kv_writer: Writer) -> None:
        put(kv_writer, (b"a", b"%08d" % 0), (b"b", b"%08d" % 0))
        sources = [kv_writer, kv_writer, kv_engine.reader()]
        problems: list[object] = []
        stop = threading.Event()

        def look(reader: Reader) -> None:
            latest = b""
            try:
                while not stop.is_set():
                    with reader.view() as view:
                        a = view.get(b"a")
                        pairs = dict(view.scan(b"", reverse=True))
                        b = view.get(b"b")
                    assert a is not None
                    assert a == b == pairs[b"a"] == pairs[b"b"], (a, b, pairs)
                    assert a >= latest, "a view of an earlier time than the one before"
                    latest = a
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=look, args=(source,)) for source in sources]
        for thread in threads:
            thread.start()
        for number in range(1, 50 * kv_engine.pace):
            put(kv_writer, (b"a", b"%08d" % number), (b"b", b"%08d" % number))
        stop.set()
        for thread in threads:
            thread.join()
        assert problems == []


class TestOpening:
    def test_what_was_committed_is_there_after_reopening(self, kv_engine: Engine) -> None:
        for number in range(3):
            writer = kv_engine.writer()
            assert everything(writer) == {b"k%d" % n: b"v" for n in range(number)}
            put(writer, (b"k%d" % number, b"v"))
            writer.close()

    def test_the_epoch_rises(self, kv_engine: Engine) -> None:
        epochs = []
        for round_ in range(4):
            writer = kv_engine.writer()
            epochs.append(writer.epoch)
            if round_ % 2:
                put(writer, (b"k", b"v"))
                writer.close()
        assert epochs[0] > 0
        assert all(earlier < later for earlier, later in itertools.pairwise(epochs))

    def test_closing(self, kv_engine: Engine) -> None:
        writer = kv_engine.writer()
        put(writer, (b"k", b"1"))
        reader = kv_engine.reader()
        reader.close()
        reader.close()
        assert get(writer, b"k") == b"1"
        reader = kv_engine.reader()
        writer.close()
        writer.close()
        assert get(reader, b"k") == b"1"
        for use in (
            lambda: get(writer, b"k"),
            lambda: put(writer, (b"k", b"2")),
            lambda: writer.commit(Batch()),
            writer.size_bytes,
            writer.recover,
        ):
            with pytest.raises(DetentError):
                use()
        assert get(reader, b"k") == b"1"

    def test_a_reader_follows_commits_and_reopened_writers(self, kv_engine: Engine) -> None:
        writer = kv_engine.writer()
        put(writer, (b"k", b"0"))
        reader = kv_engine.reader()
        eventually_is(reader, b"k", b"0")
        for number in range(1, 4):
            put(writer, (b"k", b"%d" % number), (b"k%d" % number, b""))
            eventually_is(reader, b"k", b"%d" % number)
            assert len(everything(reader)) == number + 1
            writer.close()
            assert get(reader, b"k") == b"%d" % number
            writer = kv_engine.writer()
        assert reader.size_bytes() >= 0

    def test_a_reader_does_not_make_a_store(self, kv_engine: Engine) -> None:
        if not kv_engine.survives_process:
            pytest.skip("a memory store exists as soon as it is named")
        with pytest.raises(NotFound):
            kv_engine.reader()
        assert everything(kv_engine.writer()) == {}
