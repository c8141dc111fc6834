"""Typed messages and their handlers: idempotent, in one transaction of your database, with an outbox.

>>> from detent.bus import Bus, IdempotencyConfig, SqlAlchemyUnitOfWork, SqlOutbox, SqlTracker
>>> bus = Bus(
...     "billing",
...     "file:./data",
...     unit_of_work=SqlAlchemyUnitOfWork(session_factory),
...     idempotency=IdempotencyConfig(SqlTracker()),
...     outbox=SqlOutbox(),
... )
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.bus.app import Bus
    from detent.bus.context import Context
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
    from detent.bus.pipeline import Outcome
    from detent.bus.retries import Retries
    from detent.bus.running import run, run_async
    from detent.bus.serializers import JsonSerializer, MsgpackSerializer, Serializer
    from detent.bus.sql_port import SqlPort
    from detent.bus.statements import schema
    from detent.bus.tracker_sql import SqlTracker
    from detent.bus.transaction import BusTransaction
    from detent.bus.transport import Transport
    from detent.bus.transport_queue import QueueTransport
    from detent.bus.transport_sqs import SqsTransport
    from detent.bus.unit_dbapi import DbApiUnitOfWork
    from detent.bus.unit_django import DjangoUnitOfWork
    from detent.bus.unit_engine import EngineUnitOfWork
    from detent.bus.unit_of_work import Unit, UnitOfWork
    from detent.bus.unit_sqlalchemy import SqlAlchemyUnitOfWork

_HOMES = {
    "detent.bus.app": ("Bus",),
    "detent.bus.context": ("Context",),
    "detent.bus.envelope": ("Envelope", "Incoming"),
    "detent.bus.idempotency": ("IDEMPOTENCY_CHECK_KEY", "IdempotencyConfig", "InMemoryTracker", "MessageTracker"),
    "detent.bus.inbox": ("exactly_once",),
    "detent.bus.middleware": ("Middleware",),
    "detent.bus.outbox": ("Claim", "FailedEnvelope", "OutboxCounts", "OutboxStorage", "Pending"),
    "detent.bus.outbox_sql": ("SqlOutbox",),
    "detent.bus.pipeline": ("Outcome",),
    "detent.bus.retries": ("Retries",),
    "detent.bus.running": ("run", "run_async"),
    "detent.bus.serializers": ("JsonSerializer", "MsgpackSerializer", "Serializer"),
    "detent.bus.sql_port": ("SqlPort",),
    "detent.bus.statements": ("schema",),
    "detent.bus.tracker_sql": ("SqlTracker",),
    "detent.bus.transaction": ("BusTransaction",),
    "detent.bus.transport": ("Transport",),
    "detent.bus.transport_queue": ("QueueTransport",),
    "detent.bus.transport_sqs": ("SqsTransport",),
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
