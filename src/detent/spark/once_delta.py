"""A Delta table as a sink of `once`.

The batch number is the version of an application of the table, which is the ledger's name and the query.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from detent.errors import Invalid
from detent.spark.once_batch import ExternalSink, Select
from detent.spark.once_table import TableSink
from detent.tables.delta import RETENTION, DeltaPlace, deltalake_module, properties
from detent.tables.delta_evolution import fit_delta
from detent.tables.delta_schema import check_partitions, check_writable, delta_schema
from detent.tables.files import FilePlan, is_local
from detent.tables.marks import TableMark
from detent.tables.merge import merge_rows, sync_files
from detent.tables.options import TableOptions

if TYPE_CHECKING:
    from deltalake import DeltaTable


def to_delta(
    path: str | os.PathLike[str],
    *,
    mode: str | None = None,
    merge_on: Iterable[str] | None = None,
    partition_by: Iterable[str] | str | None = None,
    select: Select = None,
    storage_options: Mapping[str, str] | None = None,
    evolve: bool = False,
    sort_by: Iterable[str] | str | None = None,
    file_bytes: int = 0,
    compact_after: int = 0,
) -> ExternalSink:
    """A sink that appends each batch to a Delta table. With `merge_on`, columns such as ``["id"]``, a row replaces the
    one with the same key, if there is one; see `detent.tables.merge` for null and repeated keys. In complete mode, or
    with ``mode="overwrite"``, each batch replaces the table. One that is not there is made, with the batch's columns.

    `path` is a folder or a URL such as ``s3://bucket/table``; `storage_options` come before the environment's. Tasks
    write the files, so on a cluster a folder must be the same for all. With `evolve` columns that the table lacks are
    added, those that rows lack are null, and a type that is too narrow becomes a wider one, for which the table is
    rewritten once. Rows within a file are sorted by `sort_by`; a file has some `file_bytes`, before compression. With
    more than `compact_after` small files the driver compacts the table after a batch (0: never).
    """
    options = TableOptions.checked(
        mode=mode,
        merge_on=merge_on,
        partition_by=partition_by,
        storage_options=storage_options,
        evolve=evolve,
        sort_by=sort_by,
        file_bytes=file_bytes,
        compact_after=compact_after,
    )
    return delta_sink(path, options, select)


def delta_sink(path: str | os.PathLike[str], options: TableOptions, select: Select = None) -> ExternalSink:
    """The same, of arguments that were checked."""
    deltalake_module()
    return _ToDelta(DeltaPlace.at(path, options.storage), options, select)


class _ToDelta(TableSink):
    _table: DeltaPlace

    def _title(self) -> str:
        return self._table.uri

    def _create(self, schema: StructType) -> None:
        self._table.create(delta_schema(schema), self._options.partition_by)

    def _fit(self, view: DeltaTable, schema: StructType) -> DeltaTable:
        uri = self._table.uri
        if RETENTION in view.metadata().configuration:
            raise Invalid(
                f"the Delta table {uri} forgets transaction ids ({RETENTION}), so a batch that "
                "is replayed late would be written twice: unset that property"
            )
        check_writable(view, uri)
        check_partitions(view, uri, self._options.partition_by)
        return fit_delta(self._table, view, delta_schema(schema), evolve=self._options.evolve)

    def _merging(self, view: DeltaTable, rows: Any, plan: FilePlan) -> Any:  # noqa: ARG002
        return partial(merge_rows, plan, rows, self._options.rule)

    def _stamp(self, mark: TableMark) -> Any:
        return properties(mark.versions())

    def _settle(self, view: DeltaTable, *, is_new: bool) -> None:
        if not is_local(self._table.uri):
            return
        if not is_new and self._options.merge_on:
            sync_files(view, Path(self._table.uri))
        self._table.sync(view.version() if is_new else 0)
