"""The tables of a store as Spark would read them, without a Java: planned and read by calling the readers."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from detent import Outgoing, Store
from detent.errors import Invalid, NotFound, Unavailable
from detent.queue import listing
from detent.remote import contents
from remoteserver import serving

pytest.importorskip("pyspark")
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from detent.spark import opened, table_columns, table_journals, table_queues, tables
from detent.spark.tables import TABLES, TableDataSource, TablePartition

SOON = timedelta(minutes=5)


@pytest.fixture(params=["file", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store that somebody else owns, as Spark's processes find one: through its socket, or behind a server."""
    with contextlib.ExitStack() as stack:
        url = f"file:{tmp_path / 'store'}"
        if request.param == "http":
            url = stack.enter_context(serving(url)).url
        else:
            stack.enter_context(detent.open(url))
        stack.callback(opened.close_all)
        yield stack.enter_context(detent.open(url))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Store]:
    """A store with files, owned by this process."""
    with detent.open(f"file:{tmp_path / 'store'}") as made:
        yield made
        opened.close_all()


def planned(store: Store | str, table: str, **options: Any) -> tuple[Any, list[Any]]:
    """What Spark does: the reader and its partitions travel to other processes."""
    url = store if isinstance(store, str) else store.url
    source = TableDataSource({"path": url, "table": table, **{name: str(value) for name, value in options.items()}})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    return reader, pickle.loads(pickle.dumps(reader.partitions()))


def batches(store: Store | str, table: str, **options: Any) -> list[Any]:
    reader, partitions = planned(store, table, **options)
    found = [batch for partition in partitions for batch in reader.read(partition)]
    expected = to_arrow_schema(tables.schema_of(TABLES[table].columns), timezone="UTC")
    for batch in found:
        batch.validate(full=True)
        assert expected.equals(batch.schema), "Spark refuses all but exactly this"
    return found


def rows(store: Store | str, table: str, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in batches(store, table, **options) for row in batch.to_pylist()]


