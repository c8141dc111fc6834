"""What every kind of state does for a shard: restore behind a fence, give the application a handle, commit.

The contract, which every kind keeps:

* `restore` raises the fence first and reads second. Once it has returned, no commit of a process that restored earlier
  succeeds.
* `commit` checks the fence, writes the state's changes and the checkpoint, all in one atomic and durable step, or
  raises; `Fenced` when another process restored since. A commit with an unknown outcome raises too: the shard then
  restores, and finds out.
* While a transaction commits, the next one is consumed. Its handle shows what the one before has changed, or waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detent.engine import Operation
from detent.state.checkpoint import Checkpoint

if TYPE_CHECKING:
    from detent.store import Store


@dataclass(frozen=True, slots=True)
class ShardName:
    """Which shard of which consumer."""

    consumer: str
    shard: int

    def __str__(self) -> str:
        return f"{self.consumer}/{self.shard}"


class State(ABC):
    """Where an application keeps its state: `EngineState()`, `SqlState(url)` or `RecordedState(folder)`."""

    @abstractmethod
    def open(self, store: Store, shard: ShardName) -> ShardState:
        """The state of one shard. Nothing is claimed before it is restored. `store` is the one of the consumer."""

    def standby(self, store: Store, shard: ShardName) -> Standby | None:
        """What follows the shard while another process has it; None if there is nothing to follow."""
        del store, shard
        return None

    def close(self) -> None:  # noqa: B027 - most kinds share nothing
        """Let go of what all shards of this process share, such as connections."""


class ShardState(ABC):
    """The state of one shard, as the one process sees it that has restored it last.

    The consuming thread calls `begin`, uses the handle, and calls `seal`; the committing thread calls `commit` with
    what was sealed. The next `begin` may come before that `commit` has returned, the next `seal` may not.
    """

    takes_outputs: bool = False
    """Whether `commit` applies operations of the consumer's own store in the same transaction. Messages for that store
    then need no acknowledgement."""

    @abstractmethod
    def restore(self) -> Checkpoint | None:
        """Raise the fence, then read the checkpoint; None if the shard has never committed."""

    @abstractmethod
    def begin(self, settled: Callable[[], None]) -> Any:
        """What the application gets as `state` in the next transaction. `settled` returns once the transaction before
        has committed, and raises if it could not."""

    def is_full(self, handle: Any) -> bool:
        """Whether a transaction has changed as much as one commit should hold, and has to end."""
        del handle
        return False

    @abstractmethod
    def seal(self, handle: Any) -> Any:
        """The changes of a transaction whose consuming has ended."""

    @abstractmethod
    def commit(self, sealed: Any, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
        """Make changes and checkpoint durable together. `outputs` are empty unless `takes_outputs`."""

    def discard(self, handle: Any) -> None:
        """Drop a transaction that will not commit."""
        del handle

    def close(self) -> None:  # noqa: B027 - most kinds hold nothing
        """Let go of everything. What was not committed never was."""


class Standby(ABC):
    """Follows the state of a shard that another process has, so as to be quick when it has to take over."""

    @abstractmethod
    def follow(self, stop: Callable[[], bool]) -> None:
        """Keep up with the shard until `stop` says so."""

    @abstractmethod
    def take_over(self) -> ShardState:
        """The state with all that was followed; `restore` it as usual."""

    def close(self) -> None:  # noqa: B027 - most kinds hold nothing
        """Let go of everything."""
