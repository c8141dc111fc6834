"""Numbers, times and bytes as the console's pages say them.

All text comes out of here unescaped: the templates escape every value.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from detent.server.models import Base64Text

SHOWN_BYTES: Final = 64 << 10
"""Bytes of a body on its page; more can be downloaded."""

JSON_BYTES_MAX: Final = 256 << 10
"""A larger body is not taken apart to be shown as JSON."""

HEX_BYTES: Final = 4 << 10
"""Bytes that the hexadecimal view shows: four lines for each 64 of them."""

_HEX_ROW: Final = 16

LINE_CHARS: Final = 120
"""Characters of a body in a list."""

NOTHING: Final = "\u2013"
"""What stands where there is no value."""

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def number_text(value: float | int | None) -> str:
    """A count, with its thousands apart; a rate, with as many digits as it is worth."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"


def messages_text(count: int) -> str:
    """So many messages."""
    return "1 message" if count == 1 else f"{number_text(count)} messages"


def size_text(count: float | int | None) -> str:
    """Bytes."""
    if count is None:
        return NOTHING
    left = float(count)
    for unit in _SIZES:
        if left < 1024 or unit == _SIZES[-1]:
            return f"{left:,.0f} {unit}" if unit == "B" or left >= 100 else f"{left:,.1f} {unit}"
        left /= 1024
    raise AssertionError


def span_text(seconds: float | None) -> str:
    """A length of time, by its two largest units."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return f"-{span_text(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size or (parts and len(parts) < 2):
            parts.append(f"{left // size} {unit}")
            left %= size
        if len(parts) == 2:
            break
    return " ".join(parts)


def time_of(value: str | datetime | int | float | None) -> datetime | None:
    """A time, from what an answer of the API has, or from milliseconds since 1970."""
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, int | float):
        return datetime.fromtimestamp(min(value, 253_402_300_799_000) / 1000, UTC)
    return datetime.fromisoformat(value)


@cache
def zone_of(name: str) -> tzinfo:
    """A time zone; UTC if this machine knows none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def time_text(value: str | datetime | int | float | None, zone: tzinfo = UTC) -> str:
    """A time to the millisecond, with the offset of its zone."""
    when = time_of(value)
    if when is None:
        return NOTHING
    if when.year >= 9999:
        return "never"
    local = when.astimezone(zone)
    offset = local.strftime("%z")
    shown = "UTC" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}"
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {shown}"


def ago_text(value: str | datetime | int | float | None, now: datetime) -> str:
    """How long ago a time was, or how soon it will be."""
    when = time_of(value)
    if when is None:
        return NOTHING
    if when.year >= 9999:
        return "never"
    seconds = (now - when).total_seconds()
    return f"{span_text(seconds)} ago" if seconds >= 0 else f"in {span_text(-seconds)}"


def body_bytes(value: Any) -> bytes | None:
    """The bytes of a body in an answer of the API; None if it has none."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, Base64Text):
        return base64.b64decode(value.base64)
    return None


def line_text(data: bytes | None) -> str:
    """The beginning of a body in one line."""
    if data is None:
        return ""
    text = data[: LINE_CHARS * 4].decode("utf-8", "replace")
    shown = "".join(character if character.isprintable() else "·" for character in text[:LINE_CHARS])
    return shown + ("…" if len(data) > len(text[:LINE_CHARS].encode("utf-8", "replace")) else "")


def visible_text(text: str) -> str:
    """Text whose control characters and changes of direction can be seen, and act on nothing around it."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else f"\\u{ord(character):04x}"
        for character in text
    )


def is_json(data: bytes) -> bool:
    """Whether bytes can be shown as JSON."""
    if len(data) > JSON_BYTES_MAX:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return data.strip()[:1] in {b"{", b"["}


def is_text(data: bytes) -> bool:
    """Whether bytes are text that a person can read."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\r\n\t" for character in text[:1000])


def json_text(data: bytes) -> str:
    """JSON with indents; its numbers and the order of its names stay."""
    return visible_text(msgspec.json.format(data, indent=2).decode())


def plain_text(data: bytes) -> str:
    """Bytes as text; what is not UTF-8 shows as a replacement."""
    return visible_text(data.decode("utf-8", "replace"))


def hex_lines(data: bytes) -> str:
    """The first bytes, sixteen a line, with their offsets and what is printable of them."""
    rows: list[str] = []
    for start in range(0, min(len(data), HEX_BYTES), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {_pairs(row):<47}  {shown}")
    return "\n".join(rows)


def _pairs(row: Iterable[int]) -> str:
    return " ".join(f"{byte:02x}" for byte in row)
