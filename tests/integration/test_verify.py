"""`store verify`: a healthy store has no findings, and each kind of damage is named."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from detent.codec import journal as records
from detent.codec.journal import Fragment, IndexRun, IndexSegment, JournalHead, Listing, ProducerRecord, encode_number
from detent.codec.keys import u32, u64
from detent.engine import Engine, Request
from detent.engine.sessions import ANSWERS, EXPIRED, PROVED_SINCE, encode_answers
from detent.engine.verify import Counts, Finding
from detent.journal import JournalMachine, JournalReader, fragments
from detent.journal import operations as ops
from detent.kv import Batch, Reader, Writer, open_reader, open_writer, prefix_end
from detent.verify import verify

P1, P2 = bytes.fromhex("010000000001"), bytes.fromhex("010000000002")
OUTSIDE, CONTINUE, ACK = 0, 1, 2


def run(reader: Reader, progress: Callable[[int, int], None] | None = None) -> tuple[list[Finding], Counts]:
    findings: list[Finding] = []
    check = verify(reader, progress=progress)
    while True:
        try:
            findings.append(next(check))
        except StopIteration as end:
            return findings, end.value


def stamped(journal: str, *rows: tuple[bytes, int, int]) -> ops.AppendStamped:
    bodies = [b"%d" % clock for _, clock, _ in rows]
    producers = b"".join(producer for producer, _, _ in rows)
    return ops.AppendStamped(journal, bodies, None, None, producers, [row[1] for row in rows], [row[2] for row in rows])


def fill(store: detent.Store) -> None:
    """Plain, transactional, duplicated, rolled back, trimmed and fragment data."""
    plain = store.journal("plain")
    for number in range(5):
        plain.append_many([(b"a%d" % number, b"key", {"h": "v"}), b"b", b"c"])
    plain.set_registers({"author": "me"})

    store.commit([stamped("txn", (P1, 100, CONTINUE), (P2, 50, OUTSIDE), (P1, 110, CONTINUE))])
    store.commit([stamped("txn", (P1, 110, CONTINUE), (P2, 50, OUTSIDE), (P1, 120, ACK), (P1, 120, ACK))])
    store.commit([stamped("txn", (P1, 130, CONTINUE), (P1, 140, CONTINUE), (P1, 135, ACK), (P1, 145, CONTINUE))])
    store.commit([stamped("txn", (P1, 120, ACK), (P2, 60, CONTINUE), (P1, 150, OUTSIDE))])
    store.commit([stamped("txn", (P2, 70, CONTINUE), (P2, 71, CONTINUE), (P1, 160, OUTSIDE))])

    # One run for each transaction, so that the index needs several records.
    many = [row for n in range(300) for row in ((P1, 20 * n + 10, CONTINUE), (P1, 20 * n + 15, ACK))]
    store.commit([stamped("many", *many)])

    for number in range(30):
        store.commit([stamped("trimmed", (P1, 10 * number + 10, CONTINUE), (P2, number + 1, OUTSIDE))])
        if number % 3 == 2:
            store.commit([stamped("trimmed", (P1, 10 * number + 11, ACK), (P2, number + 1, OUTSIDE))])
    store.commit([stamped("trimmed", (P1, 500, CONTINUE))])
    store.journal("trimmed").trim(25)

    target = store.journal("frag")
    target.append(b"before")
    target.adopt([target.write_fragment(pa.table({"body": [b"f%d" % n for n in range(100)]})) for _ in range(2)])
    target.append(b"after")
    store.journal("empty").create()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "store"
    with detent.open(f"file:{path}") as store:
        fill(store)
    return path


class Damage:
    """A copy of the store, and the means to damage it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Writer = open_writer(f"file:{path}")

    def id(self, journal: str) -> int:
        stored = self.get(records.LISTING.key(journal.encode()))
        return Listing.decode(stored).journal

    def get(self, key: bytes) -> bytes:
        with self.writer.view() as view:
            value = view.get(key)
        assert value is not None
        return value

    def scan(self, start: bytes, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        with self.writer.view() as view:
            return list(view.scan(start, prefix_end(start) if end is None else end))

    def all(self, journal: str, kind: bytes) -> list[tuple[bytes, bytes]]:
        return self.scan(records.part(self.id(journal), kind))

    def put(self, key: bytes, value: bytes | None) -> None:
        batch = Batch()
        batch.extend({key: value})
        self.writer.commit(batch)

    def head(self, journal: str, **changes: Any) -> None:
        key = records.part(self.id(journal), records.HEAD)
        self.put(key, JournalHead.decode(self.get(key))._replace(**changes).encode())

    def producer(self, journal: str, producer: bytes, **changes: Any) -> None:
        key = records.part(self.id(journal), records.PRODUCER, producer)
        self.put(key, ProducerRecord.decode(self.get(key))._replace(**changes).encode())

    def rolled_back(self, journal: str, value: bytes) -> None:
        self.put(records.part(self.id(journal), records.ROLLED_BACK, P1), value)

    def runs(self, journal: str, change: Callable[[list[IndexRun]], list[IndexRun]], number: int = 0) -> None:
        key, value = self.all(journal, records.INDEX)[number]
        record = records.decode_index(value)
        self.put(key, records.encode_index(record.watermark, change(list(record.runs))))

    def object_path(self) -> Path:
        key, _ = self.scan(records.FRAGMENT.raw)[0]
        return self.path / "objects" / fragments.object_name(key[3:])


@pytest.fixture
def damage(template: Path, tmp_path: Path) -> Iterator[Damage]:
    shutil.copytree(template, tmp_path / "store", ignore=shutil.ignore_patterns("*.sock"))
    damaged = Damage(tmp_path / "store")
    yield damaged
    damaged.writer.close()


def test_a_healthy_store_has_no_findings(template: Path) -> None:
    reader = open_reader(f"file:{template}")
    steps: list[tuple[int, int]] = []
    findings, counts = run(reader, lambda done, total: steps.append((done, total)))
    assert findings == []
    with reader.view() as view:
        assert counts.records == sum(1 for _ in view.scan(b"\x01"))
    assert (counts.journals, counts.fragments) == (6, 2)
    assert counts.messages == 15 + 6 + 300 + 35 + 202
    assert steps[-1][0] == steps[-1][1] > 0
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    reader.close()


def test_an_empty_store_has_no_findings() -> None:
    assert run(open_reader("memory:")) == ([], Counts())


def test_every_cut_of_a_journal_verifies(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        fill(store)
        reader = open_reader(store.url)
        for name in ("many", "frag", "txn", "plain"):
            journal = store.journal(name)
            end = journal.next_offset()
            for before in sorted({1, 2, 3, end // 2, end - 1, end}):
                journal.trim(before)
                assert run(reader)[0] == [], (name, before)
        reader.close()


def test_deleted_and_created_again(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        fill(store)
        store.journal("frag").delete()
        store.journal("plain").delete()
        store.journal("plain").append(b"new")
        reader = open_reader(store.url)
        assert run(reader)[0] == []
        reader.close()


def test_an_aborted_span_is_no_finding(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.journal("j").create(transaction_deadline="1ms")
        store.commit([stamped("j", (P1, 10, CONTINUE), (P2, 5, OUTSIDE), (P1, 20, CONTINUE))])
        owner = store._connection.current
        assert owner is not None
        while not store.journal("j").info().aborted_spans:
            owner.engine.tick()  # type: ignore[union-attr]
        store.commit([stamped("j", (P2, 6, OUTSIDE))])
        reader = open_reader(store.url)
        assert run(reader)[0] == []
        reader.close()


def test_a_writer_at_work_causes_no_findings(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        fill(store)
        done = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            try:
                publisher = store.publisher()
                for number in range(10_000):
                    if done.is_set():
                        return
                    publisher.publish_uncommitted("busy", [b"x"] * 5)
                    publisher.acknowledge(publisher.build_ack_intents())
                    if number % 5 == 4:
                        store.journal("busy").trim(max(0, store.journal("busy").next_offset() - 20))
                    if number % 7 == 6:
                        store.journal(f"j{number}").append(b"x")
                        store.journal(f"j{number}").delete()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        reader = open_reader(store.url)
        try:
            for _ in range(15):
                assert run(reader)[0] == []
        finally:
            done.set()
            thread.join()
            reader.close()
        assert not failures


@pytest.mark.parametrize("seed", range(40))
def test_a_random_history_verifies(seed: int) -> None:
    """Whatever producers do, in order or not, through deadlines, pruning, trimming and restarts."""
    rng = random.Random(seed)
    writer = open_writer("memory:")
    now = 10_000_000

    def start() -> Engine:
        return Engine(writer, [JournalMachine(writer, random=rng.randbytes)], now_ms=lambda: now, random=rng.randbytes)

    engine = start()
    session, sequence = engine.new_session(), 0
    producers = {rng.randbytes(6): rng.randint(1, 50) for _ in range(3)}
    rising = rng.random() < 0.5

    def row() -> tuple[bytes, int, int]:
        producer = rng.choice(list(producers))
        producers[producer] += rng.randint(0, 3)
        clock = producers[producer] if rising else rng.randint(0, 60)
        return producer, clock, rng.choice([OUTSIDE, CONTINUE, CONTINUE, CONTINUE, ACK])

    def operation() -> Any:
        chance = rng.random()
        if chance < 0.8:
            return stamped("j", *(row() for _ in range(rng.choice([1, 2, 5, 130]))))
        if chance < 0.9:
            return ops.Append("j", [b"own"] * rng.randint(1, 3))
        return ops.TrimJournal("j", rng.randint(0, JournalReader(writer).extent("j")[1]))

    deadline, horizon = rng.choice([0, 50]), rng.choice([0, 1])
    settings = ops.CreateJournal("j", span_deadline_ms=deadline, producer_horizon_ms=horizon)
    engine.commit(Request(session, sequence, 0, [settings]))
    for _ in range(30):
        now += rng.randint(0, 30)
        sequence += 1
        with contextlib.suppress(detent.Fenced, detent.Conflict):
            engine.commit(Request(session, sequence, sequence, [operation()]))
        if rng.random() < 0.1:
            engine.tick()
        if rng.random() < 0.05:
            engine = start()
        assert run(writer)[0] == []


# -- damage -----------------------------------------------------------------------------------------------------------


def flip_block_bit(d: Damage) -> None:
    key, value = d.all("plain", records.BLOCK)[1]
    d.put(key, value[:-20] + bytes([value[-20] ^ 1]) + value[-19:])


def delete_block(d: Damage) -> None:
    d.put(d.all("plain", records.BLOCK)[2][0], None)


def delete_last_block(d: Damage) -> None:
    d.put(d.all("plain", records.BLOCK)[-1][0], None)


def move_block(d: Damage) -> None:
    key, value = d.all("plain", records.BLOCK)[-1]
    d.put(key, None)
    d.put(key[:-8] + u64(records.number_at_end(key) + 1), value)


def wrong_block_rows(d: Damage) -> None:
    key, value = d.all("plain", records.BLOCK)[0]
    d.put(key, value[:4] + (4).to_bytes(4, "little") + value[8:])


def delete_index(d: Damage) -> None:
    d.put(d.all("many", records.INDEX)[0][0], None)


def delete_index_tail(d: Damage) -> None:
    d.put(d.all("many", records.INDEX)[-1][0], None)


def shift_run(d: Damage) -> None:
    d.runs("many", lambda runs: [runs[0]._replace(base=runs[0].base + 1), *runs[1:]])


def swap_runs(d: Damage) -> None:
    d.runs("txn", lambda runs: [runs[1], runs[0], *runs[2:]])


def repeat_run(d: Damage) -> None:
    d.runs("many", lambda runs: [runs[0], runs[0], *runs[2:]])


def drop_run(d: Damage) -> None:
    d.runs("many", lambda runs: runs[1:])


def drop_last_run_and_count(d: Damage) -> None:
    d.runs("many", lambda runs: runs[:-1], number=-1)
    d.head("many", next_offset=299)


def index_pending_row(d: Damage) -> None:
    d.runs("txn", lambda runs: [*runs, IndexRun(14, 1)], number=-1)
    d.head("txn", next_offset=JournalHead.decode(d.get(records.part(d.id("txn"), records.HEAD))).next_offset + 1)


def index_beyond_end(d: Damage) -> None:
    d.runs("plain", lambda runs: [*runs[:-1], runs[-1]._replace(base=runs[-1].base + 1)])


def drop_run_of_trimmed(d: Damage) -> None:
    d.runs("trimmed", lambda runs: runs[:-1], number=-1)
    head = JournalHead.decode(d.get(records.part(d.id("trimmed"), records.HEAD)))
    last = records.decode_index(d.all("trimmed", records.INDEX)[-1][1])
    offset = records.number_at_end(d.all("trimmed", records.INDEX)[-1][0])
    assert offset + last.messages < head.next_offset
    d.head("trimmed", next_offset=offset + last.messages)


def ack_in_trimmed(d: Damage) -> None:
    """Name the acknowledgement instead of the row that it commits."""
    d.runs("trimmed", lambda runs: [*runs[:-1], runs[-1]._replace(base=runs[-1].base + 2)], number=-1)


def watermark_too_high(d: Damage) -> None:
    key, value = d.all("many", records.INDEX)[0]
    d.put(key, records.encode_index(590, records.decode_index(value).runs))


def watermark_over_span(d: Damage) -> None:
    key, value = d.all("txn", records.INDEX)[-1]
    head = JournalHead.decode(d.get(records.part(d.id("txn"), records.HEAD)))
    d.put(key, records.encode_index(head.next_position, records.decode_index(value).runs))


def garbage_index(d: Damage) -> None:
    key, value = d.all("many", records.INDEX)[0]
    d.put(key, value[:-3])


def forget_producer(d: Damage) -> None:
    d.put(records.part(d.id("txn"), records.PRODUCER, P1), None)


def invent_producer(d: Damage) -> None:
    value = ProducerRecord(5, 5, -1, 0, 0, False).encode()
    d.put(records.part(d.id("txn"), records.PRODUCER, b"\x01nobdy"[:6]), value)


def close_span(d: Damage) -> None:
    d.producer("txn", P2, begin=-1, max_clock=50)


def delete_span(d: Damage) -> None:
    for key, _ in d.all("txn", records.SPAN):
        d.put(key, None)


def shorten_span(d: Damage) -> None:
    key, value = d.all("txn", records.SPAN)[0]
    segments = records.decode_segments(value)
    d.put(key, records.encode_segments([segments[0]._replace(clock=segments[0].clock + 1), *segments[1:]]))


def stray_span(d: Damage) -> None:
    key = records.part(d.id("plain"), records.SPAN, P1 + u64(2))
    d.put(key, records.encode_segments([IndexSegment(2, 1, 10, 1)]))


def stray_open_span(d: Damage) -> None:
    d.put(records.OPEN_SPAN.key(u32(d.id("plain")), P1), records.encode_number(7))


def open_span_of_nobody(d: Damage) -> None:
    d.put(records.OPEN_SPAN.key(u32(99), P1), records.encode_number(7))


def unlist_open_span(d: Damage) -> None:
    d.put(records.OPEN_SPAN.key(u32(d.id("txn")), P2), None)


def postpone_deadline(d: Damage) -> None:
    d.put(records.OPEN_SPAN.key(u32(d.id("txn")), P2), records.encode_number(1 << 50))


def delete_object(d: Damage) -> None:
    d.object_path().unlink()


def flip_object_bit(d: Damage) -> None:
    data = bytearray(d.object_path().read_bytes())
    data[len(data) // 2] ^= 1
    d.object_path().write_bytes(data)


def cut_object(d: Damage) -> None:
    d.object_path().write_bytes(d.object_path().read_bytes()[:-8])


def forget_fragment(d: Damage) -> None:
    d.put(d.scan(records.FRAGMENT.raw)[0][0], None)


def move_fragment(d: Damage) -> None:
    key, value = d.scan(records.FRAGMENT.raw)[0]
    d.put(key, Fragment.decode(value)._replace(first_offset=7).encode())


def fragment_rows(d: Damage) -> None:
    key, value = d.scan(records.FRAGMENT.raw)[0]
    d.put(key, Fragment.decode(value)._replace(rows=99).encode())


def stray_fragment(d: Damage) -> None:
    d.put(records.FRAGMENT.key(bytes(16)), Fragment(d.id("plain"), 1, 10, 0, 3, 0).encode())


def invalid_register(d: Damage) -> None:
    d.put(records.part(d.id("plain"), records.REGISTER, b"name"), b"\xff\xfe")


def long_register(d: Damage) -> None:
    d.put(records.part(d.id("plain"), records.REGISTER, b"name"), b"x" * 257)


def too_many_registers(d: Damage) -> None:
    for number in range(70):
        d.put(records.part(d.id("plain"), records.REGISTER, b"r%d" % number), b"x")


def low_next_id(d: Damage) -> None:
    d.put(records.NEXT_ID.raw, records.encode_number(2))


def shared_number(d: Damage) -> None:
    d.put(records.LISTING.key(b"twin"), d.get(records.LISTING.key(b"plain")))


def unlisted(d: Damage) -> None:
    d.put(records.LISTING.key(b"plain"), None)


def deleted_and_listed(d: Damage) -> None:
    d.put(records.DELETED.key(u32(d.id("plain"))), b"plain")


NO_TEXT = b"\x91\x91\xa1\xff"
"""An answer with a text that is not UTF-8."""


def twice_answered(d: Damage) -> None:
    value = encode_answers([(b"s" * 16, 0, 7, b"\x91\x91\xa4Done")], 1)
    d.put(ANSWERS.key(u64(900)), value)
    d.put(ANSWERS.key(u64(901)), value)


def reaped_garbage(d: Damage) -> None:
    d.put(records.DELETED.key(u32(1000)), b"gone")
    d.put(records.NEXT_ID.raw, records.encode_number(1001))
    d.put(records.index_key(1000, 0), b"garbage")


DAMAGES: list[tuple[Callable[[Damage], None], str]] = [
    (flip_block_bit, "does not match its checksum"),
    (delete_block, "a block begins at position 9, where 6 comes next"),
    (delete_last_block, "the blocks end at position 12, the journal at 15"),
    (move_block, "a block begins at position 13, where 12 comes next"),
    (wrong_block_rows, "holds 3 rows where its head says 4"),
    (delete_index, "the committed index begins at 256, the journal at 0"),
    (delete_index_tail, "the committed index ends at offset 256, the journal at 300"),
    (shift_run, "offset 0 names position 1, where position 0 (producer 010000000001, clock 10) is committed"),
    (swap_runs, "names position"),
    (repeat_run, "are in the committed index twice"),
    (drop_run, "the committed index is at offset 255 and goes on at 256"),
    (drop_last_run_and_count, "the index ends, where position 598 (producer 010000000001, clock 5990) is committed"),
    (index_pending_row, "names position 14"),
    (index_beyond_end, "a run names positions [1, 16), and stored are [0, 15)"),
    (drop_run_of_trimmed, "the index ends, where position"),
    (ack_in_trimmed, "names position"),
    (watermark_too_high, "below the watermark 590 of an earlier record"),
    (watermark_over_span, "below what the index allows"),
    (garbage_index, "committed index, at byte"),
    (forget_producer, "producer 010000000001 has no record, and its clock 160 is above the floor"),
    (invent_producer, "no stored row is from this producer"),
    (close_span, "its open transaction begins at -1, the rows say"),
    (lambda d: d.producer("txn", P1, last_ack=90, max_clock=90), "it is acknowledged to clock 90"),
    (lambda d: d.producer("txn", P1, max_clock=170), "are not in order"),
    (lambda d: d.producer("txn", P1, aborted=True), "the rows show none"),
    (delete_span, "its open transaction has no record of pending rows"),
    (shorten_span, "differ from the 3 that the blocks hold"),
    (stray_span, "there are pending rows of producer 010000000001, which has no open transaction"),
    (stray_open_span, "an open transaction is listed, and producer 010000000001 has none"),
    (open_span_of_nobody, "an open transaction of journal number 99, which does not exist"),
    (unlist_open_span, "is not listed, so that it has no deadline"),
    (postpone_deadline, "the list says 1125899906842624 ms"),
    (delete_object, "there is no object"),
    (flip_object_bit, "does not match its checksum"),
    (cut_object, "bytes instead of"),
    (forget_fragment, "which has no record"),
    (move_fragment, "whose record says: all 100 rows at offset 7"),
    (fragment_rows, "it holds 100 rows where its record says 99"),
    (stray_fragment, "does not name it"),
    (lambda d: d.head("plain", blocks=4), "the head counts 4 blocks"),
    (lambda d: d.head("plain", block_bytes=4), "blocks of 4 bytes, stored are 5 of"),
    (lambda d: d.head("frag", fragments=3), "the head counts 3 fragments"),
    (lambda d: d.head("plain", next_offset=16), "the committed index ends at offset 15, the journal at 16"),
    (lambda d: d.head("plain", next_position=16), "the blocks end at position 15, the journal at 16"),
    (lambda d: d.head("plain", reclaim_to=99), "rows up to 99 are reclaimable"),
    (lambda d: d.head("plain", reclaim_to=2), "a run names position 0, and rows below 2 are given up"),
    (lambda d: d.head("plain", newest_clock=1), "are not in order"),
    (lambda d: d.head("plain", clock_floor=1 << 63), "the clock floor"),
    (lambda d: d.put(records.part(d.id("plain"), records.HEAD), None), "the journal has no head record"),
    (lambda d: d.put(records.part(d.id("plain"), records.HEAD), b"\x07"), "journal head, at byte"),
    (lambda d: d.put(records.part(d.id("plain"), records.PRODUCER, P1), b"short"), "producer state, at byte"),
    (lambda d: d.put(records.part(d.id("plain"), records.SPAN, P1 + u64(2)), b""), "a span record without messages"),
    (lambda d: d.put(records.part(d.id("plain"), records.BLOCK, b"\x01"), b""), "is malformed for kind"),
    (lambda d: d.put(records.part(d.id("plain"), b"\x09"), b""), "a record of unknown kind 09"),
    (lambda d: d.put(bytes.fromhex("06010a00"), b""), "a record of no known version and type (journal)"),
    (lambda d: d.put(bytes.fromhex("060201"), b""), "a record of no known version and type (journal)"),
    (lambda d: d.put(bytes.fromhex("0401"), b""), "unknown subsystem 04"),
    (lambda d: d.put(bytes.fromhex("ff"), b""), "unknown subsystem ff"),
    (lambda d: d.put(records.PART.raw + b"\x01", b""), "a key of 4 bytes is malformed"),
    (lambda d: d.put(records.LISTING.key(b"bad name"), b""), "a malformed journal listing"),
    (lambda d: d.put(records.LISTING.key(b"name"), b"short"), "a malformed journal listing"),
    (lambda d: d.put(records.HORIZON.raw, b"short"), "adoption horizon, at byte"),
    (lambda d: d.put(records.DELETED.key(b"\x01"), b"x"), "a key of 4 bytes is malformed"),
    (lambda d: d.put(records.OPEN_SPAN.key(b"\x01"), bytes(8)), "a key of 4 bytes is malformed"),
    (lambda d: d.put(records.FRAGMENT.key(b"\x01"), b""), "fragment key, at byte"),
    (lambda d: d.put(ANSWERS.key(u64(900)), b"short"), "answers, at byte"),
    (lambda d: d.put(ANSWERS.key(u64(900), b"x"), b""), "answers key, at byte"),
    (lambda d: d.put(ANSWERS.key(u64(900)), encode_answers([(b"s" * 16, 0, 7, b"?")], 1)), "does not decode"),
    (lambda d: d.put(ANSWERS.key(u64(900)), encode_answers([(b"s" * 16, 0, 7, NO_TEXT)], 1)), "does not decode"),
    (lambda d: d.put(ANSWERS.key(u64(900)), encode_answers([(b"s" * 16, 8, 7, b"\x91\x90")], 1)), "its own floor 8"),
    (lambda d: d.put(EXPIRED.raw, b"short"), "expired sessions, at byte"),
    (lambda d: d.put(PROVED_SINCE.raw, b"short"), "producers are proved, at byte"),
    (lambda d: d.rolled_back("plain", b"short"), "rolled back producer, at byte"),
    (lambda d: d.rolled_back("plain", encode_number(9)), "forgotten with clock 9, which is above the floor"),
    (lambda d: d.rolled_back("txn", encode_number(0)), "remembered as if it were not"),
    (invalid_register, "a malformed register"),
    (long_register, "a malformed register"),
    (too_many_registers, "71 registers, where 64 are allowed"),
    (low_next_id, "the next journal would get number 2"),
    (shared_number, "is also the number of 'plain'"),
    (unlisted, "which does not exist"),
    (deleted_and_listed, "the journal is listed, and noted as deleted"),
    (twice_answered, "is answered twice"),
    (reaped_garbage, "a deleted journal cannot be cleared away"),
]


@pytest.mark.parametrize(("inflict", "expected"), DAMAGES, ids=[text for _, text in DAMAGES])
def test_damage_is_named(damage: Damage, inflict: Callable[[Damage], None], expected: str) -> None:
    inflict(damage)
    findings, _ = run(damage.writer)
    assert any(expected in str(finding) for finding in findings), findings
    for finding in findings:
        assert "record " in finding.where


def test_a_finding_names_journal_and_record(damage: Damage) -> None:
    flip_block_bit(damage)
    key = damage.all("plain", records.BLOCK)[1][0]
    findings, _ = run(damage.writer)
    assert findings == [Finding(f"journal 'plain', record {key.hex()}", "a block does not match its checksum")]


def test_a_wrong_order_is_named_at_the_index_record(damage: Damage) -> None:
    drop_last_run_and_count(damage)
    key = damage.all("many", records.INDEX)[-1][0]
    findings, _ = run(damage.writer)
    assert [finding.where for finding in findings] == [f"journal 'many', record {key.hex()}"]
