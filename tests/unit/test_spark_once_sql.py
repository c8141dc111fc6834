"""A database as a sink, without a JVM: the rows and the batch in one transaction, which nobody else ends."""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from sqlalchemy.pool import NullPool

import postgresserver
from detent.errors import Invalid, LimitExceeded, NotFound, OtherInput
from detent.spark import once_batch, once_sql, to_sql
from detent.spark.once_batch import ExternalSink
from detent.tables.marks import BatchKey
from sparkframes import Frame

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])
KEY = BatchKey("shop", "query", 0, "run")


class Database:
    """A database with one table."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")

    def execute(self, statement: str) -> list[Any]:
        engine = sqlalchemy.create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            answer = connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in answer] if answer.returns_rows else []

    def ids(self) -> list[int]:
        return [row[0] for row in self.execute("SELECT id FROM orders ORDER BY id")]

    def ledger(self) -> list[Any]:
        return self.execute("SELECT name, sink, query, batch FROM detent_ledger ORDER BY 1, 2, 3")


POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(params=["sqlite", POSTGRES])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return Database(postgresserver.new_database() if request.param == "postgresql" else f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path}/shop.db")


def frame(*ids: int, name: str = "n", mode: str = "Append") -> Any:
    half = len(ids) // 2
    parts = [pa.RecordBatch.from_pydict({"id": part, "name": [name] * len(part)}) for part in (ids[:half], ids[half:])]
    return Frame(SCHEMA, *([part] for part in parts if part.num_rows), [], mode=mode)


def insert(connection: Any, rows: Any) -> None:
    """What a user's function does."""
    for row in rows.to_pylist():
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:id, :name)"), row)


@pytest.fixture(params=["table", "function"])
def sink(request: pytest.FixtureRequest, database: Database) -> ExternalSink:
    if request.param == "table":
        return to_sql(database.url, "orders")
    return to_sql(lambda: sqlalchemy.create_engine(database.url, poolclass=NullPool), write=insert, label="orders")


def test_a_batch_is_in_the_database_once(database: Database, sink: ExternalSink) -> None:
    sink.write(frame(1, 2, 3), KEY)
    again = frame(1, 2, 3)
    sink.write(again, KEY._replace(run="later"))
    assert (database.ids(), again.jobs) == ([1, 2, 3], 0)
    sink.write(frame(4), KEY._replace(batch=2))
    sink.write(frame(9), KEY._replace(batch=1))
    sink.write(frame(5), KEY._replace(query="next"))
    assert database.ids() == [1, 2, 3, 4, 5]
    assert database.ledger() == [("shop", "orders", "next", 0), ("shop", "orders", "query", 2)]


def test_a_batch_without_rows_is_entered(database: Database, sink: ExternalSink) -> None:
    sink.write(frame(), KEY)
    assert (database.ids(), len(database.ledger())) == ([], 1)


def test_what_fails_leaves_neither_rows_nor_ledger(database: Database, sink: ExternalSink) -> None:
    database.execute("INSERT INTO orders VALUES (3, 'taken')")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        sink.write(frame(1, 2, 3), KEY)
    assert (database.ids(), database.ledger()) == ([3], [])
    database.execute("DELETE FROM orders")
    sink.write(frame(1, 2, 3), KEY)
    assert database.ids() == [1, 2, 3]


