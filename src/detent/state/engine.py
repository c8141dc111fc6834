"""State beside the journals: state, checkpoint and output messages of a transaction are one commit of the engine.

Nothing has to be acknowledged afterwards, because nothing was pending: what the transaction published to the consumer's
own store became visible in the very commit that moved its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from detent.engine import Operation
from detent.kv import View
from detent.shard import operations as ops
from detent.shard.reading import read_state
from detent.state.base import ShardName, ShardState, State
from detent.state.checkpoint import Checkpoint
from detent.state.keyed import Changes, Entries, KeyedState, Space, puts_and_deletes
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

SCAN_PAGE: Final = 1_000


class EngineState(State):
    """Keeps state in the consumer's own store, as a dictionary of JSON values. The default, and the quickest to commit:
    a transaction is one commit, and its messages need no acknowledgement."""

    def open(self, store: Store, shard: ShardName) -> EngineShardState:
        return EngineShardState(store, shard)


class EngineShardState(ShardState):
    """One shard's part of the store."""

    takes_outputs = True

    def __init__(self, store: Store, shard: ShardName) -> None:
        self._store = store
        self._shard = shard
        self._record = FencedRecord(store, shard.consumer, shard.shard)
        self._unsettled: Changes = {}
        self._entries: _StoredEntries | None = None
        self._space: Space | None = None

    def restore(self) -> Checkpoint | None:
        opened = self._record.open()
        self._unsettled = {}
        self._let_go()
        self._entries = _StoredEntries(self._store, self._shard, opened.number)
        self._space = Space(self._entries)
        return None if opened.checkpoint is None else Checkpoint.decode(opened.checkpoint)

    def begin(self, settled: Callable[[], None]) -> KeyedState:
        del settled  # what is not durable yet is in memory
        assert self._space is not None, "restore() comes first"
        self._space.begin(self._unsettled)
        return KeyedState(self._space)

    def is_full(self, handle: KeyedState) -> bool:
        return handle.is_full

    def seal(self, handle: KeyedState) -> Changes:
        self._unsettled = handle.seal()
        self._let_go()
        return self._unsettled

    def commit(self, sealed: Changes, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
        puts, deletes = puts_and_deletes(sealed)
        commit = self._record.replacing(checkpoint.encode(), puts=puts, deletes=deletes)
        self._store.commit([commit, *outputs])
        self._unsettled = {}

    def discard(self, handle: KeyedState) -> None:
        handle.discard()
        self._let_go()

    def close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._entries is not None:
            self._entries.let_go()


class _StoredEntries(Entries):
    """The entries of one shard, in the store. Where there are files, a transaction reads through one view of them: what
    it reads is not changed by others, and what is not durable yet is in memory."""

    def __init__(self, store: Store, shard: ShardName, number: int) -> None:
        self._store = store
        self._shard = shard
        self._number = number
        self._viewing: AbstractContextManager[View] | None = None
        self._view: View | None = None

    def load(self, key: str) -> bytes | None:
        if self._view is None:
            self._viewing = self._store.states.view()
            if self._viewing is None:  # no files here: the owner is asked
                question = ops.ReadShardState(self._shard.consumer, self._shard.shard, [key])
                values: list[bytes | None] = self._store.commit([question])[0].values
                return values[0]
            self._view = self._viewing.__enter__()
        return read_state(self._view, self._number, [key])[0]

    def let_go(self) -> None:
        """A transaction has ended, and its view with it."""
        viewing, self._viewing, self._view = self._viewing, None, None
        if viewing is not None:
            viewing.__exit__(None, None, None)

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        after, more = "", True
        while more:
            question = ops.ScanShardState(self._shard.consumer, self._shard.shard, prefix, after, SCAN_PAGE)
            page: ops.StatePage = self._store.commit([question])[0]
            yield from page.items
            more = page.more
            after = page.items[-1][0] if page.items else ""
