"""Several pipelines of one ingest: on one queue and one table, over files that are bad, late, gone or written over, and
over files that nobody announced."""

from __future__ import annotations

import gzip
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
import ingestworld
import postgresserver
import s3server
import sqsserver
from ingestworld import DetentInbox, SqsInbox, World, lines_of, s3_notification
from processes import Processes, eventually, session_of, terminate_session

pytestmark = [*ingestworld.MARKS, pytest.mark.timeout(600)]


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


# -- many on one table -----------------------------------------------------------------------------------------------


def test_of_two_pipelines_one_sleeps_too_long_with_a_batch_in_hand(tmp_path: Path, processes: Processes) -> None:
    with sqsserver.running(tmp_path / "store") as server:
        inbox = SqsInbox(server.client(), server.url)
        world = World(tmp_path, processes, inbox, committer="delta", environment=server.environment(), batch_files=4)
        world.announce(world.make(6))
        sleeper = world.start(pause_at="ingest.before_publish", name="sleeper")
        sleeper.wait_until_paused()
        assert world.found() == []
        with ingestworld.frozen(sleeper):
            # Past the grace time: the other one takes the files, and commits them.
            other = world.start(name="other")
            other.until(world.has_all, "the rows of all files, of those that the sleeper has as well")
            sleeper.go_on()
        sleeper.until(lambda: sleeper.progress().get("lost"), "the refusal")
        world.check()
        world.announce(world.make(8))
        sleeper.until(world.has_all, "the rows of files that came later")
        other.terminate()
        ended = [other.summary()]
        world.announce(world.make(2))
        sleeper.until(world.has_all, "the rows of files that only the sleeper can have read")
        sleeper.until(lambda: inbox.left() == 0, "the queue to be empty")
        # Told to end with a batch in hand, it commits that first.
        sleeper.hold()
        world.announce(world.make(1))
        sleeper.wait_until_paused()
        sleeper.terminate()
        sleeper.go_on()
        ended.append(sleeper.summary())
    world.check()
    assert ended[1]["lost"] > 0
    assert sum(one["files"] for one in ended) == 17
    assert sum(one["rows"] for one in ended) == len(world.expected)
    world.command("prune", "--orphans", "--yes")
    world.check_nothing_left_over()


def test_of_four_pipelines_one_sleeps_too_long_with_a_batch_in_hand(tmp_path: Path, processes: Processes) -> None:
    inbox = DetentInbox(tmp_path / "store")
    world = World(
        tmp_path,
        processes,
        inbox,
        committer="iceberg",
        state=postgresserver.new_database(),
        batch_files=2,
    )
    with detent.open(f"file:{tmp_path / 'store'}"):  # none of them owns the store: the one that sleeps would hold it
        sleeper = world.start(pause_at="ingest.before_publish", name="sleeper")
        others = [world.start(name=f"other{number}") for number in range(3)]
        for one in others:
            one.wait_until_running()
        sleeper.until(lambda: _more_until(world, sleeper), "the pause")
        with ingestworld.frozen(sleeper):
            world.announce(world.make(10))
            others[0].until(world.has_all, "the rows of all files, of those that the sleeper has as well")
            sleeper.go_on()
        sleeper.until(lambda: sleeper.progress().get("lost"), "the refusal")
        world.announce(world.make(10))
        sleeper.until(world.has_all, "the rows of files that came later")
        sleeper.until(lambda: inbox.left() == 0, "the queue to be empty")
        for one in (sleeper, *others):
            one.terminate()
        ended = [one.summary() for one in (sleeper, *others)]
    world.check()
    assert ended[0]["lost"] > 0
    assert sum(one["files"] for one in ended) == len(world.expected) // ingestworld.ROWS
    assert sum(one["rows"] for one in ended) == len(world.expected)
    world.command("prune", "--orphans", "--yes")
    world.check_nothing_left_over()


def _more_until(world: World, sleeper: ingestworld.Pipeline) -> bool:
    """Announce more files until the sleeper has got one: nobody can say which pipeline gets which."""
    if not sleeper.is_paused:
        world.announce(world.make(2))
        time.sleep(0.5)
    return sleeper.is_paused


@pytest.mark.parametrize("committer", ["manifest", "delta"])
def test_a_batch_that_is_swept_before_its_commit_is_refused_and_done_again(
    committer: str, tmp_path: Path, processes: Processes
) -> None:
    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer=committer)
    world.make(2)
    pipeline = world.start("--once", "--backfill", str(world.input), pause_at="ingest.before_publish")
    pipeline.wait_until_paused()
    assert world.command("prune", "--orphans", "--yes") == {"pruned": 0, "swept": 1}
    pipeline.go_on()
    summary = pipeline.summary()
    world.check()
    assert (summary["lost"], summary["files"]) == (2, 2)


# -- ends, theirs and those of others -------------------------------------------------------------------------------

