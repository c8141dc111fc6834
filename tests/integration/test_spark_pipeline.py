"""Pipelines on a real Spark: what matches and what does not, every kind of source and sink, stopping and failing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import detent
import sparkling
from detent.cli.kinds import PIPELINE, find_all
from detent.errors import Invalid
from detent.spark import quarantine
from detent.spark.pipeline import Pipeline, queue
from detent.spark.pipeline_runner import run
from detent.spark.stream_state import Event, Silent
from detent.store import Store
from processes import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = sparkling.MARKS

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
ORDER = "id BIGINT NOT NULL, amount DOUBLE"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as opened:
        yield opened


def bodies(store: Store, journal: str) -> list[Any]:
    return [json.loads(message.body) for message in store.journal(journal).read()]


class Recorder(Silent):
    """A view that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)


# -- what matches a schema ------------------------------------------------------------------------------------------

NO_JSON, MISMATCH, NO_OBJECT = "the body is no JSON", "the body does not match the schema", "the body is no JSON object"
GOOD = [
    (b'{"id": 1}', (1, None)),
    (b' {"amount": 2, "id": 2, "more": [1]} ', (2, 2.0)),
    (b'{"id": 3, "amount": null, "n": {"m": 5}}', (3, None)),
    ('{"id": 4, "more": "ä"}'.encode(), (4, None)),
]
BAD = [
    (b"half", NO_JSON),
    (b"", NO_JSON),
    (b"\xff\xfe", NO_JSON),
    (b'{"id": 1', NO_JSON),
    (b'{"id": 1} and more', NO_JSON),
    (b'{"id": 1}{"id": 2}', NO_JSON),
    (b'{"id": 1},{"id": 2}', NO_JSON),
    (b"{'id': 1}", NO_JSON),
    (b'{"id": "one"}', MISMATCH),
    (b'{"id": 1.5}', MISMATCH),
    (b'{"id": 99999999999999999999}', MISMATCH),
    (b'{"id": 1, "n": {"m": "x"}}', MISMATCH),
    (b'[{"id": 1}]', MISMATCH),
    (b"7", MISMATCH),
    (b"null", NO_OBJECT),
    (b"{}", "the field id is missing"),
    (b'{"id": null}', "the field id is missing"),
    (b'{"id": 1, "n": {}}', "the field n.m is missing"),
    (None, "the message has no body"),
]


