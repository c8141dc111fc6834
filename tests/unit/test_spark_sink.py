"""The sink's rule without a JVM: what tasks staged becomes messages once, whoever commits it, and however often."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import detent
from detent.errors import Fenced, Invalid
from detent.spark import journal_writing, opened
from detent.spark.batch_identity import BatchIdentity
from detent.spark.journal_writing import JournalStreamWriter, JournalWriter, TaskMessage, WriteSettings, stage_rows

SCHEMA = StructType([StructField("body", BinaryType()), StructField("journal", StringType())])
ARROW = pa.schema([("body", pa.binary()), ("journal", pa.string())])
QUERY, OLD, NEW = "query-1", "run-1", "run-2"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as owned:
        yield owned
    opened.close_all()


def settings(store: detent.Store, **options: str) -> WriteSettings:
    given = {"path": store.url, "queryName": "copy", **options}
    return WriteSettings.of(given, SCHEMA, streaming="txnVersion" not in given)


def task(
    store: detent.Store,
    bodies: list[bytes],
    *,
    partition: int = 0,
    run: str = OLD,
    journal: str = "out",
    size: int = 100,
) -> TaskMessage:
    """What a task that wrote these rows says, in batches of `size`."""
    batches = [
        pa.RecordBatch.from_pylist([{"body": body, "journal": journal} for body in bodies[at : at + size]], ARROW)
        for at in range(0, len(bodies), size)
    ]
    return TaskMessage(partition, BatchIdentity(QUERY, run), stage_rows(settings(store), batches))


def written(store: detent.Store, journal: str = "out") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()] if journal in store.journals() else []


def numbered(count: int, word: bytes = b"m") -> list[bytes]:
    return [b"%s%d" % (word, number) for number in range(count)]


def test_nothing_is_visible_before_the_commit(store: detent.Store) -> None:
    message = task(store, numbered(10))
    assert store.journals() == []
    JournalStreamWriter(settings(store)).commit([message], 0)
    assert written(store) == numbered(10)


def test_a_batch_that_was_committed_changes_nothing_again(store: detent.Store) -> None:
    writer = JournalStreamWriter(settings(store))
    writer.commit([task(store, numbered(10))], 0)
    writer.commit([task(store, numbered(10))], 0)  # replayed by a restarted driver, staged anew
    writer.commit([task(store, numbered(3, b"n"))], 1)
    writer.commit([task(store, numbered(10))], 0)
    assert written(store) == [*numbered(10), *numbered(3, b"n")]
    assert store.ledger("copy").batch == 1


def test_an_abort_after_a_durable_commit_loses_nothing(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writing, "INLINE_BYTES_MAX", 0)
    writer = JournalStreamWriter(settings(store))
    messages: list[Any] = [task(store, numbered(10))]
    writer.commit(messages, 0)
    writer.abort(messages, 0)  # Spark does this when the commit's answer is lost
    store.sweep(grace="0s")
    assert written(store) == numbered(10)


def test_an_older_run_of_the_query_is_fenced(store: detent.Store) -> None:
    writer = JournalStreamWriter(settings(store))
    writer.commit([task(store, numbered(2), run=OLD)], 0)
    writer.commit([task(store, numbered(2, b"n"), run=NEW)], 1)
    for batch in (1, 2):
        with pytest.raises(Fenced):
            writer.commit([task(store, numbered(2, b"zombie"), run=OLD)], batch)
    assert written(store) == [*numbered(2), *numbered(2, b"n")]


def test_two_drivers_that_commit_the_same_batches_at_once(store: detent.Store) -> None:
    batches = 20
    failed: list[Exception] = []

    def drive(run: str) -> None:
        with detent.open(store.url) as mine:
            for batch in range(batches):
                try:
                    JournalStreamWriter(settings(mine)).commit([task(mine, [b"%d" % batch], run=run)], batch)
                except Fenced as error:
                    failed.append(error)
                    return

    drivers = [threading.Thread(target=drive, args=(run,)) for run in (OLD, NEW)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert written(store) == [b"%d" % batch for batch in range(batches)]
    assert len(failed) <= 1


def test_a_new_query_under_an_old_name_is_refused_until_the_ledger_is_reset(store: detent.Store) -> None:
    writer = JournalStreamWriter(settings(store))
    writer.commit([task(store, numbered(2))], 5)
    other = TaskMessage(0, BatchIdentity("query-2", "run-9"), task(store, numbered(2, b"n")).staged)
    with pytest.raises(Fenced, match=r"`detent ledger reset file:\S+ copy --yes`"):
        writer.commit([other], 0)
    assert written(store) == numbered(2)
    store.reset_ledger("copy")
    writer.commit([other], 0)
    assert written(store) == [*numbered(2), *numbered(2, b"n")]


def test_the_order_of_a_task_is_kept_over_fragments_and_rows_that_travel(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writing, "FRAGMENT_BYTES_TARGET", 4_000)
    first, second = numbered(1_050), numbered(30, b"n")
    messages: list[Any] = [task(store, second, partition=1), task(store, first, partition=0)]
    staged = messages[1].staged["out"]
    assert len(staged.fragments) > 2
    assert staged.inline
    JournalStreamWriter(settings(store)).commit(messages, 0)
    found = written(store)
    assert [body for body in found if body.startswith(b"m")] == first
    assert [body for body in found if body.startswith(b"n")] == second


def test_many_small_tasks_become_one_fragment(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writing, "INLINE_BATCH_BYTES_MAX", 1_000)
    messages: list[Any] = [task(store, [b"%d" % number], partition=number) for number in range(20)]
    JournalStreamWriter(settings(store)).commit(messages, 0)
    assert written(store) == [b"%d" % number for number in range(20)]
    assert store.journal("out").info().fragments == 1


def test_a_task_with_many_journals_holds_a_bounded_part_of_them(
    store: detent.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writing, "STAGED_BYTES_MAX", 2_000)
    rows = [{"body": b"%d" % number, "journal": f"j{number % 7}"} for number in range(700)]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 50], ARROW) for at in range(0, 700, 50)]
    message = TaskMessage(0, BatchIdentity(QUERY, OLD), stage_rows(settings(store), batches))
    assert sum(len(part.fragments) for part in message.staged.values()) > 7
    JournalStreamWriter(settings(store)).commit([message], 0)
    for number in range(7):
        assert written(store, f"j{number}") == [b"%d" % row for row in range(number, 700, 7)]


def test_orphans_of_a_batch_that_failed_are_swept(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writing, "INLINE_BYTES_MAX", 0)
    lost = task(store, numbered(5))
    kept = task(store, numbered(5))
    JournalStreamWriter(settings(store)).commit([kept], 0)
    assert store.sweep(grace="0s") == 1
    with pytest.raises((detent.NotFound, Fenced)):
        JournalStreamWriter(settings(store)).commit([lost], 1)  # begun before the sweeper's horizon: write it again
    assert written(store) == numbered(5)


def test_an_empty_batch_enters_the_ledger(store: detent.Store) -> None:
    JournalStreamWriter(settings(store)).commit([TaskMessage(0, BatchIdentity(QUERY, OLD), {})], 3)
    assert store.ledger("copy").batch == 3
    assert store.journals() == []


def test_tasks_of_two_queries_are_refused(store: detent.Store) -> None:
    one, two = (TaskMessage(number, BatchIdentity(query, OLD), {}) for number, query in enumerate(("a", "b")))
    with pytest.raises(Invalid, match="one streaming query"):
        JournalStreamWriter(settings(store)).commit([one, two], 0)
    with pytest.raises(Invalid, match="1 of 2 tasks"):
        JournalStreamWriter(settings(store)).commit([one, None], 0)
    assert store.ledgers() == []


def test_a_batch_write_repeated_with_the_same_version(store: detent.Store) -> None:
    for version, word in (("1", b"m"), ("1", b"again"), ("2", b"n"), ("0", b"old")):
        writer = JournalWriter(settings(store, txnAppId="nightly", txnVersion=version))
        writer.commit([task(store, numbered(2, word))])
    assert written(store) == [*numbered(2), *numbered(2, b"n")]


@pytest.mark.parametrize(
    ("options", "streaming", "says"),
    [
        ({"txnAppId": "a"}, False, "go together"),
        ({"txnVersion": "1"}, False, "go together"),
        ({"txnVersion": "x", "txnAppId": "a"}, False, "txnVersion"),
        ({"txnVersion": "1", "txnAppId": "a"}, True, "batch number"),
        ({"journal": "no name"}, True, "no journal name"),
        ({"jurnal": "a"}, True, "did you mean journal"),
        ({"asyncProgressTrackingEnabled": "true"}, True, "no option"),
    ],
)
def test_options_of_a_write_that_are_wrong(
    store: detent.Store, options: dict[str, str], streaming: bool, says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        WriteSettings.of({"path": store.url, **options}, SCHEMA, streaming=streaming)


def test_rows_need_a_journal(store: detent.Store) -> None:
    bare = StructType([StructField("body", BinaryType())])
    with pytest.raises(Invalid, match="say where the rows go"):
        WriteSettings.of({"path": store.url}, bare, streaming=True)


def test_a_store_without_an_owner_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "OWNER_TIMEOUT", "100ms")
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        message = task(store, numbered(1))
        given = settings(store)
    opened.close_all()
    with pytest.raises(detent.Unavailable, match="detent serve"):
        JournalStreamWriter(given).commit([message], 0)