THROUGH_PYTHON = textwrap.dedent(
    """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F

    HOLD, BUSY = (str(Path(__file__).with_name(name)) for name in ("hold", "busy"))

    @F.udf("string")
    def slowly(value):
        while Path(HOLD).exists():
            Path(BUSY).touch()
            time.sleep(0.01)
        return value

    def through_python(orders):
        return orders.withColumn("value", slowly("value"))
    """
)


def test_a_pipeline_whose_processes_are_all_told_to_end_commits_what_it_has(
    tmp_path: Path, processes: Processes
) -> None:
    (tmp_path / "transform.py").write_text(THROUGH_PYTHON)
    hold, busy = tmp_path / "hold", tmp_path / "busy"
    hold.touch()
    inbox = DetentInbox(tmp_path / "store")
    world = World(tmp_path, processes, inbox, committer="manifest", transform="transform.py:through_python")
    world.announce(world.make(2))
    pipeline = world.start()
    pipeline.until(busy.exists, "a row in the hands of Python")
    assert terminate_session(pipeline.child.pid) >= 4  # the pipeline, Java, the daemon and a worker
    time.sleep(0.5)  # for whoever ends: Python's processes do, and Spark runs their task again
    hold.unlink()
    summary = pipeline.summary()
    world.check()
    assert (summary["files"], summary["failures"], inbox.left()) == (2, 0, 0)
    eventually(lambda: session_of(pipeline.child.pid) == [], what="the end of Spark's processes")


def test_a_database_and_an_owner_of_the_queue_that_die_in_mid_commit_cost_nothing(
    tmp_path: Path, processes: Processes
) -> None:
    inbox = DetentInbox(tmp_path / "store")
    owner = processes.store(f"file:{tmp_path / 'store'}")
    with postgresserver.postgres_server() as server:
        world = World(tmp_path, processes, inbox, committer="iceberg", state=server.new_database(), batch_files=3)
        world.announce(world.make(6))
        pipeline = world.start(pause_at="ingest.before_publish")
        pipeline.wait_until_paused()
        owner.kill()
        server.kill()
        pipeline.go_on()
        pipeline.until(lambda: "trying again" in pipeline.child.errors(), "that it misses the database")
        server.start()
        pipeline.until(world.has_all, "the rows of all files")
        world.announce(world.make(2))
        pipeline.until(world.has_all, "the rows of files that came later")
        pipeline.until(lambda: inbox.left() == 0, "the queue to be empty")
        pipeline.terminate()
        summary = pipeline.summary()
        world.check()
        assert (summary["failures"], summary["quarantined"]) == (0, 0)
        world.command("prune", "--orphans", "--yes")
        world.check_nothing_left_over()


# -- bad files, and what people do about them ------------------------------------------------------------------------

TRANSFORM = textwrap.dedent(
    """
    from pathlib import Path
    from pyspark.sql import functions as F

    def known(orders):
        names = Path(__file__).with_name("known.txt").read_text().split()
        unknown = F.raise_error(F.concat(F.lit("nobody knows "), "value")).cast("string")
        return orders.withColumn("value", F.when(F.col("value").isin(names), F.col("value")).otherwise(unknown))
    """
)
"""Refuses values that a list beside it does not have: the failure of a file that is repaired without touching it."""

BUCKET = s3server.BUCKET


class S3World(World):
    """An ingest of objects."""

    def __init__(self, folder: Path, processes: Processes, prefix: str, **settings: Any) -> None:
        import boto3

        server = s3server.shared_server()
        self.prefix = prefix
        self.s3 = boto3.client("s3", endpoint_url=server.endpoint, **sqsserver.KEYS)
        inbox = DetentInbox(folder / "store")
        super().__init__(folder, processes, inbox, environment=server.environment, **settings)

    def uri(self, name: str) -> str:
        return f"s3://{BUCKET}/{self.prefix}/{name}"

    def put(self, name: str, content: bytes, *, copies: int = ingestworld.COPIES) -> None:
        """An object, and its announcements."""
        key = f"{self.prefix}/{name}"
        etag = self.s3.put_object(Bucket=BUCKET, Key=key, Body=content)["ETag"]
        self.announce([s3_notification(BUCKET, key, etag, len(content))], copies=copies)

    def put_rows(self, name: str, value: str) -> None:
        """An object whose rows are to be in the table."""
        rows = self.rows(value=value)
        self.expect(rows)
        self.put(name, lines_of(rows))


