"""Rows that replace those of the same key (`merge_on`): which columns are a key, one row for each, and into Delta.

A key has no nulls: to a database each null is another key, so a row with one would be added again with every batch.
Of several rows with one key in a batch the last one counts, in the order of the rows: a task's rows in their order, and
tasks in the order of their partitions, which is the order of the messages where a stream only filters and changes rows.

The driver merges rows into a Delta table, by the library, which writes files and commits them in one call, and syncs
neither. So they are synced after that, and before the ledger knows of the batch: a power failure in between can leave a
commit whose files are not there. `sync_files`, which a replay calls before it believes the table's mark, refuses such a
table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from detent.errors import Corrupt, Invalid
from detent.kv.localobjects import sync_directory
from detent.tables.files import FilePlan, fitted, is_local

if TYPE_CHECKING:
    from deltalake import DeltaTable

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


# -- into a Delta table ---------------------------------------------------------------------------------------------


def merge_rows(plan: FilePlan, rows: Any, keys: tuple[str, ...], table: DeltaTable, properties: Any) -> None:
    """Insert rows, and update those with the same key. Of what others have committed since `table` was opened nothing
    is lost: the commit is refused then."""
    _check_values(plan, rows)
    (batch,) = rows.combine_chunks().to_batches()
    source = pa.Table.from_batches([fitted(batch, plan.arrow_schema)])
    same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in keys)
    merging = table.merge(source, same, source_alias="source", target_alias="target", commit_properties=properties)
    if len(keys) < len(plan.columns):
        merging = merging.when_matched_update_all()
    merging.when_not_matched_insert_all().execute()
    if is_local(plan.uri):
        folder = Path(plan.uri)
        _sync(folder, _added(folder / "_delta_log" / f"{table.version():020d}.json"))


def _check_values(plan: FilePlan, rows: Any) -> None:
    for name in plan.required:
        if name not in rows.column_names or rows.column(name).null_count:
            raise Invalid(f"a row has no {name}, which may not be null in the Delta table {plan.uri}")
    for name in plan.partition_by:
        if name in rows.column_names and "" in rows.column(name).unique().to_pylist():
            raise Invalid(
                "a Delta table cannot have an empty text in a partition column: make it null, or say what it is"
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _added(commit: Path) -> list[str]:
    """The files that a commit names."""
    actions = (json.loads(line) for line in commit.read_text().splitlines() if line)
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]


def _naming(log: Path, name: str) -> str:
    """The commit that names a file, as far as the log goes back."""
    commits = (path for path in sorted(log.glob("*.json")) if unquote(name) in _added(path))
    return next((str(path) for path in commits), f"which is older than the files of {log}")


def sync_files(table: DeltaTable, folder: Path) -> None:
    """Make all files of a table on this machine's disk survive a power failure; `Corrupt` if one did not survive the
    last one."""
    found = pa.table(table.get_add_actions())
    files = list(zip(found.column("path").to_pylist(), found.column("size_bytes").to_pylist(), strict=True))
    for name, size in files:
        path = folder / unquote(name)
        have = path.stat().st_size if path.exists() else None
        if have != size:
            raise Corrupt(
                f"the Delta table {folder} names the file {name} of {size} bytes, and the disk has "
                f"{'none' if have is None else f'{have} bytes'}: a power failure cut a commit off. Delete that commit, "
                f"{_naming(folder / '_delta_log', name)}, and later ones; the batch is then written again"
            )
    _sync(folder, [unquote(name) for name, _ in files])


def _sync(folder: Path, names: list[str]) -> None:
    for name in names:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    for parent in sorted({(folder / name).parent for name in names}):
        sync_directory(parent)
