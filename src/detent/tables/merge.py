"""Rows that replace those of the same key (`merge_on`): which columns are a key, one row for each, and into Delta.

A key has no nulls: to a database each null is another key, so a row with one would be added again with every batch.
Of several rows with one key in a batch the last one counts, in the order of the rows: a task's rows in their order, and
tasks in the order of their partitions, which is the order of the messages where a stream only filters and changes rows.

Files that a queue announces come in no order. There a column says which row is newer (`MergeRule.newest_by`): the row
with the greatest value counts, among those of the batch and against the one in the table. A null is the oldest. So the
rows of a table do not depend on the order in which files came, nor on the batches that they came in.

The driver merges rows into a Delta table, by the library, which writes files and commits them in one call, and syncs
neither. So they are synced after that, and before the ledger knows of the batch: a power failure in between can leave a
commit whose files are not there. `sync_files`, which a replay calls before it believes the table's mark, refuses such a
table.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from detent.errors import Corrupt, Invalid
from detent.kv.localobjects import sync_directory
from detent.tables.files import FilePlan, fitted, is_local
from detent.tables.options import MergeRule

if TYPE_CHECKING:
    from deltalake import DeltaTable

ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 << 20
"""Rows of one batch, and what they take in memory, that the driver merges into a table."""

_PLACE: Final = "_detent_place"


def check_rule(schema: Any, rule: MergeRule) -> None:
    """`Invalid` if a column of a rule is not among those of rows (an Arrow schema), or has no exact order."""
    named = [(name, "merge_on", "key") for name in rule.keys]
    named += [(rule.newest_by, "newest_by", "newest_by")] if rule.newest_by else []
    for name, option, what in named:
        if name not in schema.names:
            raise Invalid(f"{option} names the column {name}, and the rows have {', '.join(schema.names)}")
        kind = schema.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise Invalid(f"the {what} column {name} is {kind}: it is text, a whole number, a time, or bytes")


def one_row_a_key(rows: Any, rule: MergeRule) -> Any:
    """The rows of a batch with the one of each key that counts; `Invalid` if a key is missing, null, or not exact."""
    check_rule(rows.schema, rule)
    keys = rule.keys
    for name in keys:
        nulls = rows.column(name).null_count
        if nulls:
            raise Invalid(
                f"{nulls} rows have no {name}, which is in merge_on: leave them out (where {name} IS NOT NULL), or "
                "give them a value (coalesce)"
            )
    if not rows.num_rows:
        return rows
    if rule.newest_by:
        values = rows.column(rule.newest_by).combine_chunks()
        rows = rows.take(pc.array_sort_indices(values, null_placement="at_start"))  # equals stay in their order
    places = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select(list(keys)).append_column(_PLACE, places).group_by(list(keys)).aggregate([(_PLACE, "max")])
    return rows.take(last.column(f"{_PLACE}_max").combine_chunks().sort())


# -- into a Delta table ---------------------------------------------------------------------------------------------


def merge_rows(plan: FilePlan, rows: Any, rule: MergeRule, table: DeltaTable, properties: Any) -> None:
    """Insert rows, and update those with the same key that are not newer. Of what others have committed since `table`
    was opened nothing is lost: the commit is refused then."""
    _check_values(plan, rows)
    (batch,) = rows.combine_chunks().to_batches()
    source = pa.Table.from_batches([fitted(batch, plan.arrow_schema)])
    same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in rule.keys)
    merging = table.merge(source, same, source_alias="source", target_alias="target", commit_properties=properties)
    if len(rule.keys) < len(plan.columns):
        merging = merging.when_matched_update_all(_is_not_older(rule))
    merging.when_not_matched_insert_all().execute()
    if is_local(plan.uri):
        folder = Path(plan.uri)
        _sync(folder, _added(folder / "_delta_log" / f"{table.version():020d}.json"))


def _is_not_older(rule: MergeRule) -> str | None:
    """What has to be true of a row that replaces another one; None if each does."""
    if not rule.newest_by:
        return None
    theirs, ours = (f"{side}.{_quoted(rule.newest_by)}" for side in ("target", "source"))
    return f"{theirs} IS NULL OR {ours} >= {theirs}"


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
