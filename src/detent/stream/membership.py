"""A member of a consumer: it says that it is alive, takes shards, and gives them back. Its name tells other members on
the same machine whether it has died.

A lease says who should work; what keeps two from it is the fence of the record. So a lease may be lost at any time, and
a holder that has died on this machine need not be waited for.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detent.engine import Operation
from detent.runtime.task import Next, Task
from detent.shard import operations as ops

if TYPE_CHECKING:
    from detent.store import Store

BEATS: Final = 5
"""So many times a lease is renewed before it would end."""


class Membership:
    """One member of one consumer, in one store. Its calls raise what the store says; `Conflict` while another member
    has a shard."""

    def __init__(self, store: Store, consumer: str, lease_ms: int, member: str | None = None) -> None:
        self._store = store
        self.consumer = consumer
        self.lease_ms = lease_ms
        self.member = member or new_member()

    def beat(self, *reports: Operation, info: str | None = None) -> ops.ConsumerDescription:
        """Say that the member is alive, which renews the leases of all that it holds, and report with it. Answers who
        has what."""
        said = f"pid {os.getpid()}" if info is None else info
        beat = ops.Heartbeat(self.consumer, self.member, self.lease_ms, said)
        table: ops.ConsumerDescription = self._store.commit([beat, *reports])[0]
        return table

    def take(self, shard: int = 0) -> int:
        """Take a shard, or keep it. Answers its generation."""
        leased: ops.Leased = self._store.commit([self._taking(shard)])[0]
        return leased.generation

    def take_only(self, journals: Sequence[str]) -> ops.ConsumerDescription:
        """Take the only shard of a consumer that reads these journals, which is made if it is new."""
        register = ops.RegisterConsumer(self.consumer, 1, list(journals))
        question = ops.DescribeConsumers(name=self.consumer)
        described: ops.ConsumerDescriptions = self._store.commit([register, self._taking(0), question])[2]
        return described.consumers[0]

    def _taking(self, shard: int) -> Operation:
        return ops.LeaseShard(self.consumer, shard, self.member, self.lease_ms)

    def give_back(self, shards: Sequence[int] | None = None) -> None:
        """Give these shards back; without them all, and leave."""
        self._release(self.member, None if shards is None else list(shards))

    def free_dead(self, holder: str) -> bool:
        """Free what a member holds that was a process of this machine and has died. Whether it was one."""
        if not holder or not has_died(holder):
            return False
        self._release(holder)
        return True

    def _release(self, member: str, shards: list[int] | None = None) -> None:
        self._store.commit([ops.ReleaseShards(self.consumer, member, shards)])


class Beats(Task):
    """Says again and again that members are alive, and how their shards are doing."""

    kind = "heartbeat"

    def __init__(self, name: str, period_s: float, beat: Callable[[], None]) -> None:
        super().__init__(name)
        self._period_s = period_s
        self._beat = beat
        self._is_new = True

    def open(self) -> None:
        """What has just begun is not told before a period is over."""
        self._is_new = True

    def step(self) -> Next:
        """Say it once."""
        if not self._is_new:
            self._beat()
        self._is_new = False
        return self._period_s


# -- names ------------------------------------------------------------------------------------------------------------

_HOST_LETTERS: Final = 40
_BOOT_LETTERS: Final = 8
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _host() -> str:
    """The machine; or the container, which may share the machine's name and does not see the processes of others. Names
    are given more than once, and each machine counts its containers anew: what tells it from all others is the number
    that its kernel drew when it started."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
        boot = BOOT_ID.read_text().strip().replace("-", "")[:_BOOT_LETTERS]
    except OSError:  # there is none, or this process may not look
        space, boot = 0, ""
    return f"{socket.gethostname()[:_HOST_LETTERS]}.{boot}{space:x}"


def new_member() -> str:
    """A name for this process: the machine, the process, and something random."""
    return f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


def has_died(member: str) -> bool:
    """Whether a member was a process of this machine that is not there any more. False where that cannot be told.

    It only spares waiting for the end of a lease: what keeps two from working is the fence.
    """
    host, _, rest = member.rpartition("-")[0].rpartition("-")
    if host != _host() or not rest.isdigit():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
