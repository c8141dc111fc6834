"""`store verify` on queues: a healthy store has no findings, and each kind of damage is named."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

import detent
from detent.codec import log, published
from detent.codec import queue as records
from detent.codec.keys import u32, u64
from detent.codec.log import SEQUENCE_BLOCK_KEY, EntryKey, SegmentMeta, SeqBlock
from detent.codec.origin import NOWHERE, Move
from detent.codec.published import FOREVER, LOG_KEY, PAYLOAD
from detent.codec.queue import AttemptRecord, Config, InFlight, QueueCursor, Watermark
from detent.codec.statelog import ACK, encode_claimed, encode_ended, encode_moved
from detent.engine.verify import Counts, Finding
from detent.kv import Batch, Reader, open_reader, prefix_end
from detent.kv.memory import MemorySpace, MemoryWriter
from detent.queue import checkpoint, holdings, housekeeping
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.verify import verify
from world import World

NOT_KEPT = records.NOT_KEPT


def run(reader: Reader, progress: Callable[[int, int], None] | None = None) -> tuple[list[Finding], Counts]:
    findings: list[Finding] = []
    check = verify(reader, progress=progress)
    while True:
        try:
            findings.append(next(check))
        except StopIteration as end:
            return findings, end.value


def claim(world: World, queue: str, count: int, lease_ms: int = 600_000) -> ops.ClaimedMessages:
    claimed: ops.ClaimedMessages = world.commit(ops.Claim(queue, count, lease_ms, "me"))[0]
    assert len(claimed.messages) == count
    return claimed


def receipts(claimed: ops.ClaimedMessages, start: int, end: int) -> tuple[int, list[int], list[int]]:
    deliveries = range(claimed.first_delivery, claimed.first_delivery + len(claimed.messages))
    return claimed.queue, claimed.messages[start:end], list(deliveries[start:end])


def to(queue: str, **headers: str) -> list[dict[str, str]]:
    return [{"queue": queue, **headers}]


def fill(world: World) -> ops.ClaimedMessages:
    """Every kind of record, all of it in a checkpoint. Segments of the log begin with messages 0 and 21."""
    world.commit(ops.CreateQueue("orders", ops.Settings(max_attempts=3, backoff_ms=5, done_retention_s=0)))
    world.commit(ops.CreateQueue("all", ops.Settings(filter="true", done_retention_s=NOT_KEPT)))
    world.commit(ops.CreateQueue("gone"), ops.SetDedupWindow(3_600_000))
    world.commit(ops.Publish([b"a%d" % n for n in range(6)], to("orders", priority="3")))  # 0 to 5
    world.commit(ops.Publish([b"single"], to("orders"), retention_s=0, dedup_keys=["for ever"]))  # 6
    world.commit(ops.Publish([b"s3://bucket/key"], to("orders"), uri=True, dedup_keys=["for a time"]))  # 7
    world.commit(ops.Publish([b"g"] * 3, to("gone")))  # 8 to 10
    world.commit(ops.Publish([b"later"] * 4, [{"queue": "orders", "n": str(n)} for n in range(4)], delay_ms=99_000))
    of_all = claim(world, "all", 11)
    world.commit(ops.Ack(*receipts(of_all, 0, 11)))
    first = claim(world, "orders", 6)
    world.commit(ops.Ack(*receipts(first, 0, 2)))  # 0 and 1 are done: their record is written anew
    world.commit(ops.Fail(*receipts(first, 2, 3), "again", 99_000), ops.Fail(*receipts(first, 3, 4), "no", None, True))
    claim(world, "gone", 1)
    world.commit(ops.CreateQueue("behind", ops.Settings(filter="true", paused=True)))  # it reads on from 15
    world.commit(ops.DeleteQueue("all"))
    world.commit(ops.Publish([b"nobody's"] * 2))  # 15 and 16
    world.commit(ops.Publish([b"b"] * 4, to("orders")))  # 17 to 20
    second = claim(world, "orders", 3)  # 6, 7 and 17
    world.commit(ops.Ack(*receipts(second, 2, 3)))  # 'behind' has yet to read of 17
    world.commit(ops.DeleteQueue("gone"))
    world.commit(ops.Publish([b"c"] * 15, to("orders")))  # 21 to 35
    world.commit(ops.Publish([b"d"] * 2, to("orders")))  # 36 and 37
    world.commit(ops.WriteCheckpoint())
    return first


def go_on(world: World, first: ops.ClaimedMessages) -> None:
    """The state log, with each kind of step that there is without waiting."""
    world.commit(ops.Publish([b"e"] * 3, [{"queue": "orders", "n": str(n)} for n in range(3)]))  # 38 to 40
    world.commit(ops.Ack(*receipts(first, 4, 5)))  # nobody has 4 any more
    claimed = claim(world, "orders", 5)  # 18 to 22
    world.commit(ops.Ack(*receipts(claimed, 0, 2)))
    world.commit(ops.Fail(*receipts(claimed, 2, 3), "no", 10_000), ops.Extend(*receipts(claimed, 3, 4), 500_000))
    world.commit(ops.Publish([b"nobody's"], retention_s=2))  # 41, which begins a segment


@pytest.fixture(scope="module")
def template() -> MemorySpace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdings, "SEGMENT_MESSAGES", 20)
        world = World()
        go_on(world, fill(world))
    return world.space


class Damage:
    """A copy of the store, and the means to damage it."""

    def __init__(self, template: MemorySpace) -> None:
        self.space = MemorySpace()
        self.space.keys = list(template.keys)
        self.space.versions = copy.deepcopy(template.versions)
        self.space.version, self.space.epoch = template.version, template.epoch
        self.writer = MemoryWriter(self.space)
        self.orders = Config.decode(self.get(records.config_key("orders"))).number
        self.behind = Config.decode(self.get(records.config_key("behind"))).number

    def get(self, key: bytes) -> bytes:
        with self.writer.view() as view:
            value = view.get(key)
        assert value is not None
        return value

    def scan(self, start: bytes) -> list[tuple[bytes, bytes]]:
        with self.writer.view() as view:
            return list(view.scan(start, prefix_end(start)))

    def put(self, key: bytes, value: bytes | None) -> None:
        batch = Batch()
        batch.extend({key: value})
        self.writer.commit(batch)

    def config(self, **changes: Any) -> None:
        key = records.config_key("orders")
        self.put(key, Config.decode(self.get(key))._replace(**changes).encode())

    def cursor(self, **changes: Any) -> None:
        key = records.cursor_key(self.orders)
        self.put(key, QueueCursor.decode(self.get(key))._replace(**changes).encode())

    def watermark(self, **changes: Any) -> None:
        key = records.WATERMARK.raw
        self.put(key, Watermark.decode(self.get(key))._replace(**changes).encode())

    def bucket(self, queue: int | None = None) -> tuple[bytes, Any, list[InFlight]]:
        key = records.queue_key(records.ACTIVE, self.orders if queue is None else queue, 0)
        available, in_flight, _ = records.decode_active(self.get(key))
        return key, available.copy(), in_flight

    def row(self, index: int = -1, **changes: int) -> None:
        """Change an available message of 'orders'; the last ones are in no step of the state log."""
        key, available, in_flight = self.bucket()
        for name, value in changes.items():
            available[name][index] = value
        self.put(key, records.encode_active(available, in_flight))

    def flight(self, **changes: Any) -> None:
        key, available, in_flight = self.bucket()
        changed = [in_flight[0]._replace(**changes), *in_flight[1:]]
        self.put(key, records.encode_active(available, changed))

    def failed(self, **changes: Any) -> None:
        key = records.queue_key(records.FAILED, self.orders, 0)
        self.put(key, records.encode_failed([m._replace(**changes) for m in records.decode_failed(self.get(key))]))

    def entry(self, relative: int, segment: int = 1) -> bytes:
        return EntryKey(segment, LOG_KEY, relative).encode()


@pytest.fixture
def damage(template: MemorySpace) -> Damage:
    return Damage(template)


# -- healthy ----------------------------------------------------------------------------------------------------------


def test_a_healthy_store_has_no_findings(damage: Damage) -> None:
    steps: list[tuple[int, int]] = []
    findings, counts = run(damage.writer, lambda done, total: steps.append((done, total)))
    assert findings == []
    with damage.writer.view() as view:
        stored = [key for key, _ in view.scan(b"\x01")]
    assert counts.records == len(stored)
    kinds = {key[:3] for key in stored if key[0] == 5}
    assert kinds == {bytes((5, 1, kind)) for kind in (*range(1, 7), *range(8, 16))}
    assert {key[6] for key in stored if key[0] == 3} == {0x10, 0x20, 0x30, 0x40}
    assert counts.queues == 2
    assert counts.queued == 36 - 6  # of 36 messages to 'orders' six are done
    payloads = [published.decode_payloads(value) for _, value in damage.scan(PAYLOAD.raw)]
    assert counts.body_bytes == sum(len(data) for record in payloads for _, data in record.values())
    assert steps[-1][0] == steps[-1][1] > 0
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_folded_or_not_the_store_is_healthy(template: MemorySpace) -> None:
    space = Damage(template).space
    world = World(1, space)
    assert world.queues.next_record > world.queues.first_record
    assert run(world.writer)[0] == []
    world.commit(ops.WriteCheckpoint())
    assert run(world.writer)[0] == []
    for _ in range(5):
        world.pass_time(6_000)
        assert run(world.writer)[0] == []
    assert not Damage(space).scan(records.DELETED.raw)


def test_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets and segments, and records of several payloads that are written anew."""
    monkeypatch.setattr(holdings, "SEGMENT_MESSAGES", 1_000)
    world = World()
    world.commit(ops.CreateQueue("q"))
    world.commit(ops.Publish([b"%d" % n for n in range(3_500)], to("q")))
    for _ in range(4):
        claimed = claim(world, "q", 500)
        world.commit(ops.Ack(*receipts(claimed, 0, 499)))
        assert run(world.writer)[0] == []
    world.commit(ops.WriteCheckpoint())
    findings, counts = run(world.writer)
    assert (findings, counts.queued) == ([], 3_500 - 4 * 499)