def test_two_drivers_that_both_looked_write_once(database: Database) -> None:
    """The second one enters the batch while the first has entered it and not committed."""
    inside, looked = threading.Event(), threading.Event()

    def slowly(connection: Any, rows: Any) -> None:
        inside.set()
        assert looked.wait(60)
        insert(connection, rows)

    def look(batch: Any) -> Any:
        looked.set()
        return batch

    first = to_sql(database.url, write=slowly, label="orders")
    thread = threading.Thread(target=first.write, args=(frame(1, 2), KEY))
    thread.start()
    assert inside.wait(60)
    second = to_sql(database.url, "orders")
    collect = once_sql.collect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(once_sql, "collect", lambda rows: look(collect(rows)))
        second.write(frame(1, 2), KEY)
    thread.join()
    assert database.ids() == [1, 2]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_statement_that_enters_a_batch_says_whether_it_did(dialect: str) -> None:
    statement = once_sql.LedgerRow("orders", KEY).entering(dialect)
    compiled = statement.compile(dialect=getattr(sqlalchemy.dialects, dialect).dialect())
    text = " ".join(str(compiled).replace('"', "").split())
    assert "ON CONFLICT (name, sink, query) DO UPDATE SET batch = excluded.batch" in text
    assert "WHERE detent_ledger.batch < excluded.batch RETURNING" in text


def test_sinks_of_one_database_have_records_of_their_own(database: Database) -> None:
    database.execute("CREATE TABLE more (id INTEGER, name TEXT)")
    to_sql(database.url, "orders").write(frame(1), KEY)
    to_sql(database.url, "more").write(frame(1), KEY)
    to_sql(database.url, "more", label="twice").write(frame(2), KEY)
    assert database.execute("SELECT id FROM more") == [(1,), (2,)]
    assert [row[1] for row in database.ledger()] == ["more", "orders", "twice"]


def test_the_function_does_not_end_the_transaction(database: Database) -> None:
    def commits(connection: Any, rows: Any) -> None:
        insert(connection, rows.slice(0, 1))
        connection.commit()
        insert(connection, rows.slice(1))

    def rolls_back(connection: Any, rows: Any) -> None:
        insert(connection, rows)
        connection.rollback()

    with pytest.raises(Invalid, match="must not commit"):
        to_sql(database.url, write=commits).write(frame(1, 2), KEY)
    with pytest.raises(Invalid, match="must not roll back"):
        to_sql(database.url, write=rolls_back).write(frame(1, 2), KEY)
    assert (database.ids(), database.ledger()) == ([], [])


def test_a_function_that_hides_the_error_that_undid_its_transaction_is_refused(database: Database) -> None:
    """PostgreSQL answers the COMMIT of such a transaction without an error, and SQLite has rolled back by itself."""
    clash = "INSERT OR ROLLBACK INTO" if database.url.startswith("sqlite") else "INSERT INTO"

    def hides(connection: Any, rows: Any) -> None:
        insert(connection, rows)
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            connection.execute(sqlalchemy.text(f"{clash} orders VALUES (1, 'again')"))

    with pytest.raises(Invalid):
        to_sql(database.url, write=hides).write(frame(1, 2), KEY)
    assert (database.ids(), database.ledger()) == ([], [])
    to_sql(database.url, write=insert).write(frame(1, 2), KEY)
    assert database.ids() == [1, 2]


