"""Data files of a Delta table, as tasks write them: Parquet, with what a commit says of each file."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from detent.errors import Invalid, LimitExceeded

FILE_BYTES_TARGET: Final = 128 << 20
"""Rows are gathered up to this, uncompressed, before a file is written: a task holds one in memory."""

STAGED_BYTES_MAX: Final = 256 << 20
"""What a task holds for all partitions of the table together; past this the largest goes out."""

PARTITIONS_MAX: Final = 1_000
"""Partitions of the table that one task writes to: each is a file, and files that are too small make a table slow."""

STATISTICS_TEXT_MAX: Final = 64
"""Texts of up to so many characters are given as bounds of their column; longer ones would have to be rounded."""

Values = tuple[str | None, ...]
"""The values of the partition columns, as text."""


@dataclass(frozen=True)
class FilePlan:
    """How tasks write files for a table: where, which columns, and which of them may not be null."""

    uri: str
    storage: dict[str, str]
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    required: tuple[str, ...]


class WrittenFile(NamedTuple):
    """A file that no commit names yet."""

    path: str
    size: int
    partition_values: dict[str, str | None]
    modification_time: int
    stats: str


def write_files(plan: FilePlan, batches: Iterable[Any]) -> list[WrittenFile]:
    """What a task does with its rows."""
    files = _Files(plan)
    for batch in batches:
        if batch.num_rows:
            _check_nulls(plan, batch)
            for values, rows in _by_partition(plan, batch):
                files.add(values, rows)
    return files.finish()


def _check_nulls(plan: FilePlan, batch: Any) -> None:
    for name in plan.required:
        if batch.column(name).null_count:
            raise Invalid(f"a row has no {name}, which may not be null in the Delta table {plan.uri}")


class _Files:
    """A task's rows on their way into files."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._waiting: dict[Values, list[Any]] = {}
        self._bytes: dict[Values, int] = {}
        self._written: list[WrittenFile] = []

    def add(self, values: Values, rows: Any) -> None:
        """Take rows of one partition of the table."""
        self._waiting.setdefault(values, []).append(rows)
        self._bytes[values] = self._bytes.get(values, 0) + rows.nbytes
        if len(self._waiting) + len(self._written) > PARTITIONS_MAX:
            raise LimitExceeded(
                f"a task writes to at most {PARTITIONS_MAX} partitions of a Delta table: partition it by a column with "
                "fewer values, or let select=lambda rows: rows.repartition(...) bring those of a partition together"
            )
        if self._bytes[values] >= FILE_BYTES_TARGET:
            self._write(values)
        elif sum(self._bytes.values()) >= STAGED_BYTES_MAX:
            self._write(max(self._bytes, key=lambda one: self._bytes[one]))

    def finish(self) -> list[WrittenFile]:
        """All rows are in files that survive."""
        for values in list(self._waiting):
            self._write(values)
        return self._written

    def _write(self, values: Values) -> None:
        table = pa.Table.from_batches(self._waiting.pop(values))
        del self._bytes[values]
        self._written.append(_write(self._plan, table, values))


def _by_partition(plan: FilePlan, batch: Any) -> Iterator[tuple[Values, Any]]:
    """The rows of each partition of the table, without the columns that it is known by."""
    content = batch.select([name for name in plan.columns if name not in plan.partition_by])
    if not plan.partition_by:
        yield (), content
        return
    columns = [batch.column(name).dictionary_encode(null_encoding="encode") for name in plan.partition_by]
    codes = np.stack([column.indices.to_numpy(zero_copy_only=False) for column in columns])
    found, inverse = np.unique(codes, axis=1, return_inverse=True)
    for number, row in enumerate(found.T):
        values = tuple(_text(column.dictionary[int(code)].as_py()) for column, code in zip(columns, row, strict=True))
        yield values, content.filter(pa.array(inverse.reshape(-1) == number))


