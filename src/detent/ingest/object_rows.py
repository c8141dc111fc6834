"""What tasks make of objects, before Spark parses it: lines, whole texts, bytes, first lines."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from detent.errors import DetentError, Invalid
from detent.ingest import csv_headers
from detent.ingest.lines import cut_lines
from detent.ingest.pinned import (
    ObjectAccess,
    ObjectSplit,
    OpenSplit,
    PinnedObject,
    blamed,
    is_packed,
    open_splits,
    unpacked,
)

SPLIT_BYTES: Final = 128 << 20
"""What a task reads of one object at most, where it can begin anywhere in it."""

DOCUMENT_BYTES_MAX: Final = 256 << 20
"""A file that is read as a whole is one value, which is held in memory several times."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_ORIGIN: Final = [
    ("file_path", pa.string()),
    ("file_name", pa.string()),
    ("file_size", pa.int64()),
    ("file_block_start", pa.int64()),
    ("file_block_length", pa.int64()),
    ("file_modification_time", _INSTANT),
]
ORIGIN_DDL: Final = (
    "struct<file_path: string, file_name: string, file_size: bigint, file_block_start: bigint, "
    "file_block_length: bigint, file_modification_time: timestamp>"
)
"""What Spark's own `_metadata` says of a row's file, as far as all formats have it."""

METADATA: Final = "_metadata"


class LineStyle(NamedTuple):
    """How files are cut into values."""

    encoding: str = "utf-8"
    separator: bytes = b""
    is_whole: bool = False
    """Each file is one value."""

    header: csv_headers.HeaderStyle | None = None
    """Files have a first line that names their columns, which is left out."""

    @property
    def is_divisible(self) -> bool:
        """Whether a task can begin in the middle of a file."""
        return not self.is_whole and not self.separator


def divided(objects: Sequence[PinnedObject], tasks: int, *, is_divisible: bool) -> list[list[ObjectSplit]]:
    """The parts of objects that each task reads: about as much for each, and not more than a part at a time."""
    splits: list[ObjectSplit] = []
    for one in objects:
        edges = list(range(0, one.size, SPLIT_BYTES))[1:] if is_divisible and not is_packed(one.name) else []
        # What was announced may be wrong: the last part reaches to the object's end, wherever that is.
        splits += [ObjectSplit(one, *pair) for pair in zip([0, *edges], [*edges, None], strict=True)]
    count = max(1, min(tasks, len(splits)))
    shares: list[list[ObjectSplit]] = [[] for _ in range(count)]
    loads = [0] * count
    for split in sorted(splits, key=size_of_split, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(split)
        loads[least] += size_of_split(split) + OPEN_BYTES
    return shares


OPEN_BYTES: Final = 64 << 10
"""What opening a file costs, in bytes that could be read instead."""


def size_of_split(split: ObjectSplit) -> int:
    """How many bytes are read for a part."""
    return (split.end or split.object.size) - split.start


def in_task(work: Callable[[Iterator[ObjectSplit]], Iterator[Any]], rows: Iterator[Any]) -> Iterator[Any]:
    """What a task does with the parts that its one row has."""
    yield from work(
        split for batch in rows for payload in batch.column(0).to_pylist() for split in pickle.loads(payload)
    )


# -- lines ------------------------------------------------------------------------------------------------------------


def line_rows(access: ObjectAccess, style: LineStyle, splits: Iterator[ObjectSplit]) -> Iterator[Any]:
    """Rows of a value and where it came from."""
    for one in open_splits(access, splits):
        with blamed(one.split.object):
            for values in _values(one, style):
                array = pa.array(values, pa.binary()).view(pa.string())
                origin = origins(one.split, one.first.size, one.first.modified_ms, len(array))
                yield pa.RecordBatch.from_arrays([array, origin], names=["value", METADATA])


def _values(one: OpenSplit, style: LineStyle) -> Iterator[list[bytes]]:
    if style.is_whole:
        yield [_recoded(_whole(one), style)]
        return
    is_first = one.split.start == 0
    for lines in cut_lines(unpacked(one), one.split.start, one.split.end, style.separator):
        values = [_recoded(line, style) for line in lines] if style.encoding != "utf-8" else lines
        if is_first and style.header is not None:
            place = next((number for number, line in enumerate(values) if style.header.is_first(line)), None)
            values = [] if place is None else values[place + 1 :]
            is_first = place is None
        if values:
            yield values


def _whole(one: OpenSplit) -> bytes:
    parts, size = [], 0
    for piece in unpacked(one):
        size += len(piece)
        if size > DOCUMENT_BYTES_MAX:
            raise Invalid(f"{one.split.object.file.uri} is one value, and longer than {DOCUMENT_BYTES_MAX} bytes")
        parts.append(piece)
    return b"".join(parts)


def _recoded(value: bytes, style: LineStyle) -> bytes:
    return value if style.encoding == "utf-8" else value.decode(style.encoding, "replace").encode()


def origins(split: ObjectSplit, size: int, modified_ms: int, rows: int, more: Mapping[str, Any] | None = None) -> Any:
    """The column that says where rows came from."""
    length = (split.end or size) - split.start
    values = (split.object.file.uri, split.object.name, size, split.start, length, modified_ms * 1000)
    columns = {
        name: pa.repeat(pa.scalar(value, kind), rows) for (name, kind), value in zip(_ORIGIN, values, strict=True)
    }
    columns |= more or {}
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


# -- whole files, and first lines --------------------------------------------------------------------------------------


def binary_rows(access: ObjectAccess, splits: Iterator[ObjectSplit]) -> Iterator[Any]:
    """A row for each object, as Spark's format `binaryFile` has it; packed objects stay as they are."""
    for one in open_splits(access, splits):
        with blamed(one.split.object):
            if one.first.size > DOCUMENT_BYTES_MAX:
                raise Invalid(f"{one.split.object.file.uri} is one value, and longer than {DOCUMENT_BYTES_MAX} bytes")
            content = b"".join(one.pieces)
            columns = [
                pa.array([one.split.object.file.uri]),
                pa.array([one.first.modified_ms * 1000], _INSTANT),
                pa.array([len(content)], pa.int64()),
                pa.array([content], pa.binary()),
                origins(one.split, one.first.size, one.first.modified_ms, 1),
            ]
        yield pa.RecordBatch.from_arrays(columns, names=["path", "modificationTime", "length", "content", METADATA])


class FoundHeader(NamedTuple):
    """The first line of an object: its columns, the line itself; or why there is none."""

    names: tuple[str, ...] = ()
    line: str = ""
    failure: DetentError | None = None


def header_rows(access: ObjectAccess, style: csv_headers.HeaderStyle, splits: Iterator[ObjectSplit]) -> Iterator[Any]:
    """A row for each object: its number, and its header."""
    for one in open_splits(access, splits):
        with blamed(one.split.object):
            header = _header(one, style)
        columns = [pa.array([one.split.object.number], pa.int32()), pa.array([pickle.dumps(header)], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["number", "answer"])


def _header(one: OpenSplit, style: csv_headers.HeaderStyle) -> FoundHeader:
    lines = (line for some in cut_lines(unpacked(one)) for line in some)
    try:
        text = csv_headers.first_line(lines, style)
        return FoundHeader(csv_headers.columns_of(text, style), text)
    except csv_headers.UNREADABLE as error:
        return FoundHeader(failure=Invalid(f"no header can be read: {error}"))


def of_ranges(objects: Iterable[PinnedObject], length: int) -> list[ObjectSplit]:
    """The first bytes of each object, and what follows as far as it is needed."""
    return [ObjectSplit(one, 0, min(length, one.size) or None) for one in objects]