def test_a_file_store_that_is_in_use(tmp_path: Any) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.commit([ops.CreateQueue("q")])
        store.commit([ops.Publish([b"x"] * 10, to("q"))])
        store.commit([ops.Claim("q", 3)])
        reader = open_reader(store.url)
        findings, counts = run(reader)
        assert (findings, counts.queues, counts.queued) == ([], 1, 10)
        reader.close()
    reader = open_reader(store.url)
    assert run(reader)[0] == []
    reader.close()


QUEUES = ("a", "b", "c")
SETTINGS = [
    {"paused": True},
    {"paused": False},
    {"filter": "true"},
    {"filter": 'headers["x"] == "1"'},
    {"labels": {"a": "b"}},
    *({"dead_letter": name} for name in QUEUES),
    {"group_header": "x"},
    {"group_header": ""},
]


class History:
    """Whatever can happen to queues, in groups of transactions, with time that passes and owners that crash."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed)
        self.claimed: list[ops.ClaimedMessages] = []

    def operation(self) -> Any:
        rng, queue = self.rng, self.rng.choice(QUEUES)
        choices = [self.create, self.publish, self.claim, self.end, self.admin, self.read]
        return rng.choices(choices, (8, 36, 20, 12, 12, 12))[0](queue)

    def create(self, queue: str) -> Any:
        rng = self.rng
        settings = ops.Settings(
            max_attempts=rng.choice([1, 2, 5]),
            lease_ms=rng.choice([1, 1000]),
            backoff_ms=rng.choice([0, 100]),
            done_retention_s=rng.choice([0, 1, 3600, NOT_KEPT]),
            failed_policy=rng.choice(["keep", "discard"]),
            paused=rng.random() < 0.2,
            filter=rng.choice([None, None, "true", 'headers["x"] == "1"']),
            group_header=rng.choice([None, None, "x", "priority"]),
        )
        return ops.CreateQueue(queue, settings, rng.random() < 0.5, True)

    def publish(self, queue: str) -> Any:
        rng, count = self.rng, self.rng.choice([1, 1, 2, 7, 300])
        each = [
            {"queue": rng.choice(QUEUES), "x": rng.choice("12"), "priority": rng.choice("0123")} for _ in range(count)
        ]
        keys = [rng.choice([None, f"key {rng.randrange(20)}"]) for _ in range(count)]
        return ops.Publish(
            [rng.randbytes(rng.randrange(9)) for _ in range(count)],
            rng.choice([None, to(queue), each]),
            delay_ms=rng.choice([0, 0, 100]),
            retention_s=rng.choice([0, 1, 1, 100, 1000]),
            dedup_keys=rng.choice([None, None, keys]),
        )

    def claim(self, queue: str) -> Any:
        return ops.Claim(queue, self.rng.choice([1, 3, 50, 400]))

    def end(self, queue: str) -> Any:
        rng = self.rng
        if not self.claimed:
            return self.claim(queue)
        held = receipts(self.claimed.pop(rng.randrange(len(self.claimed))), 0, rng.randint(1, 400))
        failed = ops.Fail(*held, "no", rng.choice([None, 0, 50]), rng.random() < 0.3)
        return rng.choice([ops.Ack(*held), ops.Ack(*held), failed, ops.Extend(*held)])

    def read(self, queue: str) -> Any:
        """Something that a reader does: mostly from where it is."""
        rng, name = self.rng, self.rng.choice("rs")
        state = self.world.queues.queues.get(queue)
        reader = None if state is None else state.readers.get(name)
        if reader is None or rng.random() < 0.1:
            return rng.choice([reader_ops.OpenReader, reader_ops.OpenReader, reader_ops.DeleteReader])(queue, name)
        base = (queue, name, reader.generation)
        plan = reader_ops.Assign(*base, reader.last, rng.choice([1, 3, 50, 400]), rng.choice([0, 0, 9]))
        return rng.choice(
            [plan, plan, plan, reader_ops.AckAssigned(*base, reader.last), reader_ops.ReleaseReader(queue, name)]
        )

    def admin(self, queue: str) -> Any:
        rng = self.rng
        return rng.choice(
            [
                ops.ConfigureQueue(queue, ops.Settings(**rng.choice(SETTINGS))),
                ops.DeleteQueue(queue),
                ops.Purge(queue, rng.random() < 0.7, rng.random() < 0.7),
                ops.Redrive(queue, to=rng.choice([None, None, *QUEUES])),
                ops.SetDedupWindow(rng.choice([0, 1000])),
            ]
        )

    def step(self) -> None:
        rng, world = self.rng, self.world
        world.now_ms += rng.choice([0, 0, 0, 1, 50, 500, 1500, 6000])
        requests = [
            world.request(*(self.operation() for _ in range(rng.choice([1, 1, 1, 2, 3]))))
            if rng.random() < 0.8
            else None
            for _ in range(rng.choice([1, 1, 1, 2, 4]))
        ]
        world.writer.fail_before = rng.random() < 0.03
        world.writer.fail_after = rng.random() < 0.03
        for ticket in world.group(*requests):
            if ticket.error is not None and not isinstance(ticket.error, detent.DetentError):
                raise ticket.error
            found = [result for result in ticket.results or () if isinstance(result, ops.ClaimedMessages)]
            self.claimed += [result for result in found if result.messages]
        if rng.random() < 0.1:
            world.reopen()


@pytest.mark.parametrize("seed", range(20))
def test_a_random_history_verifies(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    history = History(seed)
    monkeypatch.setattr(holdings, "SEGMENT_MESSAGES", history.rng.choice([5, 40, 65_536]))
    monkeypatch.setattr(housekeeping, "CATCH_UP_STEP", history.rng.choice([3, 10_000]))
    monkeypatch.setattr(housekeeping, "COLLECT_RECORDS", history.rng.choice([2, 2_000]))
    monkeypatch.setattr(checkpoint, "RECORDS_MAX", history.rng.choice([3, 2_048]))
    for _ in range(40):
        history.step()
        assert run(history.world.writer)[0] == []


# -- damage -----------------------------------------------------------------------------------------------------------


def twin(d: Damage) -> None:
    d.put(records.config_key("twin"), d.get(records.config_key("orders")))


def deleted_and_there(d: Damage) -> None:
    d.put(records.deleted_key(d.orders), d.get(records.config_key("orders")))


def deleted_under_another_number(d: Damage) -> None:
    key, value = d.scan(records.DELETED.raw)[0]
    d.put(key, None)
    d.put(records.deleted_key(90), value)


def without_settings(d: Damage) -> None:
    d.put(records.config_key("behind"), None)


def state_log_gap(d: Damage) -> None:
    d.put(d.scan(records.STATE_LOG.raw)[1][0], None)


def state_log_garbage(d: Damage) -> None:
    key, value = d.scan(records.STATE_LOG.raw)[1]
    d.put(key, value[:-1])


def add_step(d: Damage, step: bytes) -> None:
    key, _ = d.scan(records.STATE_LOG.raw)[-1]
    d.put(records.state_log_key(int.from_bytes(key[3:], "big") + 1), step)


def state_log_of_a_stranger(d: Damage) -> None:
    add_step(d, encode_ended(ACK, d.orders, 1, 0, "", [9_999]))


def dead_letter_of_a_stranger(d: Damage) -> None:
    add_step(d, encode_moved(d.orders, 1, d.behind, [(9_999, 1, None)]))


def dead_letter_to_nobody(d: Damage) -> None:
    add_step(d, encode_moved(d.orders, 1, 77, [(d.bucket()[2][0].message, 1, None)]))


def two_at_one_place(d: Damage) -> None:
    d.row(place=int(d.bucket()[1]["place"][0]))


def twice_available(d: Damage) -> None:
    d.row(message=int(d.bucket()[1]["message"][-2]), offset=int(d.bucket()[1]["offset"][-2]))


def failed_and_available(d: Damage) -> None:
    failed = records.decode_failed(d.get(records.queue_key(records.FAILED, d.orders, 0)))[0]
    d.row(message=failed.message, offset=failed.offset, count=failed.record_count)


def forget_a_message(d: Damage) -> None:
    key, available, in_flight = d.bucket()
    d.put(key, records.encode_active(available[:-1], in_flight))


def forget_a_bucket(d: Damage) -> None:
    d.put(d.bucket()[0], None)


def flies_at_the_store(d: Damage) -> None:
    key, available, _ = d.bucket(0)
    d.put(key, records.encode_active(available, d.bucket()[2]))


def fails_at_the_store(d: Damage) -> None:
    d.put(records.queue_key(records.FAILED, 0, 0), d.get(records.queue_key(records.FAILED, d.orders, 0)))


def kept_for_no_reason(d: Damage) -> None:
    key, available, in_flight = d.bucket(0)
    available["priority"][0] = 7
    d.put(key, records.encode_active(available, in_flight))


def same_delivery(d: Damage) -> None:
    d.flight(delivery=d.bucket()[2][1].delivery)


def move_failed(d: Damage) -> None:
    key = records.queue_key(records.FAILED, d.orders, 0)
    d.put(records.queue_key(records.FAILED, d.orders, 1), d.get(key))
    d.put(key, records.EMPTY_ARRAY)


def forget_failed(d: Damage) -> None:
    d.put(records.queue_key(records.FAILED, d.orders, 0), records.EMPTY_ARRAY)


def done(d: Damage) -> tuple[bytes, bytes]:
    return next(pair for pair in d.scan(records.DONE.raw + u32(d.orders)) if len(pair[0]) > 7)


def move_done(d: Damage) -> None:
    key, value = done(d)
    _, last_ms, number = records.decode_done_key(key)
    d.put(key, None)
    d.put(records.done_key(d.orders, last_ms - 1, number), value)


def done_out_of_turn(d: Damage) -> None:
    key, value = done(d)
    _, last_ms, _ = records.decode_done_key(key)
    d.put(key, None)
    d.put(records.done_key(d.orders, last_ms, 900), value)


def never_claimed_and_done(d: Damage) -> None:
    key, value = done(d)
    messages = records.decode_done(value).copy()
    messages["attempts"][0] = 0
    d.put(key, records.encode_done(messages))


def done_of_the_future(d: Damage) -> None:
    key, value = done(d)
    messages = records.decode_done(value).copy()
    messages["message"][0] = 1 << 40
    d.put(key, records.encode_done(messages))


def attempts(d: Damage) -> tuple[bytes, bytes]:
    return d.scan(records.ATTEMPTS.raw + u32(d.orders))[0]


def more_attempts(d: Damage) -> None:
    key, value = attempts(d)
    d.put(key, records.encode_attempts([*records.decode_attempts(value), AttemptRecord(1, "me", 2, "why")]))


def origin_of_a_stranger(d: Damage) -> None:
    move = Move(0, "q", 1, 2, 1, 3, "why", (AttemptRecord(1, "me", 2, "why"),))
    d.put(records.queue_key(records.ORIGIN, d.orders, 900), NOWHERE.moved(move).encode())


def attempts_of_untried(d: Damage) -> None:
    d.put(records.queue_key(records.ATTEMPTS, d.orders, 37), attempts(d)[1])


def payload_key_of(d: Damage, message: int) -> bytes:
    return next(key for key, _ in reversed(d.scan(PAYLOAD.raw)) if int.from_bytes(key[3:], "big") <= message)


def drop_one_payload(d: Damage) -> None:
    key = payload_key_of(d, 37)
    d.put(key, published.keep_payloads(d.get(key), [0]))


def bad_uri(d: Damage) -> None:
    d.put(published.payload_key(7), published.encode_payloads(published.URI, [b"s3:\xff"]))


def move_entry(d: Damage) -> None:
    d.put(d.entry(8), d.get(d.entry(7)))


def overlap_entries(d: Damage) -> None:
    d.put(d.entry(5), published.encode_plain_metadata(5, 1, 0, 0, 0, 0, b"\x00"))


def long_entry(d: Damage) -> None:
    key, value = next(pair for pair in d.scan(d.entry(0)[:-1]) if published.decode_metadata(pair[1])[0].message == 17)
    metadata = published.decode_metadata(value)[0]
    times = metadata.created_ms, metadata.received_ms, metadata.visible_ms, metadata.retention_s
    d.put(key, published.encode_plain_metadata(17, 9, *times, b"\x00"))


def short_entry(d: Damage) -> None:
    key, value = d.scan(d.entry(0, 2)[:-1])[0]
    metadata = published.decode_metadata(value)[0]
    times = metadata.created_ms, metadata.received_ms, metadata.visible_ms, metadata.retention_s
    d.put(key, published.encode_plain_metadata(metadata.message, 1, *times, b"\x00"))


def entry_beyond_the_end(d: Damage) -> None:
    d.put(d.entry(70 - 41, 3), published.encode_plain_metadata(70, 1, 0, 0, 0, 0, b"\x00"))


def entry_of_no_segment(d: Damage) -> None:
    d.put(d.entry(0, 9), d.get(d.entry(6)))


def entry_of_another_log(d: Damage) -> None:
    d.put(EntryKey(1, b"other", 6).encode(), d.get(d.entry(6)))


def other_retention(d: Damage) -> None:
    d.put(d.entry(6), published.encode_plain_metadata(6, 1, 0, 0, 0, 9, b"\x00"))


def shift_segment(d: Damage) -> None:
    meta = SegmentMeta.decode(d.get(log.segment_key(2)))
    d.put(log.segment_key(2), SegmentMeta(meta.start_seq + 1, meta.start_time_ms).encode())


def dedup_index(d: Damage) -> bytes:
    return d.scan(records.DEDUP_EXPIRY.raw)[0][0]


def other_dedup_end(d: Damage) -> None:
    expires_ms, message = records.decode_dedup_expiry_key(dedup_index(d))
    d.put(records.dedup_key("for a time"), records.encode_dedup(message, expires_ms - 1))


def dedup_of_the_future(d: Damage) -> None:
    d.put(records.dedup_key("for ever"), records.encode_dedup(5_000, FOREVER))


DAMAGES: list[tuple[Callable[[Damage], None], str]] = [
    # the records of all queues
    (lambda d: d.put(records.WATERMARK.raw, b"short"), "checkpoint watermark, at byte"),
    (lambda d: d.put(records.WATERMARK.raw + b"\x01", bytes(24)), "checkpoint watermark, at byte"),
    (lambda d: d.put(records.WATERMARK.raw, None), "the log ends at 0"),
    (lambda d: d.watermark(log_end=30), "is here, and the log ends at 30"),
    (lambda d: d.watermark(next_delivery=2), "and the next one is 2"),
    (lambda d: d.watermark(next_record=0), "where 0 belongs"),
    (lambda d: d.put(records.NEXT_QUEUE.raw, b"short"), "next queue: 5 bytes"),
    (lambda d: d.put(records.NEXT_QUEUE.raw, u64(1)), "the next queue would get number 1"),
    (lambda d: d.put(records.DEDUP_WINDOW.raw, b""), "dedup window: 0 bytes"),
    (lambda d: d.put(records.DEDUP_WINDOW.raw, u64(1 << 60)), "is out of range"),
    (lambda d: d.put(records.CONFIG.key(b"bad name"), d.get(records.config_key("orders"))), "malformed queue settings"),
    (lambda d: d.put(records.CONFIG.key(b"\xff"), d.get(records.config_key("orders"))), "malformed queue settings"),
    (lambda d: d.put(records.config_key("orders"), b"short"), "malformed queue settings"),
    (lambda d: d.config(bucket_exponent=60), "malformed queue settings"),
    (lambda d: d.config(filter="headers["), "a filter that does not compile"),
    (lambda d: d.config(lease_ms=0), "settings that no queue can have"),
    (lambda d: d.config(failed_policy="burn"), "settings that no queue can have"),
    (lambda d: d.config(labels=(("b", ""), ("a", ""))), "stand in the order of their names"),
    (lambda d: d.config(labels=(("a", "x" * 5_000),)), "settings that no queue can have"),
    (lambda d: d.config(dead_letter="orders"), "settings that no queue can have: 'orders' cannot be its own"),
    (lambda d: d.config(dead_letter="bad name"), "settings that no queue can have"),
    (lambda d: d.config(backoff_ms=400_000), "a default is above its maximum"),
    (lambda d: d.config(generation=9), "the settings of 9"),
    (lambda d: d.config(number=0), 'is also the number of "the store\'s own"'),
    (twin, "is also the number of 'orders'"),
    (without_settings, "which does not exist"),
    (deleted_and_there, "the queue is there, and noted as deleted"),
    (deleted_under_another_number, "a deleted queue's settings are those of number"),
    (lambda d: d.put(records.DELETED.key(b"\x01"), b""), "a malformed note of a deleted queue"),
    (lambda d: d.put(d.scan(records.DELETED.raw)[0][0], None), "which does not exist"),
    (lambda d: d.put(records.cursor_key(d.orders), None), "has no cursor"),
    (lambda d: d.put(records.cursor_key(d.orders), b"short"), "queue cursor, at byte"),
    (lambda d: d.put(records.CURSOR.key(b"\x01"), b"short"), "cursor key, at byte"),
    (lambda d: d.put(records.cursor_key(77), d.get(records.cursor_key(d.orders))), "the cursor of queue number 77"),
    (lambda d: d.cursor(next_message=900), "the queue has read up to 900"),
    (lambda d: d.cursor(next_place=3), "the next one to be given out is 3"),
    (lambda d: d.cursor(done_kept=99), "done messages are kept, and the cursor counts 99"),
    (state_log_gap, "the state log goes on with record"),
    (state_log_garbage, "state log, at byte"),
    (dead_letter_of_a_stranger, "the state log does not fit its checkpoint"),
    (dead_letter_to_nobody, "there are messages of queue number 77, and no such queue"),
    (state_log_of_a_stranger, "the state log does not fit its checkpoint"),
    (lambda d: d.put(records.STATE_LOG.key(b"\x01"), b""), "state log key, at byte"),
    # buckets
    (lambda d: d.put(d.bucket()[0], b"short"), "active messages, at byte"),
    (lambda d: d.put(records.ACTIVE.raw + u32(d.orders) + b"\xff" * 9, b""), "queue record, at byte"),
    (lambda d: d.put(records.ACTIVE.key(b"\x01"), b""), "a key of 4 bytes is malformed"),
    (lambda d: d.put(records.queue_key(records.ACTIVE, 77, 0), bytes(4)), "1 records of queue number 77"),
    (lambda d: d.put(records.queue_key(records.ATTEMPTS, 77, 0), bytes(4)), "1 records of queue number 77"),
    (lambda d: d.put(records.queue_key(records.ORIGIN, d.orders, 37), b"x"), "origin of a dead letter, at byte"),
    (origin_of_a_stranger, "the origin of message 900, which is not in this queue"),
    (lambda d: d.put(records.queue_key(records.FAILED, 77, 0), bytes(4)), "1 records of queue number 77"),
    (lambda d: d.put(records.empty_done_key(77), bytes(4)), "1 records of queue number 77"),
    (two_at_one_place, "two messages have one place"),
    (lambda d: d.row(place=1_000), "place 1000 is outside of a bucket of 1000"),
    (lambda d: d.row(place=900), "place 900 is taken"),
    (lambda d: d.row(message=1 << 40), "message 1099511627776 is here, and the log ends at"),
    (lambda d: d.row(offset=9), "cannot be at 9 in a record of"),
    (lambda d: d.row(count=700), "in a record of 700"),
    (lambda d: d.row(count=17), "of an entry of 17, and this one has 2"),
    (lambda d: d.row(offset=0), "no payload record begins with message 37"),
    (lambda d: d.row(offset=0), "no log entry begins with message 37"),
    (lambda d: d.row(deadline_ms=5), "by queue 'orders' until 5"),
    (lambda d: d.row(attempts=4), "nothing is kept of the 4 past attempts of message 37"),
    (twice_available, "is in this queue twice"),
    (failed_and_available, "is in this queue twice"),
    (forget_a_message, "the payload of message 37 is kept, and nobody has the message"),
    (forget_a_bucket, "could not work out the queues' state"),
    (flies_at_the_store, "of the store's own is in flight"),
    (fails_at_the_store, "of the store's own has failed"),
    (kept_for_no_reason, "kept for no known reason"),
    (lambda d: d.flight(lease_ms=-7), "and its lease ends at -7"),
    (lambda d: d.flight(attempts=0), "in flight, was never claimed"),
    (lambda d: d.flight(delivery=0), "has delivery number 0"),
    (lambda d: d.flight(delivery=9_999), "has delivery number 9999, and the next one is"),
    (lambda d: d.flight(consumer="x" * 300), "a consumer's label that is too long"),
    (same_delivery, "as another one has"),
    # failed, done, attempts
    (lambda d: d.put(records.queue_key(records.FAILED, d.orders, 0), b"\x09"), "failed messages, at byte"),
    (move_failed, "belongs to record 0, not 1"),
    (forget_failed, "attempts of message 3, which is not in this queue"),
    (lambda d: d.failed(attempts=0), "failed, was never claimed"),
    (lambda d: d.failed(delivery=9_999), "has delivery number 9999"),
    (lambda d: d.failed(failed_ms=-1), "an impossible time or reason"),
    (lambda d: d.failed(reason="x" * 9_999), "an impossible time or reason"),
    (lambda d: d.failed(record_count=0), "in a record of 0"),
    (lambda d: d.put(done(d)[0], b"\x09"), "done messages, at byte"),
    (lambda d: d.put(done(d)[0], bytes(2)), "a record without done messages"),
    (lambda d: d.put(done(d)[0], None), "1 done messages are kept"),
    (lambda d: d.put(records.empty_done_key(d.orders), bytes(4)), "is not empty"),
    (lambda d: d.put(records.DONE.raw + u32(d.orders) + b"\x01", b""), "done record, at byte"),
    (move_done, "its key says that the last of its messages was done at"),
    (done_out_of_turn, "record 900 of done messages"),
    (never_claimed_and_done, "a message is done that was never claimed"),
    (done_of_the_future, "a message is done, and the log ends at"),
    (lambda d: d.put(attempts(d)[0], b"\x09"), "attempts, at byte"),
    (lambda d: d.put(attempts(d)[0], bytes(2)), "0 attempts of a message"),
    (lambda d: d.put(attempts(d)[0], None), "nothing is kept of the 1 past attempts"),
    (lambda d: d.put(records.ATTEMPTS.raw + u32(d.orders) + b"\x01", b""), "queue record, at byte"),
    (more_attempts, "2 past attempts are kept of message"),
    (attempts_of_untried, "attempts of message 37, which is not in this queue, or was not tried before"),
    # payloads
    (lambda d: d.put(payload_key_of(d, 37), None), "no payload record begins with message 36, and 2 messages"),
    (lambda d: d.put(payload_key_of(d, 37), b""), "a payload of type none"),
    (lambda d: d.put(payload_key_of(d, 37), b"\x09"), "a payload of type 09"),
    (lambda d: d.put(PAYLOAD.key(b"\x01"), b"\x01"), "payload key, at byte"),
    (drop_one_payload, "the payload of message 37 is missing, which queue 'orders' has"),
    (bad_uri, "the URI of message 7 is not UTF-8"),
    # the metadata log
    (lambda d: d.put(d.entry(6), None), "no log entry begins with message 6"),
    (lambda d: d.put(d.entry(6), b"short"), "message metadata, at byte"),
    (lambda d: d.put(d.entry(6) + b"\x00", b""), "log entry key, at byte"),
    (move_entry, "an entry that begins with message 7 stands where 8 belongs"),
    (overlap_entries, "an entry that begins with message 5, and the one before it ends at 6"),
    (long_entry, "and another segment begins before that"),
    (short_entry, "of an entry of 15, and this one has 1"),
    (entry_beyond_the_end, "an entry that ends at 71, and the log ends at"),
    (entry_of_no_segment, "an entry of segment 9, which does not exist"),
    (entry_of_another_log, "an entry of the unknown log b'other'"),
    (other_retention, "by queue 'orders' until"),
    (shift_segment, "stands where"),
    (lambda d: d.put(log.segment_key(2), None), "an entry of segment 2, which does not exist"),
    (lambda d: d.put(log.segment_key(2), b"short"), "segment, at byte"),
    (lambda d: d.put(log.segment_key(2), SegmentMeta(0, 0).encode()), "begins at 0, the one before it later"),
    (
        lambda d: d.put(log.segment_key(4), SegmentMeta(99, 0).encode()),
        "segment 4 of the log has no entry at its",
    ),
    (lambda d: d.put(log.listing_key(2, LOG_KEY), None), "segment 2 of the log is not listed"),
    (lambda d: d.put(log.listing_key(2, LOG_KEY), b"x"), "a listing has no value"),
    (lambda d: d.put(log.listing_key(2, b"other"), b""), "a listing of the unknown log b'other'"),
    (lambda d: d.put(log.listing_key(9, LOG_KEY), b""), "a listing of segment 9, which does not exist"),
    (lambda d: d.put(SEQUENCE_BLOCK_KEY, None), "numbers from 0 on are free"),
    (lambda d: d.put(SEQUENCE_BLOCK_KEY, b"short"), "sequence block, at byte"),
    (lambda d: d.put(SEQUENCE_BLOCK_KEY, SeqBlock(0, 20).encode()), "numbers from 20 on are free"),
    (lambda d: d.put(SEQUENCE_BLOCK_KEY + b"\x01", b""), "a key of 8 bytes is malformed"),
    (lambda d: d.put(bytes.fromhex("03010000000150"), b""), "a record of the log with an unknown tag"),
    (lambda d: d.put(bytes.fromhex("030100"), b""), "a record of the log with an unknown tag"),
    # dedup keys
    (lambda d: d.put(records.dedup_key("for ever"), b"short"), "a malformed dedup key"),
    (lambda d: d.put(records.DEDUP.raw, records.encode_dedup(1, FOREVER)), "a malformed dedup key"),
    (lambda d: d.put(records.DEDUP.key(b"\xff"), records.encode_dedup(1, FOREVER)), "a malformed dedup key"),
    (lambda d: d.put(records.dedup_key("for a time"), records.encode_dedup(1, -1)), "a malformed dedup key"),
    (lambda d: d.put(dedup_index(d), None), "does not name this dedup key"),
    (lambda d: d.put(dedup_index(d), b"other"), "does not name this dedup key"),
    (lambda d: d.put(dedup_index(d), b"other"), "the dedup key b'other', which is not held"),
    (lambda d: d.put(dedup_index(d), b"x" * 5_000), "which is not held"),
    (lambda d: d.put(records.dedup_key("for a time"), None), "which is not held"),
    (lambda d: d.put(records.DEDUP_EXPIRY.key(b"\x01"), b""), "dedup expiry, at byte"),
    (other_dedup_end, "it is held until"),
    (dedup_of_the_future, "the dedup key of message 5000"),
    # unknown types and versions
    (lambda d: d.put(bytes.fromhex("050107"), b""), "a record of no known version and type (queue)"),
    (lambda d: d.put(bytes.fromhex("050112"), b""), "a record of no known version and type (queue)"),
    (lambda d: d.put(bytes.fromhex("050201"), b""), "a record of no known version and type (queue)"),
    (lambda d: d.put(bytes.fromhex("030201"), b""), "a record of no known version and type (log)"),
]


@pytest.mark.parametrize(("inflict", "expected"), DAMAGES, ids=[text for _, text in DAMAGES])
def test_damage_is_named(damage: Damage, inflict: Callable[[Damage], None], expected: str) -> None:
    inflict(damage)
    findings, _ = run(damage.writer)
    assert any(expected in str(finding) for finding in findings), findings
    for finding in findings:
        assert "record " in finding.where


def test_a_finding_names_queue_and_record(damage: Damage) -> None:
    damage.cursor(done_kept=99)
    findings, _ = run(damage.writer)
    where = f"queue 'orders', record {records.cursor_key(damage.orders).hex()}"
    assert findings == [Finding(where, "3 done messages are kept, and the cursor counts 99")]


def test_an_orphan_of_a_done_message(damage: Damage) -> None:
    """A payload that nobody holds, in a store without a state log that would explain it."""
    world = World(1, damage.space)
    world.commit(ops.WriteCheckpoint())
    after = Damage(damage.space)
    assert run(after.writer)[0] == []
    for message in (0, 50):
        after.put(published.payload_key(message), published.encode_payloads(published.BYTES_INLINE, [b"x"] * 2))
        findings, _ = run(after.writer)
        assert any(f"the payload of message {message} is kept" in finding.problem for finding in findings)


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_raise_nothing(template: MemorySpace, seed: int) -> None:
    """Whatever a record holds, or wherever it is: verification ends, and has found something."""
    rng = random.Random(seed)
    for _ in range(8):
        damage = Damage(template)
        pairs = [pair for start in (b"\x03", b"\x05") for pair in damage.scan(start)]
        key, value = rng.choice(pairs)
        how = rng.randrange(4)
        if how == 0:
            damage.put(key, rng.randbytes(rng.randrange(60)))
        elif how == 1 and value:
            at = rng.randrange(len(value))
            damage.put(key, value[:at] + rng.randbytes(rng.randint(1, 8)) + value[at + 1 :])
        elif how == 2:
            damage.put(rng.choice(pairs)[0], value)
        else:
            damage.put(key[:3] + rng.randbytes(rng.randrange(20)), value)
        run(damage.writer)


# -- groups -----------------------------------------------------------------------------------------------------------


class Groups:
    """A queue with four messages, of which the first two are in flight, in a checkpoint. And a step after it."""

    def __init__(self) -> None:
        self.world = World()
        self.world.commit(ops.CreateQueue("q", ops.Settings(group_header="g")))
        headers = [{"queue": "q", "g": "a"}] * 3 + [{"queue": "q"}]
        self.world.commit(ops.Publish([b"x"] * 4, headers))
        claim(self.world, "q", 2)
        self.world.commit(ops.WriteCheckpoint())
        self.world.commit(ops.Publish([b"x"], headers[:1]))
        self.key = records.queue_key(records.ACTIVE, 1, 0)

    def put(self, key: bytes, value: bytes) -> None:
        batch = Batch()
        batch.put(key, value)
        self.world.writer.commit(batch)

    def bucket(self) -> tuple[Any, list[InFlight], list[bytes | None] | None]:
        with self.world.writer.view() as view:
            return records.decode_active(view.get(self.key) or b"")

    def groups(self, *groups: bytes | None) -> None:
        """The groups of messages 2 and 3, which are available, and of 0 and 1, which are in flight."""
        available, in_flight, _ = self.bucket()
        self.put(self.key, records.encode_active(available, in_flight, groups))

    def settings(self, **changes: Any) -> None:
        with self.world.writer.view() as view:
            config = Config.decode(view.get(records.config_key("q")) or b"")
        self.put(records.config_key("q"), config._replace(**changes).encode())

    def two_claims(self) -> None:
        available, (first, second), groups = self.bucket()
        self.put(self.key, records.encode_active(available, [first, second._replace(consumer="other")], groups))

    def step(self, step: bytes) -> None:
        with self.world.writer.view() as view:
            number = len(list(view.scan(*records.STATE_LOG.range())))
            first = Watermark.decode(view.get(records.WATERMARK.raw) or b"").next_record
        self.put(records.state_log_key(first + number), step)


GROUP_DAMAGES: list[tuple[Callable[[Groups], None], str]] = [
    (lambda d: d.settings(group_header=""), "its messages are in groups, and the queue has none"),
    (lambda d: d.settings(group_header=""), "has groups, and the queue has none"),
    (lambda d: d.settings(group_header="x" * 300), "settings that no queue can have"),
    (lambda d: d.settings(group_header="h"), "message 0 belongs to group None, and is in b'a' of queue 'q'"),
    (lambda d: d.groups(b"c", None, b"a", b"a"), "and is in b'c' of queue 'q'"),
    (lambda d: d.groups(None, None, b"a", b"a"), "and is in None of queue 'q'"),
    (lambda d: d.groups(b"x" * 129, None, b"a", b"a"), "the name of a group has 129 bytes"),
    (Groups.two_claims, "was claimed while another of group b'a' was"),
    (
        lambda d: d.step(encode_claimed(1, 1, 2, 9, "me", [4])),
        "place 4 is claimed before 2, which is of",
    ),
    (lambda d: d.step(encode_moved(1, 1, 1, [(9, 1, b"a")])), "the state log does not fit its checkpoint"),
]


def test_a_healthy_queue_with_groups_has_no_findings() -> None:
    assert run(Groups().world.writer)[0] == []


@pytest.mark.parametrize(("damage", "expected"), GROUP_DAMAGES, ids=[expected for _, expected in GROUP_DAMAGES])
def test_damage_to_groups_is_named(damage: Callable[[Groups], None], expected: str) -> None:
    groups = Groups()
    damage(groups)
    problems = [finding.problem for finding in run(groups.world.writer)[0]]
    assert any(expected in problem for problem in problems), problems
