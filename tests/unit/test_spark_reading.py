"""What a read of journals refuses, and how a stream plans, without a JVM."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

import detent
from detent.cli.ledger import ledger
from detent.errors import Denied, DetentError, Invalid, NotFound, Unavailable
from detent.ledger import Planned, PlanOffsets
from detent.spark.journal_reading import JournalReadSettings, JournalStreamReader
from detent.spark.journals import JournalDataSource
from detent.spark.opened import close_all, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        owned.journal("a").append_many([b"%d" % number for number in range(10)])
        yield owned
    close_all()


def source(store: detent.Store, **options: str) -> JournalDataSource:
    return JournalDataSource({"path": store.url, "journals": "a", **options})


def stream(store: detent.Store, **options: str) -> JournalStreamReader:
    return JournalStreamReader(JournalReadSettings.of({"path": store.url, "journals": "a", **options}))


def read(reader: Any, partitions: Any) -> list[bytes]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches).column("body").to_pylist() if batches else []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"journals": ""}, "needs the option journals"),
        ({"journals": "orders"}, "there is no journal 'orders'.*the store has a"),
        ({"journals": "a,,b"}, "empty name"),
        ({"columns": "body,size"}, "columns has 'size', which is none: choose from journal, offset.*body, headers$"),
        ({"columns": "producer"}, "'producer', which is none"),
        ({"columns": "body, body"}, "twice"),
        ({"columns": "body", "includeHeaders": "true"}, "does not name headers"),
        ({"maxMessagePerTrigger": "1"}, "did you mean maxMessagesPerTrigger"),
        ({"maxMessagesPerTrigger": "all"}, "maxMessagesPerTrigger is a whole number"),
        ({"maxBytesPerTrigger": "x"}, "maxBytesPerTrigger is a number of bytes"),
        ({"startingOffsets": "soon"}, "startingOffsets is earliest, latest"),
        ({"startingOffsets": '{"b": 1}'}, "names 'b'"),
        ({"startingOffsets": '{"a": 17}'}, "failOnDataLoss"),
        ({"isolation": "serializable"}, "committed, uncommitted"),
        ({"isolation": "uncommitted", "startingOffsets": "2026-01-01"}, "needs isolation=committed"),
        ({"readerName": "r"}, "option of readStream"),
        ({"path": ""}, "needs the store's URL"),
        ({"path": "memory:x"}, "memory: store lives in one process"),
        ({"path": "data"}, "is not a store URL"),
    ],
)
def test_what_bad_options_are_told(store: detent.Store, options: dict[str, str], says: str) -> None:
    def attempt() -> None:
        made = source(store, **options)
        made.reader(made.schema()).partitions()

    with pytest.raises(DetentError, match=says):
        attempt()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    made = JournalDataSource({"path": f"file:{tmp_path / 'nowhere'}", "journals": "a"})
    with pytest.raises(NotFound, match="nowhere"):
        made.reader(made.schema()).partitions()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["journal", "offset", "published_at", "key", "body"]),
        ({"columns": "body"}, ["body"]),
        ({"columns": " body , offset"}, ["body", "offset"]),
        ({"columns": "headers,journal"}, ["headers", "journal"]),
        ({"columns": "flags,body", "isolation": "uncommitted"}, ["flags", "body"]),
    ],
)
def test_a_read_has_the_columns_that_it_asks_for(
    store: detent.Store, options: dict[str, str], names: list[str]
) -> None:
    found = source(store, **options)
    assert found.schema().fieldNames() == names
    reader = found.reader(found.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    expected = to_arrow_schema(found.schema(), timezone="UTC")
    assert batches
    assert all(batch.schema.equals(expected) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 10


def test_a_schema_of_the_users_is_refused(store: detent.Store) -> None:
    with pytest.raises(Invalid, match="from_json"):
        source(store).reader(StructType([StructField("body", BinaryType())]))


def test_a_stream_plans_what_its_limits_allow(store: detent.Store) -> None:
    reader = stream(store, maxMessagesPerTrigger="4")
    assert reader.initialOffset() == {"a": 0}
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert reader.latestOffset({"a": 0}, ReadMaxRows(4)) == {"a": 4}
    assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert reader.latestOffset({"a": 10}, ReadMaxRows(4)) == {"a": 10}
    assert reader.latestOffset({"a": 0}, ReadMaxBytes(1)) == {"a": 1}
    both = stream(store, maxMessagesPerTrigger="8", maxBytesPerTrigger="1")
    assert both.latestOffset({"a": 0}, ReadMaxRows(8)) == {"a": 1}
    assert stream(store, maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert stream(store).getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_the_journals_ended(store: detent.Store) -> None:
    reader = stream(store, journals="*")
    reader.prepareForTriggerAvailableNow()
    store.journal("a").append(b"later")
    store.journal("b").append(b"later")
    assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert reader.reportLatestOffset() == {"a": 11, "b": 1}


def test_pattern_leaves_out_journals_of_the_packages_own(store: detent.Store) -> None:
    for name in ("spark-parts/shop", "detent.replies/shop", "words/recovery/0"):
        store.journal(name).append(b"means to an end")
    reader = stream(store, journals="*")
    assert reader.initialOffset() == {"a": 0}
    assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert stream(store, journals="words/recovery/*").initialOffset() == {"words/recovery/0": 0}
    # An earlier release has read it, and it is gone.
    assert reader.latestOffset({"a": 10, "spark-parts/gone": 3}, ReadAllAvailable()) == {"a": 10, "spark-parts/gone": 3}


def test_a_range_reads_the_same_whenever_it_is_read(store: detent.Store) -> None:
    reader = stream(store, minPartitions="3")
    store.journal("a").append(b"later")
    planned = reader.partitions({"a": 2}, {"a": 10})
    assert len(planned) == 3
    assert read(reader, planned) == [b"%d" % number for number in range(2, 10)]
    assert reader.partitions({"a": 5}, {"a": 5}) == []


def test_what_is_lost_is_an_error_or_skipped(store: detent.Store) -> None:
    strict, lax = stream(store), stream(store, failOnDataLoss="false")
    store.journal("a").trim(4)
    for reader, found in ((strict, None), (lax, [b"%d" % number for number in range(4, 10)])):
        planned = reader.partitions({"a": 0}, {"a": 10})
        if found is None:
            with pytest.raises(NotFound, match="failOnDataLoss"):
                reader.latestOffset({"a": 0}, ReadAllAvailable())
            with pytest.raises(NotFound, match="is gone"):
                read(reader, planned)
        else:
            assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
            assert read(reader, planned) == found
    store.journal("a").delete()
    assert read(lax, lax.partitions({"a": 0}, {"a": 10})) == []


def test_a_start_that_moves_is_pinned_under_the_readers_name(store: detent.Store) -> None:
    with pytest.raises(Invalid, match="readerName"):
        stream(store, startingOffsets="latest").initialOffset()
    named = stream(store, startingOffsets="latest", readerName="copy")
    assert named.initialOffset() == {"a": 10}
    store.journal("a").append(b"later")
    assert named.initialOffset() == {"a": 10}
    assert stream(store, startingOffsets="latest", readerName="other").initialOffset() == {"a": 11}


def test_stores_stay_open_from_task_to_task_until_another_stands_there(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as first:
        first.journal("a").append(b"old")
        kept = opened(url, "reader")
        assert opened(url, "reader") is kept
    (tmp_path / "store").rename(tmp_path / "moved")
    with detent.open(url) as second:
        second.journal("a").append(b"new")
        assert opened(url, "reader") is not kept
        assert [message.body for message in opened(url, "reader").journal("a").read()] == [b"new"]
    close_all()


# -- plans ------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_planned_again_ends_where_it_did(store: detent.Store) -> None:
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    store.journal("a").append(b"later")
    again = stream(store)
    assert again.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert again.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}
    assert stream(store, planName="x").latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 11}


def test_a_journal_that_was_made_anew_is_not_read_from_its_middle(store: detent.Store) -> None:
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(20)])
    with pytest.raises(NotFound, match=r"deleted and made anew.*detent ledger reset"):
        stream(store).latestOffset({"a": 10}, ReadAllAvailable())
    assert stream(store, failOnDataLoss="false").latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 20}
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 20}  # from its beginning it is a new read
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 20}


def test_shared_plan_does_not_lead_beyond_the_end_that_was_asked_for(store: detent.Store) -> None:
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    for end in (5, 7):
        reader = stream(store, endingOffsets=f'{{"a": {end}}}')
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": end}
        assert reader.latestOffset({"a": end}, ReadAllAvailable()) == {"a": end}
    assert stream(store, endingOffsets="Latest").latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}


@pytest.mark.parametrize("option", ["planName", "readerName"])
def test_replay_of_a_named_stream_goes_as_far_as_it_did_under_another_end(store: detent.Store, option: str) -> None:
    for end in ("7", "8", "5"):
        reader = stream(store, endingOffsets=f'{{"a": {end}}}', **{option: "nightly"})
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 7}


def test_stream_begins_at_an_offset_where_one_ended_in_an_earlier_journal(store: detent.Store) -> None:
    assert stream(store).latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(20)])
    begun = stream(store, startingOffsets='{"a": 10}')
    assert begun.latestOffset(begun.initialOffset(), ReadAllAvailable()) == {"a": 20}
    with pytest.raises(NotFound, match="deleted and made anew"):
        stream(store, startingOffsets='{"a": 10}').latestOffset({"a": 10}, ReadAllAvailable())


def test_advice_lets_a_pinned_stream_begin_in_a_journal_made_anew(store: detent.Store) -> None:
    def nightly() -> JournalStreamReader:
        return stream(store, startingOffsets="latest", readerName="night ly")

    assert nightly().initialOffset() == {"a": 10}
    store.journal("a").append(b"x")
    assert nightly().latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(12)])
    with pytest.raises(NotFound, match="deleted and made anew") as caught:
        nightly().latestOffset({"a": 11}, ReadAllAvailable())
    command = shlex.split(str(caught.value).split("`")[-2])
    assert command[:2] == ["detent", "ledger"]
    assert CliRunner().invoke(ledger, command[2:], catch_exceptions=False).exit_code == 0
    reader = nightly()
    assert reader.initialOffset() == {"a": 12}
    store.journal("a").append(b"new")
    assert reader.latestOffset({"a": 12}, ReadAllAvailable()) == {"a": 13}


def test_a_journal_that_comes_later_does_not_change_what_was_planned(store: detent.Store) -> None:
    assert stream(store, journals="*").latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    store.journal("b").append(b"new")
    assert stream(store, journals="*").latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert stream(store, journals="*").latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 10, "b": 1}


def test_a_store_without_an_owner_is_read_as_ever(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.journal("a").append(b"x")
        reader = stream(store)
    assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 1}
    close_all()


def test_a_reader_whose_grants_do_not_cover_plans_goes_on(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def deny(self: detent.Store, step: object) -> None:
        raise Denied("not you")

    monkeypatch.setattr(detent.Store, "plan", deny)
    reader = stream(store)
    for _ in range(2):
        assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    assert caplog.text.count("is not kept in the store") == 1


# -- plans that are sent while Spark writes its log ---------------------------------------------------------------


class Slow:
    """The store's answers to plans wait until they are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.steps: list[dict[str, int]] = []
        plan = detent.Store.plan

        def slow(store: detent.Store, step: PlanOffsets) -> Planned:
            assert self.gate.wait(30)
            if self.error is not None:
                raise self.error
            self.steps.append(step.moved)
            return plan(store, step)

        monkeypatch.setattr(detent.Store, "plan", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def going_on(store: detent.Store, **options: str) -> JournalStreamReader:
    """A stream that has planned to the journal's end, where a message has come since."""
    reader = stream(store, **options)
    assert reader.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 10}
    store.journal("a").append(b"next")
    return reader


