"""Parquet files that no table names yet: written by tasks, with what a commit says of each, or by Spark's writer."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from detent.errors import Invalid, LimitExceeded
from detent.kv.localobjects import sync_directory
from detent.tables.statistics import statistics

FILE_BYTES_TARGET: Final = 128 << 20
"""Rows are gathered up to this, uncompressed, before a file is written: a task holds one in memory."""

STAGED_BYTES_MAX: Final = 256 << 20
"""What a task holds for all partitions of the table together; past this the largest goes out."""

PARTITIONS_MAX: Final = 1_000
"""Partitions of the table that one task writes to: each is a file, and files that are too small make a table slow."""

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
    """A file that a task wrote, as the log of a Delta table has it."""

    path: str
    size: int
    partition_values: dict[str, str | None]
    modification_time: int
    stats: str


class DataFile(NamedTuple):
    """A file in a folder of a batch: where it is, and what its footer says."""

    path: str
    rows: int
    bytes: int
    modified_ms: int


def is_local(uri: str) -> bool:
    """Whether a table is a folder."""
    return "://" not in uri


# -- files that tasks write -----------------------------------------------------------------------------------------


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
    if is_local(plan.uri):
        size = _put_locally(Path(plan.uri), name, table, collected)
    else:
        size = _put(plan, name, table, collected)
    partition = dict(zip(plan.partition_by, values, strict=True))
    return WrittenFile(name, size, partition, time.time_ns() // 1_000_000, json.dumps(statistics(table, collected[0])))


def _put_locally(folder: Path, name: str, table: Any, collected: list[Any]) -> int:
    """A file survives a power failure before a commit names it."""
    with (folder / name).open("xb") as file:
        pq.write_table(table, file, compression="zstd", metadata_collector=collected)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_directory(folder)
    return size


def _put(plan: FilePlan, name: str, table: Any, collected: list[Any]) -> int:
    from deltalake.fs import DeltaStorageHandler

    files = pa.fs.PyFileSystem(DeltaStorageHandler(plan.uri, plan.storage))
    with files.open_output_stream(name) as file:
        pq.write_table(table, file, compression="zstd", metadata_collector=collected)
        size: int = file.tell()
    return size


# -- files that Spark's own writer wrote ----------------------------------------------------------------------------


def made_durable(folder: Path) -> tuple[DataFile, ...]:
    """The files of a folder that have rows, which survive a power failure from now on. All else in it is deleted."""
    files: list[DataFile] = []
    for path in sorted(folder.iterdir()):
        # Hadoop writes checksums beside the files, which no reader of the table looks at.
        rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else 0
        if not rows:
            path.unlink()
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        files.append(DataFile(str(path), rows, status.st_size, status.st_mtime_ns // 1_000_000))
    for place in (folder, folder.parent, folder.parent.parent, folder.parent.parent.parent):
        sync_directory(place)
    return tuple(files)
