"""Units of work: one transaction for each message, that nobody but the bus ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, insert, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from busdatabases import KINDS, ON_POSTGRES, POSTGRES, BusDatabase, libpq, postgres_url
from detent.bus.messages import Envelope
from detent.bus.outbox_sql import SqlOutbox
from detent.bus.tracker_sql import SqlTracker
from detent.bus.unit_dbapi import DbApiUnitOfWork
from detent.bus.unit_of_work import TransactionEnded, guard_of
from detent.bus.unit_sqlalchemy import SqlAlchemyUnitOfWork
from detent.errors import Invalid, OutcomeUnknown
from detent.sql.dialects import committing, ends_transaction
from detent.sql.port import port_of


class Place:
    """A transport, as far as units look at one."""

    def __init__(self, place: str = "file:/data") -> None:
        self.place = place


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Unit:
    """A unit of any kind, for tests that are written once; `handler` is what a handler does with what it provides."""

    def __init__(self, database: BusDatabase) -> None:
        self.database = database
        self.units = database.unit_of_work()
        self.units.check(Place())

    async def handle(self, handler: Callable[[Any, Any], Any], message_id: str = "1") -> None:
        """As the bus does."""
        unit = await settled(self.units.begin())
        try:
            await settled(SqlTracker(self.database.handled).track("billing", message_id, unit))
            key = "connection" if "raw" in self.database.way else "session"
            await settled(handler(unit.provides[key], unit.sql))
            await settled(unit.commit())
        except BaseException:
            await settled(unit.rollback())
            raise
        finally:
            await settled(unit.close())

    async def prepare(self) -> None:
        unit = await settled(self.units.begin())
        await settled(SqlTracker(self.database.handled).prepare("billing", None, unit))
        await settled(unit.sql.execute(f"CREATE TABLE {self.table} (n integer PRIMARY KEY)", {}))
        await settled(unit.commit())
        await settled(unit.close())

    @property
    def table(self) -> str:
        return f"work_{self.database.handled}"

    def rows(self) -> list[int]:
        return [row[0] for row in self.database.execute(f"SELECT n FROM {self.table} ORDER BY n")]

    def marks(self) -> int:
        count: int = self.database.execute(f"SELECT count(*) FROM {self.database.handled}")[0][0]
        return count

    async def insert(self, sql: Any, number: int) -> None:
        await settled(sql.execute(f"INSERT INTO {self.table} VALUES (:n)", {"n": number}))


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> BusDatabase:
    return BusDatabase(request.param, tmp_path)


def with_unit(test: Callable[[Unit], Any]) -> Callable[[BusDatabase], None]:
    """A test of a unit of each kind, on an event loop."""

    def run(database: BusDatabase) -> None:
        async def all_of_it() -> None:
            unit = Unit(database)
            try:
                await unit.prepare()
                await test(unit)
            finally:
                await settled(database.close())

        asyncio.run(all_of_it())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@with_unit
async def test_what_is_done_in_a_unit_is_committed_together(unit: Unit) -> None:
    async def work(_handle: Any, sql: Any) -> None:
        await unit.insert(sql, 1)

    await unit.handle(work)
    assert (unit.rows(), unit.marks()) == ([1], 1)


@with_unit
async def test_nothing_is_left_of_a_unit_that_fails(unit: Unit) -> None:
    async def work(_handle: Any, sql: Any) -> None:
        await unit.insert(sql, 1)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await unit.handle(work)
    assert (unit.rows(), unit.marks()) == ([], 0)


@with_unit
async def test_handlers_do_not_commit_roll_back_or_close(unit: Unit) -> None:
    """Whatever they do after it, and however they do it: nothing is committed."""
    for ending in ("commit", "rollback", "close"):
        for goes_on in (False, True):

            async def work(handle: Any, sql: Any, ending: str = ending, goes_on: bool = goes_on) -> None:
                await unit.insert(sql, 1)
                with contextlib.suppress(Invalid, sqlite3.DatabaseError):
                    await settled(getattr(handle, ending)())
                if goes_on:
                    await unit.insert(sql, 2)

            with pytest.raises((Invalid, sqlite3.ProgrammingError), match=r"ended the transaction|closed"):
                await unit.handle(work)
            assert (unit.rows(), unit.marks()) == ([], 0), (ending, goes_on)


@with_unit
async def test_statements_that_end_the_transaction_are_found(unit: Unit) -> None:
    for statement in ("COMMIT", " -- well\n rollback;"):

        async def work(_handle: Any, sql: Any, statement: str = statement) -> None:
            await settled(sql.execute(statement, {}))
            await unit.insert(sql, 2)

        with pytest.raises((Invalid, sqlite3.DatabaseError), match=r"ended the transaction|not authorized"):
            await unit.handle(work)
        assert unit.rows() == []


@with_unit
async def test_savepoints_are_the_handlers(unit: Unit) -> None:
    async def work(_handle: Any, sql: Any) -> None:
        await unit.insert(sql, 1)
        await settled(sql.execute("SAVEPOINT mine", {}))
        await unit.insert(sql, 2)
        await settled(sql.execute("ROLLBACK TO SAVEPOINT mine", {}))
        await settled(sql.execute("RELEASE SAVEPOINT mine", {}))
        await unit.insert(sql, 3)

    await unit.handle(work)
    assert (unit.rows(), unit.marks()) == ([1, 3], 1)


@with_unit
async def test_a_commit_that_would_say_nothing_and_undo_all_is_refused(unit: Unit) -> None:
    """PostgreSQL answers ROLLBACK to the COMMIT of a transaction in which something failed, and no error."""

    async def work(_handle: Any, sql: Any) -> None:
        await unit.insert(sql, 1)
        with contextlib.suppress(IntegrityError, sqlite3.IntegrityError, psycopg.IntegrityError):
            await unit.insert(sql, 1)

    if unit.database.dialect == "sqlite":
        await unit.handle(work)
        assert (unit.rows(), unit.marks()) == ([1], 1)
        return
    with pytest.raises(Invalid, match="let the error out"):
        await unit.handle(work)
    assert (unit.rows(), unit.marks()) == ([], 0)


@pytest.mark.parametrize("database", ON_POSTGRES, indirect=True)
@with_unit
async def test_a_unit_can_be_rolled_back_after_a_commit_that_failed(unit: Unit) -> None:
    other = f"{unit.table}_other"
    how = "REFERENCES {} (n) DEFERRABLE INITIALLY DEFERRED"
    unit.database.execute(f"CREATE TABLE {other} (n integer {how.format(unit.table)})")

    async def work(_handle: Any, sql: Any) -> None:
        await settled(sql.execute(f"INSERT INTO {other} VALUES (7)", {}))

    with pytest.raises((IntegrityError, psycopg.IntegrityError), match="foreign key"):
        await unit.handle(work)
    assert unit.marks() == 0
    await unit.handle(lambda _handle, sql: unit.insert(sql, 1))
    assert unit.marks() == 1


async def commit_behind_the_back(unit: Unit, handle: Any) -> None:
    """What no rule of a session or a connection sees: a COMMIT on the driver's own connection."""
    way = unit.database.way
    if "raw" in way:
        driver = handle
        if isinstance(driver, sqlite3.Connection):
            driver.set_authorizer(None)
    elif way == "session":
        driver = handle.connection().connection.driver_connection
    else:
        driver = (await (await handle.connection()).get_raw_connection()).driver_connection
    await settled(driver.execute("COMMIT" if unit.database.dialect == "sqlite" else "SELECT 1; COMMIT"))


