"""Pipelines of an ingest killed with SIGKILL at each durable step: every row is in the table once, whatever died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingestworld
from detent import crash
from ingestworld import DetentInbox, World
from processes import Processes

pytestmark = [*ingestworld.MARKS, pytest.mark.timeout(600)]

POINTS = sorted(point for point in crash.POINTS if point.startswith("ingest."))
FILES = 3

MATTER_MOST = ["ingest.before_publish", "ingest.after_publish"]
if os.environ.get("DETENT_SOAK") == "1":
    MATTER_MOST += ["ingest.after_write", "ingest.before_ack"]
"""With the rows and the shards in one database there is nothing durable between these."""


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
    status = world.command("status")
    files = len(world.expected) // ingestworld.ROWS
    assert (status["done"], status["open"], status["redriven"], status["quarantined"]) == (files, 0, 0, 0)
    assert world.inbox.left() == 0
    world.command("prune", "--orphans", "--yes")
    world.check_nothing_left_over()
    world.check()


def test_every_row_is_in_the_delta_table_once_whatever_the_pipeline_died_of(
    tmp_path: Path, processes: Processes
) -> None:
    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer="delta")
    die_at_each(world, POINTS)
    come_to_an_end(world)


@pytest.mark.parametrize("committer", ["manifest", "iceberg"])
def test_every_row_is_in_the_table_once_whatever_the_pipeline_died_of(
    committer: str, tmp_path: Path, processes: Processes
) -> None:
    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer=committer)
    die_at_each(world, MATTER_MOST)
    come_to_an_end(world)
