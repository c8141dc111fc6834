"""Which pipeline has which file: every answer of the shard table, on both databases, and what a commit is refused for.

Time passes by making rows older, not by waiting: the database compares its own clock with what is in them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError

import postgresserver
from detent.errors import Invalid, NotFound, ShardsLost, Unavailable
from detent.ingest import metastore
from detent.ingest.identity import key_of
from detent.ingest.shard_sql import BATCHES, METADATA, SHARDS, SOURCES
from detent.ingest.shared_state import REASON_MAX, BatchRecord, FileShard, Opened, QueueSharedState
from detent.runtime.backoff import Backoff
from detent.sql import transactions
from detent.sql.transactions import transact

GRACE_MS = 60_000
LONG_AGO_MS = GRACE_MS + 5_000
POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))


class Database:
    """The tables, and rows that grow older."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = metastore.connect(url)

    def pipeline(self, token: str, *, grace_ms: int = GRACE_MS, source: str = "orders") -> QueueSharedState:
        return QueueSharedState(self.engine, source, token, grace_ms)

    def row(self, shard: FileShard, source: str = "orders") -> Any:
        query = select(SHARDS).where(SHARDS.c.source == source, SHARDS.c.shard == shard.key)
        with self.engine.connect() as connection:
            return connection.execute(query).first()

    def change(self, shard: FileShard, **values: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(SHARDS).where(SHARDS.c.shard == shard.key).values(**values))

    def age(self, ms: int) -> None:
        """Let time pass for all rows."""
        with self.engine.begin() as connection:
            connection.execute(update(SHARDS).values(updated_at=SHARDS.c.updated_at - ms))

    def forget(self, shard: FileShard) -> None:
        with self.engine.begin() as connection:
            connection.execute(delete(SHARDS).where(SHARDS.c.shard == shard.key))

    def batches(self) -> list[tuple[str, str, int]]:
        with self.engine.connect() as connection:
            query = select(BATCHES.c.batch, BATCHES.c.token, BATCHES.c.shards).order_by(BATCHES.c.batch)
            return [tuple(row) for row in connection.execute(query)]


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return postgresserver.new_database() if request.param == "postgresql" else f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    yield made
    made.engine.dispose()


def shard(name: object, size: int = 7) -> FileShard:
    uri = f"s3://landing/{name}"
    return FileShard(key_of(uri, "etag:1"), uri, "etag:1", size)


def shards(count: int) -> list[FileShard]:
    return [shard(number) for number in range(count)]


def keys(some: list[FileShard]) -> set[bytes]:
    return {one.key for one in some}


def advance(pipeline: QueueSharedState, some: list[FileShard], batch: str = "b1") -> None:
    record = BatchRecord(batch, len(some), 1, 10, 100)
    transact(pipeline.engine, lambda connection: pipeline.advance(connection, some, record))


A, B = shard("a"), shard("b")


# -- asking ----------------------------------------------------------------------------------------------------------


def told(opened: Opened) -> tuple[set[bytes], frozenset[bytes], frozenset[bytes]]:
    return set(opened.granted), opened.finished, opened.held


