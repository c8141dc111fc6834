"""Readers of queues whose owner is killed: between plan and read, inside each commit, again and again.

The reader is this process, a client of the owner. Whatever it was told holds after each death, and a call that was
under way takes effect once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import AssignmentReader
from detent.kv import open_reader
from detent.verify import verify
from processes import Child, Processes

pytestmark = [
    pytest.mark.xdist_group("processes"),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

QUIET = {"detent.remote.owner.TICK_S": 3600.0}
"""An owner that keeps house only when it must, so that the armed point is reached by what the test does."""

COMMITTING = ("engine.group.before_commit", "engine.group.after_commit", "engine.group.before_answer")
CHECKPOINTING = ("queue.checkpoint.before_write", "queue.checkpoint.after_write")
ROUNDS = 6
MESSAGES = 40


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


@pytest.fixture
def owner(processes: Processes, url: str) -> Child:
    return processes.store(url, patches=QUIET)


@pytest.fixture
def store(owner: Child, url: str) -> Iterator[detent.Store]:
    """A client of the owner, who takes over when that one dies."""
    assert owner.running
    with detent.open(url) as opened:
        assert not opened.is_owner
        yield opened


@pytest.fixture
def reader(store: detent.Store) -> AssignmentReader:
    """It has planned two of six messages."""
    queue = store.queue("q")
    queue.create()
    queue.publish_many([b"%d" % number for number in range(6)])
    made = queue.reader("query")
    made.open()
    assert made.assign(0, 2).number == 1
    return made


def seen(reader: AssignmentReader, number: int) -> list[tuple[int, bytes, int]]:
    return [(message.id, message.body, message.fencing_token) for message in reader.read(number)]


def damage(url: str) -> list[str]:
    found = open_reader(url)
    try:
        return [finding.problem for finding in verify(found)]
    finally:
        found.close()


def test_killed_between_plan_and_read(store: detent.Store, reader: AssignmentReader, owner: Child, url: str) -> None:
    first = seen(reader, 1)
    owner.kill()
    assert seen(reader, 1) == first
    assert store.is_owner
    assert not reader.assign(0, 5).new
    assert reader.assign(1, 2).number == 2
    assert [body for _, body, _ in seen(reader, 2)] == [b"2", b"3"]
    assert damage(url) == []


def test_killed_after_all_is_done(store: detent.Store, reader: AssignmentReader, owner: Child) -> None:
    reader.ack(1)
    owner.kill()
    assert reader.open().acked == 1
    assert store.queue("q").info().total_acked == 2
    assert reader.assign(1, 9).count == 4
    with pytest.raises(detent.NotFound):
        seen(reader, 1)


def plan_on(reader: AssignmentReader) -> None:
    assert (found := reader.assign(1, 2)).number == 2
    assert found.count == 2


def release(reader: AssignmentReader) -> None:
    stale = reader.generation
    assert reader.release() == 2
    assert reader.open().acked == 0
    assert reader.generation != stale


STEPS: dict[str, tuple[Callable[[AssignmentReader], Any], tuple[int, int, int, int]]] = {
    "plan on": (plan_on, (2, 2, 2, 1)),
    "ack": (lambda reader: reader.ack(1), (4, 0, 2, 1)),
    "release": (release, (6, 0, 0, 0)),
}
"""What a reader does, and what the queue and the reader then say: available, in flight, acknowledged; done up to."""


@pytest.mark.parametrize(
    ("point", "step"),
    [
        *((point, step) for point in COMMITTING for step in STEPS),
        *((point, "release") for point in CHECKPOINTING),
    ],
)
def test_killed_inside_the_commit(
    store: detent.Store, reader: AssignmentReader, owner: Child, url: str, point: str, step: str
) -> None:
    owner.call("arm", point=point)
    do, expected = STEPS[step]
    do(reader)
    assert owner.was_killed()
    assert store.is_owner
    info = store.queue("q").info()
    (about,) = store.queue("q").readers()
    assert (info.available, info.in_flight, info.total_acked, about.acked) == expected
    assert damage(url) == []


def test_every_message_is_in_one_batch_whoever_dies(processes: Processes, url: str) -> None:
    """A query with a checkpoint of its own, as Spark has one; the owner dies in each round, while the query plans."""
    chosen = random.Random(7)
    batches: dict[int, list[bytes]] = {}  # what the query has done
    start = 0
    owner = processes.store(url, patches=QUIET)
    with detent.open(url, role="client") as store, ThreadPoolExecutor(1) as threads:
        queue = store.queue("q")
        queue.create()
        queue.publish_many([b"%d" % number for number in range(MESSAGES)])
        reader = queue.reader("query")
        reader.open()
        for number in range(ROUNDS):
            if number % 3:
                owner.call("arm", point=chosen.choice(COMMITTING))
            planning = threads.submit(reader.assign, start, chosen.randint(1, 5))
            if not number % 3:
                owner.kill()
            assert owner.was_killed()
            owner = processes.store(url, patches=QUIET)
            planned = planning.result()
            again = reader.assign(start, 5)  # what a query does that was restarted
            assert (again.number, again.count, again.new) == (planned.number, planned.count, False)
            start = planned.number
            batches[start] = [message.body for message in reader.read(start)]
        while (planned := reader.assign(start, 20)).count:
            start = planned.number
            batches[start] = [message.body for message in reader.read(start)]
    done = [body for batch in batches.values() for body in batch]
    assert done == [b"%d" % number for number in range(MESSAGES)]
    assert damage(url) == []
