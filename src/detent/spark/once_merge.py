"""Rows that replace those of the same key (`merge_on`): which columns may be a key, and one row for each key.

A key has no nulls: to a database each null is another key, so a row with one would be added again with every batch.
Of several rows with one key in a batch the last one counts, in the order of the rows: a task's rows in their order, and
tasks in the order of their partitions, which is the order of the messages where a stream only filters and changes rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from detent.errors import Invalid
from detent.spark.once_query import APPEND, COMPLETE, UPDATE

_PLACE: Final = "_detent_place"


def key_columns(merge_on: Iterable[str] | None) -> tuple[str, ...]:
    """The argument `merge_on`, checked; empty for none."""
    if merge_on is None:
        return ()
    columns = () if isinstance(merge_on, str) else tuple(merge_on)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise Invalid(f'merge_on is a list of the columns that name a row, such as ["id"], not {merge_on!r}')
    if len(set(columns)) != len(columns):
        raise Invalid(f"merge_on names a column twice: {', '.join(columns)}")
    return columns


def check_mode(mode: str, merge_on: tuple[str, ...], write_mode: str | None, place: str) -> None:
    """Refuse an output mode that would leave the wrong rows in a table: rows of update mode replace earlier ones, those
    of complete mode all of them."""
    if mode == UPDATE and not merge_on:
        raise Invalid(
            f"rows of a stream in update mode replace earlier ones, and {place} would get them as further rows: say "
            'which columns name a row, with merge_on=["id"]'
        )
    if mode == COMPLETE and write_mode == APPEND:
        raise Invalid(
            f"a stream in complete mode writes its whole result with each batch, and {place} would get all rows again: "
            'leave mode="append" out, and each batch replaces the rows'
        )


def one_row_a_key(rows: Any, keys: tuple[str, ...]) -> Any:
    """The rows of a batch with the last one of each key; `Invalid` if a key is missing, null, or not exact."""
    for name in keys:
        if name not in rows.column_names:
            raise Invalid(f"merge_on names the column {name}, and the rows have {', '.join(rows.column_names)}")
        kind = rows.schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise Invalid(f"the key column {name} is {kind}: a key is text, a whole number, a time, or bytes")
        nulls = rows.column(name).null_count
        if nulls:
            raise Invalid(
                f"{nulls} rows have no {name}, which is in merge_on: leave them out (where {name} IS NOT NULL), or "
                "give them a value (coalesce)"
            )
    if not rows.num_rows:
        return rows
    places = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select(list(keys)).append_column(_PLACE, places).group_by(list(keys)).aggregate([(_PLACE, "max")])
    return rows.take(last.column(f"{_PLACE}_max").combine_chunks().sort())
