"""The lines of a part of a file, as bytes come in: what a task cuts out of an object for Spark to parse.

A large file is read in parts, by several tasks. A line belongs to the part in which it begins; more exactly, a part
reaches from the first end of a line behind its start to the first end of a line behind its end. Both are found by the
same rule, so each line is in one part. Lines end with ``\\n``, ``\\r\\n`` or ``\\r``, as for Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from detent.errors import Invalid

LINE_BYTES_MAX: Final = 256 << 20
"""A longer line is held in memory several times on its way into Spark."""

_BOM: Final = b"\xef\xbb\xbf"


def cut_lines(
    pieces: Iterable[bytes], start: int = 0, end: int | None = None, separator: bytes = b""
) -> Iterator[list[bytes]]:
    """The lines of a part that reaches from `start` to `end` (None: to the end of the file). `pieces` are the bytes of
    the file from `start` on. With a `separator` of its own a file is read as a whole."""
    held, base, is_begun = b"", start, start == 0
    for piece, is_last in _with_last(pieces):
        held += piece
        if not is_begun:
            cut = _line_end(held, 0, is_last)
            if cut < 0 and not is_last:
                continue
            held, base, is_begun = held[cut if cut >= 0 else len(held) :], base + max(cut, 0), True
            if end is not None and base > end:
                return
        if end is not None and base + len(held) > end:
            cut = _line_end(held, max(0, end - base), is_last)
            if cut >= 0 or is_last:
                yield from _lines(held[: cut if cut >= 0 else len(held)], base, separator)
                return
        cut = len(held) if is_last else _last_end(held, separator)
        yield from _lines(held[:cut], base, separator)
        held, base = held[cut:], base + cut
        if len(held) > LINE_BYTES_MAX:
            raise Invalid(f"a line is longer than {LINE_BYTES_MAX} bytes")


def _with_last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each piece, and whether it is the last one."""
    remaining = iter(pieces)
    held = next(remaining, b"")
    for piece in remaining:
        yield held, False
        held = piece
    yield held, True


def _line_end(held: bytes, at: int, is_last: bool) -> int:
    """Where the first line ends that has its end behind a place; -1 if that is not known so far."""
    feed = held.find(b"\n", at)
    back = held.find(b"\r", at, feed if feed >= 0 else len(held))
    if back < 0:
        return feed + 1 if feed >= 0 else -1
    if back + 1 < len(held):
        return back + 2 if held[back + 1 : back + 2] == b"\n" else back + 1
    return back + 1 if is_last else -1


def _last_end(held: bytes, separator: bytes) -> int:
    """Where the last whole line ends; 0 if there is none."""
    if separator:
        found = held.rfind(separator)
        return 0 if found < 0 else found + len(separator)
    return max(held.rfind(b"\n"), held.rfind(b"\r", 0, len(held) - 1)) + 1


def _lines(block: bytes, base: int, separator: bytes) -> Iterator[list[bytes]]:
    if base == 0 and block.startswith(_BOM):
        block = block[len(_BOM) :]
    if not block:
        return
    if not separator and b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    mark = separator or b"\n"
    found = block.split(mark)
    if block.endswith(mark):
        found.pop()
    yield found
