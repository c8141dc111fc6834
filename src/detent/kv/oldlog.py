"""Commit logs of version 1, as earlier releases wrote them: told apart, and read by an upgrade.

Their records began at the front of the file, with heads that had no checksum of their own; their tips had no name.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from detent.errors import Corrupt
from detent.kv.commitrecord import PAGE, CommitRecord, LogName, checksum_of, decode_changes, pages
from detent.kv.overlay import Overlay

_MAGIC: Final = 0x474C5444
_HEAD: Final = struct.Struct("<IIQQQ")
_TIP_MAGIC: Final = b"dtnt-tip"


def refuse_old_log(directory: Path, name: LogName, first: bytes) -> None:
    """`Corrupt`, with what to do, if a log that begins with these bytes is one of version 1."""
    if is_old_log(directory, name, first):
        raise Corrupt(
            f"the commit log {name.path(directory, 'log')} has version 1, and this release writes version 2: open and "
            "close the store once with the release that wrote it, or run `detent store upgrade`"
        )


def is_old_log(directory: Path, name: LogName, first: bytes) -> bool:
    """Whether a log that begins with these bytes is one of version 1; before its first record it is all zeros."""
    if first[:4] == _MAGIC.to_bytes(4, "little"):
        return True
    if any(first):
        return False
    try:
        with name.path(directory, "tip").open("rb") as tip:
            return tip.read(8) == _TIP_MAGIC
    except FileNotFoundError:
        return False


def read_old_log(directory: Path, name: LogName, folded: int) -> Overlay:
    """All that a log of version 1 holds beyond `folded`; `FileNotFoundError` if there is none. Its writer is dead.

    `Corrupt` if it lacks a commit that its tip names, or has one behind a record that cannot be read.
    """
    data = name.path(directory, "log").read_bytes()
    overlay, end = read_readable(data, name, folded)
    published = _published(directory, name)
    for later in range(end, len(data), PAGE):
        found = _decode(name, data[later:])
        if found is not None and found.number > overlay.last:
            published = max(published, found.number)
    if published > overlay.last:
        raise Corrupt(
            f"the commit log {name.path(directory, 'log')} is damaged: commit {overlay.last + 1} cannot be read, and "
            f"{published} were durable"
        )
    return overlay


def read_readable(data: bytes, name: LogName, folded: int) -> tuple[Overlay, int]:
    """What a log of version 1 holds beyond `folded` up to the first record that cannot be read, and where that is."""
    overlay, at = Overlay(folded), 0
    while (record := _decode(name, data[at:])) is not None and record.number == overlay.last + 1:
        overlay.add(record.number, record.changes)
        at += pages(record.size)
    return overlay, at


def _decode(name: LogName, data: bytes) -> CommitRecord | None:
    if len(data) < _HEAD.size:
        return None
    magic, length, number, epoch, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or epoch != name.epoch or length > len(data) - _HEAD.size:
        return None
    body = data[_HEAD.size : _HEAD.size + length]
    if checksum_of(name.seed(number), [body]) != checksum:
        return None
    return CommitRecord(number, dict(decode_changes(body)), _HEAD.size + length)


def _published(directory: Path, name: LogName) -> int:
    try:
        data = name.path(directory, "tip").read_bytes()
    except FileNotFoundError:
        return 0
    return struct.unpack_from("<Q", data, 8)[0] if len(data) >= 16 and data[:8] == _TIP_MAGIC else 0
