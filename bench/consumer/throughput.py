"""Messages a second through one shard that has a backlog, with each kind of state, against loops over the same journal.

The shard runs as it comes: a transaction ends after a second, or when it has many messages or keys, and commits while
the next one is consumed. What is timed begins with taking the shard and ends when everything is committed and
acknowledged. The loop by hand commits what it counts and how far it has read together, and publishes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path

import detent
from bench.consumer import job
from bench.consumer.copies import copy_of
from bench.consumer.suite import SUITE
from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.place import Place
from bench.server.peers import postgres
from detent.consumer.consumer import opened
from detent.consumer.shard import MESSAGES_MAX
from detent.state.keyed import TOUCHED_MAX

FEW_KEYS, MANY_KEYS = 1_000, 50_000
BATCH = 1_000
"""Messages of one commit of the loop by hand."""

LARGE_BATCH = MESSAGES_MAX
"""The same when it commits as rarely as a shard with a backlog."""

OTHERS = tuple(kind for kind in job.KINDS if kind != "engine")
FASTEST = ratio_at_least(1, "the engine is the fastest state")


def empty_loop(store: detent.Store) -> float:
    """The limit: messages are read, and that is all."""
    started = time.perf_counter()
    for _ in store.journal(job.INPUT).read():
        pass
    return time.perf_counter() - started


def loop_by_hand(store: detent.Store, file: Path, batch: int) -> float:
    """The job without a consumer, and without its messages: counts and offset in one transaction of SQLite."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(job.CREATE)
        connection.execute("CREATE TABLE progress (journal TEXT PRIMARY KEY, next_offset BIGINT NOT NULL)")
        connection.execute("INSERT INTO progress VALUES (?, 0)", (job.INPUT,))
        started = time.perf_counter()
        messages = store.journal(job.INPUT).read()
        while some := list(islice(messages, batch)):
            counts: dict[str, int] = {}
            for message in some:
                assert message.key is not None
                name = message.key.decode()
                counts[name] = counts.get(name, 0) + len(message.body.split())
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(f"INSERT INTO counts VALUES (?, ?) {job.UPSERT}", counts.items())
            connection.execute("UPDATE progress SET next_offset = ?", (some[-1].offset + 1,))
            connection.execute("COMMIT")
        return time.perf_counter() - started


def consumed(store: detent.Store, kind: str, place: str, messages: int) -> float:
    """The job by a consumer."""
    job.prepare(kind, place)
    with opened(job.consumer(kind, place), store) as worker:
        started = time.perf_counter()
        worker.run(once=True)
        taken = time.perf_counter() - started
    assert store.journal(job.OUTPUT).next_offset() == messages
    assert job.total(store, kind, place) == messages * job.WORDS
    return taken


def plan(place: Place, size: Size, messages: int, keys: int) -> AbstractContextManager[Plan]:
    """The same for one number of keys."""

    @contextmanager
    def prepared() -> Iterator[Plan]:
        filled = place.shared(f"backlog-{keys}", lambda path: job.fill(f"file:{path}", messages, keys))

        def side(run: Callable[[detent.Store, Path], float]) -> Callable[[], float]:
            def measured() -> float:
                with copy_of(filled, place) as folder, detent.open(f"file:{folder}") as store:
                    return messages / run(store, folder)

            return measured

        def of_kind(kind: str) -> Callable[[detent.Store, Path], float]:
            return lambda store, folder: consumed(store, kind, job.place_of(kind, folder, database), messages)

        with ExitStack() as stack:
            server = stack.enter_context(postgres(stack.enter_context(place.fresh())))
            database = f"postgresql+psycopg://bench@127.0.0.1:{server.port}/postgres"
            sides = {"empty": side(lambda store, _: empty_loop(store))}
            for batch in (BATCH, LARGE_BATCH):
                by_hand = lambda store, folder, batch=batch: loop_by_hand(store, folder / "hand.db", batch)  # noqa: E731
                sides[f"hand-{batch}"] = side(by_hand)
            sides |= {kind: side(of_kind(kind)) for kind in job.KINDS}
            yield Plan(sides, _rows(f"{keys:,} keys"), warm_up=not size.quick)

    return prepared()


def _rows(keys: str) -> list[Row]:
    job_note = "each message is counted under its key, and one is published for it"
    ends = f"a transaction ends by itself, with {MESSAGES_MAX:,} messages or {TOUCHED_MAX:,} keys at most"
    rows = []
    for kind in OTHERS:
        what = f"throughput, {keys}: engine, against {job.NAMES[kind]}"
        rows.append(Row(what, "msg/s", "engine", FASTEST, kind, f"{job_note}; {ends}"))
    for kind in job.KINDS:
        what = f"throughput, {keys}: {job.NAMES[kind]}, against an empty loop"
        rows.append(Row(what, "msg/s", kind, INFORMATIVE, "empty", "reading the same messages and doing nothing"))
    for kind in job.KINDS:
        what = f"throughput, {keys}: {job.NAMES[kind]}, against a loop by hand"
        note = f"sqlite3, a commit for {BATCH:,} messages, synchronous=FULL, nothing is published"
        rows.append(Row(what, "msg/s", kind, INFORMATIVE, f"hand-{BATCH}", note))
    what = f"throughput, {keys}: engine, against a loop by hand with large batches"
    note = f"the same with a commit for {LARGE_BATCH:,} messages, as rarely as the consumer's"
    rows.append(Row(what, "msg/s", "engine", INFORMATIVE, f"hand-{LARGE_BATCH}", note))
    return rows


@SUITE.measurement("throughput")
def throughput(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Counts under a few keys: what is written for a transaction is small."""
    return plan(place, size, size.of(200_000, 25_000), FEW_KEYS)


@SUITE.measurement("many-keys")
def many_keys(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Counts under many keys: nearly each message changes another one."""
    return plan(place, size, size.of(100_000, 25_000), MANY_KEYS)
