"""`once(...)` without a JVM: in which order sinks are written, what a replay repeats, and who is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql.types import LongType, StringType, StructField, StructType

import detent
import detent.spark
from detent.errors import Fenced, Invalid, NotFound, OtherInput
from detent.spark import call, once, once_batch, opened, to_delta, to_journal, to_queue, to_sql
from detent.spark.batch_identity import LocalCheckpoint
from detent.spark.once_batch import EngineSink, ExternalSink, Share, is_entered, key_of
from detent.tables.marks import BatchKey
from detent.transaction import Transaction
from sparkframes import Frame

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        yield owned
    opened.close_all()


def frame(*ids: int, query: str | None = "query", run: str = "run", **kind: str) -> Any:
    """A batch in two partitions."""
    batches = [
        pa.RecordBatch.from_pydict({"id": part, "name": [f"n{number}" for number in part]})
        for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :])
    ]
    return Frame(SCHEMA, *([batch] for batch in batches), query=query, run=run, **kind)


def ids(store: detent.Store, journal: str) -> list[int]:
    return [message.json()["id"] for message in store.journal(journal).read()] if journal in store.journals() else []


class Noted(ExternalSink):
    """Keeps its batches in a list that outlives drivers, and fails when it is told to."""

    def __init__(self, have: list[str], fail: bool = False) -> None:
        self._have = have
        self._fail = fail

    def write(self, batch: Any, key: BatchKey) -> None:
        if self._fail:
            raise OSError("no")
        if str(key) not in self._have:
            self._have.append(str(key))


class Spoiling(EngineSink):
    """Stages, and adds something that no transaction takes."""

    def stage(self, batch: Any, url: str) -> list[Any]:
        return []

    def add(self, store: detent.Store, transaction: Transaction, staged: list[Any], share: Share) -> None:
        transaction.check_next_offset("a", 99)


def test_all_of_the_store_takes_effect_at_once(store: detent.Store) -> None:
    store.queue("mail").create()
    write = once(store, "shop", to_journal("a"), to_journal("b"), to_queue("mail"))
    write(frame(1, 2, 3), 0)
    assert ids(store, "a") == ids(store, "b") == [1, 2, 3]
    assert [message.json()["id"] for message in store.queue("mail").claim(10)] == [1, 2, 3]
    row = store.ledger("shop")
    assert (row.query, row.batch, row.run) == ("query", 0, "run")


def test_a_replayed_batch_changes_nothing_and_runs_nothing(store: detent.Store) -> None:
    write = once(store, "shop", to_journal("a"))
    write(frame(1), 0)
    again = frame(1, run="later")
    write(again, 0)
    assert ids(store, "a") == [1]
    assert again.jobs == 0
    write(frame(2, run="later"), 1)
    assert ids(store, "a") == [1, 2]


def test_sinks_outside_come_first_and_are_asked_again(store: detent.Store) -> None:
    have: list[str] = []
    calls: list[tuple[int, str]] = []

    def count(batch: Any, key: str) -> None:
        calls.append((len(batch.partitions), key))

    with pytest.raises(OSError, match="no"):
        once(store, "shop", to_journal("a"), Noted(have), call(count), Noted([], fail=True))(frame(1), 0)
    assert (have, ids(store, "a"), store.ledgers()) == (["shop/query/0"], [], [])
    once(store, "shop", to_journal("a"), Noted(have), call(count))(frame(1, run="later"), 0)
    assert (have, ids(store, "a")) == (["shop/query/0"], [1])
    assert calls == [(2, "shop/query/0")] * 2


def test_what_the_store_refuses_leaves_nothing_in_it(store: detent.Store) -> None:
    with pytest.raises(detent.Conflict):
        once(store, "shop", to_journal("a"), Spoiling())(frame(1), 0)
    assert ids(store, "a") == []
    assert store.ledgers() == []
    store.sweep(grace="0s")
    once(store, "shop", to_journal("a"))(frame(1), 0)
    assert ids(store, "a") == [1]


def test_a_replay_of_a_batch_with_state_is_computed_and_changes_nothing(store: detent.Store) -> None:
    """Spark fails a batch whose state was not written."""
    write = once(store, "shop", to_journal("a"))
    first = frame(1)
    write(first, 0)
    assert (first.computed, first.kept) == (0, [])
    write = once(store, "shop", to_journal("a"))
    stateful = frame(2, run="later", plan="StateStoreSave [id#1], state info [ checkpoint = file:/x")
    write(stateful, 1)
    assert (stateful.computed, stateful.kept) == (1, [True, False])
    again = frame(2, run="later", plan="state info [ checkpoint = file:/x")
    write(again, 1)
    assert (again.computed, again.jobs, ids(store, "a")) == (1, 0, [1, 2])


@pytest.mark.parametrize(
    ("mode", "sink", "says"),
    [
        ("Update", to_delta("t"), "update mode"),
        ("Update", to_sql("sqlite:///x", "t"), "update mode"),
        ("Complete", to_journal("b"), "complete mode"),
        ("Complete", to_queue("b"), "complete mode"),
    ],
)
def test_an_output_mode_that_a_sink_cannot_write_is_refused_before_anything(
    store: detent.Store, mode: str, sink: Any, says: str
) -> None:
    have: list[str] = []
    with pytest.raises(Invalid, match=says):
        once(store, "shop", Noted(have), sink)(frame(1, mode=mode), 0)
    assert (have, store.ledgers()) == ([], [])


def test_several_sinks_see_the_same_rows(store: detent.Store) -> None:
    one, two, failing = frame(1), frame(2), frame(3)
    once(store, "shop", to_journal("a"))(one, 0)
    once(store, "shop", to_journal("a"), to_journal("b"))(two, 1)
    with pytest.raises(OSError, match="no"):
        once(store, "shop", Noted([], fail=True), to_journal("a"))(failing, 2)
    assert (one.kept, two.kept, failing.kept) == ([], [True, False], [True, False])


def test_another_driver_that_was_faster_is_no_error(store: detent.Store) -> None:
    class Faster(ExternalSink):
        def write(self, batch: Any, key: BatchKey) -> None:
            once(store, "shop", to_journal("a"))(frame(1), 0)

    once(store, "shop", Faster(), to_journal("a"))(frame(1), 0)
    assert ids(store, "a") == [1]


def test_another_query_of_the_name_is_refused_before_anything_is_written(store: detent.Store) -> None:
    once(store, "shop", to_journal("a"))(frame(1), 5)
    have: list[str] = []
    write = once(store, "shop", Noted(have), to_journal("a"))
    with pytest.raises(Fenced, match=r"`detent ledger reset file:\S+ shop --yes`"):
        write(frame(1, query="new"), 0)
    assert (have, ids(store, "a")) == ([], [1])
    store.reset_ledger("shop")
    write(frame(1, query="new", run="newer"), 0)
    assert (have, ids(store, "a")) == (["shop/new/0"], [1, 1])


def test_a_replaced_run_is_refused_before_anything_is_written(store: detent.Store) -> None:
    write = once(store, "shop", to_journal("a"))
    write(frame(1, run="old"), 0)
    write(frame(2, run="new"), 1)
    have: list[str] = []
    with pytest.raises(Fenced, match="run 'old'"):
        once(store, "shop", Noted(have), to_journal("a"))(frame(3, run="old"), 2)
    assert have == []


def test_the_ledger_says_what_is_entered(store: detent.Store) -> None:
    key = BatchKey("shop", "query", 3, "run")
    assert not is_entered(store, key)
    with store.transaction() as transaction:
        transaction.enter_ledger("shop", 3, query="query", run="run")
    assert is_entered(store, key)
    assert is_entered(store, key._replace(batch=2, run="other"))
    assert not is_entered(store, key._replace(batch=4))


def test_a_function_and_its_store_travel(store: detent.Store) -> None:
    write = once(store, "shop", to_journal("a"), to_delta("/tmp/x"), to_sql("sqlite:///x", "t"))
    copy = pickle.loads(pickle.dumps(write))
    assert copy._store is None
    small = pickle.loads(pickle.dumps(once(store, "shop", to_journal("a"))))
    small(frame(1), 0)
    once(store.url, "shop", to_journal("a"))(frame(2), 1)
    assert ids(store, "a") == [1, 2]


def test_a_batch_without_rows_is_entered(store: detent.Store) -> None:
    store.queue("mail").create()
    once(store, "shop", to_journal("a"), to_queue("mail"))(Frame(SCHEMA), 0)  # type: ignore[arg-type]
    once(store, "shop", to_journal("a"), to_queue("mail"))(Frame(SCHEMA, [], []), 1)  # type: ignore[arg-type]
    assert (ids(store, "a"), store.ledger("shop").batch) == ([], 1)


def test_a_journal_in_each_row(store: detent.Store) -> None:
    schema = StructType([StructField("body", StringType()), StructField("journal", StringType())])
    batch = pa.RecordBatch.from_pydict({"body": ["1", "2", "3"], "journal": ["a", "b", "a"]})
    once(store, "shop", to_journal())(Frame(schema, [batch]), 0)  # type: ignore[arg-type]
    assert [message.body for message in store.journal("a").read()] == [b"1", b"3"]
    with pytest.raises(Invalid, match="column called journal"):
        once(store, "shop", to_journal())(frame(1), 1)


def test_rows_that_do_not_fit_are_found_before_anything_is_written(store: detent.Store) -> None:
    have: list[str] = []
    batch = Frame(SCHEMA, [pa.RecordBatch.from_pydict({"id": [1], "name": [None]})])
    with pytest.raises(Invalid, match="journal is null"):
        once(store, "shop", Noted(have), to_journal(select=lambda rows: renamed(rows)))(batch, 0)  # type: ignore[arg-type]
    assert have == []


def renamed(rows: Any) -> Any:
    schema = StructType([StructField("id", LongType()), StructField("journal", StringType())])
    return Frame(schema, *([batch.rename_columns(["id", "journal"]) for batch in part] for part in rows.partitions))


def test_a_missing_queue_is_told(store: detent.Store) -> None:
    with pytest.raises(NotFound, match="mail"):
        once(store, "shop", to_queue("mail"))(frame(1), 0)
    assert store.ledgers() == []


class Ahead(ExternalSink):
    """Has a later batch, and so cannot tell whether it has this one."""

    def write(self, batch: Any, key: BatchKey) -> None:
        raise OtherInput("ahead")


def test_a_sink_that_is_ahead_is_asked_of_the_ledger(store: detent.Store) -> None:
    """Another driver has finished the batch, and the next one; or the ledger is of an older copy of the store."""

    class Overtaken(Ahead):
        def write(self, batch: Any, key: BatchKey) -> None:
            once(store, "shop", to_journal("a"))(frame(1), 0)
            super().write(batch, key)

    once(store, "shop", Overtaken(), to_journal("a"))(frame(1), 0)
    assert ids(store, "a") == [1]
    with pytest.raises(OtherInput, match="ahead"):
        once(store, "shop", Ahead(), to_journal("a"))(frame(2), 1)
    assert ids(store, "a") == [1]


def test_a_batch_whose_input_is_another_one_writes_nothing(
    store: detent.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsets").mkdir()
    entry = tmp_path / "offsets" / "0"
    monkeypatch.setattr(once_batch, "checkpoint_of", lambda session, query: LocalCheckpoint(tmp_path))
    have: list[str] = []
    write = once(store, "shop", Noted(have), to_journal("a"))
    for planned_at in (1, 2):
        entry.write_text(f"v1\n{planned_at}\n{{}}")
        write(frame(1), 0)
    entry.write_text('v1\n3\n{"in": 5}')
    with pytest.raises(OtherInput, match="batch 0 of the ledger 'shop' took effect with another input"):
        write(frame(1, 2), 0)
    assert (have, ids(store, "a")) == (["shop/query/0"], [1])


# -- who and what is refused ------------------------------------------------------------------------------------


def test_connect_and_batches_outside_of_streams_are_refused() -> None:
    class Connected:
        @property
        def sparkContext(self) -> Any:
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})

    with pytest.raises(Invalid, match="Spark Connect"):
        key_of("shop", SimpleNamespace(sparkSession=Connected()), 0)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="is for streams"):
        key_of("shop", frame(1, query=None), 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("file:/x", ""), "no ledger name"),
        (("file:/x", "shop"), "nothing to write to"),
        (("file:/x", "shop", print), "is no sink"),
        (("memory:", "shop", to_journal("a")), "memory: store"),
        ((None, "shop", to_journal("a")), "by its URL"),
        (("file:/x", "shop", to_delta("t"), to_delta("./t")), "the Delta table .*/t.*unite"),
        (("file:/x", "shop", to_sql("sqlite:///x", "t"), to_sql("sqlite:///x", "t")), "row 't' of detent_ledger"),
    ],
)
def test_what_once_refuses(arguments: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        once(*arguments)


def test_a_password_is_not_shown() -> None:
    sinks = [to_sql("postgresql://u:secret@h/d", "t") for _ in range(2)]
    with pytest.raises(Invalid) as caught:
        once("file:/x", "shop", *sinks)
    assert "secret" not in f"{caught.value}{sinks}"
    once(
        "file:/x", "shop", sinks[0], to_sql("postgresql://u:secret@other/d", "t"), to_sql("sqlite:///x", "t", label="u")
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: to_journal("a b"), "no journal name"),
        (lambda: to_queue("a b"), "no queue name"),
        (lambda: to_journal("a", select="id"), "SQL expressions"),
        (lambda: to_journal("a", select=[]), "SQL expressions"),
        (lambda: call("x"), "takes a function"),  # type: ignore[arg-type]
        (lambda: to_delta(""), "is a folder"),
        (lambda: to_delta("t", mode="merge"), "append or overwrite"),
        (lambda: to_sql("sqlite:///x"), "one of the two"),
        (lambda: to_sql("sqlite:///x", "t", write=print), "one of the two"),
        (lambda: to_sql(7, "t"), "URL of a database"),  # type: ignore[arg-type]
        (lambda: to_sql("sqlite:///x", write="t"), "function of a connection"),  # type: ignore[arg-type]
    ],
)
def test_what_sinks_refuse(make: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        make()
