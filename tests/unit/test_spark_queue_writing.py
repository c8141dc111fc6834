"""Publishing with Spark, without a JVM: which rows become which messages, and each batch once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import detent
from detent import crash
from detent.errors import Fenced, Invalid, LimitExceeded, NotFound
from detent.spark import queue_outgoing, queue_splitting
from detent.spark.batch_identity import BatchIdentity
from detent.spark.opened import close_all
from detent.spark.queue_outgoing import RowsToPublish, pack
from detent.spark.queue_writing import PublishSettings, QueueStreamWriter, QueueWriter, RowsMessage, arrived
from detent.spark.queues import QueueDataSource

HEADERS = MapType(StringType(), StringType())
BODY = StructType([StructField("body", BinaryType())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.queue("mail").create()
        owned.queue("sms").create()
        yield owned
    close_all()


def schema(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def rows(**columns: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array(*column) for column in columns.values()], names=list(columns))


def bodies(*values: bytes) -> Any:
    return rows(body=(list(values), pa.binary()))


def publish(store: detent.Store, columns: RowsToPublish, *batches: Any) -> None:
    with store.transaction() as transaction:
        queue_outgoing.publish(transaction, [pack(columns, batches)])


def claimed(store: detent.Store, queue: str) -> list[detent.Delivery]:
    return list(store.queue(queue).claim(100))


def task(*values: bytes, partition: int = 0, run: str = "run-1") -> RowsMessage:
    columns = RowsToPublish.of(BODY, "mail")
    return RowsMessage(partition, BatchIdentity("query", run), pack(columns, [bodies(*values)]))


def writer(store: detent.Store, **options: str) -> QueueStreamWriter:
    given = {"path": store.url, "queue": "mail", "queryName": "send", **options}
    return QueueStreamWriter(PublishSettings.of(given, BODY, streaming=True))


# -- rows -------------------------------------------------------------------------------------------------------


def test_rows_become_messages_with_all_that_they_say(store: detent.Store) -> None:
    columns = RowsToPublish.of(
        schema(body=StringType(), headers=HEADERS, delay=DoubleType(), dedup_key=StringType(), queue=StringType()),
        None,
    )
    batch = rows(
        body=(["one", "two", "three"], pa.string()),
        headers=([[("a", "1")], None, []], pa.map_(pa.string(), pa.string())),
        delay=([None, 0.0, 3600.5], pa.float64()),
        dedup_key=([None, "k", "l"], pa.string()),
        queue=(["mail", "sms", "mail"], pa.string()),
    )
    publish(store, columns, batch)
    publish(store, columns, batch.slice(1, 1))  # its key is taken
    (one,) = claimed(store, "mail")
    assert (one.body, one.headers) == (b"one", {"a": "1", "queue": "mail"})
    assert [two.body for two in claimed(store, "sms")] == [b"two"]
    delayed = store.message(2)
    assert delayed.visible - delayed.received == timedelta(seconds=3600.5)


def test_messages_of_a_queue_keep_the_order_of_the_rows(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), queue=StringType()), None)
    values = [b"%d" % number for number in range(20)]
    batch = rows(body=(values, pa.binary()), queue=(["mail", "sms"] * 10, pa.string()))
    publish(store, columns, batch.slice(0, 7), batch.slice(7))
    assert [message.body for message in claimed(store, "mail")] == values[::2]
    assert [message.body for message in claimed(store, "sms")] == values[1::2]


def test_a_row_may_be_a_uri(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), uri=StringType()), "mail")
    publish(store, columns, rows(body=([None, b"x"], pa.binary()), uri=(["s3://b/k", None], pa.string())))
    assert [(message.uri, message.body) for message in claimed(store, "mail")] == [("s3://b/k", b""), (None, b"x")]


def test_other_columns_become_json(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(id=LongType(), name=StringType(), delay=IntegerType()), "mail")
    publish(store, columns, rows(id=([7], pa.int64()), name=(["x"], pa.string()), delay=([0], pa.int32())))
    assert claimed(store, "mail")[0].json() == {"id": 7, "name": "x"}


def test_the_address_that_a_message_came_by_is_replaced(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), headers=HEADERS), "mail")
    headers = ([[("queue", "elsewhere"), ("a", "1")]], pa.map_(pa.string(), pa.string()))
    publish(store, columns, rows(body=([b"x"], pa.binary()), headers=headers))
    assert claimed(store, "mail")[0].headers == {"a": "1", "queue": "mail"}


def test_row_with_wrong_priority_is_refused(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), headers=HEADERS), "mail")
    headers = pa.array([[("priority", "high")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(Invalid, match="the header 'priority' is a priority"):
        publish(store, columns, pa.RecordBatch.from_arrays([pa.array([b"x"]), headers], names=["body", "headers"]))
    assert claimed(store, "mail") == []


def test_without_a_queue_the_filters_decide(store: detent.Store) -> None:
    store.queue("all").create(filter="true")
    publish(store, RowsToPublish.of(BODY, None), bodies(b"x"))
    assert [message.body for message in claimed(store, "all")] == [b"x"]
    assert claimed(store, "mail") == []


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (DayTimeIntervalType(), pa.array([timedelta(seconds=90)], pa.duration("us"))),
        (IntegerType(), pa.array([90], pa.int32())),
        (DoubleType(), pa.array([90.0], pa.float64())),
        (LongType(), pa.array([Decimal("90.000")], pa.decimal128(9, 3))),
    ],
)
def test_delays_of_several_types(store: detent.Store, kind: DataType, array: Any) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), delay=kind), "mail")
    publish(store, columns, pa.RecordBatch.from_arrays([pa.array([b"x"]), array], names=["body", "delay"]))
    message = store.message(0)
    assert message.visible - message.received == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ({"body": LongType()}, "body is binary or string, not bigint"),
        ({"body": BinaryType(), "id": LongType()}, "id have no place in a message"),
        ({"headers": HEADERS}, "no column body"),
        ({"body": BinaryType(), "headers": StringType()}, "headers is a map<string,string>, not string"),
        ({"body": BinaryType(), "delay": StringType()}, "delay is a number of seconds or an interval, not string"),
        ({"body": BinaryType(), "dedup_key": LongType()}, "dedup_key is string"),
        ({"body": BinaryType(), "queue": LongType()}, "queue is string"),
    ],
)
def test_columns_that_do_not_fit_are_refused(kinds: dict[str, DataType], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        RowsToPublish.of(schema(**kinds), "mail")


@pytest.mark.parametrize(
    ("kinds", "columns", "says"),
    [
        ({"body": BinaryType()}, {"body": ([None], pa.binary())}, "a row has no content: give it body"),
        (
            {"body": BinaryType(), "uri": StringType()},
            {"body": ([b"x"], pa.binary()), "uri": (["s3://x"], pa.string())},
            "a body and a uri",
        ),
        (
            {"body": BinaryType(), "delay": DoubleType()},
            {"body": ([b"x"], pa.binary()), "delay": ([-1.0], pa.float64())},
            "negative",
        ),
        (
            {"body": BinaryType(), "delay": DoubleType()},
            {"body": ([b"x"], pa.binary()), "delay": ([float("inf")], pa.float64())},
            "not finite",
        ),
        (
            {"body": BinaryType(), "queue": StringType()},
            {"body": ([b"x"], pa.binary()), "queue": (["no such name"], pa.string())},
            "is no queue name",
        ),
        (
            {"body": BinaryType(), "headers": HEADERS},
            {"body": ([b"x"], pa.binary()), "headers": ([[("a", None)]], pa.map_(pa.string(), pa.string()))},
            "header's value is null",
        ),
    ],
)
def test_rows_that_are_no_messages_are_refused(kinds: Any, columns: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        pack(RowsToPublish.of(schema(**kinds), None), [rows(**columns)])


# -- batches ----------------------------------------------------------------------------------------------------


def test_a_batch_is_published_once_however_often_it_is_committed(store: detent.Store) -> None:
    writer(store).commit([task(b"2", partition=1), task(b"0", b"1")], 0)
    writer(store).commit([task(b"0", b"1", b"2", run="run-2")], 0)
    writer(store).commit([task(run="run-2")], 1)
    assert [message.body for message in claimed(store, "mail")] == [b"0", b"1", b"2"]
    assert store.ledger("send").batch == 1


def test_another_query_and_an_older_run_are_fenced(store: detent.Store) -> None:
    writer(store).commit([task(b"0")], 0)
    writer(store).commit([task(b"1", run="run-2")], 1)
    with pytest.raises(Fenced, match="run 'run-1'"):
        writer(store).commit([task(b"2")], 2)
    other = RowsMessage(0, BatchIdentity("other", "x"), task(b"3").rows)
    with pytest.raises(Fenced, match=r"`detent ledger reset file:\S+ send --yes`"):
        writer(store).commit([other], 0)
    assert store.queue("mail").info().available == 2


def test_a_queue_that_is_not_there_refuses_the_whole_batch(store: detent.Store) -> None:
    columns = RowsToPublish.of(schema(body=BinaryType(), queue=StringType()), None)
    batch = rows(body=([b"x", b"y"], pa.binary()), queue=(["mail", "nowhere"], pa.string()))
    message = RowsMessage(0, BatchIdentity("query", "run"), pack(columns, [batch]))
    with pytest.raises(NotFound, match="nowhere"):
        writer(store).commit([message], 0)
    assert store.queue("mail").info().available == 0
    assert store.ledgers() == []


def test_a_batch_write_with_a_version_is_done_once(store: detent.Store) -> None:
    given = {"path": store.url, "queue": "mail", "txnAppId": "load", "txnVersion": "7"}
    batch = QueueWriter(PublishSettings.of(given, BODY, streaming=False))
    batch.commit([task(b"0")])
    batch.commit([task(b"0")])
    assert store.queue("mail").info().available == 1
    plain = QueueWriter(PublishSettings.of({"path": store.url, "queue": "mail"}, BODY, streaming=False))
    plain.commit([task(b"1")])
    plain.commit([task(b"1")])  # nothing was said that would tell the two from one another
    assert store.queue("mail").info().available == 3


# -- batches that are too large for a transaction -------------------------------------------------------------------


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that publishes three messages."""
    monkeypatch.setattr(queue_outgoing, "PUBLISHED_MAX", 3)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many parts of batches were published before the last one of each."""
    passed: list[str] = []
    monkeypatch.setattr(crash, "point", passed.append)
    return lambda: passed.count("spark.split.after_part")


@pytest.mark.usefixtures("small_room")
def test_a_large_batch_is_published_in_parts_and_in_order(store: detent.Store, parts: Callable[[], int]) -> None:
    values = [b"%d" % number for number in range(10)]
    sink = writer(store)
    sink.commit([task(*values[:6]), task(*values[6:], partition=1)], 0)
    assert [message.body for message in claimed(store, "mail")] == values
    assert (store.ledger("send").batch, parts()) == (0, 3)
    assert list(store.journals()) == [], "nothing is kept of a batch that is entered"
    sink.commit([task(*values, run="run-2")], 0)
    assert store.queue("mail").info().available == 0, "a replay changes nothing"
    sink.commit([task(b"next")], 1)
    assert [message.body for message in claimed(store, "mail")] == [b"next"]


@pytest.mark.parametrize(
    ("limit", "batch"),
    [
        ("PUBLISHED_BYTES_MAX", {"body": ([bytes(400)] * 9, pa.binary())}),
        ("GROUPS_MAX", {"body": ([b"x"] * 9, pa.binary()), "delay": (list(range(9)), pa.int32())}),
    ],
)
def test_a_batch_is_split_by_bytes_and_by_delays_too(
    store: detent.Store, parts: Callable[[], int], monkeypatch: pytest.MonkeyPatch, limit: str, batch: Any
) -> None:
    monkeypatch.setattr(queue_outgoing, limit, {"PUBLISHED_BYTES_MAX": 1000, "GROUPS_MAX": 2}[limit])
    kinds = {"body": BinaryType(), "delay": IntegerType()}
    columns = RowsToPublish.of(schema(**{name: kinds[name] for name in batch}), "mail")
    packed = pack(columns, [rows(**batch)])
    writer(store).commit([RowsMessage(0, BatchIdentity("query", "run-1"), packed)], 0)
    info = store.queue("mail").info()
    assert (info.available + info.delayed, parts()) == (9, 4)


@pytest.mark.usefixtures("small_room")
def test_all_that_a_message_has_survives_a_split(store: detent.Store) -> None:
    columns = RowsToPublish.of(
        schema(body=BinaryType(), uri=StringType(), headers=HEADERS, dedup_key=StringType(), queue=StringType()),
        None,
    )
    batch = rows(
        body=([b"\xff", None, b"", b"3", b"4"], pa.binary()),
        uri=([None, "s3://b/k", None, None, None], pa.string()),
        headers=([[("a", "ä")], None, [], [("b", "2")], None], pa.map_(pa.string(), pa.string())),
        dedup_key=(["k", None, None, "k", None], pa.string()),
        queue=(["mail", "sms", "mail", "mail", "sms"], pa.string()),
    )
    writer(store).commit([RowsMessage(0, BatchIdentity("query", "run-1"), pack(columns, [batch]))], 0)
    mail, sms = claimed(store, "mail"), claimed(store, "sms")
    assert [(one.body, one.headers) for one in mail] == [
        (b"\xff", {"a": "ä", "queue": "mail"}),
        (b"", {"queue": "mail"}),
    ]
    assert [(one.body, one.uri) for one in sms] == [(b"", "s3://b/k"), (b"4", None)]


@pytest.mark.usefixtures("small_room")
def test_a_new_query_after_a_reset_splits_its_own_batches(store: detent.Store) -> None:
    values = [b"%d" % number for number in range(7)]
    writer(store).commit([task(*values)], 0)
    claimed(store, "mail")
    again = RowsMessage(0, BatchIdentity("another", "run-9"), task(*values).rows)
    with pytest.raises(Fenced):
        writer(store).commit([again], 0)
    store.reset_ledger("send")
    writer(store).commit([again], 0)
    assert [message.body for message in claimed(store, "mail")] == values
    with pytest.raises(Fenced):
        writer(store).commit([task(*values)], 1)


@pytest.mark.usefixtures("small_room")
def test_a_driver_that_was_replaced_between_parts_publishes_no_more(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%d" % number for number in range(10)]
    published = queue_splitting.add_messages
    writer(store).commit([task()], 0)
    others: list[int] = []

    def replaced(transaction: Any, rows: Any) -> None:
        published(transaction, rows)
        if not others:
            others.append(1)
            writer(store).commit([task(*reversed(values), run="run-2")], 1)

    monkeypatch.setattr(queue_splitting, "add_messages", replaced)
    with pytest.raises(Fenced, match="was replaced"):
        writer(store).commit([task(*values)], 1)
    assert [message.body for message in claimed(store, "mail")] == values


@pytest.mark.usefixtures("small_room")
def test_a_write_without_a_ledger_is_not_split(store: detent.Store) -> None:
    plain = QueueWriter(PublishSettings.of({"path": store.url, "queue": "mail"}, BODY, streaming=False))
    with pytest.raises(LimitExceeded, match="txnAppId"):
        plain.commit([task(b"0", b"1", b"2", b"3")])
    assert store.queue("mail").info().available == 0


def test_more_than_the_driver_holds_is_refused(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outgoing, "BATCH_MESSAGES_MAX", 3)
    with pytest.raises(LimitExceeded, match="at most 3 messages"):
        task(b"0", b"1", b"2", b"3")
    two = [task(b"0", b"1"), task(b"2", b"3", partition=1)]
    with pytest.raises(LimitExceeded, match="at most 3 messages"):
        writer(store).commit([*two], 0)
    monkeypatch.setattr(queue_outgoing, "BATCH_BYTES_MAX", 1000)
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        task(bytes(1001))
    assert store.queue("mail").info().available == 0


def test_many_messages_take_several_operations(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outgoing, "PUBLISH_MESSAGES_MAX", 3)
    values = [b"%d" % number for number in range(10)]
    writer(store).commit([task(*values)], 0)
    assert [message.body for message in claimed(store, "mail")] == values


def test_a_task_without_a_message_is_refused() -> None:
    with pytest.raises(Invalid, match="1 of 2 tasks"):
        arrived([task(b"x"), None])


@pytest.mark.parametrize(
    ("options", "streaming", "says"),
    [
        ({"queue": "a b"}, True, "is no queue name"),
        ({"txnVersion": "1"}, True, "for batch writes"),
        ({"txnAppId": "a"}, False, "go together"),
        ({"que": "mail"}, True, "did you mean queue"),
        ({"path": ""}, True, "needs the store's URL"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], streaming: bool, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        PublishSettings.of({"path": "file:/x", **options}, BODY, streaming=streaming)


def test_a_queue_is_not_overwritten() -> None:
    source = QueueDataSource({"path": "file:/x", "queue": "mail"})
    with pytest.raises(Invalid, match="append"):
        source.writer(BODY, True)
    with pytest.raises(Invalid, match="append"):
        source.streamWriter(BODY, True)
