"""The shards that one process works on: it says that it is alive, takes free shards, gives back what is too much.

Every process of a consumer runs one, on any machine that reaches the store. They share the work through leases in the
store: a shard is taken over when its holder gives it back, or says nothing for the time of its lease.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from detent import crash
from detent.consumer.application import Declaration
from detent.consumer.progress import Progress
from detent.consumer.shard import Caller, ShardSetup
from detent.consumer.sources import shard_journals
from detent.consumer.task import ShardTask, StandbyTask, SupervisedShard, SupervisedStandby
from detent.engine import Operation
from detent.errors import Busy, Conflict, DetentError, NotFound, Unavailable
from detent.runtime.report import State
from detent.runtime.supervisor import Supervised
from detent.shard import operations as ops
from detent.shard.operations import ConsumerDescription
from detent.state.base import ShardName
from detent.state.recovery_log import log_prefix
from detent.stream import sharing
from detent.stream.membership import Beats, Membership

if TYPE_CHECKING:
    from detent.store import Store

BEAT_S: Final = 0.2
"""How often a process looks at the table of shards. A look changes nothing in the store, and costs it little."""

LEASE_BEATS: Final = 4
"""At least so many looks fall into the time of a lease, each of which renews it."""

LIST_S: Final = 2.0
"""How often journals are looked for that match a pattern and are new."""

REBALANCE_S: Final = 3.0
"""How long a process keeps more than its share: one that has just started may be gone in a moment."""

REPORT_S: Final = 0.02
"""The least time between two reports, for which a caller may wait. They are in the owner's memory and cost little."""

KEEP_S: Final = 5.0
"""How often a report is also written down: what is seen when neither this process nor the store's owner is there any
more."""

logger = logging.getLogger("detent.consumer")

Event = Callable[[str, int, str], None]
"""Is told what happens to a shard: (what, which, more)."""


def register(consumer: Declaration, store: Store) -> dict[str, int]:
    """Tell the store of the consumer and the journals that there are; which shard reads which of them. `Conflict` if it
    is divided otherwise."""
    listed = store.journals() if any(source.is_pattern for source in consumer.sources) else []
    logs = log_prefix(consumer.name)  # by no pattern: a consumer that read its own would write it for ever
    journals = shard_journals(consumer.sources, [name for name in listed if not name.startswith(logs)])
    question = ops.RegisterConsumer(consumer.name, consumer.shards, journals, consumer.partition)
    plan: ops.ConsumerPlan = store.commit([question])[0]
    named = set(journals)  # a journal that is not named any more is left alone
    return {journal: shard for journal, shard in plan.sources.items() if journal in named}


