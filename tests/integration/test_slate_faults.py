"""A store on an object store that refuses, forgets and takes its time: what its owner makes of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("slatedb")
pytest.importorskip("obstore")

import detent
from detent.errors import Unavailable
from detent.kv import _slate_session, slate
from detent.kv._slate_session import Epoch
from detent.kv.base import Batch
from s3proxy import Fault, FaultyS3, faulty_s3

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]

REFUSED_SOON_S = 30.0
"""Far below the minute or two that SlateDB tries a refused write for."""

OPENING_REQUESTS_MAX = 130
"""What opening may ask, besides the tables: two requests for each commit that is in none, and some 50 for the rest."""


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with faulty_s3() as proxy:
        yield proxy


def put(writer: slate.SlateWriter, **pairs: str) -> None:
    batch = Batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value.encode())
    writer.commit(batch)


def contents(writer: slate.SlateWriter | slate.SlateReader) -> dict[str, str]:
    with writer.view() as view:
        return {key.decode(): value.decode() for key, value in view.scan(b"")}


class TestRefusedWithoutAnotherWriter:
    @pytest.mark.parametrize("status", [409, 412])
    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("unheard", [False, True])
    def test_a_commit_that_was_refused_is_tried_again(
        self, s3: FaultyS3, status: int, times: int, unheard: bool
    ) -> None:
        with detent.open(s3.store_url()) as store:
            journal = store.journal("j")
            journal.append(b"0")
            s3.plant(Fault("PUT", "/wal/", status, times=times, unheard=unheard))
            assert [journal.append(b"%d" % number).offset for number in (1, 2, 3)] == [1, 2, 3]
            assert [message.body for message in journal.read()] == [b"0", b"1", b"2", b"3"]

    def test_one_that_is_refused_again_and_again_is_unclear_until_it_can_be_settled(self, s3: FaultyS3) -> None:
        with contextlib.closing(slate.open_writer(s3.store_url(), commit_seconds=2)) as writer:
            put(writer, a="1")
            s3.plant(Fault("PUT", "/wal/", 409, times=10**6))
            with pytest.raises(Unavailable):
                put(writer, a="2")
            with pytest.raises(Unavailable):
                contents(writer)
            s3.mend()
            writer.recover()
            assert contents(writer)["a"] in {"1", "2"}
            put(writer, a="3")
            assert contents(writer) == {"a": "3"}

    @pytest.mark.parametrize("part", ["/wal/", "/manifest/"])
    def test_opening_is_tried_again(self, s3: FaultyS3, part: str) -> None:
        url = s3.store_url()
        with contextlib.closing(slate.open_writer(url)) as first:
            put(first, a="1")
        s3.plant(Fault("PUT", part, 409))
        with contextlib.closing(slate.open_writer(url)) as second:
            assert contents(second) == {"a": "1"}

    def test_the_loser_of_a_take_over_does_not_open_again(self, s3: FaultyS3) -> None:
        url = s3.store_url()
        with contextlib.closing(slate.open_writer(url)) as first:
            put(first, a="1")
            with contextlib.closing(slate.open_writer(url)) as second:
                for _ in range(3):
                    with pytest.raises(detent.Fenced):
                        put(first, a="zombie")
                put(second, b="2")
                assert contents(second) == {"a": "1", "b": "2"}

    def test_threads_beside_the_commit_do_not_take_it_for_a_fence(self, s3: FaultyS3) -> None:
        """Housekeeping ends for good when it hears of a fence, and a reader would tell its caller of another owner."""
        heard: list[BaseException] = []
        ended = threading.Event()

        def beside(call: Callable[[], object]) -> None:
            while not ended.is_set():
                try:
                    call()
                except Unavailable:  # may be, and is asked again
                    time.sleep(0.001)
                except BaseException as error:
                    heard.append(error)
                    return

        with contextlib.closing(slate.open_writer(s3.store_url())) as writer:
            put(writer, **{f"k{number}": "v" for number in range(100)})

            def maintain() -> None:
                writer._untabled = slate.COMMITS_PER_TABLE
                writer.maintain()
                time.sleep(0.01)

            calls = (lambda: contents(writer), lambda: contents(writer), maintain)
            threads = [threading.Thread(target=beside, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            try:
                for number in range(3):
                    s3.plant(Fault("PUT", "/wal/", 409))
                    put(writer, a=str(number))
            finally:
                ended.set()
                for thread in threads:
                    thread.join()
            assert heard == []
            assert contents(writer)["a"] == "2"

    def test_a_slow_answer_to_which_epoch_it_has_is_waited_for(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask = slate.SlateWriter._manifest_epoch

        def slowly(writer: slate.SlateWriter, seconds: float = 60.0) -> int:
            if seconds < 2.0:
                raise Unavailable("planted: it takes two seconds")
            return ask(writer, seconds)

        monkeypatch.setattr(slate.SlateWriter, "_manifest_epoch", slowly)
        with contextlib.closing(slate.open_writer(s3.store_url())) as writer:
            s3.plant(Fault("PUT", "/wal/", 409))
            put(writer, a="1")
            assert contents(writer) == {"a": "1"}


class TestTakeOver:
    def test_a_writer_whose_opening_again_failed_leaves_its_successor_alone(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The successor came during the try that failed, and has raised SlateDB's epoch by one, as the try would."""
        url = s3.store_url()
        with contextlib.ExitStack() as opened:
            first = opened.enter_context(contextlib.closing(slate.open_writer(url)))
            put(first, a="1")
            build, later = first._build_once, []

            def fails_once(before: int, seconds: float) -> None:
                if later:
                    build(before, seconds)
                later.append(opened.enter_context(contextlib.closing(slate.open_writer(url))))
                raise Unavailable("planted")

            monkeypatch.setattr(first, "_build_once", fails_once)
            s3.plant(Fault("PUT", "/wal/", 409))
            with pytest.raises(detent.Fenced):
                put(first, a="zombie")
            (second,) = later
            put(second, b="2")
            assert contents(second) == {"a": "1", "b": "2"}

    def test_a_durable_commit_succeeds_although_another_comes_before_it_has_opened_again(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = s3.store_url()
        with contextlib.ExitStack() as opened:
            first = opened.enter_context(contextlib.closing(slate.open_writer(url)))
            write, again = first._write, first._build_again

            async def refused(batch: object, *, points: bool = False) -> None:
                await write(batch, points=points)
                raise first._binding.Error.Closed(first._binding.CloseReason.FENCED, "planted")

            def overtaken() -> None:
                opened.enter_context(contextlib.closing(slate.open_writer(url)))
                again()

            monkeypatch.setattr(first, "_write", refused)
            monkeypatch.setattr(first, "_build_again", overtaken)
            put(first, a="1")
            with pytest.raises(detent.Fenced):
                put(first, a="2")
            with contextlib.closing(slate.open_reader(url)) as reader:
                assert contents(reader) == {"a": "1"}

    def test_one_that_could_not_look_who_has_come_looks_before_it_writes(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its successor opened at the same moment, and is fenced by the opening again: its record stays all the
        same, so that it does not take commits of the first for its own."""
        url = s3.store_url()
        with contextlib.ExitStack() as opened:
            first = opened.enter_context(contextlib.closing(slate.open_writer(url)))
            put(first, a="1")
            build, later = first._build_once, []

            def overtakes(before: int, seconds: float) -> None:
                if not later:
                    later.append(opened.enter_context(contextlib.closing(slate.open_writer(url))))
                    put(later[0], b="2")
                    monkeypatch.setattr(slate, "Epoch", _Unreadable)
                build(before, seconds)

            monkeypatch.setattr(first, "_build_once", overtakes)
            s3.plant(Fault("PUT", "/wal/", 409))
            with pytest.raises(Unavailable):
                put(first, a="zombie")
            monkeypatch.setattr(slate, "Epoch", Epoch)
            with pytest.raises(detent.Fenced):
                first.recover()
            with contextlib.closing(slate.open_writer(url)) as third:
                assert contents(third) == {"a": "1", "b": "2"}
                assert third.epoch > later[0].epoch

    def test_a_durable_commit_succeeds_while_its_successor_opens(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The successor has not said what it found, and may not for long: the commit itself can be seen."""
        url = s3.store_url()
        with contextlib.closing(slate.open_writer(url)) as writer:
            write = writer._write
            monkeypatch.setattr(slate.SlateWriter, "_take_over", _dies)

            async def overtaken(batch: object, *, points: bool = False) -> None:
                await write(batch, points=points)
                with contextlib.suppress(KeyboardInterrupt):
                    slate.open_writer(url)
                raise writer._binding.Error.Closed(writer._binding.CloseReason.FENCED, "planted")

            monkeypatch.setattr(writer, "_write", overtaken)
            put(writer, a="1")
            with pytest.raises(detent.Fenced):
                put(writer, a="2")


class _Unreadable(Epoch):
    @classmethod
    def decode(cls, stored: bytes | None, *, any_version: bool = False) -> Epoch:
        raise Unavailable("planted")


def _dies(_writer: slate.SlateWriter) -> None:
    raise KeyboardInterrupt


class TestForbidden:
    def test_a_refusal_is_said_soon_and_with_its_reason(self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_slate_session, "LOOK_SECONDS", 0.2)
        url = s3.store_url()
        with detent.open(url) as store:
            store.journal("j").append(b"0")
            s3.plant(Fault("PUT", "", 403, times=10**6))
            began = time.monotonic()
            with pytest.raises(detent.DetentError, match=r"refused to write the object 'kv/probe'.*put objects"):
                store.journal("j").append(b"1")
            with pytest.raises(Unavailable) as second:
                store.journal("j").append(b"not applied")
            assert type(second.value) is not Unavailable or "unknown" not in str(second.value)
            assert [message.body for message in store.journal("j").read()] == [b"0"], "reads go on"
            with pytest.raises(Unavailable, match="cannot be written"):
                slate.open_writer(url)
            assert time.monotonic() - began < REFUSED_SOON_S
            s3.mend()
            assert store.journal("j").append(b"2").offset in {1, 2}

    def test_a_new_store_is_refused_at_once(self, s3: FaultyS3) -> None:
        s3.plant(Fault("PUT", "", 403, times=10**6))
        began = time.monotonic()
        with pytest.raises(Unavailable, match="give the credentials in the environment the right"):
            detent.open(s3.store_url())
        assert time.monotonic() - began < REFUSED_SOON_S

    def test_the_patience_of_open_holds_for_an_owner(self, s3: FaultyS3) -> None:
        url = s3.store_url()
        detent.open(url).close()
        s3.plant(Fault("PUT", "/wal/", 503, times=10**6))
        began = time.monotonic()
        with pytest.raises(Unavailable):
            detent.open(url, timeout="1s")
        assert time.monotonic() - began < REFUSED_SOON_S


class TestOpening:
    def test_the_number_of_requests_does_not_grow_with_the_commits(
        self, s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Owners that are killed leave commits in no table; the next one counts them, whoever made them."""
        url = s3.store_url()
        for _ in range(3):
            writer = slate.open_writer(url)
            for number in range(slate.COMMITS_PER_TABLE - 2):
                put(writer, **{f"k{number}": "v"})
                writer.maintain()
            monkeypatch.setattr(writer, "_untabled", 0)  # no table at the end, as after kill -9
            writer.close()
        s3.requests.clear()
        with contextlib.closing(slate.open_writer(url)) as writer:
            assert len(s3.requests) <= OPENING_REQUESTS_MAX + 2 * slate.COMMITS_PER_TABLE
            assert len(contents(writer)) == slate.COMMITS_PER_TABLE - 2

    def test_after_a_clean_end_there_is_nothing_to_replay(self, s3: FaultyS3) -> None:
        url = s3.store_url()
        with contextlib.closing(slate.open_writer(url)) as writer:
            for number in range(3 * slate.COMMITS_PER_TABLE):
                put(writer, **{f"k{number}": "v"})
        s3.requests.clear()
        with contextlib.closing(slate.open_writer(url)) as writer:
            assert len(s3.requests) <= OPENING_REQUESTS_MAX
            assert s3.count("GET", "/wal/0") <= 4
            assert len(contents(writer)) == 3 * slate.COMMITS_PER_TABLE

    def test_an_idle_owner_asks_about_once_a_second_at_most(self, s3: FaultyS3) -> None:
        with detent.open(s3.store_url()) as store:
            store.journal("j").append(b"0")
            time.sleep(2)  # what opening has begun
            s3.requests.clear()
            time.sleep(10)
            assert len(s3.requests) <= 15
