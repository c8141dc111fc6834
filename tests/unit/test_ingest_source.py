"""A source in its database: what may not change, what is forgotten, what people ask and do, and its columns."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import DoubleType, FloatType, IntegerType, LongType, StringType, StructField, StructType
from sqlalchemy import Engine, event, insert, select, update

import postgresserver
from detent.errors import Corrupt, Invalid, NotFound
from detent.ingest import forgetting, metastore, ownership, schemas, steering
from detent.ingest.config import IngestConfig
from detent.ingest.schemas import check_fits, kept_schema, widen
from detent.ingest.shard_sql import BATCHES, FILES, SHARDS
from detent.ingest.shared_state import BatchRecord, FileShard, QueueSharedState, now_ms
from detent.sql.transactions import transact
from detent.transports.contract import MessageQueue

DAY_MS = 86_400_000
POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    is_remote = request.param == "postgresql"
    made = metastore.connect(postgresserver.new_database() if is_remote else f"sqlite:///{tmp_path}/state.db")
    yield made
    made.dispose()


FOLDER: list[str] = []
"""Where the tables of a test are."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    FOLDER.append(str(tmp_path))
    yield tmp_path
    FOLDER.clear()


def config(**changes: Any) -> IngestConfig:
    name = changes.get("name", "orders")
    return IngestConfig(**{"name": name, "queue": "sqs:new", "table": name, "folder": FOLDER[0], **changes})


def enter(engine: Engine, *rows: tuple[str, str, float], name: str = "orders") -> None:
    """Files: their names, states, and how many days ago they changed."""
    with engine.begin() as connection:
        now = now_ms(connection)
        shared = {"source": name, "token": "", "position": "", "version": "", "size": 3, "batch": "b"}
        connection.execute(
            insert(SHARDS),
            [
                {
                    **shared,
                    "shard": uri.encode(),
                    "uri": uri,
                    "state": state,
                    "reason": "bad" if state == "quarantined" else "",
                    "attempts": 1 if state == "quarantined" else 0,
                    "opened_at": now - 2 * round(days * DAY_MS),
                    "updated_at": now - round(days * DAY_MS),
                }
                for uri, state, days in rows
            ],
        )


def left(engine: Engine, name: str = "orders") -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(select(SHARDS.c.uri).where(SHARDS.c.source == name).order_by("uri")).scalars())


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{", b'{"owner": 1}', b'"\\xff"', b"[" * 100_000], ids=len)
def test_mark_of_a_table_that_cannot_be_read_is_corrupt(engine: Engine, tmp_path: Path, damaged: bytes) -> None:
    mine = config(table=str(tmp_path / "marked"))
    ownership.register(engine, mine)
    (mark,) = (tmp_path / "marked").rglob(ownership.OWNER_FILE)
    mark.write_bytes(damaged)
    with pytest.raises(Corrupt, match="cannot be read"):
        ownership.register(engine, mine)


# -- what may not change ---------------------------------------------------------------------------------------------


def test_a_source_may_come_back_with_other_settings_that_change_no_file(engine: Engine) -> None:
    ownership.register(engine, config())
    ownership.register(engine, config(batch_files=7, window="30d", format="csv", queue="sqs:other"))
    ownership.register(engine, config(name="events", identity="uri"))
    assert steering.status(engine, "events").done == 0


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"identity": "uri"}, "identity was 'etag', now 'uri'"),
        ({"table": "other"}, "table was '.*/orders', now '.*/other'"),
        ({"committer": "delta"}, "committer was 'manifest', now 'delta'"),
    ],
)
def test_a_source_that_would_take_its_files_twice_is_refused(
    engine: Engine, change: dict[str, str], shown: str
) -> None:
    ownership.register(engine, config())
    with pytest.raises(Invalid, match=shown):
        ownership.register(engine, config(**change))
    ownership.register(engine, config())


class Keeping:
    """As much of a queue as says how long it can deliver a message again."""

    name, visibility_max_s = "landing", 43_200.0


def check_window(window: str, retention_s: float | None) -> None:
    forgetting.check_window(config(window=window), cast("MessageQueue", Keeping()), retention_s)


@pytest.mark.parametrize(("days", "wanted"), [(4.0, "4d"), (14.0, "14d"), (3.5, "4d")])
def test_window_shorter_than_queue_keeps_messages_is_refused_with_one_that_is_not(days: float, wanted: str) -> None:
    with pytest.raises(Invalid, match=f'the window of 3d is shorter than the .* set window = "{wanted}"'):
        check_window("3d", days * 86_400)
    check_window(wanted, days * 86_400)
    check_window("4d", 4 * 86_400.0)