@with_unit
async def test_a_transaction_that_was_ended_behind_the_back_is_found(unit: Unit) -> None:
    """When it is to be committed, and when it is to be undone, and whatever was done after it."""
    number = 0
    for fails in (False, True):
        for goes_on in (False, True):

            async def work(handle: Any, sql: Any, n: int = number, fails: bool = fails, on: bool = goes_on) -> None:
                await unit.insert(sql, n)
                await commit_behind_the_back(unit, handle)
                if on:
                    await unit.insert(sql, n + 1)
                if fails:
                    raise RuntimeError

            with pytest.raises(TransactionEnded, match="ended the transaction"):
                await unit.handle(work, str(number))
            number += 2
            await unit.handle(lambda _handle, sql, last=number: unit.insert(sql, last), f"next {number}")
            number += 1


@with_unit
async def test_an_end_is_seen_before_messages_are_kept(unit: Unit) -> None:
    begun = await settled(unit.units.begin())
    handle = begun.provides["connection" if "raw" in unit.database.way else "session"]
    await unit.insert(begun.sql, 1)
    begun.check()
    await commit_behind_the_back(unit, handle)
    with pytest.raises(TransactionEnded):
        begun.check()
    with contextlib.suppress(TransactionEnded):
        await settled(begun.rollback())
    await settled(begun.close())


