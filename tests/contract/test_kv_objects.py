"""The object space of every kv engine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest

from contract.kvengine import Engine, everything, put
from detent.errors import DetentError, Exists, Invalid, NotFound
from detent.kv import Writer
from detent.kv.base import OBJECT_NAME_MAX

BAD_NAMES = ["", ".", "..", "../x", "a/../x", "/x", "a/", "a//b", "é", "٣", "a b", "a\n", "a\x00", "a~", "a\\b"]
BAD_NAMES.append("x" * (OBJECT_NAME_MAX + 1))


class TestObjects:
    def test_put_get_size_list_delete(self, kv_writer: Writer) -> None:
        objects = kv_writer.objects
        assert objects.put("a/b/one.arrow", [b"0123", memoryview(b"456"), b"", b"789"]) == 10
        assert objects.put("empty", []) == 0
        assert isinstance(objects.get("a/b/one.arrow"), memoryview)
        assert objects.get("a/b/one.arrow") == b"0123456789"
        assert objects.get("empty") == b""
        assert (objects.size("a/b/one.arrow"), objects.size("empty"), objects.size("one.arrow")) == (10, 0, None)
        listed = {info.name: info for info in objects.list()}
        assert {name: info.size for name, info in listed.items()} == {"a/b/one.arrow": 10, "empty": 0}
        assert all(abs(info.modified_ms / 1000 - time.time()) < 3600 for info in listed.values())
        objects.delete("a/b/one.arrow")
        objects.delete("a/b/one.arrow")
        assert objects.size("a/b/one.arrow") is None
        with pytest.raises(NotFound):
            objects.get("a/b/one.arrow")
        assert [info.name for info in objects.list()] == ["empty"]
        assert objects.put("a/b/one.arrow", [b"new"]) == 3

    def test_maintenance_leaves_whole_objects_and_records(self, kv_writer: Writer) -> None:
        put(kv_writer, (b"k", b"v"))
        kv_writer.objects.put("one", [b"whole"])
        in_two_days_ms = int(time.time() * 1000) + 2 * 24 * 3600 * 1000
        assert kv_writer.objects.remove_abandoned(in_two_days_ms) == 0
        kv_writer.maintain()
        assert kv_writer.objects.get("one") == b"whole"
        assert everything(kv_writer) == {b"k": b"v"}

    def test_parts(self, kv_writer: Writer) -> None:
        data = bytes(range(256)) * 40
        kv_writer.objects.put("o", [data])
        for start, length in ((0, None), (0, 1), (5, 100), (9000, None), (len(data) - 1, 1), (3, 0), (len(data), None)):
            end = len(data) if length is None else start + length
            assert kv_writer.objects.get("o", start, length) == data[start:end]
        assert kv_writer.objects.get("o", len(data) - 3, 100) == data[-3:]
        assert kv_writer.objects.get("o", len(data) + 3, 100) == b""
        for start, length in ((-3, None), (3, -2)):
            with pytest.raises(Invalid):
                kv_writer.objects.get("o", start, length)

    def test_a_name_is_taken_once(self, kv_engine: Engine, kv_writer: Writer) -> None:
        kv_writer.objects.put("o", [b"first"])
        with pytest.raises(Exists):
            kv_writer.objects.put("o", [b"second"])
        assert kv_writer.objects.get("o") == b"first"
        outcomes: list[str] = []

        def race(word: bytes) -> None:
            try:
                kv_writer.objects.put("raced", [word * 50_000])
                outcomes.append(word.decode())
            except Exists:
                outcomes.append("exists")

        threads = [threading.Thread(target=race, args=(b"%d" % number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("exists") == 5
        [winner] = set(outcomes) - {"exists"}
        assert kv_writer.objects.get("raced") == winner.encode() * 50_000

    def test_a_failed_put_leaves_nothing(self, kv_writer: Writer) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x" * 100_000
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            kv_writer.objects.put("o", chunks())
        assert kv_writer.objects.size("o") is None
        assert list(kv_writer.objects.list()) == []
        assert kv_writer.objects.put("o", [b"whole"]) == 5

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_bad_names(self, kv_writer: Writer, name: str) -> None:
        objects = kv_writer.objects
        for use in (lambda: objects.put(name, [b""]), lambda: objects.get(name), lambda: objects.size(name)):
            with pytest.raises(Invalid):
                use()
        with pytest.raises(Invalid):
            objects.delete(name)

    def test_listing_by_prefix(self, kv_engine: Engine, kv_writer: Writer) -> None:
        names = {"f/a", "f/ab", "f/b/a", "g", "f-"}
        for name in names:
            kv_writer.objects.put(name, [b"x"])
        for prefix in ("", "f", "f/", "f/a", "f/b/", "nothing", "f/ab/c"):
            listed = [info.name for info in kv_writer.objects.list(prefix)]
            assert sorted(listed) == sorted(name for name in names if name.startswith(prefix))

    @pytest.mark.parametrize("prefix", ["..", "../", "/", "/etc/host", "a/../..", "é", "a//b", "\x00", "*"])
    def test_listing_by_what_no_name_begins_with(self, kv_writer: Writer, prefix: str) -> None:
        kv_writer.objects.put("a/b", [b"x"])
        with contextlib.suppress(Invalid):
            assert list(kv_writer.objects.list(prefix)) == []

    def test_a_name_inside_another(self, kv_writer: Writer) -> None:
        """`a` and `a/b` are two names. An engine that cannot hold both refuses the second with an error of ours."""
        objects = kv_writer.objects
        objects.put("a/b", [b"1"])
        assert objects.size("a") is None
        with pytest.raises(NotFound):
            objects.get("a")
        objects.delete("a")
        assert objects.size("a/b/c") is None
        with pytest.raises(NotFound):
            objects.get("a/b/c")
        objects.delete("a/b/c")
        for name in ("a", "a/b/c"):
            with contextlib.suppress(DetentError):
                objects.put(name, [b"2"])
                assert objects.get(name) == b"2"
        assert objects.get("a/b") == b"1"

    @pytest.mark.parametrize("length", [255, 256, OBJECT_NAME_MAX])
    def test_long_names(self, kv_writer: Writer, length: int) -> None:
        """A file system ends a part at 255 bytes, or earlier; that too is an error of ours."""
        name = "n" * length
        with contextlib.suppress(DetentError):
            kv_writer.objects.put(name, [b"x"])
            assert kv_writer.objects.get(name) == b"x"
        with contextlib.suppress(DetentError):
            kv_writer.objects.size(name)
            kv_writer.objects.delete(name)
            assert kv_writer.objects.size(name) is None
        assert kv_writer.objects.put("/".join(["n" * 100] * 3), [b"x"]) == 1

    def test_objects_and_keys_keep_apart_and_stores_too(self, kv_engine: Engine, kv_writer: Writer) -> None:
        neighbour = kv_engine.writer(kv_engine.url + "2")
        neighbour.objects.put("theirs", [b"x"])
        put(neighbour, (b"their", b"x"))
        put(kv_writer, (b"k", b"v"))
        assert list(kv_writer.objects.list()) == []
        kv_writer.objects.put("ours", [b"y"])
        assert everything(kv_writer) == {b"k": b"v"}
        assert [info.name for info in kv_writer.objects.list()] == ["ours"]
        assert [info.name for info in neighbour.objects.list()] == ["theirs"]

    def test_a_big_object_for_readers_and_after_reopening(self, kv_engine: Engine) -> None:
        writer = kv_engine.writer()
        put(writer, (b"k", b"v"))
        reader = kv_engine.reader()
        pieces = [os.urandom(700_001) for _ in range(7)] + [os.urandom(343_000)]
        whole = b"".join(pieces)
        assert writer.objects.put("big/one", iter(pieces)) == len(whole) >= 5 << 20
        assert reader.objects.get("big/one") == whole
        assert reader.objects.get("big/one", 1_000_000, 3_000_000) == whole[1_000_000:4_000_000]
        kept = reader.objects.get("big/one", 10, 10)
        writer.close()
        writer = kv_engine.writer()
        assert writer.objects.size("big/one") == len(whole)
        assert writer.objects.get("big/one") == whole
        writer.objects.delete("big/one")
        assert kept == whole[10:20], "a part that was handed out outlives its object"