def test_an_engine_without_transactions_is_refused(database: Database) -> None:
    def autocommit() -> Any:
        return sqlalchemy.create_engine(database.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    with pytest.raises(Invalid, match="AUTOCOMMIT"):
        to_sql(autocommit, "orders").write(frame(1), KEY)
    assert database.ids() == []


def test_an_engine_that_begins_transactions_itself_is_taken(sqlite: Database) -> None:
    """As SQLAlchemy's documentation has it, for savepoints that work."""
    engine = sqlalchemy.create_engine(sqlite.url, poolclass=NullPool)

    @sqlalchemy.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    to_sql(lambda: engine, "orders").write(frame(1), KEY)
    assert (sqlite.ids(), len(sqlite.ledger())) == ([1], 1)


def test_a_pool_of_the_users_gets_its_connection_back(database: Database) -> None:
    engine = sqlalchemy.create_engine(database.url)
    try:
        sink = to_sql(lambda: engine, write=insert)
        sink.write(frame(1), KEY)
        with engine.begin() as connection:  # the same connection, which may be committed again
            insert(connection, pa.table({"id": [2], "name": ["n"]}))
        sink.write(frame(3), KEY._replace(batch=1))
        assert database.ids() == [1, 2, 3]
    finally:
        engine.dispose()


def test_what_does_not_fit_is_refused(database: Database) -> None:
    with pytest.raises(NotFound, match="no table 'nothing'"):
        to_sql(database.url, "nothing").write(frame(1), KEY)
    database.execute("CREATE TABLE small (id INTEGER)")
    with pytest.raises(Invalid, match="no column name, but id"):
        to_sql(database.url, "small").write(frame(1), KEY)
    with pytest.raises(Invalid, match="SQLite and PostgreSQL, not to mssql"):
        to_sql(lambda: sqlalchemy.create_mock_engine("mssql+pyodbc://", print), "t").write(frame(1), KEY)  # type: ignore[arg-type,return-value]
    assert database.ledger() == []


def test_more_than_the_driver_holds_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_batch, "ROWS_MAX", 3)
    with pytest.raises(LimitExceeded, match="at most 3 rows"):
        to_sql(database.url, "orders").write(frame(*range(8)), KEY)  # one task has too many
    with pytest.raises(LimitExceeded, match="at most 3 rows"):
        to_sql(database.url, "orders").write(frame(*range(4)), KEY)  # all of them together have
    monkeypatch.setattr(once_batch, "BYTES_MAX", 5)
    with pytest.raises(LimitExceeded, match="5 bytes"):
        to_sql(database.url, "orders").write(frame(1), KEY)
    assert (database.ids(), database.ledger()) == ([], [])


def test_rows_are_inserted_in_parts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_sql, "INSERT_ROWS", 3)
    to_sql(database.url, "orders").write(frame(*range(10)), KEY)
    assert database.ids() == list(range(10))


def test_times_arrive_in_utc(database: Database) -> None:
    database.execute("CREATE TABLE times (at TIMESTAMP)")
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    batch = pa.RecordBatch.from_arrays([pa.array([moment], pa.timestamp("us", tz="Asia/Tokyo"))], names=["at"])
    to_sql(database.url, "times").write(Frame(StructType([StructField("at", TimestampType())]), [batch]), KEY)  # type: ignore[arg-type]
    assert str(database.execute("SELECT at FROM times")[0][0]).removesuffix(".000000") == "2026-01-31 12:00:00"


# -- merging ----------------------------------------------------------------------------------------------------


def named(database: Database) -> list[Any]:
    return database.execute("SELECT id, name FROM orders ORDER BY id")


def test_a_merged_batch_replaces_rows_by_key_once(database: Database) -> None:
    sink = to_sql(database.url, "orders", merge_on=["id"])
    sink.write(frame(1, 2, name="a"), KEY)
    sink.write(frame(2, 3, name="b"), KEY._replace(batch=1))
    sink.write(frame(1, 2, name="again"), KEY)
    assert named(database) == [(1, "a"), (2, "b"), (3, "b")]


def test_the_last_row_of_a_key_counts(database: Database) -> None:
    parts = [pa.RecordBatch.from_pydict({"id": [1, 2], "name": [name, name]}) for name in ("first", "last")]
    to_sql(database.url, "orders", merge_on=["id"]).write(Frame(SCHEMA, *([part] for part in parts)), KEY)  # type: ignore[arg-type]
    assert named(database) == [(1, "last"), (2, "last")]


def test_keys_alone_are_merged_too(database: Database) -> None:
    database.execute("INSERT INTO orders VALUES (1, 'kept')")
    schema = StructType([StructField("id", LongType())])
    batch = pa.RecordBatch.from_pydict({"id": [1, 2]})
    to_sql(database.url, "orders", merge_on=["id"]).write(Frame(schema, [batch]), KEY)  # type: ignore[arg-type]
    assert named(database) == [(1, "kept"), (2, None)]


