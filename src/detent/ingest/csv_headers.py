"""The first lines of CSV files: which columns each of them has, and in which order."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from detent.errors import DetentError, Invalid
from detent.ingest.pinned import is_packed_else
from detent.ingest.staging import FilesFailed, StagedFile

HEADER_BYTES_MAX: Final = 1 << 20
"""A first line that is longer belongs to no CSV file."""


REMARKS_BYTES_MAX: Final = 16 << 20
"""Remarks and empty lines before the first line. A packed file of a megabyte could have a gigabyte of them."""

LINES: Final = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252"})
"""Encodings in which the end of a line is one byte, so that a first line can be cut off before it is decoded."""


_UNPACKED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open}


Grouped = dict[tuple[str, ...], tuple[str, list[str]]]
"""By the columns of a header: that line, and the files that begin with it, in their order. Files without a line have no
columns."""


class HeaderStyle(NamedTuple):
    """How first lines are written, by the options of Spark's reader."""

    separator: str
    quote: str | None
    encoding: str
    comment: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> HeaderStyle:
        """The style that options say; `Invalid` for one in which columns cannot be matched by name."""
        given = {name.lower(): value for name, value in options.items()}
        separator = given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t")
        if len(separator) != 1:
            raise Invalid(
                f"files with a header have a separator of one character, not {separator!r}: set header = false"
            )
        name = given.get("encoding", given.get("charset", "utf-8"))
        try:
            encoding = codecs.lookup(name).name
        except LookupError:
            raise Invalid(f"there is no encoding {name!r}") from None
        if encoding not in LINES:
            raise Invalid(
                f"headers are read in one of {', '.join(sorted(LINES))}, not in {encoding}: set header = false"
            )
        return cls(separator, given.get("quote", '"') or None, encoding, given.get("comment", ""))

    def is_first(self, line: bytes) -> bool:
        """Whether a line is neither empty nor a remark. The first such line is the header."""
        text = line.rstrip(b"\r\n")
        return bool(text) and not (self.comment and text.startswith(self.comment.encode()))


UNREADABLE: Final = (OSError, EOFError, UnicodeError, zlib.error, csv.Error, Invalid)
"""What is raised over a file that has no readable header."""


def groups(folder: Path, files: Sequence[StagedFile], style: HeaderStyle) -> Grouped:
    """The files of each header. `FilesFailed` names files that have no readable one."""
    found: Grouped = {}
    reasons: dict[bytes, DetentError] = {}
    for staged in files:
        try:
            line = _first_line(folder / staged.name, style)
            found.setdefault(columns_of(line, style), (line, []))[1].append(staged.name)
        except UNREADABLE as error:
            reasons[staged.file.shard.key] = Invalid(f"no header can be read: {error}")
    if reasons:
        raise FilesFailed(reasons)
    return found


def _first_line(path: Path, style: HeaderStyle) -> str:
    if is_packed_else(path.name):
        raise Invalid(f"it ends with {path.suffix}, and first lines are read of .gz and .bz2: set header = false")
    with _UNPACKED.get(path.suffix.lower(), Path.open)(path, "rb") as file:
        return first_line(iter(lambda: file.readline(HEADER_BYTES_MAX), b""), style)


def columns_of(text: str, style: HeaderStyle) -> tuple[str, ...]:
    """The columns that a first line names; none if it is empty. `Invalid` if it names one twice, or not at all."""
    if not text:
        return ()
    names = tuple(next(csv.reader([text], delimiter=style.separator, quotechar=style.quote)))
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise Invalid(f"its header names a column twice, or not at all: {text[:200]}")
    return names


def first_line(lines: Iterable[bytes], style: HeaderStyle) -> str:
    """The first line that is not a remark; empty if there is none."""
    skipped = 0
    for line in lines:
        if len(line) >= HEADER_BYTES_MAX:
            raise Invalid(f"the first line is longer than {HEADER_BYTES_MAX} bytes")
        text: str = line.decode(style.encoding).lstrip("\ufeff").rstrip("\r\n")
        if text and not (style.comment and text.startswith(style.comment)):
            return text
        skipped += len(line)
        if skipped > REMARKS_BYTES_MAX:
            raise Invalid(f"no first line comes in {REMARKS_BYTES_MAX} bytes of remarks and empty lines")
    return ""
