"""The shard table: opening and publishing shards one at a time as others do it, and in batches."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import Engine, text

from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.ingest.relay import relay
from bench.ingest.suite import SUITE
from bench.place import Place
from bench.server.peers import postgres
from detent.ingest.metastore import connect, connect_existing
from detent.ingest.shared_state import BatchRecord, FileShard, QueueSharedState
from detent.sql.transactions import transact

ROUND_TRIP_S = 0.002
BATCHES = (1, 100, 1_000)
SECONDS, QUICK_SECONDS = 2, 1
_numbers = itertools.count()


def _shards(count: int) -> list[FileShard]:
    """New shards, with names as long as real ones."""
    found = []
    for _ in range(count):
        number = next(_numbers)
        uri = f"s3://a-bucket-with-a-name/incoming/orders/2026/11/17/part-{number:012d}.json.gz"
        found.append(FileShard(uuid.uuid4().bytes, uri, "etag:0123456789abcdef", 1_000_000))
    return found


class _Rows:
    """The same one shard at a time, by the statements of a queue source that does it so: insert if absent and read
    back; then lock the source, lock the shard, check it, move it, rewrite the source."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE row_source (name TEXT PRIMARY KEY, settings TEXT)"))
            connection.execute(text("INSERT INTO row_source VALUES ('s', '{}')"))
            connection.execute(
                text("CREATE TABLE row_shard (id TEXT PRIMARY KEY, token TEXT, position TEXT, updated BIGINT)")
            )
        self._lock = "" if engine.dialect.name == "sqlite" else " FOR UPDATE"

    def cycle(self, shard: FileShard) -> None:
        with self._engine.begin() as connection:
            values = {"id": shard.uri, "token": "t", "now": int(time.time())}
            connection.execute(
                text("INSERT INTO row_shard VALUES (:id, :token, '', :now) ON CONFLICT DO NOTHING"), values
            )
            connection.execute(text("SELECT token, position FROM row_shard WHERE id = :id"), values).one()
        with self._engine.begin() as connection:
            connection.execute(text(f"SELECT settings FROM row_source WHERE name = 's'{self._lock}")).one()
            found = connection.execute(
                text(f"SELECT token, position FROM row_shard WHERE id = :id{self._lock}"), {"id": shard.uri}
            ).one()
            assert found.token == "t"
            connection.execute(
                text("UPDATE row_shard SET position = :position, updated = :now WHERE id = :id"),
                {"id": shard.uri, "position": shard.end, "now": int(time.time())},
            )
            connection.execute(text("UPDATE row_source SET settings = '{}' WHERE name = 's'"))


def _rate(seconds: float, size: int, cycle: Callable[[], None]) -> float:
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        cycle()
        count += size
    return count / passed


def _batched(state: QueueSharedState, size: int) -> None:
    shards = _shards(size)
    assert len(state.open(shards).granted) == size
    record = BatchRecord(uuid.uuid4().hex, size, 1, size, size)
    transact(state.engine, lambda connection: state.advance(connection, shards, record))


def _sides(engine: Engine, name: str, seconds: float) -> dict[str, Callable[[], float]]:
    state = QueueSharedState(engine, "bench", uuid.uuid4().hex, 120_000)
    rows = _Rows(engine)
    sides: dict[str, Callable[[], float]] = {
        f"{name}-rows": lambda: _rate(seconds, 1, lambda: rows.cycle(_shards(1)[0]))
    }
    for size in BATCHES:
        sides[f"{name}-{size}"] = lambda size=size: _rate(seconds, size, lambda: _batched(state, size))
    return sides


def _postgres_url(port: int) -> str:
    return f"postgresql+psycopg://bench@127.0.0.1:{port}/postgres"


@SUITE.measurement("shards")
@contextmanager
def shards(place: Place, size: Size) -> Iterator[Plan]:
    """Open and publish, on both databases, and on PostgreSQL behind a round trip."""
    seconds = size.of(SECONDS, QUICK_SECONDS)
    with ExitStack() as stack:
        folder = stack.enter_context(place.fresh())
        sqlite = connect(f"sqlite:///{Path(folder) / 'shards.db'}")
        server = stack.enter_context(postgres(folder))
        far_port = stack.enter_context(relay(server.port, ROUND_TRIP_S))
        near = connect(_postgres_url(server.port))
        far = connect_existing(_postgres_url(far_port))
        for engine in (sqlite, near, far):
            stack.callback(engine.dispose)
        near_sides = _sides(near, "near", seconds)
        with near.begin() as connection:
            connection.execute(text("DROP TABLE row_source"))
            connection.execute(text("DROP TABLE row_shard"))
        sides = {**_sides(sqlite, "sqlite", seconds), **_sides(far, "far", seconds)}
        sides |= {name: side for name, side in near_sides.items() if not name.endswith("rows")}
        yield Plan(sides, _rows())


def _rows() -> list[Row]:
    rows = []
    for size in BATCHES:
        bar = ratio_at_least(100, ">= 100 x row at a time") if size >= 100 else INFORMATIVE
        what = f"PostgreSQL, 2 ms away, batches of {size}"
        rows.append(Row(what, "shards/s", f"far-{size}", bar, "far-rows"))
    rows += [Row(f"PostgreSQL, batches of {size}", "shards/s", f"near-{size}", INFORMATIVE) for size in BATCHES]
    rows += [
        Row(f"SQLite, batches of {size}", "shards/s", f"sqlite-{size}", INFORMATIVE, "sqlite-rows") for size in BATCHES
    ]
    return rows
