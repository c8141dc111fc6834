"""Each record of a notification has an outcome of its own, and the message is done when all have one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Invalid
from detent.ingest import forgetting, steering
from detent.ingest.local_state import DEATHS_MAX
from detent.ingest.steering import FileStatus
from ingestfakes import RECEIVE_S, Bucket, World

DAYS_S = 86_400

MALFORMED: list[Any] = [
    None,
    {"eventName": "ObjectCreated:Put"},
    {"eventSource": "aws:dynamodb", "eventName": "INSERT"},
]


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


def record(name: str, content: str | None = None) -> dict[str, Any]:
    """A record of an object, whose size and etag are not said unless its content is."""
    about: dict[str, Any] = {"key": name}
    if content is not None:
        about |= {"size": len(content), "eTag": hashlib.md5(content.encode()).hexdigest()}
    return {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "landing"}, "object": about},
    }


def tell(world: World, *records: Any) -> str:
    return world.queue.send(json.dumps({"Records": records}).encode())


def quarantined(world: World) -> list[FileStatus]:
    return list(steering.files(world.engine, "orders", state="quarantined"))


@pytest.mark.parametrize("wrong", MALFORMED)
def test_malformed_record_goes_to_quarantine_and_its_neighbours_land(world: World, wrong: Any) -> None:
    pipeline = world.pipeline()
    world.bucket.put("a", "A")
    world.bucket.put("b", "B")
    message = tell(world, record("a", "A"), wrong, record("b", "B"))
    pipeline.poll(0)
    assert world.queue.acknowledged == [], "its files have not landed"
    pipeline.work()
    assert (world.landed(), world.queue.acknowledged) == (["a", "b"], [message])
    (bad,) = quarantined(world)
    assert (bad.uri, bad.version, bad.attempts) == (f"message:landing/{message}", "malformed", 0)
    assert json.dumps(wrong) in bad.reason
    assert (pipeline.counters.quarantined, pipeline.counters.unreadable) == (1, 0)


def test_message_of_malformed_records_alone_is_done_when_they_are_in_quarantine(world: World) -> None:
    pipeline = world.pipeline()
    message = tell(world, *MALFORMED)
    pipeline.work()
    assert (len(quarantined(world)), world.queue.acknowledged) == (len(MALFORMED), [message])


def test_malformed_record_that_comes_again_is_in_quarantine_once(world: World) -> None:
    tell(world, None)
    world.pipeline("p1").work()
    tell(world, None)
    second = world.pipeline("p2")
    second.work()
    assert (len(quarantined(world)), second.counters.quarantined, world.queue.entries) == (1, 0, {})


def test_record_that_is_not_allowed_goes_to_quarantine_and_its_neighbours_land(make: Callable[..., World]) -> None:
    world = make(allow=["s3://landing/good/"])
    pipeline = world.pipeline()
    for name in ("good/a", "bad/b"):
        world.bucket.put(name, "A")
    tell(world, record("good/a", "A"), record("bad/b", "A"))
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a"], {})
    (bad,) = quarantined(world)
    assert bad.uri == "s3://landing/bad/b"
    assert "allow" in bad.reason


def test_record_that_is_allowed_in_the_end_lands_when_it_is_redriven(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(allow=["s3://landing/good/"])
    world.bucket.put("bad/b", "B")
    tell(world, record("bad/b", "B"))
    world.pipeline("p1").work()
    assert steering.redrive(world.engine, "orders", ["s3://landing/bad/b"]) == 1
    refusing = world.pipeline("p2")
    refusing.adopt(10)
    refusing.work()
    assert world.landed() == []
    allowing = make()
    allowing.bucket = world.bucket
    steering.redrive(allowing.engine, "orders")
    pipeline = allowing.pipeline("p3")
    for _ in range(3):
        allowing.sleep(RECEIVE_S)
        pipeline.adopt(10)
        pipeline.work()
    assert (allowing.landed(), quarantined(allowing)) == (["b"], [])


class Versions(Bucket):
    """A bucket that keeps versions, and writes down which of them it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def get_object(self, *, Bucket: str, Key: str, IfMatch: str = "", VersionId: str = "") -> dict[str, Any]:
        self.asked.append(VersionId)
        return super().get_object(Bucket=Bucket, Key=Key, IfMatch=IfMatch)


def redriven(world: World) -> None:
    """What a pipeline does after files were put back, with no message about them."""
    assert world.queue.entries == {}, "the messages are gone"
    steering.redrive(world.engine, "orders")
    pipeline = world.pipeline("redriven")
    pipeline.adopt(10)
    pipeline.work()


