"""A consumer for tests, in a process of its own: it counts what it reads, in a state of any kind, and publishes it.

`consumes` is the process. `check` is the downstream reader that counts: each message once, in order, in the state and
in the output.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy

import detent
import postgresserver
from detent.consumer import Consumer, Worker
from detent.state import EngineState, RecordedState, SqlState, State
from processes import Io, eventually

KINDS = ("engine", "recorded", "sqlite", "postgres")
TABLE = "counted"

TRANSACTION = (
    "consumer.before_append", "consumer.after_append", "consumer.before_commit", "consumer.after_commit",
    "consumer.before_ack", "consumer.after_ack",
)  # fmt: skip
SQL = ("state.sql.after_fence", "state.sql.after_restore", "state.sql.before_commit", "state.sql.after_commit")
RECORDED = (
    "state.recorded.before_handoff", "state.recorded.after_handoff", "state.recorded.after_snapshot",
    "state.recorded.before_rename",
)  # fmt: skip
OWN = {"engine": (), "recorded": RECORDED, "sqlite": SQL, "postgres": SQL}
"""Crash points: of every transaction, and of a kind of state."""


def cases(general: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each kind of state with each of its points. Both databases go the same way through the general ones, which
    PostgreSQL visits; `make soak` has SQLite do so too."""
    whole = [kind for kind in KINDS if kind != "sqlite" or os.environ.get("DETENT_SOAK")]
    return [(kind, point) for kind in KINDS for point in (*(general if kind in whole else ()), *OWN[kind])]


RECORDED_SNAPSHOT = 250
"""Bytes of log after which a recorded state writes a snapshot: every few transactions."""


def place_of(kind: str, folder: Path) -> str:
    """Where the state of a kind is, for `state_of`."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/state.db"
    return postgresserver.new_database() if kind == "postgres" else str(folder / "recorded")


def state_of(kind: str, place: str) -> State:
    """A state of a kind."""
    if kind == "engine":
        return EngineState()
    return RecordedState(place, snapshot_bytes=RECORDED_SNAPSHOT) if kind == "recorded" else SqlState(place)


def bump(state: Any, key: str) -> int:
    """Read, modify, write; the same for all kinds of state."""
    if hasattr(state, "execute"):
        state.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (word VARCHAR PRIMARY KEY, n INTEGER)")
        seen = state.scalar(f"SELECT n FROM {TABLE} WHERE word = :word", {"word": key})
        if seen is None:
            state.execute(f"INSERT INTO {TABLE} VALUES (:word, 1)", {"word": key})
        else:
            state.execute(f"UPDATE {TABLE} SET n = :n WHERE word = :word", {"word": key, "n": seen + 1})
        return (seen or 0) + 1
    state[key] = state.get(key, 0) + 1
    return state[key]


def counting(
    name: str,
    kind: str,
    place: str,
    *,
    read: Any = "in",
    write: str = "out",
    sleep: float = 0.0,
    lease_ms: int | None = None,
    **options: Any,
) -> Consumer:
    """Counts all messages, and publishes each with its number. A total a transaction goes to another journal. The lease
    may be shorter than users' can."""
    app = Consumer(name, read=read, state=state_of(kind, place), **options)
    app.lease_ms = app.lease_ms if lease_ms is None else lease_ms
    has_output = bool(app.outputs)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        time.sleep(sleep)
        number = bump(state, "all")
        publish(write, b"%s %d" % (message.body, number), key=message.key)
        if has_output:
            publish(write, b"%s %d" % (message.body, number), store="far")

    @app.finalize
    def total(transaction: Any) -> None:
        transaction.publish(f"{write}/totals", b"%d" % transaction.messages)

    return app


def consumes(
    io: Io,
    url: str,
    name: str,
    kind: str,
    place: str,
    once: bool = False,
    member: str | None = None,
    role: str = "auto",
    options: dict[str, Any] | None = None,
) -> None:
    """Run the consumer: with `once` until nothing is left, otherwise until the test says end."""
    app = counting(name, kind, place, **(options or {}))
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(detent.open(url, role=role))  # type: ignore[arg-type]
        far = {key: stack.enter_context(detent.open(there)) for key, there in app.outputs.items()}
        worker = Worker(
            app, store, far, member=member, on_event=lambda what, shard, more: io.say(what, shard=shard, more=more)
        )
        stack.callback(app.state.close)
        if once:
            worker.run(once=True)
        else:
            thread = threading.Thread(target=worker.run)
            thread.start()
            io.say("started", pid=os.getpid())
            for _ in io.calls():
                pass
            worker.stop()
            thread.join()
        io.say("done")


def bodies(store: detent.Store, journal: str) -> list[bytes]:
    """What a read-committed reader sees."""
    try:
        return [message.body for message in store.journal(journal).read()]
    except detent.NotFound:
        return []


def check_output(found: list[bytes], sent: list[bytes]) -> None:
    """Each message once, in the order in which it was sent, with the number that the state had for it."""
    expected = [b"%s %d" % (body, number) for number, body in enumerate(sent, 1)]
    counts = Counter(found)
    lost = [body for body in expected if not counts[body]]
    doubled = [body for body, n in counts.items() if n > 1]
    strange = [body for body in counts if body not in set(expected)]
    assert not lost, f"lost: {lost[:5]} of {len(lost)}"
    assert not doubled, f"duplicated: {doubled[:5]} of {len(doubled)}"
    assert not strange, f"torn or stale: {strange[:5]} of {len(strange)}"
    assert found == expected, "reordered"


def check(store: detent.Store, name: str, kind: str, place: str, sent: list[bytes], *, write: str = "out") -> None:
    """The output and the state agree with what was sent."""
    check_output(bodies(store, write), sent)
    assert sum(map(int, bodies(store, f"{write}/totals"))) == len(sent), "totals count each message once"
    assert total_of(store, name, kind, place) == len(sent)


def total_of(store: detent.Store, name: str, kind: str, place: str) -> int:
    """What the state has counted, seen from outside."""
    if kind == "engine":
        return int(store.consumer(name).state(0).get("all", 0))
    if kind == "recorded":
        from detent.state.base import ShardName
        from detent.state.recovery_log import Playback, log_name, play_log

        playback = Playback()
        journal = log_name(ShardName(name, 0))
        info = store.journal(journal).info()
        if info.first_offset:
            playback.start_at(info.first_offset)
        play_log(store, journal, playback)
        return int(playback.entries.get("all", b"0"))
    engine = sqlalchemy.create_engine(place)
    try:
        with engine.connect() as connection:
            found = connection.execute(sqlalchemy.text(f"SELECT n FROM {TABLE} WHERE word = 'all'")).scalar()
            return int(found or 0)
    finally:
        engine.dispose()


def wait_processed(store: detent.Store, name: str, journal: str, count: int) -> None:
    """Until a running consumer has done so many messages."""
    eventually(lambda: store.consumer(name).info().shards[0].processed.get(journal, 0) >= count, what="processing")
