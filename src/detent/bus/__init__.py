"""Typed messages and their handlers: idempotent, in one transaction of your database, with an outbox.

>>> from detent.bus import Bus, IdempotencyConfig, SqlAlchemyUnitOfWork, SqlOutbox, SqlTracker
>>> bus = Bus(
...     "billing",
...     "file:./data",
...     unit_of_work=SqlAlchemyUnitOfWork(session_factory),
...     idempotency=IdempotencyConfig(SqlTracker()),
...     outbox=SqlOutbox(),
... )

An app, and how it starts:

    app.py                 `Bus`: sends and handles typed messages; its life from open to stop; `run` for several
    declared.py            what an app is made of: parts, handlers, hooks, retries; what all files below take
    checks.py              what is refused at the start

One delivery, in the order in which things happen:

    transport.py           what carries messages: queues, and what an app needs besides (see below)
    worker.py              take, read, begin, mark, handle, keep what is sent, commit, acknowledge
    calling.py             that way for plain functions and for coroutines
    messages.py            names of classes, bytes to objects and back, the envelope
    unit_of_work.py        the contract of the transaction that all of it commits in, and its guard (see below)
    idempotency.py         the mark: which messages were handled
    tracker_sql.py         marks in the user's database
    handlers.py            which function takes which messages, and its other parameters

Sending, and the outbox:

    sending.py             the address, the id, the transaction that a message goes with; `Context` of a handled one
    outbox.py              the contract of the outbox
    outbox_sql.py          the outbox in the user's database
    forwarder.py           sends what waits in it, lane by lane
    housekeeping.py        forgets old marks and sent messages
    transaction.py         `bus.transaction(session)`, for web requests and other code
    inbox.py               `@exactly_once`, for messages from elsewhere
    replies.py             requests that wait for replies, and the journals for these

Transports:

    transport_urls.py      transports by URL
    transport_queue.py     queues of a Detent store
    ticks.py               handlers that run at times, and their schedules
    topics.py              names of topics, the filters that they become, and lists for systems without filters
    transport_external.py  queues of SQS, and of any class of `detent.transports`

Units of work:

    unit_sqlalchemy.py     SQLAlchemy sessions, plain and async
    unit_dbapi.py          connections of sqlite3 and of psycopg, plain and async
    unit_django.py         Django
    unit_engine.py         the store itself: one transaction for changes, messages and acknowledgement

SQL, and looking at an app:

    statements.py          the tables of trackers and outboxes, and their statements
    looking.py             what is in an app's queue and outbox, and what becomes of its messages
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.bus.app import Bus, Middleware, run, run_async
    from detent.bus.declared import Outcome, Retries
    from detent.bus.idempotency import IDEMPOTENCY_CHECK_KEY, IdempotencyConfig, InMemoryTracker, MessageTracker
    from detent.bus.inbox import exactly_once
    from detent.bus.messages import Envelope, Incoming, JsonSerializer, MsgpackSerializer, Serializer, message
    from detent.bus.outbox import Claim, FailedEnvelope, OutboxCounts, OutboxStorage, Pending
    from detent.bus.outbox_sql import SqlOutbox
    from detent.bus.sending import Context
    from detent.bus.statements import schema
    from detent.bus.ticks import Tick
    from detent.bus.tracker_sql import SqlTracker
    from detent.bus.transaction import BusTransaction
    from detent.bus.transport import Transport
    from detent.bus.transport_external import ExternalTransport, SqsTransport
    from detent.bus.transport_queue import QueueTransport
    from detent.bus.unit_dbapi import DbApiUnitOfWork
    from detent.bus.unit_django import DjangoUnitOfWork
    from detent.bus.unit_engine import EngineUnitOfWork
    from detent.bus.unit_of_work import Unit, UnitOfWork
    from detent.bus.unit_sqlalchemy import SqlAlchemyUnitOfWork
    from detent.sql.port import SqlPort

_HOMES = {
    "detent.bus.app": ("Bus", "Middleware", "run", "run_async"),
    "detent.bus.declared": ("Outcome", "Retries"),
    "detent.bus.idempotency": ("IDEMPOTENCY_CHECK_KEY", "IdempotencyConfig", "InMemoryTracker", "MessageTracker"),
    "detent.bus.inbox": ("exactly_once",),
    "detent.bus.messages": ("Envelope", "Incoming", "JsonSerializer", "MsgpackSerializer", "Serializer", "message"),
    "detent.bus.outbox": ("Claim", "FailedEnvelope", "OutboxCounts", "OutboxStorage", "Pending"),
    "detent.bus.outbox_sql": ("SqlOutbox",),
    "detent.bus.sending": ("Context",),
    "detent.bus.statements": ("schema",),
    "detent.bus.ticks": ("Tick",),
    "detent.bus.tracker_sql": ("SqlTracker",),
    "detent.bus.transaction": ("BusTransaction",),
    "detent.bus.transport": ("Transport",),
    "detent.bus.transport_external": ("ExternalTransport", "SqsTransport"),
    "detent.bus.transport_queue": ("QueueTransport",),
    "detent.bus.unit_dbapi": ("DbApiUnitOfWork",),
    "detent.bus.unit_django": ("DjangoUnitOfWork",),
    "detent.bus.unit_engine": ("EngineUnitOfWork",),
    "detent.bus.unit_of_work": ("Unit", "UnitOfWork"),
    "detent.bus.unit_sqlalchemy": ("SqlAlchemyUnitOfWork",),
    "detent.sql.port": ("SqlPort",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "IDEMPOTENCY_CHECK_KEY",
    "Bus",
    "BusTransaction",
    "Claim",
    "Context",
    "DbApiUnitOfWork",
    "DjangoUnitOfWork",
    "EngineUnitOfWork",
    "Envelope",
    "ExternalTransport",
    "FailedEnvelope",
    "IdempotencyConfig",
    "InMemoryTracker",
    "Incoming",
    "JsonSerializer",
    "MessageTracker",
    "Middleware",
    "MsgpackSerializer",
    "OutboxCounts",
    "OutboxStorage",
    "Outcome",
    "Pending",
    "QueueTransport",
    "Retries",
    "Serializer",
    "SqlAlchemyUnitOfWork",
    "SqlOutbox",
    "SqlPort",
    "SqlTracker",
    "SqsTransport",
    "Tick",
    "Transport",
    "Unit",
    "UnitOfWork",
    "exactly_once",
    "message",
    "run",
    "run_async",
    "schema",
]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