def test_a_key_without_a_value_or_an_index_is_refused(database: Database) -> None:
    batch = pa.RecordBatch.from_pydict({"id": pa.array([1, None], pa.int64()), "name": ["n", "n"]})
    with pytest.raises(Invalid, match="1 rows have no id"):
        to_sql(database.url, "orders", merge_on=["id"]).write(Frame(SCHEMA, [batch]), KEY)  # type: ignore[arg-type]
    sink = to_sql(database.url, "orders", merge_on=["name"])
    with pytest.raises(Invalid, match="no unique index on name") as caught:
        sink.write(frame(1), KEY)
    assert (database.ids(), database.ledger()) == ([], [])
    database.execute(str(caught.value).partition("Create it: ")[2])
    sink.write(frame(1, name="x"), KEY)
    sink.write(frame(2, name="x"), KEY._replace(batch=1))
    assert named(database) == [(2, "x")]


def test_complete_mode_replaces_all_rows(database: Database) -> None:
    sink = to_sql(database.url, "orders")
    sink.write(frame(1, 2, mode="Complete"), KEY)
    sink.write(frame(2, 3, mode="Complete"), KEY._replace(batch=1))
    assert database.ids() == [2, 3]


def test_update_mode_without_a_key_is_refused() -> None:
    with pytest.raises(Invalid, match="the table orders would get them as further rows"):
        to_sql("sqlite:///x", "orders").check_mode("update")
    to_sql("sqlite:///x", "orders", merge_on=["id"]).check_mode("update")
    to_sql("sqlite:///x", write=insert).check_mode("update")
    with pytest.raises(Invalid, match="merges by itself"):
        to_sql("sqlite:///x", write=insert, merge_on=["id"])


# -- the input of a batch ---------------------------------------------------------------------------------------


def test_a_batch_with_another_input_is_refused(database: Database) -> None:
    sink = to_sql(database.url, "orders")
    one, other = KEY._replace(input=b"1" * 16), KEY._replace(input=b"2" * 16)
    for batch, number in ((0, 1), (1, 2)):
        sink.write(frame(number), one._replace(batch=batch))
    sink.write(frame(2), one._replace(batch=1, run="later"))
    with pytest.raises(OtherInput, match=r"row 'orders' of detent_ledger has batch 1.*another input.*reset shop"):
        sink.write(frame(2, 3), other._replace(batch=1))
    with pytest.raises(OtherInput, match="cannot be compared"):
        sink.write(frame(1), one)
    sink.write(frame(9), KEY)  # without an input the number decides
    assert database.ids() == [1, 2]


def test_of_two_drivers_the_one_with_another_input_is_refused(database: Database) -> None:
    """The other driver enters the batch after this one has looked, and before it writes."""
    sink = to_sql(database.url, "orders")
    collect = once_sql.collect

    def meanwhile(rows: Any) -> Any:
        patch.setattr(once_sql, "collect", collect)
        sink.write(frame(1), KEY._replace(input=b"1" * 16))
        return collect(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(once_sql, "collect", meanwhile)
        with pytest.raises(OtherInput):
            sink.write(frame(1, 2), KEY._replace(input=b"2" * 16))
    assert database.ids() == [1]


def test_a_ledger_of_an_earlier_release_goes_by_numbers(database: Database) -> None:
    database.execute(
        "CREATE TABLE detent_ledger (name TEXT, sink TEXT, query TEXT, batch BIGINT, PRIMARY KEY (name, sink, query))"
    )
    database.execute("INSERT INTO detent_ledger VALUES ('shop', 'orders', 'query', 3)")
    sink, key = to_sql(database.url, "orders"), KEY._replace(input=b"1" * 16)
    for batch in (3, 4):
        sink.write(frame(batch), key._replace(batch=batch))
    assert database.ids() == [4]
    with pytest.raises(OtherInput):
        sink.write(frame(5), key._replace(batch=4, input=b"2" * 16))
