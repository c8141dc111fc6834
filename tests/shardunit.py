"""A shard in the test's own threads, over a real store, with steps that a test can hold back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import detent
from detent.consumer import Consumer
from detent.consumer.progress import Progress
from detent.consumer.shard import Shard
from detent.consumer.shard import ShardSetup as Assignment
from detent.engine import Operation
from detent.message import ACK_TXN
from detent.shard import operations as ops
from detent.state import Checkpoint, EngineState, ShardName, ShardState, State
from detent.state.engine import EngineShardState
from processes import PATIENCE_S, eventually


class PendingShardState(EngineShardState):
    """State in the engine, whose messages are pending until they are acknowledged, as with a database."""

    takes_outputs = False


class PendingState(EngineState):
    """The kind of state that every test of acknowledgements can use: it needs no server and no file."""

    def open(self, store: detent.Store, shard: ShardName) -> PendingShardState:
        return PendingShardState(store, shard)


class Gate:
    """A place where a thread waits until the test lets it through."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(PATIENCE_S), "nobody opened the gate"

    def wait_reached(self) -> None:
        assert self.reached.wait(PATIENCE_S), "nobody came to the gate"


class GatedState(State):
    """Another kind of state, with a gate before each commit and a record of what came."""

    def __init__(self, inner: State | None = None) -> None:
        self._inner = inner or PendingState()
        self.gate = Gate()
        self.commits: list[Checkpoint] = []
        self.before: Callable[[Checkpoint], None] = lambda checkpoint: None

    def open(self, store: detent.Store, shard: ShardName) -> ShardState:
        inner = self._inner.open(store, shard)
        commit = inner.commit

        def gated(sealed: Any, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
            self.before(checkpoint)
            self.gate.pass_through()
            commit(sealed, checkpoint, outputs)
            self.commits.append(checkpoint)

        inner.commit = gated  # type: ignore[method-assign]
        return inner


def register(store: detent.Store, app: Consumer, journals: Sequence[str] | None = None) -> None:
    """What a worker does first."""
    named = [source.journal for source in app.sources] if journals is None else list(journals)
    store.commit([ops.RegisterConsumer(app.name, app.shards, named, app.partition)])


def shard_of(
    store: detent.Store,
    app: Consumer,
    *,
    outputs: dict[str, detent.Store] | None = None,
    journals: Sequence[str] | None = None,
    shard: int = 0,
) -> Shard:
    """One life of a shard."""
    register(store, app, journals)
    named = tuple(source.journal for source in app.sources) if journals is None else tuple(journals)
    given = Assignment(app, shard, named, store, outputs or {})
    return Shard(given, app.state.open(store, given.name), Progress())


class Life:
    """A shard that runs in a thread."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.shard.run()
        except BaseException as error:
            self.error = error

    def wait_processed(self, **through: int) -> None:
        progress = self.shard._progress
        eventually(
            lambda: self.error or all(progress.processed.get(name, 0) >= offset for name, offset in through.items()),
            what=f"{through}",
        )
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self.shard.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def living(shard: Shard) -> Iterator[Life]:
    """A shard at work; what made it fail is raised at the end."""
    life = Life(shard)
    try:
        yield life
    finally:
        life.end()
    if life.error is not None:
        raise life.error


def rows(store: detent.Store, journal: str) -> list[detent.Message]:
    """What is stored: pending messages and acknowledgements too."""
    try:
        return list(store.journal(journal).read(isolation="uncommitted"))
    except detent.NotFound:
        return []


def letters(store: detent.Store, journal: str) -> str:
    """The stored rows in short: messages by their bodies, acknowledgements as a dot."""
    return " ".join("." if row.flags == ACK_TXN else row.body.decode() for row in rows(store, journal))


def committed(store: detent.Store, journal: str) -> list[bytes]:
    """What a reader sees."""
    try:
        return [message.body for message in store.journal(journal).read()]
    except detent.NotFound:
        return []


def echo(name: str = "c", *, read: Any = "in", state: State | None = None, **options: Any) -> Consumer:
    """Publishes what it reads."""
    app = Consumer(name, read=read, state=state or PendingState(), **options)

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        publish("out", message.body)

    return app
