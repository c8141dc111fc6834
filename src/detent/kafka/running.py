"""A bridge with its store open: its shards in threads, supervised, with their leases renewed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from detent.errors import DetentError
from detent.kafka.cluster import imported
from detent.kafka.declaration import Declaration
from detent.kafka.sharing import BridgeShare
from detent.kafka.task import BridgeTask
from detent.runtime.report import Report, State, state_of
from detent.runtime.signals import stop_on_signals
from detent.runtime.supervisor import OnEvent, Supervised, Supervisor
from detent.runtime.target import refuse_while_loading
from detent.stream.membership import Beats
from detent.stream.opening import OWN, opened_stores

if TYPE_CHECKING:
    from detent.store import Store

logger = logging.getLogger("detent.kafka")


@contextmanager
def opened(
    bridge: Declaration,
    store: str | Store | None = None,
    *,
    once: bool = False,
    on_event: OnEvent | None = None,
    member: str | None = None,
) -> Iterator[RunningBridge]:
    """The bridge with its store open."""
    imported()
    bridge.cluster()  # no brokers are named: refused before anything is opened
    with opened_stores(bridge.store_url, store, {}) as stores:
        yield RunningBridge(bridge, stores[OWN], once=once, on_event=on_event, member=member)


def run(bridge: Declaration, *, store: str | Store | None = None, once: bool = False) -> None:
    """Run a bridge until it is told to stop, or until nothing is left to do."""
    refuse_while_loading("bridge.run()")
    stopping = threading.Event()
    with opened(bridge, store, once=once) as running:
        if threading.current_thread() is not threading.main_thread():
            running.run(stopping)
            return
        with stop_on_signals(stopping):
            running.run(stopping)


class RunningBridge:
    """The shards of a bridge in this process."""

    def __init__(
        self, bridge: Declaration, store: Store, *, once: bool, on_event: OnEvent | None, member: str | None
    ) -> None:
        self.bridge = bridge
        self._share = BridgeShare(store, bridge, member)
        self._supervisor = Supervisor(on_event)
        self._beats = Beats(f"detent-bridge-{bridge.name}", self._share.beat_s, self._beat)
        self._shards: list[Supervised] = []
        self._tasks = [BridgeTask(bridge, index, store, self._share, once=once) for index in range(bridge.shards)]

    def run(self, stopping: threading.Event, look: Callable[[], None] | None = None) -> None:
        """Work until `stopping` is set, or all is done. Raises what a shard refuses."""
        self._share.register()
        beats = Supervised(self._beats)
        self._shards = [self._supervisor.add(task) for task in self._tasks]
        beats.start()
        try:
            self._supervisor.run(stopping, look=look)
        finally:
            beats.stop()
            self._share.leave()

    def report(self) -> Report:
        """How it is doing, with its shards as parts if it has several."""
        parts = tuple(one.report() for one in self._shards)
        if len(parts) == 1:
            return parts[0]
        progress: dict[str, int] = {}
        for part in parts:
            for name, count in part.progress.items():
                progress[name] = progress.get(name, 0) + count
        lags = [part.lag for part in parts if part.state is State.RUNNING]
        lag = None if None in lags else sum(known for known in lags if known is not None)
        trouble = next((part.trouble for part in parts if part.trouble is not None), None)
        source, target = self.bridge.ends()
        return Report(
            "bridge",
            self.bridge.name,
            state_of(part.state for part in parts),
            progress,
            lag,
            trouble,
            about={"from": source, "to": target},
            parts=parts,
        )

    def _beat(self) -> None:
        """Renew the leases. Shards that are to be left look at their leases anew."""
        by_index = dict(zip((task.index for task in self._tasks), self._shards, strict=True))

        def said(index: int) -> tuple[str, str]:
            one = by_index[index]
            return one.status, "" if one.error is None else str(one.error)

        try:
            leaving = self._share.beat(said)
        except DetentError as error:
            logger.warning("%s goes on as long as it can: the store says %s", self.bridge.name, error)
            return
        for index in leaving:
            by_index[index].renew()
