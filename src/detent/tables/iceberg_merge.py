"""Rows that replace those of the same key in an Iceberg table, in one snapshot.

The driver looks at the files whose bounds let them have one of the keys, one after the other, and writes anew those
that do: without the rows that are replaced. Then the new rows are added, and all of it is one commit, which asserts
the snapshot that the files were looked up in. Where another commit came in between, it is done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from detent.tables.files import WrittenFile, fitted, write_files
from detent.tables.iceberg_table import IcebergTable, IcebergView
from detent.tables.options import MergeRule

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction

LISTED_MAX: Final = 200
"""Up to so many values of a key files are asked for each of them, and beyond for the bounds of all."""

_PLACE: Final = "_detent_place"
_NEW_PLACE: Final = "_detent_new_place"
_THEIRS: Final = "_detent_theirs"


class Merging:
    """The change that inserts rows, one a key, and replaces those with the same key that are not newer."""

    def __init__(self, place: IcebergTable, rows: Any, rule: MergeRule, **how: Any) -> None:
        """`how` are arguments of the plan by which the driver writes files."""
        self._place = place
        self._rows = rows
        self._rule = rule
        self._how = how
        self.files: list[WrittenFile] = []
        """What the last attempt has written, which a commit that was made names."""

    def __call__(self, transaction: Transaction, properties: dict[str, str]) -> None:
        table = transaction._table
        plan = self._place.plan(IcebergView(table), **self._how)  # as the table is now: others may have added columns
        (batch,) = self._rows.combine_chunks().to_batches()
        new = fitted(batch, plan.arrow_schema)
        kept: dict[DataFile, Any] = {}
        older: list[Any] = []
        for task in table.scan(row_filter=_may_have(new, self._rule.keys)).plan_files():
            found = _compared(table, task, new, self._rule)
            older.append(found.older)
            if found.rest is not None:
                kept[task.file] = found.rest
        new = _left_out(new, older)
        self.files = [file for rest in kept.values() for file in write_files(plan, rest.to_batches())]
        self.files += write_files(plan, [new])
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as producer:
            for old in kept:
                producer.delete_data_file(old)
            for added in self._place.data_files(IcebergView(table), self.files):
                producer.append_data_file(added)


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


class _Compared(NamedTuple):
    """What a file and new rows are to each other."""

    rest: Any
    """The rows of the file that are not replaced; None if none of them is."""

    older: Any
    """The places of new rows that are older than a row of the file."""


def _compared(table: Table, task: FileScanTask, rows: Any, rule: MergeRule) -> _Compared:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    found = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
    keys = list(rule.keys)
    columns = [*keys, *([rule.newest_by] if rule.newest_by and rule.newest_by not in keys else [])]
    wanted = pa.Table.from_batches([rows.select(columns)]).cast(found.select(columns).schema)
    wanted = wanted.append_column(_NEW_PLACE, _places(rows.num_rows))
    known = found.select(columns).append_column(_PLACE, _places(found.num_rows))
    both = known.join(wanted, keys, join_type="inner", left_suffix=_THEIRS)
    is_older = _is_older(both, rule)
    hit = both.column(_PLACE).filter(pc.invert(is_older)).combine_chunks()
    older = both.column(_NEW_PLACE).filter(is_older).combine_chunks()
    if not len(hit):
        return _Compared(None, older)
    return _Compared(found.filter(pc.invert(pc.is_in(_places(found.num_rows), value_set=hit))), older)


def _places(rows: int) -> Any:
    return pa.array(range(rows), pa.int64())


def _is_older(both: Any, rule: MergeRule) -> Any:
    """Which of the new rows, beside those of the table with the same key, do not replace them. A null is the oldest."""
    name = rule.newest_by
    if not name or name in rule.keys:
        return pa.array([False] * both.num_rows, pa.bool_())
    theirs, ours = both.column(f"{name}{_THEIRS}"), both.column(name)
    return pc.and_(pc.is_valid(theirs), pc.fill_null(pc.less(ours, theirs), True))


def _left_out(rows: Any, places: list[Any]) -> Any:
    """New rows without those at some places."""
    gone = pa.concat_arrays(places) if places else pa.array([], pa.int64())
    return rows.filter(pc.invert(pc.is_in(_places(rows.num_rows), value_set=gone)))