def test_window_shorter_than_visibility_is_refused_where_queue_does_not_say_its_retention(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for window in ("0s", "11h"):
        with pytest.raises(Invalid, match=f'{window} is shorter than the 12h .*set window = "43200s"'):
            check_window(window, None)
    assert not caplog.records
    check_window("12h", None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not say how long it keeps messages" in caplog.text


# -- forgetting ------------------------------------------------------------------------------------------------------


def test_finished_files_are_forgotten_by_age_and_no_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "PRUNE_ROWS", 3)  # so that it takes several transactions
    ownership.register(engine, config())
    ownership.register(engine, config(name="events"))
    states = ("open", "redriven", "quarantined")
    enter(engine, *[(f"old-{number}", "done", 16) for number in range(7)], *[(state, state, 99) for state in states])
    enter(engine, ("young", "done", 14))
    enter(engine, ("old", "done", 99), name="events")
    assert forgetting.forgotten_to(engine, "orders") == 0
    assert forgetting.prune(engine, config(), 4 * 86_400) == 7
    assert left(engine) == ["open", "quarantined", "redriven", "young"]
    assert left(engine, "events") == ["old"]
    assert forgetting.prune(engine, config(), 4 * 86_400) == 0


def test_with_a_count_the_oldest_go_earlier_but_none_that_the_queue_may_still_have(engine: Engine) -> None:
    ownership.register(engine, config())
    enter(engine, *[(f"done-{days}", "done", days) for days in range(1, 10)], ("open", "open", 9))
    counted = config(window_files=7)
    assert forgetting.prune(engine, counted, 4 * 86_400) == 2
    assert left(engine) == [*[f"done-{days}" for days in range(1, 8)], "open"]
    assert forgetting.prune(engine, counted, 4 * 86_400) == 0
    assert forgetting.prune(engine, config(window_files=1), 4.5 * 86_400) == 3
    assert left(engine) == ["done-1", "done-2", "done-3", "done-4", "open"]
    assert forgetting.prune(engine, config(window_files=1), None) == 0, "a queue that does not say keeps them for ever"


def test_it_is_known_up_to_when_files_were_forgotten(engine: Engine) -> None:
    ownership.register(engine, config())
    enter(engine, ("a", "done", 20), ("b", "done", 18), ("c", "done", 1))
    with engine.connect() as connection:
        b = connection.execute(select(SHARDS.c.updated_at).where(SHARDS.c.uri == "b")).scalar_one()
    forgetting.prune(engine, config(), None)
    assert forgetting.forgotten_to(engine, "orders") == steering.status(engine, "orders").forgotten_to == b
    enter(engine, ("d", "done", 19))  # one that is older than the horizon does not move it back
    assert forgetting.prune(engine, config(), None) == 1
    assert forgetting.forgotten_to(engine, "orders") == b
    assert forgetting.forgotten_to(engine, "nobody") == 0


def test_a_file_that_was_put_back_meanwhile_is_not_forgotten(engine: Engine) -> None:
    """Between looking and deleting, a person may come: the state is looked at again."""
    ownership.register(engine, config())
    enter(engine, ("a", "done", 20), ("b", "done", 20))

    @event.listens_for(engine, "after_cursor_execute")
    def put_back(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE detent_ingest_sources"):
            connection.execute(update(SHARDS).where(SHARDS.c.uri == "a").values(state="redriven"))

    assert forgetting.prune(engine, config(), None) == 1
    assert left(engine) == ["a"]


def test_records_of_commits_are_forgotten_unless_a_manifest_names_their_files(engine: Engine) -> None:
    ownership.register(engine, config())
    with engine.begin() as connection:
        now = now_ms(connection)
        shared = {"source": "orders", "token": "t", "shards": 1, "files": 1, "rows": 1, "bytes": 1}
        ages = {"old": 16, "old-live": 16, "young": 1}
        rows = [{**shared, "batch": name, "committed_at": now - days * DAY_MS} for name, days in ages.items()]
        connection.execute(insert(BATCHES), rows)
        connection.execute(
            insert(FILES).values(source="orders", path="p", batch="old-live", rows=1, bytes=1, committed_at=0)
        )
    forgetting.prune(engine, config(), None)
    with engine.connect() as connection:
        assert set(connection.execute(select(BATCHES.c.batch)).scalars()) == {"old-live", "young"}


# -- questions -------------------------------------------------------------------------------------------------------


def test_the_status_counts_files_pipelines_and_commits(engine: Engine) -> None:
    with pytest.raises(NotFound, match="orders"):
        steering.status(engine, "orders")
    ownership.register(engine, config())
    enter(engine, ("q", "quarantined", 3), ("r", "redriven", 1))
    for number, token in enumerate(("p1", "p2")):
        state = QueueSharedState(engine, "orders", token, 1_000)
        mine = [FileShard(f"{token}{n}".encode(), f"s3://b/{token}{n}", "", 1) for n in range(3)]
        state.open(mine)
        record = BatchRecord(f"b{number}", 2, 1, 10 + number, 100)
        transact(engine, lambda connection, s=state, m=mine, r=record: s.advance(connection, m[:2], r))
    found = steering.status(engine, "orders").as_json()
    counts = {name: found[name] for name in ("open", "redriven", "done", "quarantined", "pipelines")}
    assert counts == {"open": 2, "redriven": 1, "done": 4, "quarantined": 1, "pipelines": 2}
    assert [found[name] for name in ("batches", "files", "rows", "bytes")] == [2, 4, 21, 200]
    assert 2 * DAY_MS <= found["oldest_open_ms"] < 3 * DAY_MS, "of the unfinished ones, since it was announced"
    assert found["last_commit_at"] > 0


def test_files_are_listed_by_name_over_several_pages(engine: Engine) -> None:
    enter(engine, *[(f"s3://b/{number:04d}", "done", 1) for number in reversed(range(2_100))])
    enter(engine, ("s3://b/x", "quarantined", 1), ("s3://b/0500x", "open", 1))
    enter(engine, ("s3://b/other", "done", 1), name="events")
    found = [file.uri for file in steering.files(engine, "orders")]
    assert found == sorted(found)
    assert (len(found), found[0], found[-1]) == (2_102, "s3://b/0000", "s3://b/x")
    assert len(list(steering.files(engine, "orders", state="done"))) == 2_100
    (bad,) = steering.files(engine, "orders", state="quarantined")
    assert (bad.uri, bad.reason, bad.state, bad.shard) == ("s3://b/x", "bad", "quarantined", b"s3://b/x".hex())
    assert [file.uri for file in steering.files(engine, "orders", containing="/0500")] == [
        "s3://b/0500",
        "s3://b/0500x",
    ]
    with pytest.raises(Invalid, match="quarantined"):
        list(steering.files(engine, "orders", state="broken"))


def test_two_writings_of_one_name_at_the_end_of_a_page_are_both_listed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "PAGE", 2)
    enter(engine, ("a", "done", 1), ("b1", "done", 1), ("b2", "done", 1), ("b3", "done", 1))
    with engine.begin() as connection:
        connection.execute(update(SHARDS).where(SHARDS.c.uri.startswith("b")).values(uri="b"))
    assert [bytes.fromhex(one.shard) for one in steering.files(engine, "orders")] == [b"a", b"b1", b"b2", b"b3"]


@pytest.mark.parametrize(
    ("text", "names"), [("%", ["a%b"]), ("_", ["a_b"]), ("a", ["a%b", "a/b", "a_b", "axb"]), ("/", ["a/b"])]
)
def test_what_a_name_contains_is_meant_literally(engine: Engine, text: str, names: list[str]) -> None:
    enter(engine, *[(name, "done", 1) for name in ("a%b", "a_b", "axb", "a/b", "none")])
    assert [file.uri for file in steering.files(engine, "orders", containing=text)] == names


def test_files_are_put_back_from_quarantine_all_or_by_name(engine: Engine) -> None:
    enter(engine, *[(name, "quarantined", 1) for name in "abcd"], ("done", "done", 1), ("open", "open", 1))
    enter(engine, ("a", "quarantined", 1), name="events")
    with engine.begin() as connection:
        connection.execute(update(SHARDS).values(attempts=3))
    with pytest.raises(NotFound, match=r"not in quarantine: done, nothing\."):
        steering.redrive(engine, "orders", ["a", "nothing", "done"])
    assert [one.uri for one in steering.files(engine, "orders", state="quarantined")] == list("abcd")
    assert steering.redrive(engine, "orders", ["a", "c"]) == 2
    back = list(steering.files(engine, "orders", state="redriven"))
    assert [(one.uri, one.attempts) for one in back] == [("a", 0), ("c", 0)]
    assert steering.redrive(engine, "orders") == 2
    assert steering.redrive(engine, "orders") == 0
    assert [one.state for one in steering.files(engine, "events")] == ["quarantined"]
    assert [one.state for one in steering.files(engine, "orders")] == [*["redriven"] * 4, "done", "open"]


# -- columns ---------------------------------------------------------------------------------------------------------


def struct(**columns: Any) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in columns.items()])


