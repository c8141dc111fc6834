"""SlateDB on a real S3 protocol: durability, the fence and crashes with processes that are killed and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from detent.extras import install_command

pytest.importorskip("slatedb")
pytest.importorskip("obstore")

import s3server
from detent.errors import Exists, Fenced, Invalid, NotFound, Unavailable
from detent.kv import _slate_fast, _slate_reader, _slate_session, objectstore, slate
from detent.kv.base import Batch, Objects, Reader, Writer

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]

QUICK_SECONDS = 20.0
"""What a test calls "not a hang": retries with backoff, on a machine with other work."""

CHILD = """
import sys
from detent.errors import DetentError
from detent.kv import objectstore, slate
from detent.kv.base import Batch

def put(writer, **pairs):
    batch = Batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value.encode())
    writer.commit(batch)

def say(*words):
    print(*words, flush=True)

def wait():
    assert sys.stdin.readline()

url = sys.argv[1]
"""


class Child:
    """A process that runs some lines after the prelude above; we talk to it over its pipes."""

    def __init__(self, code: str, url: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD + code, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
            bufsize=1,
        )

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def heard_all(self) -> list[str]:
        assert self.process.stdout is not None
        return [line.strip() for line in self.process.stdout]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        return self.process.wait(QUICK_SECONDS)


@pytest.fixture
def url() -> str:
    return s3server.s3_store_url()


@pytest.fixture
def children() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(code: str, url: str, **environment: str) -> Child:
            child = Child(code, url, **environment)
            stack.enter_context(child.process)
            stack.callback(child.process.kill)
            return child

        yield start


@pytest.fixture
def stoppable_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3server.S3Server]:
    """A server of our own, which a test may stop without stopping anybody else's."""
    with s3server.s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGCONT)


def put(writer: Writer, **pairs: str) -> None:
    batch = Batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value.encode())
    writer.commit(batch)


def contents(store: Reader) -> dict[str, str]:
    with store.view() as view:
        return {key.decode(): value.decode() for key, value in view.scan(b"")}


def reopened(url: str) -> tuple[int, dict[str, str]]:
    with contextlib.closing(slate.open_writer(url)) as writer:
        return writer.epoch, contents(writer)


class TestDurability:
    def test_a_killed_writer_loses_nothing_it_acknowledged(self, url: str, children: Any) -> None:
        child = children(
            "writer = slate.open_writer(url)\n"
            "for number in range(1000):\n"
            "    put(writer, **{f'a{number:04}': 'x' * 500, f'b{number:04}': 'y'})\n"
            "    say(number)\n",
            url,
        )
        acknowledged = [child.heard() for _ in range(25)]
        child.signal(signal.SIGKILL)
        acknowledged += child.heard_all()
        _, found = reopened(url)
        assert len(acknowledged) >= 25
        assert all(f"a{int(number):04}" in found for number in acknowledged)
        assert {key[1:] for key in found if key[0] == "a"} == {key[1:] for key in found if key[0] == "b"}

    @pytest.mark.parametrize("point", ["kv.commit.before_sync", "kv.commit.after_sync"])
    def test_a_commit_that_crashes_is_whole_or_absent(self, url: str, children: Any, point: str) -> None:
        child = children(
            "writer = slate.open_writer(url)\n"
            "put(writer, a='1', b='1')\n"
            "say('first')\n"
            "put(writer, a='2', b='2', c='2')\n"
            "say('second')\n",
            url,
            DETENT_CRASH_AT=f"{point}:2",
        )
        assert child.heard_all() == ["first"]
        assert child.ended() == -signal.SIGKILL
        _, found = reopened(url)
        whole = {"a": "2", "b": "2", "c": "2"}
        assert found == (whole if point.endswith("after_sync") else {"a": "1", "b": "1"})

    @pytest.mark.parametrize("point", ["kv.open.before_epoch", "kv.open.after_epoch"])
    def test_an_opening_that_crashes_leaves_the_store_whole(self, url: str, children: Any, point: str) -> None:
        with contextlib.closing(slate.open_writer(url)) as writer:
            put(writer, a="1")
            before = writer.epoch
        child = children("slate.open_writer(url)\nsay('opened')\n", url, DETENT_CRASH_AT=point)
        assert child.heard_all() == []
        assert child.ended() == -signal.SIGKILL
        epoch, found = reopened(url)
        assert found == {"a": "1"}
        assert epoch == before + (2 if point.endswith("after_epoch") else 1)

    def test_a_big_value_comes_back(self, url: str) -> None:
        value = os.urandom(1 << 20)
        batch = Batch()
        batch.put(b"big", value)
        with contextlib.closing(slate.open_writer(url)) as writer:
            writer.commit(batch)
            with writer.view() as view:
                assert view.get(b"big") == value
        with contextlib.closing(slate.open_reader(url)) as reader, reader.view() as view:
            assert list(view.scan(b"")) == [(b"big", value)]


