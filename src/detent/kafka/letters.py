"""Records that a message cannot hold, and the letters in which a journal keeps them. Everything here is pure.

A letter has what of the record a message has room for, where the record is, and why it is a letter. It is made in the
transaction that passes the record, so that each such record has one.
"""

from __future__ import annotations

from typing import Final

from detent.codec.block import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from detent.errors import Invalid, LimitExceeded
from detent.journal.operations import Append, check_append
from detent.kafka.mapping import (
    HEADERS,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOMBSTONE,
    TOPIC,
    Entry,
    Record,
    entry_of,
    exact_headers,
    with_key,
)
from detent.queue.operations import Publish, check_publish

REFUSED: Final = "kafka.refused"
"""Why the record is a letter."""

LEFT: Final = "kafka.left"
"""What of the record is not in the letter, with its size."""

REASON_MAX: Final = 1_000
_HEADERS_KEPT_MAX: Final = HEADER_BYTES_MAX // 2
"""Headers of a record that a letter keeps: the rest of its room is for what the letter says."""

_ROOM: Final = MESSAGE_BYTES_MAX - HEADER_BYTES_MAX


def why_not(record: Record, *, origin: bool, for_queue: bool) -> str | None:
    """Why a record cannot be a message; None if it can."""
    try:
        entry = entry_of(record, origin=origin)
        if for_queue:
            check_publish(Publish([entry.body], headers=[with_key(entry)]))
        else:
            check_append(Append("", [entry.body], [entry.key], [entry.headers]))
    except (Invalid, LimitExceeded) as error:
        return str(error)
    return None


def letter_of(record: Record, why: str) -> Entry:
    """The letter of a record."""
    left: list[str] = []
    headers = {
        TOPIC: record.topic,
        PARTITION: str(record.partition),
        OFFSET: str(record.offset),
        REFUSED: why[:REASON_MAX],
    }
    if record.timestamp_ms is not None:
        headers[TIMESTAMP] = str(record.timestamp_ms)
    if record.value is None:
        headers[TOMBSTONE] = "1"
    exact = exact_headers(record.headers) if record.headers else ""
    if record.fault:
        left.append("headers")
    elif len(exact) > _HEADERS_KEPT_MAX:
        left.append(f"{len(record.headers)} headers")
    elif exact:
        headers[HEADERS] = exact
    key, body = record.key, record.value or b""
    if len(key or b"") > _ROOM // 2:
        left.append(f"a key of {len(key or b'')} bytes")
        key = None
    if len(key or b"") + len(body) > _ROOM:
        left.append(f"a value of {len(body)} bytes")
        body = b""
    if left:
        headers[LEFT] = ", ".join(left)
    return Entry(body, key, headers)