@pytest.mark.parametrize("database", ON_POSTGRES, indirect=True)
@with_unit
async def test_a_failed_statement_and_a_lost_connection_are_no_end(unit: Unit) -> None:
    async def fail(_handle: Any, sql: Any) -> None:
        await unit.insert(sql, 1)
        await unit.insert(sql, 1)

    async def lose(_handle: Any, sql: Any) -> None:
        ((own,),) = await settled(sql.execute("SELECT pg_backend_pid()", {}))
        unit.database.execute(f"SELECT pg_terminate_backend({own})")
        await unit.insert(sql, 1)

    for work in (fail, lose):
        with pytest.raises(Exception, match=r"unique|terminat|closed|connection") as caught:
            await unit.handle(work)
        assert not isinstance(caught.value, TransactionEnded)
        assert (unit.rows(), unit.marks()) == ([], 0)
    await settled(unit.database.close())
    await unit.handle(lambda _handle, sql: unit.insert(sql, 1))


@pytest.mark.parametrize("database", ON_POSTGRES, indirect=True)
@with_unit
async def test_a_commit_waits_for_the_disk_whatever_a_handler_has_set(unit: Unit) -> None:
    """A deferred trigger runs within the COMMIT, and writes down what is set then."""
    table, seen = unit.table, f"{unit.table}_seen"
    execute = unit.database.execute
    execute(f"CREATE TABLE {seen} (setting text)")
    execute(
        f"CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO {seen} VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    execute(
        f"CREATE CONSTRAINT TRIGGER noting AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW EXECUTE FUNCTION note_{table}()"
    )
    for number, setting in enumerate(
        ("SET LOCAL synchronous_commit = off", "SET synchronous_commit = off", "SELECT 1")
    ):

        async def work(_handle: Any, sql: Any, number: int = number, setting: str = setting) -> None:
            await settled(sql.execute(setting, {}))
            await unit.insert(sql, number)

        await unit.handle(work, str(number))
    assert execute(f"SELECT setting FROM {seen}") == [("on",)] * 3


@pytest.mark.parametrize("database", ON_POSTGRES, indirect=True)
@with_unit
async def test_marks_and_messages_stay_where_the_app_has_found_them(unit: Unit) -> None:
    """A handler may look for its own tables elsewhere."""
    handled, outbox = SqlTracker(unit.database.handled), SqlOutbox(unit.database.outbox)

    async def within(work: Callable[[Any], Any]) -> Any:
        begun = await settled(unit.units.begin())
        try:
            found = await settled(work(begun))
            await settled(begun.commit())
            return found
        finally:
            await settled(begun.close())

    async def elsewhere(begun: Any) -> bool:
        await settled(begun.sql.execute("SET LOCAL search_path TO pg_catalog", {}))
        await settled(outbox.save(begun, [Envelope("1", "queue:a", {}, b"", None)]))
        is_new: bool = await settled(handled.track("billing", "1", begun))
        return is_new

    await within(lambda begun: handled.prepare("billing", None, begun))
    await within(outbox.prepare)
    assert await within(elsewhere)
    assert not await within(lambda begun: handled.track("billing", "1", begun))
    assert (await within(outbox.counts)).pending == 1


@pytest.mark.parametrize("database", ON_POSTGRES, indirect=True)
@with_unit
async def test_messages_and_marks_wait_for_the_disk_whatever_was_set(unit: Unit) -> None:
    found = []

    async def work(_handle: Any, sql: Any) -> None:
        show = "SELECT current_setting('synchronous_commit')"
        found.append((await settled(sql.execute(show, {})))[0][0])
        await settled(sql.execute("SET LOCAL synchronous_commit = off", {}))
        outbox = SqlOutbox(unit.database.outbox)
        message = [Envelope("1", "queue:a", {}, b"", None)]

        class Borrowed:
            pass

        borrowed: Any = Borrowed()
        borrowed.sql = sql
        await settled(outbox.prepare(borrowed))
        await settled(outbox.save(borrowed, message))
        found.append((await settled(sql.execute(show, {})))[0][0])

    unit.database.execute("ALTER ROLE detent SET synchronous_commit = off")
    try:
        await settled(unit.database.close())
        await unit.handle(work)
    finally:
        unit.database.execute("ALTER ROLE detent RESET synchronous_commit")
    assert found == ["on", "on"]


# -- SQLAlchemy -------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    engine = create_engine(f"sqlite:///{tmp_path}/some.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE work (n integer PRIMARY KEY)"))
    yield engine
    engine.dispose()


class MySession(Session):
    """A class of the user's."""