def test_a_schema_only_gets_columns_and_keeps_their_types_and_order(engine: Engine) -> None:
    assert kept_schema(engine, "orders") is None
    first = struct(id=LongType, name=StringType)
    assert widen(engine, "orders", first) == first
    assert widen(engine, "orders", struct(price=DoubleType, id=StringType)) == struct(
        id=LongType, name=StringType, price=DoubleType
    )
    assert widen(engine, "orders", struct(NAME=LongType)).names == ["id", "name", "price"]
    kept = kept_schema(engine, "orders")
    assert kept is not None
    assert kept.number == 2, "what brings nothing new is no change"
    assert kept_schema(engine, "events") is None


def test_types_become_wider_only_if_they_are_asked_for_and_never_narrower(engine: Engine) -> None:
    widen(engine, "orders", struct(id=IntegerType, n=FloatType))
    assert widen(engine, "orders", struct(ID=LongType)) == struct(id=IntegerType, n=FloatType)
    wide = struct(id=LongType, n=DoubleType)
    assert widen(engine, "orders", struct(ID=LongType, n=DoubleType), takes_types=True) == wide
    for other in (struct(id=IntegerType), struct(id=StringType), struct(id=DoubleType)):
        assert widen(engine, "orders", other, takes_types=True) == wide


def test_pipelines_that_find_columns_at_once_keep_all_of_them(engine: Engine) -> None:
    widen(engine, "orders", struct(id=LongType))
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def find(number: int) -> None:
        barrier.wait()
        try:
            for more in range(3):
                widen(engine, "orders", struct(**{f"c{number}{more}": LongType, "shared": StringType}))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=find, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    names = widen(engine, "orders", struct(id=LongType)).names
    assert sorted(names) == sorted(["id", "shared", *[f"c{number}{more}" for number in range(4) for more in range(3)]])


