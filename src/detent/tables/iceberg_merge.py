"""Rows that replace those of the same key in an Iceberg table, in one snapshot.

The driver looks at the files whose bounds let them have one of the keys, one after the other, and writes anew those
that do: without the rows that are replaced. Then the new rows are added, and all of it is one commit, which asserts
the snapshot that the files were looked up in. Where another commit came in between, it is done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from detent.tables.files import FilePlan, fitted, write_files
from detent.tables.iceberg_table import Change, IcebergTable, IcebergView

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table, Transaction

LISTED_MAX: Final = 200
"""Up to so many values of a key files are asked for each of them, and beyond for the bounds of all."""

_PLACE: Final = "_detent_place"


def merging(place: IcebergTable, plan: FilePlan, rows: Any, keys: tuple[str, ...]) -> Change:
    """The change that inserts rows, one a key, and replaces those with the same key."""
    (batch,) = rows.combine_chunks().to_batches()
    new = fitted(batch, plan.arrow_schema)

    def change(transaction: Transaction, properties: dict[str, str]) -> None:
        table = transaction._table
        tasks = table.scan(row_filter=_may_have(new, keys)).plan_files()
        kept = {task.file: rest for task in tasks if (rest := _without(table, task, new, keys)) is not None}
        files = [file for rest in kept.values() for file in write_files(plan, rest.to_batches())]
        files += write_files(plan, [new])
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as producer:
            for old in kept:
                producer.delete_data_file(old)
            for added in place.data_files(IcebergView(table), files):
                producer.append_data_file(added)

    return change


def _may_have(rows: Any, keys: tuple[str, ...]) -> BooleanExpression:
    """What is true of files that may have one of the keys."""
    from pyiceberg import expressions

    make: Any = expressions  # whose types do not tell of the arguments that they take
    found: BooleanExpression = make.AlwaysTrue()
    for name in keys:
        values = rows.column(name).unique().to_pylist()
        if len(values) <= LISTED_MAX:
            found = make.And(found, make.In(name, set(values)))
        else:
            bounds = make.GreaterThanOrEqual(name, min(values)), make.LessThanOrEqual(name, max(values))
            found = make.And(found, make.And(*bounds))
    return found


def _without(table: Table, task: FileScanTask, rows: Any, keys: tuple[str, ...]) -> Any:
    """The rows of a file without those of these keys; None if it has none of them."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    found = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
    places = pa.array(range(found.num_rows), pa.int64())
    wanted = pa.Table.from_batches([rows.select(list(keys))]).cast(found.select(list(keys)).schema)
    known = found.select(list(keys)).append_column(_PLACE, places)
    hit = known.join(wanted, list(keys), join_type="left semi").column(_PLACE)
    if not len(hit):
        return None
    return found.filter(pc.invert(pc.is_in(places, value_set=hit.combine_chunks())))
