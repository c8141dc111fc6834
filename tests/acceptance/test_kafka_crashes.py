"""Bridges and a broker that are killed with -9, and zombies that wake: nothing lost, nothing doubled, on both sides.

They take minutes, so `make kafka` runs all of them, and other runs one of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from detent.kafka.task import FENCES_MAX
from kafkaserver import Broker, kafka_broker, needs_kafka, shared_broker
from kafkaworld import IN_POINTS, OUT_POINTS, PARTITIONS, BridgeWorld, await_status, each_once, last_word
from processes import Processes, eventually

COUNT = 400
BEGINNING = ("_fence", "_init", "_place", "out.after_mark")
"""How points end that a life comes to once, before its first batch."""

heavy = pytest.mark.skipif(not os.environ.get("DETENT_KAFKA"), reason="takes minutes: `make kafka` runs it")
pytestmark = [needs_kafka, pytest.mark.xdist_group("kafka")]


@pytest.fixture
def world(tmp_path: Path, processes: Processes) -> BridgeWorld:
    return BridgeWorld(shared_broker(), f"file:{tmp_path}/store", processes)


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with kafka_broker() as broker:
        yield broker


def unique(what: str) -> str:
    return f"{what}-{os.urandom(4).hex()}"


def usual(points: tuple[str, ...], always: str) -> list[object]:
    """All points, of which only one is visited when there is little time."""
    return [pytest.param(point, marks=[] if point == always else [heavy]) for point in points]


@pytest.mark.parametrize("point", usual(IN_POINTS, "kafka.in.after_commit"))
def test_bridge_from_kafka_killed_at_each_step_takes_each_record_once(world: BridgeWorld, point: str) -> None:
    name = unique("in")
    world.produce(name, COUNT)
    times = ":3" if point.endswith("_commit") else ""
    child = world.start("in", name, once=True, environment={"DETENT_CRASH_AT": f"{point}{times}"})
    assert child.was_killed(seconds=60)
    world.run_once("in", name)
    assert world.journal_counts(name) == each_once(COUNT)


@heavy
@pytest.mark.parametrize("point", ["kafka.in.before_commit", "kafka.in.after_commit"])
def test_bridge_killed_at_a_dead_letter_has_it_once(world: BridgeWorld, point: str) -> None:
    import detent

    name = unique("dead")
    world.produce(name, COUNT)
    world.broker.produce(name, [(None, b"large", [("large", b"y" * 70_000)])] * 3)
    letters = f"dead-{name}"
    child = world.start("in", name, once=True, dead_letters=letters, environment={"DETENT_CRASH_AT": f"{point}:9"})
    assert child.was_killed(seconds=60)
    world.run_once("in", name, dead_letters=letters)
    assert world.journal_counts(name) == each_once(COUNT)
    with detent.open(world.url) as store:
        places = [
            one.headers["kafka.partition"] + ":" + one.headers["kafka.offset"] for one in store.journal(letters).read()
        ]
    assert len(places) == len(set(places)) == 3


@pytest.mark.parametrize("point", usual(OUT_POINTS, "kafka.out.after_commit"))
def test_bridge_to_kafka_killed_at_each_step_writes_each_message_once(world: BridgeWorld, point: str) -> None:
    name = unique("out")
    fill(world, name)
    times = "" if point.endswith(BEGINNING) else ":3"
    child = world.start("out", name, once=True, environment={"DETENT_CRASH_AT": f"{point}{times}"})
    assert child.was_killed(seconds=60)
    world.run_once("out", name)
    assert world.topic_counts(f"out-{name}") == each_once(COUNT)


def fill(world: BridgeWorld, name: str) -> None:
    """A journal with messages 0 to COUNT - 1, and a topic for them."""
    import detent

    with detent.open(world.url) as store:
        store.journal(name).append_many([(b"%d" % number, b"%d" % (number % 7)) for number in range(COUNT)])
    world.broker.topic(f"out-{name}", partitions=PARTITIONS)


@heavy
@pytest.mark.parametrize("direction", ["in", "out"])
def test_zombie_that_wakes_before_its_commit_changes_nothing(world: BridgeWorld, direction: str) -> None:
    import detent

    name = unique(f"zombie-{direction}")
    if direction == "in":
        world.produce(name, COUNT)
    else:
        fill(world, name)
    with detent.open(world.url):  # the owner is not the process that stands still
        zombie = world.start(direction, name, environment={"DETENT_STOP_AT": f"kafka.{direction}.before_commit:3"})
        eventually(zombie.stands_still, seconds=60, what="the zombie standing still")
        world.run_once(direction, name)
        zombie.resume()
        await_status(zombie, "fenced")
        await_status(zombie, "running")
    zombie.finish()
    counts = world.journal_counts(name) if direction == "in" else world.topic_counts(f"out-{name}")
    assert counts == each_once(COUNT)


@heavy
def test_broker_killed_under_both_directions_loses_and_doubles_nothing(
    own_broker: Broker, tmp_path: Path, processes: Processes
) -> None:
    import detent

    world, name = BridgeWorld(own_broker, f"file:{tmp_path}/store", processes), unique("killed")
    world.broker.topic(name, partitions=PARTITIONS)
    world.broker.topic(f"out-{name}", partitions=PARTITIONS)
    with detent.open(world.url) as store:
        inward, outward = world.start("in", name), world.start("out", name)
        for part in range(4):
            values = range(part * COUNT, (part + 1) * COUNT)
            own_broker.produce(name, [(b"%d" % (number % 7), b"%d" % number) for number in values])
            if part < 3:
                eventually(lambda at=part * COUNT: store.reader.next_offset(name) > at, seconds=90)
                own_broker.kill()
                own_broker.start()
        eventually(lambda: store.reader.next_offset(name) == 4 * COUNT, seconds=120, what="all records in the journal")
        for child in (inward, outward):
            child.finish(seconds=90)
    world.run_once("out", name)
    assert world.journal_counts(name) == each_once(4 * COUNT)
    assert world.topic_counts(f"out-{name}") == each_once(4 * COUNT)


@heavy
def test_two_processes_share_partitions_and_one_takes_over_when_the_other_is_killed(world: BridgeWorld) -> None:
    import detent

    name = unique("shared")
    world.produce(name, COUNT)
    with detent.open(world.url) as store:
        first = world.start("in", name, shards=2)
        await_status(first, "running")
        second = world.start("in", name, shards=2)

        def holders() -> set[str]:
            return {shard.holder for shard in store.consumer(f"bridge/{name}").info().shards if shard.holder}

        eventually(lambda: len(holders()) == 2, seconds=60, what="each process having a shard")
        first.kill()
        more = [(b"%d" % (number % 7), b"%d" % number) for number in range(COUNT, 2 * COUNT)]
        world.broker.produce(name, more)
        eventually(lambda: store.reader.next_offset(name) >= 2 * COUNT, seconds=60, what="all records")
        second.finish()
    assert world.journal_counts(name) == each_once(2 * COUNT)


@heavy
def test_bridge_that_a_stranger_fences_again_and_again_ends_with_fenced(world: BridgeWorld) -> None:
    from confluent_kafka import Producer

    import detent

    name = unique("stranger")
    fill(world, name)
    child = world.start("out", name)
    await_status(child, "running")
    settings = {"bootstrap.servers": world.broker.brokers, "transactional.id": f"detent.out-{name}"}
    with detent.open(world.url) as store:
        for left in reversed(range(FENCES_MAX)):
            Producer(settings).init_transactions(30)
            store.journal(name).append(b"more")
            if left:
                await_status(child, "failed")
                await_status(child, "running")
        assert last_word(child)["error"] == "Fenced"
