"""Pipelines of an ingest killed with SIGKILL at each durable step: every row is in the table once, whatever died."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingestworld
from acceptance import test_ingest_records_killed as without_java
from detent import crash
from ingestworld import DetentInbox, World
from processes import Processes

pytestmark = [*ingestworld.MARKS, pytest.mark.timeout(600)]

ELSEWHERE = {"ingest.after_refusal", "ingest.delta_after_create", "ingest.after_finish"}
"""Those that test_ingest_records_killed.py, test_ingest_ownership.py and test_ingest_prepared_killed.py have."""

POINTS = sorted(point for point in crash.POINTS if point.startswith("ingest.") and point not in ELSEWHERE)
FILES = 3

SOAK = os.environ.get("DETENT_SOAK") == "1"
PREPARED = {"ingest.after_prepare", "ingest.after_table_commit"}
"""Steps of a table that is not in the database of the shards: Delta's."""

SHORT = {
    "delta": ["ingest.after_open", "ingest.after_prepare", "ingest.after_publish", "ingest.after_table_commit"],
    "manifest": ["ingest.after_read", "ingest.before_publish"],
    "iceberg": ["ingest.after_write", "ingest.after_publish"],
}
"""Where each point has most to break: each visit starts a Java. Long runs visit all points with each table."""

WITHOUT_JAVA = {"ingest.after_receive", "ingest.before_ack", "ingest.after_ack"}
"""What test_ingest_records_killed.py visits in each run: where the queue is spoken to, and Spark has no part."""

DEATHS_MAX = 20
DEADLY = textwrap.dedent(
    """
    import os, signal
    from pathlib import Path
    from pyspark.sql import functions as F

    @F.udf("string")
    def survived(value):
        if value == "deadly":
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)  # Java
        return value

    def transform(orders):
        return orders.withColumn("value", survived("value"))
    """
)


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


def die_at_each(world: World, points: list[str]) -> None:
    """A pipeline for each point, all on one table, each with files of its own and those that the last one left. What
    the last one left is not to be had at once, and need not be: the next Spark takes as long to start."""
    for point in points:
        world.announce(world.make(FILES))
        world.killed_at(point)
        world.check_not_twice()


def come_to_an_end(world: World) -> None:
    """A pipeline that nobody kills does the rest, and what the dead ones left is swept. It is not told to end when
    nothing is left: the messages of the last one that died may be invisible for longer than it would wait."""
    pipeline = world.start()
    pipeline.until(world.has_all, "the rows of all files")
    pipeline.until(lambda: world.inbox.left() == 0, "the queue to be empty")
    pipeline.terminate()
    summary = pipeline.summary()
    assert summary["failures"] == summary["quarantined"] == 0
    world.check()
    status = world.command("status")["details"]
    files = len(world.expected) // ingestworld.ROWS
    assert (status["done"], status["open"], status["redriven"], status["quarantined"]) == (files, 0, 0, 0)
    assert world.inbox.left() == 0
    world.command("prune", "--orphans", "--yes")
    world.check_nothing_left_over()
    world.check()


def test_every_point_is_visited() -> None:
    assert {point for points in SHORT.values() for point in points} | WITHOUT_JAVA == set(POINTS)
    assert set(without_java.POINTS) >= WITHOUT_JAVA


@pytest.mark.parametrize("committer", list(SHORT))
def test_every_row_is_in_the_table_once_whatever_the_pipeline_died_of(
    committer: str, tmp_path: Path, processes: Processes
) -> None:
    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer=committer)
    all_points = [point for point in POINTS if committer == "delta" or point not in PREPARED]
    die_at_each(world, all_points if SOAK else SHORT[committer])
    come_to_an_end(world)


@pytest.mark.skipif(not SOAK, reason="a dozen Javas, one after another: make soak")
def test_a_file_that_ends_java_is_put_aside_and_costs_its_neighbours_nothing(
    tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    inbox = DetentInbox(tmp_path / "store")
    world = World(tmp_path, processes, inbox, committer="delta", transform="deadly.py:transform")
    world.announce([*world.make(7), world.write(ingestworld.lines_of(world.rows(value="deadly")))])
    deaths = 0
    while True:
        pipeline = world.start("--once")
        status = pipeline.child.wait(seconds=ingestworld.PATIENCE_S)
        errors = pipeline.child.errors()
        pipeline.child.end()
        world.check_not_twice()
        if status == 0:
            break
        deaths += 1
        assert (status, "Java has ended" in errors) == (1, True), errors
        assert deaths < DEATHS_MAX, world.command("status")
    world.check()
    assert inbox.left() == 0
    (bad,) = world.command("quarantine")
    assert "pipelines died" in bad["reason"]
    assert deaths >= 6
