"""How many requests the object store gets: they are money, whatever they answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import detent
from bench.harness import INFORMATIVE, Plan, Row, Size, ours_at_most
from bench.lake.bucket import bucket, counted
from bench.lake.suite import SUITE
from bench.place import Place

IDLE_S, QUICK_IDLE_S = 60.0, 10.0
LOOK_S = 0.05
"""How often Spark looks for data."""

LOG = ("HEAD", "/wal/")
"""What a reader asks for: whether the log of commits has grown. An idle owner has no question of that kind."""

MESSAGES = 1_000
SMALL = b"x" * 100


@contextmanager
def owned() -> Iterator[detent.Store]:
    """A new store on the bucket, with a journal and a queue."""
    with detent.open(bucket().store_url()) as store:
        store.journal("in").append(SMALL)
        store.queue("jobs").create()
        yield store


def stream(**options: str) -> Any:
    """What looks for data in a stream of Spark's, without Spark."""
    from detent.spark.journal_reading import JournalReadSettings, JournalStreamReader

    return JournalStreamReader(JournalReadSettings.of({"journals": "in", **options}))


def look(reader: Any, seconds: float) -> None:
    """Look for data as Spark does, and find none."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reader.latestOffset({"in": 1}, ReadAllAvailable())
        reader.reportLatestOffset()
        time.sleep(LOOK_S)


def a_second(seconds: float, work: Callable[[float], object], *only: str) -> float:
    """Requests a second while something idles."""
    with counted(*only) as count:
        work(seconds)
    return count.requests / seconds


@SUITE.measurement("idle")
@contextmanager
def idle(place: Place, size: Size) -> Iterator[Plan]:
    """An owner without work; streams that find nothing, with an owner to ask and without one."""
    from detent.spark.opened import close_all

    seconds = QUICK_IDLE_S if size.quick else IDLE_S
    with place.fresh() as folder, owned() as store:
        socket = Path("/tmp") / f"detent-bench-{uuid.uuid4().hex[:8]}.sock"
        del folder  # sockets have short names only
        store.serve(socket)
        asking = stream(path=store.url, server=str(store.socket_url))
        looking = stream(path=store.url)
        yield Plan(
            {
                "owner": lambda: a_second(seconds, time.sleep),
                "asking": lambda: a_second(seconds, lambda s: look(asking, s), *LOG),
                "looking": lambda: a_second(seconds, lambda s: look(looking, s), *LOG),
            },
            [
                Row("idle owner", "requests/s", "owner", ours_at_most(1.0, "<= 1 a second")),
                Row("idle stream with an owner", "requests/s", "asking", ours_at_most(0.0, "none"),
                    note="requests for the log of commits, which an idle owner does not read"),
                Row("idle stream without an owner", "requests/s", "looking",
                    ours_at_most(1.5, "1 a second, and one for each commit")),
            ],
        )  # fmt: skip
        close_all()


def per_thousand(messages: int, work: Callable[[], object]) -> dict[str, float]:
    """Requests of some work, for each thousand of its messages."""
    with counted() as count:
        work()
    return {"all": 1000 * count.requests / messages, "writes": 1000 * count.writes / messages}


def one_by_one(store: detent.Store) -> None:
    for _ in range(MESSAGES):
        store.journal("single").append(SMALL)


def by_hundreds(store: detent.Store) -> None:
    for _ in range(MESSAGES // 100):
        store.journal("many").append_many([SMALL] * 100)


def through_a_queue(store: detent.Store) -> None:
    queue = store.queue("jobs")
    for _ in range(MESSAGES // 100):
        queue.publish_many([SMALL] * 100)
        with store.transaction() as transaction:
            transaction.ack(*queue.claim(100))


@SUITE.measurement("busy")
@contextmanager
def busy(place: Place, size: Size) -> Iterator[Plan]:
    """Requests for a thousand messages: appended one by one, by hundreds, and passed through a queue."""
    del place, size
    ways = {"one": one_by_one, "hundreds": by_hundreds, "queue": through_a_queue}
    names = {"one": "appended one by one", "hundreds": "appended by hundreds", "queue": "through a queue, by hundreds"}
    with owned() as store:
        yield Plan(
            {name: (lambda way=way: per_thousand(MESSAGES, lambda: way(store))) for name, way in ways.items()},
            [
                row
                for name in ways
                for row in (
                    Row(f"1,000 messages {names[name]}", "requests", f"{name}.all", INFORMATIVE),
                    Row(f"1,000 messages {names[name]}: writes", "requests", f"{name}.writes", INFORMATIVE),
                )
            ],
            warm_up=False,
        )