def by(key: str, found: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    assert len({row[key] for row in found}) == len(found), "each once"
    return {row[key]: row for row in found}


def is_lately(time: datetime | None) -> bool:
    return time is not None and abs(datetime.now(UTC) - time) < SOON


# -- queues -----------------------------------------------------------------------------------------------------


def test_queues(store: Store) -> None:
    assert rows(store, "queues") == []
    store.queue("plain").create()
    store.queue("orders").create(
        description="what people buy",
        labels={"team": "shop"},
        dead_letter="plain",
        group_header="customer",
        done_retention=None,
        lease="90s",
        max_attempts=3,
    )
    store.queue("orders").publish(b"x", headers={"customer": "7"})
    store.queue("orders").publish(b"x", headers={"customer": "7"})
    found = by("queue", rows(store, "queues"))
    assert list(found) == ["orders", "plain"]
    orders = found["orders"]
    assert (orders["available"], orders["blocked"], orders["in_flight"], orders["total_routed"]) == (1, 1, 0, 2)
    assert is_lately(orders["created_at"])
    assert is_lately(orders["oldest_at"])
    assert (orders["lease_ms"], orders["max_attempts"], orders["done_retention_ms"]) == (90_000, 3, None)
    assert (orders["dead_letter"], orders["group_header"], orders["labels"]) == (
        "plain",
        "customer",
        [("team", "shop")],
    )
    assert (orders["description"], orders["paused"]) == ("what people buy", False)
    plain = found["plain"]
    assert (plain["oldest_at"], plain["dead_letter"], plain["done_retention_ms"]) == (None, None, 3_600_000)
    assert rows(store, "queues", queue="plain") == [plain]


def test_messages_in_each_state(store: Store) -> None:
    queue = store.queue("q")
    queue.create(lease="1h", max_attempts=1)
    published = queue.publish_many(
        [
            Outgoing(b"done"),
            Outgoing(b"failed", {"why": "not"}),
            Outgoing(b"held", {"priority": "3"}),
            Outgoing(uri="s3://bucket/key", retention="0s"),
            Outgoing(b"", {"a": "1"}, delay="1h"),
        ]
    )
    done, failed, held, free, later = (one.message for one in published)
    deliveries = {one.id: one for one in queue.claim(3, consumer="me")}
    assert set(deliveries) == {done, failed, held}
    deliveries[done].ack()
    deliveries[failed].fail("no")
    found = by("message", rows(store, "messages"))
    assert {message: row["state"] for message, row in found.items()} == {
        done: "done",
        failed: "failed",
        held: "in flight",
        free: "available",
        later: "delayed",
    }
    assert {row["queue"] for row in found.values()} == {"q"}
    flying = found[held]
    assert (flying["priority"], flying["attempts"], flying["consumer"]) == (3, 1, "me")
    assert flying["lease_ends_at"] - flying["claimed_at"] == timedelta(hours=1)
    assert (flying["delivery"], flying["body"]) == (deliveries[held].fencing_token, b"held")
    assert dict(flying["headers"]) == {"priority": "3", "queue": "q"}
    waiting = found[free]
    assert (waiting["uri"], waiting["body"], waiting["expires_at"]) == ("s3://bucket/key", None, None)
    assert (waiting["consumer"], waiting["delivery"], waiting["lease_ends_at"]) == (None, None, None)
    assert is_lately(waiting["visible_at"])
    assert is_lately(waiting["received_at"])
    assert is_lately(waiting["created_at"])
    assert found[later]["visible_at"] - found[later]["received_at"] == timedelta(hours=1)
    assert (found[later]["body"], dict(found[later]["headers"])) == (b"", {"a": "1", "queue": "q"})
    assert (found[failed]["reason"], found[failed]["body"]) == ("no", b"failed")
    assert is_lately(found[failed]["failed_at"])
    ended = found[done]
    assert is_lately(ended["done_at"])
    assert (ended["attempts"], ended["body"], ended["headers"], ended["priority"]) == (1, None, None, None)


def test_many_messages_come_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_columns, "BATCH_ROWS", 700)
    queue = store.queue("q")
    queue.create()
    bodies = [b"%d" % number for number in range(2_500)]
    queue.publish_many(bodies)
    found = batches(store, "messages")
    assert [batch.num_rows for batch in found] == [700, 700, 700, 400]
    table = pa.Table.from_batches(found)
    assert table.column("body").to_pylist() == bodies
    queue.ack(queue.claim(1_200))
    table = pa.Table.from_batches(batches(store, "messages"))
    assert table.column("message").to_pylist() == [*range(1_200, 2_500), *range(1_200)]


