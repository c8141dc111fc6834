"""Which process works on which shards of a bridge: leases in the store, by the rules that consumers have.

A lease says who should work. What keeps two from it is the fence of the shard's record, and for a topic that is written
the fence of the producer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from detent.errors import Conflict, DetentError
from detent.kafka.declaration import Declaration
from detent.runtime.report import State
from detent.runtime.task import Waits
from detent.shard import operations as ops
from detent.shard.operations import ConsumerDescription
from detent.stream import sharing
from detent.stream.membership import BEATS, Membership, has_died

if TYPE_CHECKING:
    from detent.store import Store

LOOK_S: Final = 0.5
"""How often a shard that another process has is looked at: whether its holder lives, on this machine, and what the last
heartbeat said."""

KNOWN_BEATS: Final = 2
"""What a heartbeat said is taken for granted for so many of them: a look asks the store no more than they do."""

CROWDED_S: Final = 3.0
"""How long a process keeps more than its share: one that has just started may be gone in a moment."""

logger = logging.getLogger("detent.kafka")


class BridgeShare:
    """What one process has of a bridge. For any thread."""

    def __init__(self, store: Store, bridge: Declaration, member: str | None = None) -> None:
        self._store = store
        self._bridge = bridge
        self._membership = Membership(store, bridge.consumer, bridge.lease_ms, member)
        self.member = self._membership.member
        self.beat_s = bridge.lease_ms / BEATS / 1000
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        """The generation of each shard that this process has."""
        self._leaving: set[int] = set()
        """Shards that are to be given back once they have ended."""
        self._crowded_since: float | None = None
        self._table: ConsumerDescription | None = None
        """Who had what at the last heartbeat, and when that was."""
        self._heard_at = 0.0

    def register(self) -> None:
        """Tell the store of the bridge. `Conflict` if it has another number of shards there."""
        bridge = self._bridge
        self._store.commit([ops.RegisterConsumer(bridge.consumer, bridge.shards, bridge.inputs)])

    def take(self, index: int) -> Waits | None:
        """Take the lease of a shard, or say why it waits."""
        with self._lock:
            if (known := self._known(index)) is not None:
                return known
            table = self._heard(self._membership.beat())
            if table.paused:
                self._drop(index)
                return Waits(State.PAUSED, "the store says that it shall rest", LOOK_S)
            if index in self._leaving:
                self._leaving.discard(index)
                self._drop(index)
                return Waits(State.STANDBY, "another process has room for it", LOOK_S)
            holder = table.states[index].holder
            if holder not in {"", self.member}:
                if not self._membership.free_dead(holder):
                    return Waits(State.STANDBY, "another process has it", LOOK_S)
                table = self._heard(self._membership.beat())
            others = [held for held in self._held if held != index]
            if holder != self.member and index not in self._wanted(table, others):
                return Waits(State.STANDBY, "another process has room for it", LOOK_S)
            try:
                self._held[index] = self._membership.take(index)
            except Conflict:
                return Waits(State.STANDBY, "another process was quicker", LOOK_S)
            return None

    def _known(self, index: int) -> Waits | None:
        """Why a shard waits, as far as the last heartbeat tells: another process has it, which has not died since on
        this machine, or all are to rest."""
        table = self._table
        if table is None or index in self._held or time.monotonic() - self._heard_at >= KNOWN_BEATS * self.beat_s:
            return None
        if table.paused:
            return Waits(State.PAUSED, "the store says that it shall rest", LOOK_S)
        holder = table.states[index].holder
        if holder in {"", self.member} or has_died(holder):
            return None
        return Waits(State.STANDBY, "another process has it", LOOK_S)

    def _heard(self, table: ConsumerDescription) -> ConsumerDescription:
        self._table, self._heard_at = table, time.monotonic()
        return table

    def _wanted(self, table: ConsumerDescription, others: list[int]) -> list[int]:
        return sharing.wanted(table, self.member, 0, [0.0] * table.shards, others)

    def give_back(self, index: int) -> None:
        """Give a shard back."""
        with self._lock:
            self._drop(index)

    def _drop(self, index: int) -> None:
        if self._held.pop(index, None) is None:
            return
        try:
            self._membership.give_back([index])
        except DetentError as error:
            logger.warning("the lease of %s could not be given back, and ends by itself: %s", self._bridge.name, error)

    def leave(self) -> None:
        """This process has ended: it counts as a member no more."""
        try:
            self._membership.give_back()
        except DetentError as error:
            logger.warning("%s counts as at work until its lease ends: %s", self._bridge.name, error)

    def beat(self, said: Callable[[int], tuple[str, str]]) -> list[int]:
        """Renew the leases, and tell the store how the shards are doing. Answers those to be left now: another process
        has them, they are beyond this one's share, or all are to rest."""
        with self._lock:
            held = dict(self._held)
            reports = [self._report(index, generation, *said(index)) for index, generation in held.items()]
            table = self._heard(self._membership.beat(*reports))
            lost = [index for index in held if table.states[index].holder != self.member]
            for index in lost:
                del self._held[index]
            if table.paused:
                return list(held)
            return [*lost, *self._too_many(table)]

    def _report(self, index: int, generation: int, status: str, error: str) -> ops.ReportShard:
        return ops.ReportShard(self._bridge.consumer, index, generation, status, error[: ops.ERROR_CHARACTERS_MAX])

    def _too_many(self, table: ConsumerDescription) -> list[int]:
        """What is beyond this process's share, once it has been for a while."""
        found = sharing.excess(table, list(self._held))
        now = time.monotonic()
        if not found:
            self._crowded_since = None
            return []
        if self._crowded_since is None:
            self._crowded_since = now
        if now - self._crowded_since < CROWDED_S:
            return []
        self._crowded_since = None
        self._leaving.update(found)
        return found
