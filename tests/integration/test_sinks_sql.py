"""Deliveries to SQLite and to a real PostgreSQL: what happens when two meet, and when one has stood still."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import sqlalchemy
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

import postgresserver
from detent.errors import Fenced, Invalid, OutcomeUnknown, Unavailable
from detent.processor import sink_sql
from detent.processor.sink_sql import SqlSink, delivery_rows
from detent.processor.step import Step
from detent.sql import databases, transactions
from detent.sql.dialects import CommitUnclear
from detent.sql.transactions import OwnTransaction
from processes import Io, Processes, eventually

POSTGRES = pytest.mark.xdist_group("postgres")
EITHER = ["sqlite", pytest.param("postgresql", marks=POSTGRES)]

ADD = sqlalchemy.text("INSERT INTO effects (value) VALUES (:value)")


def step_of(number: int, *, series: str = "s1", floor: int = 0, processor: str = "bill") -> Step:
    return Step("shop", processor, series, number, floor, ())


class Database:
    """A database with a table of the application's, in which the same value may be twice."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sinks: list[SqlSink] = []
        self.execute("CREATE TABLE effects (value TEXT NOT NULL)")
        self.execute("CREATE TABLE names (name TEXT PRIMARY KEY)")

    def sink(self, database: str | Engine | None = None, **options: Any) -> SqlSink:
        """As a process of its own has it."""
        self.sinks.append(SqlSink(self.url if database is None else database, **options))
        return self.sinks[-1]

    def execute(self, statement: str) -> list[Any]:
        """The first column, seen by somebody else."""
        engine = sqlalchemy.create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            answer = connection.execute(sqlalchemy.text(statement))
            return list(answer.scalars()) if answer.returns_rows else []

    @property
    def effects(self) -> list[str]:
        return sorted(self.execute("SELECT value FROM effects"))

    @property
    def numbers(self) -> list[int]:
        """The deliveries that are remembered."""
        return sorted(self.execute("SELECT number FROM detent_deliveries"))

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    def somebody_waits(self) -> bool:
        """Whether a connection waits for another one's lock."""
        return bool(self.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


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
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def adding(sink: SqlSink) -> Callable[..., None]:
    """A sink that adds what it gets to the effects."""

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        connection.execute(ADD, {"value": value})

    return add


class Paused:
    """A sink whose function waits to be let go on, once its row is written."""

    def __init__(self, sink: SqlSink, error: Exception | None = None) -> None:
        self.calls = 0
        self.has_begun = threading.Event()
        self.may_go = threading.Event()

        @sink.sink
        def add(connection: Connection, value: str) -> None:
            self.calls += 1
            connection.execute(ADD, {"value": value})
            self.has_begun.set()
            assert self.may_go.wait(30)
            if error is not None:
                raise error

        self.deliver = add


# -- one after the other ----------------------------------------------------------------------------------------


def test_a_delivery_takes_effect_once(database: Database) -> None:
    first, second = adding(database.sink()), adding(database.sink())
    for add in (first, first, second):
        add("a", step=step_of(0))
    second("b", step_of(1))
    first("b of another processor", step=step_of(1, processor="mail"))
    assert database.effects == ["a", "b", "b of another processor"]


def test_numbers_come_in_any_order(database: Database, threads: ThreadPoolExecutor) -> None:
    add = adding(database.sink())
    numbers = [7, 3, 9, 0, 3, 9, 8, 1, 0, 2, 5, 6, 4, 7]
    list(threads.map(lambda number: add(str(number), step_of(number)), numbers))
    assert database.effects == [str(number) for number in range(10)]


def test_what_the_function_raises_undoes_everything(database: Database) -> None:
    sink = database.sink()
    calls = []

    @sink.sink
    def fail(connection: Connection, value: str) -> None:
        calls.append(value)
        connection.execute(ADD, {"value": value})
        if len(calls) == 1:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        fail("a", step_of(0))
    assert (database.effects, database.numbers) == ([], [])
    fail("a", step_of(0))
    assert (database.effects, database.numbers) == (["a"], [0])


def test_a_row_that_is_there_twice_is_the_function_s_own_error(database: Database) -> None:
    sink = database.sink()
    calls = []

    @sink.sink
    def name(connection: Connection, value: str) -> None:
        calls.append(value)
        connection.execute(sqlalchemy.text("INSERT INTO names VALUES (:value)"), {"value": value})

    name("a", step_of(0))
    with pytest.raises(IntegrityError):
        name("a", step_of(1))
    assert calls == ["a", "a"], "it was tried again, and could not succeed"


def test_done_deliveries_are_forgotten_and_stay_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_sql, "FORGET_EVERY", 10)
    add = adding(database.sink())
    for number in range(35):
        add(str(number), step_of(number, floor=number))
    assert database.numbers == [30, 31, 32, 33, 34]
    assert database.execute("SELECT floor FROM detent_deliveries_floors") == [30]
    for number in (3, 29):
        with pytest.raises(Fenced, match="is done for good"):
            adding(database.sink())("again", step_of(number, floor=number))
    add("again", step_of(30, floor=30))
    assert "again" not in database.effects
    assert database.numbers == [30, 31, 32, 33, 34], "the refused ones left something"