class TestSessions:
    def test_sessions_are_provided_by_name_and_class(self, engine: Any) -> None:
        units = SqlAlchemyUnitOfWork(sessionmaker(engine, class_=MySession))
        assert {"session", Session, MySession} <= units.provided
        assert not units.is_async
        unit = units.begin()
        assert set(unit.provides) == units.provided
        assert unit.provides["session"] is unit.provides[Session] is unit.provides[MySession]
        unit.rollback()
        unit.close()
        assert units.place == f"sqlite:///{Path(engine.url.database).resolve()}"

    @pytest.mark.parametrize("make", [scoped_session, lambda maker: maker, lambda maker: lambda: maker()])
    def test_factories_of_all_kinds(self, engine: Any, make: Callable[[Any], Any]) -> None:
        units = SqlAlchemyUnitOfWork(make(sessionmaker(engine)))
        units.check(Place())
        for number in range(3):
            unit = units.begin()
            unit.provides[Session].execute(text(f"INSERT INTO work VALUES ({number})"))
            unit.commit()
            unit.close()
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM work")) == 3

    def test_every_way_to_commit_is_refused(self, engine: Any) -> None:
        ways: list[Callable[[Session], Any]] = [
            lambda session: session.commit(),
            lambda session: session.get_transaction().commit(),
            lambda session: (session.begin_nested(), session.commit()),
            lambda session: (root := session.get_transaction(), session.begin_nested(), root.commit()),
            lambda session: session.connection().commit(),
            lambda session: session.connection().get_transaction().commit(),
            lambda session: session.execute(text("COMMIT")),
        ]
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        for way in ways:
            unit = units.begin()
            unit.provides[Session].execute(text("INSERT INTO work VALUES (1)"))
            with pytest.raises(Invalid, match="ended the transaction"):
                way(unit.provides[Session])
            unit.rollback()
            unit.close()
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM work")) == 0

    def test_what_others_write_when_the_session_commits_is_in_the_transaction(self, engine: Any) -> None:
        """Also after the last look at the transaction."""
        maker = sessionmaker(engine)
        event.listen(maker, "before_commit", lambda session: session.execute(text("INSERT INTO work VALUES (2)")))
        unit = SqlAlchemyUnitOfWork(maker).begin()
        unit.provides[Session].execute(text("INSERT INTO work VALUES (1)"))
        unit.commit()
        unit.close()
        with engine.connect() as connection:
            assert connection.scalars(text("SELECT n FROM work ORDER BY n")).all() == [1, 2]

    def test_a_flush_that_failed_is_no_end(self, engine: Any) -> None:
        """SQLAlchemy undoes the transaction by itself."""
        mapped = registry()

        @mapped.mapped
        class Row:
            __table__ = Table("work", MetaData(), Column("n", Integer, primary_key=True))

        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        for swallows in (False, True):
            unit = units.begin()
            session = unit.provides[Session]
            session.execute(insert(Row).values(n=1))
            session.add(Row(n=1))
            with pytest.raises(IntegrityError):
                session.flush()
            unit.check()
            if swallows:
                with pytest.raises(Invalid, match="let the error out"):
                    unit.commit()
            unit.rollback()
            unit.close()

    def test_a_second_database_is_refused_at_once(self, engine: Any, tmp_path: Path) -> None:
        mapped = registry()

        @mapped.mapped
        class Row:
            __table__ = Table("work", MetaData(), Column("n", Integer, primary_key=True))

        other = create_engine(f"sqlite:///{tmp_path}/other.db")
        mapped.metadata.create_all(other)
        Row.__table__.create(other)
        unit = SqlAlchemyUnitOfWork(sessionmaker(engine, binds={Row: other})).begin()
        session = unit.provides[Session]
        session.execute(text("INSERT INTO work VALUES (1)"))
        with pytest.raises(Invalid, match="two databases"):
            session.execute(insert(Row).values(n=1))
        with pytest.raises(Invalid, match="two databases"):
            unit.commit()
        unit.rollback()
        unit.close()
        for one in (engine, other):
            with one.connect() as connection:
                assert connection.scalar(text("SELECT count(*) FROM work")) == 0
        other.dispose()

    def test_connections_are_looked_at_each_time(self, tmp_path: Path) -> None:
        """What one user of a pool has set or left open is there for the next."""
        engine = create_engine(f"sqlite:///{tmp_path}/some.db", pool_size=1, max_overflow=0, pool_reset_on_return=None)
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        units.check(Place())
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA synchronous = OFF")
        with pytest.raises(Invalid, match="synchronous=0"):
            units.begin()
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
        unit = units.begin()
        unit.rollback()
        unit.close()
        driver = engine.raw_connection()
        driver.cursor().execute("BEGIN")
        driver.close()
        with pytest.raises(Invalid, match="not this unit's"):
            units.begin()
        engine.dispose()

    def test_engines_that_begin_by_themselves(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path}/some.db")
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        units.check(Place())
        unit = units.begin()
        unit.provides[Session].execute(text("CREATE TABLE work (n integer)"))
        unit.commit()
        unit.close()
        engine.dispose()
        auto = create_engine(f"sqlite:///{tmp_path}/some.db", isolation_level="AUTOCOMMIT")
        with pytest.raises(Invalid, match="AUTOCOMMIT"):
            SqlAlchemyUnitOfWork(sessionmaker(auto)).check(Place())
        auto.dispose()

    @POSTGRES
    def test_who_writes_at_the_last_moment_is_in_the_transaction_too(self) -> None:
        engine = create_engine(postgres_url())
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS last_moment"))
            connection.execute(text("CREATE TABLE last_moment (n xid8 DEFAULT pg_current_xact_id(), m integer)"))
        late = "INSERT INTO last_moment (m) VALUES (2)"
        event.listen(engine, "commit", lambda connection: connection.exec_driver_sql(late))
        unit = SqlAlchemyUnitOfWork(sessionmaker(engine)).begin()
        unit.provides[Session].execute(text("INSERT INTO last_moment (m) VALUES (1)"))
        unit.commit()
        unit.close()
        engine.dispose()
        with psycopg.connect(libpq(postgres_url())) as other:
            found = other.execute("SELECT count(*), count(DISTINCT n) FROM last_moment").fetchone()
        assert found == (2, 1)

    def test_nested_blocks_are_allowed(self, engine: Any) -> None:
        unit = SqlAlchemyUnitOfWork(sessionmaker(engine)).begin()
        session = unit.provides[Session]
        with session.begin_nested():
            session.execute(text("INSERT INTO work VALUES (1)"))
        with contextlib.suppress(RuntimeError), session.begin_nested():
            session.execute(text("INSERT INTO work VALUES (2)"))
            raise RuntimeError
        unit.commit()
        unit.close()
        with engine.connect() as connection:
            assert connection.scalars(text("SELECT n FROM work")).all() == [1]

    def test_a_savepoint_that_comes_first_is_not_committed_by_itself(self, engine: Any) -> None:
        """Python's sqlite3 begins no transaction for it, and its release would be the commit."""
        unit = SqlAlchemyUnitOfWork(sessionmaker(engine)).begin()
        session = unit.provides[Session]
        with session.begin_nested():
            session.execute(text("INSERT INTO work VALUES (1)"))
        unit.rollback()
        unit.close()
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM work")) == 0

    def test_failing_units_give_their_connections_back(self, engine: Any) -> None:
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        for number in range(200):
            unit = units.begin()
            unit.provides[Session].execute(text("INSERT INTO work VALUES (1)"))
            if number % 2:
                unit.provides[Session].close()
                with pytest.raises(Invalid):
                    unit.commit()
            unit.rollback()
            unit.close()
        assert engine.pool.checkedout() == 0

    def test_a_lock_is_an_error_and_no_answer(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path}/locked.db", connect_args={"timeout": 0.01})
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        first = units.begin()
        with pytest.raises(OperationalError, match="locked"):
            units.begin()
        first.rollback()
        first.close()
        second = units.begin()
        second.rollback()
        second.close()
        assert engine.pool.checkedout() == 0
        engine.dispose()

    def test_what_may_be_lost_is_refused(self, tmp_path: Path) -> None:
        def refused(engine: Any, match: str, place: str = "file:/data") -> None:
            with pytest.raises(Invalid, match=match):
                SqlAlchemyUnitOfWork(sessionmaker(engine)).check(Place(place))
            engine.dispose()

        refused(create_engine("sqlite://", poolclass=StaticPool), "in memory")
        refused(create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=StaticPool), "not shared")
        careless = create_engine(f"sqlite:///{tmp_path}/b.db")
        event.listen(careless, "connect", lambda driver, _: driver.execute("PRAGMA synchronous = OFF"))
        refused(careless, "synchronous=0")
        memory = create_engine("sqlite://", poolclass=StaticPool)
        SqlAlchemyUnitOfWork(sessionmaker(memory)).check(Place("memory:x"))
        memory.dispose()
        with pytest.raises(Invalid, match="bind=engine"):
            SqlAlchemyUnitOfWork(sessionmaker()).check(Place())
        with pytest.raises(Invalid, match="no session of SQLAlchemy"):
            SqlAlchemyUnitOfWork(lambda: "session").check(Place())

    def test_units_that_share_a_connection_are_refused(self) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        units.check(Place("memory:x"))
        first = units.begin()
        with pytest.raises(Invalid, match="share one connection"):
            units.begin()
        first.rollback()
        first.close()
        engine.dispose()

    @POSTGRES
    def test_on_postgres(self) -> None:
        engine = create_engine(postgres_url(), isolation_level="AUTOCOMMIT")
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        with pytest.raises(Invalid, match="AUTOCOMMIT"):
            units.check(Place())
        engine.dispose()
        engine = create_engine(postgres_url())
        units = SqlAlchemyUnitOfWork(sessionmaker(engine))
        units.check(Place())
        assert units.place == f"postgresql://127.0.0.1:{engine.url.port}/{engine.url.database}"
        unit = units.begin()
        connection = unit.provides[Session].connection()
        own = connection.scalar(text("SELECT pg_backend_pid()"))
        with psycopg.connect(libpq(postgres_url())) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [own])
        with pytest.raises(OutcomeUnknown):
            unit.commit()
        unit.rollback()
        unit.close()
        assert engine.pool.checkedout() == 0
        engine.dispose()


