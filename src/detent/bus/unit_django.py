"""Handlers that write through Django."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detent.bus.sql_port import SqlPort, port_of
from detent.bus.transport import Transport
from detent.bus.unit_rules import (
    BROKEN,
    ENDED,
    IS_DURABLE,
    SET_DURABLE,
    check_not_aborted,
    check_sqlite_file,
    committing,
    sqlite_place,
)
from detent.dialects import DIALECTS, POSTGRESQL, SQLITE, ends_transaction
from detent.errors import Invalid


class DjangoUnit:
    """One ``atomic`` block."""

    def __init__(self, connection: Any, using: str, *, sets_durable: bool) -> None:
        from django.db import transaction

        self._connection = connection
        self._atomic = transaction.atomic(using=using, durable=True)
        self._sets_durable = sets_durable
        self._is_inside = False
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = {"connection": connection}

    def begin(self) -> None:
        """Enter the block. Django itself refuses a commit inside of it; text it does not look at."""
        self._connection.close_if_unusable_or_obsolete()
        self._connection.execute_wrappers.append(_refuse_endings)
        try:
            self._atomic.__enter__()
            self._is_inside = True
            if self._sets_durable:
                self.sql.execute(SET_DURABLE, {})
        except BaseException:
            self.rollback()
            self.close()
            raise

    def commit(self) -> None:
        """Leave the block, if all of it is to be committed: Django says nothing when it rolls back instead."""
        connection = self._connection
        if not self._is_inside or connection.closed_in_transaction or not connection.in_atomic_block:
            raise Invalid(ENDED)
        if connection.needs_rollback:
            raise Invalid(BROKEN)
        if connection.vendor == POSTGRESQL:
            check_not_aborted(connection.connection)
        self._is_inside = False
        with committing():
            self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        """Leave the block, and undo it."""
        if self._is_inside:
            self._is_inside = False
            self._connection.needs_rollback = True
            self._atomic.__exit__(None, None, None)

    def close(self) -> None:
        """Keep the connection, as Django does, unless it is broken or old."""
        wrappers = self._connection.execute_wrappers
        if _refuse_endings in wrappers:
            wrappers.remove(_refuse_endings)
        self._connection.close_if_unusable_or_obsolete()


def _refuse_endings(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    if ends_transaction(sql):
        raise Invalid(ENDED)
    return execute(sql, params, many, context)


class DjangoUnitOfWork:
    """An ``atomic`` block of Django's for each message, which the bus commits.

    >>> bus = Bus("billing", ..., unit_of_work=DjangoUnitOfWork())
    >>> @bus.handler
    ... def invoice(order: OrderPlaced):
    ...     Invoice.objects.create(order=order.id)

    `using` names one of Django's ``DATABASES``. Handlers use models as they always do, and savepoints by
    ``transaction.atomic()``; what they pass to ``transaction.on_commit`` runs after the commit. Who wants the
    connection asks for ``connection``.
    """

    is_async: Final = False
    for_plain_handlers: Final = True
    """Django's transactions belong to a thread: what a coroutine does on an event loop would be in another one."""

    provided: Final[frozenset[Any]] = frozenset(("connection",))

    def __init__(self, using: str = "default") -> None:
        self._using = using
        self._sets_durable = False

    @property
    def place(self) -> str:
        """Which database it is."""
        settings = self._connection().settings_dict
        if self._connection().vendor == SQLITE:
            name = str(settings["NAME"])
            return sqlite_place(None if ":memory:" in name or "mode=memory" in name else name)
        host, port = settings.get("HOST") or "localhost", settings.get("PORT") or 5432
        return f"{self._connection().vendor}://{host}:{port}/{settings['NAME']}"

    def check(self, transport: Transport) -> None:
        """Refuse a database that may lose what it commits."""
        connection = self._connection()
        if connection.vendor not in DIALECTS:
            raise Invalid(f"units of work are for SQLite and PostgreSQL, not for {connection.vendor}")
        if not connection.settings_dict.get("AUTOCOMMIT", True):
            raise Invalid("Django's AUTOCOMMIT is off, so that there are no blocks: leave it out of DATABASES")

        def ask(query: str) -> Any:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchone()[0]

        if connection.vendor == SQLITE:
            check_sqlite_file(ask, transport)
        else:
            self._sets_durable = not ask(IS_DURABLE)

    def begin(self) -> DjangoUnit:
        """Enter a block, on the connection of this thread."""
        unit = DjangoUnit(self._connection(), self._using, sets_durable=self._sets_durable)
        unit.begin()
        return unit

    def _connection(self) -> Any:
        from django.db import connections

        return connections[self._using]