class TestFence:
    def test_a_stopped_writer_wakes_up_fenced(self, url: str, children: Any) -> None:
        stopped = children(
            "writer = slate.open_writer(url)\n"
            "put(writer, shared='first')\n"
            "say(writer.epoch)\n"
            "wait()\n"
            "for call in (lambda: put(writer, shared='stale', stale='1'), lambda: put(writer, more='1'),\n"
            "             lambda: writer.view().__enter__(), lambda: writer.commit(Batch()), writer.recover):\n"
            "    try:\n"
            "        call()\n"
            "        say('no error')\n"
            "    except DetentError as error:\n"
            "        say(type(error).__name__)\n"
            "writer.close()\n"
            "say('closed')\n",
            url,
        )
        first_epoch = int(stopped.heard())
        stopped.signal(signal.SIGSTOP)
        with contextlib.closing(slate.open_writer(url)) as writer:
            put(writer, shared="second")
            assert writer.epoch > first_epoch
            stopped.signal(signal.SIGCONT)
            stopped.go_on()
            assert stopped.heard_all() == ["Fenced"] * 5 + ["closed"]
            assert stopped.ended() == 0
            assert contents(writer) == {"shared": "second"}
            put(writer, after="1")
        assert reopened(url)[1] == {"shared": "second", "after": "1"}

    def test_a_commit_that_beat_the_fence_counts(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """SlateDB calls a commit fenced once it sees the newer writer, also one that is durable already."""
        first, second = slate.open_writer(url), None
        write = first._write

        async def overtaken(batch: Any, *, points: bool = False) -> None:
            nonlocal second
            await write(batch, points=points)
            second = slate.open_writer(url)
            raise _fenced()

        monkeypatch.setattr(first, "_write", overtaken)
        put(first, a="1", b="1")
        with pytest.raises(Fenced):
            put(first, a="2")
        assert second is not None
        with contextlib.closing(first), contextlib.closing(second):
            assert contents(second) == {"a": "1", "b": "1"}

    def test_a_successor_that_never_finished_leaves_the_outcome_open(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slate, "FATE_SECONDS", 0.3)
        with contextlib.closing(slate.open_writer(url)) as writer:
            monkeypatch.setattr(slate.SlateWriter, "_take_over", _dies)
            with pytest.raises(KeyboardInterrupt):
                slate.open_writer(url)
            with pytest.raises(Unavailable, match="has not finished opening"):
                put(writer, a="1")
            for refused in (lambda: contents(writer), lambda: put(writer, a="2"), writer.recover):
                with pytest.raises(Fenced):
                    refused()

    def test_readers_never_fence(self, url: str) -> None:
        with contextlib.closing(slate.open_writer(url)) as writer:
            for number in range(3):
                with contextlib.closing(slate.open_reader(url)) as reader:
                    put(writer, n=str(number))
                    assert set(contents(reader)) <= {"n"}
            assert contents(writer) == {"n": "2"}


def _dies(_writer: slate.SlateWriter) -> None:
    raise KeyboardInterrupt


def _fenced() -> Exception:
    import slatedb.uniffi

    closed: Exception = slatedb.uniffi.Error.Closed(slatedb.uniffi.CloseReason.FENCED, "detected newer DB client")
    return closed


class TestOutages:
    def test_views_show_only_durable_data_while_a_commit_waits(self, stoppable_server: s3server.S3Server) -> None:
        with contextlib.closing(slate.open_writer(stoppable_server.store_url())) as writer:
            put(writer, a="durable")
            os.kill(stoppable_server.pid, signal.SIGSTOP)
            committing = threading.Thread(target=put, args=(writer,), kwargs={"a": "under way", "b": "new"})
            committing.start()
            time.sleep(0.3)
            with writer.view() as kept:
                assert committing.is_alive()
                assert contents(writer) == {"a": "durable"}
                os.kill(stoppable_server.pid, signal.SIGCONT)
                committing.join()
                assert kept.get(b"a") == b"durable"
                assert kept.get(b"b") is None
            assert contents(writer) == {"a": "under way", "b": "new"}

    def test_an_unknown_outcome_must_be_settled_first(self, stoppable_server: s3server.S3Server) -> None:
        url = stoppable_server.store_url()
        with contextlib.closing(slate.open_writer(url, commit_seconds=1)) as writer:
            put(writer, a="1")
            os.kill(stoppable_server.pid, signal.SIGSTOP)
            with pytest.raises(Unavailable, match="could not be written"):
                put(writer, a="2", b="2")
            for refused in (lambda: put(writer, c="3"), writer.recover):
                with pytest.raises(Unavailable, match=r"not settled|could not be written"):
                    refused()
            assert contents(writer) == {"a": "1"}, "reading goes on, from what was durable before"
            os.kill(stoppable_server.pid, signal.SIGCONT)
            _eventually_recovered(writer)
            settled = contents(writer)
            assert settled in ({"a": "1"}, {"a": "2", "b": "2"})
            put(writer, c="3")
            assert contents(writer) == settled | {"c": "3"}
        assert reopened(url)[1] == settled | {"c": "3"}

    def test_closing_tells_whoever_still_reads(self, stoppable_server: s3server.S3Server) -> None:
        url = stoppable_server.store_url()
        with contextlib.closing(slate.open_writer(url)) as writer:
            put(writer, a="1")
        reader = slate.open_reader(url)
        outcomes: list[str] = []

        def read() -> None:
            try:
                reader.size_bytes()
            except Unavailable as error:
                outcomes.append(str(error))

        os.kill(stoppable_server.pid, signal.SIGSTOP)
        reading = threading.Thread(target=read)
        reading.start()
        time.sleep(0.2)
        reader._loop.stop()
        reading.join(QUICK_SECONDS)
        assert outcomes == ["this store was closed meanwhile"]
        reader.close()

    def test_a_store_does_not_cross_a_fork(self, url: str, children: Any) -> None:
        child = children(
            "import os\n"
            "writer = slate.open_writer(url)\n"
            "put(writer, a='1')\n"
            "if os.fork() == 0:\n"
            "    try:\n"
            "        put(writer, a='2')\n"
            "    except DetentError as error:\n"
            "        say(type(error).__name__)\n"
            "    writer.close()\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "put(writer, b='1')\n"
            "writer.close()\n"
            "say('fine')\n",
            url,
        )
        assert child.heard_all() == ["Unavailable", "fine"]
        assert reopened(url)[1] == {"a": "1", "b": "1"}

    def test_a_missing_bucket_is_not_found_quickly(self, url: str) -> None:
        for opens in (slate.open_writer, slate.open_reader):
            started = time.monotonic()
            with pytest.raises(NotFound, match="bucket"):
                opens("s3://no-such-bucket/prefix")
            assert time.monotonic() - started < QUICK_SECONDS

    def test_a_refused_connection_is_unavailable_quickly(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        for opens in (slate.open_writer, slate.open_reader):
            started = time.monotonic()
            with pytest.raises(Unavailable, match="did not answer"):
                opens(url)
            assert time.monotonic() - started < QUICK_SECONDS

    def test_opening_gives_up_when_the_server_hangs(
        self, stoppable_server: s3server.S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slate, "OPEN_SECONDS", 1.0)
        monkeypatch.setattr(_slate_session, "CLOSE_SECONDS", 1.0)
        monkeypatch.setattr(objectstore.BucketObjects, "check", lambda self: None)
        os.kill(stoppable_server.pid, signal.SIGSTOP)
        before = set(threading.enumerate())
        with pytest.raises(Unavailable, match="within 1 s"):
            slate.open_writer(stoppable_server.store_url())
        assert set(threading.enumerate()) == before


def _eventually_recovered(writer: slate.SlateWriter) -> None:
    deadline = time.monotonic() + QUICK_SECONDS
    while True:
        try:
            return writer.recover()
        except Unavailable:
            assert time.monotonic() < deadline


class TestReaders:
    @pytest.mark.parametrize("base_seconds", [-1.0, 300.0])
    def test_views_keep_their_state_over_tables_and_log(
        self, url: str, monkeypatch: pytest.MonkeyPatch, base_seconds: float
    ) -> None:
        """Half of the data is in tables, half in the log. The base is a new one for every view, or the same for all."""
        monkeypatch.setattr(slate, "COMMITS_PER_TABLE", 3)
        monkeypatch.setattr(_slate_reader, "BASE_SECONDS", base_seconds)
        with (
            contextlib.closing(slate.open_writer(url)) as writer,
            contextlib.closing(slate.open_reader(url, poll_seconds=0)) as reader,
            contextlib.ExitStack() as views,
        ):
            kept = []
            for step in range(8):
                batch = Batch()
                for number in range(6):
                    batch.put(f"k{step * number % 7}".encode(), f"{step}".encode())
                batch.delete(f"k{step % 5}".encode())
                writer.commit(batch)
                if step % 2:
                    writer.maintain()
                kept.append((views.enter_context(reader.view()), contents(writer)))
            for view, then in kept:
                expected = sorted((key.encode(), value.encode()) for key, value in then.items())
                assert list(view.scan(b"")) == expected
                assert list(view.scan(b"", reverse=True)) == expected[::-1]
                assert list(view.scan(b"k2", b"k5", limit=2)) == [p for p in expected if b"k2" <= p[0] < b"k5"][:2]
                assert all(view.get(b"k%d" % n) == dict(expected).get(b"k%d" % n) for n in range(8))
            assert 0 < reader.size_bytes() < 1 << 20

    def test_nothing_is_left_behind(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_slate_reader, "BASE_SECONDS", -1.0)
        with contextlib.closing(slate.open_writer(url)) as writer:
            reader = slate.open_reader(url)
            with reader.view(), reader.view():
                pass
            with reader.view():
                reader.close()
            manifest = writer._run(writer._admin.read_manifest(None))
            assert manifest.checkpoints == []

    def test_no_thread_outlives_its_store(self, url: str) -> None:
        before = set(threading.enumerate())
        for _ in range(3):
            writer = slate.open_writer(url)
            reader = slate.open_reader(url)
            assert len(threading.enumerate()) > len(before)
            for store in (writer, reader, writer, reader):
                store.close()
        assert set(threading.enumerate()) == before


class TestObjects:
    def test_two_processes_race_for_names(self, url: str, children: Any) -> None:
        code = (
            "from detent.errors import Exists\n"
            "objects = objectstore.BucketObjects(objectstore.open_bucket(objectstore.object_location(url)))\n"
            "objects.check(); say('ready'); wait()\n"
            "for number in range(40):\n"
            "    try:\n"
            "        objects.put(f'race/{number}', [ME.encode() * 20_000]); say(number)\n"
            "    except Exists:\n"
            "        pass\n"
        )
        racers = {name: children(f"ME = '{name}'\n{code}", url) for name in ("left", "right")}
        assert [racer.heard() for racer in racers.values()] == ["ready", "ready"]
        for racer in racers.values():
            racer.go_on()
        won = {name: [int(number) for number in racer.heard_all()] for name, racer in racers.items()}
        assert sorted(won["left"] + won["right"]) == list(range(40))
        objects = _objects(url)
        for name, numbers in won.items():
            assert all(objects.get(f"race/{number}") == name.encode() * 20_000 for number in numbers)

    def test_a_streamed_put_is_create_if_absent_too(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objectstore, "SINGLE_PUT_BYTES", 1 << 20)
        pieces = [os.urandom(1_000_003) for _ in range(13)]
        objects = _objects(url)
        assert objects.put("big", iter(pieces)) == sum(map(len, pieces))
        assert objects.get("big") == b"".join(pieces)
        with pytest.raises(Exists):
            objects.put("big", [b"x" * (2 << 20)])
        with pytest.raises(ZeroDivisionError):
            objects.put("broken", (1 // (5 - n) * pieces[n] for n in range(9)))
        assert objects.size("broken") is None
        assert list(objects.stored("uploads/")) == []

    @pytest.mark.parametrize("point", ["kv.object.before_rename", "kv.object.after_rename"])
    def test_a_put_that_crashes_is_whole_or_absent(self, url: str, children: Any, point: str) -> None:
        child = children(
            "from detent.kv import objectstore\n"
            "objectstore.SINGLE_PUT_BYTES = 1 << 20\n"
            "objects = objectstore.BucketObjects(objectstore.open_bucket(objectstore.object_location(url)))\n"
            "objects.put('o', [b'x' * 700_000] * 3)\n",
            url,
            DETENT_CRASH_AT=point,
        )
        assert child.ended() == -signal.SIGKILL
        objects = _objects(url)
        whole = point.endswith("after_rename")
        assert objects.size("o") == (2_100_000 if whole else None)
        assert [info.name for info in objects.list()] == (["o"] if whole else [])

    def test_abandoned_uploads_are_removed_when_old(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import obstore

        bucket = objectstore.open_bucket(objectstore.object_location(url))
        obstore.put(bucket, "uploads/dead", b"x")
        objects = objectstore.BucketObjects(bucket)
        now_ms = int(time.time() * 1000)
        assert objects.remove_abandoned(now_ms) == 0
        monkeypatch.setattr(objectstore, "ABANDONED_UPLOAD_MS", -10_000)
        assert objects.remove_abandoned(now_ms) == 1
        assert list(objects.stored("uploads/")) == []


def _objects(url: str) -> objectstore.BucketObjects:
    objects = objectstore.BucketObjects(objectstore.open_bucket(objectstore.object_location(url)))
    assert isinstance(objects, Objects)
    return objects


class TestOpening:
    @pytest.mark.parametrize("url", ["file:/tmp/x", "memory:", "/tmp/x", "s3://", "s3://key:secret@bucket/x"])
    def test_other_places_are_refused(self, url: str) -> None:
        for opens in (slate.open_writer, slate.open_reader):
            with pytest.raises(Invalid):
                opens(url)

    @pytest.mark.parametrize("package", ["slatedb.uniffi", "obstore.store"])
    def test_a_missing_package_names_the_extra(self, url: str, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(Unavailable, match=re.escape(install_command("s3"))):
            slate.open_writer(url)

    def test_stores_may_be_passed_in(self) -> None:
        import slatedb.uniffi
        from obstore.store import MemoryStore

        stores = {"object_store": slatedb.uniffi.ObjectStore.resolve("memory:///"), "bucket": MemoryStore()}
        with contextlib.closing(slate.open_writer("s3://anywhere/x", **stores)) as writer:
            put(writer, a="1")
            assert contents(writer) == {"a": "1"}
            assert isinstance(writer, Writer)
        with contextlib.closing(slate.open_writer("s3://anywhere/x", **stores)) as writer:
            assert (writer.epoch, contents(writer)) == (2, {"a": "1"})

    def test_keys_of_the_engine_are_not_shown(self, url: str) -> None:
        with contextlib.closing(slate.open_writer(url)) as writer:
            reader = slate.open_reader(url)
            with contextlib.closing(reader), reader.view() as other, writer.view() as own:
                for view in (own, other):
                    assert list(view.scan(b"\x00")) == list(view.scan(b"", reverse=True)) == []
                    assert view.get(slate.EPOCH_KEY) is None
            with pytest.raises(Invalid, match="ended"):
                own.get(b"a")


class TestFastBinding:
    @pytest.fixture
    def binding(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """The binding with its stock helpers; what the process uses is put back afterwards."""
        from slatedb.uniffi._slatedb_uniffi import slatedb as binding

        _slate_fast.install()
        builder, converter = binding._UniffiRustBufferBuilder, binding._UniffiFfiConverterBytes
        fast = (builder.write, builder._pack_into, converter.__dict__["lower"])
        builder.write, builder._pack_into = _stock_write, _stock_pack_into
        del converter.lower
        monkeypatch.setattr(_slate_fast, "_outcome", None)
        yield binding
        builder.write, builder._pack_into, converter.lower = fast

    def test_it_is_in_use_and_makes_the_same_bytes(self, binding: Any) -> None:
        expected = _slate_fast.samples(binding)
        assert _slate_fast.install()
        assert binding._UniffiRustBufferBuilder.write is _slate_fast._write
        assert _slate_fast.samples(binding) == expected

    def test_another_release_stays_stock(self, binding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_slate_fast, "BINDING_VERSION", "0.16.9")
        assert not _slate_fast.install()
        assert binding._UniffiRustBufferBuilder.write is _stock_write

    @pytest.mark.parametrize("broken", [lambda self, value: None, lambda self, value: 1 // 0])
    def test_a_failed_self_test_puts_the_stock_back(
        self, binding: Any, monkeypatch: pytest.MonkeyPatch, broken: Any
    ) -> None:
        monkeypatch.setattr(_slate_fast, "_write", broken)
        expected = _slate_fast.samples(binding)
        assert not _slate_fast.install()
        assert binding._UniffiRustBufferBuilder.write is _stock_write
        assert "lower" not in binding._UniffiFfiConverterBytes.__dict__
        assert _slate_fast.samples(binding) == expected


def _stock_write(self: Any, value: bytes) -> None:
    with self._reserve(len(value)):
        for index, byte in enumerate(value):
            self.rbuf.data[self.rbuf.len + index] = byte


def _stock_pack_into(self: Any, size: int, format: str, value: Any) -> None:
    import struct

    with self._reserve(size):
        for index, byte in enumerate(struct.pack(format, value)):
            self.rbuf.data[self.rbuf.len + index] = byte