def test_batch_does_not_run_before_its_plan_is_in_the_store(store: detent.Store, slow: Slow) -> None:
    reader = going_on(store)
    slow.gate.clear()
    assert reader.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}  # before the store has answered
    with ThreadPoolExecutor(1) as pool:
        partitions = pool.submit(reader.partitions, {"a": 10}, {"a": 11})
        with pytest.raises(TimeoutError):
            partitions.result(0.2)
        assert slow.steps == [{"a": 10}]
        slow.gate.set()
        assert read(reader, partitions.result()) == [b"next"]
    assert slow.steps == [{"a": 10}, {"a": 11}]
    store.journal("a").append(b"later")
    assert stream(store).latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}


def test_next_batch_is_not_planned_before_the_plan_of_the_last_one_is_in_the_store(
    store: detent.Store, slow: Slow
) -> None:
    reader = going_on(store)
    for end in (11, 12, 13):
        assert reader.latestOffset({"a": end - 1}, ReadAllAvailable()) == {"a": end}
        assert slow.steps[1 : end - 10] == [{"a": before} for before in range(11, end)]
        store.journal("a").append(b"x")


def test_batch_that_spark_has_logged_is_planned_by_the_next_process_before_it_runs(
    store: detent.Store, slow: Slow
) -> None:
    reader = going_on(store)
    slow.error = Unavailable("killed")
    assert reader.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}
    with pytest.raises(Unavailable, match="killed"):
        reader.partitions({"a": 10}, {"a": 11})
    slow.error = None
    store.journal("a").append(b"later")
    again = stream(store)
    assert read(again, again.partitions({"a": 10}, {"a": 11})) == [b"next"]
    assert slow.steps == [{"a": 10}, {"a": 11}]
    assert stream(store).latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}


