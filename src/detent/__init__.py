"""Detent: each message takes effect exactly once.

>>> import detent
>>> with detent.open("file:./data") as store:
...     store.journal("orders").append(b"hello")

Everything public is here. Names are loaded when they are first used, so that `detent --help` need not import Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.errors import (
        AlreadyEntered,
        Busy,
        ClockAhead,
        ClockBehind,
        Conflict,
        Corrupt,
        Denied,
        DetentError,
        Exists,
        Fenced,
        Invalid,
        LimitExceeded,
        NotFound,
        OutcomeUnknown,
        ProducerTaken,
        SessionExpired,
        ShardsLost,
        StaleReceipt,
        Unavailable,
    )
    from detent.journal import (
        AckIntent,
        Appended,
        AsyncJournal,
        AsyncPublisher,
        FragmentRef,
        Journal,
        JournalInfo,
        Message,
        Publisher,
    )
    from detent.ledger import Entered, LedgerInfo, PinInfo
    from detent.queue import (
        AssignedMessage,
        Assignment,
        AssignmentReader,
        AsyncAssignmentReader,
        AsyncDelivery,
        AsyncQueue,
        AsyncWorker,
        AttemptInfo,
        Delivery,
        FailedMessage,
        MessageInfo,
        MessagePlace,
        Outgoing,
        Published,
        PublishedMessages,
        Queue,
        QueueInfo,
        ReaderInfo,
        Receipt,
        Worker,
    )
    from detent.shard import (
        AsyncConsumerHandle,
        AsyncShardState,
        ConsumerHandle,
        ConsumerInfo,
        MemberInfo,
        ShardInfo,
        ShardState,
    )
    from detent.store import AsyncStore, Store, open, open_async
    from detent.transaction import AsyncTransaction, Transaction

__version__ = "0.1.0"

_HOMES = {
    "detent.errors": (
        "AlreadyEntered",
        "Busy",
        "ClockAhead",
        "ClockBehind",
        "Conflict",
        "Corrupt",
        "Denied",
        "DetentError",
        "Exists",
        "Fenced",
        "Invalid",
        "LimitExceeded",
        "NotFound",
        "OutcomeUnknown",
        "ProducerTaken",
        "SessionExpired",
        "ShardsLost",
        "StaleReceipt",
        "Unavailable",
    ),
    "detent.journal": (
        "AckIntent",
        "Appended",
        "AsyncJournal",
        "AsyncPublisher",
        "FragmentRef",
        "Journal",
        "JournalInfo",
        "Message",
        "Publisher",
    ),
    "detent.ledger": ("Entered", "LedgerInfo", "PinInfo"),
    "detent.queue": (
        "AssignedMessage",
        "Assignment",
        "AssignmentReader",
        "AsyncAssignmentReader",
        "AsyncDelivery",
        "AsyncQueue",
        "AsyncWorker",
        "AttemptInfo",
        "Delivery",
        "FailedMessage",
        "MessageInfo",
        "MessagePlace",
        "Outgoing",
        "Published",
        "PublishedMessages",
        "Queue",
        "QueueInfo",
        "ReaderInfo",
        "Receipt",
        "Worker",
    ),
    "detent.shard": (
        "AsyncConsumerHandle",
        "AsyncShardState",
        "ConsumerHandle",
        "ConsumerInfo",
        "MemberInfo",
        "ShardInfo",
        "ShardState",
    ),
    "detent.store": ("AsyncStore", "Store", "open", "open_async"),
    "detent.transaction": ("AsyncTransaction", "Transaction"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AckIntent",
    "AlreadyEntered",
    "Appended",
    "AssignedMessage",
    "Assignment",
    "AssignmentReader",
    "AsyncAssignmentReader",
    "AsyncConsumerHandle",
    "AsyncDelivery",
    "AsyncJournal",
    "AsyncPublisher",
    "AsyncQueue",
    "AsyncShardState",
    "AsyncStore",
    "AsyncTransaction",
    "AsyncWorker",
    "AttemptInfo",
    "Busy",
    "ClockAhead",
    "ClockBehind",
    "Conflict",
    "ConsumerHandle",
    "ConsumerInfo",
    "Corrupt",
    "Delivery",
    "Denied",
    "DetentError",
    "Entered",
    "Exists",
    "FailedMessage",
    "Fenced",
    "FragmentRef",
    "Invalid",
    "Journal",
    "JournalInfo",
    "LedgerInfo",
    "LimitExceeded",
    "MemberInfo",
    "Message",
    "MessageInfo",
    "MessagePlace",
    "NotFound",
    "OutcomeUnknown",
    "Outgoing",
    "PinInfo",
    "ProducerTaken",
    "Published",
    "PublishedMessages",
    "Publisher",
    "Queue",
    "QueueInfo",
    "ReaderInfo",
    "Receipt",
    "SessionExpired",
    "ShardInfo",
    "ShardState",
    "ShardsLost",
    "StaleReceipt",
    "Store",
    "Transaction",
    "Unavailable",
    "Worker",
    "__version__",
    "open",
    "open_async",
]


if not TYPE_CHECKING:  # a checker that saw this would believe every name
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
