"""One shard of a bridge as a task: it waits for its lease, works, and starts over when it fails."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from detent.errors import Busy, Conflict, Denied, DetentError, Fenced, Invalid, LimitExceeded, NotFound
from detent.kafka.declaration import Declaration, Inflow, Outflow
from detent.kafka.inward import Inward
from detent.kafka.outward import Outward
from detent.kafka.sharing import BridgeShare
from detent.runtime.backoff import Backoff
from detent.runtime.report import Report
from detent.runtime.task import Next, Restart, Task, Waits
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

RETRY: Final = Backoff(0.2, 15.0)
"""How long a shard that failed rests before it starts over: at first, and at most."""

STEADY_S: Final = 30.0
ONCE_TRIES_MAX: Final = 5
"""One that is to end when all is read gives up after so many failures in a row."""

FENCES_MAX: Final = 3
"""A producer that is fenced so often in a row has another one against it. Once, it may only have taken too long over a
transaction; or a process that woke up has fenced it, and gave way then."""

REFUSALS: Final = (Invalid, Conflict, Denied, LimitExceeded)
"""What the next try would meet in the same way."""


class Life(Protocol):
    """One life of a shard: `Inward` or `Outward`."""

    record: FencedRecord

    def open(self) -> None: ...

    def step(self) -> Next: ...

    def close(self) -> None: ...

    def progress(self) -> dict[str, int]: ...

    def lag(self) -> int | None: ...


class BridgeTask(Task):
    """One shard of a bridge in this process."""

    kind = "bridge"

    def __init__(self, bridge: Declaration, index: int, store: Store, share: BridgeShare, *, once: bool) -> None:
        super().__init__(bridge.name if bridge.shards == 1 else f"{bridge.name}/{index}")
        self.restart = Restart(RETRY, steady_s=STEADY_S, tries_max=ONCE_TRIES_MAX if once else None)
        self.index = index
        self._bridge = bridge
        self._store = store
        self._share = share
        self._once = once
        self._life: Life | None = None
        self._fence: int | None = None
        self._opened_at = 0.0
        self._fences = 0
        """How often in a row Kafka has fenced the producer."""
        self._progress: dict[str, int] = {}
        self._lag: int | None = None

    def open(self) -> Waits | None:
        """Take the lease, then the fences, and find the place."""
        self._fence, self._opened_at = None, time.monotonic()
        if (waits := self._waits()) is not None:
            return waits
        self._life = self._made()
        self._life.open()
        self._fence = self._life.record.fence
        return None

    def _waits(self) -> Waits | None:
        try:
            return self._share.take(self.index)
        except NotFound as error:
            raise Conflict(
                f"the bridge {self._bridge.name!r} was removed while it ran: start it again to make it anew"
            ) from error

    def _made(self) -> Life:
        if isinstance(self._bridge, Inflow):
            return Inward(self._bridge, self._store, self.index, once=self._once)
        assert isinstance(self._bridge, Outflow), "there is no other direction"
        return Outward(self._bridge, self._store, self.index, once=self._once, wake=self.wake)

    def step(self) -> Next:
        """One transaction, or a wait."""
        assert self._life is not None, "it was opened"
        due = self._life.step()
        self._progress, self._lag = self._life.progress(), self._life.lag()
        return due

    def close(self) -> None:
        """Let go of everything but the lease."""
        life, self._life = self._life, None
        if life is not None:
            self._fence = life.record.fence
            life.close()

    def leave(self) -> None:
        """Give the lease back."""
        self._share.give_back(self.index)

    def was_replaced(self, error: Fenced) -> bool:
        """Whether another process has opened the record in the store: it looks at the lease then. Otherwise a producer
        with the same transactional id was started elsewhere."""
        del error
        try:
            return FencedRecord(self._store, self._bridge.consumer, self.index).find().fence != self._fence
        except DetentError:  # it fails the same way when it begins again
            return False

    def is_hopeless(self, error: Exception) -> bool:
        """Refusals, and a producer elsewhere under the same name: the two would fence each other for ever."""
        if isinstance(error, Busy):
            return False
        if type(error) is not Fenced:
            return isinstance(error, REFUSALS)
        is_first = time.monotonic() - self._opened_at >= STEADY_S
        self._fences = 1 if is_first else self._fences + 1
        return self._fences >= FENCES_MAX

    def report(self, so_far: Report) -> Report:
        """What it has done, and what waits for it."""
        source, target = self._bridge.ends()
        about = {**so_far.about, "from": source, "to": target}
        return replace(so_far, progress=self._progress, lag=self._lag, about=about)
