"""A pipeline without Spark: messages that come twice or late, pipelines that die or lose, files that fail.

The queue has visibility as real ones do, on a clock that the test moves; the database, the committer and the fetching
of files are the real ones, with a folder for S3. Only Spark is left out: the job writes down which files it was given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from detent.errors import Unavailable
from detent.ingest import steering
from detent.ingest.announcements import Announced, canonical_uri
from detent.ingest.committer import BatchOutput
from detent.ingest.job import BatchFailed, SparkEnded
from detent.ingest.local_state import HeldFile
from detent.ingest.shard_sql import SHARDS
from detent.runtime.backoff import Backoff
from ingestfakes import EXTENSION_S, GRACE_S, LAST_S, MARGIN_S, RECEIVE_S, RETRY_S, World, name_of


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def new(**settings: Any) -> World:
        made.append(World(tmp_path, **settings))
        return made[-1]

    yield new
    for world in made:
        world.engine.dispose()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_message_is_acknowledged_when_the_last_of_its_files_has_landed(make: Callable[..., World]) -> None:
    world = make(batch_files=2)
    pipeline = world.pipeline()
    for name in "abc":
        world.bucket.put(name, name)
    message = world.tell("a", "b", "c")
    pipeline.poll(0)
    pipeline.run_batch(pipeline.begin())
    assert (len(world.landed()), world.queue.acknowledged) == (2, [])
    pipeline.run_batch(pipeline.begin())
    assert (world.landed(), world.queue.acknowledged) == (["a", "b", "c"], [message])


def test_a_file_that_is_announced_again_and_again_lands_once_and_all_its_messages_are_done(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a", "b")
    world.tell("a")
    pipeline.poll(0)
    world.tell("a", "b")  # while they wait here
    pipeline.work()
    assert (pipeline.job.runs, world.queue.entries) == ([["a", "b"]], {})
    world.tell("b")  # when it is known here, and then when only the database knows
    pipeline.work()
    world.tell("a")
    second = world.pipeline("p2")
    second.work()
    assert (world.landed(), world.queue.entries, len(pipeline.job.runs), second.job.runs) == (["a", "b"], {}, 1, [])


def test_what_announces_nothing_is_acknowledged_and_what_is_not_understood_is_left_to_the_queue(world: World) -> None:
    pipeline = world.pipeline()
    test = world.queue.send(b'{"Service": "Amazon S3", "Event": "s3:TestEvent"}')
    world.queue.send(b"\xff nonsense")
    pipeline.work()
    assert (world.queue.acknowledged, pipeline.counters.unreadable) == ([test], 1)
    pipeline.keep()
    world.sleep(RECEIVE_S + 1)
    assert pipeline.poll(0) == 1, "nobody extended it, so that the queue can count it and give it up"


def test_data_in_a_message_lands_and_is_never_put_into_quarantine(make: Callable[..., World]) -> None:
    world = make(message="data", attempts=1)
    pipeline = world.pipeline()
    message = world.queue.send(b'{"id": 1}')
    pipeline.job.poison = {message}
    pipeline.work()
    assert world.states() == {message: ("open", 0)}
    pipeline.job.poison = set()
    world.sleep(RETRY_S + 1)
    pipeline.work()
    assert (world.landed(), world.queue.acknowledged) == ([message], [message])


def test_files_of_a_listing_and_of_messages_are_the_same_files(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a", "b", "c")
    etag = {name: hashlib.md5(content).hexdigest() for name, content in world.bucket.objects.items()}
    listed = [Announced(f"s3://landing/{name}", 1, etag[name]) for name in "abc"]
    pipeline.announce(listed[:2])  # a listing before the messages, and one after them
    pipeline.poll(0)
    pipeline.announce(listed)
    pipeline.work()
    pipeline.announce(listed)
    assert (pipeline.begin(), pipeline.job.runs, world.queue.entries) == ([], [["a", "b", "c"]], {})


# -- several pipelines -----------------------------------------------------------------------------------------------


def test_a_message_of_a_file_that_another_has_is_neither_done_nor_kept(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a")
    first.poll(0)
    again = world.tell("a")
    second.poll(0)
    assert (len(second.local), second.counters.held, world.queue.acknowledged) == (0, 1, [])
    second.keep()
    first.work()
    assert again in world.queue.entries
    world.sleep(RECEIVE_S + 1)
    second.work()
    assert (second.job.runs, world.queue.entries, world.landed()) == ([], {}, ["a"])


def test_the_files_of_a_pipeline_that_went_silent_go_to_another_and_it_notices_when_it_wakes_up(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a", "b")
    first.poll(0)
    begun = first.begin()
    world.sleep(RECEIVE_S + 1)
    second.work()
    assert world.landed() == ["a", "b"]
    first.run_batch(begun)
    assert (first.job.runs, len(first.local), first.counters.lost) == ([], 0, 2)
    assert (world.landed(), world.queue.entries) == (["a", "b"], {})


def test_a_ready_file_that_was_taken_is_dropped_when_the_pipeline_says_that_it_is_alive(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a", "b")
    first.poll(0)
    with world.engine.begin() as connection:
        connection.execute(update(SHARDS).where(SHARDS.c.uri.endswith("/a")).values(updated_at=0))
    second.adopt(9)
    world.sleep(GRACE_S / 6)
    first.keep()
    assert [name_of(file.shard.uri) for file in first.local.files()] == ["b"]
    world.sleep(GRACE_S - 1)  # it has just said so, while the second one was silent for longer
    third = world.pipeline("p3")
    third.adopt(9)
    assert [name_of(file.shard.uri) for file in third.local.files()] == ["a"]


def test_whoever_loses_a_file_before_its_commit_drops_what_it_wrote_and_commits_the_others(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a", "b", "c")

    def another_takes_b() -> None:
        with world.engine.begin() as connection:
            connection.execute(update(SHARDS).where(SHARDS.c.uri.endswith("/b")).values(updated_at=0))
        second.adopt(9)
        second.work()
        assert world.outputs() == 2

    first.job.meanwhile = another_takes_b
    first.work()
    assert (first.job.runs, second.job.runs) == ([["a", "b", "c"], ["a", "c"]], [["b"]])
    assert (world.landed(), world.outputs(), first.counters.lost) == (["a", "b", "c"], 2, 1)
    world.sleep(RECEIVE_S + 1)
    first.work()
    assert (world.queue.entries, len(first.job.runs)) == ({}, 2)


def test_what_was_committed_and_not_acknowledged_is_acknowledged_when_it_comes_again(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a", "b")
    world.queue.unreachable = True  # the process dies between the commit and the acknowledgement
    first.work()
    assert (world.landed(), world.queue.acknowledged) == (["a", "b"], [])
    world.queue.unreachable = False
    world.sleep(RECEIVE_S + 1)
    second.work()
    assert (second.job.runs, world.queue.entries, world.landed()) == ([], {}, ["a", "b"])


def test_a_commit_whose_answer_was_lost_is_not_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database committed, and the connection broke: the second attempt finds the rows of the first one."""
    pipeline = world.pipeline()
    world.put("a", "b")
    pipeline.poll(0)
    files = pipeline.begin()
    begin, broken = world.engine.begin, []

    @contextmanager
    def breaking() -> Iterator[Any]:
        with begin() as connection:
            yield connection
        if not broken:
            broken.append(True)
            raise OperationalError("COMMIT", {}, Exception("the connection was closed"))

    monkeypatch.setattr(world.engine, "begin", breaking)
    pipeline.run_batch(files)
    assert (broken, world.landed(), world.queue.entries) == ([True], ["a", "b"], {})
    assert len(pipeline.job.runs) == 1