def test_another_series_ends_the_one_before(database: Database) -> None:
    old, new = adding(database.sink()), adding(database.sink())
    old("a", step_of(0))
    old("b", step_of(1))
    new("a again", step_of(0, series="s2"))
    for number in (0, 1, 2):
        with pytest.raises(Fenced, match="it was reset"):
            old("zombie", step_of(number))
    new("b again", step_of(1, series="s2"))
    assert database.effects == ["a", "a again", "b", "b again"]
    assert database.numbers == [-1, 0, 1], "rows of a series that is over were kept"


def test_two_functions_of_one_processor_are_refused(database: Database) -> None:
    sink = database.sink()
    first, second = adding(sink), adding(sink)
    step = step_of(0)
    first("a", step)
    with pytest.raises(Invalid, match="two functions"):
        second("b", step)
    second("b", step_of(0, processor="mail"))
    assert database.effects == ["a", "b"]


def test_a_graph_may_be_made_again(database: Database) -> None:
    """Its functions are others then, and do the same."""
    sink = database.sink()
    for number in range(3):
        adding(sink)(f"{number}", step_of(number))
    adding(sink)("other", step_of(2))
    assert database.effects == ["0", "1", "2"]


@pytest.mark.parametrize("how", ["commit", "rollback", "close", "COMMIT", "/* now */ rollback", "again"])
def test_a_function_that_ends_its_transaction_is_refused(database: Database, how: str) -> None:
    sink = database.sink()

    @sink.sink
    def end(connection: Connection, value: str) -> None:
        connection.execute(ADD, {"value": value})
        if how == "again":
            connection.rollback()
            connection.execute(ADD, {"value": value})
        elif hasattr(connection, how):
            getattr(connection, how)()
        else:
            connection.execute(sqlalchemy.text(how))

    with pytest.raises(Invalid, match="ended its transaction itself"):
        end("a", step_of(0))
    assert (database.effects, database.numbers) == ([], [])
    adding(database.sink())("b", step_of(0))
    assert database.effects == ["b"]


def test_savepoints_are_the_function_s_own(database: Database) -> None:
    sink = database.sink()

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        connection.execute(sqlalchemy.text("INSERT INTO names VALUES ('x')"))
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(sqlalchemy.text("INSERT INTO names VALUES ('x')"))
        connection.execute(ADD, {"value": value})

    add("a", step_of(0))
    assert database.effects == ["a"]


# -- two at once ------------------------------------------------------------------------------------------------


def test_of_two_at_once_the_second_waits_and_does_nothing(database: Database, threads: ThreadPoolExecutor) -> None:
    first = Paused(database.sink())
    calls: list[str] = []
    other = database.sink()

    @other.sink
    def second(connection: Connection, value: str) -> None:
        calls.append(value)

    adding(database.sink())("before", step_of(0))
    delivering = threads.submit(first.deliver, "a", step_of(1))
    assert first.has_begun.wait(30)
    waiting = threads.submit(second, "a", step_of(1))
    if database.is_postgres:
        eventually(database.somebody_waits, what="the second to wait")
    assert not waiting.done()
    first.may_go.set()
    delivering.result(30)
    waiting.result(30)
    assert calls == []
    assert database.effects == ["a", "before"]


