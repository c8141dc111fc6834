"""Pipelines of an ingest killed with SIGKILL at each step of their commit into a table elsewhere: Delta and Iceberg, on
a disk and in a bucket, rows that are added and rows that replace others. The next pipeline finishes what the dead one
had prepared, and each row is in the table once. No Spark: what tasks do is done by the process itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lakeworld
from processes import Io, Processes

pytestmark = [pytest.mark.xdist_group("s3")]

POINTS = ("ingest.after_prepare", "ingest.after_table_commit", "ingest.after_finish")
KINDS = [
    pytest.param("delta", "local", id="delta"),
    pytest.param("iceberg", "local", id="iceberg"),
    pytest.param("delta", "s3", id="delta-s3", marks=pytest.mark.s3),
    pytest.param("iceberg", "s3", id="iceberg-s3", marks=pytest.mark.s3),
]


def publishes(io: Io, folder: str, kind: str, options: dict[str, Any], number: int) -> None:
    """A pipeline that commits a file."""
    pipeline = lakeworld.lake(Path(folder), kind, **options).pipeline()
    if pipeline.committer.rule is None:
        pipeline.publish(f"file-{number}", number)
    else:
        pipeline.update(f"file-{number}", (0, number, number), (10 + number, 1, 1))
    io.say("published")


@pytest.mark.parametrize("merges", [False, True], ids=["adds", "merges"])
@pytest.mark.parametrize(("kind", "where"), KINDS)
def test_batch_is_in_the_table_once_wherever_its_pipeline_was_killed(
    tmp_path: Path, kind: str, where: str, merges: bool
) -> None:
    options = {**lakeworld.place(where), **(lakeworld.MERGING if merges else {})}
    lake = lakeworld.lake(tmp_path, kind, **options)
    with Processes() as processes:
        for number, point in enumerate(POINTS):
            dying = processes.start(
                publishes,
                folder=str(tmp_path),
                kind=kind,
                options=options,
                number=number,
                environment={"DETENT_CRASH_AT": point},
            )
            assert dying.was_killed(), f"{point} was never reached: {dying.errors()}"
            committer = lake.pipeline().committer
            assert committer.resolve() == (point != "ingest.after_finish")
            assert lake.ids() == ([0, *range(10, 11 + number)] if merges else list(range(number + 1))), point
            if merges:
                assert lake.rows()[0]["what"] == number, "the newest row of the key"
    assert set(lake.states().values()) == {"done"}
    assert committer.sweep(-1) == merges, (
        "the rows of a batch that was merged, whose pipeline died before it deleted them"
    )
    assert [one.name for one in committer.files.list("_merging/")] == []
    assert len(lake.ids()) == len(POINTS) + merges
    lake.engine.dispose()