def test_bad_objects_are_put_aside_and_tried_again_when_somebody_says_so(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "known.txt").write_text("red green")
    (tmp_path / "transform.py").write_text(TRANSFORM)
    world = S3World(
        tmp_path, processes, tmp_path.name, committer="manifest", transform="transform.py:known", attempts=2
    )
    world.put_rows("good-1.json", "red")
    world.put_rows("good-2.json", "green")
    whole = gzip.compress(lines_of(world.rows(value="red") * 1000))
    world.put("truncated.json.gz", whole[: len(whole) // 2])
    world.announce([world.uri("late.json")])  # there is no such object yet
    world.put("deleted.json", lines_of(world.rows(value="red")))
    world.s3.delete_object(Bucket=BUCKET, Key=f"{world.prefix}/deleted.json")
    world.put("overwritten.json", lines_of(world.rows(value="red")))
    world.put_rows("overwritten.json", "green")
    refused = world.rows(value="blue")
    world.put("refused.json", lines_of(refused))

    summary = world.run("--once")
    world.check()
    assert (summary["files"], summary["quarantined"], summary["superseded"]) == (3, 4, 1)
    assert summary["failures"] == 4 * 2
    assert world.inbox.left() == 0
    status = world.command("status")["details"]
    assert {key: status[key] for key in ("name", "open", "redriven", "done", "quarantined", "rows")} == {
        "name": "orders",
        "open": 0,
        "redriven": 0,
        "done": 3,
        "quarantined": 4,
        "rows": len(world.expected),
    }
    quarantine = {one["uri"]: one for one in world.command("quarantine")}
    bad = ("deleted.json", "late.json", "refused.json", "truncated.json.gz")
    assert sorted(quarantine) == [world.uri(name) for name in bad]
    assert {one["attempts"] for one in quarantine.values()} == {2}
    assert "is not there" in quarantine[world.uri("deleted.json")]["reason"]
    assert "is not there" in quarantine[world.uri("late.json")]["reason"]
    assert "nobody knows blue" in quarantine[world.uri("refused.json")]["reason"]
    assert quarantine[world.uri("truncated.json.gz")]["reason"]
    done = world.command("files", "--state", "done")
    names = ("good-1.json", "good-2.json", "overwritten.json")
    assert [one["uri"] for one in done] == [world.uri(name) for name in names]
    assert {one["reason"] for one in done} == {""}
    assert [one["uri"] for one in world.command("files", "--containing", "good", "--limit", "1")] == [
        world.uri("good-1.json")
    ]

    # What was wrong is put right for two of them, and all but one are put back.
    (tmp_path / "known.txt").write_text("red green blue")
    world.expect(refused)
    late = world.rows(value="red")
    world.expect(late)
    world.s3.put_object(Bucket=BUCKET, Key=f"{world.prefix}/late.json", Body=lines_of(late))
    stranger = world.failing("redrive", world.uri("good-1.json"))
    assert (stranger.returncode, stranger.stdout) == (1, "")
    assert "not in quarantine" in stranger.stderr
    back = [world.uri(name) for name in ("late.json", "refused.json", "truncated.json.gz")]
    assert world.command("redrive", *back) == {"redriven": 3}
    assert [one["uri"] for one in world.command("files", "--state", "redriven")] == back
    again = world.run("--once")
    world.check()
    assert (again["received"], again["files"], again["quarantined"], again["failures"]) == (0, 2, 1, 2)
    assert [one["uri"] for one in world.command("quarantine")] == [world.uri("deleted.json"), back[2]]
    assert world.command("redrive", "--all") == {"redriven": 2}
    status = world.command("status")["details"]
    assert (status["redriven"], status["quarantined"]) == (2, 0)
    world.command("prune", "--orphans", "--yes")
    world.check_nothing_left_over()
    world.check()


# -- files that nobody announced -------------------------------------------------------------------------------------


def test_a_backfill_takes_what_was_not_announced_and_nothing_twice(tmp_path: Path, processes: Processes) -> None:
    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer="manifest", batch_files=3)
    below = world.input / "deep" / "deeper"
    below.mkdir(parents=True)
    world.announce(world.make(4))
    silent = [*world.make(4), *world.make(2, folder=below)]
    (world.input / "gone.json").symlink_to("nowhere")  # as a file that is deleted while the folder is listed
    pipeline = world.start("--backfill", str(world.input), pause_at="ingest.after_write")
    pipeline.wait_until_paused()
    # In mid-batch, and when the listing is over or nearly: some that it has, and some that it cannot have.
    world.announce(silent[::2])
    world.announce(world.make(3))
    pipeline.go_on()
    pipeline.until(world.has_all, "the rows of all files")
    pipeline.until(lambda: world.inbox.left() == 0, "the queue to be empty")
    pipeline.terminate(signal.SIGINT)
    summary = pipeline.summary()
    world.check()
    assert (summary["files"], summary["rows"]) == (13, len(world.expected))
    assert (summary["failures"], summary["too_old"]) == (0, 0)

    # What is forgotten is not taken for new: a backfill leaves it, and takes what was written after that.
    world.configure(window="1ms", batch_files=3)
    assert world.command("prune", "--yes") == {"pruned": 13, "swept": 0}
    status = world.command("status")["details"]
    assert status["done"] == 0
    world.configure(window="15d", batch_files=3)  # a run refuses a window that the queue outlasts
    later = status["forgotten_to"] / 1000 + 2 * 3600  # further than clocks are taken to be apart
    for name in world.make(1):
        os.utime(name, (later, later))
    summary = world.run("--once", "--backfill", str(world.input))
    world.check()
    assert (summary["files"], summary["too_old"]) == (1, 13)
