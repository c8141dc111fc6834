"""`store verify` finds nothing wrong with what the owner of queues does, and something with what it never does."""

from __future__ import annotations

import pytest

from detent.codec import queue as records
from detent.codec.published import FOREVER
from detent.kv import Batch
from detent.queue import housekeeping
from detent.queue import operations as ops
from detent.verify import verify
from queueworld import Queues, used

LONG_NAME = "q" * 200
LONG_KEY = "k" * ops.DEDUP_KEY_BYTES_MAX


@pytest.fixture
def world() -> Queues:
    return Queues()


def problems(world: Queues) -> list[str]:
    return [finding.problem for finding in verify(world.writer)]


def put(world: Queues, key: bytes, value: bytes) -> None:
    batch = Batch()
    batch.put(key, value)
    world.writer.commit(batch)


def publish(world: Queues, queue: str, *keys: str, retention_s: int = 60) -> None:
    headers = [{"queue": queue}]
    world.commit(ops.Publish([b"x"] * len(keys), headers, dedup_keys=list(keys), to=queue, retention_s=retention_s))


def test_the_longest_dedup_key_of_a_queue(world: Queues) -> None:
    world.create(LONG_NAME)
    publish(world, LONG_NAME, LONG_KEY, "a")
    publish(world, LONG_NAME, "b", retention_s=0)
    assert problems(world) == []
    put(world, records.dedup_key(records.own_dedup_key(1, LONG_KEY + "k")), records.encode_dedup(0, FOREVER))
    assert any("a malformed dedup key" in problem for problem in problems(world))


@pytest.mark.parametrize("key", ["x\0a", "\0a", "01\0a", "1\0", "1\0a\0", f"{1 << 32}\0a"])
def test_a_dedup_key_of_no_queue(world: Queues, key: str) -> None:
    world.create()
    publish(world, "q", "a")
    put(world, records.dedup_key(key), records.encode_dedup(0, FOREVER))
    assert [problem.partition(":")[0] for problem in problems(world)] == ["a malformed dedup key"]


def test_a_dedup_key_of_a_queue_that_never_was(world: Queues) -> None:
    world.create()
    publish(world, "q", "a")
    put(world, records.dedup_key(records.own_dedup_key(7, "a")), records.encode_dedup(0, FOREVER))
    assert problems(world) == ["a dedup key of queue number 7, which does not exist"]


def test_the_keys_of_a_deleted_queue_while_they_go(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "COLLECT_RECORDS", 2)
    world.create()
    world.commit(ops.SetDedupWindow(1_000))
    publish(world, "q", *"fedcba", retention_s=1)
    publish(world, "q", "g", retention_s=0)
    world.later(1_000)
    publish(world, "q", *"abc")  # taken again, while the index by time has yet to forget that they were over
    world.commit(ops.DeleteQueue("q"))
    for _ in range(20):
        assert problems(world) == []
        world.engine.tick()
    assert world.records(records.DEDUP) == world.records(records.DEDUP_EXPIRY) == []


def test_dead_letters_that_stay_longer_than_they_were_published_for(world: Queues) -> None:
    world.create("dead", dead_letter_retention_s=600, max_attempts=1)
    world.create("late", filter="true", paused=True)
    world.create(dead_letter="dead", max_attempts=1)
    world.publish(5, retention_s=60)
    world.commit(used(ops.Fail, world.claim(5)))
    assert problems(world) == []
    claimed = world.claim(3, "dead")
    world.commit(used(ops.Fail, claimed, 0), used(ops.Ack, claimed, 1))  # one of them is kept for the late queue
    assert problems(world) == []
    world.commit(ops.Redrive("dead", to="q"))
    world.commit(ops.ConfigureQueue("dead", ops.Settings(dead_letter_retention_s=0)))
    world.later(61_000)
    world.engine.tick()
    assert problems(world) == []
    world.commit(ops.DeleteQueue("dead"))
    assert problems(world) == []
    world.ticks()
    assert problems(world) == []


@pytest.mark.parametrize(("deadline_ms", "found"), [(5, True), (FOREVER, True), (FOREVER - 1, False)])
def test_a_deadline_that_no_dead_letter_has(world: Queues, deadline_ms: int, found: bool) -> None:
    world.create()
    world.publish()
    world.commit(ops.WriteCheckpoint())
    with world.writer.view() as view:
        key = records.queue_key(records.ACTIVE, 1, 0)
        available, _, _ = records.decode_active(view.get(key) or b"")
    rows = available.copy()
    rows["deadline_ms"] = deadline_ms
    put(world, key, records.encode_active(rows, []))
    assert any(f"by queue 'q' until {deadline_ms}" in problem for problem in problems(world)) == found


def test_a_message_that_was_tried_more_often_than_is_counted(world: Queues) -> None:
    world.create(max_attempts=0, backoff_ms=0)
    world.publish()
    for _ in range(records.ATTEMPTS_KEPT + 1):
        world.commit(used(ops.Fail, world.claim()), ops.WriteCheckpoint())
    world.queues.by_number[1].buckets[0].attempts[0] = ops.ATTEMPTS_MAX - 1
    for _ in range(3):
        world.claim()
        assert problems(world) == []
        world.commit(ops.WriteCheckpoint())
        assert problems(world) == []
        world.later(30_000)
        world.engine.tick()
        assert problems(world) == []
