"""The records of a CSV file whose values may have ends of lines in quotes (`multiLine`), as bytes come in.

A task cuts a file into records, and Spark parses each of them. So where a record ends is decided by the rules of
Spark's parser: a quote opens a value at its beginning only, and closes it in front of a separator or an end of line.
Where that parser would guess (a quote inside of quotes that is not escaped, one that is never closed), the file is
refused: two guesses could cut rows apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from detent.errors import Invalid
from detent.ingest.lines import BOM, LINE_BYTES_MAX, with_last

_NEWLINE: Final = re.compile(rb"\r\n|\n|\r")
_ENDS: Final = {b"\r\n": rb"\r\n|\n", b"\n": rb"\n", b"\r": rb"\r|\n"}
"""What ends a record, by what ends the first line of a file."""

_ESCAPES: Final = {"\\t": "\t", "\\\\": "\\", '\\"': '"', "\\'": "'", "\\u0000": ""}


class RecordStyle:
    """How values are written, by the options of Spark's reader."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self.separator = _plain(given.get("sep", given.get("delimiter", ",")))
        self.quote = _plain(given.get("quote", '"'))
        self.escape = _plain(given.get("escape", "\\"))
        self.comment = _plain(given.get("comment", ""))
        self.end = given.get("linesep", "").encode()
        self.is_trimmed = given.get("ignoreleadingwhitespace", "false").lower() == "true"

    @cached_property
    def opening(self) -> re.Pattern[bytes]:
        """The beginning of a value in quotes."""
        space = rb"[ \t]*" if self.is_trimmed else b""
        return re.compile(space + re.escape(self.quote))

    @cached_property
    def inside(self) -> re.Pattern[bytes]:
        """What matters in quotes."""
        return re.compile(b"|".join({re.escape(self.quote), re.escape(self.escape or self.quote)}))

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in {"opening", "inside"}}


def _plain(option: str) -> bytes:
    return _ESCAPES.get(option, option).encode()


def cut_records(pieces: Iterable[bytes], style: RecordStyle) -> Iterator[list[bytes]]:
    """The records of a file in UTF-8, without what ends them."""
    held, is_begun = b"", False
    ends = re.compile(re.escape(style.end)) if style.end else None
    for piece, is_last in with_last(pieces):
        held += piece
        if not is_begun and (len(held) >= len(BOM) or is_last):
            held, is_begun = held.removeprefix(BOM), True
        ends = ends or _ends_of(held, is_last=is_last)
        if ends is None:
            continue
        found, cut = _records(_Held(held, is_last), style, ends)
        held = held[cut:]
        if found:
            yield found
        if len(held) > LINE_BYTES_MAX:
            raise Invalid(f"a record is longer than {LINE_BYTES_MAX} bytes")


def _ends_of(held: bytes, *, is_last: bool) -> re.Pattern[bytes] | None:
    """What ends a record: as in Spark's parser, what ends the first line. None if that is not known so far."""
    found = _NEWLINE.search(held)
    if found is None or (found.end() == len(held) and found[0] == b"\r"):
        if not is_last:
            return None
        return re.compile(_ENDS[b"\n"] if found is None else _ENDS[found[0]])
    return re.compile(_ENDS[found[0]])


class _Held(NamedTuple):
    """Bytes of a file, and whether they reach to its end."""

    data: bytes
    is_last: bool


def _records(held: _Held, style: RecordStyle, ends: re.Pattern[bytes]) -> tuple[list[bytes], int]:
    """The records that are there as a whole, and where the first one begins that is not."""
    found: list[bytes] = []
    start, data = 0, held.data
    while start < len(data):
        end = _record_end(held, start, style, ends)
        if end is None:
            break
        found.append(data[start : end[0]])
        start = end[1]
    return found, start


def _record_end(held: _Held, start: int, style: RecordStyle, ends: re.Pattern[bytes]) -> tuple[int, int] | None:
    """Where a record ends, and the next one begins; None if that is not known so far."""
    data, at = held.data, start
    while True:
        line = ends.search(data, at)
        until = len(data) if line is None else line.start()
        is_remark = bool(style.comment) and data.startswith(style.comment, start)
        opening = -1 if is_remark else _opened(data, at, until, style)
        if opening >= 0:
            closed = _closed(held, opening, style, ends)
            if closed is None:
                return None
            at = closed
        elif line is not None:
            return line.span()
        else:
            return (len(data), len(data)) if held.is_last else None


def _opened(data: bytes, at: int, until: int, style: RecordStyle) -> int:
    """Where the content of the next value in quotes begins, in a line from the beginning of a value on; -1 if there is
    none."""
    if not style.quote or data.find(style.quote, at, until) < 0:
        return -1
    while at <= until:
        found = style.opening.match(data, at)
        if found is not None and found.end() <= until:
            return found.end()
        following = data.find(style.separator, at, until)
        if following < 0:
            return -1
        at = following + len(style.separator)
    return -1


def _closed(held: _Held, at: int, style: RecordStyle, ends: re.Pattern[bytes]) -> int | None:
    """Where the next value begins behind one in quotes, or where its line ends; None if that is not known so far."""
    data, quote, escape = held.data, style.quote, style.escape
    while True:
        found = style.inside.search(data, at)
        if found is None or (found.end() == len(data) and not held.is_last):
            if held.is_last:
                raise Invalid("a value in quotes has no end, so the records of the file cannot be told apart")
            return None
        at = found.end()
        if found[0] == escape and data.startswith(quote, at):
            at += len(quote)
        elif found[0] == escape and escape != quote:
            at += len(escape) if data.startswith(escape, at) else 0
        else:
            break
    behind = re.compile(rb"[ \t]*").match(data, at)
    at = at if behind is None else behind.end()
    if data.startswith(style.separator, at):
        return at + len(style.separator)
    if ends.match(data, at) or (held.is_last and at == len(data)):
        return at
    if len(data) - at < len(style.separator) + 1 and not held.is_last:
        return None
    raise Invalid(
        "a value in quotes has a quote in it that is not escaped, so the records of the file cannot be told apart: say "
        "what escapes it ([options] escape), or leave multiLine out"
    )
