"""Rows of a batch into a Delta table in the place of those with the same keys: the driver merges, by the library.

The library writes files and commits them in one call, and syncs neither. So they are synced after that, and before the
ledger knows of the batch: a power failure in between can leave a commit whose files are not there. `sync_files`, which
a replay calls before it takes the table's word for the batch, refuses such a table.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from detent.errors import Corrupt, Invalid
from detent.spark.delta_files import FilePlan, sync_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable


def merge_rows(plan: FilePlan, rows: Any, keys: tuple[str, ...], table: DeltaTable, properties: Any) -> None:
    """Insert rows, and update those with the same key. Of what others have committed since `table` was opened nothing
    is lost: the commit is refused then."""
    _check_values(plan, rows)
    source = rows.select(list(plan.columns)).cast(_schema_of(table))
    same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in keys)
    merging = table.merge(source, same, source_alias="source", target_alias="target", commit_properties=properties)
    if len(keys) < len(plan.columns):
        merging = merging.when_matched_update_all()
    merging.when_not_matched_insert_all().execute()
    if "://" not in plan.uri:
        folder = Path(plan.uri)
        _sync(folder, _added(folder / "_delta_log" / f"{table.version():020d}.json"))


def _check_values(plan: FilePlan, rows: Any) -> None:
    for name in plan.required:
        if rows.column(name).null_count:
            raise Invalid(f"a row has no {name}, which may not be null in the Delta table {plan.uri}")
    for name in plan.partition_by:
        if "" in rows.column(name).unique().to_pylist():
            raise Invalid(
                "a Delta table cannot have an empty text in a partition column: make it null, or say what it is"
            )


def _schema_of(table: DeltaTable) -> Any:
    return pa.schema(table.schema().to_arrow())


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
        sync_folder(parent)