# -- drivers ----------------------------------------------------------------------------------------------------


class TestDrivers:
    def test_connections_are_provided_by_name_and_class(self, tmp_path: Path) -> None:
        units = DbApiUnitOfWork(lambda: sqlite3.connect(tmp_path / "some.db"))
        assert units.provided == {"connection", sqlite3.Connection}
        assert units.place == f"sqlite:///{tmp_path.resolve()}/some.db"
        units.check(Place())
        with pytest.raises(Invalid, match="in memory"):
            DbApiUnitOfWork(lambda: sqlite3.connect(":memory:")).check(Place())
        with pytest.raises(Invalid, match="and not a str"):
            DbApiUnitOfWork(lambda: "connection").check(Place())

    @pytest.mark.parametrize("level", ["", None, "IMMEDIATE"])
    def test_a_context_manager_keeps_its_connection(self, tmp_path: Path, level: Any) -> None:
        connection = sqlite3.connect(tmp_path / "some.db", isolation_level=level)
        connection.execute("CREATE TABLE work (n integer)")
        used = []

        @contextlib.contextmanager
        def borrowed() -> Iterator[sqlite3.Connection]:
            used.append(1)
            yield connection
            used.append(-1)

        units = DbApiUnitOfWork(borrowed)
        units.check(Place())
        for number in range(3):
            unit = units.begin()
            connection.execute("INSERT INTO work VALUES (?)", [number])
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                connection.commit() if number else connection.execute("COMMIT")
            if number == 1:
                with pytest.raises(Invalid, match="ended the transaction"):
                    unit.commit()
            unit.rollback()
            unit.close()
        assert sum(used) == 0
        assert not connection.in_transaction
        connection.execute("INSERT INTO work VALUES (9)")
        connection.commit()  # the authorizer is gone
        assert connection.execute("SELECT n FROM work").fetchall() == [(9,)]
        connection.close()

    def test_a_transaction_that_sqlite_has_rolled_back_is_found(self, tmp_path: Path) -> None:
        units = DbApiUnitOfWork(lambda: sqlite3.connect(tmp_path / "some.db"))
        unit = units.begin()
        unit.provides["connection"].execute("CREATE TABLE work (n integer PRIMARY KEY)")
        unit.commit()
        unit.close()
        unit = units.begin()
        connection = unit.provides["connection"]
        connection.execute("INSERT INTO work VALUES (1)")
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO work VALUES (1)")
        connection.execute("INSERT INTO work VALUES (2)")
        with pytest.raises(Invalid, match="ended the transaction"):
            unit.commit()
        unit.rollback()
        unit.close()

    def test_a_full_disk_is_no_end(self, tmp_path: Path) -> None:
        """SQLite may undo a transaction by itself. Nothing of it is committed, and it is tried again."""
        connection = sqlite3.connect(tmp_path / "some.db")
        connection.execute("CREATE TABLE work (n integer PRIMARY KEY)")
        unit = DbApiUnitOfWork(lambda: contextlib.nullcontext(connection)).begin()
        connection.execute("INSERT INTO work VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO work VALUES (1)")
        assert not connection.in_transaction
        unit.rollback()
        unit.close()
        assert connection.execute("SELECT * FROM work").fetchall() == []
        connection.close()

    def test_settings_of_a_connection_are_looked_at_each_time(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "some.db")
        units = DbApiUnitOfWork(lambda: contextlib.nullcontext(connection))
        units.check(Place())
        connection.execute("PRAGMA synchronous = NORMAL")
        with pytest.raises(Invalid, match="synchronous=1"):
            units.begin()
        assert not connection.in_transaction
        connection.close()

    @POSTGRES
    def test_a_connection_that_prepares_everything(self) -> None:
        """psycopg cannot prepare several commands in one text."""
        with psycopg.connect(libpq(postgres_url()), prepare_threshold=0) as connection:
            units = DbApiUnitOfWork(lambda: contextlib.nullcontext(connection))
            for ends in ("commit", "rollback"):
                unit = units.begin()
                getattr(unit, ends)()
                unit.close()
        engine = create_engine(postgres_url(), connect_args={"prepare_threshold": 0})
        unit = SqlAlchemyUnitOfWork(sessionmaker(engine)).begin()
        unit.provides[Session].execute(text("SELECT 1"))
        unit.commit()
        unit.close()
        engine.dispose()

    @POSTGRES
    def test_a_transaction_of_somebody_else_is_left_alone(self) -> None:
        with psycopg.connect(libpq(postgres_url())) as connection:
            connection.execute("SELECT 1")
            with pytest.raises(Invalid, match="not this unit's"):
                DbApiUnitOfWork(lambda: contextlib.nullcontext(connection)).begin()
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def test_a_connection_in_a_transaction_is_refused(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "some.db")
        connection.execute("BEGIN")
        with pytest.raises(Invalid, match="already"):
            DbApiUnitOfWork(lambda: contextlib.nullcontext(connection)).begin()
        connection.close()

    @POSTGRES
    @pytest.mark.parametrize("autocommit", [False, True])
    def test_a_pool_of_psycopg_gets_its_connection_back(self, autocommit: bool) -> None:
        with psycopg.connect(libpq(postgres_url()), autocommit=autocommit) as connection:
            units = DbApiUnitOfWork(lambda: contextlib.nullcontext(connection))
            for number in range(200):
                unit = units.begin()
                with contextlib.suppress(psycopg.Error):
                    connection.execute("SELECT 1 FROM nowhere")
                if number % 2:
                    with pytest.raises(Invalid, match="ended the transaction"):
                        connection.commit()
                with pytest.raises(Invalid, match="ended the transaction" if number % 2 else "let the error out"):
                    unit.commit()
                unit.rollback()
                unit.close()
                assert connection.info.transaction_status == 0
            unit = units.begin()
            with connection.transaction():
                connection.execute("SELECT 1")
            unit.commit()
            unit.close()
            connection.commit()

    def test_sqlite_needs_no_sqlalchemy(self, tmp_path: Path) -> None:
        code = f"""
            import sqlite3, sys
            sys.modules["sqlalchemy"] = sys.modules["psycopg"] = None
            from detent.bus.outbox_sql import SqlOutbox
            from detent.bus.tracker_sql import SqlTracker
            from detent.bus.unit_dbapi import DbApiUnitOfWork
            unit = DbApiUnitOfWork(lambda: sqlite3.connect({str(tmp_path / "some.db")!r})).begin()
            SqlTracker().prepare("billing", "queue billing", unit)
            SqlOutbox().prepare(unit)
            print(SqlTracker().track("billing", "1", unit), SqlTracker().track("billing", "1", unit))
            unit.commit()
            unit.close()
        """
        assert _python(code) == "True False"


