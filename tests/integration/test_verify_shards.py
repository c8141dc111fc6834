"""`store verify` on consumers and shards: a healthy store has no findings, and each kind of damage is named."""

from __future__ import annotations

import pytest

from detent.codec import shard as records
from detent.codec.shard import FENCE_STEP, Reset
from detent.codec.shard import ConsumerRow as Consumer
from detent.codec.shard import ProgressRow as Progress
from detent.codec.shard import ShardRow as Shard
from detent.engine.verify import Counts, Finding
from detent.kv import Batch
from detent.shard import operations as ops
from detent.verify import verify
from shardworld import ShardWorld

TIME = 1_700_000_000_000


@pytest.fixture
def world() -> ShardWorld:
    """A store with every kind of record of consumers. The next shard's number is 7."""
    world = ShardWorld()
    world.append("j", b"x")
    world.register(2, "a", "b", name="orders é")
    world.register(1, "a", name="keyed", partition="key")
    world.register(2, name="gone")
    for index in range(2):
        world.put(world.open(index, name="orders é").fence, index, name="orders é", k=b"1", l=b"")
        world.put(world.open(index, name="gone").fence, index, name="gone", k=b"1")
        world.commit(ops.ReportShard("orders é", index, 0, "", "", {"ab"[index]: 5}, {"far:x": 7}, keep=True))
        world.commit(ops.ReportShard("gone", index, 0, published={"x": 7}, keep=True))
    world.lease("m", 1, name="orders é")
    world.commit(ops.ResetShards("orders é", {"b": 7}), ops.PauseConsumer("keyed", True))
    world.commit(ops.DeleteConsumer("gone"))
    world.register(1, name="last")
    return world


def run(world: ShardWorld) -> tuple[list[Finding], Counts]:
    findings: list[Finding] = []
    check = verify(world.writer)
    while True:
        try:
            findings.append(next(check))
        except StopIteration as end:
            return findings, end.value


def write(world: ShardWorld, key: bytes, value: bytes | None) -> None:
    batch = Batch()
    batch.extend({key: value})
    world.writer.commit(batch)


def test_a_healthy_store_has_no_findings(world: ShardWorld) -> None:
    findings, counts = run(world)
    assert findings == []
    assert (counts.consumers, counts.shards, counts.states, counts.journals) == (3, 4, 6, 1)
    world.pass_time(1_000)
    findings, counts = run(world)
    assert findings == []
    assert counts.states == 4, "what the deleted one had left is gone"


