"""Messages to publish, queues that hold many of them, and the work that every side does with them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import detent
from bench.harness import Skipped
from bench.place import Place

NAME = "bench"
BODY_BYTES = 1024
BATCH = 100
DISTINCT = 1_000
"""Different bodies, used in turn."""

STORE_BYTES_PER_MESSAGE = 1_500
"""A generous guess, to refuse a run that would fill the disk."""


def bodies() -> list[bytes]:
    """Bytes that no layer below could compress or share."""
    return [os.urandom(BODY_BYTES) for _ in range(DISTINCT)]


def singles() -> Iterator[bytes]:
    """Bodies without end."""
    return itertools.cycle(bodies())


def batches(size: int = BATCH) -> Iterator[list[bytes]]:
    """Batches of bodies without end."""
    ready = bodies()
    return itertools.cycle([ready[start : start + size] for start in range(0, DISTINCT, size)])


def url(directory: Path) -> str:
    return f"file:{directory}"


class Consumed(Protocol):
    """What a claim gives."""

    @property
    def body(self) -> bytes: ...


def check(messages: list[Consumed], count: int) -> None:
    """A claim gave what it should, with its bodies."""
    assert len(messages) == count, f"{len(messages)} messages instead of {count}"
    for message in messages:
        assert len(message.body) == BODY_BYTES, f"a body of {len(message.body)} bytes"


class Ours:
    """The four operations on our queue, through the public API and with default settings."""

    def __init__(self, store: detent.Store) -> None:
        self.queue = store.queue(NAME)
        self.queue.create(exist_ok=True)
        self._singles = singles()
        self._batches = batches()

    def publish_one(self) -> None:
        self.queue.publish(next(self._singles))

    def consume_one(self) -> None:
        found = self.queue.claim(1)
        check(found, 1)
        found[0].ack()

    def publish_batch(self) -> None:
        self.queue.publish_many(next(self._batches))

    def consume_batch(self) -> None:
        found = self.queue.claim(BATCH)
        check(found, BATCH)
        self.queue.ack(found)


def fill(directory: Path, messages: int) -> None:
    """A store whose queue holds this many available messages, published 100 at a time."""
    with detent.open(url(directory)) as store:
        work = Ours(store)
        for _ in range(messages // BATCH):
            work.publish_batch()


def big_store(place: Place, messages: int) -> Path:
    """A store with this many available messages, which the measurements share."""
    if place.free_bytes() < 2 * messages * STORE_BYTES_PER_MESSAGE:
        raise Skipped(f"not enough disk for {messages:,} messages")
    return place.shared(f"big-{messages}", lambda path: fill(path / "store", messages)) / "store"
