"""What an idle stream asks: an owner once, a bucket less and less often, and neither in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import detent
from detent.errors import Unavailable
from detent.spark import idle
from detent.spark.idle import IdleStream
from detent.spark.journal_reading import JournalReadSettings, JournalStreamReader
from detent.spark.opened import close_all
from detent.spark.queue_reading import QueueReadSettings, QueueStreamReader
from processes import eventually
from s3proxy import FaultyS3, faulty_s3

LOOKS = 300
"""More than a stream makes in ten seconds."""


class Owner:
    """An owner at which a stream waits."""

    def __init__(self, error: Exception | None = None) -> None:
        self.waits: list[Any] = []
        self.tell = threading.Semaphore(0)
        self.error = error

    def wait(self, place: Any, timeout_ms: int) -> None:
        self.waits.append((place, timeout_ms))
        if self.error is not None:
            raise self.error
        self.tell.acquire()


class Looking:
    """A stream's looks, each of which finds `more` messages."""

    def __init__(self, stream: IdleStream) -> None:
        self._stream = stream
        self.more = 0

    def has_looked(self, place: int) -> bool:
        """Whether the stream, asked where it may read to, looks."""
        looks = []
        end = self._stream.end_after(place, lambda: looks.append(place) or place + self.more)
        assert end == (place + self.more if looks else place)
        return bool(looks)


def test_stream_is_quiet_until_the_owner_tells_of_something() -> None:
    owner = Owner()
    stream = Looking(IdleStream(owner.wait))
    assert stream.has_looked(7)
    assert not stream.has_looked(7)
    eventually(lambda: owner.waits == [(7, idle.WAIT_MS)], what="the wait")
    owner.tell.release()
    stream.more = 1
    eventually(lambda: stream.has_looked(7), what="the news")
    assert stream.has_looked(7), "what has come once may come again"


def test_stream_that_stands_elsewhere_looks() -> None:
    stream = Looking(IdleStream(Owner().wait))
    assert stream.has_looked(7)
    assert stream.has_looked(8), "another place was not looked at"


def test_owner_that_does_not_answer_is_asked_again_after_a_second_at_the_earliest() -> None:
    owner = Owner(Unavailable("gone"))
    stream = Looking(IdleStream(owner.wait))
    assert stream.has_looked(7)
    eventually(lambda: len(owner.waits) == 1, what="the wait")
    assert not stream.has_looked(7)


def test_without_an_owner_a_stream_takes_nothing_for_granted_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(idle.time, "monotonic", lambda: now)
    stream = Looking(IdleStream())
    looks = 0
    for _ in range(1000):  # ten seconds
        now += 0.01
        looks += stream.has_looked(7)
    assert 14 <= looks <= 18, "six in the first second, then one a second"
    now += 2
    stream.more = 1
    assert stream.has_looked(7)
    stream.more = 0
    assert stream.has_looked(7), "what has come once may come again"
    now += 0.021
    assert stream.has_looked(7), "it waits as short as at first"


# -- counted at an object store -------------------------------------------------------------------------------------


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    pytest.importorskip("slatedb")
    with faulty_s3() as proxy:
        yield proxy
        close_all()


def looked(reader: Any, start: Any, s3: FaultyS3) -> int:
    """How many requests many looks make that find nothing."""
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    before = len(s3.requests)
    for _ in range(LOOKS):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        reader.reportLatestOffset() if hasattr(reader, "_ends") else None
    return len(
        [
            path
            for _, path in s3.requests[before:]
            if not any(part in path for part in ("/gc/", "/compactions", "/owner.json"))
        ]
    )


@pytest.mark.s3
def test_idle_streams_with_an_owner_make_no_request_of_the_bucket(s3: FaultyS3) -> None:
    url = s3.store_url()
    with detent.open(url) as store:
        store.journal("a").append(b"x")
        store.queue("q").create()
        given = {"path": url, "server": str(store.owner_url)}
        journal = JournalStreamReader(JournalReadSettings.of({**given, "journals": "a"}))
        queue = QueueStreamReader(QueueReadSettings.of({**given, "queue": "q", "readerName": "r"}))
        assert looked(journal, {"a": 1}, s3) <= 1, "the owner looks for another one every few seconds"
        assert looked(queue, queue.initialOffset(), s3) <= 1
        store.journal("a").append(b"y")
        eventually(lambda: journal.latestOffset({"a": 1}, ReadAllAvailable()) == {"a": 2}, what="the message")
        close_all()


@pytest.mark.s3
def test_idle_stream_without_an_owner_asks_the_bucket_seldom(s3: FaultyS3) -> None:
    url = s3.store_url()
    with detent.open(url) as store:
        store.journal("a").append(b"x")
    reader = JournalStreamReader(JournalReadSettings.of({"path": url, "journals": "a"}))
    assert looked(reader, {"a": 1}, s3) <= 8