def test_a_schema_does_not_grow_without_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "COLUMNS_MAX", 3)
    widen(engine, "orders", struct(a=LongType, b=LongType))
    with pytest.raises(Invalid, match="4 columns: 3 is the limit"):
        widen(engine, "orders", struct(c=LongType, d=LongType))
    assert widen(engine, "orders", struct(c=LongType)).names == ["a", "b", "c"]


def test_rows_of_other_types_than_the_tables_are_refused(engine: Engine) -> None:
    state = QueueSharedState(engine, "orders", "p1", 1_000)
    check_fits(state, "table", struct(id=LongType, name=StringType))
    check_fits(state, "table", struct(Name=StringType, price=DoubleType))  # fewer and more columns are fine
    with pytest.raises(Invalid, match="id is string and was bigint; PRICE is bigint and was double"):
        check_fits(state, "table", struct(id=StringType, PRICE=LongType, name=StringType))
    check_fits(state, "other", struct(id=StringType))
    kept = kept_schema(engine, "orders/table")
    assert kept is not None
    assert StructType.fromJson(json.loads(kept.columns)) == struct(id=LongType, name=StringType, price=DoubleType)


# -- whose folder it is ----------------------------------------------------------------------------------------------


def test_a_folder_belongs_to_one_source_of_one_database(engine: Engine, tmp_path: Path) -> None:
    ownership.register(engine, config())
    ownership.register(engine, config())
    with pytest.raises(Invalid, match="is that of the ingest 'orders'"):
        ownership.register(engine, config(name="other", table="orders"))
    elsewhere = metastore.connect(f"sqlite:///{tmp_path}/elsewhere.db")
    with pytest.raises(Invalid, match="is that of the ingest 'orders'"):
        ownership.register(elsewhere, config())
    elsewhere.dispose()


def test_a_folder_with_data_of_nobody_is_not_taken(engine: Engine, tmp_path: Path) -> None:
    batch = tmp_path / "orders" / "data" / f"{'a' * 32}-000001"
    batch.mkdir(parents=True)
    with pytest.raises(Invalid, match="data of an ingest that this database does not know"):
        ownership.register(engine, config())
    batch.rmdir()
    (batch.parent / "day=1").mkdir()  # another program's
    ownership.register(engine, config())


def test_an_iceberg_table_keeps_its_name(engine: Engine) -> None:
    ownership.register(engine, config(committer="iceberg", iceberg_table="lake.a"))
    with pytest.raises(Invalid, match=r"iceberg_table was 'lake\.a', now 'lake\.b'"):
        ownership.register(engine, config(committer="iceberg", iceberg_table="lake.b"))


def test_data_of_messages_that_failed_is_forgotten_with_the_window(engine: Engine) -> None:
    ownership.register(engine, config())
    enter(engine, ("message:q/1", "open", 20), ("message:q/2", "open", 1), ("file:///a", "open", 20))
    forgetting.prune(engine, config(), None)
    assert left(engine) == ["file:///a", "message:q/2"]
