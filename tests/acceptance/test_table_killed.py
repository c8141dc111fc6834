"""Writers of tables, killed and stopped at each durable step: every batch is in the table once, and nothing of it
twice; a real REST catalog, one in a database, and Delta, on folders and an object store."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import restcatalog
import s3server
import tableworld
from detent.kv.wholefiles import open_whole_files
from detent.tables.delta import DeltaPlace
from detent.tables.iceberg_table import IcebergTable, Stamp
from processes import eventually
from s3proxy import Fault, FaultyS3
from zygote import Forked

pytestmark = [pytest.mark.xdist_group("s3"), pytest.mark.s3]

POINTS = ("tables.after_file", "spark.once.table_before_commit", "spark.once.table_after_commit")
PATIENCE_S = 120

WRITER = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    import tableworld
    from detent.spark import to_delta, to_iceberg
    from detent.tables.marks import BatchKey
    from sparkframes import Frame

    kind, where, catalog, name, batch = sys.argv[2:7]
    how = {"merge_on": ["id"]} if sys.argv[7] == "merge" else {}
    if kind == "delta":
        sink = to_delta(where, **how)
    else:
        sink = to_iceberg(name, catalog=catalog, location=where or None, **how)
    first = int(batch) * 10
    rows = [tableworld.batch(*range(first, first + 10), day=sys.argv[8])]
    key = BatchKey("shop", "query", int(batch), sys.argv[8], b"input" + batch.encode())
    sink.write(Frame(tableworld.SCHEMA, rows), key)
    """
)


class Table:
    """A table that processes of their own write to."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = "delta" if kind == "delta" else "iceberg"
        self.folder = folder
        self.name = f"lake.t{uuid.uuid4().hex}"
        self.where = "" if kind == "rest" else f"{s3server.s3_store_url()}/table"
        self.catalog = restcatalog.shared_catalog().url if kind == "rest" else f"sqlite:///{folder / 'catalog.db'}"

    @property
    def place(self) -> Any:
        if self.kind == "delta":
            return DeltaPlace(self.where)
        return IcebergTable(self.name, self.catalog, self.where or None)

    @contextmanager
    def writing(self, batch: int, how: str = "append", run: str = "run", **environment: str) -> Iterator[Forked]:
        """A process that writes a batch."""
        program = self.folder / "writer.py"
        program.write_text(WRITER)
        tests = str(Path(tableworld.__file__).parent)
        words = [tests, self.kind, self.where, self.catalog, self.name, str(batch), how, run]
        with (self.folder / "log").open("ab") as log:
            process = Forked(
                [sys.executable, str(program), *words],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                with_spark=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def write(self, batch: int, how: str = "append", run: str = "run", **environment: str) -> int:
        with self.writing(batch, how, run, **environment) as process:
            return process.wait(PATIENCE_S)

    def ids(self) -> list[int]:
        return tableworld.ids(self.place)

    def left_over(self) -> int:
        """Data files that the table does not name."""
        view = self.place.open()
        where = self.where or view.table.location()
        there = sum(info.name.endswith(".parquet") for info in open_whole_files(where).list("data/"))
        named = view.file_uris() if self.kind == "delta" else list(view.table.scan().plan_files())
        return there - len(named)


@pytest.fixture(params=["delta", "sql", pytest.param("rest", marks=restcatalog.needs_catalog)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def log(table: Table) -> str:
    return (table.folder / "log").read_text()[-3000:]


def test_batch_is_in_the_table_once_whatever_its_writer_died_of(table: Table) -> None:
    for batch, point in enumerate(POINTS):
        assert table.write(batch, DETENT_CRASH_AT=point) == -signal.SIGKILL, log(table)
        assert table.write(batch, run="later") == 0, log(table)
        assert table.ids() == list(range(10 * (batch + 1))), point
        assert table.left_over() == 0, point


def test_zombie_that_goes_on_after_its_batch_was_committed_changes_nothing(table: Table) -> None:
    assert table.write(0) == 0, log(table)
    with table.writing(1, DETENT_STOP_AT=POINTS[1]) as zombie:
        eventually(lambda: _stopped(zombie.pid))
        assert table.write(1, run="later") == 0, log(table)
        assert table.write(2, run="later") == 0, log(table)
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(PATIENCE_S) == 1, "a table that is ahead cannot tell what its batch 1 was made from"
    assert "OtherInput" in log(table)
    assert table.ids() == list(range(30))


def test_merged_batch_of_a_zombie_does_not_undo_a_later_one(table: Table) -> None:
    with table.writing(0, "merge", "zombie", DETENT_STOP_AT=POINTS[1]) as zombie:
        eventually(lambda: _stopped(zombie.pid))
        assert table.write(0, "merge", "later") == 0, log(table)
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(PATIENCE_S) == 0, log(table)
    assert {row["day"] for row in tableworld.rows(table.place)} == {"later"}
    assert table.ids() == list(range(10))


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@restcatalog.needs_catalog
@pytest.mark.parametrize("status", [0, 500, 503])
@pytest.mark.parametrize("unheard", [False, True])
def test_answer_of_a_rest_catalog_that_is_lost_is_looked_up(tmp_path: Path, status: int, unheard: bool) -> None:
    table = Table("rest", tmp_path)
    proxy = FaultyS3(table.catalog)
    try:
        place = IcebergTable(table.name, proxy.url)
        from detent.tables.iceberg_schema import iceberg_schema

        place.create(iceberg_schema(tableworld.SCHEMA))
        view = place.open()
        files = tableworld.written(place, view, [tableworld.batch(1, 2)])
        proxy.plant(Fault("POST", "/tables/", status, times=2, unheard=unheard))

        def look(seen: Any) -> Stamp | None:
            return Stamp((("app", 1),)) if seen.transaction_version("app") is None else None

        place.commit(look, place.adding(view, files), 5, view)
        assert tableworld.ids(place) == [1, 2]
    finally:
        proxy.close()
