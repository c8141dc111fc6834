"""The job that all consumers here do: count words by key, and publish a message for each that was read.

An application with a dictionary changes it as messages come. One with a database gathers what a transaction adds, and
writes it at the end in one statement that does the arithmetic: row by row, the time of the statements would be all that
is measured.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import detent
from detent.consumer import Consumer, Publish
from detent.journal import Message
from detent.state import EngineState, RecordedState, SqlState, State

KINDS = ("engine", "recorded", "sqlite", "postgres")
NAMES = {
    "engine": "engine",
    "recorded": "recorded file",
    "sqlite": "SQL (SQLite)",
    "postgres": "SQL (PostgreSQL)",
}
NAME = "words"
INPUT = "in"
OUTPUT = "out"

BODY_BYTES = 100
NUMBER_DIGITS = 20
TEXT = b"the catch in a chronometer that lets exactly one tooth of the wheel pass at each tick of it"
APPEND_ROWS = 10_000
"""Messages of one append while a journal is filled."""

CREATE = "CREATE TABLE IF NOT EXISTS counts (word_key TEXT PRIMARY KEY, words BIGINT NOT NULL)"
UPSERT = "ON CONFLICT (word_key) DO UPDATE SET words = counts.words + excluded.words"
ADD = {
    "sqlite": f"INSERT INTO counts VALUES (:key, :words) {UPSERT}",
    "postgres": f"INSERT INTO counts SELECT * FROM unnest(CAST(:keys AS text[]), CAST(:words AS bigint[])) {UPSERT}",
}
"""Each database's quickest way to take many rows: SQLite one by one within the process, PostgreSQL in one message."""

_PID = b"%d" % os.getpid()


# -- messages -----------------------------------------------------------------------------------------------------


def body(number: int) -> bytes:
    """100 bytes: a number, by which a message and what is derived from it are known, and words."""
    return (b"%0*d %s" % (NUMBER_DIGITS, number, TEXT))[:BODY_BYTES]


WORDS = len(body(0).split())
"""Of each message."""


def key(number: int, keys: int) -> bytes:
    """One of so many keys, as if by chance, and the same each time."""
    return b"key-%06d" % (zlib.crc32(b"%d" % number) % keys)


def fill(url: str, messages: int, keys: int) -> None:
    """A store whose journal holds so many messages."""
    with detent.open(url) as store:
        for start in range(0, messages, APPEND_ROWS):
            numbers = range(start, min(messages, start + APPEND_ROWS))
            store.journal(INPUT).append_many([(body(number), key(number, keys)) for number in numbers])


def derived(message: Message) -> tuple[int, int]:
    """The number of the message that one was derived from, and the process that did it."""
    number, _, pid = message.body.split()
    return int(number), int(pid)


def check(store: detent.Store, messages: Iterable[int]) -> None:
    """Each message has its derived one, once and in order."""
    found = [derived(message)[0] for message in store.journal(OUTPUT).read()]
    assert found == list(messages), "a consumer lost, doubled or reordered messages"


# -- consumers ----------------------------------------------------------------------------------------------------


def count(message: Message, state: Any, publish: Publish) -> None:
    """The job over a dictionary."""
    words = message.body.split()
    assert message.key is not None
    name = message.key.decode()
    state[name] = state.get(name, 0) + len(words)
    publish(OUTPUT, b"%s %d %s" % (words[0], len(words), _PID))


class SqlCount:
    """The job over a database."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._state: Any = None
        self._counts: dict[str, int] = {}

    def consume(self, message: Message, state: Any, publish: Publish) -> None:
        if state is not self._state:  # a transaction begins, perhaps after one that failed
            self._state, self._counts = state, {}
        words = message.body.split()
        assert message.key is not None
        name = message.key.decode()
        self._counts[name] = self._counts.get(name, 0) + len(words)
        publish(OUTPUT, b"%s %d %s" % (words[0], len(words), _PID))

    def finalize(self, transaction: Any) -> None:
        parameters: Any
        if self._kind == "postgres":
            parameters = {"keys": list(self._counts), "words": list(self._counts.values())}
        else:
            parameters = [{"key": name, "words": words} for name, words in self._counts.items()]
        transaction.state.execute(ADD[self._kind], parameters)


def consumer(kind: str, place: str, **options: Any) -> Consumer:
    """A consumer that does the job, with its state of a kind at a place: a folder, or the URL of a database."""
    if kind not in ADD:
        app = Consumer(NAME, read=INPUT, state=_state(kind, place), **options)
        app.consume(count)
        return app
    return Consumer(NAME, read=INPUT, state=_state(kind, place), application=SqlCount(kind), **options)


def _state(kind: str, place: str) -> State:
    if kind == "engine":
        return EngineState()
    return RecordedState(place) if kind == "recorded" else SqlState(place)


# -- places -------------------------------------------------------------------------------------------------------


def place_of(kind: str, folder: Path, database: str) -> str:
    """Where a state is, for `consumer`. `database` is the URL of a PostgreSQL of this run's own."""
    if kind == "postgres":
        return database
    return f"sqlite:///{folder / 'state.db'}" if kind == "sqlite" else str(folder / "recorded")


def prepare(kind: str, place: str) -> None:
    """Make the tables anew, where there are tables."""
    if kind not in ADD:
        return
    for statement in ("DROP TABLE IF EXISTS counts", "DROP TABLE IF EXISTS detent_shards", CREATE):
        _execute(place, statement)


def total(store: detent.Store, kind: str, place: str) -> int:
    """The words that a state has counted, once its consumer has ended."""
    if kind == "engine":
        return sum(value for _, value in store.consumer(NAME).state(0).items())
    if kind == "recorded":
        _, content = (Path(place) / f"{NAME}-0.json").read_bytes().splitlines()
        return sum(json.loads(content).values())
    return int(_execute(place, "SELECT sum(words) FROM counts", answers=True))


def _execute(url: str, statement: str, *, answers: bool = False) -> Any:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            found = connection.execute(sqlalchemy.text(statement))
            return found.scalar() if answers else None
    finally:
        engine.dispose()