def _python(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


# -- Django -----------------------------------------------------------------------------------------------------

DJANGO = """
    import sqlite3
    from django.conf import settings
    settings.configure(DATABASES={{"default": {database}}}, USE_TZ=True)
    import django
    django.setup()
    from django.db import connection, transaction
    from detent.bus.outbox_sql import SqlOutbox
    from detent.bus.tracker_sql import SqlTracker
    from detent.bus.unit_django import DjangoUnitOfWork
    from detent.bus.messages import Envelope
    from detent.bus.unit_of_work import TransactionEnded
    from detent.errors import Invalid
    if "postgresql" in {database}["ENGINE"]:
        from psycopg import sql

    class Place:
        place = "file:/data"

    units = DjangoUnitOfWork()
    units.check(Place())
    tracker, outbox = SqlTracker("django_handled"), SqlOutbox("django_outbox")

    def execute(statement):
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def handle(message, work, sends=True):
        unit = units.begin()
        try:
            is_new = tracker.track("billing", message, unit)
            if is_new:
                work()
                if sends:
                    outbox.save(unit, [Envelope(message, "queue:a", {{"a": "100%"}}, b"%s", None)])
            unit.commit()
            return is_new
        except BaseException:
            unit.rollback()
            raise
        finally:
            unit.close()

    def refused(message, work, match):
        try:
            handle(message, work, sends=False)
        except Invalid as error:
            assert match in str(error), error
        else:
            raise AssertionError(match)

    unit = units.begin()
    tracker.prepare("billing", "queue billing", unit)
    outbox.prepare(unit)
    execute("CREATE TABLE django_work (n integer PRIMARY KEY)")
    unit.commit()
    unit.close()

    insert = lambda: execute("INSERT INTO django_work VALUES (1)")

    def fail():
        insert()
        raise RuntimeError

    def swallowed():
        insert()
        try:
            insert()
        except Exception:
            pass

    def inner():
        insert()
        try:
            with transaction.atomic(savepoint=False):
                insert()
        except Exception:
            pass

    try:
        handle("1", fail)
    except RuntimeError:
        pass
    refused("1", lambda: (insert(), execute("COMMIT")), "ended the transaction")
    refused("1", inner, "let the error out")
    handle("behind", lambda: execute("DELETE FROM django_work"), sends=False)
    for number, fails in enumerate((False, True)):
        def behind():
            insert()
            if connection.vendor == "postgresql":
                execute(sql.SQL("SELECT 1; COMMIT"))
            else:
                connection.connection.execute("COMMIT")
            if fails:
                raise RuntimeError
        try:
            handle(f"ended {{number}}", behind, sends=False)
            raise AssertionError
        except TransactionEnded:
            pass
        assert execute(f"DELETE FROM django_work RETURNING n") == [(1,)]
    unit = units.begin()
    unit.check()
    connection.connection.execute("COMMIT")
    try:
        unit.check()
        raise AssertionError
    except TransactionEnded:
        pass
    try:
        unit.rollback()
        raise AssertionError
    except TransactionEnded:
        pass
    unit.close()
    refused("1", lambda: connection.close(), "{closed}")
    if connection.vendor == "postgresql":
        try:
            handle("1", swallowed, sends=False)
            raise AssertionError
        except Exception as error:
            assert "aborted" in str(error) or "let the error out" in str(error), error
    try:
        handle("1", lambda: (insert(), connection.commit()))
        raise AssertionError
    except transaction.TransactionManagementError:
        pass
    assert execute("SELECT * FROM django_work") == []
    assert handle("1", insert) and not handle("1", insert)
    unit = units.begin()
    claim = outbox.claim(unit, 10, 30.0, 0.0)
    outbox.sent(unit, claim, [one.position for one in claim.pending])
    unit.commit()
    unit.close()
    assert claim.pending[0].envelope.headers == {{"a": "100%"}}
    print(execute("SELECT * FROM django_work"), connection.in_atomic_block, units.place)
"""


class TestDjango:
    def test_on_sqlite(self, tmp_path: Path) -> None:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "some.db")}
        found = _python(DJANGO.format(database=database, closed="ended the transaction"))
        assert found == f"[(1,)] False sqlite:///{tmp_path.resolve()}/some.db"

    @POSTGRES
    def test_on_postgres(self) -> None:
        from sqlalchemy import make_url

        url = make_url(postgres_url())
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username,
            "HOST": url.host,
            "PORT": url.port,
        }
        found = _python(DJANGO.format(database=database, closed="ended the transaction"))
        assert found == f"[(1,)] False postgresql://{url.host}:{url.port}/{url.database}"


