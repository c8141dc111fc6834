"""A queue as a source of Spark, without a JVM: what it refuses, how it plans, and what a replay reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

import detent
from detent.errors import Conflict, DetentError, Fenced, Invalid, NotFound
from detent.spark import queue_reading
from detent.spark.opened import close_all
from detent.spark.queue_outgoing import PUBLISHED_BYTES_MAX
from detent.spark.queue_reading import COLUMNS, QueueReadSettings, QueueStreamReader
from detent.spark.queues import QueueDataSource


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.queue("in").create()
        owned.queue("in").publish_many([b"%d" % number for number in range(10)])
        yield owned
    close_all()


def stream(store: detent.Store, **options: str) -> QueueStreamReader:
    """A reader as a driver has it; a new one for each start of a query."""
    given = {"path": store.url, "queue": "in", "readerName": "r", **options}
    return QueueStreamReader(QueueReadSettings.of(given))


def read(reader: QueueStreamReader, start: Any, end: Any) -> list[bytes]:
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    return pa.Table.from_batches(batches).column("body").to_pylist() if batches else []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": ""}, "needs the option queue"),
        ({"queue": "a b"}, "is no queue name"),
        ({"readerName": ""}, "needs the option readerName"),
        ({"readername": "x" * 300}, "over the limit"),
        ({"path": ""}, "needs the store's URL"),
        ({"path": "memory:"}, "memory: store lives in one process"),
        ({"maxMessagesPerTriger": "1"}, "did you mean maxMessagesPerTrigger"),
        ({"maxMessagesPerTrigger": "0"}, "whole number from 1"),
        ({"minPartitions": "-1"}, "whole number from 1"),
        ({"queue": "out"}, "there is no queue 'out'"),
    ],
)
def test_bad_options_are_refused(store: detent.Store, options: dict[str, str], says: str) -> None:
    given = {"path": store.url, "queue": "in", "readerName": "r", **options}
    with pytest.raises(DetentError, match=says):
        QueueDataSource(given).streamReader(COLUMNS).initialOffset()


def test_a_batch_read_is_refused_and_told_where_to_look(store: detent.Store) -> None:
    with pytest.raises(Invalid, match=r"detent\.table"):
        QueueDataSource({"path": store.url, "queue": "in"}).reader(COLUMNS)


def test_a_schema_of_the_users_is_refused(store: detent.Store) -> None:
    schema = StructType([StructField("body", BinaryType())])
    with pytest.raises(Invalid, match=r"leave \.schema\(\) out"):
        QueueDataSource({"path": store.url, "queue": "in", "readerName": "r"}).streamReader(schema)


def test_offsets_have_their_keys_in_one_order(store: detent.Store) -> None:
    reader = stream(store)
    start = reader.initialOffset()
    assert list(start) == list(reader.latestOffset(start, ReadAllAvailable())) == ["queue", "generation", "assignment"]
    assert stream(store).initialOffset() == start  # Spark asks twice, and again when it replays batch 0


def test_a_replay_reads_the_same_messages_after_a_restart(store: detent.Store) -> None:
    first = stream(store)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(4))
    assert read(first, start, end) == [b"0", b"1", b"2", b"3"]
    store.queue("in").publish(b"more")
    again = stream(store)
    assert read(again, start, end) == [b"0", b"1", b"2", b"3"]
    assert again.latestOffset(start, ReadMaxRows(1)) == end  # planned, and the plan was not logged


def test_a_batch_is_bounded_by_bytes_unless_told(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream(store)._settings.bytes_max < PUBLISHED_BYTES_MAX, "it can be published again in one transaction"
    monkeypatch.setattr(queue_reading, "ASSIGNED_BYTES_DEFAULT", 3)
    reader = stream(store)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader, start, end) == [b"0", b"1", b"2"]
    wider = stream(store, maxBytesPerTrigger="5")
    assert len(read(wider, end, wider.latestOffset(end, ReadAllAvailable()))) == 5


def test_planning_on_acknowledges_what_was_planned_before(store: detent.Store) -> None:
    reader = stream(store)
    start = reader.initialOffset()
    one = reader.latestOffset(start, ReadMaxRows(4))
    assert store.queue("in").info().in_flight == 4
    two = reader.latestOffset(one, ReadMaxRows(4))
    info = store.queue("in").info()
    assert (info.done, info.in_flight, info.available) == (4, 4, 2)
    assert read(reader, one, two) == [b"4", b"5", b"6", b"7"]
    with pytest.raises(NotFound, match=r"detent queue release \S+ in r --yes`.*detent ledger reset \S+ NAME --yes"):
        read(stream(store), start, one)


def test_without_messages_the_offset_stays(store: detent.Store) -> None:
    reader = stream(store)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == start
    assert reader.partitions(start, end) == []
    assert store.queue("in").info().done == 10


def test_a_released_reader_is_fenced(store: detent.Store) -> None:
    reader = stream(store)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    partitions = reader.partitions(start, end)
    store.queue("in").reader("r").release()
    with pytest.raises(Fenced, match="was released"):
        list(reader.read(partitions[0]))
    with pytest.raises(Fenced, match="was released"):
        reader.latestOffset(end, ReadMaxRows(4))
    with pytest.raises(Fenced, match="was released"):
        stream(store).partitions(start, end)
    assert store.queue("in").info().available == 10


def test_a_deleted_checkpoint_is_refused_until_the_reader_is_released(store: detent.Store) -> None:
    reader = stream(store)
    start = reader.initialOffset()
    reader.latestOffset(reader.latestOffset(start, ReadMaxRows(4)), ReadMaxRows(4))
    anew = stream(store)
    with pytest.raises(
        Conflict,
        match=r"checkpoint was deleted.*detent queue release \S+ in r --yes`.*detent ledger reset \S+ NAME --yes",
    ):
        anew.latestOffset(anew.initialOffset(), ReadMaxRows(4))
    store.queue("in").reader("r").release()
    start = anew.initialOffset()
    assert read(anew, start, anew.latestOffset(start, ReadMaxRows(2))) == [b"4", b"5"]


def test_the_checkpoint_of_another_queue_is_refused(store: detent.Store) -> None:
    store.queue("other").create()
    start = stream(store, queue="other").initialOffset()
    with pytest.raises(NotFound, match="checkpoint of its own"):
        stream(store).latestOffset(start, ReadAllAvailable())


def test_available_now_reads_what_is_there_and_acknowledges_it(store: detent.Store) -> None:
    reader = stream(store)
    reader.prepareForTriggerAvailableNow()
    start, limit = reader.initialOffset(), ReadMaxRows(4)
    store.queue("in").publish(b"late")
    found = []
    while (end := reader.latestOffset(start, limit)) != start:
        found += read(reader, start, end)
        start = end
    assert found == [b"%d" % number for number in range(10)]
    info = store.queue("in").info()
    assert (info.done, info.in_flight, info.available) == (10, 0, 1)


def test_available_now_reads_what_an_earlier_run_had_planned(store: detent.Store) -> None:
    start = stream(store).initialOffset()
    end = stream(store).latestOffset(start, ReadAllAvailable())  # and this run ended before it logged the offset
    reader = stream(store)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, ReadAllAvailable()) == end


def test_partitions_cover_every_message_once(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reading, "SLICE_MESSAGES_FIRST", 2)
    monkeypatch.setattr(queue_reading, "SLICE_BYTES", 1)
    reader = stream(store, minPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(reader.partitions(start, end)) == 3
    assert read(reader, start, end) == [b"%d" % number for number in range(10)]
    monkeypatch.setattr(queue_reading, "PARTITION_MESSAGES_MAX", 1)
    assert len(stream(store).partitions(start, end)) == 10


def test_a_size_limits_an_assignment(store: detent.Store) -> None:
    store.queue("in").purge()
    store.queue("in").publish_many([bytes(1000)] * 5)
    reader = stream(store, maxBytesPerTrigger="2k")
    start = reader.initialOffset()
    assert len(read(reader, start, reader.latestOffset(start, ReadAllAvailable()))) == 2


def test_a_row_says_all_there_is_of_a_message(store: detent.Store) -> None:
    store.queue("in").purge()
    store.queue("in").publish(b"x", headers={"priority": "3", "a": "b"})
    store.queue("in").publish(detent.Outgoing(uri="s3://bucket/key"))
    reader = stream(store)
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert [field.name for field in COLUMNS] == list(rows[0])
    assert (rows[0]["queue"], rows[0]["body"], rows[0]["uri"], rows[0]["priority"]) == ("in", b"x", None, 3)
    assert dict(rows[0]["headers"]) == {"priority": "3", "a": "b", "queue": "in"}
    assert (rows[1]["body"], rows[1]["uri"]) == (None, "s3://bucket/key")
    assert rows[0]["attempts"] == 1
    assert rows[1]["delivery"] == rows[0]["delivery"] + 1
    assert rows[1]["message"] == rows[0]["message"] + 1
    assert rows[0]["created_at"] <= rows[0]["received_at"]
    assert rows[0]["received_at"].utcoffset().total_seconds() == 0