def test_large_bodies_come_a_few_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table_columns, table_queues):
        monkeypatch.setattr(module, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(contents, "ANSWER_CONTENT_BYTES_MAX", 1 << 20)  # a server sends one message at a time
    queue = store.queue("q")
    queue.create(lease="1h", max_attempts=1)
    for number in range(5):
        queue.publish(bytes([number]) * 700_000)
    assert [batch.num_rows for batch in batches(store, "messages")] == [2, 2, 1]
    for one in queue.claim(5):
        one.fail("too large")
    found = batches(store, "failed")
    assert [batch.num_rows for batch in found] == [2, 2, 1]
    bodies = [body for batch in found for body in batch.column("body").to_pylist()]
    assert bodies == [bytes([number]) * 700_000 for number in range(5)]


def test_failed_of_some_queues(store: Store) -> None:
    for name in ("a", "b", "c"):
        queue = store.queue(name)
        queue.create(lease="1h", max_attempts=1)
        if name != "c":
            queue.publish_many([b"x"] * 150)
            for one in queue.claim(150):
                one.fail(f"no {name}")
    assert [row["reason"] for row in rows(store, "failed")] == ["no a"] * 150 + ["no b"] * 150
    found = rows(store, "failed", queue="b")
    assert [row["message"] for row in found] == list(range(150, 300))
    first = found[0]
    assert (first["queue"], first["attempts"], first["priority"], first["body"]) == ("b", 1, 128, b"x")
    assert is_lately(first["failed_at"])
    assert first["delivery"] > 0
    assert rows(store, "failed", queue="c") == []


def test_attempts(store: Store) -> None:
    queue = store.queue("q")
    queue.create(lease="1h", max_attempts=2, backoff="0s")
    kept, failed, acked = (one.message for one in queue.publish_many([b"1", b"2", b"3"]))
    for reason, messages in (("first", {kept, failed, acked}), ("second", {failed})):
        for one in queue.claim(3, consumer=f"{reason} try"):
            if one.id in messages:
                one.fail(reason)
            elif one.id == acked:
                one.ack()
    found = [(row["message"], row["number"], row["reason"], row["consumer"]) for row in rows(store, "attempts")]
    assert found == [
        (kept, 1, "first", "first try"),
        (failed, 1, "first", "first try"),
        (failed, 2, "second", "second try"),
    ]
    row = rows(store, "attempts")[0]
    assert is_lately(row["claimed_at"])
    assert row["claimed_at"] <= row["ended_at"]


def test_readers_and_what_is_assigned_to_them(store: Store) -> None:
    queue = store.queue("q")
    queue.create()
    queue.publish_many([b"1", b"2", b"3"])
    idle, busy = queue.reader("idle"), queue.reader("busy")
    idle.open()
    generation = busy.open().generation
    busy.assign(0, 2)
    found = by("reader", rows(store, "readers"))
    assert list(found) == ["busy", "idle"]
    assert (found["busy"]["assigned"], found["busy"]["acked"], found["busy"]["generation"]) == (2, 0, generation)
    assert is_lately(found["busy"]["assigned_at"])
    assert is_lately(found["idle"]["opened_at"])
    assert (found["idle"]["assigned"], found["idle"]["assigned_at"]) == (0, None)
    held = [row for row in rows(store, "messages") if row["state"] == "in flight"]
    assert [(row["consumer"], row["lease_ends_at"]) for row in held] == [("busy", None)] * 2


def test_a_task_each_queue_and_one_task_where_there_is_a_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcde":
        store.queue(name).create()
        store.queue(name).publish_many([b"x"] * 3)

    def names(**options: Any) -> list[list[str]]:
        return [partition.names for partition in planned(store, "messages", **options)[1]]

    assert names() == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert names(queue="c") == [["c"]]
    assert names(limit=7) == [["a", "b", "c", "d", "e"]]
    assert [row["queue"] for row in rows(store, "messages", limit=7)] == list("aaabbbc")
    assert len(rows(store, "messages", limit=100)) == 15
    monkeypatch.setattr(tables, "PARTITIONS_MAX", 2)
    assert names() == [["a", "c", "e"], ["b", "d"]]


def test_a_queue_that_is_deleted_after_planning_has_no_rows(store: Store) -> None:
    for name in ("a", "b"):
        store.queue(name).create()
        store.queue(name).publish(b"x")
    reader, partitions = planned(store, "messages")
    store.queue("a").delete()
    assert [batch.column("queue").to_pylist() for one in partitions for batch in reader.read(one)] == [["b"]]


@pytest.mark.parametrize("then", ["deleted", "made anew"])
def test_a_queue_that_is_deleted_between_two_pages(store: Store, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """What was read of it stays; what is there under its name now is another queue."""
    queue = store.queue("q")
    queue.create()
    queue.publish_many([b"old"] * (listing.LISTED_MAX + 1))
    monkeypatch.setattr(table_columns, "BATCH_ROWS", 1)
    reader, partitions = planned(store, "messages")
    found = reader.read(partitions[0])
    assert next(found).column("body").to_pylist() == [b"old"]
    queue.delete()
    if then == "made anew":
        queue.create()
        queue.publish_many([b"new"] * (listing.LISTED_MAX + 2))
    assert {body for batch in found for body in batch.column("body").to_pylist()} <= {b"old", None}


# -- journals ---------------------------------------------------------------------------------------------------


def test_journals(store: Store) -> None:
    store.journal("a").append(b"1")
    store.journal("b").create(retention="1h")
    with store.transaction() as transaction:
        transaction.append("a", b"2")
        transaction.set_registers("a", {"owner": "me"})
    found = by("journal", rows(store, "journals"))
    assert list(found) == ["a", "b"]
    assert (found["a"]["messages"], found["a"]["first_offset"], found["a"]["next_offset"]) == (2, 0, 2)
    assert (found["a"]["registers"], found["a"]["retention_ms"]) == ([("owner", "me")], None)
    assert is_lately(found["a"]["created_at"])
    assert is_lately(found["a"]["updated_at"])
    assert (found["b"]["messages"], found["b"]["retention_ms"]) == (0, 3_600_000)
    assert rows(store, "journals", journal="b") == [found["b"]]


def test_producers(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_journals, "PRODUCERS_PAGE", 2)
    publishers = [local.publisher() for _ in range(5)]
    for publisher in publishers[:-1]:
        publisher.publish("j", [b"at once"])
    pending = publishers[-1]
    position = local.reader.info("j").next_position
    pending.publish_uncommitted("j", [b"not", b"yet"])
    local.journal("k").append(b"by the owner")
    found = by("producer", rows(local, "producers", journal="j"))
    assert set(found) == {bytes(publisher.producer) for publisher in publishers}
    at_once, waiting = found[bytes(publishers[0].producer)], found[bytes(pending.producer)]
    assert is_lately(at_once["last_ack_at"])
    assert is_lately(at_once["touched_at"])
    assert at_once["last_ack"] == at_once["max_clock"] > 0
    assert (at_once["span_begin"], at_once["span_opened_at"], at_once["pending_bytes"]) == (None, None, 0)
    assert waiting["last_ack"] < waiting["max_clock"]
    assert waiting["span_begin"] == position
    assert is_lately(waiting["span_opened_at"])
    assert is_lately(waiting["max_clock_at"])
    assert waiting["pending_bytes"] > 0
    assert not waiting["aborted"]
    pending.acknowledge(pending.build_ack_intents())
    (after,) = [row for row in rows(local, "producers") if row["producer"] == bytes(pending.producer)]
    assert (after["span_begin"], after["pending_bytes"]) == (None, 0)
    assert after["last_ack"] > waiting["max_clock"]
    assert {row["journal"] for row in rows(local, "producers")} == {"j", "k"}


def test_producers_need_files(store: Store) -> None:
    if store.url.startswith("file:"):
        assert rows(store, "producers") == []
    else:
        with pytest.raises(Invalid, match="file: or s3: URL"):
            rows(store, "producers")


def test_a_store_that_a_server_owns(tmp_path: Path) -> None:
    """As with an object store: queues and ledgers are asked of the server, journals are read where they are."""
    url = f"file:{tmp_path / 'store'}"
    with serving(url) as server, detent.open(server.url) as client:
        client.queue("q").create()
        client.queue("q").publish(b"x")
        client.journal("j").append(b"1")
        both = {"server": server.url}
        assert [row["body"] for row in rows(url, "messages", **both)] == [b"x"]
        assert rows(url, "ledgers", **both) == []
        assert [row["journal"] for row in rows(url, "producers", **both)] == ["j"]
        used = {(place, role) for place, role in opened._open}
        opened.close_all()
    assert used == {(server.url, "client"), (url, "reader")}


def test_journals_need_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "OWNER_TIMEOUT", "100ms")
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.journal("j").append(b"1")
    assert [row["journal"] for row in rows(url, "journals")] == ["j"]
    assert [row["journal"] for row in rows(url, "producers")] == ["j"]
    with pytest.raises(Unavailable, match="detent serve"):
        rows(url, "queues")
    opened.close_all()


def test_ledgers_and_pins(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        with store.transaction() as transaction:
            transaction.enter_ledger(f"stream {number}", 4, query="query", run="run 1")
    with store.transaction() as transaction:
        transaction.enter_ledger("stream 0", 5, query="query", run="run 2")
    found = by("ledger", rows(store, "ledgers"))
    assert list(found) == ["stream 0", "stream 1", "stream 2"]
    first = found["stream 0"]
    assert (first["query"], first["batch"], first["run"], first["replaced"]) == ("query", 5, "run 2", ["run 1"])
    assert (first["entries"], first["generation"]) == (2, 0)
    assert is_lately(first["created_at"])
    assert is_lately(first["updated_at"])
    assert [row["ledger"] for row in rows(store, "ledgers", limit=2)] == ["stream 0", "stream 1"]
    store.pin("start", {"j": 7, "k": 0})
    (pin,) = rows(store, "pins")
    assert (pin["pin"], dict(pin["offsets"])) == ("start", {"j": 7, "k": 0})
    assert is_lately(pin["created_at"])


# -- the format -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_store_has_empty_tables(local: Store, table: str) -> None:
    assert batches(local, table) == []


def test_values_beyond_calendars_and_signs() -> None:
    columns = {"time": table_columns.TIME, "clock": table_columns.CLOCK}
    (batch,) = table_columns.batches_of(columns, [((1 << 62), (1 << 64) - 1), (0, 0), (None, None)])
    assert batch.column("time").to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC), None]
    assert batch.column("clock").to_pylist() == [(1 << 64) - 1, 0, None]


