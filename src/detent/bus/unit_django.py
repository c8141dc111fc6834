"""Handlers that write through Django."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from detent.bus.transport import Transport
from detent.bus.unit_of_work import (
    BROKEN,
    ENDED,
    TransactionEnded,
    check_sqlite_file,
    check_waits,
    guard_of,
    is_over,
    is_psycopg,
    say,
    settling,
)
from detent.errors import Invalid
from detent.sql.dialects import (
    DIALECTS,
    MEMORY,
    SQLITE,
    committing,
    ends_transaction,
    is_no_savepoint,
    place_of_file,
    place_of_server,
)
from detent.sql.port import SqlPort, port_of


class DjangoUnit:
    """One ``atomic`` block."""

    def __init__(self, connection: Any, using: str, *, is_file: bool) -> None:
        from django.db import transaction

        self._connection = connection
        self._atomic = transaction.atomic(using=using, durable=True)
        self._guard = guard_of(vars(connection))
        self._is_file = is_file
        self._is_inside = False
        self._is_guarded = False
        """Whether the savepoint is set and was not yet looked for."""
        self.sql: SqlPort = port_of(connection)
        self.provides: Mapping[Any, Any] = {"connection": connection}

    def begin(self) -> None:
        """Enter the block. Django itself refuses a commit inside of it; text it does not look at."""
        connection = self._connection
        connection.close_if_unusable_or_obsolete()
        connection.execute_wrappers.append(_refuse_endings)
        try:
            self._atomic.__enter__()
            self._is_inside = True
            if self._is_file:
                check_waits(self.sql)
            self._say(self._guard.set)
            self._is_guarded = True
        except BaseException:
            self.rollback()
            self.close()
            raise

    def check(self) -> None:
        """`TransactionEnded` if the block was left, or the connection is in no transaction any more."""
        connection = self._connection
        if (
            not self._is_inside
            or not connection.in_atomic_block
            or self._was_closed()
            or is_over(connection.connection)
        ):
            raise TransactionEnded(ENDED)

    def commit(self) -> None:
        """Leave the block, if all of it is to be committed: Django says nothing when it rolls back instead."""
        self.check()
        if self._connection.needs_rollback:
            raise Invalid(BROKEN)
        self._is_guarded = False
        with committing():
            with settling():
                self._settle()
            self._is_inside = False
            self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        """Leave the block, and undo it."""
        if not self._is_inside:
            return
        self._is_inside = False
        has_ended = self._is_guarded and self._has_ended()
        self._connection.needs_rollback = True
        self._atomic.__exit__(None, None, None)
        if has_ended:
            raise TransactionEnded(ENDED)

    def close(self) -> None:
        """Keep the connection, as Django does, unless it is broken or old."""
        wrappers = self._connection.execute_wrappers
        if _refuse_endings in wrappers:
            wrappers.remove(_refuse_endings)
        self._connection.close_if_unusable_or_obsolete()

    def _was_closed(self) -> bool:
        return self._connection.closed_in_transaction or self._connection.connection is None

    def _settle(self) -> None:
        """Look for the guard, and have the transaction wait for the disk. After psycopg's COMMIT, Django's own finds
        nothing to do, and costs nothing."""
        if self._connection.vendor == SQLITE:
            self._say(self._guard.release)
        else:
            self._say(self._guard.commit if is_psycopg(self._connection.connection) else self._guard.settle)

    def _has_ended(self) -> bool:
        """Whether the guard is gone. Other errors are those of a lost connection, which Django finds out next."""
        if self._was_closed():
            return True
        try:
            self._say(self._guard.undo if is_psycopg(self._connection.connection) else self._guard.back)
        except Exception as error:  # noqa: BLE001 - see above
            return is_no_savepoint(error.__cause__ or error)
        return False

    def _say(self, text: str) -> None:
        """On the driver's own connection, with errors as Django has them."""
        with self._connection.wrap_database_errors:
            say(self._connection.connection, text)


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
    ``transaction.atomic()``; what they pass to ``transaction.on_commit`` runs after the commit. A handler
    that needs the connection asks for ``connection``.
    """

    is_async: Final = False
    for_plain_handlers: Final = True
    """Django's transactions belong to a thread: what a coroutine does on an event loop would be in another one."""

    provided: Final[frozenset[Any]] = frozenset(("connection",))

    def __init__(self, using: str = "default") -> None:
        self._using = using

    @property
    def place(self) -> str:
        """Which database it is."""
        settings = self._connection().settings_dict
        if self._connection().vendor == SQLITE:
            name = str(settings["NAME"])
            return place_of_file(None if ":memory:" in name or "mode=memory" in name else name)
        host, port = settings.get("HOST"), settings.get("PORT")
        return place_of_server(self._connection().vendor, host, port, settings["NAME"])

    @cached_property
    def _is_file(self) -> bool:
        return self._connection().vendor == SQLITE and self.place != MEMORY

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

    def begin(self) -> DjangoUnit:
        """Enter a block, on the connection of this thread."""
        unit = DjangoUnit(self._connection(), self._using, is_file=self._is_file)
        unit.begin()
        return unit

    def _connection(self) -> Any:
        from django.db import connections

        return connections[self._using]
