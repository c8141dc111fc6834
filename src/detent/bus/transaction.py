"""`bus.transaction(session)`: messages that go out with the transaction of a web request, or of any other code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Self

from detent.bus.declared import App
from detent.bus.sending import Uncommitted, current
from detent.errors import Invalid
from detent.runtime.ground import drive
from detent.sql.port import SqlPort, port_of

_ENDED: Final = (
    "the transaction was ended within a block of bus.transaction: its messages go with it, and are in it when the "
    "block ends. Commit after the block, or leave it to the block; raise an error to have all of it undone"
)


def is_django(session: Any) -> bool:
    """Whether this is a connection of Django's."""
    return hasattr(session, "vendor") and hasattr(session, "in_atomic_block")


def is_session(session: Any) -> bool:
    """Whether this is a session of SQLAlchemy's."""
    orm = sys.modules.get("sqlalchemy.orm")
    return orm is not None and isinstance(session, orm.Session)


def _commits_by_itself(session: Any) -> bool:
    """Whether what is done on a connection, or in a session, is committed statement by statement."""
    plain = getattr(session, "sync_session", session)
    if is_session(plain) or hasattr(plain, "get_execution_options"):
        bind: Any = plain.get_bind() if is_session(plain) else plain
        chosen = bind.get_execution_options().get("isolation_level") or getattr(
            bind.dialect, "_on_connect_isolation_level", None
        )
        return str(chosen).upper() == "AUTOCOMMIT"
    if hasattr(session, "in_transaction"):  # sqlite3's
        return getattr(session, "isolation_level", "") is None and not session.in_transaction
    info = getattr(session, "info", None)
    is_idle = getattr(getattr(info, "transaction_status", None), "name", "") == "IDLE"
    return bool(getattr(session, "autocommit", False)) and is_idle


def _wake_after_commits(session: Any, app: str, wake: Callable[[], None]) -> None:
    """One listener for a session and an app, however many blocks there are."""
    from sqlalchemy import event

    known: set[str] = session.info.setdefault("detent-wakes", set())
    if app not in known:
        known.add(app)
        event.listen(session, "after_commit", lambda _session: wake())


class _Borrowed:
    """The transaction of a session of the caller's, as the outbox wants it."""

    provides: Final[dict[Any, Any]] = {}

    def __init__(self, sql: SqlPort) -> None:
        self.sql = sql

    def commit(self) -> None:
        raise AssertionError("the session's owner commits it")

    check = rollback = close = commit


class BusTransaction(Uncommitted):
    """Messages that are kept in the outbox when the block ends, in the session's own transaction, which is then
    committed. A block that raises rolls back, and nothing is sent.

    >>> with bus.transaction(session):
    ...     session.add(order)
    ...     bus.publish(OrderPlaced(order.id))

    ``async with`` does the same for sessions of asyncio. With `commit` False the caller commits: the messages are in
    their transaction when the block has ended. The transaction is not ended within the block.
    """

    def __init__(self, bus: App, session: Any, *, commit: bool = True) -> None:
        super().__init__(bus)
        self._wakes = bus.wake
        if bus.outbox is None:
            raise Invalid(
                f"{bus.name!r} has no outbox that messages could be kept in: write Bus(..., outbox=SqlOutbox(), "
                "unit_of_work=...), or send without a transaction"
            )
        self._outbox = bus.outbox
        self._session = session
        self._unit = _Borrowed(port_of(session))
        self._commits = commit
        self._transaction: Any = None
        self._token: Token[Uncommitted | None] | None = None

    # -- with ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._unit.sql.is_async:
            raise Invalid("this session is one of asyncio: write async with bus.transaction(session)")
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._finish(error))

    async def __aenter__(self) -> Self:
        if not self._unit.sql.is_async:
            raise Invalid("this session is a plain one: write with bus.transaction(session)")
        return self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(error)

    def _begin(self) -> Self:
        if self._token is not None:
            raise Invalid("a block of bus.transaction is used once: make another one")
        if current.get() is not None:
            raise Invalid(
                "a transaction is open here already, a handler's or another block's: messages go with that one"
            )
        if is_django(self._session) and (self._commits or not self._session.in_atomic_block):
            raise Invalid(
                "Django commits at the end of its own block: write with transaction.atomic(): and in it with "
                "bus.transaction(connection, commit=False)"
            )
        if _commits_by_itself(self._session):
            raise Invalid(
                "this connection commits each statement by itself (autocommit), so that there is no transaction to "
                "send messages with: begin one first, or switch autocommit off"
            )
        self._guard()
        self._token = current.set(self)
        return self

    def _guard(self) -> None:
        """Remember which transaction of a session it is, and refuse a commit of it before the messages are in it."""
        plain = getattr(self._session, "sync_session", self._session)
        if not is_session(plain):
            return
        from sqlalchemy import event

        self._transaction = plain.get_transaction() or plain.begin()
        event.listen(plain, "before_commit", self._refuse_commit)

    def _unguard(self) -> bool:
        """Whether it still is the same transaction."""
        plain = getattr(self._session, "sync_session", self._session)
        if self._transaction is None:
            return True
        from sqlalchemy import event

        event.remove(plain, "before_commit", self._refuse_commit)
        return plain.get_transaction() is self._transaction

    def _refuse_commit(self, session: Any) -> None:
        if not session.in_nested_transaction():
            raise Invalid(_ENDED)

    async def _finish(self, error: BaseException | None) -> None:
        self.close()
        assert self._token is not None
        with suppress(ValueError):  # left in another context than it was entered in, as generators of FastAPI's do
            current.reset(self._token)
        is_whole = self._unguard()
        if error is None and not is_whole:
            raise Invalid(_ENDED)
        if error is not None:
            if self._commits:
                await self._call(self._session.rollback)
            return
        try:
            if self.envelopes:
                await self._call(self._outbox.save, self._unit, self.envelopes)
            if self._commits:
                await self._call(self._session.commit)
        except BaseException:
            if self._commits:
                await self._call(self._session.rollback)
            raise
        if self.envelopes:
            self._wake()

    def _wake(self) -> None:
        """Have the messages forwarded: now, or as soon as the caller has committed."""
        if self._commits:
            self._wakes()
        elif is_django(self._session):
            from django.db import transaction

            transaction.on_commit(self._wakes, using=self._session.alias)
        elif (plain := getattr(self._session, "sync_session", self._session)) is not None and is_session(plain):
            _wake_after_commits(plain, self.bus.name, self._wakes)
        # On other connections the outbox is looked at once a second anyway.

    async def _call(self, function: Any, *values: Any) -> None:
        found = function(*values)
        if self._unit.sql.is_async and found is not None:
            await found
