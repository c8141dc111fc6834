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

    app.py                 `Bus`: sends and handles typed messages; `run` for several
    declared.py            what an app is made of: parts and handlers; what all files below take
    checks.py              what is refused at the start
    running.py             transport, threads and event loop, from start to stop

One delivery, in the order in which things happen:

    transport.py           what carries messages: queues, and what an app needs besides (see below)
    worker.py              takes deliveries, hands each to a thread, keeps their leases
    pipeline.py            read, begin, mark, handle, save what was sent, commit, acknowledge
    calling.py             that pipeline for plain functions and for coroutines
    envelope.py            a message as bytes, headers and address
    message_types.py       which class a message is
    serializers.py         bytes to objects and back
    unit_of_work.py        the contract of the transaction that all of it commits in (see below)
    idempotency.py         the mark: which messages were handled
    tracker_sql.py         marks in the user's database
    handlers.py            which function takes which messages, and its other parameters
    context.py             what a handler knows of its message, and how it sends
    middleware.py          hooks around messages
    retries.py             how often a message is tried, and when
    observing.py           watching what becomes of messages, from outside

Sending, and the outbox:

    sending.py             the type's name, the address, and the transaction that a message goes with
    outbox.py              the contract of the outbox
    outbox_sql.py          the outbox in the user's database
    forwarder.py           sends what waits in it, lane by lane
    housekeeping.py        forgets old marks and sent messages
    transaction.py         `bus.transaction(session)`, for web requests and other code
    inbox.py               `@exactly_once`, for messages from elsewhere
    replies.py             requests that wait for replies
    reply_journals.py      replies through a store: a journal for each app

Transports:

    transport_urls.py      transports by URL
    transport_queue.py     queues of a Detent store
    topics.py              names of topics, and the filters that they become
    transport_external.py  queues of SQS, and of any class of `detent.transports`
    transport_sending.py   what goes to which of them, and how much in one call

Units of work:

    unit_rules.py          what every one on a database has to see to: the guard, and what waits for the disk
    unit_sqlalchemy.py     SQLAlchemy sessions, plain and async
    unit_dbapi.py          connections of sqlite3 and of psycopg, plain and async
    unit_django.py         Django
    unit_engine.py         the store itself: one transaction for changes, messages and acknowledgement

SQL, and looking at an app:

    sql_port.py            SQL on whatever connection a unit has
    statements.py          the tables of trackers and outboxes, and their statements
    lane_statements.py     how lanes are claimed
    looking.py             what is in an app's queue and outbox, without running it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.bus.app import Bus, run, run_async
    from detent.bus.context import Context
    from detent.bus.declared import Outcome
    from detent.bus.envelope import Envelope, Incoming
    from detent.bus.idempotency import (
        IDEMPOTENCY_CHECK_KEY,
        IdempotencyConfig,
        InMemoryTracker,
        MessageTracker,
    )
    from detent.bus.inbox import exactly_once
    from detent.bus.message_types import message
    from detent.bus.middleware import Middleware
    from detent.bus.outbox import Claim, FailedEnvelope, OutboxCounts, OutboxStorage, Pending
    from detent.bus.outbox_sql import SqlOutbox
    from detent.bus.retries import Retries
    from detent.bus.serializers import JsonSerializer, MsgpackSerializer, Serializer
    from detent.bus.sql_port import SqlPort
    from detent.bus.statements import schema
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

_HOMES = {
    "detent.bus.app": ("Bus", "run", "run_async"),
    "detent.bus.declared": ("Outcome",),
    "detent.bus.context": ("Context",),
    "detent.bus.envelope": ("Envelope", "Incoming"),
    "detent.bus.idempotency": ("IDEMPOTENCY_CHECK_KEY", "IdempotencyConfig", "InMemoryTracker", "MessageTracker"),
    "detent.bus.inbox": ("exactly_once",),
    "detent.bus.middleware": ("Middleware",),
    "detent.bus.outbox": ("Claim", "FailedEnvelope", "OutboxCounts", "OutboxStorage", "Pending"),
    "detent.bus.outbox_sql": ("SqlOutbox",),
    "detent.bus.retries": ("Retries",),
    "detent.bus.serializers": ("JsonSerializer", "MsgpackSerializer", "Serializer"),
    "detent.bus.sql_port": ("SqlPort",),
    "detent.bus.statements": ("schema",),
    "detent.bus.tracker_sql": ("SqlTracker",),
    "detent.bus.transaction": ("BusTransaction",),
    "detent.bus.transport": ("Transport",),
    "detent.bus.transport_external": ("ExternalTransport", "SqsTransport"),
    "detent.bus.transport_queue": ("QueueTransport",),
    "detent.bus.message_types": ("message",),
    "detent.bus.unit_dbapi": ("DbApiUnitOfWork",),
    "detent.bus.unit_django": ("DjangoUnitOfWork",),
    "detent.bus.unit_engine": ("EngineUnitOfWork",),
    "detent.bus.unit_of_work": ("Unit", "UnitOfWork"),
    "detent.bus.unit_sqlalchemy": ("SqlAlchemyUnitOfWork",),
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