BAD: dict[str, tuple[dict[str, str], str]] = {
    "no table": ({}, "needs the option table"),
    "an unknown table": ({"table": "mesages"}, "no table 'mesages'.*queues, messages, failed, attempts"),
    "an unknown option": ({"table": "failed", "que": "q"}, "did you mean queue"),
    "a journal where there are queues": ({"table": "failed", "journal": "j"}, "no option journal: the option queue"),
    "a queue where there are journals": ({"table": "producers", "queue": "q"}, "no option queue: the option journal"),
    "a queue where there is neither": ({"table": "ledgers", "queue": "q"}, "about the whole store"),
    "no limit": ({"table": "failed", "limit": "0"}, "limit is a whole number from 1"),
    "a limit in words": ({"table": "failed", "limit": "ten"}, "limit is a whole number from 1"),
    "a limit below nothing": ({"table": "failed", "limit": "-5"}, "limit is a whole number from 1"),
    "no store": ({"table": "failed", "path": ""}, "needs the store's URL"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name: str) -> None:
    options, message = BAD[name]
    source = TableDataSource({"path": "file:/nowhere", **options})
    with pytest.raises(Invalid, match=message):
        source.schema()
    with pytest.raises(Invalid, match=message):
        source.reader(StructType())


def test_names_of_options_and_tables_in_any_case() -> None:
    source = TableDataSource({"PATH": "file:/nowhere", "Table": "FAILED", "LIMIT": "3"})
    assert "failed_at" in source.schema().fieldNames()


def test_a_queue_or_journal_that_is_not_there(store: Store) -> None:
    store.queue("q").create()
    store.journal("j").append(b"1")
    for table in ("queues", "messages", "failed", "attempts", "readers"):
        with pytest.raises(NotFound, match=r"no queue 'other'.*option queue"):
            planned(store, table, queue="other")
    with pytest.raises(NotFound, match=r"no journal 'other'.*option journal"):
        planned(store, "journals", journal="other")


def test_names_that_none_could_have(local: Store) -> None:
    for table, option in (("failed", "queue"), ("producers", "journal")):
        with pytest.raises(Invalid, match="name"):
            planned(local, table, **{option: "\0"})


def test_another_schema_is_refused() -> None:
    source = TableDataSource({"path": "file:/nowhere", "table": "pins"})
    with pytest.raises(Invalid, match=r"leave \.schema\(\) out"):
        source.reader(StructType([StructField("pin", StringType()), StructField("offsets", LongType())]))


def test_read_only_and_no_stream() -> None:
    source = TableDataSource({"path": "file:/nowhere", "table": "failed"})
    schema = source.schema()
    for write in (source.writer, source.streamWriter):
        with pytest.raises(Invalid, match="read-only"):
            write(schema, False)
    with pytest.raises(Invalid, match=r"spark\.read"):
        source.streamReader(schema)


def test_a_partition_that_names_nothing_is_empty(local: Store) -> None:
    reader, partitions = planned(local, "messages")
    assert [partition.names for partition in partitions] == [[]]
    assert list(reader.read(TablePartition([]))) == []


def test_the_docs_name_every_table_and_column() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = docs.split("\n## Tables\n")[1].split("\n## ")[0]
    lines = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    for name, table in TABLES.items():
        described = lines[name] + (section if "body" in table.columns else "")
        missing = [column for column in table.columns if f"`{column}`" not in described]
        assert not missing, f"{name}: {missing}"
