"""Marks of handled messages in the user's own database, in the transaction in which the handlers write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from detent.bus.statements import HANDLED, TrackerStatements, tracker_statements
from detent.bus.unit_of_work import Unit, sql_of
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.runtime.ground import drive
from detent.sql.port import PlacedTable, SqlPort, answer, call, port_of
from detent.sql.tables import table_named

if TYPE_CHECKING:
    from sqlalchemy import Engine

RETENTION: Final = "29d"
"""How long a mark is kept: longer than transports keep a message, which may come again until then: 14 days in the app's
queue and 14 in that for what is given up."""

_WHAT: Final = "a tracker"

Result = TypeVar("Result")
_Work = Callable[[SqlPort], Coroutine[Any, Any, Result]]


def enter_consumer(port: SqlPort, consumer: str, place: str, *, table: str = HANDLED) -> Awaitable[None] | None:
    """Note that a consumer reads at a place; `Invalid` if it was entered with another one. `table` is the tracker's."""
    return answer(port, _enter(port, tracker_statements(port.dialect, table), consumer, place))


async def _enter(port: SqlPort, statements: TrackerStatements, consumer: str, place: str) -> None:
    await call(port, statements.enter, {"consumer": consumer, "place": place})
    ((known,),) = await call(port, statements.place, {"consumer": consumer})
    if known != place:
        raise Invalid(
            f"an app called {consumer!r} reads from {known}, and this one from {place}: with one name, each would skip "
            "messages that the other has handled. Rename one of them; or, if the app has moved, delete its row: "
            f"DELETE FROM {statements.tables[1]} WHERE consumer = '{consumer.replace(chr(39), 2 * chr(39))}'"
        )


class SqlTracker:
    """Remembers in a table which messages a consumer has handled.

    >>> bus = Bus("billing", ..., idempotency=IdempotencyConfig(SqlTracker()),
    ...           unit_of_work=SqlAlchemyUnitOfWork(sessionmaker(engine)))

    The mark is one row of `table`, which is made if need be (or by your migrations, see
    `detent.bus.statements.schema`); a schema may come before its name. It is written first in the transaction of the
    handlers, so that of two deliveries of a message the second waits for the first one's commit, and a rollback takes
    the mark along.

    A table without a schema is looked for when the app starts, by PostgreSQL's ``search_path``, and stays the one that
    was found: a handler that sets another ``search_path`` for its own tables does not change where marks are.

    Marks are removed after `retention`. It has to be longer than the longest time after which a message can come again:
    by a broker that was down, by a person who sends the failed ones of last week once more, by a restored backup. So it
    has to be longer than your transport keeps messages, waiting and failed ones alike: an app whose transport can
    deliver a message again after that time does not start.

    With an `engine` of its own, which is SQLAlchemy's or a URL, marks are in another database than what the handlers
    write: they are looked up before and written after the handlers' commit, so that a crash in between has a message
    handled twice, and so has a duplicate that comes meanwhile.
    """

    def __init__(
        self, table: str = HANDLED, *, retention: Duration = RETENTION, engine: Engine | str | None = None
    ) -> None:
        table_named(table)
        self._table = PlacedTable(table, tracker_statements)
        self._retention_ms = milliseconds(retention)
        self._elsewhere = None if engine is None else _Elsewhere(engine)

    @property
    def is_transactional(self) -> bool:
        """Whether marks are written in the transaction of the handlers."""
        return self._elsewhere is None

    @property
    def place(self) -> str | None:
        """Which database the marks are in, if not the handlers' own."""
        return None if self._elsewhere is None else self._elsewhere.place

    @property
    def retention_s(self) -> float:
        """How long a mark is kept."""
        return self._retention_ms / 1000

    def prepare(self, consumer: str, place: str | None, unit: Unit | None) -> Awaitable[None] | None:
        """Make the tables, and note where the consumer reads."""

        async def work(port: SqlPort) -> None:
            await self._table.make(port)
            if place is not None:
                await _enter(port, self._table.at(port), consumer, place)

        return self._within(unit, work)

    def track(self, consumer: str, message_id: str, unit: Unit | None) -> bool | Awaitable[bool]:
        """True for the first one; False if the mark is there. Every error is raised: one that passes, such as a
        deadlock, has the message delivered again, and not as a duplicate."""

        async def work(port: SqlPort) -> bool:
            statements = self._table.at(port)
            key = {"consumer": consumer, "message_id": message_id}
            if self._elsewhere is not None:
                return not await call(port, statements.look, key)
            return bool(await call(port, statements.track, key))

        return self._within(unit, work)

    def committed(self, consumer: str, message_id: str) -> None:
        """With an engine of its own, the mark is written now."""
        if self._elsewhere is None:
            return

        async def work(port: SqlPort) -> None:
            statement = self._table.at(port).track
            await call(port, statement, {"consumer": consumer, "message_id": message_id})

        self._elsewhere.run(work)

    def rolled_back(self, consumer: str, message_id: str) -> None:
        """The database has removed the mark."""

    def forget(self, consumer: str, unit: Unit | None, limit: int) -> int | Awaitable[int]:
        """Remove the oldest marks of a consumer, beyond the retention."""

        async def work(port: SqlPort) -> int:
            statement = self._table.at(port).forget
            values = {"consumer": consumer, "age": self._retention_ms, "limit": limit}
            return len(await call(port, statement, values))

        return self._within(unit, work)

    def close(self) -> None:
        """Close the connections of a tracker that was given a URL."""
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _within(self, unit: Unit | None, work: _Work[Result]) -> Result | Awaitable[Result]:
        if self._elsewhere is not None:
            return self._elsewhere.run(work)
        port = sql_of(unit, _WHAT)
        return answer(port, work(port))


class _Elsewhere:
    """A database of the tracker's own. Each call is a transaction there."""

    def __init__(self, given: Engine | str) -> None:
        from detent.sql.databases import Database, adopt, place_of

        if not isinstance(given, str):
            adopt(given, _WHAT)  # refused now, and not at the first message
        self._database: Database[None] = Database(given, _WHAT, "handled.db")
        self.place = place_of(self._database.url)
        self.close = self._database.close

    def run(self, work: _Work[Result]) -> Result:
        """What `work` answers for a port, in a transaction that is tried again when others came in the way."""
        from detent.sql.transactions import transact

        return transact(self._database.opened()[0], lambda connection: drive(work(port_of(connection))))