def test_the_second_does_it_if_the_first_fails(database: Database, threads: ThreadPoolExecutor) -> None:
    first = Paused(database.sink(), RuntimeError("not today"))
    adding(database.sink())("before", step_of(0))
    delivering = threads.submit(first.deliver, "a", step_of(1))
    assert first.has_begun.wait(30)
    waiting = threads.submit(adding(database.sink()), "a", step_of(1))
    first.may_go.set()
    with pytest.raises(RuntimeError):
        delivering.result(30)
    waiting.result(30)
    assert database.effects == ["a", "before"]


@POSTGRES
class TestZombies:
    """One that stood still in the middle. (On SQLite nobody can take over from it: it has the file's lock.)"""

    def test_its_series_was_replaced(self, postgres: Database, threads: ThreadPoolExecutor) -> None:
        zombie, new = Paused(postgres.sink()), adding(postgres.sink())
        new("before", step_of(0))
        delivering = threads.submit(zombie.deliver, "zombie", step_of(1))
        assert zombie.has_begun.wait(30)
        new("after", step_of(1, series="s2", floor=1))
        self._refused(zombie, delivering)
        assert postgres.effects == ["after", "before"]
        assert postgres.numbers == [-1, 1]

    def test_the_floor_has_passed_it(
        self, postgres: Database, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its delivery was given up, say, and its error written."""
        monkeypatch.setattr(sink_sql, "FORGET_EVERY", 1)
        zombie, other = Paused(postgres.sink()), adding(postgres.sink())
        other("before", step_of(0))
        delivering = threads.submit(zombie.deliver, "zombie", step_of(1))
        assert zombie.has_begun.wait(30)
        other("after", step_of(2, floor=2))
        self._refused(zombie, delivering)
        assert postgres.effects == ["after", "before"]

    def test_it_enters_a_row_that_is_just_being_forgotten(
        self, postgres: Database, threads: ThreadPoolExecutor
    ) -> None:
        """What its first statement knows of the floor is out of date when the row can be entered."""
        adding(postgres.sink())("a", step_of(0))
        rows = delivery_rows("detent_deliveries", "postgresql")
        values = {"of_processor": "shop/bill", "of_series": "s1", "new_floor": 1}
        engine = databases.open_engine(sqlalchemy.make_url(postgres.url), poolclass=NullPool)
        zombie = Paused(postgres.sink())
        zombie.may_go.set()
        with engine.begin() as forgetting:
            assert forgetting.execute(rows.raise_floor, values).first() is not None
            forgetting.execute(rows.forget, values)
            delivering = threads.submit(zombie.deliver, "a", step_of(0))
            eventually(postgres.somebody_waits, what="the zombie to wait at the row")
        with pytest.raises(Fenced):
            delivering.result(30)
        assert zombie.calls == 1, "it was not in the race that this is about"
        assert (postgres.effects, postgres.numbers) == (["a"], [])

    def test_who_has_confirmed_commits_before_the_floor_is_raised(
        self, postgres: Database, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sink_sql, "FORGET_EVERY", 1)
        slow, other = adding(postgres.sink()), adding(postgres.sink())
        other("before", step_of(0))
        has_confirmed, may_commit = threading.Event(), threading.Event()
        commit = OwnTransaction.commit

        def wait(transaction: OwnTransaction) -> None:
            if not has_confirmed.is_set():
                has_confirmed.set()
                assert may_commit.wait(30)
            commit(transaction)

        monkeypatch.setattr(OwnTransaction, "commit", wait)
        delivering = threads.submit(slow, "slow", step_of(1))
        assert has_confirmed.wait(30)
        raising = threads.submit(other, "after", step_of(2, floor=2))
        eventually(postgres.somebody_waits, what="the floor to wait for the commit")
        assert postgres.effects == ["before"]
        may_commit.set()
        delivering.result(30)
        raising.result(30)
        assert postgres.effects == ["after", "before", "slow"]
        assert postgres.numbers == [2], "a row was committed below the floor, and stayed"

    def test_of_two_new_series_one_is_left(self, postgres: Database, threads: ThreadPoolExecutor) -> None:
        adding(postgres.sink())("before", step_of(0))
        names = [f"s{index}" for index in range(2, 10)]
        sinks = {name: adding(postgres.sink()) for name in names}
        tries = [threads.submit(sinks[name], name, step_of(1, series=name)) for name in names]
        assert {type(one.exception(30)) for one in tries} <= {type(None), Fenced, Unavailable}
        (last,) = postgres.execute("SELECT series FROM detent_deliveries_floors")
        for name in names:
            if name == last:
                sinks[name]("last", step_of(2, series=name))
            else:
                with pytest.raises(Fenced):
                    sinks[name]("over", step_of(2, series=name))
        assert postgres.effects.count("last") == 1
        assert "over" not in postgres.effects

    @staticmethod
    def _refused(zombie: Paused, delivering: Future[None]) -> None:
        zombie.may_go.set()
        with pytest.raises(Fenced, match="nothing of this delivery was committed"):
            delivering.result(30)


# -- failures ---------------------------------------------------------------------------------------------------


@POSTGRES
def test_transactions_that_met_are_done_again(postgres: Database) -> None:
    sink = postgres.sink()
    calls = []

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        connection.execute(ADD, {"value": value})
        calls.append(value)
        if len(calls) < 3:
            connection.execute(sqlalchemy.text("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"))

    add("a", step_of(0))
    assert (len(calls), postgres.effects) == (3, ["a"])


@POSTGRES
def test_a_function_that_goes_on_after_an_error_is_told(postgres: Database) -> None:
    sink = postgres.sink()

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        with pytest.raises(DBAPIError):
            connection.execute(sqlalchemy.text("SELECT 1 / 0"))

    with pytest.raises(Invalid, match="begin_nested"):
        add("a", step_of(0))


def test_a_commit_without_an_answer_is_not_done_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = OwnTransaction.commit
    silent = [True]

    def lose(transaction: OwnTransaction) -> None:
        commit(transaction)
        if silent[0]:
            silent[0] = len(silent) > 1
            raise CommitUnclear("gone")

    monkeypatch.setattr(OwnTransaction, "commit", lose)
    add = adding(database.sink())
    add("a", step_of(0))
    assert database.effects == ["a"]
    monkeypatch.setattr(transactions, "ATTEMPTS", 2)
    silent[:] = [True, True]
    with pytest.raises(OutcomeUnknown):
        add("b", step_of(1))
    silent[:] = [False]
    add("b", step_of(1))
    assert database.effects == ["a", "b"]


def dies(io: Io, url: str, when: str) -> None:
    """Deliver number 0, and be killed on the way."""
    sink = SqlSink(url)

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        connection.execute(ADD, {"value": value})
        if when == "inside":
            os.kill(os.getpid(), signal.SIGKILL)

    add("a", step_of(0))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("when", ["inside", "after"])
def test_a_process_that_is_killed(database: Database, processes: Processes, when: str) -> None:
    assert processes.start(dies, url=database.url, when=when).was_killed()
    assert database.effects == ([] if when == "inside" else ["a"])
    adding(database.sink())("a", step_of(0))
    assert database.effects == ["a"]


# -- tables and engines -----------------------------------------------------------------------------------------


def test_tables_from_a_migration(database: Database) -> None:
    dialect = "postgresql" if database.is_postgres else "sqlite"
    for statement in filter(str.strip, SqlSink.schema(dialect, table="kept").split(";")):
        database.execute(statement)
    add = adding(database.sink(table="kept"))
    add("a", step_of(0))
    add("a", step_of(0))
    assert database.execute("SELECT number FROM kept") == [0]
    assert database.effects == ["a"]


@POSTGRES
def test_a_function_with_a_search_path_of_its_own(postgres: Database) -> None:
    postgres.execute("CREATE SCHEMA other")
    sink = postgres.sink()

    @sink.sink
    def add(connection: Connection, value: str) -> None:
        connection.execute(ADD, {"value": value})
        connection.execute(sqlalchemy.text("SET LOCAL search_path = other"))

    for number in (0, 0, 1):
        add(str(number), step_of(number))
    assert postgres.effects == ["0", "1"]
    assert postgres.numbers == [0, 1]


def test_an_engine_of_the_user_s_stays_theirs(database: Database) -> None:
    engine = sqlalchemy.create_engine(database.url)
    try:
        sink = database.sink(engine)
        add = adding(sink)
        add("a", step_of(0))
        sink.close()
        with pytest.raises(Unavailable, match="was closed"):
            add("b", step_of(1))
        with engine.begin() as connection:
            assert connection.execute(sqlalchemy.text("SELECT value FROM effects")).scalar() == "a"
    finally:
        engine.dispose()


def test_what_cannot_be_a_sink_is_refused(tmp_path: Path) -> None:
    for url in ("mysql://x/y", "sqlite://", "nonsense"):
        with pytest.raises(Invalid):
            SqlSink(url)
    for table in ("", "a b", "a.b.c", "x" * 60, 'x"; DROP TABLE y'):
        with pytest.raises(Invalid, match="name of a table"):
            SqlSink("sqlite:///x.db", table=table)
    with pytest.raises(Invalid, match="leave the schema out"):
        adding(SqlSink(f"sqlite:///{tmp_path}/s.db", table="other.deliveries"))("a", step_of(0))
    with pytest.raises(Invalid, match="SQLite or PostgreSQL"):
        SqlSink.schema("oracle")
    sink = SqlSink(f"sqlite:///{tmp_path}/s.db")

    async def later(connection: Connection, value: str) -> None: ...

    for function in (later, lambda: None, lambda connection: None, lambda connection, step: None, lambda *values: None):
        with pytest.raises(Invalid):
            sink.sink(function)
    with pytest.raises(Invalid, match="from the graph"):
        adding(sink)("a", 7)


def test_a_graph_sees_the_function_without_its_connection() -> None:
    import inspect

    sink = SqlSink("sqlite:///x.db")

    @sink.sink
    def bill(connection: Connection, order: dict[str, int], *, twice: bool = False) -> None:
        """What it does."""

    assert (bill.__name__, bill.__doc__) == ("bill", "What it does.")
    assert list(inspect.signature(bill).parameters) == ["order", "step", "twice"]
    assert get_type_hints(bill) == {"order": dict[str, int], "step": Step, "twice": bool}

    @sink.sink
    def join(connection: Connection, left: bytes, right: bytes, step: Step) -> None: ...

    assert list(inspect.signature(join).parameters) == ["left", "right", "step"]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("how", ["INSERT OR ROLLBACK INTO taken VALUES (1)", "INSERT INTO guarded VALUES (1)"])
def test_sqlite_that_rolls_back_by_itself(tmp_path: Path, given: bool, how: str) -> None:
    """For a statement or a trigger that says so. What the function does afterwards would be committed without a key."""
    url = f"sqlite:///{tmp_path}/own.db"
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE taken (id INTEGER PRIMARY KEY)",
            "CREATE TABLE guarded (id INTEGER)",
            "CREATE TABLE effects (what TEXT)",
            "CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
            "INSERT INTO taken VALUES (1)",
        ):
            connection.execute(sqlalchemy.text(statement))
    with SqlSink(engine if given else url) as sink:

        @sink.sink
        def write(connection: Connection, value: str) -> None:
            with contextlib.suppress(IntegrityError):
                connection.execute(sqlalchemy.text(how))
            connection.execute(sqlalchemy.text("INSERT INTO effects VALUES (:value)"), {"value": value})

        for _ in range(2):
            with pytest.raises(Invalid, match="ended its transaction itself"):
                write("a", step=step_of(0))
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT * FROM effects")).all() == []
    engine.dispose()