def test_stream_whose_plan_is_shared_waits_for_the_store_from_then_on(store: detent.Store, slow: Slow) -> None:
    reader = going_on(store)
    assert stream(store).latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 11}
    store.journal("a").append(b"later")
    assert reader.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 12}
    assert read(reader, reader.partitions({"a": 10}, {"a": 12})) == [b"next", b"later"]
    store.journal("a").append(b"last")
    for start, end in ((12, 13), (13, 14)):
        assert reader.latestOffset({"a": start}, ReadAllAvailable()) == {"a": end}
        assert slow.steps[-1] == {"a": end}  # the store has answered
        store.journal("a").append(b"x")


def test_stream_that_goes_on_is_refused_in_the_middle_of_a_journal_made_anew(store: detent.Store, slow: Slow) -> None:
    reader = going_on(store)
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(20)])
    slow.gate.clear()
    with pytest.raises(NotFound, match="deleted and made anew"):
        reader.latestOffset({"a": 10}, ReadAllAvailable())
    slow.gate.set()


def test_step_on_a_journal_that_is_gone_makes_room_for_one_that_was_sent(store: detent.Store, slow: Slow) -> None:
    going_on(store).latestOffset({"a": 10}, ReadAllAvailable())
    store.journal("a").delete()
    store.journal("a").append_many([b"%d" % number for number in range(10)])
    reader = stream(store)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"a": 10}
    store.journal("a").append_many([b"x", b"y"])
    assert reader.latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 12}
    assert len(reader.partitions({"a": 10}, {"a": 12})) == 1
    store.journal("a").append(b"later")
    assert stream(store).latestOffset({"a": 10}, ReadAllAvailable()) == {"a": 12}


def test_denial_that_comes_later_is_said_once(
    store: detent.Store, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    reader = going_on(store)
    slow.error = Denied("not you")
    for end in (11, 12):
        assert reader.latestOffset({"a": end - 1}, ReadAllAvailable()) == {"a": end}
        assert len(reader.partitions({"a": end - 1}, {"a": end})) == 1
        store.journal("a").append(b"x")
    assert caplog.text.count("is not kept in the store") == 1
