"""A Delta table as a sink of `once`: tasks write the files, the driver commits them with the batch as a mark.

The batch number is the version of an application of the table, which is the ledger's name and the query. Looking it up
and committing from the same view of the table is one step; see `detent.tables.delta`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from detent import crash
from detent.errors import Invalid
from detent.spark.once_batch import (
    APPEND,
    COMPLETE,
    ExternalSink,
    MarkPlace,
    Select,
    check_mode,
    check_select,
    collect,
    in_tasks,
    output_mode,
    selected,
)
from detent.tables.delta import (
    RETENTION,
    Change,
    DeltaPlace,
    add_of_task,
    adding,
    deltalake_module,
    properties,
)
from detent.tables.delta_schema import check_writable, delta_schema, file_plan
from detent.tables.files import FilePlan, is_local, write_files
from detent.tables.marks import BatchKey, DeltaMark
from detent.tables.merge import key_columns, merge_rows, one_row_a_key, sync_files

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_ATTEMPTS: Final = 5
"""How often a commit is tried that other writers of the table came before."""

OVERWRITE: Final = "overwrite"


def to_delta(
    path: str | os.PathLike[str],
    *,
    mode: str | None = None,
    merge_on: Iterable[str] | None = None,
    partition_by: Iterable[str] | str | None = None,
    select: Select = None,
    storage_options: Mapping[str, str] | None = None,
) -> ExternalSink:
    """A sink that appends each batch to a Delta table. With `merge_on`, columns such as ``["id"]``, a row replaces the
    one with the same key, if there is one; see `detent.tables.merge` for null and repeated keys. In complete mode, or
    with ``mode="overwrite"``, each batch replaces the table. One that is not there is made, with the batch's columns.

    `path` is a folder or a URL such as ``s3://bucket/table``, for which `storage_options` are passed on to `deltalake`.
    Tasks write the files, so on a cluster a folder must be the same for all. Files that were written and not committed,
    by a task that was repeated or a batch that was, stay until ``DeltaTable(path).vacuum(full=True)``.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    return _ToDelta(_uri_of(path), mode, key_columns(merge_on), columns, select, dict(storage_options or {}))


class _ToDelta(ExternalSink):
    def __init__(
        self,
        uri: str,
        mode: str | None,
        merge_on: tuple[str, ...],
        partition_by: tuple[str, ...],
        select: Select,
        storage: dict[str, str],
    ) -> None:
        if mode not in {None, APPEND, OVERWRITE}:
            raise Invalid(f"the mode of to_delta is append or overwrite, not {mode!r}")
        if mode is not None and merge_on:
            raise Invalid("merge_on says how rows come into the table: leave mode out")
        check_select(select)
        deltalake_module()
        self._uri = uri
        self._mode = mode
        self._merge_on = merge_on
        self._partition_by = partition_by
        self._select = select
        self._storage = storage
        self._table = DeltaPlace(uri, storage)

    @property
    def name(self) -> str:
        return f"table {self._uri}"

    @property
    def place(self) -> MarkPlace:
        return MarkPlace(f"the Delta table {self._uri}")

    def check_mode(self, mode: str) -> None:
        check_mode(mode, self._merge_on, self._mode, f"the Delta table {self._uri}")

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        overwrite = self._mode == OVERWRITE or output_mode(batch) == COMPLETE
        rows = selected(batch, self._select)
        table, mark = self._open(rows.schema), DeltaMark(key, self._uri)
        is_new, version = not mark.is_in(table), table.version()
        if is_new:
            merges = self._merge_on and not overwrite
            mode = OVERWRITE if overwrite else APPEND
            change = self._merging(table, rows) if merges else self._adding(table, rows, mode)
            if change is not None:
                crash.point("spark.once.delta_before_commit")
                # Where another driver of the query was faster, no commit names our files.
                marks = partial(_marks_of, mark)
                self._table.commit(marks, change, COMMIT_ATTEMPTS, table)
                crash.point("spark.once.delta_after_commit")
        elif self._merge_on and is_local(self._uri):
            sync_files(table, Path(self._uri))
        self._table.sync(version if is_new else 0)

    def _adding(self, table: DeltaTable, rows: DataFrame, mode: str) -> Change | None:
        """How files that tasks write come into the table, beside what is there or in its place."""
        plan = self._plan(table, rows.schema)
        files = [file for task in in_tasks(rows, partial(write_files, plan)) for file in task]
        return adding([add_of_task(file) for file in files], mode) if files or mode != APPEND else None

    def _merging(self, table: DeltaTable, rows: DataFrame) -> Change | None:
        """How rows come into the table in the place of those with the same keys."""
        plan = self._plan(table, rows.schema)
        found = one_row_a_key(collect(rows), self._merge_on)
        return partial(merge_rows, plan, found, self._merge_on) if found.num_rows else None

    def _open(self, schema: StructType) -> DeltaTable:
        table = self._table.open_if_there()
        if table is None:
            self._table.create(delta_schema(schema), self._partition_by)
            table = self._table.open()
        return table

    def _plan(self, table: DeltaTable, schema: StructType) -> FilePlan:
        """How tasks write files that belong into the table; `Invalid` if the rows do not, or if it asks more of its
        writers than to add files, or forgets which batches it has."""
        if RETENTION in table.metadata().configuration:
            raise Invalid(
                f"the Delta table {self._uri} forgets transaction ids ({RETENTION}), so a batch that "
                "is replayed late would be written twice: unset that property"
            )
        check_writable(table, self._uri)
        return file_plan(table, self._uri, self._storage, schema, self._partition_by)


def _marks_of(mark: DeltaMark, table: DeltaTable) -> Any:
    """What the commit of a batch says of itself; None if the table has the batch."""
    return None if mark.is_in(table) else properties(mark.versions())


def _uri_of(path: str | os.PathLike[str]) -> str:
    """A folder as an absolute path, or a URL as it is."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise Invalid(f"a Delta table is a folder, or a URL such as s3://bucket/table, and not {path!r}")
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)).absolute())
    return text if "://" in text else str(Path(text).absolute())
