"""Which right each operation needs, and on what: a table, because a server must not forget one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from detent.engine import Operation
from detent.errors import Denied, DetentError, StaleReceipt
from detent.journal import operations as journals
from detent.ledger import operations as ledgers
from detent.queue import QueueMachine, listing, peeking, surveying
from detent.queue import operations as queues
from detent.queue import reader_operations as readers
from detent.queue.filters import default_filter
from detent.schedule import operations as schedules
from detent.shard import operations as shards

Right = Literal["read", "publish", "consume", "admin"]
"""What a caller may do. `read` looks: at counts, settings and messages, without claiming any."""

Kind = Literal["queue", "journal", "ledger", "consumer", "schedule", "metrics"]


EVERYTHING: Final = "*"
"""What a grant says that is on all kinds, or on all names."""

_INCLUDING: Final[dict[str, frozenset[str]]] = {
    "read": frozenset({"read", "consume", "admin"}),
    "publish": frozenset({"publish", "admin"}),
    "consume": frozenset({"consume", "admin"}),
    "admin": frozenset({"admin"}),
}
"""The granted rights that include a right: one who consumes messages may look at them."""


def includes(granted: str, right: str) -> bool:
    """Whether a granted right is a right, or includes it."""
    return granted in _INCLUDING[right]


class GrantedRight(Protocol):
    """A right on the queues, journals, ledgers, consumers or schedules whose names match a pattern."""

    @property
    def right(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def pattern(self) -> str: ...


class RightsHolder(Protocol):
    """The sender of a request, as far as a server knows. Sessions are given to a `key`."""

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def grants(self) -> Sequence[GrantedRight]: ...

    def require(self, right: Right, kind: Kind, name: str) -> None:
        """`Denied` unless the caller has the right on a queue, journal, ledger or consumer."""
        ...

    def require_everywhere(self, right: Right) -> None:
        """`Denied` unless the caller has the right on the whole store."""
        ...


class Need(NamedTuple):
    """A right, and the field of the operation that says on which queue, journal, ledger or consumer: a name, patterns
    of names, or the number that receipts have for a queue. Without a field, or where it is empty, the right is needed
    on the whole store. `also` is a field that may name a second one, which gets messages: `publish` is needed there.
    """

    right: Right
    kind: Kind
    field: str | None = None
    also: str | None = None


_journal_publish: Final = Need("publish", "journal", "journal")
_journal_admin: Final = Need("admin", "journal", "journal")
_ledger_admin: Final = Need("admin", "ledger", "name")
_ledger_publish: Final = Need("publish", "ledger", "name")
_consumer_admin: Final = Need("admin", "consumer", "consumer")
_consumer_consume: Final = Need("consume", "consumer", "consumer")
_queue_admin: Final = Need("admin", "queue", "queue")
_queue_consume: Final = Need("consume", "queue", "queue")
_queue_read: Final = Need("read", "queue", "queue")

NEEDS: Final[dict[type[Operation], Need]] = {
    journals.CreateJournal: _journal_admin,
    journals.ConfigureJournal: _journal_admin,
    journals.DeleteJournal: _journal_admin,
    journals.TrimJournal: _journal_admin,
    journals.Append: _journal_publish,
    journals.AppendPacked: _journal_publish,
    journals.AppendStamped: _journal_publish,
    journals.AppendBatch: _journal_publish,
    journals.HoldSpan: Need("publish", "journal", "journal", also="holder"),
    journals.AdoptFragments: _journal_publish,
    journals.CheckHead: _journal_publish,
    journals.CheckRegisters: _journal_publish,
    journals.UpdateRegisters: _journal_publish,
    queues.CreateQueue: _queue_admin,
    queues.ConfigureQueue: _queue_admin,
    queues.DeleteQueue: _queue_admin,
    queues.Redrive: Need("admin", "queue", "queue", also="to"),
    queues.Purge: _queue_admin,
    queues.SetDedupWindow: Need("admin", "queue"),
    queues.Publish: Need("publish", "queue", "to"),
    queues.Claim: _queue_consume,
    queues.Ack: _queue_consume,
    queues.Fail: _queue_consume,
    queues.Extend: _queue_consume,
    queues.Unclaim: _queue_consume,
    queues.ReadHeld: _queue_consume,
    queues.DescribeQueues: _queue_read,
    queues.ListFailed: _queue_read,
    queues.FindMessage: Need("read", "queue"),
    listing.ListMessages: _queue_read,
    listing.ListDone: _queue_read,
    listing.ListAttempts: _queue_read,
    peeking.PeekMessages: _queue_read,
    surveying.SurveyQueues: Need("read", "queue", "patterns"),
    readers.OpenReader: _queue_consume,
    readers.Assign: _queue_consume,
    readers.AckAssigned: _queue_consume,
    readers.ReadAssignment: _queue_consume,
    readers.ReleaseReader: _queue_consume,
    readers.DeleteReader: _queue_consume,
    readers.DescribeReaders: _queue_read,
    ledgers.EnterLedger: _ledger_publish,
    ledgers.ResetLedger: _ledger_admin,
    ledgers.DeleteLedger: _ledger_admin,
    ledgers.DescribeLedgers: Need("read", "ledger", "name"),
    ledgers.PinOffsets: _ledger_publish,
    ledgers.Unpin: _ledger_admin,
    ledgers.DescribePins: Need("read", "ledger"),
    ledgers.PlanOffsets: Need("consume", "ledger", "name"),
    ledgers.DeclareStream: _ledger_publish,
    ledgers.DescribeStreams: Need("read", "ledger"),
    shards.RegisterConsumer: _consumer_consume,
    shards.Heartbeat: _consumer_consume,
    shards.LeaseShard: _consumer_consume,
    shards.ReleaseShards: _consumer_consume,
    shards.OpenShard: _consumer_consume,
    shards.FindShard: Need("read", "consumer", "consumer"),
    shards.CommitShard: _consumer_consume,
    shards.ReadShardState: _consumer_consume,
    shards.ScanShardState: _consumer_consume,
    shards.ReportShard: _consumer_consume,
    shards.PauseConsumer: _consumer_admin,
    shards.ResetShards: _consumer_admin,
    shards.DeleteConsumer: _consumer_admin,
    shards.DescribeConsumers: Need("read", "consumer", "name"),
    schedules.PutSchedule: Need("admin", "schedule", "name"),
    schedules.PauseSchedule: Need("admin", "schedule", "name"),
    schedules.DeleteSchedule: Need("admin", "schedule", "name"),
    schedules.AskSchedule: Need("publish", "schedule", "name"),
    schedules.DescribeSchedules: Need("read", "schedule", "name"),
}


def may_all(caller: RightsHolder, right: Right, kind: Kind) -> bool:
    """Whether a caller has a right on all queues, or all journals."""
    return any(covers(grant, right, kind) and grant.pattern == EVERYTHING for grant in caller.grants)


def covers(grant: GrantedRight, right: Right, kind: Kind) -> bool:
    """Whether a grant gives a right on some queues, or some journals."""
    return includes(grant.right, right) and grant.kind in {kind, EVERYTHING}


def require_settings(caller: RightsHolder, queue: str, filter: str | None, dead_letter: str | None) -> None:
    """`Denied` for settings that reach beyond the queue itself. A filter picks from the messages of all queues, so it
    needs the right to consume them all; a dead letter queue gets messages, as if they were published there."""
    if filter is not None and filter != default_filter(queue) and not may_all(caller, "consume", "queue"):
        raise Denied(f"{caller.name} may not give {queue!r} a filter: it would pick from queues that are not its own")
    if dead_letter:
        caller.require("publish", "queue", dead_letter)


def told(caller: RightsHolder | None, error: DetentError) -> DetentError:
    """What a caller may be told of an error: one that quotes what is stored says less to those who may not read it."""
    withheld = error.withheld
    if caller is None or withheld is None:
        return error
    try:
        caller.require("read", cast(Kind, withheld.kind), withheld.name)
    except Denied:
        return type(error)(withheld.instead, *error.args[1:])
    return error


def require(caller: RightsHolder, operations: Sequence[Operation], machine: QueueMachine) -> None:
    """`Denied` unless the caller may do all of these."""
    for operation in operations:
        need = NEEDS[type(operation)]
        named = None if need.field is None else getattr(operation, need.field)
        if isinstance(named, int):
            _require_number(caller, need, named, machine)
        elif isinstance(named, list):
            for pattern in named:
                _require_pattern(caller, need, pattern)
        elif named:
            caller.require(need.right, need.kind, named)
        else:
            caller.require_everywhere(need.right)
        if isinstance(operation, queues.CreateQueue | queues.ConfigureQueue):
            require_settings(caller, operation.queue, operation.settings.filter, operation.settings.dead_letter)
        if isinstance(operation, schedules.PutSchedule):  # what it publishes, it publishes for the caller
            caller.require("publish", operation.target, operation.place)
        for also in _also(operation, need):
            caller.require("publish", need.kind, also)


def _require_pattern(caller: RightsHolder, need: Need, pattern: str) -> None:
    """On all names that match a pattern: those of a grant, or a single name."""
    if may_all(caller, need.right, need.kind):
        return
    if any(character in pattern for character in "*?"):
        granted = {grant.pattern for grant in caller.grants if covers(grant, need.right, need.kind)}
        if pattern not in granted:
            raise Denied(f"{caller.name} may not {need.right} on all that match {pattern!r}")
        return
    caller.require(need.right, need.kind, pattern)


def _also(operation: Any, need: Need) -> set[str]:
    """Further queues that an operation brings messages to. One that is published to one queue may be addressed to
    another in its headers, and goes there too."""
    if isinstance(operation, queues.Publish):
        return {headers["queue"] for headers in operation.headers or () if headers.get("queue")} - {operation.to}
    named = None if need.also is None else getattr(operation, need.also)
    return {named} if named else set()


def _require_number(caller: RightsHolder, need: Need, number: int, machine: QueueMachine) -> None:
    """On the queue that has a number. Where none has it the operation is refused as stale, for any caller: the number
    of a deleted queue is never given to another one. A caller without a right on the queue is told the same: numbers
    can be guessed, and names are not to be had for them."""
    state = machine.users_queue(number)
    if state is None:
        return
    try:
        caller.require(need.right, need.kind, state.name)
    except Denied:
        raise StaleReceipt(f"no queue has the number {number}: it was deleted, and its receipts with it") from None