class Worker:
    """One member of a consumer. `run` it in a thread or as a process's main task."""

    def __init__(
        self,
        consumer: Declaration,
        store: Store,
        outputs: Mapping[str, Store],
        *,
        member: str | None = None,
        run_coroutine: Caller | None = None,
        on_event: Event | None = None,
    ) -> None:
        self._app = consumer
        self.store = store
        self._outputs = outputs
        self._membership = Membership(store, consumer.name, consumer.lease_ms, member)
        self.member = self._membership.member
        self._run_coroutine = run_coroutine
        self._on_event = on_event or (lambda *_: None)
        self._held: dict[int, SupervisedShard] = {}
        self._standbys: dict[int, SupervisedStandby] = {}
        self._free_since: dict[int, float] = {}
        self._crowded_since: float | None = None
        self._listed_at = 0.0
        self._sources: dict[str, int] = {}
        self._is_paused = False
        self._stopping = threading.Event()
        self._beat_s = min(BEAT_S, consumer.lease_ms / LEASE_BEATS / 1000)
        self.progress: dict[int, Progress] = {}
        """How far the shards are that this member works on, or had worked on when it ended."""

    def stop(self) -> None:
        """Finish the transactions under way, give the shards back, and end. For any thread."""
        self._stopping.set()

    def run(self, *, once: bool = False) -> None:
        """Work until stopped; with `once`, until every shard has read what there is. Raises what made a shard fail,
        with `once`, and what is wrong with the consumer itself."""
        self._app.consume_function  # noqa: B018 - refused here if there is none
        self._register()
        self._reporter = ProgressReporter(self.store, self._app.name, lambda: [one.task for one in self._held.values()])
        reporting = Supervised(Beats("detent-report", REPORT_S, self._reporter.report)).start()
        try:
            if once:
                self._run_once()
            else:
                while not self._stopping.wait(self._beat_s):
                    self._beat_safely()
        finally:
            reporting.stop()
            self._leave()

    # -- the table ------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Say which journals there are, and learn which shard reads which."""
        self._sources = register(self._app, self.store)
        self._listed_at = time.monotonic()

    def _journals_of(self, shard: int) -> tuple[str, ...]:
        is_shared = self._app.partition == "key"
        return tuple(sorted(name for name, index in self._sources.items() if is_shared or index == shard))

    def _beat_safely(self) -> None:
        try:
            self._beat()
        except (Unavailable, Busy) as error:
            logger.warning("the store does not answer, shards go on as long as they can: %s", error)

    def _beat(self) -> None:
        table = self._membership.beat()
        if any(source.is_pattern for source in self._app.sources) and time.monotonic() - self._listed_at > LIST_S:
            self._register()
        self._note_free(table)
        self._disown(table)
        self._end_some(table)
        self._drop_some()
        if table.paused:
            return
        self._follow_some(table)
        self._give_back(table)
        for index in sharing.wanted(table, self.member, self._app.standbys, self._free_s(table), list(self._held)):
            if index not in self._held:
                with contextlib.suppress(Conflict):  # another member was quicker
                    self._take(index)

    def _note_free(self, table: ConsumerDescription) -> None:
        free = {shard.index for shard in table.states if not shard.holder}
        now = time.monotonic()
        self._free_since = {index: self._free_since.get(index, now) for index in free}

    def _free_s(self, table: ConsumerDescription) -> list[float]:
        now = time.monotonic()
        return [now - self._free_since.get(shard.index, now) for shard in table.states]

    # -- taking and leaving shards ----------------------------------------------------------------------------------

    def _take(self, index: int, *, once: bool = False) -> SupervisedShard:
        """Take the lease of a shard and begin; `Conflict` while another member has it."""
        generation = self._membership.take(index)
        crash.point("consumer.after_lease")
        self._on_event("taken", index, self.member)
        task = ShardTask(index, generation, self._assign, self._standbys.pop(index, None), once=once)
        held = self._held[index] = SupervisedShard(task, self._on_event)
        self.progress[index] = task.progress
        held.start()
        return held

    def _assign(self, index: int) -> ShardSetup | None:
        """What the next life of a shard works with; None while the consumer is paused."""
        if self._is_paused:
            return None
        return ShardSetup(self._app, index, self._journals_of(index), self.store, self._outputs, self._run_coroutine)

    def _disown(self, table: ConsumerDescription) -> None:
        """Give back what this member holds and does not know of: the answer to its lease was lost, or the word that it
        gave the shard back. Every heartbeat would renew that lease, and the work would not be done."""
        unknown = [row.index for row in table.states if row.holder == self.member and row.index not in self._held]
        if unknown:
            self._membership.give_back(unknown)

    def _end_some(self, table: ConsumerDescription) -> None:
        """End shards that another member has; begin those anew that were reset, have other journals, or shall rest."""
        self._is_paused = table.paused
        for index, held in self._held.items():
            row, shard, known = table.states[index], held.task.shard, held.task.journals
            if row.holder != self.member:
                held.leave()
            is_old = held.task.progress.status == "running" and shard is not None and row.generation > shard.generation
            is_other = known is not None and known != self._journals_of(index)
            if is_old or is_other or (table.paused and held.status != State.PAUSED):
                held.renew()

    def _drop_some(self) -> None:
        """Give back the shards that are to be left and have ended."""
        for index, held in list(self._held.items()):
            if held.task.leaving:
                held.stop_soon()
                if not held.is_alive:
                    self._drop(index)

    def _drop(self, index: int) -> None:
        self._reporter.report(last=True)
        del self._held[index]
        self._reporter.forget(index)
        with contextlib.suppress(Unavailable, NotFound):
            self._membership.give_back([index])
        self._on_event("released", index, self.member)

    def _give_back(self, table: ConsumerDescription) -> None:
        """Let go of what is beyond this member's share, if it has been for a while."""
        too_many = sharing.excess(table, [index for index, one in self._held.items() if not one.task.leaving])
        if not too_many:
            self._crowded_since = None
            return
        now = time.monotonic()
        if self._crowded_since is None:
            self._crowded_since = now
        if now - self._crowded_since >= REBALANCE_S:
            for index in too_many:
                self._held[index].leave()

    def _leave(self) -> None:
        """Stop everything, and give everything back."""
        for following in self._standbys.values():
            following.stop()
        self._standbys.clear()
        for held in self._held.values():
            held.leave()
        for held in self._held.values():
            held.join()
        self._reporter.report(last=True)
        with contextlib.suppress(Unavailable, NotFound):
            self._membership.give_back()
        for index in self._held:
            self._on_event("released", index, self.member)
        self._held.clear()

    # -- standbys ---------------------------------------------------------------------------------------------------

    def _follow_some(self, table: ConsumerDescription) -> None:
        """Follow the shards that this member stands by for."""
        for shard in table.states:
            index = shard.index
            stands_by = (
                self._app.standbys > 0
                and index not in self._held
                and self.member in sharing.standbys_of(table, shard, self._app.standbys)
            )
            if stands_by and index not in self._standbys:
                made = self._app.state.standby(self.store, ShardName(self._app.name, index))
                if made is not None:
                    self._standbys[index] = SupervisedStandby(StandbyTask(made, index))
                    self._standbys[index].start()
                    self._on_event("following", index, self.member)
            elif not stands_by and index in self._standbys:
                self._standbys.pop(index).stop()

    # -- once -------------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Take every shard and let it read what there is."""
        if self._membership.beat().paused:
            raise Conflict(f"the consumer {self._app.name!r} is paused: resume it first")
        for index in range(self._app.shards):
            if not self._wait_for(index):
                return
        beat_at = time.monotonic()
        while any(held.is_alive for held in self._held.values()):
            if self._stopping.wait(self._beat_s / 20):
                return
            if time.monotonic() - beat_at >= self._beat_s:
                beat_at = time.monotonic()
                self._membership.beat()
        for held in self._held.values():
            if held.failure is not None:
                raise held.failure

    def _wait_for(self, index: int) -> bool:
        """Take a shard, if need be when the lease of the member that had it is over. False if told to stop."""
        is_told = False
        while not self._stopping.is_set():
            try:
                self._take(index, once=True)
                return True
            except Conflict as error:
                if not is_told:
                    logger.info("shard %d: %s", index, error)
                    self._on_event("waiting", index, str(error))
                is_told = True
            self._membership.beat()
            self._stopping.wait(self._beat_s)
        return False


