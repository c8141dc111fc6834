"""A store on an object store that refuses, forgets and takes its time: what its owner makes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("slatedb")
pytest.importorskip("obstore")

import detent
from detent.errors import Unavailable
from detent.kv import _slate_session, slate
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


class TestTakeOver:
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
            with pytest.raises(Unavailable, match="cannot be written"):
                detent.open(url)
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
