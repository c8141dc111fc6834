"""Whether 10 M messages in a journal slow it down, against 10,000."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import detent
from bench.harness import Plan, Row, Size, in_turn, ratio_at_least
from bench.journal import data
from bench.journal.reopen import SMALL, big_store
from bench.journal.suite import SUITE
from bench.journal.timing import rate
from bench.place import Place

NEWEST = 100_000
SINGLES = 50
BATCHES = 10
RECEIVED = 5
WAIT_S = 60.0


class Work:
    """One slice of the same work on a store, whatever it holds already."""

    def __init__(self, store: detent.Store) -> None:
        self._journal = store.journal(data.NAME)
        self._batch = data.bodies()
        self._single = data.body(data.BODY_BYTES)
        # The newest messages are then the same on both sides, and in the same blocks.
        self._append_batches(NEWEST // data.BATCH_ROWS)

    def slice(self) -> dict[str, float]:
        return {
            "single": rate(self._append_single, SINGLES),
            "batches": rate(partial(self._append_batches, BATCHES), BATCHES * data.BATCH_ROWS),
            "newest": rate(self._read_newest, NEWEST),
            "receive": rate(self._receive, RECEIVED * data.BATCH_ROWS),
        }

    def _append_single(self) -> None:
        for _ in range(SINGLES):
            self._journal.append(self._single)

    def _append_batches(self, count: int) -> None:
        for _ in range(count):
            self._journal.append_many(self._batch)

    def _read_newest(self) -> None:
        end = self._journal.next_offset()
        count = sum(1 for _ in self._journal.read(end - NEWEST, end))
        assert count == NEWEST, count

    def _receive(self) -> None:
        """A tail at the end of the journal receives what is appended in batches of 1,000."""
        total = RECEIVED * data.BATCH_ROWS
        step = threading.Semaphore(0)
        start = self._journal.next_offset()

        def receive() -> None:
            for count, _ in enumerate(self._journal.tail(start, timeout="10s"), 1):
                if count % data.BATCH_ROWS == 0:
                    step.release()
                if count == total:
                    return

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        for _ in range(RECEIVED):
            self._journal.append_many(self._batch)
            assert step.acquire(timeout=WAIT_S), "the tail did not receive what was appended"
        thread.join()


@contextmanager
def opened(directory: Path) -> Iterator[Callable[[], dict[str, float]]]:
    with detent.open(data.url(directory)) as store:
        yield Work(store).slice


@SUITE.measurement("backlog")
@contextmanager
def backlog(place: Place, size: Size) -> Iterator[Plan]:
    directory, messages = big_store(place, size)

    @contextmanager
    def small() -> Iterator[Callable[[], dict[str, float]]]:
        with place.fresh() as fresh:
            data.fill(fresh / "store", SMALL, data.BATCH_ROWS)
            with opened(fresh / "store") as work:
                yield work

    bar = ratio_at_least(0.8, "within 20 %")
    against = f"backlog {messages:,} against {SMALL:,}"

    def row(what: str, unit: str, number: str, note: str = "") -> Row:
        return Row(f"{against}: {what}", unit, f"turns.big.{number}", bar, f"turns.small.{number}", note)

    yield Plan(
        {"turns": in_turn({"big": partial(opened, directory), "small": small}, size.of(10, 4))},
        [
            row("single appends", "appends/s", "single"),
            row("append in batches of 1,000", "msg/s", "batches"),
            row(f"read the newest {NEWEST:,} as messages", "msg/s", "newest", "blocks of the same shape on both sides"),
            row(
                "a tail receives 1,000 new messages",
                "msg/s",
                "receive",
                "from the append's start until the tail has yielded all of them",
            ),
        ],
        warm_up=False,
    )
