"""The first lines of CSV files: which columns each of them has, and in which order."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from detent.errors import DetentError, Invalid
from detent.ingest.staging import FilesFailed, StagedFile

HEADER_BYTES_MAX: Final = 1 << 20
"""A first line that is longer belongs to no CSV file."""


def groups(folder: Path, files: Sequence[StagedFile], options: Mapping[str, str]) -> dict[tuple[str, ...], list[str]]:
    """The files of each header, in their order; those of none are empty. `FilesFailed` names files that have no
    readable one."""
    found: dict[tuple[str, ...], list[str]] = {}
    reasons: dict[bytes, DetentError] = {}
    for staged in files:
        try:
            found.setdefault(_header(folder / staged.name, options), []).append(staged.name)
        except (OSError, EOFError, UnicodeError, csv.Error, Invalid) as error:
            reasons[staged.file.shard.key] = Invalid(f"no header can be read: {error}")
    if reasons:
        raise FilesFailed(reasons)
    return found


def _header(path: Path, options: Mapping[str, str]) -> tuple[str, ...]:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        line = file.readline(HEADER_BYTES_MAX)
    if len(line) >= HEADER_BYTES_MAX:
        raise Invalid(f"the first line is longer than {HEADER_BYTES_MAX} bytes")
    text = line.decode(options.get("encoding", options.get("charset", "utf-8"))).lstrip("\ufeff").rstrip("\r\n")
    if not text:
        return ()
    separator = options.get("sep", options.get("delimiter", ","))
    names = tuple(next(csv.reader([text], delimiter=separator, quotechar=options.get("quote", '"') or None)))
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise Invalid(f"its header names a column twice, or not at all: {text[:200]}")
    return names
