"""What is noted beside a file that deliveries are appended to: how much of it is good, and which deliveries are in it.

The notes are lines, each with a checksum before it. The first says how things stood when the notes were written anew;
every other one is a delivery, and is there before its bytes are: how many bytes will be where. So the last one may be
of a delivery that did not come to be, which its bytes tell; all before it are done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec
import xxhash

from detent.errors import Corrupt, Fenced
from detent.processor.step import Step

FORMAT: Final = 1

BYTES_MAX: Final = 256 << 20
"""More than the notes of any processor: they are written anew long before."""

_DIGITS: Final = 16


class DeliveryProgress(msgspec.Struct, forbid_unknown_fields=True):
    """Of one processor: its series, the numbers from the floor on that are done, and the series that are over."""

    series: str
    floor: int
    done: set[int]
    over: list[str]


class NotesHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How things stood when the notes were written anew."""

    format: int
    size: int
    processors: dict[str, DeliveryProgress]


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery: `size` bytes from `at` on. `writer` tells it from the same delivery by another process."""

    processor: str
    series: str
    number: int
    floor: int
    at: int
    size: int
    checksum: str
    writer: str

    def encode(self) -> bytes:
        return _line(self)

    def is_of(self, data: bytes) -> bool:
        """Whether these are its bytes."""
        return len(data) == self.size and xxhash.xxh64_hexdigest(data) == self.checksum


class Notes:
    """The notes of a file. `size` is how much of it is good, `pending` a delivery behind that, of which it is not known
    whether it was made."""

    def __init__(self, size: int, processors: dict[str, DeliveryProgress] | None = None) -> None:
        self.size = size
        self.pending: Note | None = None
        self._processors = {} if processors is None else processors

    def has(self, step: Step) -> bool:
        """Whether a delivery is in the file; `Fenced` if it is not for this process any more to make it."""
        known = self._processors.get(step.owner)
        if known is None:
            return False
        if step.series < known.series or step.series in known.over:
            raise Fenced(
                f"the deliveries of {step.name} have other keys now, {known.series} instead of {step.series}: it was "
                "reset, and this process is of the time before"
            )
        if step.series != known.series:
            return False
        if step.number < known.floor:
            raise Fenced(
                f"number {step.number} of {step.name} is done for good, as all below {known.floor}: another process "
                "has gone on from there. If the graph's store is an older copy, reset the processor, for keys of its "
                "own"
            )
        return step.number in known.done

    def entry(self, step: Step, data: bytes, writer: str) -> Note:
        """The note of a delivery that is to be made next."""
        checksum = xxhash.xxh64_hexdigest(data)
        return Note(step.owner, step.series, step.number, step.floor, self.size, len(data), checksum, writer)

    def add(self, entry: Note) -> None:
        """A delivery is in the file."""
        known = self._processors.get(entry.processor)
        if known is None:
            known = self._processors[entry.processor] = DeliveryProgress(entry.series, entry.floor, set(), [])
        elif known.series != entry.series:
            over = [*known.over, known.series]
            known = self._processors[entry.processor] = DeliveryProgress(entry.series, entry.floor, set(), over)
        if entry.floor > known.floor:
            known.floor = entry.floor
            known.done = {number for number in known.done if number >= entry.floor}
        known.done.add(entry.number)
        self.size = entry.at + entry.size
        self.pending = None

    def encode(self) -> bytes:
        """The notes, written anew."""
        assert self.pending is None
        return _line(NotesHead(FORMAT, self.size, self._processors))


def load(path: Path) -> tuple[Notes, int] | None:
    """The notes of a file, and how many bytes of them are whole: behind that is what a killed
    process had begun. None if there are none."""
    try:
        data = path.read_bytes() if path.stat().st_size <= BYTES_MAX else None
    except FileNotFoundError:
        return None
    if data is None:
        raise Corrupt(f"{path} is larger than any notes")
    first, *lines = data.split(b"\n")
    head = _read(first, NotesHead)
    if head is None or head.format != FORMAT or not lines:
        raise Corrupt(f"{path} does not begin as notes do, or they are of a newer version of Detent")
    notes = Notes(head.size, head.processors)
    whole = len(first) + 1
    for index, line in enumerate(lines[:-1]):
        entry = _read(line, Note)
        if entry is None:
            if any(_read(later, Note) is not None for later in lines[index + 1 :]):
                raise Corrupt(f"{path} does not match its checksums, {whole} bytes from its beginning")
            break
        if notes.pending is not None:
            notes.add(notes.pending)
        if entry.at != notes.size:
            raise Corrupt(f"{path} notes a delivery at {entry.at}, and the one before ends at {notes.size}")
        notes.pending = entry
        whole += len(line) + 1
    return notes, whole


_Kind = TypeVar("_Kind", NotesHead, Note)


def _line(value: NotesHead | Note) -> bytes:
    body = msgspec.json.encode(value)
    return xxhash.xxh64_hexdigest(body).encode() + b" " + body + b"\n"


def _read(line: bytes, kind: type[_Kind]) -> _Kind | None:
    """What a line says; None if it is not whole."""
    checksum, body = line[:_DIGITS], line[_DIGITS + 1 :]
    if xxhash.xxh64_hexdigest(body).encode() != checksum:
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
