"""State in an SQL database: fences on a real PostgreSQL and on SQLite, and whoever comes in the way.

The hazards have their names from the list that Detent is tested against. H6: a restore that reads before it raises the
fence goes on from a checkpoint that was replaced. H7: transactions that overlap read what the one before has not yet
written, and an update is lost. H8: a commit that hides that it was fenced has its messages acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool, StaticPool

import postgresserver
from detent import crash
from detent.errors import Fenced, Invalid, OutcomeUnknown, Unavailable
from detent.runtime.backoff import Backoff
from detent.sql import databases, transactions
from detent.state import sql
from detent.state.base import ShardName, State
from detent.state.sql import SqlHandle, SqlShard, SqlState
from processes import Io, Processes, eventually
from statecontract import StateContract, at_once, numbered

SHARD = ShardName("totals", 0)
STORE: Any = None
"""The consumer's store, which this kind of state has no use for."""

POSTGRES = pytest.mark.xdist_group("postgres")
EITHER = ["sqlite", pytest.param("postgresql", marks=POSTGRES)]

CREATE = "CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
PUT = "INSERT INTO totals (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
GET = "SELECT value FROM totals WHERE name = :name"
FENCE = "SELECT fence FROM detent_shards WHERE shard = 0"


@pytest.fixture(autouse=True)
def count_fences_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tests can say which fence is expected; they begin at random otherwise."""
    monkeypatch.setattr(sql, "_FENCE_BITS", 0)


class Database:
    """A database with a table of the application's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.states: list[SqlState] = []
        self.execute(CREATE)

    def state(self, engine: Callable[[], Engine] | None = None) -> SqlState:
        self.states.append(SqlState(engine or self.url))
        return self.states[-1]

    def shard(self, engine: Callable[[], Engine] | None = None, *, shard: int = 0) -> SqlShard:
        """As a process of its own has it; restored."""
        found = self.state(engine).open(STORE, ShardName("totals", shard))
        found.restore()
        return found

    def execute(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, seen by somebody else."""
        engine = sqlalchemy.create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            answer = connection.execute(sqlalchemy.text(statement), parameters)
            return answer.scalar() if answer.returns_rows else None

    def value(self, name: str) -> int | None:
        found: int | None = self.execute(GET, name=name)
        return found

    def close(self) -> None:
        for state in self.states:
            state.close()


@pytest.fixture(params=EITHER)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    found = Database(postgresserver.new_database() if request.param == "postgresql" else f"sqlite:///{tmp_path}/s.db")
    yield found
    found.close()


@pytest.fixture
def postgres() -> Iterator[Database]:
    found = Database(postgresserver.new_database())
    yield found
    found.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    found = Database(f"sqlite:///{tmp_path}/s.db")
    yield found
    found.close()


def put(handle: SqlHandle, name: str, value: int) -> None:
    handle.execute(PUT, {"name": name, "value": value})


def commit(shard: SqlShard, transaction: int, **values: int) -> None:
    """A whole transaction."""
    handle = shard.begin(at_once)
    for name, value in values.items():
        put(handle, name, value)
    shard.commit(shard.seal(handle), numbered(transaction), [])


def pause_at(monkeypatch: pytest.MonkeyPatch, point: str, then: Callable[[], object]) -> None:
    """Have something happen at a crash point, the first time it is reached."""
    pending = [then]

    def reached(name: str) -> None:
        if name == point and pending:
            pending.pop()()

    monkeypatch.setattr(crash, "point", reached)


class Waits:
    """Somebody who waits in another thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.answer: Future[Any] = self._pool.submit(call)
        self._pool.shutdown(wait=False)

    def is_waiting(self, seconds: float = 0.3) -> bool:
        """Whether it has no answer, after some time."""
        time.sleep(seconds)
        return not self.answer.done()


# -- the contract -----------------------------------------------------------------------------------------------


class SqlContract(StateContract):
    @pytest.fixture
    def store(self) -> Any:
        return STORE

    def put(self, handle: Any, key: str, value: int) -> None:
        put(handle, key, value)

    def get(self, handle: Any, key: str) -> int | None:
        found: int | None = handle.scalar(GET, {"name": key})
        return found


@POSTGRES
class TestPostgres(SqlContract):
    @pytest.fixture
    def make_state(self, postgres: Database) -> Callable[[], State]:
        return lambda: SqlState(postgres.url)


@POSTGRES
class TestEngineOfTheUsersOnPostgres(SqlContract):
    @pytest.fixture
    def make_state(self, postgres: Database) -> Callable[[], State]:
        return lambda: SqlState(lambda: sqlalchemy.create_engine(postgres.url), table="public.my_shards")


class TestSqlite(SqlContract):
    excludes_while_used = True

    @pytest.fixture
    def make_state(self, sqlite: Database) -> Callable[[], State]:
        return lambda: SqlState(sqlite.url)


class TestEngineOfTheUsersOnSqlite(SqlContract):
    excludes_while_used = True

    @pytest.fixture
    def make_state(self, sqlite: Database) -> Callable[[], State]:
        return lambda: SqlState(lambda: sqlalchemy.create_engine(sqlite.url), table="my_shards")


# -- two processes at one row -----------------------------------------------------------------------------------


@POSTGRES
class TestRaces:
    """What PostgreSQL does when a zombie and its successor meet."""

    def test_a_zombie_that_commits_after_the_restore_changes_no_row_and_is_told(self, postgres: Database) -> None:
        """H8: no row is changed, which PostgreSQL finds no error: it would commit the rest."""
        zombie = postgres.shard()
        commit(zombie, 1, a=5)
        handle = zombie.begin(at_once)
        put(handle, "a", 6)
        successor = postgres.state().open(STORE, SHARD)
        assert successor.restore() == numbered(1)
        with pytest.raises(Fenced, match="restored the shard totals/0 since"):
            zombie.commit(zombie.seal(handle), numbered(2), [])
        assert (postgres.value("a"), postgres.execute(FENCE)) == (5, 2)
        with pytest.raises(Invalid, match="restore it first"):
            zombie.begin(at_once)

    def test_a_restore_waits_for_a_commit_in_flight_and_goes_on_from_it(
        self, postgres: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H6: the zombie has written its checkpoint and not committed. Who had read before raising the fence would have
        the checkpoint of before, although this one is committed a moment later."""
        zombie, successor = postgres.shard(), postgres.state()
        successor.database()
        commit(zombie, 1, a=5)
        restored: list[Waits] = []

        def restore() -> None:
            restored.append(Waits(successor.open(STORE, SHARD).restore))
            assert restored[0].is_waiting(), "the fence went past a commit in flight"

        pause_at(monkeypatch, "state.sql.before_commit", restore)
        commit(zombie, 2, a=6)
        assert restored[0].answer.result(30) == numbered(2)
        assert postgres.value("a") == 6
        with pytest.raises(Fenced):
            commit(zombie, 3, a=7)

    def test_the_fence_is_raised_before_the_checkpoint_is_read(
        self, postgres: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H6, from the other side: the restore has raised the fence, and the zombie comes with its checkpoint. It has
        to wait, and to fail; a restore that reads first lets it through."""
        zombie, successor = postgres.shard(), postgres.state().open(STORE, SHARD)
        commit(zombie, 1, a=5)
        handle = zombie.begin(at_once)
        put(handle, "a", 6)
        committed: list[Waits] = []

        def zombie_commits() -> None:
            sealed = zombie.seal(handle)
            committed.append(Waits(lambda: zombie.commit(sealed, numbered(2), [])))
            assert committed[0].is_waiting(), "nothing held the zombie up"

        pause_at(monkeypatch, "state.sql.after_fence", zombie_commits)
        assert successor.restore() == numbered(1)
        with pytest.raises(Fenced):
            committed[0].answer.result(30)
        assert postgres.value("a") == 5

    def test_the_statements_of_a_restore_come_in_their_order(self, postgres: Database) -> None:
        """H6, to the letter."""
        engine = sqlalchemy.create_engine(postgres.url)
        postgres.shard(lambda: engine)
        statements: list[str] = []

        @event.listens_for(engine, "before_cursor_execute")
        def _executing(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement.split(maxsplit=1)[0])

        postgres.shard(lambda: engine)
        assert [word for word in statements if word in {"UPDATE", "INSERT", "SELECT"}][-2:] == ["UPDATE", "SELECT"]

    def test_a_restore_under_repeatable_read_is_tried_again(
        self, postgres: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits for the zombie's commit, and then PostgreSQL refuses it: its snapshot is of before."""
        failures: list[str] = []

        def strict() -> Engine:
            engine = sqlalchemy.create_engine(postgres.url, isolation_level="REPEATABLE READ")

            @event.listens_for(engine, "handle_error")
            def _failed(context: Any) -> None:
                failures.append(context.original_exception.sqlstate)

            return engine

        zombie, successor = postgres.shard(), postgres.state(strict)
        successor.database()
        commit(zombie, 1, a=5)
        restored: list[Waits] = []

        def restore() -> None:
            restored.append(Waits(successor.open(STORE, SHARD).restore))
            assert restored[0].is_waiting()

        pause_at(monkeypatch, "state.sql.before_commit", restore)
        commit(zombie, 2, a=6)
        assert restored[0].answer.result(30) == numbered(2)
        assert failures == ["40001"], "nobody was refused, so nothing was tried"

    def test_read_modify_write_over_transactions_that_overlap_loses_nothing(self, postgres: Database) -> None:
        """H7: 5, and 1 more in each of two transactions. The second one reads while the first commits; without
        waiting it would read 5, and the sum would be 6."""
        shard = postgres.shard()
        commit(shard, 1, a=5)
        committed = threading.Event()
        first = shard.begin(at_once)
        put(first, "a", first.scalar(GET, {"name": "a"}) + 1)
        sealed = shard.seal(first)
        second = shard.begin(lambda: _wait(committed))
        seen = Waits(lambda: second.scalar(GET, {"name": "a"}))
        assert seen.is_waiting(), "the second transaction read before the first had committed"
        shard.commit(sealed, numbered(2), [])
        committed.set()
        put(second, "a", seen.answer.result(30) + 1)
        shard.commit(shard.seal(second), numbered(3), [])
        assert postgres.value("a") == 7

    def test_arithmetic_of_the_database_over_transactions_that_overlap_loses_nothing(self, postgres: Database) -> None:
        """H7, where the row's lock does the waiting: the second transaction does not ask whether the first settled."""
        shard = postgres.shard()
        commit(shard, 1, a=5)
        add = "UPDATE totals SET value = value + 1 WHERE name = 'a'"
        first = shard.begin(at_once)
        first.execute(add)
        sealed = shard.seal(first)
        second = shard.begin(at_once)
        added = Waits(lambda: second.execute(add))
        assert added.is_waiting(), "the second transaction wrote past the first"
        shard.commit(sealed, numbered(2), [])
        added.answer.result(30)
        shard.commit(shard.seal(second), numbered(3), [])
        assert postgres.value("a") == 7

    def test_a_fence_raised_by_hand_is_a_fence(self, postgres: Database) -> None:
        shard = postgres.shard()
        commit(shard, 1, a=5)
        postgres.execute("UPDATE detent_shards SET fence = fence + 1")
        with pytest.raises(Fenced):
            commit(shard, 2, a=6)
        assert postgres.value("a") == 5


def _wait(committed: threading.Event) -> None:
    assert committed.wait(60)


def test_many_that_restore_a_new_shard_at_once_get_fences_of_their_own(database: Database) -> None:
    """The first row of a shard is entered by one; the others lose that race, and raise its fence."""
    barrier = threading.Barrier(6)
    shards = [database.state().open(STORE, SHARD) for _ in range(6)]

    def restore(shard: SqlShard) -> None:
        barrier.wait()
        assert shard.restore() is None

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(restore, shards))
    assert database.execute(FENCE) == 6
    outcomes = []
    for shard in shards:
        try:
            commit(shard, 1, a=1)
            outcomes.append("committed")
        except Fenced:
            outcomes.append("fenced")
    assert sorted(outcomes) == ["committed"] + ["fenced"] * 5


# -- the handle -------------------------------------------------------------------------------------------------


def test_the_rows_of_the_application_and_the_checkpoint_are_one_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = database.shard()
    seen: list[Any] = []

    def look() -> None:
        seen.append((database.value("a"), database.execute("SELECT transactions FROM detent_shards")))

    pause_at(monkeypatch, "state.sql.before_commit", look)
    commit(shard, 1, a=5)
    look()
    assert seen == [(None, 0), (5, 1)]


def test_what_the_database_refuses_is_raised_and_leaves_nothing(database: Database) -> None:
    shard = database.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    put(handle, "b", 1)
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        handle.execute("INSERT INTO totals VALUES ('a', 1)")
    shard.discard(handle)
    assert (database.value("a"), database.value("b")) == (5, None)
    commit(shard, 2, b=2)
    assert database.value("b") == 2


def test_a_statement_of_which_nobody_knows_the_table_is_no_passing_failure(database: Database) -> None:
    shard = database.shard()
    handle = shard.begin(at_once)
    with pytest.raises((sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.OperationalError), match="nowhere"):
        handle.execute("SELECT 1 FROM nowhere")
    shard.discard(handle)


@POSTGRES
def test_an_error_that_the_application_swallowed_does_not_become_a_commit_of_nothing(postgres: Database) -> None:
    """H8: PostgreSQL answers the COMMIT of a transaction in which something failed with a ROLLBACK, and no error."""
    shard = postgres.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    with contextlib.suppress(sqlalchemy.exc.IntegrityError):
        handle.execute("INSERT INTO totals VALUES ('a', 1)")
    with pytest.raises(Invalid, match="begin_nested"):
        shard.commit(shard.seal(handle), numbered(2), [])
    assert postgres.state().open(STORE, SHARD).restore() == numbered(1)


def test_an_error_within_a_savepoint_is_the_applications_own_business(database: Database) -> None:
    shard = database.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    with pytest.raises(sqlalchemy.exc.IntegrityError), handle.connection.begin_nested():
        put(handle, "b", 1)
        handle.execute("INSERT INTO totals VALUES ('a', 1)")
    put(handle, "c", 2)
    shard.commit(shard.seal(handle), numbered(2), [])
    assert (database.value("a"), database.value("b"), database.value("c")) == (5, None, 2)


ENDINGS: dict[str, Callable[[SqlHandle], object]] = {
    "commit": lambda handle: handle.connection.commit(),
    "commit in text": lambda handle: handle.execute(" commit;"),
    "end in text": lambda handle: handle.execute("END"),
    "rollback": lambda handle: handle.connection.rollback(),
    "rollback in text": lambda handle: handle.execute("ROLLBACK"),
    "close": lambda handle: handle.connection.close(),
    "transaction's commit": lambda handle: handle.connection.get_transaction().commit(),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_application_that_ends_the_transaction_itself_is_told(
    database: Database, ending: str, goes_on: bool
) -> None:
    """Also if it takes no notice, and if it goes on in a transaction of its own making."""
    shard = database.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    put(handle, "a", 6)
    connection = handle.connection
    with contextlib.suppress(Invalid, sqlalchemy.exc.ResourceClosedError):
        ENDINGS[ending](handle)
        if goes_on:
            connection.execute(sqlalchemy.text(PUT), {"name": "b", "value": 1})
    if "in text" not in ending:
        with pytest.raises(Invalid, match="ended the transaction"):
            shard.seal(handle)
    shard.discard(handle)
    assert (database.value("a"), database.value("b")) == (5, None)
    assert database.state().open(STORE, SHARD).restore() == numbered(1)


@pytest.mark.parametrize("ending", [name for name in ENDINGS if "commit" in name or "text" in name])
def test_what_would_end_the_transaction_is_refused_where_it_stands(database: Database, ending: str) -> None:
    shard = database.shard()
    handle = shard.begin(at_once)
    put(handle, "a", 6)
    with pytest.raises(Invalid, match="ended the transaction"):
        ENDINGS[ending](handle)
    shard.discard(handle)


class Base(DeclarativeBase):
    pass


class Total(Base):
    __tablename__ = "totals"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int]


def test_a_session_is_a_part_of_the_transaction(database: Database) -> None:
    shard = database.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    session = handle.session()
    assert handle.session() is session
    found = session.get_one(Total, "a")
    found.value += 1
    session.commit()
    assert database.value("a") == 5, "a session's commit is none"
    session.add(Total(name="b", value=1))
    session.flush()
    session.rollback()
    session.add(Total(name="c", value=2))  # neither flushed nor committed
    shard.commit(shard.seal(handle), numbered(2), [])
    assert (database.value("a"), database.value("b"), database.value("c")) == (6, None, 2)


def test_a_session_is_discarded_with_its_transaction(database: Database) -> None:
    shard = database.shard()
    handle = shard.begin(at_once)
    handle.session().add(Total(name="a", value=1))
    handle.session().commit()
    shard.discard(handle)
    assert database.value("a") is None
    commit(shard, 1, a=2)


def test_what_has_ended_cannot_be_used(database: Database) -> None:
    shard = database.shard()
    for end in (shard.seal, shard.discard):
        handle = shard.begin(at_once)
        put(handle, "a", 1)
        end(handle)
        for use in (lambda handle: handle.connection, lambda handle: handle.session(), shard.seal):
            with pytest.raises(Invalid, match="has ended"):
                use(handle)
        shard.discard(handle)
    assert database.value("a") is None


def test_a_state_that_is_not_used_opens_nothing_until_the_commit(database: Database) -> None:
    shard = database.shard()

    def never() -> None:
        raise AssertionError("nobody asked for the state")

    shard.commit(shard.seal(shard.begin(never)), numbered(1), [])
    assert database.state().open(STORE, SHARD).restore() == numbered(1)


def test_a_state_is_not_shown_after_a_transaction_that_could_not_commit(database: Database) -> None:
    shard = database.shard()

    def failed() -> None:
        raise Fenced("the one before")

    handle = shard.begin(failed)
    for _ in range(2):
        with pytest.raises(Fenced, match="the one before"):
            handle.execute("SELECT 1")
    shard.discard(handle)


def test_threads_that_use_a_new_handle_at_once_share_its_transaction(database: Database) -> None:
    shard = database.shard()
    handle = shard.begin(lambda: time.sleep(0.05))
    with ThreadPoolExecutor(4) as pool:
        assert len({id(found) for found in pool.map(lambda _: handle.connection, range(4))}) == 1
    shard.discard(handle)


def test_operations_of_a_store_are_refused(database: Database) -> None:
    shard = database.shard()
    assert not shard.takes_outputs
    handle = shard.begin(at_once)
    with pytest.raises(Invalid, match="operations of a store"):
        shard.commit(shard.seal(handle), numbered(1), [object()])  # type: ignore[list-item]
    shard.discard(handle)


@pytest.mark.parametrize("is_own", [False, True])
def test_shards_of_sqlite_take_turns_from_their_first_reading(sqlite: Database, is_own: bool) -> None:
    """Who has read and then finds that another has written cannot write any more."""
    engine = (lambda: sqlalchemy.create_engine(sqlite.url)) if is_own else None
    first, second = sqlite.shard(engine, shard=0), sqlite.shard(engine, shard=1)
    handle = first.begin(at_once)
    assert handle.scalar(GET, {"name": "b"}) is None
    other = Waits(lambda: commit(second, 1, b=2))
    assert other.is_waiting()
    put(handle, "a", 1)
    first.commit(first.seal(handle), numbered(1), [])
    other.answer.result(30)
    assert (sqlite.value("a"), sqlite.value("b")) == (1, 2)


def test_a_lock_that_nobody_gives_back_is_unavailable(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "BUSY_MS", 50)
    monkeypatch.setattr(transactions, "RETRY", Backoff(0.0, 0.0))
    first, second = sqlite.shard(shard=0), sqlite.shard(shard=1)
    handle = first.begin(at_once)
    put(handle, "a", 1)
    waiting = second.begin(at_once)
    with pytest.raises(Unavailable):
        put(waiting, "b", 2)
    with pytest.raises(Unavailable):
        second.commit(second.seal(waiting), numbered(1), [])
    with pytest.raises(Unavailable):
        second.restore()
    first.discard(handle)
    assert second.restore() is None


def test_a_connection_is_given_back_whatever_happens(database: Database) -> None:
    engine = sqlalchemy.create_engine(database.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    shard = database.shard(lambda: engine)
    commit(shard, 1, a=1)
    shard.discard(shard.begin(at_once))
    handle = shard.begin(at_once)
    put(handle, "a", 2)
    with pytest.raises(Unavailable, match="no connection left"):
        shard.begin(at_once).execute("SELECT 1")
    shard.discard(handle)
    database.shard(lambda: engine)
    with pytest.raises(Fenced):
        commit(shard, 2, a=3)
    shard.restore()
    put(shard.begin(at_once), "a", 4)
    shard.close()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


# -- engines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("shards.db", "sqlite:///shards.db"),
        ("sqlite://", "needs a file"),
        ("mysql://root:secret@localhost/shop", "not in mysql"),
        ("postgresql+asyncpg://user:secret@localhost/shop", "async"),
        (17, "URL of a database"),
    ],
)
def test_only_a_database_that_keeps_state_is_taken_and_no_password_is_shown(wrong: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why) as failure:
        SqlState(wrong)
    assert "secret" not in str(failure.value)


def _autocommit(url: str) -> Engine:
    return sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")


@POSTGRES
def test_an_engine_that_commits_each_statement_is_refused(postgres: Database) -> None:
    with pytest.raises(Invalid, match="AUTOCOMMIT"):
        postgres.shard(lambda: _autocommit(postgres.url))


def test_engines_whose_commits_could_be_lost_are_refused(sqlite: Database) -> None:
    def careless(pragma: str) -> Engine:
        engine = sqlalchemy.create_engine(sqlite.url)

        @event.listens_for(engine, "connect")
        def _connected(connection: Any, _record: Any) -> None:
            connection.isolation_level = None
            connection.execute(pragma)

        @event.listens_for(engine, "begin")
        def _began(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

        return engine

    engines: dict[str, Callable[[], Any]] = {
        "in memory": lambda: sqlalchemy.create_engine("sqlite://", poolclass=NullPool),
        "StaticPool": lambda: sqlalchemy.create_engine(sqlite.url, poolclass=StaticPool),
        "journal_mode=memory": lambda: careless("PRAGMA journal_mode = MEMORY"),
        "got str": lambda: sqlite.url,
    }
    for why, make in engines.items():
        with pytest.raises(Invalid, match=why):
            sqlite.shard(make)
    shard = sqlite.shard(lambda: careless("PRAGMA synchronous = OFF"))
    handle = shard.begin(at_once)
    assert handle.scalar("PRAGMA synchronous") == 2, "what can be set right is not refused"
    shard.discard(handle)
    commit(shard, 1, a=1)
    assert sqlite.value("a") == 1


def test_an_engine_of_the_users_own_is_durable_here_and_left_alone_elsewhere(database: Database) -> None:
    engine = sqlalchemy.create_engine(database.url)
    is_sqlite = engine.dialect.name == "sqlite"

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF" if is_sqlite else "SET synchronous_commit = off")
        connection.commit()

    shard = database.shard(lambda: engine)
    handle = shard.begin(at_once)
    put(handle, "a", 1)
    shard.seal(handle)
    connection = handle.ready()
    shard._advance(connection, numbered(1), 1)
    if is_sqlite:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    else:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    shard.discard(handle)
    assert not event.contains(engine, "begin", databases._begin_sqlite)
    engine.dispose()


def in_child_process(io: Io, url: str, point: str) -> None:
    """Restore, commit once, and commit again with a crash point armed."""
    sql._FENCE_BITS = 0
    shard = SqlState(url).open(STORE, SHARD)
    shard.restore()
    commit(shard, 1, a=1)
    io.say("committed")
    crash.arm(point)
    if "commit" in point:
        commit(shard, 2, a=2)
    else:
        shard.restore()


@pytest.mark.parametrize(
    ("point", "transaction", "fence"),
    [
        ("state.sql.before_commit", 1, 2),
        ("state.sql.after_commit", 2, 2),
        ("state.sql.after_fence", 1, 2),
        ("state.sql.after_restore", 1, 3),
    ],
)
def test_a_process_that_is_killed_leaves_all_or_nothing(
    database: Database, processes: Processes, point: str, transaction: int, fence: int
) -> None:
    child = processes.start(in_child_process, url=database.url, point=point)
    child.expect("committed")
    assert child.was_killed()
    shard = database.state().open(STORE, SHARD)
    assert shard.restore() == numbered(transaction)
    assert (database.value("a"), database.execute(FENCE)) == (transaction, fence)


def test_a_forked_process_has_connections_of_its_own(database: Database) -> None:
    """Two processes on one connection would answer each other's questions."""
    state = database.state()
    shard = state.open(STORE, SHARD)
    shard.restore()
    commit(shard, 1, a=1)
    engine = state.database()[0]
    child = os.fork()
    if child == 0:
        try:
            other = state.open(STORE, ShardName("totals", 1))
            other.restore()
            commit(other, 1, b=2)
            os._exit(0 if state.database()[0] is not engine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert state.database()[0] is engine
    commit(shard, 2, a=2)
    assert (database.value("a"), database.value("b")) == (2, 2)


# -- a database that dies ---------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[postgresserver.PostgresServer]:
    with postgresserver.postgres_server() as server:
        yield server


@POSTGRES
@pytest.mark.parametrize("when", ["before_update", "before_commit", "after_commit"])
def test_a_database_that_dies_in_a_commit_has_all_of_it_or_nothing(
    own_server: postgresserver.PostgresServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    database = Database(own_server.new_database())
    shard = database.shard()
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    put(handle, "a", 6)
    sealed = shard.seal(handle)
    if when == "before_update":
        own_server.kill()
        with pytest.raises(Unavailable) as failure:
            shard.commit(sealed, numbered(2), [])
        assert not isinstance(failure.value, OutcomeUnknown)
    elif when == "before_commit":
        pause_at(monkeypatch, "state.sql.before_commit", own_server.kill)
        with pytest.raises(OutcomeUnknown):
            shard.commit(sealed, numbered(2), [])
    else:
        pause_at(monkeypatch, "state.sql.after_commit", own_server.kill)
        shard.commit(sealed, numbered(2), [])
    own_server.start()
    last = 2 if when == "after_commit" else 1
    assert shard.restore() == numbered(last)
    assert database.value("a") == 4 + last
    commit(shard, last + 1, a=9)
    assert (database.value("a"), database.execute(FENCE)) == (9, 2)
    database.close()


@POSTGRES
def test_a_commit_whose_answer_was_lost_is_unknown_and_found_by_the_restore(postgres: Database) -> None:
    """The other outcome: the server has committed, and nobody heard it say so."""

    def deaf() -> Engine:
        engine = sqlalchemy.create_engine(postgres.url)

        @event.listens_for(engine, "commit")
        def _committing(connection: Any) -> None:
            if is_deaf:
                connection.connection.dbapi_connection.commit()
                connection.connection.dbapi_connection.close()

        return engine

    is_deaf = False
    shard = postgres.shard(deaf)
    commit(shard, 1, a=5)
    is_deaf = True
    with pytest.raises(OutcomeUnknown):
        commit(shard, 2, a=6)
    is_deaf = False
    assert shard.restore() == numbered(2)
    assert postgres.value("a") == 6


@POSTGRES
def test_a_database_that_restarts_between_transactions_is_not_noticed(
    own_server: postgresserver.PostgresServer,
) -> None:
    database = Database(own_server.new_database())
    shard = database.shard()
    commit(shard, 1, a=5)
    own_server.kill()
    own_server.start()
    commit(shard, 2, a=6)
    assert database.value("a") == 6
    database.close()


@POSTGRES
def test_a_connection_that_is_lost_in_a_transaction_is_unavailable(postgres: Database) -> None:
    shard = postgres.shard()
    handle = shard.begin(at_once)
    process = handle.scalar("SELECT pg_backend_pid()")
    postgres.execute("SELECT pg_terminate_backend(:process)", process=process)
    eventually(lambda: not postgres.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = :p", p=process))
    with pytest.raises(Unavailable):
        put(handle, "a", 1)
    with pytest.raises(Unavailable):
        shard.seal(handle)
    shard.discard(handle)
    commit(shard, 1, a=2)
    assert postgres.value("a") == 2


def test_a_zombie_of_a_shard_whose_row_was_deleted_stays_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin anew somebody deletes the row. The next fence must be none that was ever given."""
    monkeypatch.undo()
    zombie = database.shard()
    handle = zombie.begin(at_once)
    database.execute("DELETE FROM detent_shards")
    heir = database.shard()
    commit(heir, 1, a=1)
    with pytest.raises(Fenced):
        zombie.commit(zombie.seal(handle), numbered(9), [])
    commit(heir, 2, a=2)


@pytest.mark.parametrize("statement", ["/* done */ COMMIT", "-- x\nCOMMIT", " ; commit", "/**/ROLLBACK"])
def test_comments_do_not_hide_an_ending(database: Database, statement: str) -> None:
    shard = database.shard()
    handle = shard.begin(at_once)
    put(handle, "a", 1)
    with pytest.raises(Invalid, match="ended the transaction"):
        handle.execute(statement)
    shard.discard(handle)


@pytest.mark.parametrize("given", [False, True])
def test_sqlite_that_rolls_back_by_itself_commits_no_checkpoint(sqlite: Database, given: bool) -> None:
    """What the application did before would be lost, and what comes after would be committed by itself."""
    sqlite.execute("CREATE TABLE taken (id INTEGER PRIMARY KEY)")
    sqlite.execute("INSERT INTO taken VALUES (1)")
    shard = sqlite.shard((lambda: sqlalchemy.create_engine(sqlite.url)) if given else None)
    commit(shard, 1, a=5)
    handle = shard.begin(at_once)
    put(handle, "a", 6)
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        handle.execute("INSERT OR ROLLBACK INTO taken VALUES (1)")
    with pytest.raises(Invalid, match="ended the transaction"):
        put(handle, "b", 1)
    with pytest.raises(Invalid, match="ended the transaction"):
        shard.commit(shard.seal(handle), numbered(2), [])
    assert (sqlite.value("a"), sqlite.value("b")) == (5, None)
    assert sqlite.state().open(STORE, SHARD).restore() == numbered(1)