def test_what_matches_is_told_from_what_does_not(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    from detent.spark.stream_frames import parse

    columns = (
        "journal STRING, offset BIGINT, published_at TIMESTAMP, key BINARY, headers MAP<STRING, STRING>, body BINARY"
    )
    headers = {"own": "1", quarantine.REASON: "of another time"}
    given = [body for body, _ in GOOD] + [body for body, _ in BAD]
    frame = spark.createDataFrame([("j", at, None, b"k", headers, body) for at, body in enumerate(given)], columns)
    schema = StructType.fromDDL(ORDER + ", n STRUCT<m: BIGINT NOT NULL>")
    good, bad = parse(frame, schema)  # type: ignore[arg-type]
    assert [(row.id, row.amount) for row in good.orderBy("_message.offset").collect()] == [row for _, row in GOOD]
    assert good.columns == ["id", "amount", "n", "_message"]
    rows = bad.collect()
    assert len(rows) == len(BAD)
    for row in rows:
        body, reason = BAD[int(row.headers[quarantine.OFFSET]) - len(GOOD)]
        assert (row.body, row.key, row.headers["own"]) == (body or b"", b"k", "1")
        assert row.headers[quarantine.REASON].startswith(reason), body
        assert row.headers[quarantine.JOURNAL] == "j"


def test_what_a_queue_gave_says_so(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    from detent.spark.stream_frames import parse

    columns = "queue STRING, message BIGINT, headers MAP<STRING, STRING>, body BINARY, uri STRING"
    given = [("q", 7, {"queue": "q"}, b"half", None), ("q", 8, {}, None, "s3://bucket/x")]
    _, bad = parse(spark.createDataFrame(given, columns), StructType.fromDDL(ORDER))  # type: ignore[arg-type]
    by_message = {row.headers[quarantine.MESSAGE]: row for row in bad.collect()}
    assert {row.headers[quarantine.QUEUE] for row in by_message.values()} == {"q"}
    assert (by_message["7"].body, quarantine.URI in by_message["7"].headers) == (b"half", False)
    assert by_message["8"].headers[quarantine.URI] == "s3://bucket/x"


def test_columns_that_make_no_message_are_refused(spark: SparkSession) -> None:
    from detent.spark.stream_frames import messages_of, published_of

    def columns(ddl: str) -> DataFrame:
        return spark.createDataFrame([], ddl)

    assert messages_of(columns("offset BIGINT, body STRING, queue STRING")).columns == ["body", "key", "headers"]
    assert messages_of(columns("`a.b` BIGINT, _message STRING")).columns == ["body", "key", "headers"]
    assert published_of(columns("id BIGINT, delay INT")).columns == ["body", "headers", "delay"]
    assert published_of(columns("body BINARY, uri STRING, key STRING")).columns == ["body", "headers", "uri"]
    for ddl, says in {
        "body STRING, more INT": "the columns more have no place",
        "key STRING": "no column body",
        "body INT": "the column body is binary or string, not int",
        "id INT, key INT": "the column key is binary or string, not int",
        "id INT, headers STRING": "map<string,string>, not string",
    }.items():
        with pytest.raises(Invalid) as refused:
            messages_of(columns(ddl))
        assert says in str(refused.value)
    messages_of(columns("body STRING, delay INT"), into_queues=True)


# -- all kinds of sources and sinks ---------------------------------------------------------------------------------


def shop(store: Store, tmp_path: Path, schema: str = ORDER) -> Pipeline:
    pipeline = Pipeline("shop", store=store.url, checkpoints=tmp_path / "checkpoints")

    @pipeline.stream(read="orders", write="paid", json=schema)
    def paid(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 0").selectExpr("id", "CAST(amount AS DOUBLE) amount", "_message")

    @pipeline.stream(read="paid", write=["copies", queue("mails")], json=ORDER)
    def copied(paid: DataFrame) -> DataFrame:
        return paid.selectExpr("id", "amount", "map('id', CAST(id AS STRING)) AS headers", "0 AS delay")

    @pipeline.stream(read=queue("mails"), write="sent")
    def sent(mails: DataFrame) -> DataFrame:
        return mails.where("priority = 128")

    @pipeline.table(read=["paid", "sent"], path=tmp_path / "table", json=ORDER)
    def table(messages: DataFrame) -> DataFrame:
        return messages.selectExpr("_message.journal AS journal", "id")

    return pipeline


def test_every_kind_of_source_and_sink(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    store.queue("mails").create()
    store.journal("orders").append_many([b'{"id": %d, "amount": %d}' % (n, n % 3) for n in range(30)])
    store.journal("orders").append(b'{"id": 99, "amount": "1"}', key=b"k", headers={"h": "1"})
    expected = [n for n in range(30) if n % 3]
    view = Recorder()
    summary = run(shop(store, tmp_path), once=True, view=view)
    assert [state.error for state in summary.states] == [""] * 4
    assert [(state.name, state.lag) for state in summary.states] == [
        (n, 0) for n in ("paid", "copied", "sent", "table")
    ]
    for journal in ("paid", "copies", "sent"):
        assert sorted(message["id"] for message in bodies(store, journal)) == expected, journal
    sent = next(iter(store.journal("sent").read()))
    assert sent.headers["id"] == str(json.loads(sent.body)["id"])
    assert (store.queue("mails").info().done, store.queue("mails").info().in_flight) == (len(expected), 0)
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["journal"], row["id"]) for row in rows) == [(j, n) for j in ("paid", "sent") for n in expected]

    again = run(shop(store, tmp_path), once=True)
    assert [state.messages for state in again.states] == [0, 0, 0, 0]
    assert len(bodies(store, "copies")) == len(expected)

    (waiting,) = quarantine.waiting(store, "shop/paid.quarantine")
    assert (waiting.source, waiting.place, waiting.key, waiting.headers) == ("orders", 30, b"k", {"h": "1"})
    assert quarantine.redrive(store, "shop/paid.quarantine") == 1
    mended = run(shop(store, tmp_path, "id BIGINT NOT NULL, amount STRING"), once=True, only=["paid", "sent", "copied"])
    assert [state.messages for state in mended.states] == [1, 1, 1]
    assert sorted(message["id"] for message in bodies(store, "sent")) == [*expected, 99]
    assert quarantine.info(store, "shop/paid.quarantine").waiting == 0


def test_two_sources_each_as_a_dataframe(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    pipeline = Pipeline("join", store=store.url)
    store.journal("shop/orders").append_many([b'{"id": 1}', b'{"id": 2}', b"half"])
    store.journal("shop/refunds").append_many([b'{"order": 2}', b"half"])

    @pipeline.stream(
        read=["shop/orders", "shop/refunds"], write="refunded", json={"orders": "id BIGINT", "refunds": "order BIGINT"}
    )
    def refunded(refunds: DataFrame, orders: DataFrame) -> DataFrame:
        return orders.join(refunds, orders.id == refunds.order).select("id")

    summary = run(pipeline, once=True)
    assert [state.error for state in summary.states] == [""]
    assert bodies(store, "refunded") == [{"id": 2}]
    origins = sorted(one.source for one in quarantine.waiting(store, "join/refunded.quarantine"))
    assert origins == ["shop/orders", "shop/refunds"]
    assert (tmp_path / "store.checkpoints" / "join" / "refunded").is_dir()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_results_that_change_are_in_tables_once(spark: SparkSession, store: Store, tmp_path: Path, mode: str) -> None:
    """With a replay: of the second batch, whose end Spark did not log, and whose state it wants to be written again."""
    from deltalake import DeltaTable
    from pyspark.sql import functions as F

    from detent.spark import to_sql

    url = f"sqlite:///{tmp_path}/counts.db"
    with contextlib.closing(sqlite3.connect(tmp_path / "counts.db")) as connection:
        connection.execute("CREATE TABLE counts (Customer TEXT PRIMARY KEY, n INTEGER)")
    pipeline = Pipeline("p", store=store.url, checkpoints=tmp_path / "checkpoints")

    schema = "Customer STRING NOT NULL"

    def counted(orders: DataFrame) -> DataFrame:
        return orders.groupBy("Customer").agg(F.count("*").alias("n"))

    merge = ["Customer"] if mode == "update" else None
    pipeline.table(read="orders", path=tmp_path / "counts", merge_on=merge, mode=mode, json=schema)(counted)
    pipeline.stream(read="orders", write=to_sql(url, "counts", merge_on=merge), mode=mode, name="sql", json=schema)(
        counted
    )
    expected: Counter[str] = Counter()
    for customers in ("aab", "bcc", "a"):
        store.journal("orders").append_many([b'{"Customer": "%s"}' % one.encode() for one in customers])
        store.journal("orders").append(b"{}")
        expected.update(customers)
        for _ in range(2):
            summary = run(pipeline, once=True)
            assert [state.error for state in summary.states] == ["", ""]
            rows = DeltaTable(tmp_path / "counts").to_pyarrow_table().to_pylist()
            assert sorted((row["Customer"], row["n"]) for row in rows) == sorted(expected.items())
            with contextlib.closing(sqlite3.connect(tmp_path / "counts.db")) as connection:
                assert dict(connection.execute("SELECT * FROM counts")) == expected
            for commits in (tmp_path / "checkpoints").glob("p/*/commits"):
                newest = max(path.name for path in commits.iterdir() if path.name.isdigit())
                for path in (commits / newest, commits / f".{newest}.crc"):
                    path.unlink(missing_ok=True)
    assert (
        quarantine.info(store, "p/sql.quarantine").waiting
        == quarantine.info(store, "p/counted.quarantine").waiting
        == 3
    )


# -- running on, stopping, failing ----------------------------------------------------------------------------------


def test_a_stream_fails_is_started_again_and_is_stopped(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    from detent.spark.once_writing import call

    store.queue("mails").create()
    store.queue("mails").publish_many([b"1", b"2", b"3"])
    calls: list[tuple[str, int]] = []

    def flaky(batch: DataFrame, key: str) -> None:
        calls.append((key, batch.count()))
        if len(calls) == 1:
            raise OSError("the disk is full")

    pipeline = Pipeline("p", store=store.url)
    pipeline.stream(read=queue("mails"), write=["kept", call(flaky)], name="works")(lambda mails: mails)
    pipeline.stream(read="kept", write="never", name="wrong")(lambda kept: kept.select("nothing"))
    stop, view = threading.Event(), Recorder()
    running = threading.Thread(target=lambda: summaries.append(run(pipeline, view=view, stop=stop)), daemon=True)
    summaries: list[Any] = []
    running.start()
    eventually(lambda: "kept" in store.journals() and store.journal("kept").next_offset() == 3, seconds=120)
    eventually(lambda: any(event.kind == "progress" for event in view.events), seconds=60)
    stop.set()
    running.join(120)
    (summary,) = summaries
    works, wrong = summary.states
    assert (works.phase, works.failures, works.messages) == ("stopped", 1, 3)
    assert (wrong.phase, summary.failed) == ("failed", [wrong])
    assert "nothing" in wrong.error
    assert calls[0] == calls[1], "the batch was done again, under the same key"
    failed = next(event for event in view.events if event.kind == "failed")
    assert failed.fields["error"] == "OSError: the disk is full"
    assert (store.queue("mails").info().done, store.queue("mails").info().in_flight) == (3, 0)


def do_as_told(text: str) -> None:
    """Run the commands that an error ends with."""
    for command in re.findall(r"`([^`]+)`", text.partition("To start over")[2]):
        command = command.replace("detent ", f"{sys.executable} -m detent.cli ", 1)
        done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (command, done.stderr)


def test_a_stream_that_starts_over_does_so_by_the_printed_commands(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """After its checkpoint was deleted, and after that was damaged; a queue's reader and a ledger stand in the way."""
    pipeline = Pipeline("p", checkpoints=tmp_path / "checkpoints", store=store.url)
    pipeline.stream(read=["a"], write="b", name="s")(lambda messages: messages)
    pipeline.stream(read=queue("mails"), write="c", name="m")(lambda messages: messages)
    store.queue("mails").create()
    for number in range(2):
        store.journal("a").append(b"x", key=b"k", headers={"h": "1"})
        store.queue("mails").publish(b"%d" % number)
        assert run(pipeline, once=True).failed == []
    assert [(m.body, m.key, m.headers) for m in store.journal("b").read()] == [(b"x", b"k", {"h": "1"})] * 2
    shutil.rmtree(tmp_path / "checkpoints")
    store.queue("mails").publish(b"2")
    failed = run(pipeline, once=True).failed
    assert [state.error.partition(":")[0] for state in failed] == ["Fenced", "Conflict"]
    for state in failed:
        assert "`detent ledger reset " in state.error
        do_as_told(state.error)
    assert run(pipeline, once=True).failed == []
    assert store.journal("b").next_offset() == 4, "it has read all again"
    assert store.journal("c").next_offset() == 3

    (tmp_path / "checkpoints" / "p" / "s" / "metadata").write_text("")
    shutil.rmtree(tmp_path / "checkpoints" / "p" / "s.old", ignore_errors=True)
    (damaged,) = run(pipeline, once=True).failed
    assert damaged.error.startswith("the checkpoint of this stream is damaged: ")
    assert (damaged.failures, "Exception" in damaged.error) == (1, False)
    do_as_told(damaged.error)
    assert run(pipeline, once=True).failed == []
    assert store.journal("b").next_offset() == 6


# -- the examples ---------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The orders of the examples, in the store; those that can be read."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, EXAMPLES / "generate.py", store.url], check=True, capture_output=True)
    bodies = (message.body for message in store.journal("orders").read())
    return [json.loads(body) for body in bodies if body.endswith(b"}")]


def run_example(name: str, store: Store) -> None:
    summary = run(find_all([str(EXAMPLES / name)], PIPELINE)[PIPELINE.noun][0].what, once=True, store=store.url)
    assert [state.error for state in summary.states] == [""]


def test_the_example_with_windows(spark: SparkSession, store: Store, orders: list[dict[str, Any]]) -> None:
    run_example("windows.py", store)
    counted = Counter(order["at"][:16] for order in orders)
    windows = bodies(store, "orders/per-minute")
    assert {window["minute"][:16]: window["orders"] for window in windows}.items() <= counted.items()
    assert len(windows) == len(counted) - 2, "the last ones are not complete"


def test_the_example_with_delta(
    spark: SparkSession, store: Store, orders: list[dict[str, Any]], tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    run_example("to_delta.py", store)
    rows = DeltaTable(tmp_path / "tables" / "orders").to_pyarrow_table().to_pylist()
    assert Counter(row["id"] for row in rows) == Counter(order["id"] for order in orders)
    assert {str(row["day"]) for row in rows} == {"2026-01-31"}


def test_the_example_with_state(spark: SparkSession, store: Store, orders: list[dict[str, Any]]) -> None:
    pytest.importorskip("google.protobuf", reason="Spark's stateful operators in Python need protobuf")
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    try:
        run_example("totals.py", store)
    finally:
        spark.conf.set(provider, before or "")
    totals: Counter[str] = Counter()
    for order in orders:
        totals[order["customer"]] += round(order["amount"] * 100)
    assert {one["customer"]: round(one["total"] * 100) for one in bodies(store, "customers/totals")} == totals
