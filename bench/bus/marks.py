"""What a mark costs when a million are there, against an empty table: the tracker's own call, and a whole unit."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy
from sqlalchemy import text

from bench.bus import job
from bench.bus.suite import SUITE
from bench.bus.throughput import database_url
from bench.harness import Plan, Row, Size, in_turn, ratio_at_most
from bench.place import Place
from detent.bus import SqlAlchemyUnitOfWork, SqlTracker

SLICE = 50
EMPTY, FULL = "detent_handled", "detent_handled_many"

FILL = {
    "sqlite": f"INSERT INTO {FULL} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) "
    "SELECT '{consumer}', lower(hex(randomblob(16))), 1700000000000 + i FROM n ORDER BY 2",
    "postgres": f"INSERT INTO {FULL} SELECT '{{consumer}}', gen_random_uuid()::text, 1700000000000 + i "
    "FROM generate_series(1, :rows) AS n(i)",
}
"""So many marks of messages whose ids come in no order."""


class Tracking:
    """Marks in one table, each in a transaction of its own."""

    def __init__(self, units: SqlAlchemyUnitOfWork, table: str) -> None:
        self._units = units
        self._tracker = SqlTracker(table)
        unit = units.begin()
        self._tracker.prepare(job.ORDERS, None, unit)
        unit.commit()
        unit.close()

    def slice(self) -> dict[str, float]:
        """Microseconds of a mark and of its whole transaction, medians."""
        marks, wholes = [], []
        for _ in range(SLICE):
            message_id = str(uuid.uuid4())
            began = time.perf_counter()
            unit = self._units.begin()
            before = time.perf_counter()
            assert self._tracker.track(job.ORDERS, message_id, unit) is True
            marks.append(time.perf_counter() - before)
            unit.commit()
            unit.close()
            wholes.append(time.perf_counter() - began)
        return {"mark": statistics.median(marks) * 1e6, "unit": statistics.median(wholes) * 1e6}


@contextmanager
def _tracked(kind: str, url: str, rows: int) -> Iterator[dict[str, Tracking]]:
    with job.books(url) as sessions:
        units = SqlAlchemyUnitOfWork(sessions)
        found = {"empty": Tracking(units, EMPTY), "full": Tracking(units, FULL)}
        engine: sqlalchemy.Engine = sessions.kw["bind"]
        with engine.begin() as connection:
            if kind == "sqlite":
                connection.execute(text("PRAGMA cache_size = -262144"))  # of this connection, which is closed below
            connection.execute(text(FILL[kind].format(consumer=job.ORDERS)), {"rows": rows})
        engine.dispose()
        yield found


@SUITE.measurement("marks")
@contextmanager
def marks(place: Place, size: Size) -> Iterator[Plan]:
    rows, slices = size.of(1_000_000, 50_000), size.of(10, 4)
    with ExitStack() as stack:
        server = stack.enter_context(database_url(place))
        folder: Path = stack.enter_context(place.fresh())
        sides = {}
        for kind in job.DATABASES:
            tracked = stack.enter_context(_tracked(kind, job.url_of(kind, folder, server), rows))
            sides[kind] = in_turn({name: lambda one=one: _open(one) for name, one in tracked.items()}, slices)
        yield Plan(sides, _rows(f"{rows:,}"))


@contextmanager
def _open(tracking: Tracking) -> Iterator[object]:
    yield tracking.slice


def _rows(rows: str) -> list[Row]:
    bar = ratio_at_most(2, "at most twice as long as without any")
    found = []
    for kind, name in job.DATABASES.items():
        for what, about in (("mark", "the mark alone"), ("unit", "begin, mark, commit")):
            text_ = f"tracker with {rows} marks, {name}: {about}"
            found.append(Row(text_, "us", f"{kind}.full.{what}", bar, f"{kind}.empty.{what}", "other: an empty table"))
    return found
