"""A queue in SQLite, written as well as one can: what a program would use that has no queue of its own.

What it does: durable commits (WAL, synchronous=FULL; page cache and wal_autocheckpoint as they come), one connection,
cached prepared statements, explicit BEGIN IMMEDIATE and COMMIT, executemany for batches. Priorities, delays
(visible_at), a retention deadline, attempts, leases with a deadline, a delivery number that fences late
acknowledgements off, the consumer's label, headers as JSON, and done messages that are kept for an hour without their
body, as ours are. A claim is one UPDATE ... RETURNING and gives body and headers; an acknowledgement of a stale
delivery refuses all that came with it.

Chosen in its favour: queues are numbers; message numbers are row numbers without AUTOINCREMENT; the delivery number
comes from memory, one for each claim, since there is one connection; every index is partial or on columns that do not
change, so that a publish writes two of them, a claim two and an acknowledgement two. Expired leases are not swept,
ended retentions or done messages away while it is measured; the indexes for that are there.

What it does not do: remember the answers of transactions for clients that ask again, serve other processes' consumers
in their order, wake waiting consumers, check filters, let low priorities through now and then, count what is where.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.queue import data

AVAILABLE, IN_FLIGHT, DONE = 0, 1, 2
LEASE_MS = 30_000
RETENTION_MS = 4 * 24 * 3600 * 1000
QUEUE = 1
CONSUMER = "bench:1"
HEADERS = {"queue": data.NAME}

SCHEMA = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    visible_at INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    lease_until INTEGER,
    done_at INTEGER,
    consumer TEXT,
    headers TEXT NOT NULL,
    body BLOB
);
CREATE INDEX claimable ON messages (queue, priority, id) WHERE state = 0;
CREATE INDEX leases ON messages (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX retention ON messages (deadline);
CREATE INDEX done ON messages (queue, done_at) WHERE done_at IS NOT NULL;
"""

PUBLISH = """
INSERT INTO messages (queue, state, priority, received_at, visible_at, deadline, attempts, delivery, headers, body)
VALUES (?, 0, ?, ?, ?, ?, 0, 0, ?, ?)
"""

CLAIM = """
UPDATE messages SET state = 1, attempts = attempts + 1, delivery = ?, lease_until = ?, consumer = ?
WHERE id IN (
    SELECT id FROM messages
    WHERE queue = ? AND state = 0 AND visible_at <= ?
    ORDER BY priority, id LIMIT ?
)
RETURNING priority, id, delivery, attempts, lease_until, received_at, headers, body
"""

ACK = """
UPDATE messages SET state = 2, done_at = ?, lease_until = NULL, body = NULL
WHERE id = ? AND delivery = ? AND state = 1 AND lease_until > ?
"""


class Claimed(NamedTuple):
    """A delivery."""

    priority: int
    id: int
    delivery: int
    attempts: int
    lease_until: int
    received_at: int
    headers: dict[str, str]
    body: bytes


class SqliteQueue:
    """The queue."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._delivery = self._execute("SELECT coalesce(max(delivery), 0) FROM messages").fetchone()[0]

    def publish(self, bodies: Sequence[bytes], headers: dict[str, str], priority: int = 0) -> None:
        now = _now_ms()
        row = (QUEUE, priority, now, now, now + RETENTION_MS, json.dumps(headers))
        self._execute("BEGIN IMMEDIATE")
        if len(bodies) == 1:
            self._execute(PUBLISH, (*row, bodies[0]))
        else:
            self._executemany(PUBLISH, [(*row, body) for body in bodies])
        self._execute("COMMIT")

    def claim(self, count: int, consumer: str) -> list[Claimed]:
        now = _now_ms()
        self._delivery += 1
        self._execute("BEGIN IMMEDIATE")
        parameters = (self._delivery, now + LEASE_MS, consumer, QUEUE, now, count)
        rows: list[Any] = self._execute(CLAIM, parameters).fetchall()
        self._execute("COMMIT")
        rows.sort(key=lambda row: row[:2])
        return [Claimed(*row[:6], json.loads(row[6]), row[7]) for row in rows]

    def ack(self, messages: Sequence[Claimed]) -> None:
        now = _now_ms()
        self._execute("BEGIN IMMEDIATE")
        if len(messages) == 1:
            done = self._execute(ACK, (now, messages[0].id, messages[0].delivery, now))
        else:
            done = self._executemany(ACK, [(now, message.id, message.delivery, now) for message in messages])
        if done.rowcount != len(messages):
            self._execute("ROLLBACK")
            raise ValueError("a stale delivery")
        self._execute("COMMIT")


class Sqlite:
    """The four operations on it."""

    def __init__(self, queue: SqliteQueue) -> None:
        self._queue = queue
        self._singles = data.singles()
        self._batches = data.batches()

    def publish_one(self) -> None:
        self._queue.publish([next(self._singles)], HEADERS)

    def consume_one(self) -> None:
        found = self._queue.claim(1, CONSUMER)
        data.check(found, 1)
        self._queue.ack(found)

    def publish_batch(self) -> None:
        self._queue.publish(next(self._batches), HEADERS)

    def consume_batch(self) -> None:
        found = self._queue.claim(data.BATCH, CONSUMER)
        data.check(found, data.BATCH)
        self._queue.ack(found)


@contextmanager
def opened(directory: Path) -> Iterator[Sqlite]:
    with closing(sqlite3.connect(directory / "queue.db", isolation_level=None)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(SCHEMA)
        yield Sqlite(SqliteQueue(connection))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