class ProgressReporter:
    """Tells the store how far the shards of a process are, whenever there is news."""

    def __init__(self, store: Store, consumer: str, held: Callable[[], Iterable[ShardTask]]) -> None:
        self._store = store
        self._consumer = consumer
        self._held = held
        self._reported: dict[int, int] = {}
        self._kept: dict[int, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def report(self, *, last: bool = False) -> None:
        """What is news, now. The last one is written down. A store that does not take it is asked again later."""
        try:
            with self._lock:  # the worker reports too, and what is older must not come later
                news = [one for held in self._held() if (one := self._news(held, last)) is not None]
                if news:
                    self._store.commit(news)
        except DetentError as error:
            self._reported.clear()
            self._kept.clear()
            level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
            logger.log(level, "a report of progress was not taken: %s", error)

    def _news(self, held: ShardTask, last: bool) -> Operation | None:
        seen = held.progress.snapshot()
        at, kept = self._kept.get(held.index, (0.0, -1))
        keep = bool(seen.number) and seen.version != kept and (last or time.monotonic() - at >= KEEP_S)
        if seen.version == self._reported.get(held.index) and not keep:
            return None
        self._reported[held.index] = seen.version
        if keep:
            self._kept[held.index] = (time.monotonic(), seen.version)
        return ops.ReportShard(
            self._consumer,
            held.index,
            seen.generation if seen.number else held.generation,
            seen.status,
            seen.error,
            seen.processed if seen.number else {},
            seen.published,
            keep=keep,
            number=seen.number,
            numbers=seen.numbers if seen.number else {},
        )

    def forget(self, index: int) -> None:
        """A shard is not this process's any more."""
        self._reported.pop(index, None)
        self._kept.pop(index, None)
