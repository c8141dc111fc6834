"""Every decoder of stored or received bytes, with samples of what its encoder writes.

`tests/unit/test_decoder_fuzz.py` feeds each of them random and mutated bytes. Whoever writes a decoder adds it here:
a name, a callable that takes bytes and decodes them *whole* (nothing left lazy), and at least one valid encoding.
Samples should be small, a few hundred bytes, and together use every optional part of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import xxhash

from detent.backup.manifest import Manifest, ObjectPart, RecordsPart
from detent.backup.records import Packer, unpacked
from detent.codec import block, journal, keys, ledger, log, published, queue, schedule, shard, statelog
from detent.codec.keys import KeyReader
from detent.codec.log import EntryKey, SegmentMeta, SeqBlock
from detent.codec.origin import NOWHERE, Move, OriginRecord
from detent.codec.published import BYTES_INLINE, URI
from detent.codec.queue import AttemptRecord, Config, Failed, InFlight, QueueCursor, Watermark
from detent.codec.reader import ReaderRecord, decode_reader_key, reader_key
from detent.codec.statelog import Run
from detent.codec.values import ByteReader, ByteWriter
from detent.engine import Done, Request
from detent.engine.ownertime import RecordedTime
from detent.engine.sessions import Lineage, decode_answers, decode_since, encode_answers
from detent.errors import AlreadyEntered, Corrupt, Invalid
from detent.journal import AckIntent
from detent.journal import operations as ops
from detent.journal.publisher import decode_intents, encode_intents
from detent.kafka.place import JOURNAL_PLACE, TOPIC_PLACE, JournalPlace, TopicPlace
from detent.kv.commitrecord import LogName, decode_record, encode_record
from detent.kv.environment import EnvironmentState
from detent.kv.loghead import LogHead, decode_log_head
from detent.kv.oldlog import read_readable
from detent.queue.message import Receipt
from detent.remote import wire
from detent.stream.kept_place import SavedPlace
from world import World


class DecoderCase(NamedTuple):
    """One decoder under test."""

    name: str
    decode: Callable[[bytes], object]
    samples: list[bytes]


_SEALED_INTENT = AckIntent("j", b"6bytes", 9, 8, bytes(16))
_TOPIC_PLACE = TopicPlace("t", "id", ((0, 7), (3, 1 << 40)), 5, 2, 1)
_PAIRS = struct.Struct("<Qq")
_SCHEDULES = (
    schedule.ScheduleDefinition(
        1, 2, 3, False, "last", 100, "0 6 * * *", "Europe/Paris", 0, 0, "queue", "q", 5, 6, None, {"a": "é"}, b"x"
    ),
    schedule.ScheduleDefinition(1, 2, 1, True, "all", 7, "", "", 30_000, 9, "journal", "j", 0, 0, b"k", {}, None),
)
_SCHEDULE_STATES = (
    schedule.ScheduleState(0, 0, 0, 0, 0, 0, 0),
    schedule.ScheduleState(9, 8, 7, 6, 5, 4, 30, (20, 30), ((1, 2), (5, 5))),
)


_MANIFEST = Manifest(
    job=3,
    store="1f",
    url="file:s",
    made_ms=1,
    format=3,
    records=2,
    record_bytes=10,
    copied_bytes=5,
    parts=[RecordsPart("ab" * 32, 2, 40, 2)],
    objects=[ObjectPart("fragments/00/00.arrow", "cd" * 32, 3, 9)],
)


def _packed() -> bytes:
    packer = Packer()
    packer.add(b"key", b"value")
    packer.add(b"other", b"")
    packed = packer.end()
    assert packed is not None
    return packed.data


_BACKED_UP = _packed()


def _backed_up(data: bytes) -> object:
    return list(unpacked(memoryview(data)))


def _every_value_field(data: bytes) -> object:
    """A record that has each kind of field that a value can have."""
    reader = ByteReader(data, "sample")
    record = (
        reader.u8(),
        reader.u16(),
        reader.u32(),
        reader.u64(),
        reader.i64(),
        reader.f64(),
        reader.utf8(),
        reader.optional_utf8(),
        reader.var_bytes(),
        bytes(reader.var_view()),
        reader.array(lambda r: (r.utf8(), r.array(ByteReader.u16, element_bytes=2)), element_bytes=4),
    )
    reader.finish()
    return record


def _every_value_sample(text: str, optional: str | None, elements: list[tuple[str, list[int]]]) -> bytes:
    def write(writer: ByteWriter, element: tuple[str, list[int]]) -> None:
        writer.utf8(element[0]).array(element[1], ByteWriter.u16)

    writer = ByteWriter().u8(1).u16(2).u32(3).u64(4).i64(-5).f64(0.5)
    writer.utf8(text).optional_utf8(optional).var_bytes(b"\x00\xff" * 9).var_bytes(b"")
    return writer.array(elements, write).finish()


def _every_key_part(data: bytes) -> object:
    reader = KeyReader(data, "sample key")
    parts = (
        reader.u8(),
        reader.u16(),
        reader.u32(),
        reader.u64(),
        reader.terminated(),
        reader.var_u64(),
        reader.var_u32(),
        reader.sortable_i64(),
        reader.sortable_f64(),
    )
    reader.finish()
    return parts


_EVERY_KEY_SAMPLE = (
    keys.u8(1)
    + keys.u16(2)
    + keys.u32(3)
    + keys.u64(4)
    + keys.terminated(b"a\x00\x01\xff")
    + keys.var_u64(2**60)
    + keys.var_u32(40)
    + keys.sortable_i64(-1)
    + keys.sortable_f64(-0.5)
)


def _block_sample(rows: int) -> bytes:
    content = block.content_of([b"body"] * rows, [b"key"] * rows, [{"h": "v"}] * rows)
    batch = block.stamped(rows, b"\x01" * 6 * rows, bytes(8 * rows), bytes(2 * rows), bytes(8 * rows), content)
    return block.encode_block(batch, 0, 0)


def _append_batch(data: bytes) -> object:
    """What a hostile client can send as a batch: the owner must refuse it or store it, and stay whole."""
    world = World()
    try:
        return world.commit(ops.AppendBatch("j", data))
    finally:
        assert world.append("k", b"still well").offset == 0


def _content_sample() -> bytes:
    arrays = block.content_of([b"a", b"b"], [b"k", None], [{"h": "v"}, None])
    batch = block.pa.RecordBatch.from_arrays(arrays, schema=block.CONTENT_SCHEMA)
    return bytes(batch.serialize().to_pybytes())


def _problem(data: bytes) -> object:
    error = wire.decode_problem(data)
    return str(error)


def _requests(data: bytes) -> object:
    """Each by itself; one that cannot be read has what is wrong with it in its place."""
    return [request.check() if isinstance(request, Request) else str(request) for request in wire.decode_requests(data)]


_REQUEST = Request(
    b"s" * 16,
    7,
    3,
    [
        ops.Append("j", [b"x"], [None], [{"a": "b"}]),
        ops.AppendStamped("j", [b"x"], None, None, b"6bytes", [160], [1]),
        ops.CheckRegisters("j", {"a": None, "b": "c"}),
        ops.AdoptFragments("j", [ops.FragmentRef(b"f" * 16, 1, 2, 3)]),
        ops.CreateJournal("j", 1, 2, 3, 4, True),
    ],
)


def _available_sample(count: int) -> queue.np.ndarray:
    rows = queue.np.zeros(count, queue.AVAILABLE)
    rows["message"], rows["place"], rows["count"] = range(count), range(count), count
    return rows


def _entry(data: bytes) -> object:
    """Looked up or listed, an entry is refused or says the same."""
    try:
        messages = published.decode_metadata(data)
    except Corrupt:
        messages = []
    entry = published.decode_entry(data)
    assert entry.count == len(messages)
    return [entry.at(index) for index in range(entry.count)]


def _done_sample(count: int) -> bytes:
    return queue.encode_done(queue.np.ones(count, queue.DONE_MESSAGE))


_SEVERAL_SAMPLE = published.encode_payloads(URI, [b"s3://bucket/key", b"", b"file:x"])
_METADATA_SAMPLES = [
    published.encode_plain_metadata(7, 1, 1, 2, 3, 4, b"\x00"),
    published.encode_metadata(7, 1, 2, 3, 0, [b"\x00", published.encode_headers({"queue": "q", "": "世界"})]),
    published.encode_plain_metadata(7, 3, 1, 2, 3, 4, b"\x00"),
    published.encode_plain_metadata((1 << 64) - 3, 2, 1, 2, 3, 4, b"\x00"),
]
_STEP_SAMPLES = [
    statelog.encode_published(Run(7, 1, 0, 1, 5, 9), [])
    + statelog.encode_published(Run(8, 2, 1, 4, 5, 9), [(1, 128, None), (2, 0, None)]),
    statelog.encode_routed(3, 2**64 - 1, [(Run(7, 1, 0, 1, 5, 9), 128, None)]),
    statelog.encode_claimed(3, 5, 9, 17, "me", [0, 1, 2]) + statelog.encode_ended(statelog.ACK, 3, 5, 0, "", [7]),
    statelog.encode_ended(statelog.FAIL, 3, 5, 0, "why", [7, 8]) + statelog.encode_expired(statelog.EXPIRE, 3, [7, 8]),
    statelog.encode_moved(3, 5, 4, [(7, 128, None), (8, 0, None)]) + statelog.encode_moved(3, 5, 4, [(7, 128, b"g")]),
    statelog.encode_published(Run(8, 2, 1, 4, 5, 9), [(1, 128, b"g"), (2, 0, None)])
    + statelog.encode_routed(3, 2**64 - 1, [(Run(7, 1, 0, 1, 5, 9), 128, b"")]),
    statelog.encode_assigned(3, 5, 17, "spark", [0, 1, 2]) + statelog.encode_acked_assignment(3, 6, "spark"),
]

_QUEUE_DECODERS = [
    DecoderCase(
        "bodies",
        published.decode_payloads,
        [published.encode_payloads(BYTES_INLINE, [b"x"]), published.encode_payloads(URI, [b"s3://x"]), _SEVERAL_SAMPLE],
    ),
    DecoderCase("kept bodies", lambda data: published.keep_payloads(data, [0, 2]), [_SEVERAL_SAMPLE]),
    DecoderCase("metadata", published.decode_metadata, _METADATA_SAMPLES),
    DecoderCase("metadata entry", _entry, _METADATA_SAMPLES),
    DecoderCase(
        "active messages",
        queue.decode_active,
        [
            queue.EMPTY_ACTIVE,
            queue.encode_active(_available_sample(3), [InFlight(7, 128, 1, 2, 1, 9, 4, 11, 0, 1, "me")]),
            queue.encode_active(
                _available_sample(3), [InFlight(7, 128, 1, 2, 1, 9, 4, 11, 0, 1, "me")], [b"a", None, b"b", b"a"]
            ),
        ],
    ),
    DecoderCase("done messages", queue.decode_done, [queue.EMPTY_ARRAY, _done_sample(3)]),
    DecoderCase(
        "failed messages",
        queue.decode_failed,
        [
            queue.EMPTY_ARRAY,
            queue.encode_failed([Failed(7, 1, 2, 3, 4, 5, 0, 1, "why"), Failed(8, 1, 2, 3, 4, 5, 0, 1, "")]),
        ],
    ),
    DecoderCase("attempts", queue.decode_attempts, [queue.encode_attempts([AttemptRecord(1, "me", 2, "why")] * 3)]),
    DecoderCase(
        "queue settings",
        Config.decode,
        [
            Config("true", 5, 3600, 1, 2).encode(),
            Config(
                "true", 5, 3600, 1, 2, labels=(("a", "x"), ("b", "")), dead_letter="dead", group_header="g"
            ).encode(),
        ],
    ),
    DecoderCase(
        "queue cursor", QueueCursor.decode, [QueueCursor(*range(10)).encode(), QueueCursor(*range(11)).encode()]
    ),
    DecoderCase(
        "origin of a dead letter",
        OriginRecord.decode,
        [NOWHERE.moved(Move(0, "q", 3, 2, 1, 7, "why", (AttemptRecord(1, "me", 2, "why"),))).encode()],
    ),
    DecoderCase("watermark", Watermark.decode, [Watermark(1, 2, 3).encode()]),
    DecoderCase("dedup record", queue.decode_dedup, [queue.encode_dedup(7, 9)]),
    DecoderCase("queues' number", lambda data: queue.decode_number(data, "number"), [queue.number_record(7)]),
    DecoderCase(
        "queue record key",
        lambda data: queue.decode_queue_key(queue.ACTIVE, data),
        [queue.queue_key(queue.ACTIVE, 7, 2**60)],
    ),
    DecoderCase("done key", queue.decode_done_key, [queue.done_key(7, 1_700_000_000_000, 3)]),
    DecoderCase("dedup expiry key", queue.decode_dedup_expiry_key, [queue.dedup_expiry_key(1_700_000_000_000, 3)]),
    DecoderCase("state log", lambda data: list(statelog.decode_steps(data)), _STEP_SAMPLES),
    DecoderCase(
        "reader of a queue",
        ReaderRecord.decode,
        [ReaderRecord(7, 8, 9).encode(), ReaderRecord(7, 8, 9, 1, 2, 3).encode()],
    ),
    DecoderCase("reader's key", decode_reader_key, [reader_key(3, "é"), reader_key(3, "spark")]),
    DecoderCase("receipt", lambda data: Receipt.parse(data.decode(errors="replace")), [b"3-17-42", b"0-0-0"]),
]

DECODERS: list[DecoderCase] = [
    *_QUEUE_DECODERS,
    DecoderCase("block", block.decode_block, [_block_sample(1), _block_sample(3)]),
    DecoderCase("block head", block.decode_head, [_block_sample(2)]),
    DecoderCase(
        "journal listing",
        journal.Listing.decode,
        [journal.Listing(1, 2, 3, 4, 5, 6).encode(), journal.Listing(1, 9, 3, 4, 5, 6, born_ms=2).encode()],
    ),
    DecoderCase(
        "former ends",
        journal.decode_former_ends,
        [journal.encode_former_ends([journal.FormerEnd(1, 2, 3), journal.FormerEnd(4, 5, 6)])],
    ),
    DecoderCase("lineage", Lineage.decode, [Lineage().restored(b"1" * 16, 2, b"3" * 32).encode()]),
    DecoderCase("restored ledger", ledger.decode_restored, [ledger.encode_restored(7)]),
    DecoderCase("records of a backup", _backed_up, [_BACKED_UP]),
    DecoderCase("list of a backup", lambda data: Manifest.decode(data, "a list"), [_MANIFEST.encode()]),
    DecoderCase("journal head", journal.JournalHead.decode, [journal.JournalHead(*range(15)).encode()]),
    DecoderCase("producer", journal.ProducerRecord.decode, [journal.ProducerRecord(1, 2, -1, 4, 5, True).encode()]),
    DecoderCase(
        "open span",
        journal.OpenSpan.decode,
        [journal.OpenSpan(1).encode(), journal.OpenSpan(1, 2).encode(), journal.OpenSpan(1, 2, 3, 4).encode()],
    ),
    DecoderCase("span", journal.decode_segments, [journal.encode_segments([journal.IndexSegment(1, 2, 3, 4)] * 3)]),
    DecoderCase(
        "committed index",
        journal.decode_index,
        [journal.encode_index(9, [journal.IndexRun(1, 2), journal.IndexRun(0, 5, b"f" * 16), journal.IndexRun(7, 1)])],
    ),
    DecoderCase("fragment", journal.Fragment.decode, [journal.Fragment(1, 2, 3, 4, 5, 6).encode()]),
    DecoderCase("number", lambda data: journal.decode_number(data, "number"), [journal.encode_number(5)]),
    DecoderCase(
        "ledger row",
        ledger.Row.decode,
        [
            ledger.Row(1, 2, 41, 7, 0, "query", "run", ("old", "é")).encode(),
            ledger.Row(1, 2, ledger.NO_BATCH, 0, 3, "", "", ()).encode(),
        ],
    ),
    DecoderCase("pin", ledger.Pin.decode, [ledger.Pin(1, {}).encode(), ledger.Pin(1, {"a": 2, "b/c": 2**60}).encode()]),
    DecoderCase(
        "ledger inputs", ledger.BatchInputs.decode, [ledger.BatchInputs(((0, bytes(16)), (3, b"x" * 16))).encode()]
    ),
    DecoderCase(
        "plan",
        ledger.Plan.decode,
        [ledger.Plan((ledger.PlanStep(1, b"a" * 16, b"b" * 16, bytes(16), {"a": 2, "b/c": 2**60}),)).encode()],
    ),
    DecoderCase("stream", ledger.Declared.decode, [ledger.Declared(1, {"journal a": 2}, {"queue é": 0}).encode()]),
    DecoderCase("schedule", schedule.ScheduleDefinition.decode, [one.encode() for one in _SCHEDULES]),
    DecoderCase("state of a schedule", schedule.ScheduleState.decode, [one.encode() for one in _SCHEDULE_STATES]),
    DecoderCase("ledger key", lambda data: ledger.name_of(ledger.ROW, data), [ledger.key_of(ledger.ROW, "a é")]),
    DecoderCase(
        "consumer",
        shard.ConsumerRow.decode,
        [
            shard.ConsumerRow(1, 3, "journal", False, {"a": 2, "b/c": 0}).encode(),
            shard.ConsumerRow(1, 1, "key", True, {"a": 0}).encode(),
            shard.ConsumerRow(1, 1, "journal", False, {}).encode(),
        ],
    ),
    DecoderCase(
        "shard",
        shard.ShardRow.decode,
        [
            shard.ShardRow(1, shard.FENCE_STEP, "", 0, 0, {}, 2).encode(),
            shard.ShardRow(7, 7 * shard.FENCE_STEP + 3, "é", 1000, 2, {"a": shard.Reset(2**60, 2)}, 2).encode(),
        ],
    ),
    DecoderCase(
        "progress",
        shard.ProgressRow.decode,
        [
            shard.ProgressRow({}, {}, 0).encode(),
            shard.ProgressRow({"a": 2**60, "b/c": 0}, {"far:x": 7}, 2).encode(),
            shard.ProgressRow({"a": 1}, {}, 2, {"a": 5, "b/c": 2**32 - 1}).encode(),
        ],
    ),
    DecoderCase("consumer key", shard.decode_consumer_key, [shard.consumer_key("a é")]),
    DecoderCase("shard key", shard.decode_shard_key, [shard.shard_key("a é", 5), shard.shard_key("\0\1", 5)]),
    DecoderCase("state key", shard.decode_state_key, [shard.state_key(7, "a é")]),
    DecoderCase(
        "checkpoint key",
        lambda data: shard.decode_number_key(shard.CHECKPOINT, data),
        [shard.checkpoint_key(7)],
    ),
    DecoderCase(
        "progress key",
        lambda data: shard.decode_number_key(shard.PROGRESS, data),
        [shard.progress_key(7)],
    ),
    DecoderCase("shard counter", shard.decode_counter, [shard.encode_counter(7)]),
    DecoderCase("the store's time", RecordedTime.decode, [RecordedTime(1 << 40, 2, 3).encode()]),
    DecoderCase("answers", decode_answers, [encode_answers([(b"s" * 16, 1, 2, b"answer")] * 2, 99)]),
    DecoderCase(
        "intents",
        decode_intents,
        [encode_intents(2 * [intent]) for intent in (AckIntent("j", b"6bytes", 160), _SEALED_INTENT)],
    ),
    DecoderCase("since when producers are proved", decode_since, [ByteWriter().u64(99).finish()]),
    DecoderCase("saved place", SavedPlace.decode, [SavedPlace(0).encode(), SavedPlace(1 << 60, 7, 9).encode()]),
    DecoderCase(
        "saved place, whose checksum is right",
        lambda data: SavedPlace.decode(data + xxhash.xxh64_digest(data)),
        [SavedPlace(5).encode()[:-8], SavedPlace(1 << 60, 7, 9).encode()[:-8]],
    ),
    DecoderCase("place of a bridge from Kafka", TOPIC_PLACE.decode, [TOPIC_PLACE.encode(_TOPIC_PLACE)]),
    DecoderCase(
        "place of a bridge from Kafka, whose checksum is right",
        lambda data: TOPIC_PLACE.decode(data + xxhash.xxh64_digest(data)),
        [TOPIC_PLACE.encode(_TOPIC_PLACE)[:-8]],
    ),
    DecoderCase(
        "place of a bridge to Kafka",
        JOURNAL_PLACE.decode,
        [JOURNAL_PLACE.encode(JournalPlace("j", 3, 1000, "t", "id", "detent.j", 7, True, 6))],
    ),
    DecoderCase("epoch", EnvironmentState.decode, [EnvironmentState(99, 5, 4, 1000).encode()]),
    DecoderCase(
        "head of a commit log",
        lambda data: decode_log_head(LogName(9, 3), data),
        [LogHead(LogName(9, 3), 5, 1 << 20, bytes(range(16))).encode()],
    ),
    DecoderCase(
        "commit log of version 1",
        lambda data: read_readable(data, LogName(9, 3), 6),
        [b"", bytes(5000)],
    ),
    DecoderCase(
        "commit record",
        lambda data: decode_record(LogName(9, 3), data),
        [
            b"".join(encode_record(LogName(9, 3), 7, {b"key": b"value", b"gone": None})),
            b"".join(encode_record(LogName(9, 3), 1, {b"k": bytes(5000)})),
        ],
    ),
    DecoderCase(
        "wire requests",
        _requests,
        [wire.encode_requests([_REQUEST]), wire.encode_requests([_REQUEST, _REQUEST])],
    ),
    DecoderCase(
        "wire answers",
        lambda data: wire.decode_answers(data, 2),
        [wire.encode_answers([[Done(), ops.Appended(1, 2, 3, 4)], Invalid("no")])],
    ),
    DecoderCase(
        "wire problem",
        _problem,
        [
            wire.encode_problem(Invalid("no"))[1],
            wire.encode_problem(AlreadyEntered("no", "l", 5))[1],
            msgspec.json.encode({}),
        ],
    ),
    DecoderCase("appended batch", _append_batch, [_content_sample()]),
    DecoderCase(
        "terminated bytes",
        keys.decode_terminated,
        [keys.terminated(b""), keys.terminated(b"orders"), keys.terminated(b"\x00\x01\x02\xfe\xff" * 5)],
    ),
    DecoderCase("var_u64", keys.decode_var_u64, [keys.var_u64(1 << bit) for bit in (0, 10, 40, 63)]),
    DecoderCase("var_u32", keys.decode_var_u32, [keys.var_u32(1 << bit) for bit in (0, 10, 31)]),
    DecoderCase("key parts", _every_key_part, [_EVERY_KEY_SAMPLE]),
    DecoderCase(
        "value fields",
        _every_value_field,
        [
            _every_value_sample("", None, []),
            _every_value_sample("世界" * 9, "é", [("a", []), ("b", [1, 2, 3]), ("", [65535] * 20)]),
        ],
    ),
    DecoderCase(
        "fixed elements",
        lambda data: ByteReader(data).fixed_elements(_PAIRS),
        [b"", ByteWriter().fixed_elements(_PAIRS, [(1, -1), (2**64 - 1, 0)]).finish()],
    ),
    DecoderCase("log entry key", EntryKey.decode, [EntryKey(1, b"k\x00", 2**33).encode()]),
    DecoderCase("log segment key", log.decode_segment_key, [log.segment_key(42)]),
    DecoderCase("log listing key", log.decode_listing, [log.listing_key(42, b"test_key")]),
    DecoderCase("log sequence block", SeqBlock.decode, [SeqBlock(4096, 4096).encode()]),
    DecoderCase("log segment", SegmentMeta.decode, [SegmentMeta(4096, 1_700_000_000_000).encode()]),
]
