"""The plan of a run: how many orders, who places them, and where everything lies. All processes read the same one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from detent.kv import absolute_url

PRODUCERS: Final = 3
RUSH_SHARE: Final = 100
"""One order in so many is a rush order, and goes through the queue."""

PACED_SHARE: Final = 0.6
"""The part of the time in which orders are placed; the rest is for what Spark has to catch up with."""

HELD_SHARE: Final = 0.1
"""The last part of the orders is held back until the killing is over: each kill meets orders on their way."""

BATCHES: Final = 25
"""About how many batches the orders make: enough for a kill to hit the middle of one, and few enough to be quick."""

BATCH_MIN: Final = 50
BATCH_MAX: Final = 100_000

ORDERS, PAID, REJECTED, RUSH = "orders", "paid", "rejected", "rush"
"""The journals and the queue."""

OWNER, DRIVER, CLERK, WORKER = "owner", "driver", "clerk", "worker"
PRODUCER_ROLES: Final = tuple(f"producer {number}" for number in range(1, PRODUCERS + 1))
PLACING: Final = (*PRODUCER_ROLES, CLERK)
"""Those who place orders, by their numbers. They end by themselves, when all their orders are placed."""

ROLES: Final = (OWNER, DRIVER, *PLACING, WORKER)
"""The processes, in the order in which they are started."""

_FILE: Final = "plan.json"


@dataclass(frozen=True)
class DemoPlan:
    """A run of the demo. `started` is when it began, in seconds since 1970."""

    folder: str
    messages: int
    seconds: float
    kills: int
    started: float

    @classmethod
    def load(cls, folder: Path) -> DemoPlan:
        """The plan that was kept in a folder."""
        return cls(**json.loads((folder / _FILE).read_text()))

    def keep(self) -> None:
        """Let the processes find it."""
        (self.path / _FILE).write_text(json.dumps(asdict(self)))

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return Path(self.folder)

    @property
    def url(self) -> str:
        """The store."""
        return absolute_url("file:" + str(self.path / "store").replace("%", "%25"))

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.path / "tables" / "paid"

    @property
    def checkpoints(self) -> Path:
        """Spark's notes about how far it has read."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """What the processes have to say."""
        return self.path / "logs"

    @property
    def picture(self) -> Path:
        """The run, drawn."""
        return self.path / "demo.png"

    @property
    def counts(self) -> list[int]:
        """How many orders each producer places; the last one is the clerk, with the rush orders."""
        rush = max(1, self.messages // RUSH_SHARE)
        each, more = divmod(self.messages - rush, PRODUCERS)
        return [each + (number < more) for number in range(PRODUCERS)] + [rush]

    @property
    def batch(self) -> int:
        """How many messages a batch of Spark has at most."""
        return min(BATCH_MAX, max(BATCH_MIN, self.messages // BATCHES))

    @property
    def paced_s(self) -> float:
        """How long orders are placed, from the start on."""
        return self.seconds * PACED_SHARE

    def due(self, count: int, now: float) -> int:
        """How many of its orders a producer has placed by now, if it is in time."""
        share = min(1.0, max(0.0, now - self.started) / self.paced_s)
        if not self._released.exists():
            share = min(share, 1.0 - HELD_SHARE)
        return int(count * share)

    def release(self) -> None:
        """Let the orders that are held back come."""
        self._released.touch()

    @property
    def _released(self) -> Path:
        return self.path / "released"