WHOLE = Consumer(TIME, 1, "journal", False, {})
FIRST = records.shard_key("orders é", 0)
SECOND = records.shard_key("orders é", 1)
HELD = Shard(2, 2 * FENCE_STEP + 1, "m", 1000, 1, {"b": Reset(7, 1)}, TIME)
DAMAGE: dict[str, tuple[bytes, bytes | None, str]] = {
    "a consumer that ends early": (records.consumer_key("keyed"), b"x", "a malformed consumer: consumer"),
    "a consumer without its shards": (records.consumer_key("x"), WHOLE.encode(), "'x' has 0 shards, and not 1"),
    "a consumer of no journal": (
        records.consumer_key("last"),
        WHOLE._replace(sources={"a b": 0}).encode(),
        "is no journal name",
    ),
    "a consumer from no time": (records.consumer_key("last"), WHOLE._replace(created_ms=-1).encode(), "is not a time"),
    "a name that is not text": (records.CONSUMER.key(b"\xff"), WHOLE.encode(), "is not UTF-8"),
    "no name": (records.CONSUMER.raw, WHOLE.encode(), "has no name"),
    "a shard without its consumer": (
        records.shard_key("x", 0),
        Shard(6, 6 * FENCE_STEP, "", 0, 0, {}, TIME).encode(),
        "there is no consumer 'x'",
    ),
    "a shard too many": (
        records.shard_key("last", 1),
        Shard(6, 6 * FENCE_STEP, "", 0, 0, {}, TIME).encode(),
        "shard 1 of 'last', where shard 1 of 1 should be",
    ),
    "a number that another one has": (SECOND, HELD._replace(number=1).encode(), "that of another shard too"),
    "a number that is still to be given": (
        SECOND,
        HELD._replace(number=7, fence=1 << 40).encode(),
        "still to be given",
    ),
    "a holder that nobody is": (SECOND, HELD._replace(holder="a\nb").encode(), "is not a member"),
    "a lease for ever": (SECOND, HELD._replace(ttl_ms=1 << 31).encode(), "a lease lasts"),
    "a reset of no offset": (SECOND, HELD._replace(resets={"b": Reset(1 << 63, 1)}).encode(), "is not an offset"),
    "a reset of another's journal": (SECOND, HELD._replace(resets={"a": Reset(1, 1)}).encode(), "is not this shard's"),
    "a shard from no time": (SECOND, HELD._replace(updated_ms=-1).encode(), "is not a time"),
    "a fence that is too low": (SECOND, HELD._replace(fence=1).encode(), "a malformed shard: shard"),
    "a checkpoint of no shard": (records.checkpoint_key(6 + 3), b"", "no shard has or had the number 9"),
    "state of no shard": (records.state_key(9, "k"), b"", "no shard has or had the number 9"),
    "state under no text": (records.STATE.key(b"\0\0\0\1\xff"), b"", "is not UTF-8"),
    "state under much text": (records.state_key(1, "k" * 401), b"", "at most 400 bytes"),
    "much state": (records.state_key(1, "k"), bytes(ops.STATE_VALUE_BYTES_MAX + 1), "a value of 1048577 bytes"),
    "a long checkpoint": (records.checkpoint_key(1), bytes(ops.CHECKPOINT_BYTES_MAX + 1), "a checkpoint of 16777217"),
    "a deleted shard that is there": (records.doomed_key(1), b"", "that of another shard too"),
    "a deleted shard to come": (records.doomed_key(8), b"", "still to be given"),
    "a deleted shard that says something": (records.doomed_key(4), b"x", "1 bytes where there should be none"),
    "a counter that ends early": (records.COUNTER.key(b"x"), b"\7\0\0\0", "a malformed counter of shards"),
    "progress that ends early": (records.progress_key(1), b"\0\0", "a malformed progress: progress"),
    "progress of no shard": (records.progress_key(9), Progress({}, {}, 0).encode(), "no shard has or had the number 9"),
    "progress in another's journal": (
        records.progress_key(1),
        Progress({"b": 1}, {}, 0).encode(),
        "the journal 'b' was processed, and is not this shard's",
    ),
    "progress to come": (records.progress_key(2), Progress({}, {}, 2).encode(), "generation 2, and the shard is in 1"),
    "progress to no offset": (records.progress_key(1), Progress({"a": 1 << 63}, {}, 0).encode(), "is not an offset"),
    "progress of a deleted shard to no offset": (
        records.progress_key(4),
        Progress({}, {"x": 1 << 63}, 9).encode(),
        "is not an offset",
    ),
    "progress in many journals": (
        records.progress_key(1),
        Progress({}, {f"j{n}": 1 for n in range(ops.PUBLISHED_JOURNALS_MAX + 1)}, 0).encode(),
        "1001 journals that it has written",
    ),
    "a record of another type": (b"\x09\x01\x08x", b"", "no known version and type (shard)"),
    "a record of another version": (b"\x09\x02\x01x", WHOLE.encode(), "no known version and type (shard)"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(world: ShardWorld, what: str) -> None:
    key, value, problem = DAMAGE[what]
    write(world, key, value)
    findings, counts = run(world)
    assert any(finding.where == f"record {key.hex()}" and problem in finding.problem for finding in findings)
    assert counts.journals == 1, "the rest was checked too"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (records.consumer_key("keyed"), "there is no consumer 'keyed'"),
        (FIRST, "shard 1 of 'orders é', where shard 0 of 2 should be"),
        (SECOND, "'orders é' has 1 shards, and not 2"),
        (records.COUNTER.raw, "still to be given: the next one is 1"),
        (records.doomed_key(4), "no shard has or had the number 4"),
    ],
)
def test_what_is_missing_is_named(world: ShardWorld, key: bytes, problem: str) -> None:
    write(world, key, None)
    findings, _ = run(world)
    assert any(problem in finding.problem for finding in findings)
