"""Detent: each message takes effect exactly once.

>>> import detent
>>> with detent.open("file:./data") as store:
...     store.journal("orders").append(b"hello")

Everything public is here. Names are loaded when they are first used, so that `detent --help` need not import Arrow.

The layers inside, from the top down; each package's docstring says which file does what:

    cli/            the `detent` command
    server/         `detent serve`: HTTP, SQS and Detent's own clients on one port
    demo/           `detent demo`
    ingest/         files that a queue announces, into tables
    spark/          Spark's sources, sinks and pipelines
    tables/         Delta and Iceberg: files, commits, marks
    testing/        suites and fixtures for tests
    bus/            typed messages, handlers, outbox
    processor/      graphs of functions between journals
    kafka/          bridges: a topic of Kafka into journals or queues, a journal out to a topic
    consumer/       applications with state that read journals
    transports/     queues that carry messages, of Detent, SQS, Redis, Pub/Sub or yours, for ingest and the bus
    state/          where these keep it
    stream/         what consumers and processors stand on: places, fences, leases
    store.py        `detent.open(url)`: `Store` and `AsyncStore`
    transaction.py  `store.transaction()`
    verify.py       `store verify`
    backup/         `store backup` and `restore`
    remote/         how a process reaches the owner of a store, or becomes it
    schedule/       the state machine of schedules, and what publishes their ticks
    journal/        the state machine of journals
    queue/          the state machine of queues
    ledger/         the state machine of ledgers: batches that have taken effect
    shard/          the state machine of consumers and their shards
    engine/         transactions: applied in order, durable in groups, answered
    message/        message ids, clocks, sequencing: pure rules
    codec/          byte formats
    kv/             the only code that touches a disk
    settings/       what can be set of a queue and of a journal, said once
    sql/            SQLite and PostgreSQL: engines, transactions, errors
    runtime/        what runs, rests and starts over: tasks, supervisor, leases

What several layers share:

    errors.py       every exception, drawn as a tree
    crash.py        named places where a test kills the process
    names.py        what journals, queues, ledgers, consumers and schedules can be called
    durations.py    "30s", "5m", seconds, `timedelta`
    paths.py        a path where a store's URL is expected
    patterns.py     which journals a pattern such as `orders/*` means
    sizes.py        "256MiB"
    finite.py       JSON that refuses infinity and NaN
    grid.py         tables for a terminal, in which no word is cut
    lazy.py         packages whose names are imported when they are first used
    extras.py       the command that installs a missing extra beside this Detent
    forks.py        tells a forked child from its parent
    scraped.py      metrics of a process without a server
    spans.py        spans for OpenTelemetry, from a publish to its effect
    __main__.py     `python -m detent`
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
        NotOwner,
        OtherInput,
        OutcomeUnknown,
        ProducerTaken,
        Restored,
        RollBackHeld,
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
        DeadLetter,
        Delivery,
        FailedMessage,
        MessageInfo,
        MessagePlace,
        Outgoing,
        Published,
        PublishedMessages,
        Queue,
        QueuedMessage,
        QueueInfo,
        QueuePage,
        ReaderInfo,
        Receipt,
        Worker,
    )
    from detent.schedule import ScheduleInfo
    from detent.settings.journal import JournalSettings
    from detent.settings.queue import QueueSettings
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
        "NotOwner",
        "NotOwner",
        "OtherInput",
        "OutcomeUnknown",
        "ProducerTaken",
        "Restored",
        "RollBackHeld",
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
    "detent.schedule": ("ScheduleInfo",),
    "detent.queue": (
        "AssignedMessage",
        "Assignment",
        "AssignmentReader",
        "AsyncAssignmentReader",
        "AsyncDelivery",
        "AsyncQueue",
        "AsyncWorker",
        "AttemptInfo",
        "DeadLetter",
        "Delivery",
        "FailedMessage",
        "MessageInfo",
        "MessagePlace",
        "Outgoing",
        "Published",
        "PublishedMessages",
        "Queue",
        "QueueInfo",
        "QueuePage",
        "QueuedMessage",
        "ReaderInfo",
        "Receipt",
        "Worker",
    ),
    "detent.settings.journal": ("JournalSettings",),
    "detent.settings.queue": ("QueueSettings",),
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
    "DeadLetter",
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
    "JournalSettings",
    "LedgerInfo",
    "LimitExceeded",
    "MemberInfo",
    "Message",
    "MessageInfo",
    "MessagePlace",
    "NotFound",
    "NotOwner",
    "OtherInput",
    "OutcomeUnknown",
    "Outgoing",
    "PinInfo",
    "ProducerTaken",
    "Published",
    "PublishedMessages",
    "Publisher",
    "Queue",
    "QueueInfo",
    "QueuePage",
    "QueueSettings",
    "QueuedMessage",
    "ReaderInfo",
    "Receipt",
    "Restored",
    "RollBackHeld",
    "ScheduleInfo",
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
