"""The first lines of CSV files: which columns each of them has, and in which order."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from detent.errors import DetentError, Invalid
from detent.ingest.staging import FilesFailed, StagedFile

HEADER_BYTES_MAX: Final = 1 << 20
"""A first line that is longer belongs to no CSV file."""


REMARKS_BYTES_MAX: Final = 16 << 20
"""Remarks and empty lines before the first line. A packed file of a megabyte could have a gigabyte of them."""

_LINES: Final = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252"})
"""Encodings in which the end of a line is one byte, so that a first line can be cut off before it is decoded."""


_UNPACKED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open}


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
        if encoding not in _LINES:
            raise Invalid(
                f"headers are read in one of {', '.join(sorted(_LINES))}, not in {encoding}: set header = false"
            )
        return cls(separator, given.get("quote", '"') or None, encoding, given.get("comment", ""))


def groups(folder: Path, files: Sequence[StagedFile], style: HeaderStyle) -> dict[tuple[str, ...], list[str]]:
    """The files of each header, in their order; those of none are empty. `FilesFailed` names files that have no
    readable one."""
    found: dict[tuple[str, ...], list[str]] = {}
    reasons: dict[bytes, DetentError] = {}
    for staged in files:
        try:
            found.setdefault(_header(folder / staged.name, style), []).append(staged.name)
        except (OSError, EOFError, UnicodeError, zlib.error, csv.Error, Invalid) as error:
            reasons[staged.file.shard.key] = Invalid(f"no header can be read: {error}")
    if reasons:
        raise FilesFailed(reasons)
    return found


def _header(path: Path, style: HeaderStyle) -> tuple[str, ...]:
    text = _first_line(path, style)
    if not text:
        return ()
    names = tuple(next(csv.reader([text], delimiter=style.separator, quotechar=style.quote)))
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise Invalid(f"its header names a column twice, or not at all: {text[:200]}")
    return names


def _first_line(path: Path, style: HeaderStyle) -> str:
    """The first line that is not a remark; empty if there is none."""
    skipped = 0
    with _UNPACKED.get(path.suffix.lower(), Path.open)(path, "rb") as file:
        while line := file.readline(HEADER_BYTES_MAX):
            if len(line) >= HEADER_BYTES_MAX:
                raise Invalid(f"the first line is longer than {HEADER_BYTES_MAX} bytes")
            text: str = line.decode(style.encoding).lstrip("\ufeff").rstrip("\r\n")
            if text and not (style.comment and text.startswith(style.comment)):
                return text
            skipped += len(line)
            if skipped > REMARKS_BYTES_MAX:
                raise Invalid(f"no first line comes in {REMARKS_BYTES_MAX} bytes of remarks and empty lines")
    return ""
