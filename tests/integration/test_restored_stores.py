"""What runs on a store that was restored from a backup: what was restored with it goes on, what is ahead is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import detent
from detent.backup import restore, take_backup
from detent.consumer import Consumer
from detent.errors import Fenced, Restored
from detent.processor import source, stream
from detent.state import EngineState, RecordedState, SqlState, State
from smallgraphs import graph_of, ran, values


class World:
    """A store, a backup of it, and what is restored from that, under the same URL."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file:{folder / 'store'}"
        self.kept = f"file:{folder / 'backups'}"
        self._folder = folder
        self._moved = 0

    def append(self, *bodies: str) -> None:
        if bodies:
            with detent.open(self.url) as store:
                store.journal("in").append_many([body.encode() for body in bodies])

    def back_up(self) -> None:
        take_backup(self.url, self.kept)

    def restore(self) -> None:
        self._moved += 1
        (self._folder / "store").rename(self._folder / f"old{self._moved}")
        restore(self.kept, self.url)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- consumers ------------------------------------------------------------------------------------------------------


def consume(url: str, state: State) -> list[str]:
    """Run a consumer until nothing is left; what it has read in this run."""
    seen: list[str] = []
    app = Consumer("counting", read=["in"], state=state)

    @app.consume
    def consume(message: Any, _state: Any, _publish: Any) -> None:
        seen.append(message.body.decode())

    with detent.open(url) as store:
        app.run(store=store, once=True)
    return seen


def state_of(kind: str, folder: Path) -> State:
    if kind == "recorded":
        return RecordedState(str(folder / "recorded"), snapshot_bytes=1)
    return EngineState() if kind == "engine" else SqlState(f"sqlite:///{folder / 'state.db'}")


@pytest.mark.parametrize("kind", ["engine", "sqlite", "recorded"])
def test_consumer_that_is_not_ahead_goes_on(world: World, tmp_path: Path, kind: str) -> None:
    world.append("a", "b")
    assert consume(world.url, state_of(kind, tmp_path)) == ["a", "b"]
    world.append("c")
    world.back_up()
    world.restore()
    assert consume(world.url, state_of(kind, tmp_path)) == ["c"]
    world.append("d", "e")
    assert consume(world.url, state_of(kind, tmp_path)) == ["d", "e"], "it is a consumer of the restored store now"
    world.append("f")
    world.back_up()
    world.restore()
    assert consume(world.url, state_of(kind, tmp_path)) == ["f"], "and of one that was restored twice"


