"""A pipeline that runs while its ingest is reset ends, and acknowledges nothing that the new table has not got."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from detent.errors import Fenced
from detent.ingest import forgetting, ownership
from ingestfakes import GRACE_S, RETRY_S, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.engine.dispose()


def reset(world: World) -> None:
    """What a person does whose table is gone for good."""
    shutil.rmtree(world.config.location)
    forgetting.reset(world.engine, world.config)


def land_anew(world: World) -> list[str]:
    ownership.register(world.engine, world.config)
    world.pipeline("new").work()
    return world.landed()


def test_file_that_is_announced_again_after_a_reset_lands_again(world: World) -> None:
    world.put("a")
    running = world.pipeline()
    running.work()
    reset(world)
    again = world.tell("a")
    with pytest.raises(Fenced, match="was reset while this pipeline ran"):
        running.work()
    assert again not in world.queue.acknowledged
    assert (land_anew(world), world.queue.entries) == (["a"], {})


def test_backfill_that_runs_is_told_of_a_reset_though_it_knows_all_files(world: World) -> None:
    (world.folder / "landing").mkdir()
    (world.folder / "landing" / "a").write_text("A")
    running = world.pipeline()
    listed = list(running.objects.list(str(world.folder / "landing")))
    running.announce(listed)
    running.run_batch(running.begin())
    reset(world)
    with pytest.raises(Fenced, match="was reset"):
        running.announce(listed)


def test_message_of_a_file_that_was_committed_before_a_reset_is_given_back(world: World) -> None:
    world.put("a")
    running = world.pipeline()
    running.poll(0)
    files = running.begin()
    publish = running.committer.publish

    def published(*given: object) -> None:
        publish(*given)  # type: ignore[arg-type]
        reset(world)

    running.committer.publish = published  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="was reset"):
        running.run_batch(files)
    assert world.queue.acknowledged == []
    assert (land_anew(world), world.queue.entries) == (["a"], {})


def test_batch_that_is_read_during_a_reset_leaves_nothing_behind(world: World) -> None:
    world.put("a")
    running = world.pipeline()
    running.poll(0)
    files = running.begin()
    data = Path(world.config.location) / "data"

    def meanwhile() -> None:
        reset(world)
        (data / f"{running.shared.token}-000001").mkdir(parents=True)  # Spark goes on writing

    running.job.meanwhile = meanwhile
    with pytest.raises(Fenced, match="was reset"):
        running.run_batch(files)
    assert list(data.iterdir()) == []
    world.sleep(RETRY_S + 1)
    assert (land_anew(world), world.queue.entries) == (["a"], {})


def test_pipeline_that_has_nothing_to_do_is_told_of_a_reset(world: World) -> None:
    running = world.pipeline()
    running.poll(0)
    running.keep()
    world.sleep(GRACE_S)
    running.keep()
    reset(world)
    world.sleep(GRACE_S)
    with pytest.raises(Fenced, match="was reset"):
        running.keep()