def test_a_new_file_belongs_to_whoever_asks_first(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    assert told(first.open([A])) == ({A.key}, frozenset(), frozenset())
    assert told(second.open([A, B])) == ({B.key}, frozenset(), {A.key})
    row = database.row(A)
    assert (row.state, row.token, row.position, row.uri, row.version, row.size) == (
        "open",
        "p1",
        "",
        A.uri,
        "etag:1",
        7,
    )


def test_taking_a_file_of_a_silent_pipeline_makes_it_fresh_so_that_no_third_takes_it_too(database: Database) -> None:
    first, second, third = (database.pipeline(token) for token in ("p1", "p2", "p3"))
    first.open([A])
    database.age(GRACE_MS // 2)
    assert second.open([A]).held == {A.key}
    database.age(LONG_AGO_MS)
    assert second.open([A]).granted.keys() == {A.key}
    assert third.open([A]) == ({}, frozenset(), {A.key})
    assert first.open([A]).held == {A.key}
    assert (first.lost([A.key]), second.lost([A.key])) == ({A.key}, frozenset())


@pytest.mark.parametrize("passed_ms", [0, GRACE_MS * 7 // 10, LONG_AGO_MS])
def test_ones_own_file_is_granted_again(database: Database, passed_ms: int) -> None:
    """A message that comes back while this pipeline has its file is no error: it goes on."""
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    database.age(LONG_AGO_MS)
    second.open([A])  # taken over, as after a crash
    database.age(passed_ms)
    assert second.open([A]).granted.keys() == {A.key}
    database.age(GRACE_MS * 7 // 10)
    assert first.open([A]).held == {A.key}, "asking again says that one is alive"


def test_files_that_are_done_or_in_quarantine_are_finished_for_everybody(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A, B])
    advance(first, [A])
    assert first.fail(B.key, "bad", 0, 1)
    database.age(LONG_AGO_MS)
    for pipeline in (first, second):
        assert pipeline.open([A, B]) == ({}, {A.key, B.key}, frozenset())
    assert (database.row(A).state, database.row(B).state) == ("done", "quarantined")


def test_sources_of_one_database_do_not_meet(database: Database) -> None:
    first, other = database.pipeline("p1"), database.pipeline("p1", source="events")
    first.open([A])
    assert other.open([A]).granted.keys() == {A.key}
    advance(first, [A])
    assert other.touch() == {A.key}
    advance(other, [A])
    assert (database.row(A).state, database.row(A, "events").state) == ("done", "done")


def test_a_file_may_not_be_named_twice_in_one_call(database: Database) -> None:
    pipeline = database.pipeline("p1")
    with pytest.raises(Invalid, match="twice"):
        pipeline.open([A, B, A._replace(size=9)])
    with pytest.raises(Invalid, match="twice"):
        advance(pipeline, [A, A])
    assert database.row(A) is None


@pytest.mark.parametrize("length", [1_024, 4_000])
def test_names_may_be_as_long_as_stores_allow(database: Database, length: int) -> None:
    pipeline = database.pipeline("p1")
    long = [shard(end.rjust(length, "é")) for end in "ab"]
    assert pipeline.open(long).granted.keys() == keys(long)
    advance(pipeline, long)
    assert [database.row(one).uri for one in long] == [one.uri for one in long]


# -- letting go ------------------------------------------------------------------------------------------------------


def test_released_files_are_had_at_once_by_anybody(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A, B])
    first.release([A.key])
    second.release([B.key])  # not its own: nothing happens
    assert told(second.open([A, B])) == ({A.key}, frozenset(), {B.key})


def test_a_file_that_failed_is_had_after_the_delay_and_not_before(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    assert not first.fail(A.key, "broken", 20_000, 3)
    for pipeline in (first, second):
        assert pipeline.open([A]).held == {A.key}
    database.age(10_000)
    assert (second.open([A]).held, second.left_behind(9)) == ({A.key}, [])
    database.age(11_000)
    assert second.left_behind(9) == [A]
    assert second.open([A]).granted.keys() == {A.key}
    assert database.row(A).reason == "broken"


def test_the_last_attempt_puts_a_file_into_quarantine(database: Database) -> None:
    pipeline = database.pipeline("p1")
    answers = []
    for _ in range(3):
        assert pipeline.open([A]).granted.keys() == {A.key}
        answers.append(pipeline.fail(A.key, "x" * 5_000, 0, 3))
        database.age(10)
    assert answers == [False, False, True]
    row = database.row(A)
    assert (row.state, row.attempts, row.token, row.reason) == ("quarantined", 3, "", "x" * REASON_MAX)


def test_what_is_not_a_files_fault_is_never_counted(database: Database) -> None:
    pipeline = database.pipeline("p1")
    for _ in range(5):
        assert pipeline.open([A]).granted.keys() == {A.key}
        assert not pipeline.fail(A.key, "the store does not answer", 0, None)
        database.age(10)
    assert (database.row(A).state, database.row(A).attempts) == ("open", 0)


def test_a_failure_at_a_file_that_another_has_changes_nothing(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    before = database.row(A)
    assert not second.fail(A.key, "broken", 0, 1)
    assert database.row(A) == before


# -- committing ------------------------------------------------------------------------------------------------------


def test_a_commit_moves_files_to_their_end_and_is_noted(database: Database) -> None:
    pipeline = database.pipeline("p1")
    pipeline.open([A, B])
    advance(pipeline, [A, B], "b7")
    row = database.row(B)
    assert (row.state, row.position, row.batch) == ("done", "~00000000000000000007", "b7")
    assert database.batches() == [("b7", "p1", 2)]


def test_shard_that_is_set_aside_is_in_quarantine_once(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    taken, bad = shard("taken"), shard("bad")
    first.open([taken])
    assert first.set_aside({bad: "x" * 3_000, taken: "late"}) == {bad: "x" * REASON_MAX}
    assert second.set_aside({bad: "again"}) == {}
    assert second.open([bad, taken]) == Opened({}, frozenset({bad.key}), frozenset({taken.key}))
    row = database.row(bad)
    assert (row.state, row.token, row.attempts, row.reason) == ("quarantined", "", 0, "x" * REASON_MAX)
    assert database.row(taken).state == "open"


@pytest.mark.parametrize("how", ["taken", "vanished", "finished", "released", "redriven", "never opened"])
def test_a_commit_with_one_file_that_is_not_ours_leaves_nothing_and_names_it(database: Database, how: str) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    mine, lost = shards(4), shard("lost")
    first.open(mine if how == "never opened" else [*mine, lost])
    if how == "taken":
        database.change(lost, updated_at=0)
        assert second.open([lost]).granted
    elif how == "vanished":
        database.forget(lost)
    elif how == "finished":
        second.finish([lost])
    elif how == "released":
        first.release([lost.key])
    elif how == "redriven":
        database.change(lost, state="redriven", token="")
    before = database.row(lost)
    with pytest.raises(ShardsLost) as failure:
        advance(first, [*mine, lost])
    assert failure.value.shards == {lost.key}
    assert [database.row(one).state for one in mine] == ["open"] * 4
    assert (database.row(lost), database.batches()) == (before, [])
    advance(first, mine)
    assert database.batches() == [("b1", "p1", 4)]


def test_a_commit_cannot_be_applied_again(database: Database) -> None:
    pipeline = database.pipeline("p1")
    pipeline.open([A, B])
    advance(pipeline, [A], "b1")
    with pytest.raises(ShardsLost) as failure:
        advance(pipeline, [A, B], "b2")
    assert failure.value.shards == {A.key}
    with pytest.raises(ShardsLost) as failure:
        advance(pipeline, [A], "b1")  # by its own name, too
    assert failure.value.shards == {A.key}
    assert (database.row(A).batch, database.row(B).state, database.batches()) == ("b1", "open", [("b1", "p1", 1)])


def test_a_batch_that_was_refused_is_never_committed_and_a_committed_one_is_never_refused(database: Database) -> None:
    sleeper, sweeper = database.pipeline("p1"), database.pipeline("p2")
    sleeper.open([A, B])
    advance(sleeper, [A], "b1")
    assert not sweeper.refuse("b1")
    assert [sweeper.refuse("b2") for _ in range(2)] == [True, True]
    assert (sweeper.committed(), sweeper.was_refused("b1"), sweeper.was_refused("b2")) == ({"b1"}, False, True)
    with pytest.raises(ShardsLost) as failure:
        advance(sleeper, [B], "b2")
    assert (failure.value.shards, database.row(B).state) == ({B.key}, "open")
    advance(sleeper, [B], "b3")
    assert sweeper.committed() == {"b1", "b3"}


def test_what_the_table_has_is_finished_whoever_holds_the_row(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    new, done = shard("new"), shard("done")
    first.open([A, done])
    advance(first, [done], "b1")
    second.open([B])
    assert second.fail(B.key, "bad", 0, 1)
    second.finish([A, B, new, done], batch="b9", reason="the table has it")
    rows = [database.row(one) for one in (A, B, new, done)]
    assert [row.state for row in rows] == ["done"] * 4
    assert [row.batch for row in rows] == ["b9", "b9", "b9", "b1"]
    assert [row.reason for row in rows] == [*["the table has it"] * 3, ""]
    with pytest.raises(ShardsLost):
        advance(first, [A], "b2")


# -- being alive -----------------------------------------------------------------------------------------------------


def test_a_pipeline_that_says_it_is_alive_keeps_its_open_files_and_those_alone(database: Database) -> None:
    first, second, third = (database.pipeline(token) for token in ("p1", "p2", "p3"))
    done, theirs = shard("done"), shard("theirs")
    first.open([A, B, done])
    advance(first, [done])
    second.open([theirs])
    database.age(LONG_AGO_MS)
    assert first.touch() == {A.key, B.key}
    assert told(third.open([A, B, theirs])) == ({theirs.key}, frozenset(), {A.key, B.key})
    assert second.touch() == frozenset()


def test_what_nobody_works_on_is_found_without_a_message(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    dead, redriven, released, fresh, done = map(shard, ("dead", "redriven", "released", "fresh", "done"))
    message = FileShard(b"m" * 16, "message:orders/1", "", 3)
    first.open([dead, redriven, done, message])
    advance(first, [done])
    assert first.fail(redriven.key, "bad", 0, 1)
    database.age(LONG_AGO_MS)
    first.open([released, fresh])
    first.release([released.key])
    database.change(redriven, state="redriven")
    database.age(1)
    assert sorted(second.left_behind(9)) == sorted([dead, redriven, released])
    assert len(second.left_behind(2)) == 2
    assert sorted(first.left_behind(9)) == sorted([redriven, released]), "its own are no find"
    assert second.open([redriven]).granted.keys() == {redriven.key}
    assert (first.unfinished(), second.unfinished()) == (3, 2), "its own and nobody's, without the message"


def test_of_all_pipelines_one_has_the_turn_in_an_interval(database: Database) -> None:
    with database.engine.begin() as connection:
        values = {"settings": "{}", "pruned_at": 0, "swept_at": 0, "forgotten_to": 0}
        connection.execute(insert(SOURCES), [{"source": name, **values} for name in ("orders", "events")])
    pipelines = [database.pipeline(token) for token in ("p1", "p2")]
    assert [one.take_turn("pruned_at", 60_000) for one in pipelines] == [True, False]
    assert pipelines[1].take_turn("swept_at", 60_000), "another thing has turns of its own"
    assert database.pipeline("p3", source="events").take_turn("pruned_at", 60_000)
    with database.engine.begin() as connection:
        connection.execute(update(SOURCES).values(pruned_at=SOURCES.c.pruned_at - 61_000))
    assert [one.take_turn("pruned_at", 60_000) for one in reversed(pipelines)] == [True, False]


# -- many ------------------------------------------------------------------------------------------------------------


def test_more_files_than_one_statement_takes_are_one_commit(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    many = shards(2_500)
    assert first.open(many).granted.keys() == keys(many)
    assert second.open(many).held == keys(many)
    lost = max(many, key=lambda one: one.key)  # in the last portion: what the first ones changed is taken back
    first.release([lost.key])
    with pytest.raises(ShardsLost) as failure:
        advance(first, many)
    assert failure.value.shards == {lost.key} == first.lost(keys(many))
    rest = [one for one in many if one != lost]
    assert first.touch() == keys(rest)
    advance(first, rest)
    second.finish(many)
    assert second.open(many).finished == keys(many)
    assert database.batches() == [("b1", "p1", 2_499)]


def test_pipelines_that_steal_from_each_other_all_the_time_commit_each_file_once(database: Database) -> None:
    many = shards(200)
    tally: list[FileShard] = []
    lost: list[bytes] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        pipeline = database.pipeline(f"p{number}", grace_ms=5)
        for attempt in range(2_000):
            opened = pipeline.open(chance.sample(many, 40))
            mine = [one for one in many if one.key in opened.granted]
            if not mine and len(tally) == len(many):
                return
            chance.shuffle(mine)
            threading.Event().wait(chance.uniform(0, 0.02))
            try:
                advance(pipeline, mine, f"{number}-{attempt}")
                tally.extend(mine)
            except ShardsLost as error:
                lost.extend(error.shards)
        raise AssertionError("never done")

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(tally) == sorted(many)
    assert sum(count for _, _, count in database.batches()) == 200
    assert lost, "nobody was ever in anybody's way, so nothing was tried"


# -- the database ----------------------------------------------------------------------------------------------------


def test_pipelines_that_start_at_once_make_the_tables_once(url: str) -> None:
    barrier = threading.Barrier(6)
    failures: list[BaseException] = []

    def start(number: int) -> None:
        barrier.wait()
        try:
            engine = metastore.connect(url)
            QueueSharedState(engine, "orders", f"p{number}", GRACE_MS).open([A, shard(number)])
            engine.dispose()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        names = set(sqlalchemy.inspect(connection).get_table_names())
        assert names == set(METADATA.tables)
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM detent_ingest_shards")).scalar() == 7
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM detent_ingest_manifest")).scalar() == 0
    engine.dispose()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("ingest.db", "sqlite:///ingest.db"),
        ("", "a database's URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("postgresql+nope://user:secret@localhost/shop", "no driver"),
        ("postgresql://user:sec/ret@localhost:x/shop", "special characters"),
        ("sqlite:///file::memory:?uri=true", "in memory"),
        ("mysql://root:secret@localhost/shop", "not in mysql"),
        ("nothing://user:secret@localhost/shop", "not in nothing"),
        ("postgresql+psycopg2://user:secret@localhost/shop", "needs a driver"),
    ],
)
def test_only_a_database_that_keeps_shards_is_taken_and_no_password_is_shown(wrong: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as failure:
        metastore.connect(wrong)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_who_looks_makes_nothing_and_finds_what_is_there(tmp_path: Path, form: str) -> None:
    url = form.format(tmp_path / "state.db")
    with pytest.raises(NotFound, match="no ingest ever ran on sqlite:"):
        metastore.connect_existing(url)
    assert list(tmp_path.iterdir()) == []
    metastore.connect(url).dispose()
    metastore.connect_existing(url).dispose()
    assert {path.name for path in tmp_path.iterdir()} >= {"state.db"}


def test_a_database_of_somebody_elses_is_looked_at_and_left_alone(url: str) -> None:
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE theirs (x INTEGER)"))
    with pytest.raises(NotFound):
        metastore.connect_existing(url)
    with engine.connect() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == ["theirs"]
    engine.dispose()


def test_a_transaction_that_others_came_in_the_way_of_is_tried_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "RETRY", Backoff(0.0, 0.0))
    calls: list[int] = []

    def work(connection: sqlalchemy.Connection, failures: int) -> str:
        calls.append(1)
        connection.execute(insert(BATCHES).values(source="s", batch=f"b{len(calls)}", token="t", committed_at=0,
                                                  shards=0, files=0, rows=0, bytes=0))  # fmt: skip
        if len(calls) <= failures:
            raise OperationalError("commit", {}, Exception("busy"))
        return "done"

    assert transact(database.engine, lambda connection: work(connection, 3)) == "done"
    assert [batch for batch, _, _ in database.batches()] == ["b4"], "what was tried before is not there"
    with pytest.raises(Unavailable):
        transact(database.engine, lambda connection: work(connection, 1_000))
    with pytest.raises(IntegrityError):  # what can never succeed is not tried again
        transact(database.engine, lambda connection: connection.execute(update(BATCHES).values(batch=None)))
    assert [batch for batch, _, _ in database.batches()] == ["b4"]


def test_a_file_over_which_pipelines_died_says_so_and_one_that_was_given_back_does_not(database: Database) -> None:
    first, second, third = (database.pipeline(token) for token in ("p1", "p2", "p3"))
    assert first.open([A, B]).granted[A.key] == (0, True)
    c = shard("waited")
    first.open([c])
    assert first.begin([A.key, B.key, b"unknown"]) == {b"unknown"}
    first.release([B.key])
    database.age(LONG_AGO_MS)
    assert second.open([A, B, c]).granted == {A.key: (1, False), B.key: (0, False), c.key: (0, False)}
    assert second.open([A]).granted == {A.key: (1, False)}  # its own
    assert first.begin([A.key]) == {A.key}
    second.begin([A.key])
    database.age(LONG_AGO_MS)
    assert third.open([A]).granted == {A.key: (2, False)}


def test_what_is_forgotten_is_as_if_nobody_had_asked(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    second.forget([A.key])  # not its own
    assert second.open([A]).held == {A.key}
    first.forget([A.key])
    assert second.open([A]).granted == {A.key: (0, True)}


def test_others_are_known_by_when_they_were_heard_of(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    assert second.others().keys() == {"p1"}
    before = second.others()["p1"]
    database.age(1_000)
    first.touch()
    assert second.others()["p1"] >= before
    assert first.others() == {}


def test_rows_of_a_clock_that_was_ahead_are_taken(database: Database) -> None:
    """A pipeline that died while the database's clock was ahead would hold its files until that time has come."""
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    values = {"source": "orders", "settings": "{}", "pruned_at": 0, "swept_at": 0, "forgotten_to": 0}
    with database.engine.begin() as connection:
        connection.execute(insert(SOURCES), [values])
    assert first.take_turn("swept_at", 60_000)
    database.age(-24 * 3_600_000)
    with database.engine.begin() as connection:
        connection.execute(update(SOURCES).values(swept_at=SOURCES.c.swept_at + 24 * 3_600_000))
    assert second.left_behind(9) == [A]
    assert A.key in second.open([A]).granted
    assert second.take_turn("swept_at", 60_000)


def test_file_that_failed_is_not_tried_before_its_delay_however_long(database: Database) -> None:
    first, second = database.pipeline("p1"), database.pipeline("p2")
    first.open([A])
    first.fail(A.key, "unreadable", 24 * 3_600_000, attempts_max=9)
    assert second.left_behind(9) == []
    assert second.open([A]).held == {A.key}