def test_each_refused_version_of_a_name_is_redriven_as_itself(make: Callable[..., World]) -> None:
    world = make(identity="version", allow=["s3://landing/good/"])
    first, second = record("k", "1"), record("k", "2")
    first["s3"]["object"]["versionId"], second["s3"]["object"]["versionId"] = "v1", "v2"
    tell(world, first)
    tell(world, second)
    world.pipeline().work()
    assert sorted(file.version for file in quarantined(world)) == ["version:v1", "version:v2"]
    allowing = make(identity="version")
    allowing.bucket = versions = Versions()
    versions.put("k", "2")
    redriven(allowing)
    assert (sorted(versions.asked), allowing.landed(), quarantined(allowing)) == (["v1", "v2"], ["k", "k"], [])


def test_refused_file_is_redriven_with_the_sequencer_that_its_message_had(make: Callable[..., World]) -> None:
    world = make(identity="sequencer", allow=["s3://landing/good/"])
    file = record("k", "1")
    file["s3"]["object"]["sequencer"] = "0055"
    tell(world, file)
    world.pipeline().work()
    allowing = make(identity="sequencer")
    allowing.bucket.put("k", "1")
    redriven(allowing)
    assert (allowing.landed(), quarantined(allowing)) == (["k"], [])


def test_refused_file_that_is_redriven_is_still_checked_when_it_is_fetched(make: Callable[..., World]) -> None:
    world = make(allow=["s3://landing/good/"], attempts=1)
    world.bucket.put("k", "1")
    tell(world, record("k", "1"))
    world.pipeline().work()
    redriven(world)
    (bad,) = quarantined(world)
    assert (world.landed(), bad.attempts) == ([], 1)
    assert "allow" in bad.reason


def test_refused_file_that_does_not_say_enough_of_itself_lands_when_it_is_redriven(make: Callable[..., World]) -> None:
    world = make(allow=["s3://landing/good/"])
    tell(world, record("k"))
    world.pipeline().work()
    assert [file.version for file in quarantined(world)] == ["refused"]
    allowing = make()
    allowing.bucket.put("k", "1")
    redriven(allowing)
    assert (allowing.landed(), quarantined(allowing)) == (["k"], [])


def test_record_that_cannot_be_looked_up_holds_the_message_and_no_neighbour(world: World) -> None:
    pipeline = world.pipeline()
    world.bucket.put("a", "A")
    world.bucket.put("b", "B")
    tell(world, record("a", "A"), record("b"))
    world.bucket.answers = False
    pipeline.poll(0)
    world.bucket.answers = True
    pipeline.run_batch(pipeline.begin())
    assert (world.landed(), world.queue.acknowledged) == (["a"], [])
    world.sleep(RECEIVE_S + 1)
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a", "b"], {})


def test_malformed_record_cannot_be_redriven_and_is_forgotten_after_the_window(world: World) -> None:
    world.put("a")
    tell(world, None)
    world.pipeline().work()
    assert steering.redrive(world.engine, "orders") == 0
    (bad,) = quarantined(world)
    with pytest.raises(Invalid, match="announce the file anew"):
        steering.redrive(world.engine, "orders", [bad.uri])
    forgetting.prune(world.engine, world.config, None)
    assert quarantined(world) == [bad]
    world.sleep(16 * DAYS_S)
    forgetting.prune(world.engine, world.config, None)
    assert quarantined(world) == []


def test_refused_file_is_forgotten_after_the_window_and_one_that_failed_stays(make: Callable[..., World]) -> None:
    world = make(allow=["s3://landing/good/"], attempts=1)
    tell(world, record("bad/k", "1"), record("good/gone", "1"))
    pipeline = world.pipeline()
    pipeline.work()
    names = ["s3://landing/bad/k", "s3://landing/good/gone"]
    forgetting.prune(world.engine, world.config, None)
    assert [file.uri for file in quarantined(world)] == names
    world.sleep(16 * DAYS_S)
    forgetting.prune(world.engine, world.config, None)
    assert [file.uri for file in quarantined(world)] == names[1:]


def test_file_over_which_pipelines_died_is_not_forgotten(world: World) -> None:
    world.put("deadly")
    for token in map(str, range(DEATHS_MAX)):
        pipeline = world.pipeline(token)
        pipeline.poll(0)
        pipeline.begin()
        pipeline.stop(is_death=True)
        world.sleep(RECEIVE_S + 1)
    world.pipeline("last").work()
    assert len(quarantined(world)) == 1
    world.sleep(16 * DAYS_S)
    forgetting.prune(world.engine, world.config, None)
    assert len(quarantined(world)) == 1


def test_key_with_control_characters_is_ingested_and_is_one_line_of_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = world.pipeline()
    name = "a\nERROR b\x1b[2J"
    world.bucket.put(name, "A")
    tell(world, record("a%0AERROR+b%1B%5B2J", "A"), record("c%0AERROR+d", "C"))
    for _ in range(3):
        pipeline.work()
        world.sleep(RECEIVE_S)
    assert world.landed() == [name]
    assert [file.uri for file in quarantined(world)] == ["s3://landing/c\nERROR d"]
    logged = "\n".join(caplog.messages)  # not its text: another test may have left a formatter that escapes
    assert "c\\nERROR d" in logged
    assert "\nERROR d" not in logged
