"""A Kafka record as a message of Detent, and back. Everything here is pure.

Key and value stay as they are. Headers of Kafka are bytes, may be null, and may come twice; headers of Detent are text,
once each. Those that are text are carried over. Where that would lose something, the header `kafka.headers` has all of
them exactly, and the way back reads it.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from detent.errors import Invalid
from detent.journal.message import Message

PREFIX: Final = "kafka."
"""Headers of Detent that begin so say of what record a message was made."""

TOPIC: Final = "kafka.topic"
PARTITION: Final = "kafka.partition"
OFFSET: Final = "kafka.offset"
TIMESTAMP: Final = "kafka.timestamp"
"""In milliseconds since 1970."""

TOMBSTONE: Final = "kafka.tombstone"
"""The record has no value, which deletes its key in a compacted topic: "1". The message's body is empty."""

HEADERS: Final = "kafka.headers"
"""All headers of the record as JSON, [name, value in base64 or null] each, where they are more than text."""

KEY: Final = "kafka.key"
KEY_BASE64: Final = "kafka.key64"
"""The key, for queues: their messages have none. In base64 where it is not text."""

JOURNAL_OUT: Final = "detent.journal"
OFFSET_OUT: Final = "detent.offset"
"""Headers of a Kafka record that say which message it was."""

_RESERVED: Final = "queue"
"""A header that addresses a message to a queue. It is the bridge that says where messages go, and not a record."""

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as Kafka has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None
    fault: str = ""
    """Why its headers cannot be had."""


class Entry(NamedTuple):
    """A message as a journal takes it."""

    body: bytes
    key: bytes | None
    headers: dict[str, str]


class Produced(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


# -- inward -----------------------------------------------------------------------------------------------------------


def entry_of(record: Record, *, origin: bool) -> Entry:
    """A record as a message. With `origin` its headers say from where it is. `Invalid` for one with a fault."""
    if record.fault:
        raise Invalid(record.fault)
    headers = _text_headers(record.headers) if record.headers else {}
    if record.timestamp_ms is not None:
        headers[TIMESTAMP] = str(record.timestamp_ms)
    if record.value is None:
        headers[TOMBSTONE] = "1"
    if origin:
        headers[TOPIC] = record.topic
        headers[PARTITION] = str(record.partition)
        headers[OFFSET] = str(record.offset)
    return Entry(record.value or b"", record.key, headers)


def with_key(entry: Entry) -> dict[str, str]:
    """The headers of a message for a queue, with its key among them."""
    if entry.key is None:
        return entry.headers
    text = _text(entry.key)
    named = (KEY_BASE64, base64.b64encode(entry.key).decode()) if text is None else (KEY, text)
    return {**entry.headers, named[0]: named[1]}


def table_of(entries: Sequence[Entry]) -> Any:
    """Messages as a table to append. Headers are checked a column at a time then, which is fifty times as fast."""
    names: list[str] = []
    values: list[str] = []
    ends = [0]
    for entry in entries:
        names.extend(entry.headers)
        values.extend(entry.headers.values())
        ends.append(len(names))
    columns = {
        "body": pa.array([entry.body for entry in entries], pa.binary()),
        "key": pa.array([entry.key for entry in entries], pa.binary()),
        "headers": pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
        ),
    }
    return pa.table(columns)


def _text_headers(headers: Headers) -> dict[str, str]:
    """Those that are text and come once; if there are others, all of them as they are, too."""
    times = Counter(name for name, _ in headers)
    found: dict[str, str] = {}
    for name, value in headers:
        text = None if value is None else _text(value)
        if text is not None and times[name] == 1 and _is_free(name):
            found[name] = text
    if len(found) < len(headers):
        found[HEADERS] = exact_headers(headers)
    return found


def exact_headers(headers: Headers) -> str:
    """All headers of a record, as the header `kafka.headers` has them."""
    exact = [[name, None if value is None else base64.b64encode(value).decode()] for name, value in headers]
    return msgspec.json.encode(exact).decode()


def _is_free(name: str) -> bool:
    """Whether a header of a record may have this name in Detent."""
    return name != _RESERVED and not name.startswith((PREFIX, "detent."))


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


# -- outward ----------------------------------------------------------------------------------------------------------


def record_of(message: Message, *, origin: bool) -> Produced:
    """A message as a record. With `origin` its headers say which message it was. `Invalid` if a message pretends to be
    made of a record, and is not."""
    headers = _headers_of(message.headers)
    known = {name for name, _ in headers}
    headers += [
        (name, value.encode()) for name, value in message.headers.items() if name not in known and _is_free(name)
    ]
    if origin:
        headers += [(JOURNAL_OUT, message.journal.encode()), (OFFSET_OUT, str(message.offset).encode())]
    is_tombstone = message.headers.get(TOMBSTONE) == "1" and not message.body
    return Produced(message.key, None if is_tombstone else message.body, headers, _timestamp(message))


def _timestamp(message: Message) -> int:
    """When the record was made that the message is from, or when the message was stored."""
    said = message.headers.get(TIMESTAMP, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else message.published_ms


def _headers_of(headers: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """The headers of the record that a message is from, where they were more than text."""
    if HEADERS not in headers:
        return []
    try:
        found: list[tuple[str, str | None]] = _exact.decode(headers[HEADERS])
        return [
            (name, None if value is None else base64.b64decode(value, validate=True))
            for name, value in found
            if name not in {JOURNAL_OUT, OFFSET_OUT}
        ]
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise Invalid(f"the header {HEADERS!r} is not a list of names and values in base64: {error}") from error


_exact: Final[Any] = msgspec.json.Decoder(list[tuple[str, str | None]])
