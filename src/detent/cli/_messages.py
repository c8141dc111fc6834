"""Messages as text: what `append` reads and `read` writes. What the one writes, the other reads back byte for byte."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.journal import Message

LINE_BYTES_MAX: Final = 64 << 20
"""The largest message is 16 MiB; in base64 inside JSON it stays far below this."""


class Binary(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no UTF-8 text."""

    base64: str


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One message as a JSON object. The fields after `headers` are what `read` adds; `append` ignores them."""

    body: str | Binary
    key: str | Binary | None = None
    headers: dict[str, str] = {}
    offset: int | None = None
    position: int | None = None
    id: str | None = None
    flags: int | None = None
    published_at: str | None = None


class BadLine(Invalid):
    """A line of the input that is no message."""


Entry = tuple[bytes, bytes | None, dict[str, str] | None]
_decode = msgspec.json.Decoder(Line).decode
_encode = msgspec.json.Encoder().encode


def read_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a stream with their numbers, without their newlines."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise BadLine(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
        yield number, line.removesuffix(b"\n")


def parse_line(number: int, line: bytes) -> Entry:
    """A line of NDJSON as body, key and headers."""
    try:
        message = _decode(line)
        body, key = _to_bytes(message.body), None if message.key is None else _to_bytes(message.key)
    except (msgspec.DecodeError, UnicodeError, binascii.Error) as error:
        example = '{"body": "text", "key": "k", "headers": {"h": "v"}}, or {"body": {"base64": "AAEC"}}'
        raise BadLine(f"line {number} is no message: {error}; a message is {example}") from error
    return body, key, message.headers or None


def _to_bytes(value: str | Binary) -> bytes:
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
