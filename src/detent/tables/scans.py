"""Tables read by tasks: which files have the rows that are wanted, and the rows of each, as Arrow's batches.

A scan is of one version of the table. It is planned where the table's metadata is read, and can be sent to other
processes; what they read are files that do not change. Rows come in the columns of the table: partition values from its
metadata, nulls for columns that a file lacks, and wider types where a column was widened.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from detent.errors import Invalid
from detent.kv.wholefiles import open_whole_files
from detent.tables.files import fitted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from detent.tables.iceberg_table import IcebergView

Condition = tuple[str, str, Any]
"""A column, one of ``= != < <= > >=``, and a value."""

_NONE: Final[Mapping[str, str]] = {}
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

READER_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of Delta tables that change nothing for who reads their files."""


class Scan(ABC):
    """The files of a table at one version, to be read one by one, anywhere."""

    schema: Any
    """Of the rows, as Arrow has it."""

    sizes: list[int]
    """How large each file is."""

    @abstractmethod
    def read(self, number: int) -> Iterator[Any]:
        """The rows of a file, as batches."""


def checked(where: Sequence[Condition], names: Sequence[str], what: str) -> list[Condition]:
    """Conditions of a read; `Invalid` for what are none."""
    found = []
    for one in where:
        if isinstance(one, str) or len(one) != 3 or one[1] not in _OPERATORS:
            raise Invalid(
                f'a condition is such as ("day", "=", "2026-01-31"), with one of {" ".join(_OPERATORS)}: {one!r}'
            )
        column, sign, value = one
        if column not in names or value is None:
            raise Invalid(
                f"{what} has no column {column!r}" if value is not None else f"{column} is compared with None"
            )
        found.append((column, sign, value))
    return found


# -- Delta ------------------------------------------------------------------------------------------------------------


class DeltaScan(Scan):
    """A Delta table without deletion vectors and renamed columns."""

    def __init__(
        self, table: DeltaTable, uri: str, storage: Mapping[str, str], where: Sequence[Condition] = ()
    ) -> None:
        check_readable(table, uri)
        self.schema = pa.schema(table.schema().to_arrow())
        self._uri = uri
        self._storage = dict(storage)
        self._partitions = tuple(table.metadata().partition_columns)
        wanted = checked(where, self.schema.names, f"the Delta table {uri}")
        adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        kept = [add for add in adds if all(self._may_have(add, *one) for one in wanted)]
        self.sizes = [add["size_bytes"] for add in kept]
        self._files = [
            (unquote(add["path"]), tuple(add.get(f"partition.{name}") for name in self._partitions)) for add in kept
        ]

    def _may_have(self, add: Mapping[str, Any], column: str, sign: str, value: Any) -> bool:
        """Whether a file may have rows of a condition, by its partition or its statistics."""
        if column in self._partitions:
            found = add[f"partition.{column}"]
            return found is not None and _compared(sign, found, value)
        low, high = add.get(f"min.{column}"), add.get(f"max.{column}")
        if low is None or high is None or isinstance(low, float):  # of which bounds leave NaN out
            return True
        if isinstance(high, datetime):  # a log has whole milliseconds, rounded down
            high += timedelta(milliseconds=1)
        if sign == "=":
            return _compared("<=", low, value) and _compared(">=", high, value)
        if sign == "!=":
            return True
        return _compared(sign, low if sign in {"<", "<="} else high, value)

    def read(self, number: int) -> Iterator[Any]:
        name, values = self._files[number]
        source = pa.BufferReader(pa.py_buffer(open_whole_files(self._uri, self._storage).get(name)))
        for batch in pq.ParquetFile(source).iter_batches():
            rows = fitted(batch, self.schema)
            for column, value in zip(self._partitions, values, strict=True):
                field = self.schema.field(column)
                place = self.schema.get_field_index(column)
                literal = pa.array([value] * rows.num_rows, field.type)
                rows = rows.set_column(place, rows.schema.field(place), literal)
            yield rows


def _compared(sign: str, found: Any, value: Any) -> bool:
    """A comparison of values of a file; true where they are of kinds that cannot be compared here."""
    try:
        return _OPERATORS[sign](found, value)
    except TypeError:
        return True


def check_readable(table: DeltaTable, uri: str) -> None:
    """`Invalid` for a table whose files alone do not say its rows."""
    found = set(table.protocol().reader_features or ()) - READER_FEATURES
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        found.add(f"columnMapping ({mode})")
    if table.protocol().min_reader_version == 2 and mode != "none":
        found.add("columnMapping")
    paths = pa.table(table.get_add_actions()).column("path").to_pylist()
    if any("://" in path or path.startswith("/") for path in paths):
        found.add("files outside of it, as a shallow clone has")
    if found:
        raise Invalid(
            f"the Delta table {uri} has {', '.join(sorted(found))}, which read_table does not know: read it with "
            "deltalake, or let its owner rewrite it (REORG TABLE ... APPLY (PURGE) for deletion vectors)"
        )


# -- Iceberg ----------------------------------------------------------------------------------------------------------


class IcebergScan(Scan):
    """An Iceberg table, with the deletes by position that PyIceberg knows."""

    def __init__(self, view: IcebergView, where: Sequence[Condition] = (), snapshot: int | None = None) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        table = view.table
        scan = table.scan(row_filter=_expression(where, view), snapshot_id=snapshot)
        self._metadata = table.metadata
        self._io = table.io
        self._projected = scan.projection()
        self.schema = schema_to_pyarrow(self._projected)
        try:
            self._tasks = list(scan.plan_files())
        except (NotImplementedError, ValueError) as error:
            name = ".".join(table.name())
            raise Invalid(f"the Iceberg table {name} has what PyIceberg does not read: {error}") from error
        self.sizes = [task.file.file_size_in_bytes for task in self._tasks]

    def read(self, number: int) -> Iterator[Any]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(self._metadata, self._io, self._projected, AlwaysTrue())
        for batch in scan.to_record_batches([self._tasks[number]]):
            yield fitted(batch, self.schema)


def _expression(where: Sequence[Condition], view: IcebergView) -> Any:
    from pyiceberg import expressions

    make: Any = expressions
    table = view.table
    kinds = {
        "=": make.EqualTo,
        "!=": make.NotEqualTo,
        "<": make.LessThan,
        "<=": make.LessThanOrEqual,
        ">": make.GreaterThan,
        ">=": make.GreaterThanOrEqual,
    }
    found = make.AlwaysTrue()
    for column, sign, value in checked(where, table.schema().column_names, f"the table {'.'.join(table.name())}"):
        found = make.And(found, kinds[sign](column, value))
    return found