def test_consumer_whose_state_is_restored_with_the_store_reads_again_what_was_lost(
    world: World, tmp_path: Path
) -> None:
    world.append("a", "b")
    world.back_up()
    assert consume(world.url, state_of("engine", tmp_path)) == ["a", "b"]
    world.restore()
    assert consume(world.url, state_of("engine", tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("grown", [0, 1, 5])
def test_consumer_whose_database_is_ahead_is_refused_however_far_the_journal_has_grown(
    world: World, tmp_path: Path, grown: int
) -> None:
    world.append("a", "b")
    assert consume(world.url, state_of("sqlite", tmp_path)) == ["a", "b"]
    world.back_up()
    world.append("c", "d")
    assert consume(world.url, state_of("sqlite", tmp_path)) == ["c", "d"]
    world.restore()
    world.append(*(f"other{number}" for number in range(grown)))
    with pytest.raises(Restored, match="read to 4, and ended at 2"):
        consume(world.url, state_of("sqlite", tmp_path))
    with detent.open(world.url) as store:
        store.consumer("counting").reset({"in": 2})
    assert consume(world.url, state_of("sqlite", tmp_path)) == [f"other{number}" for number in range(grown)]


def test_consumer_with_recorded_state_goes_by_its_log_and_not_by_its_file(world: World, tmp_path: Path) -> None:
    world.append("a", "b")
    assert consume(world.url, state_of("recorded", tmp_path)) == ["a", "b"]
    world.back_up()
    world.append("c", "d")
    assert consume(world.url, state_of("recorded", tmp_path)) == ["c", "d"]
    world.restore()
    world.append("other0", "other1", "other2")
    assert consume(world.url, state_of("recorded", tmp_path)) == ["other0", "other1", "other2"]


# -- processors -----------------------------------------------------------------------------------------------------


def double(body: Any) -> Any:
    return body * 2


def test_graph_that_is_restored_with_its_store_goes_on(world: World) -> None:
    graph = graph_of(source("in"), stream("double", double, input="in", output="out"))
    world.append("1", "2")
    ran(graph, world.url)
    world.append("3")
    world.back_up()
    ran(graph, world.url)
    world.restore()
    ran(graph, world.url)
    world.append("4")
    ran(graph, world.url)
    with detent.open(world.url) as store:
        assert values(store, "out") == [2, 4, 6, 8]


def test_graph_of_another_store_that_is_ahead_is_refused(world: World, tmp_path: Path) -> None:
    graph = graph_of(
        source("in", output="in@far"), stream("double", double, input="in@far", output="out"), stores={"far": world.url}
    )
    own = f"file:{tmp_path / 'own'}"
    world.append("1")
    ran(graph, own)
    world.back_up()
    world.append("2")
    ran(graph, own)
    world.restore()
    world.append("7", "8")
    with pytest.raises(Exception, match="ended at 1 when its store was restored"):
        ran(graph, own)
    with detent.open(own) as store:
        assert values(store, "out") == [2, 4]


# -- streams of Spark, as its planner drives them, without Java -----------------------------------------------------


def stream_of(url: str, **options: str) -> Any:
    pytest.importorskip("pyspark")
    from detent.spark.journal_reading import JournalReadSettings, JournalStreamReader

    return JournalStreamReader(JournalReadSettings.of({"path": url, "journals": "in", **options}))


def next_batch(stream: Any, start: dict[str, int]) -> tuple[dict[str, int], list[bytes]]:
    """Plan and read one batch; where it ends, and its bodies."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    end = stream.latestOffset(start, ReadAllAvailable())
    return end, bodies_of(stream, start, end)


def bodies_of(stream: Any, start: dict[str, int], end: dict[str, int]) -> list[bytes]:
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    return [body for batch in batches for body in batch.column(batch.schema.get_field_index("body")).to_pylist()]


def test_stream_that_is_not_ahead_goes_on(world: World) -> None:
    world.append("a", "b")
    end, bodies = next_batch(stream_of(world.url), {"in": 0})
    assert bodies == [b"a", b"b"]
    world.append("c")
    world.back_up()
    world.restore()
    end, bodies = next_batch(stream_of(world.url), end)
    assert bodies == [b"c"]
    world.append("d", "e")
    end, bodies = next_batch(stream_of(world.url), end)
    assert bodies == [b"d", b"e"], "its place is one of the restored store now"
    world.back_up()
    world.restore()
    world.append("f")
    assert next_batch(stream_of(world.url), end)[1] == [b"f"]


@pytest.mark.parametrize("grown", [1, 5])
def test_stream_that_is_ahead_is_refused_however_far_the_journal_has_grown(world: World, grown: int) -> None:
    world.append("a", "b")
    world.back_up()
    end, _ = next_batch(stream_of(world.url), {"in": 0})
    world.append("c")
    planned, _ = next_batch(stream_of(world.url), end)
    world.restore()
    world.append(*(f"other{number}" for number in range(grown)))
    with pytest.raises(Restored, match="read to 3, and ended at 2"):
        next_batch(stream_of(world.url), planned)
    with pytest.raises(Restored, match="read to 3, and ended at 2"):
        bodies_of(stream_of(world.url), end, planned)
    assert next_batch(stream_of(world.url), end)[1] == [b"other%d" % number for number in range(grown)]
    bold = stream_of(world.url, failOnDataLoss="false")
    assert next_batch(bold, planned)[1] == [b"other%d" % number for number in range(1, grown)]


def test_offset_of_a_store_that_was_never_restored_names_its_journals_alone(world: World) -> None:
    world.append("a")
    assert next_batch(stream_of(world.url), stream_of(world.url).initialOffset())[0] == {"in": 1}


# -- clients and ledgers --------------------------------------------------------------------------------------------


def test_client_that_had_the_old_store_open_is_refused_until_it_opens_again(world: World, tmp_path: Path) -> None:
    with detent.open(world.url), detent.open(world.url, role="client") as client:
        client.journal("in").append(b"a")
        world.back_up()
        client.journal("in").append(b"b")
        session = client._session
        world_before = session._session
    world.restore()
    with detent.open(world.url), detent.open(world.url, role="client") as client:
        assert world_before is not None
        client._session.open(world_before)  # a process that was stopped meanwhile
        with pytest.raises(Restored, match="Start it anew"):
            client.journal("in").append(b"c")
    with detent.open(world.url) as store:
        assert [message.body for message in store.journal("in").read()] == [b"a"]
        assert store.journal("in").append(b"d").offset == 1


def test_ledger_takes_the_next_batch_only(world: World) -> None:
    def enter(batch: int, run: str = "new") -> None:
        with detent.open(world.url) as store, store.transaction() as transaction:
            transaction.enter_ledger("sink", batch, "query", run)

    for batch in range(3):
        enter(batch, "old")
    world.back_up()
    enter(3, "old")
    world.restore()
    with pytest.raises(Restored, match="goes on with batch 4"):
        enter(4)
    with pytest.raises(Fenced):
        enter(3, "old")
    with pytest.raises(detent.AlreadyEntered):
        enter(2)
    enter(3)
    enter(7)


def test_ledger_that_is_reset_starts_over(world: World) -> None:
    with detent.open(world.url) as store, store.transaction() as transaction:
        transaction.enter_ledger("sink", 0, "query")
    world.back_up()
    world.restore()
    with detent.open(world.url) as store:
        store.reset_ledger("sink")
        with store.transaction() as transaction:
            transaction.enter_ledger("sink", 9, "query")


def test_reader_of_a_queue_that_is_ahead_is_refused(world: World) -> None:
    with detent.open(world.url) as store:
        store.queue("work").create()
        store.queue("work").publish_many([b"a", b"b"])
        reader = store.queue("work").reader("spark")
        generation = reader.open().generation
        assert reader.assign(0, 1).number == 1
    world.back_up()
    with detent.open(world.url) as store:
        reader = store.queue("work").reader("spark", generation=generation)
        assert reader.assign(1, 1).number == 2
    world.restore()
    with detent.open(world.url) as store:
        reader = store.queue("work").reader("spark", generation=generation)
        with pytest.raises(detent.Conflict):
            reader.assign(2, 1)