def _text(value: Any) -> str | None:
    """A partition's value as a table's log has it. An empty text is written like none, so it cannot be told from it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        raise Invalid("a Delta table cannot have an empty text in a partition column: make it null, or say what it is")
    return value.isoformat() if isinstance(value, date) else str(value)


def _write(plan: FilePlan, table: Any, values: Values) -> WrittenFile:
    # The name says nothing of the partition: the log does, and names then need no quoting.
    name = f"part-{uuid.uuid4().hex}.zstd.parquet"
    collected: list[Any] = []
    if "://" in plan.uri:
        size = _put(plan, name, table, collected)
    else:
        size = _put_locally(Path(plan.uri), name, table, collected)
    partition = dict(zip(plan.partition_by, values, strict=True))
    return WrittenFile(name, size, partition, time.time_ns() // 1_000_000, json.dumps(statistics(table, collected[0])))


def _put_locally(folder: Path, name: str, table: Any, collected: list[Any]) -> int:
    """A file survives a power failure before a commit names it."""
    with (folder / name).open("xb") as file:
        pq.write_table(table, file, compression="zstd", metadata_collector=collected)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_folder(folder)
    return size


def _put(plan: FilePlan, name: str, table: Any, collected: list[Any]) -> int:
    from deltalake.fs import DeltaStorageHandler

    files = pa.fs.PyFileSystem(DeltaStorageHandler(plan.uri, plan.storage))
    with files.open_output_stream(name) as file:
        pq.write_table(table, file, compression="zstd", metadata_collector=collected)
        size: int = file.tell()
    return size


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- statistics -------------------------------------------------------------------------------------------------


def statistics(table: Any, metadata: Any) -> dict[str, Any]:
    """What a table's log says of a file, so that readers can pass it over: rows, nulls, and the bounds of columns whose
    values can be said exactly, or rounded outwards."""
    nulls = {name: table.column(name).null_count for name in table.column_names}
    return _statistics(metadata, nulls)


def footer_statistics(metadata: Any) -> dict[str, Any]:
    """The same of a file that somebody else wrote, by what its footer says."""
    nulls: dict[str, int] = {}
    silent: set[str] = set()
    for name, column in _columns(metadata):
        stats = column.statistics
        if stats is None or not stats.has_null_count or "." in name:
            silent.add(name)
        else:
            nulls[name] = nulls.get(name, 0) + stats.null_count
    return _statistics(metadata, {name: count for name, count in nulls.items() if name not in silent})


def _statistics(metadata: Any, nulls: dict[str, int]) -> dict[str, Any]:
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name, (low, high) in _bounds(metadata).items():
        bounds = _outwards(low, high)
        if bounds is not None and "." not in name:
            least[name], most[name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _columns(metadata: Any) -> Iterator[tuple[str, Any]]:
    """The columns of all groups of rows, by name."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            yield column.path_in_schema, column


def _bounds(metadata: Any) -> dict[str, tuple[Any, Any]]:
    """The bounds of the columns that are no nested ones and have them in every group of rows with a value."""
    found: dict[str, tuple[Any, Any]] = {}
    unknown: set[str] = set()
    for name, column in _columns(metadata):
        stats = column.statistics
        if stats is not None and stats.null_count == column.num_values:
            continue
        if stats is None or not stats.has_min_max:
            unknown.add(name)
            continue
        low, high = found.get(name, (stats.min, stats.max))
        found[name] = min(low, stats.min), max(high, stats.max)
    return {name: bounds for name, bounds in found.items() if name not in unknown}


def _outwards(low: Any, high: Any) -> tuple[Any, Any] | None:
    """Bounds as a log has them; None for kinds of values that are left out."""
    if isinstance(low, bool) or type(low) is not type(high):
        return None
    if isinstance(low, datetime):
        return _instant(low, up=False), _instant(high, up=True)
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, str):
        return (low, high) if max(len(low), len(high)) <= STATISTICS_TEXT_MAX else None
    return (low, high) if isinstance(low, int) else None


def _instant(time: datetime, *, up: bool) -> str:
    """A time in whole milliseconds, which is what a log has."""
    rest = timedelta(microseconds=time.microsecond % 1000)
    whole = time - rest + timedelta(milliseconds=1 if up and rest else 0)
    text = whole.replace(tzinfo=None) if whole.tzinfo is None else whole.astimezone(UTC).replace(tzinfo=None)
    return text.isoformat(timespec="milliseconds") + ("" if whole.tzinfo is None else "Z")
