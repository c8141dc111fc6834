"""Parquet files that no table names yet: written by tasks, with all that a commit says of each.

A task writes what it has into files with a random part in their names, below the folder or the URL of the table, and
answers what a commit has to say of them, so that the driver reads nothing. It deletes nothing: the files of a task that
was repeated, or that died, have no commit that names them, and are swept by the folder that they are in.

A file of partition values is in folders such as ``day=2026-01-31``, as Spark and Hive expect. What counts is what the
table's own metadata says of the values; the folders are for people, and for readers that know no tables.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from detent import crash
from detent.errors import Invalid, LimitExceeded
from detent.kv.wholefiles import WholeFiles, open_whole_files
from detent.tables.statistics import statistics

FILE_BYTES_TARGET: Final = 128 << 20
"""Rows are gathered up to this, uncompressed, before a file is written: a task holds one in memory."""

STAGED_BYTES_MAX: Final = 256 << 20
"""What a task holds for all partitions of the table together; past this the largest goes out."""

PARTITIONS_MAX: Final = 1_000
"""Partitions of the table that one task writes to: each is a file, and files that are too small make a table slow."""

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark and Hive call the folder of a null."""

_PLAIN_VALUE: Final = re.compile(r"[A-Za-z0-9._-]")

Values = tuple[str | None, ...]
"""The values of the partition columns, as text."""

_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class FilePlan:
    """How tasks write files for a table."""

    uri: str
    """The table's folder, or URL."""

    storage: Mapping[str, str]
    schema: bytes
    """Of the table, as Arrow writes it. Rows are cast to it, and get nulls for what they lack."""

    partition_by: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    """Columns that may not be null."""

    folder: str = ""
    """Below the table, such as ``data/BATCH``: what is in it and in no commit is swept together."""

    sort_by: tuple[str, ...] = ()
    """Columns by which the rows of each file are sorted."""

    target_bytes: int = 0
    """Rows, uncompressed, that become one file; `FILE_BYTES_TARGET` for 0."""

    holds_values: bool = False
    """Whether files hold the partition columns, too, as those of Iceberg do and those of Delta do not."""

    tells_footer: bool = False
    """Whether tasks answer the footers of their files."""

    arrow_schema: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = pa.ipc.read_schema(pa.BufferReader(self.schema))
        object.__setattr__(self, "arrow_schema", schema)
        missing = [name for name in (*self.partition_by, *self.sort_by) if name not in schema.names]
        if missing:
            raise Invalid(f"the table {self.uri} has no column {', '.join(missing)} to sort or partition by")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(self.arrow_schema.names)

    @cached_property
    def files(self) -> WholeFiles:
        """Where the files go."""
        return open_whole_files(self.uri, self.storage)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "files"}


class WrittenFile(NamedTuple):
    """A file that a task wrote, with what a commit says of it."""

    path: str
    """Below the table."""

    size: int
    rows: int
    partition_values: dict[str, str | None]
    modification_time: int
    """Milliseconds since 1970."""

    stats: str
    """As the log of a Delta table has them: JSON."""

    footer: bytes = b""
    """As Parquet has it, if the plan asks for it."""

    memory: int = 0
    """What its rows take in memory, before they are packed."""


def is_local(uri: str) -> bool:
    """Whether a table is a folder."""
    return "://" not in uri


def schema_bytes(schema: Any) -> bytes:
    """An Arrow schema for a plan."""
    data: bytes = schema.serialize().to_pybytes()
    return data


# -- files that tasks write -----------------------------------------------------------------------------------------


def write_files(plan: FilePlan, batches: Iterable[Any]) -> list[WrittenFile]:
    """What a task does with its rows, which come as Arrow's batches."""
    files = _Files(plan)
    for batch in batches:
        if batch.num_rows:
            rows = fitted(batch, plan.arrow_schema)
            _check_nulls(plan, rows)
            for values, part in _by_partition(plan, rows):
                files.add(values, part)
    return files.finish()


def fitted(batch: Any, schema: Any) -> Any:
    """Rows in the columns of a table: in its order, of its types, with nulls for what they lack."""
    columns = []
    for column in schema:
        place = batch.schema.get_field_index(column.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, column.type))
        else:
            found = batch.column(place)
            columns.append(found if found.type.equals(column.type, check_metadata=True) else found.cast(column.type))
    # Whether a value may be null was not asked of the rows, and is checked by itself.
    lax = pa.schema([column.with_nullable(True) for column in schema])
    return pa.RecordBatch.from_arrays(columns, schema=lax)