def test_a_commit_that_could_not_be_had_is_made_when_the_message_comes_again(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a", "b")
    publish = pipeline.committer.publish

    def away(*_: Any) -> None:
        raise Unavailable("the database restarts")

    pipeline.committer.publish = away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        pipeline.work()
    pipeline.committer.publish = publish  # type: ignore[method-assign]
    assert world.landed() == []
    world.sleep(RETRY_S + 1)
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a", "b"], {})


def test_files_of_a_dead_pipeline_are_found_without_their_messages(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a")
    first.poll(0)
    world.queue.entries.clear()  # the queue gave the message up
    assert second.adopt(9) == 0
    world.sleep(GRACE_S + 1)
    assert second.adopt(9) == 1
    second.work()
    assert world.landed() == ["a"]


def test_a_stopped_pipeline_gives_everything_back_at_once(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a", "b", "c")
    first.poll(0)
    first.stop()
    assert (len(first.local), second.poll(0)) == (0, 3)
    second.work()
    assert (world.landed(), world.queue.entries) == (["a", "b", "c"], {})


def test_stopped_pipeline_counts_an_attempt_of_what_it_has_begun_alone(world: World) -> None:
    first = world.pipeline("p1")
    names = world.put("a", "b")
    first.poll(0)
    with first._lock:
        first.local.start([next(iter(first.local.ready())).shard.key])
    first.stop()
    assert [world.queue.entries[name].deliveries for name in names] == [1, 0]


# -- visibility ------------------------------------------------------------------------------------------------------


def test_messages_are_extended_shortly_before_they_are_due_for_as_long_as_it_takes(world: World) -> None:
    pipeline = world.pipeline()
    (message,) = world.put("a")
    pipeline.poll(0)
    until = world.queue.entries[message].visible_at
    assert until == world.now + RECEIVE_S
    world.sleep(RECEIVE_S - MARGIN_S - 1)
    pipeline.keep()
    assert world.queue.entries[message].visible_at == until, "not yet"
    world.sleep(1)
    pipeline.keep()
    assert world.queue.entries[message].visible_at == world.now + EXTENSION_S
    for _ in range(5):
        world.sleep(EXTENSION_S - MARGIN_S)
        pipeline.keep()
    pipeline.work()
    assert (world.queue.acknowledged, pipeline.counters.received) == ([message], 1)


def test_a_file_whose_messages_were_lost_is_given_to_others_unless_it_was_begun(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("begun")
    first.poll(0)
    begun = first.begin()
    world.put("ready", "doubly")
    world.tell("doubly")
    first.poll(0)
    world.sleep(RECEIVE_S - 1)
    for name, entry in world.queue.entries.items():
        if name != "m3":  # the second message of "doubly" is extended
            entry.receipt = "somebody else's"
    first.keep()
    assert [name_of(file.shard.uri) for file in first.local.files()] == ["begun", "doubly"]
    assert (first.counters.unextended, second.adopt(9)) == (3, 1), "and the other one can have it at once"
    first.run_batch(begun)
    assert world.landed() == ["begun"]


def test_the_last_extension_covers_the_commit(world: World) -> None:
    pipeline = world.pipeline()
    (old,) = world.put("old")
    pipeline.poll(0)
    world.sleep(RECEIVE_S - LAST_S + 10)
    (young,) = world.put("young")
    pipeline.poll(0)
    deadline = world.queue.entries[young].visible_at
    during: dict[str, float] = {}
    publish = pipeline.committer.publish

    def look(*given: Any) -> None:
        during.update({name: entry.visible_at for name, entry in world.queue.entries.items()})
        world.sleep(LAST_S - MARGIN_S + 1)
        pipeline.keep()
        assert world.queue.entries[old].visible_at == during[old], "it was the last one"
        publish(*given)

    pipeline.committer.publish = look  # type: ignore[method-assign]
    began = world.now
    pipeline.run_batch(pipeline.begin())
    assert during == {old: began + LAST_S, young: deadline}, "one that has longer is left as it is"
    assert sorted(world.queue.acknowledged) == [old, young]


# -- failures --------------------------------------------------------------------------------------------------------


def test_one_bad_file_hurts_no_other_and_ends_in_quarantine(world: World) -> None:
    pipeline = world.pipeline()
    names = [f"f{number}" for number in range(8)]
    messages = world.put(*names)
    pipeline.job.poison = {"f5"}
    pipeline.work()
    others = [name for name in names if name != "f5"]
    assert (world.landed(), world.states()["f5"]) == (others, ("open", 1))
    assert list(world.queue.entries) == [messages[5]]
    world.sleep(RETRY_S - 1)
    assert pipeline.poll(0) == 0
    for _ in range(2):
        world.sleep(RETRY_S + 1)
        pipeline.work()
    assert world.states()["f5"] == ("quarantined", 3)
    assert (world.queue.entries, pipeline.counters.quarantined, pipeline.counters.failures) == ({}, 1, 3)
    pipeline.job.poison = set()
    assert steering.redrive(world.engine, "orders", ["s3://landing/f5"]) == 1
    second = world.pipeline("p2")
    assert second.adopt(9) == 1
    second.work()
    assert world.landed() == names


def test_files_that_the_error_names_are_tried_alone(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a", "b", "c", "d", "e")
    pipeline.job.poison, pipeline.job.names_suspects = {"b", "d"}, True
    pipeline.work()
    assert pipeline.job.runs == [["a", "b", "c", "d", "e"], ["a", "c", "e"], ["b"], ["d"]]
    assert world.landed() == ["a", "c", "e"]


def test_a_file_that_is_not_there_is_counted_and_one_that_comes_later_is_another(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a")
    world.queue.send(b"s3://landing/late")
    pipeline.work()
    assert (world.landed(), world.states()["late?"]) == (["a"], ("open", 1))
    for _ in range(2):
        world.sleep(RETRY_S + 1)
        pipeline.work()
    assert (world.states()["late?"], world.queue.entries) == (("quarantined", 3), {})
    world.put("late")
    pipeline.work()
    assert world.landed() == ["a", "late"]


def test_a_file_that_comes_between_two_attempts_lands_once(world: World) -> None:
    pipeline = world.pipeline()
    world.queue.send(b"s3://landing/late")
    pipeline.work()
    world.put("late")
    world.sleep(RETRY_S + 1)
    pipeline.adopt(9)
    pipeline.work()
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["late"], {})
    assert world.states() == {"late": ("done", 0), "late?": ("done", 1)}


@pytest.mark.parametrize("where", ["s3", "local"])
def test_what_was_written_over_lands_as_what_it_is_and_is_done_for_its_message(world: World, where: str) -> None:
    pipeline = world.pipeline()
    path = world.folder / "a"
    if where == "s3":
        world.put("a")
    else:
        path.write_text("content")
        world.queue.send(canonical_uri(str(path)).encode())
    pipeline.poll(0)
    world.bucket.put("a", "other content")
    path.write_text("other content")
    pipeline.work()
    assert (world.landed(), world.queue.entries, pipeline.counters.superseded) == (["a"], {}, 1)
    world.tell("a") if where == "s3" else world.queue.send(canonical_uri(str(path)).encode())
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a"], {})
    assert [file.state for file in steering.files(world.engine, "orders")] == ["done"]


def test_a_file_that_was_something_else_for_a_while_lands_as_what_it_is_in_the_end(world: World) -> None:
    pipeline = world.pipeline()
    world.bucket.put("a", "first")
    world.tell("a")
    pipeline.poll(0)
    world.bucket.put("a", "second")
    world.tell("a")
    files = pipeline.begin()
    pipeline.poll(0)
    world.bucket.put("a", "first")
    world.tell("a")
    pipeline.run_batch(files)
    for _ in range(3):
        pipeline.work()
        world.sleep(RECEIVE_S + 1)
    assert (world.landed(), world.queue.entries) == (["a"], {})


def test_a_file_that_is_gone_when_it_is_looked_for_again_is_done(world: World) -> None:
    pipeline = world.pipeline()
    path = world.folder / "a"
    path.write_text("content")
    world.queue.send(canonical_uri(str(path)).encode())
    pipeline.poll(0)
    fetch = pipeline.objects.fetch

    def gone_meanwhile(file: Announced, to: Path) -> None:
        path.write_text("other content")
        try:
            fetch(file, to)
        finally:
            path.unlink()

    pipeline.objects.fetch = gone_meanwhile  # type: ignore[method-assign]
    pipeline.work()
    assert (world.landed(), world.queue.entries) == ([], {})


def test_message_waits_for_a_file_that_is_again_what_it_was(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a")
    pipeline.poll(0)
    fetch = pipeline.objects.fetch

    def other_meanwhile(file: Announced, to: Path) -> None:
        world.bucket.put("a", "other content")
        try:
            fetch(file, to)
        finally:
            world.bucket.put("a", "content of a")
            pipeline.objects.fetch = fetch  # type: ignore[method-assign]

    pipeline.objects.fetch = other_meanwhile  # type: ignore[method-assign]
    pipeline.run_batch(pipeline.begin())
    assert (world.queue.acknowledged, len(pipeline.local)) == ([], 1)
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a"], {})


@pytest.mark.parametrize("uri", ["https://host/c/blob?sig=SECRET", "gs://bucket/key"])
def test_files_that_cannot_be_read_from_where_they_are_are_not_asked_for(
    world: World, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = world.pipeline()
    world.queue.send(uri.encode())
    pipeline.work()
    assert (pipeline.counters.unreadable, len(world.queue.entries), world.states()) == (1, 1, {})
    assert "SECRET" not in caplog.text


def test_only_files_that_are_allowed_are_read(make: Callable[..., World], tmp_path: Path) -> None:
    world = make(allow=["s3://landing/good/", f"{tmp_path}/good/"])
    pipeline = world.pipeline()
    for key in ("good/a", "bad/b"):
        world.put(key)
    (tmp_path / "good").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "good" / "link").symlink_to(tmp_path / "secret")
    world.queue.send(str(tmp_path / "good" / "link").encode())
    pipeline.work()
    assert (pipeline.counters.unreadable, pipeline.counters.quarantined) == (1, 1)
    assert world.states() == {"a": ("done", 0), "b": ("quarantined", 0)}
    assert len(world.landed()) == 1


def test_files_over_which_pipelines_die_come_in_ever_smaller_batches_and_the_deadly_one_is_put_aside(
    make: Callable[..., World],
) -> None:
    world = make(batch_files=64)
    names = [f"{number:02d}" for number in range(40)]
    world.put(*names)
    for life in range(30):
        pipeline = world.pipeline(f"life{life}")
        pipeline.poll(0)
        pipeline.adopt(100)
        while files := pipeline.begin():
            if any(file.shard.uri.endswith("/07") for file in files):
                pipeline._still_ours(files)
                break  # and the process is gone
            pipeline.run_batch(files)
        world.sleep(RECEIVE_S + GRACE_S)
        if world.states()["07"][0] == "quarantined":
            break
    assert world.landed() == [name for name in names if name != "07"]
    assert world.states()["07"][0] == "quarantined"


def test_a_file_that_may_not_even_be_looked_at_ends_in_quarantine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detent.errors import Denied

    pipeline = world.pipeline()
    world.bucket.put("a", "content")
    world.queue.send(b"s3://landing/a")

    def denied(*_: Any) -> None:
        raise Denied("403")

    monkeypatch.setattr(pipeline.objects, "look_up", denied)
    for _ in range(5):
        pipeline.work()
        pipeline.adopt(9)
        world.sleep(RETRY_S + 1)
    assert (world.states(), world.queue.entries) == ({"a?": ("quarantined", 3)}, {})


def test_a_listing_goes_on_past_files_that_may_not_be_read(make: Callable[..., World]) -> None:
    world = make(allow=["s3://landing/good/"])
    pipeline = world.pipeline()
    files = []
    for key in ("bad/b", "good/a"):
        etag = world.bucket.put(key, key)
        files.append(Announced(f"s3://landing/{key}", len(key), etag, modified_ms=1))
    pipeline.announce(files)
    pipeline.work()
    assert world.landed() == [name_of("s3://landing/good/a")]


def test_when_nothing_may_be_read_no_file_is_to_blame(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from detent.errors import Denied

    pipeline = world.pipeline()
    world.put("a", "b")
    pipeline.poll(0)

    def denied(*_: Any) -> None:
        raise Denied("403")

    monkeypatch.setattr(pipeline.objects, "fetch", denied)
    with pytest.raises(Unavailable, match="none of 2 files"):
        pipeline.run_batch(pipeline.begin())
    assert {attempts for _, attempts in world.states().values()} == {0}


def test_a_store_that_does_not_answer_is_no_files_fault(world: World) -> None:
    pipeline = world.pipeline()
    world.put("a")
    world.bucket.answers = False
    for _ in range(5):
        pipeline.work()
        world.sleep(RETRY_S + 1)
    assert (world.states(), pipeline.counters.failures) == ({"a": ("open", 0)}, 5)
    world.bucket.answers = True
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a"], {})


@pytest.mark.parametrize("when", ["at once", "in a part"])
def test_an_error_that_is_no_files_fault_ends_the_pipeline_and_lets_go_of_all_files(world: World, when: str) -> None:
    pipeline = world.pipeline()
    world.put("a", "b", "c", "d")
    pipeline.job.fatal = RuntimeError("the transform is wrong")
    if when == "in a part":
        pipeline.job.fatal = None
        pipeline.job.poison = {"a", "b", "c", "d"}
        run = pipeline.job.run

        def break_later(batch: str, files: Sequence[HeldFile]) -> BatchOutput:
            if len(pipeline.job.runs) == 2:
                pipeline.job.fatal = RuntimeError("the transform is wrong")
            return run(batch, files)

        pipeline.job.run = break_later  # type: ignore[method-assign]
    pipeline.poll(0)
    with pytest.raises(RuntimeError, match="transform"):
        pipeline.run_batch(pipeline.begin())
    second = world.pipeline("p2")
    world.sleep(RETRY_S + 1)
    assert (len(pipeline.local), second.poll(0)) == (0, 4)
    second.work()
    assert (world.landed(), world.states()["a"]) == (["a", "b", "c", "d"], ("done", 0))


@pytest.mark.parametrize("is_death", [True, False])
def test_an_end_of_spark_is_counted_over_the_files_that_were_read_if_nobody_asked_for_it(
    world: World, is_death: bool
) -> None:
    pipeline = world.pipeline()
    world.put("a", "b")
    pipeline.poll(0)
    pipeline.job.fatal = SparkEnded("there is no Java any more")
    with pytest.raises(SparkEnded):
        pipeline.run_batch(pipeline.begin())
    world.put("c")  # waits for the next batch
    pipeline.poll(0)
    pipeline.stop(is_death=is_death)
    second = world.pipeline("p2")
    assert second.poll(0) == 3  # at once
    deaths = {name_of(file.shard.uri): file.deaths for file in second.local.files()}
    assert deaths == {"a": is_death, "b": is_death, "c": 0}


def test_a_queue_that_is_away_for_a_moment_is_asked_again(world: World) -> None:
    pipeline = world.pipeline()

    def away(*_: Any) -> Any:
        raise Unavailable("no answer")

    world.put("a")
    receive, world.queue.receive = world.queue.receive, away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        pipeline.poll(0)
    world.queue.receive = receive  # type: ignore[method-assign]
    pipeline.work()
    assert world.landed() == ["a"]


# -- in between ------------------------------------------------------------------------------------------------------


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("no answer")


@pytest.mark.parametrize("step", ["begin", "fail"])
def test_a_batch_that_the_database_interrupts_is_run_again(world: World, step: str) -> None:
    pipeline = world.pipeline()
    world.put("a", "b")
    pipeline.poll(0)
    if step == "fail":
        gone = world.bucket.objects.pop("b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.shared, step, away)
        with pytest.raises(Unavailable):
            pipeline.run_batch(pipeline.begin())
    if step == "fail":
        world.bucket.objects["b"] = gone
    assert len(pipeline.local) == 0
    world.sleep(RECEIVE_S + 1)
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a", "b"], {})


@pytest.mark.parametrize("identity", ["uri", "etag"])
def test_a_file_that_comes_between_its_announcement_and_its_fetch_lands_once(
    make: Callable[..., World], identity: str
) -> None:
    world = make(identity=identity)
    pipeline = world.pipeline()
    etag = world.bucket.put("late", "content of late")
    del world.bucket.objects["late"]
    about = {"bucket": {"name": "landing"}, "object": {"key": "late", "eTag": etag}}  # without its size
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": about}
    world.queue.send(json.dumps({"Records": [record]}).encode())
    pipeline.poll(0)
    world.put("late")
    for _ in range(4):
        pipeline.work()
        world.sleep(RECEIVE_S + 1)
    assert (world.landed(), world.queue.entries) == (["late"], {})


def test_a_message_is_extended_until_the_commit_of_its_last_file(make: Callable[..., World]) -> None:
    world = make(batch_files=1)
    pipeline = world.pipeline()
    for name in "ab":
        world.bucket.put(name, name)
    message = world.tell("a", "b")
    pipeline.poll(0)
    world.sleep(RECEIVE_S - LAST_S + 10)
    pipeline.run_batch(pipeline.begin())
    for _ in range(80):
        world.sleep(MARGIN_S / 2)
        pipeline.keep()
    assert world.queue.entries[message].visible_at > world.now
    pipeline.run_batch(pipeline.begin())
    assert world.queue.acknowledged == [message]


def test_a_missing_file_does_not_stop_a_pipeline_that_goes_by_sequencers(make: Callable[..., World]) -> None:
    world = make(identity="sequencer")
    pipeline = world.pipeline()
    about = {"bucket": {"name": "landing"}, "object": {"key": "gone", "eTag": "e", "sequencer": "01"}}
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": about}
    world.queue.send(json.dumps({"Records": [record]}).encode())
    pipeline.work()
    world.sleep(GRACE_S + 1)
    pipeline.adopt(9)
    pipeline.work()
    assert world.states()["gone?"][1] == 2


def test_a_file_that_came_after_all_is_not_forgotten_when_the_pipeline_dies_over_it(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.queue.send(b"s3://landing/late")
    for _ in range(3):
        first.work()
        world.sleep(RETRY_S + 1)
    assert (world.states(), world.queue.entries) == ({"late?": ("quarantined", 3)}, {})
    world.bucket.put("late", "content")
    steering.redrive(world.engine, "orders")
    first.shared.open = away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        first.adopt(9)
    second.adopt(9)
    second.work()
    assert world.landed() == ["late"]


def test_one_file_that_cannot_be_looked_up_keeps_no_other_from_being_adopted(world: World) -> None:
    first, second = world.pipeline("p1"), world.pipeline("p2")
    world.queue.send(b"s3://landing/late")
    world.put("a")
    first.poll(0)
    world.queue.entries.clear()
    world.sleep(GRACE_S + 1)
    world.bucket.head_object = away  # type: ignore[method-assign]
    second.adopt(9)
    second.work()
    assert world.landed() == ["a"]


def test_a_file_that_could_not_be_let_go_of_is_taken_up_again(world: World) -> None:
    """Its row says that it is ours, and we say that we are alive: nobody would ever have it."""
    pipeline, second = world.pipeline("p1"), world.pipeline("p2")
    world.put("a")
    pipeline.poll(0)
    world.queue.entries.clear()
    pipeline.job.fatal = Unavailable("no answer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.shared, "release", away)
        with pytest.raises(Unavailable):
            pipeline.run_batch(pipeline.begin())
    pipeline.job.fatal = None
    for _ in range(5):
        world.sleep(GRACE_S / 2)
        for one in (pipeline, second):
            one.keep()
            one.adopt(9)
            one.work()
    assert world.landed() == ["a"]


def test_a_backfill_that_the_database_interrupts_leaves_out_no_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from detent.ingest import pipeline as running

    monkeypatch.setattr(running, "BACK_OFF", Backoff(0.02, 30.0))
    folder = world.folder / "in"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)
    pipeline = world.pipeline()
    opened, calls = pipeline.shared.open, []

    def away_once(shards: Any) -> Any:
        calls.append(1)
        return away() if len(calls) == 1 else opened(shards)

    pipeline.shared.open = away_once  # type: ignore[method-assign]
    until = running._Until(threading.Event(), True, str(folder), None)
    running._PipelineRun(world.config, pipeline, world.engine, None, until, lambda _: None).run()
    assert world.landed() == ["a", "b", "c"]


def test_no_file_is_blamed_when_nothing_can_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = world.pipeline()
    world.put("a", "b", "c")
    pipeline.poll(0)

    def broken(_batch: str, files: Sequence[HeldFile]) -> BatchOutput:
        raise BatchFailed("no room on the disk", [])

    monkeypatch.setattr(pipeline._job, "run", broken)
    monkeypatch.setattr(pipeline._job, "check_working", away)
    with pytest.raises(Unavailable):
        pipeline.run_batch(pipeline.begin())
    assert len(pipeline.local) == 0
    assert {file.attempts for file in steering.files(pipeline.shared.engine, pipeline.shared.source)} == {0}
    monkeypatch.undo()
    world.sleep(RECEIVE_S + 1)
    pipeline.work()
    assert world.landed() == ["a", "b", "c"]
