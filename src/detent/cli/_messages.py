"""Messages as text: what `append` reads and `read` writes, what `publish` reads and `claim` writes.

What the one writes, the other reads back byte for byte.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeVar

import click
import msgspec

from detent.cli._output import duration_text, line_text
from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.journal import Message
    from detent.queue import AttemptInfo, DeadLetter, Delivery, FailedMessage, MessageInfo, Outgoing, QueuedMessage

LINE_BYTES_MAX: Final = 64 << 20
"""The largest message is 16 MiB; in base64 inside JSON it stays far below this."""

BATCH_MESSAGES: Final = 1000
BATCH_BYTES: Final = 8 << 20
"""One transaction of `append` or `publish` holds at most so many messages and about so many bytes of them."""


class BinaryText(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no UTF-8 text."""

    base64: str


class JournalLine(msgspec.Struct, forbid_unknown_fields=True):
    """One message as a JSON object. The fields after `headers` are what `read` adds; `append` ignores them."""

    body: str | BinaryText
    key: str | BinaryText | None = None
    headers: dict[str, str] = {}
    offset: int | None = None
    position: int | None = None
    id: str | None = None
    flags: int | None = None
    published_at: str | None = None


Time = Annotated[datetime, msgspec.Meta(tz=True)]


class PublishedLine(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a queue as a JSON object. From `receipt` on the fields are what `claim` and `failed` add;
    `publish` ignores them."""

    body: str | BinaryText | None = None
    uri: str | None = None
    headers: dict[str, str] = {}
    created: Time | None = None
    visible_at: Time | None = None
    delay: str | float | None = None
    retention: str | float | None = None
    dedup_key: str | None = None
    receipt: str | None = None
    id: int | None = None
    queue: str | None = None
    attempts: int | None = None
    total_attempts: int | None = None
    priority: int | None = None
    received: str | None = None
    lease_until: str | None = None
    failed: str | None = None
    reason: str | None = None
    history: list[Any] | None = None
    dead_letters: list[Any] | None = None


class BadLine(Invalid):
    """A line of the input that is not a message."""


Entry = tuple[bytes, bytes | None, dict[str, str] | None]
Item = TypeVar("Item")
_decode = msgspec.json.Decoder(JournalLine).decode
_decode_published = msgspec.json.Decoder(PublishedLine).decode
_encode = msgspec.json.Encoder().encode


def read_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a stream with their numbers, without their newlines."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise BadLine(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        yield number, line.removesuffix(b"\n")


def batches(items: Iterable[tuple[int, Item]], size_of: Callable[[Item], int]) -> Iterator[list[tuple[int, Item]]]:
    """Numbered items, so many at a time as one transaction should hold."""
    batch: list[tuple[int, Item]] = []
    size = 0
    for number, item in items:
        batch.append((number, item))
        size += size_of(item)
        if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def parse_line(number: int, line: bytes) -> Entry:
    """A line of NDJSON as body, key and headers."""
    try:
        message = _decode(line)
        body, key = _to_bytes(message.body), None if message.key is None else _to_bytes(message.key)
    except (msgspec.DecodeError, UnicodeError, binascii.Error) as error:
        example = '{"body": "text", "key": "k", "headers": {"h": "v"}}, or {"body": {"base64": "AAEC"}}'
        raise BadLine(f"line {number} is not a message: {error}; a message is {example}") from error
    return body, key, message.headers or None


def _to_bytes(value: str | BinaryText) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value.base64, validate=True)


def _to_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def format_message(message: Message) -> bytes:
    """A message as a line of NDJSON."""
    fields: dict[str, Any] = {}
    if message.offset >= 0:
        fields["offset"] = message.offset
    else:
        fields["position"] = message.position
        fields["flags"] = message.flags
    if message.key is not None:
        fields["key"] = _to_text(message.key)
    if message.headers:
        fields["headers"] = message.headers
    fields["body"] = _to_text(message.body)
    fields["id"] = str(message.uuid)
    fields["published_at"] = message.published_at.isoformat(timespec="milliseconds")
    return _encode(fields) + b"\n"


# -- queues ---------------------------------------------------------------------------------------------------------


def parse_published(number: int, line: bytes) -> Outgoing:
    """A line of NDJSON as a message to publish."""
    from detent.queue import Outgoing

    try:
        message = _decode_published(line)
        if (message.body is None) == (message.uri is None):
            raise BadLine("it has a body or a uri, one of the two")
        body = b"" if message.body is None else _to_bytes(message.body)
    except (msgspec.DecodeError, UnicodeError, binascii.Error, BadLine) as error:
        example = '{"body": "text", "headers": {"h": "v"}}, or {"body": {"base64": "AAEC"}}'
        raise BadLine(f"line {number} is not a message: {error}; a message is {example}") from error
    return Outgoing(
        body,
        message.headers,
        uri=message.uri,
        created=message.created,
        visible_at=message.visible_at,
        delay=message.delay,
        retention=message.retention,
        dedup_key=message.dedup_key,
    )


def content_fields(body: bytes, uri: str | None, headers: dict[str, str]) -> dict[str, Any]:
    """Headers and body of a message, for programs."""
    return {"headers": headers, **({"body": _to_text(body)} if uri is None else {"uri": uri})}


def content_lines(body: bytes, uri: str | None, headers: dict[str, str]) -> dict[str, str]:
    """The same for people."""
    lines = {f"header {line_text(name)}": line_text(value) for name, value in sorted(headers.items())}
    if uri is not None:
        return {**lines, "uri": line_text(uri)}
    text = _to_text(body)
    return {**lines, "body": text if isinstance(text, str) else f"{text['base64']} (base64)"}


def delivery_fields(message: Delivery) -> dict[str, Any]:
    """A claimed message, for programs."""
    return {
        "receipt": str(message.receipt),
        "id": message.id,
        "queue": message.queue,
        "attempts": message.attempts,
        "total_attempts": message.total_attempts,
        "priority": message.priority,
        "dead_letters": list(map(dead_letter_fields, message.dead_letters)),
        **content_fields(message.body, message.uri, message.headers),
        "created": iso(message.created),
        "received": iso(message.received),
        "retention": duration_text(message.retention_s * 1000) if message.retention_s else "0s",
        "lease_until": iso(message.lease_until),
    }


def delivery_lines(message: Delivery) -> dict[str, str]:
    """A claimed message, for people."""
    return {
        "receipt": str(message.receipt),
        "id": str(message.id),
        "attempts": str(message.attempts),
        "priority": str(message.priority),
        "published": iso(message.received),
        "lease until": iso(message.lease_until),
        **dead_letter_lines(message.dead_letters),
        **content_lines(message.body, message.uri, message.headers),
    }


def failed_fields(message: FailedMessage) -> dict[str, Any]:
    """A failed message, for programs."""
    return {
        "id": message.message,
        "queue": message.queue,
        "failed": iso(message.failed),
        "reason": message.reason,
        "attempts": message.attempts,
        "priority": message.priority,
        "history": [attempt_fields(attempt) for attempt in message.history],
        "dead_letters": list(map(dead_letter_fields, message.dead_letters)),
        **content_fields(message.body, message.uri, message.headers),
    }


def message_fields(message: MessageInfo) -> dict[str, Any]:
    """A message and where it is, for programs."""
    retention = message.retention
    return {
        "id": message.message,
        "stored": message.stored,
        "created": None if message.created is None else iso(message.created),
        "received": None if message.received is None else iso(message.received),
        "visible": None if message.visible is None else iso(message.visible),
        "retention_ms": None if retention is None else round(retention.total_seconds() * 1000),
        **(content_fields(message.body, message.uri, message.headers) if message.stored else {}),
        "queues": [
            {
                "queue": place.queue,
                "state": place.state,
                "at": iso(place.at),
                "attempts": place.attempts,
                "priority": place.priority,
                "consumer": place.consumer,
                "reason": place.reason,
                "history": [attempt_fields(attempt) for attempt in place.history],
                "dead_letters": list(map(dead_letter_fields, place.dead_letters)),
            }
            for place in message.places
        ],
    }


def attempt_fields(attempt: AttemptInfo) -> dict[str, Any]:
    """One attempt, for programs."""
    return {
        "claimed": iso(attempt.claimed),
        "consumer": attempt.consumer,
        "ended": iso(attempt.ended),
        "outcome": attempt.outcome,
        "reason": attempt.reason,
    }


def attempt_text(attempt: AttemptInfo) -> str:
    """One attempt, for people."""
    who = f" by {line_text(attempt.consumer)}" if attempt.consumer else ""
    why = f": {line_text(attempt.reason)}" if attempt.reason else ""
    return f"claimed {iso(attempt.claimed)}{who}, ended {iso(attempt.ended)}{why}"


def dead_letter_fields(move: DeadLetter) -> dict[str, Any]:
    """A queue that gave a message up, for programs."""
    return {
        "number": move.number,
        "queue": move.queue,
        "moved": iso(move.moved),
        "reason": move.reason,
        "attempts": move.attempts,
        "delivery": move.delivery,
        "history": [attempt_fields(attempt) for attempt in move.history],
    }


def dead_letter_text(move: DeadLetter) -> str:
    """A queue that gave a message up, for people."""
    tries = "1 attempt" if move.attempts == 1 else f"{move.attempts} attempts"
    why = line_text(move.reason) or "no reason"
    return f"given up by {line_text(move.queue)} {iso(move.moved)}, {tries}: {why}"


def queued_fields(message: QueuedMessage) -> dict[str, Any]:
    """A message of a queue, for programs."""
    from detent.queue.info import whole_characters

    times = {name: getattr(message, name) for name in ("created", "received", "expires")}
    content: dict[str, Any] = {} if message.size is None else {"body": _to_text(whole_characters(message))}
    if message.uri is not None:
        content = {"uri": message.uri}
    return {
        "id": message.message,
        "state": message.state,
        "at": iso(message.at),
        "attempts": message.attempts,
        "total_attempts": message.total_attempts,
        "priority": message.priority,
        "consumer": message.consumer,
        "delivery": message.delivery,
        "reason": message.reason,
        **{name: None if time is None else iso(time) for name, time in times.items()},
        "size": message.size,
        "headers": message.headers,
        **content,
        "dead_letter": None if message.dead_letter is None else dead_letter_fields(message.dead_letter),
    }


def queued_row(message: QueuedMessage) -> list[str]:
    """A message of a queue, for people: a row of a table."""
    from detent.queue.info import whole_characters

    data = whole_characters(message) if message.uri is None else message.uri.encode()
    more = "..." if message.size is not None and message.size > len(data) else ""
    headers = " ".join(f"{name}={value}" for name, value in sorted(message.headers.items()))
    moved = "" if message.dead_letter is None else dead_letter_text(message.dead_letter)
    remarks = [part for part in (message.consumer, message.reason) if part]
    return [
        str(message.message),
        message.state,
        iso(message.at),
        str(message.total_attempts),
        str(message.priority),
        "-" if message.size is None else str(message.size),
        line_text(data.decode(errors="replace")) + more,
        line_text(headers),
        "; ".join([*map(line_text, remarks), *([moved] if moved else [])]),
    ]


def print_dead_letters(moves: list[DeadLetter]) -> None:
    """Print which queues gave a message up, each with its attempts, below a line about the message."""
    for move in moves:
        click.echo(f"  {dead_letter_text(move)}")
        for attempt in move.history:
            click.echo(f"    {attempt_text(attempt)}")


def dead_letter_lines(moves: list[DeadLetter]) -> dict[str, str]:
    """The queue that gave a message up last, for people who look at one message."""
    return {"dead letter": dead_letter_text(moves[-1])} if moves else {}


def iso(time: datetime) -> str:
    """A time as text."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_line(fields: dict[str, Any]) -> bytes:
    """A line of NDJSON."""
    return _encode(fields) + b"\n"