def _check_nulls(plan: FilePlan, batch: Any) -> None:
    for name in plan.required:
        if batch.column(name).null_count:
            raise Invalid(f"a row has no {name}, which may not be null in the table {plan.uri}")


class _Files:
    """A task's rows on their way into files."""

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._waiting: dict[Values, list[Any]] = {}
        self._bytes: dict[Values, int] = {}
        self._held = 0
        self._seen: set[Values] = set()
        self._written: list[WrittenFile] = []

    def add(self, values: Values, rows: Any) -> None:
        """Take rows of one partition of the table."""
        self._seen.add(values)
        if len(self._seen) > PARTITIONS_MAX:
            raise LimitExceeded(
                f"a task writes to at most {PARTITIONS_MAX} partitions of a table: partition it by a column with "
                "fewer values, or let select=lambda rows: rows.repartition(...) bring those of a partition together"
            )
        size = rows.nbytes
        self._waiting.setdefault(values, []).append(rows)
        self._bytes[values] = self._bytes.get(values, 0) + size
        self._held += size
        if self._bytes[values] >= (self._plan.target_bytes or FILE_BYTES_TARGET):
            self._write(values)
        elif self._held >= STAGED_BYTES_MAX:
            self._write(max(self._bytes, key=lambda one: self._bytes[one]))

    def finish(self) -> list[WrittenFile]:
        """All rows are in files that survive."""
        for values in list(self._waiting):
            self._write(values)
        return self._written

    def _write(self, values: Values) -> None:
        table = pa.Table.from_batches(self._waiting.pop(values))
        self._held -= self._bytes.pop(values)
        self._written.append(_write(self._plan, table, values))


def _by_partition(plan: FilePlan, batch: Any) -> Iterator[tuple[Values, Any]]:
    """The rows of each partition of the table, without the columns that it is known by if files do not hold them."""
    if not plan.partition_by:
        yield (), batch
        return
    content = batch if plan.holds_values else batch.select([n for n in plan.columns if n not in plan.partition_by])
    columns = [batch.column(name).dictionary_encode(null_encoding="encode") for name in plan.partition_by]
    codes = np.zeros(batch.num_rows, np.int64)  # a number below that of the rows for each combination of values
    for column in columns:
        mixed = codes * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        _, first, codes = np.unique(mixed, return_index=True, return_inverse=True)
    for number, row in enumerate(first):
        values = tuple(_text(column[int(row)].as_py()) for column in columns)
        yield values, content if len(first) == 1 else content.filter(pa.array(codes == number))


def _text(value: Any) -> str | None:
    """A partition's value as a table's log has it. An empty text is written like none, so it cannot be told from it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        raise Invalid("a table cannot have an empty text in a partition column: make it null, or say what it is")
    return value.isoformat() if isinstance(value, date) else str(value)


def _write(plan: FilePlan, table: Any, values: Values) -> WrittenFile:
    if plan.sort_by:
        table = table.sort_by([(name, "ascending") for name in plan.sort_by])
    collected: list[Any] = []
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", metadata_collector=collected)
    data = buffer.getvalue()
    path = "/".join((*filter(None, (plan.folder,)), *folders(plan.partition_by, values), _file_name()))
    plan.files.put(path, data)
    crash.point("tables.after_file")
    return WrittenFile(
        path,
        data.size,
        table.num_rows,
        dict(zip(plan.partition_by, values, strict=True)),
        time.time_ns() // 1_000_000,
        json.dumps(statistics(table, collected[0])),
        _footer(collected[0]) if plan.tells_footer else b"",
        table.nbytes,
    )


def _file_name() -> str:
    return f"part-{uuid.uuid4().hex}.zstd.parquet"


def folders(columns: Sequence[str], values: Values) -> list[str]:
    """The folders of a partition, in the way of Hive, with a ``%`` and two digits for each byte that is not plain:
    readers differ in how they take such names apart, and in these they do not."""
    return [f"{escaped(name)}={NULL_VALUE if value is None else escaped(value)}" for name, value in zip(
        columns, values, strict=True
    )]  # fmt: skip


def escaped(text: str) -> str:
    """A text as a part of a path."""
    return "".join(one if _PLAIN_VALUE.match(one) else "".join(f"%{byte:02X}" for byte in one.encode()) for one in text)


def sweep_folder(files: WholeFiles, folder: str, kept: Collection[str]) -> int:
    """Delete the files of a folder but some; how many."""
    left = [info.name for info in files.list(f"{folder}/") if info.name not in kept]
    files.delete(left)
    return len(left)


def _footer(metadata: Any) -> bytes:
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_footer(data: bytes) -> Any:
    """The footer that a task has answered."""
    return pq.read_metadata(pa.BufferReader(data))
