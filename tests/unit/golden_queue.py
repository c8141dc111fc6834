"""The queues' keys and values, byte by byte.

The hex is written by hand after `docs/format.md`, not taken from the encoders: each space ends a field. What the
queue's RFC and the log's reference implementation have in common with Detent stands first in each list.

Numbers that come up again and again: 1,700,000,000,000 is 018BCFE56800, in a value `0068e5cf8b010000`; the end of what
has no end is 2^63 - 1, `ffffffffffffff7f`; the cursor of a queue at the end of the log is 2^64 - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from detent.codec import log, published, queue, statelog
from detent.codec.log import SEQUENCE_BLOCK_KEY, EntryKey, SegmentMeta, SeqBlock
from detent.codec.origin import Move, OriginRecord
from detent.codec.published import BYTES_INLINE, FOREVER, LOG_KEY, URI, Metadata
from detent.codec.queue import AVAILABLE, DONE_MESSAGE, AttemptRecord, Config, Failed, InFlight, QueueCursor, Watermark
from detent.codec.reader import ReaderRecord, decode_reader_key, reader_key
from detent.codec.statelog import (
    ACK,
    EXPIRE,
    EXPIRE_FAILED,
    EXTEND,
    FAIL,
    RETURN,
    AckedAssignment,
    AssignStep,
    ClaimStep,
    Ended,
    Expired,
    MoveStep,
    PublishStep,
    Routed,
    Run,
    Unclaimed,
)

TIME = 1_700_000_000_000
LIVE = (1 << 64) - 1

_LOG_NAME = "6f70656e646174612d71756575652f64656661756c742f6d657373616765732f6d657461646174612f30"
"""opendata-queue/default/messages/metadata/0"""

KEYS: list[tuple[str, bytes, str]] = [
    ("payload of message 1", published.payload_key(1), "05 01 01 0000000000000001"),
    ("payload of a high message", published.payload_key(0x0102030405060708), "05 01 01 0102030405060708"),
    ("sequence block", SEQUENCE_BLOCK_KEY, "03 01 00000000 20"),
    ("segment 1", log.segment_key(1), "03 01 00000000 30 00000001"),
    ("listing in segment 1", log.listing_key(1, LOG_KEY), f"03 01 00000001 40 {_LOG_NAME}"),
    ("entry of message 0", EntryKey(1, LOG_KEY, 0).encode(), f"03 01 00000001 10 {_LOG_NAME} 00 00"),
    (
        "entry of message 5,000 in a segment that begins at 4,096",
        EntryKey.at(2, LOG_KEY, 5000, 4096).encode(),
        f"03 01 00000002 10 {_LOG_NAME} 00 1388",
    ),
    ("active bucket", queue.queue_key(queue.ACTIVE, 3, 258), "05 01 02 00000003 0000000000000102"),
    ("done messages, empty", queue.empty_done_key(3), "05 01 03 00000003"),
    ("done messages", queue.done_key(3, TIME, 5), "05 01 03 00000003 0000018bcfe56800 0000000000000005"),
    ("failed messages", queue.queue_key(queue.FAILED, 3, 0), "05 01 04 00000003 0000000000000000"),
    ("attempts", queue.queue_key(queue.ATTEMPTS, 3, 17), "05 01 05 00000003 0000000000000011"),
    ("origin", queue.queue_key(queue.ORIGIN, 3, 17), "05 01 11 00000003 0000000000000011"),
    ("settings", queue.config_key("orders"), "05 01 06 6f7264657273"),
    ("cursor", queue.cursor_key(3), "05 01 08 00000003"),
    ("state log", queue.state_log_key(65_536), "05 01 09 0000000000010000"),
    ("watermark", queue.WATERMARK.raw, "05 01 0a"),
    ("dedup key", queue.dedup_key("é"), "05 01 0b c3a9"),
    ("dedup key of a queue", queue.dedup_key(queue.own_dedup_key(12, "é")), "05 01 0b 3132 00 c3a9"),
    ("dedup expiry", queue.dedup_expiry_key(TIME, 17), "05 01 0c 0000018bcfe56800 0000000000000011"),
    ("deleted queue", queue.deleted_key(3), "05 01 0d 00000003"),
    ("next queue", queue.NEXT_QUEUE.raw, "05 01 0e"),
    ("dedup window", queue.DEDUP_WINDOW.raw, "05 01 0f"),
    ("reader", reader_key(3, "é"), "05 01 10 00000003 c3a9"),
]

_INLINE = [b"a", b"", b"bcd"]
# type and count; the places; the types; the lengths; the payloads
_THREE = "03 0300 0000 0100 0200 01 01 01 01000000 00000000 03000000 61 626364"
_THIRD = "03 0100 0200 01 03000000 626364"

_TIMES = "0100000000000000 0200000000000000 0300000000000000 04000000"
_HEADERS = "02 0500 7175657565 0100 71 0000 0200 c3a9"
_ONE_ENTRY = f"0100 1100000000000000 {_TIMES} 00"
_TWO_ENTRIES = f"0200 1100000000000000 {_TIMES} 00 1200000000000000 {_TIMES} {_HEADERS}"
_OLD_ENTRY = "0100 0000000000000000 ffffffffffffffff 0000000000000000 0000000000000000 00000000 00"

_AVAILABLE = np.array([(17, 128, TIME, FOREVER, 2, 9, 1, 3)], AVAILABLE)
_FLYING = InFlight(18, 0, 1, 2, 1, 3, 5, 10, 2, 3, "me")
_ACTIVE = (
    # message, priority, visible, deadline, attempts, place, offset, count
    "0100 1100000000000000 80 0068e5cf8b010000 ffffffffffffff7f 0200 0900 0100 0300 "
    # message, priority, claimed, lease, attempts, deadline, delivery, place, offset, count, consumer
    "0100 1200000000000000 00 0100000000000000 0200000000000000 0100 0300000000000000 0500000000000000 "
    "0a00 0200 0300 0200 6d65"
)

# the groups, each a count and the name; the group of each message, counted from one
_GROUPED = f"{_ACTIVE} 0100 02 6731 0000 0100"

_DONE = "0100 1100000000000000 0068e5cf8b010000 0200"
_FAILED = (
    # message, failed, attempts, priority, deadline, delivery, offset, count, reason
    "0100 1100000000000000 0068e5cf8b010000 0500 80 ffffffffffffff7f 0700000000000000 0100 0300 0200 6e6f"
)
_FAILED_MESSAGE = Failed(17, TIME, 5, 128, FOREVER, 7, 1, 3, "no")
_ATTEMPTS = "0100 0100000000000000 0200 6d65 0200000000000000 0200 6e6f"

_CONFIG = Config("true", 5, 3600, 3, TIME, generation=2, description="é")
_SETTINGS = (
    "04000000 74727565 0500 100e0000 0c00 "
    "0600 6e756d626572 08000000 0300000000000000 "  # number
    "0a00 637265617465645f6d73 08000000 0068e5cf8b010000 "  # created_ms
    "0f00 6275636b65745f6578706f6e656e74 08000000 0300000000000000 "  # bucket_exponent
    "0800 6c656173655f6d73 08000000 3075000000000000 "  # lease_ms
    "0c00 6c656173655f6d61785f6d73 08000000 002e930200000000 "  # lease_max_ms
    "0a00 6261636b6f66665f6d73 08000000 e803000000000000 "  # backoff_ms
    "0e00 6261636b6f66665f6d61785f6d73 08000000 e093040000000000 "  # backoff_max_ms
    "0d00 6661696c65645f706f6c696379 04000000 6b656570 "  # failed_policy
    "0f00 7072696f726974795f686561646572 08000000 7072696f72697479 "  # priority_header
    "0600 706175736564 08000000 0000000000000000 "  # paused
    "0a00 67656e65726174696f6e 08000000 0200000000000000 "  # generation
    "0b00 6465736372697074696f6e 02000000 c3a9"  # description
)

_LATER_CONFIG = _CONFIG._replace(
    labels=(("a", "é"), ("b", "")), dead_letter="dead", group_header="g", dead_letter_retention_s=60
)
_LATER_SETTINGS = (
    f"{_SETTINGS.replace(' 0c00 ', ' 1000 ', 1)} "
    "0600 6c6162656c73 0e000000 0200 0100 61 0200 c3a9 0100 62 0000 "  # labels
    "0b00 646561645f6c6574746572 04000000 64656164 "  # dead_letter
    "0c00 67726f75705f686561646572 01000000 67 "  # group_header
    "1700 646561645f6c65747465725f726574656e74696f6e5f73 08000000 3c00000000000000"  # dead_letter_retention_s
)

_CURSOR = (
    "ffffffffffffffff e803000000000000 02000000 0300000000000000 0400000000000000 0500000000000000 "
    "0600000000000000 0700000000000000 0800000000000000 0900000000000000"
)
_LATER_CURSOR = f"{_CURSOR} 0a00000000000000"
_DEAD_LETTER = OriginRecord(3, (Move(2, "q", 4, TIME, 1, 9, "no", (AttemptRecord(1, "me", 2, "no"),)),))
_ORIGIN = (
    "0300000000000000 0100 02000000 04000000 0068e5cf8b010000 0100 0900000000000000 0100 71 0200 6e6f "
    "0100 0100000000000000 0200 6d65 0200000000000000 0200 6e6f"
)
_ALIKE = "0380 1100000000000000 0100000000000000 0200000000000000 0300000000000000 04000000 00"
_WATERMARK = "0100000000000000 0001000000000000 0000010000000000"
_DEDUP = "1100000000000000 0068e5cf8b010000"
# generation, opened, acked; since when something is assigned, its first delivery, how many messages
_READER = "0700000000000000 0068e5cf8b010000 0501000000000000"
_READING = f"{_READER} 0168e5cf8b010000 0900000000000000 10270000"
_READING_NOTHING = f"{_READER} 0000000000000000 0000000000000000 00000000"

VALUES: list[tuple[str, bytes, str]] = [
    ("one payload", published.encode_payloads(BYTES_INLINE, [b"hi"]), "01 6869"),
    ("an empty payload", published.encode_payloads(BYTES_INLINE, [b""]), "01"),
    ("a URI", published.encode_payloads(URI, [b"s3://b/k"]), "02 73333a2f2f622f6b"),
    ("an empty active bucket", queue.EMPTY_ACTIVE, "0000 0000"),
    ("an empty active bucket, encoded", queue.encode_active(np.empty(0, AVAILABLE), []), "0000 0000"),
    ("no done messages", queue.encode_done(np.empty(0, DONE_MESSAGE)), "0000"),
    ("no failed messages", queue.encode_failed([]), "0000"),
    ("what a queue begins with", queue.EMPTY_ARRAY, "0000"),
    ("done messages, as the RFC has them", queue.encode_done(np.array([(17, TIME, 2)], DONE_MESSAGE)), _DONE),
    ("sequence block", SeqBlock(4096, 4096).encode(), "0000000000001000 0000000000001000"),
    ("segment", SegmentMeta(4096, TIME).encode(), "0000000000001000 0000018bcfe56800"),
    ("listing", log.LISTING_VALUE, ""),
    ("payloads of three messages", published.encode_payloads(BYTES_INLINE, _INLINE), _THREE),
    ("the third of them", published.keep_payloads(bytes.fromhex(_THREE), [2]), _THIRD),
    ("metadata of one message", published.encode_metadata(17, 1, 2, 3, 4, [b"\x00"]), _ONE_ENTRY),
    ("metadata of one message, plain", published.encode_plain_metadata(17, 1, 1, 2, 3, 4, b"\x00"), _ONE_ENTRY),
    (
        "metadata of two messages",
        published.encode_metadata(17, 1, 2, 3, 4, [b"\x00", published.encode_headers({"queue": "q", "": "é"})]),
        _TWO_ENTRIES,
    ),
    (
        "metadata of three messages that say the same",
        published.encode_plain_metadata(17, 3, 1, 2, 3, 4, b"\x00"),
        _ALIKE,
    ),
    ("metadata from before 1970", published.encode_plain_metadata(0, 1, -1, 0, 0, 0, b"\x00"), _OLD_ENTRY),
    ("active messages", queue.encode_active(_AVAILABLE, [_FLYING]), _ACTIVE),
    ("active messages in groups", queue.encode_active(_AVAILABLE, [_FLYING], [None, b"g1"]), _GROUPED),
    ("active messages in no group", queue.encode_active(_AVAILABLE, [_FLYING], [None, None]), _ACTIVE),
    ("failed messages", queue.encode_failed([_FAILED_MESSAGE]), _FAILED),
    ("attempts", queue.encode_attempts([AttemptRecord(1, "me", 2, "no")]), _ATTEMPTS),
    ("settings", _CONFIG.encode(), _SETTINGS),
    ("settings with all that can be missing", _LATER_CONFIG.encode(), _LATER_SETTINGS),
    ("cursor", QueueCursor(LIVE, 1000, 2, 3, 4, 5, 6, 7, 8, 9).encode(), _CURSOR),
    ("cursor with dead letters", QueueCursor(LIVE, 1000, 2, 3, 4, 5, 6, 7, 8, 9, 10).encode(), _LATER_CURSOR),
    ("origin", _DEAD_LETTER.encode(), _ORIGIN),
    ("watermark", Watermark(1, 256, 65_536).encode(), _WATERMARK),
    ("dedup key", queue.encode_dedup(17, TIME), _DEDUP),
    ("a number", queue.number_record(258), "0000000000000102"),
    ("a reader with an assignment", ReaderRecord(7, TIME, 261, TIME + 1, 9, 10_000).encode(), _READING),
    ("a reader without one", ReaderRecord(7, TIME, 261).encode(), _READING_NOTHING),
]

_RUN = Run(17, 2, 1, 4, 1, 2)
_RUN_BYTES = "1100000000000000 0200 0100 0400 0100000000000000 0200000000000000"
_ENDED = "03000000 0068e5cf8b010000 0200000000000000"
_MESSAGES = "02000000 1100000000000000 1200000000000000"

STEPS: list[tuple[str, Any, str]] = [
    ("published to nobody", PublishStep(_RUN, ()), f"01 {_RUN_BYTES} 0000"),
    ("published", PublishStep(_RUN, ((3, 128, None), (4, 0, None))), f"01 {_RUN_BYTES} 0200 03000000 80 04000000 00"),
    ("routed", Routed(3, LIVE, ((_RUN, 128, None),)), f"02 03000000 ffffffffffffffff 0100 {_RUN_BYTES} 80"),
    (
        "claimed",
        ClaimStep(3, 1, 2, 7, "me", [0, 258]),
        "03 03000000 0100000000000000 0200000000000000 0700000000000000 0200 6d65 "
        "02000000 0000000000000000 0201000000000000",
    ),
    ("acknowledged", Ended(ACK, 3, TIME, 2, "", [17]), f"04 {_ENDED} 0000 01000000 1100000000000000"),
    ("returned", Ended(RETURN, 3, TIME, 2, "no", [17, 18]), f"05 {_ENDED} 0200 6e6f {_MESSAGES}"),
    ("failed", Ended(FAIL, 3, TIME, 2, "no", [17, 18]), f"06 {_ENDED} 0200 6e6f {_MESSAGES}"),
    ("extended", Ended(EXTEND, 3, TIME, 2, "", [17, 18]), f"07 {_ENDED} 0000 {_MESSAGES}"),
    ("expired", Expired(EXPIRE, 3, [17, 18]), f"08 03000000 {_MESSAGES}"),
    (
        "given up, and sent to queue 4",
        MoveStep(3, TIME, 4, ((17, 128, None), (18, 0, None))),
        "0a 03000000 0068e5cf8b010000 04000000 02000000 1100000000000000 80 1200000000000000 00",
    ),
    (
        "published to a queue with groups",
        PublishStep(_RUN, ((3, 128, b"g1"), (4, 0, None), (5, 1, b""))),
        f"0b {_RUN_BYTES} 0300 03000000 80 02 6731 04000000 00 ff 05000000 01 00",
    ),
    (
        "routed to a queue with groups",
        Routed(3, LIVE, ((_RUN, 128, b"g1"), (_RUN, 1, None))),
        f"0c 03000000 ffffffffffffffff 0200 {_RUN_BYTES} 80 02 6731 {_RUN_BYTES} 01 ff",
    ),
    (
        "sent to a queue with groups",
        MoveStep(3, TIME, 4, ((17, 128, None), (18, 0, b"g1"))),
        "0d 03000000 0068e5cf8b010000 04000000 02000000 1100000000000000 80 ff 1200000000000000 00 02 6731",
    ),
    ("failed and expired", Expired(EXPIRE_FAILED, 3, [17, 18]), f"09 03000000 {_MESSAGES}"),
    (
        "assigned to a reader",
        AssignStep(3, TIME, 7, "é", [17, 18]),
        f"0e 03000000 0068e5cf8b010000 0700000000000000 0200 c3a9 {_MESSAGES}",
    ),
    ("what a reader had is done", AckedAssignment(3, TIME, "é"), "0f 03000000 0068e5cf8b010000 0200 c3a9"),
    ("never handed over", Unclaimed(3, TIME, [17, 18]), f"10 03000000 0068e5cf8b010000 {_MESSAGES}"),
]


def encode(step: Any) -> bytes:
    """A step by its encoder."""
    if isinstance(step, PublishStep):
        return statelog.encode_published(*step)
    if isinstance(step, Routed):
        return statelog.encode_routed(*step)
    if isinstance(step, ClaimStep):
        return statelog.encode_claimed(*step)
    if isinstance(step, MoveStep):
        return statelog.encode_moved(*step)
    if isinstance(step, AssignStep):
        return statelog.encode_assigned(*step)
    if isinstance(step, AckedAssignment):
        return statelog.encode_acked_assignment(*step)
    if isinstance(step, Unclaimed):
        return statelog.encode_unclaimed(*step)
    return statelog.encode_ended(*step) if isinstance(step, Ended) else statelog.encode_expired(*step)


def _active(value: bytes) -> object:
    available, in_flight, groups = queue.decode_active(value)
    return available.tolist(), in_flight, groups


DECODED: list[tuple[str, Callable[[bytes], Any], str, Any]] = [
    ("one payload", published.decode_payloads, "01 6869", {0: (BYTES_INLINE, b"hi")}),
    ("a URI", published.decode_payloads, "02 73333a", {0: (URI, b"s3:")}),
    (
        "three payloads",
        published.decode_payloads,
        _THREE,
        {index: (BYTES_INLINE, data) for index, data in enumerate(_INLINE)},
    ),
    ("the third of them", published.decode_payloads, _THIRD, {2: (BYTES_INLINE, b"bcd")}),
    (
        "metadata",
        published.decode_metadata,
        _TWO_ENTRIES,
        [Metadata(17, 1, 2, 3, 4, {}), Metadata(18, 1, 2, 3, 4, {"queue": "q", "": "é"})],
    ),
    ("metadata from before 1970", published.decode_metadata, _OLD_ENTRY, [Metadata(0, -1, 0, 0, 0, {})]),
    ("active messages", _active, _ACTIVE, (_AVAILABLE.tolist(), [_FLYING], None)),
    ("active messages in groups", _active, _GROUPED, (_AVAILABLE.tolist(), [_FLYING], [None, b"g1"])),
    ("done messages", lambda value: queue.decode_done(value).tolist(), _DONE, [(17, TIME, 2)]),
    ("failed messages", queue.decode_failed, _FAILED, [_FAILED_MESSAGE]),
    ("attempts", queue.decode_attempts, _ATTEMPTS, [AttemptRecord(1, "me", 2, "no")]),
    ("settings", Config.decode, _SETTINGS, _CONFIG),
    ("settings with all that can be missing", Config.decode, _LATER_SETTINGS, _LATER_CONFIG),
    ("cursor", QueueCursor.decode, _CURSOR, QueueCursor(LIVE, 1000, 2, 3, 4, 5, 6, 7, 8, 9)),
    (
        "cursor with dead letters",
        QueueCursor.decode,
        _LATER_CURSOR,
        QueueCursor(LIVE, 1000, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    ),
    ("origin", OriginRecord.decode, _ORIGIN, _DEAD_LETTER),
    ("watermark", Watermark.decode, _WATERMARK, Watermark(1, 256, 65_536)),
    ("dedup key", queue.decode_dedup, _DEDUP, (17, TIME)),
    ("a number", lambda value: queue.decode_number(value, "number"), "0000000000000102", 258),
    ("a reader's key", decode_reader_key, "05 01 10 00000003 c3a9", (3, "é")),
    ("a reader with an assignment", ReaderRecord.decode, _READING, ReaderRecord(7, TIME, 261, TIME + 1, 9, 10_000)),
    ("a reader without one", ReaderRecord.decode, _READING_NOTHING, ReaderRecord(7, TIME, 261)),
]