# -- ports ------------------------------------------------------------------------------------------------------


def test_what_sql_cannot_be_spoken_on_is_refused() -> None:
    with pytest.raises(Invalid, match=r"psycopg\.AsyncConnection, or a connection of Django"):
        port_of("a connection")


def test_a_session_without_a_database_is_refused() -> None:
    with pytest.raises(Invalid, match="bind=engine"):
        port_of(Session())


def test_a_port_of_a_row_factory_answers_rows(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "some.db")
    connection.row_factory = lambda *_: "row"
    connection.text_factory = bytes
    assert port_of(connection).execute("SELECT :a, 'b'", {"a": 1}) == [(1, "b")]
    assert connection.text_factory is bytes
    DbApiUnitOfWork(lambda: contextlib.nullcontext(connection)).check(Place())
    connection.close()


def test_nobody_guesses_the_name_of_a_guard() -> None:
    memory: dict[Any, Any] = {}
    assert guard_of(memory) is guard_of(memory)
    assert guard_of(memory).set != guard_of({}).set


class ServerError(Exception):
    """As drivers for PostgreSQL have them."""

    def __init__(self, state: str) -> None:
        self.sqlstate = state


@pytest.mark.parametrize(
    ("state", "raised"),
    [("40001", ServerError), ("40P01", ServerError), ("23503", ServerError), ("57P01", OutcomeUnknown)],
)
def test_what_a_server_has_refused_is_not_unknown(state: str, raised: type[Exception]) -> None:
    with pytest.raises(raised), committing():
        raise ServerError(state)


@pytest.mark.parametrize(
    "statement",
    ["commit", "  COMMIT;", "/* x */ end", "-- x\nrollback", "ABORT", ";rollback", "COMMIT; SET search_path TO x"],
)
def test_endings_are_known(statement: str) -> None:
    assert ends_transaction(statement)


@pytest.mark.parametrize("statement", ["ROLLBACK TO SAVEPOINT a", "rollback to a", "SELECT 'commit'", "", "-- commit"])
def test_what_is_no_ending_is_not_taken_for_one(statement: str) -> None:
    assert not ends_transaction(statement)
