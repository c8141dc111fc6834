"""An Iceberg table as a sink of `once`, in a REST catalog or one in a database."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from detent.errors import Invalid
from detent.spark.once_batch import ExternalSink, MarkPlace, Select
from detent.spark.once_table import TableSink
from detent.tables.catalogs import CatalogGiven, require_iceberg
from detent.tables.files import FilePlan
from detent.tables.iceberg_table import IcebergTable, IcebergView, Stamp, partitions_of
from detent.tables.marks import TableMark
from detent.tables.options import TableOptions


def to_iceberg(
    table: str,
    *,
    catalog: CatalogGiven,
    location: str | os.PathLike[str] | None = None,
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
    """A sink that appends each batch to an Iceberg table, such as ``"lake.orders"``. `mode`, `merge_on`,
    `partition_by`, `evolve`, `sort_by`, `file_bytes` and `compact_after` are those of `to_delta`; to widen a type
    rewrites nothing here.

    `catalog` is the URL of a REST catalog (``https://catalog:8181``) or of a database
    (``sqlite:////data/catalog.db``, ``postgresql+psycopg://...``), a name from PyIceberg's configuration, or a
    dictionary of PyIceberg's properties. `location` is where the table is made, a folder or a URL; without it the
    catalog chooses. A catalog's own credentials for the bucket come before `storage_options`, and those before the
    environment's.
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
    return iceberg_sink(table, catalog, location, options, select)


def iceberg_sink(
    table: str,
    catalog: CatalogGiven,
    location: str | os.PathLike[str] | None,
    options: TableOptions,
    select: Select = None,
) -> ExternalSink:
    """The same, of arguments that were checked."""
    require_iceberg()
    place = None if location is None else os.fspath(location)
    if place is not None and "://" not in place:
        place = str(Path(place).absolute())
    return _ToIceberg(IcebergTable(table, catalog, place, options.storage), options, select)


class _ToIceberg(TableSink):
    _table: IcebergTable

    def _title(self) -> str:
        return self._table.name

    @property
    def place(self) -> MarkPlace:
        return MarkPlace(str(self._table), repr(self._table.given))

    def _create(self, schema: StructType) -> None:
        from detent.tables.iceberg_schema import iceberg_schema

        self._table.create(iceberg_schema(schema), self._options.partition_by)

    def _fit(self, view: IcebergView, schema: StructType) -> IcebergView:
        from detent.tables.iceberg_schema import iceberg_schema

        partitions = partitions_of(view)
        wanted = self._options.partition_by
        if wanted and wanted != partitions:
            raise Invalid(f"{self._table} is partitioned by {list(partitions)}, not {wanted}")
        return self._table.fit(view, iceberg_schema(schema), evolve=self._options.evolve)

    def _merging(self, view: IcebergView, rows: Any, plan: FilePlan) -> Any:  # noqa: ARG002
        from detent.tables.iceberg_merge import Merging

        how = {"folder": plan.folder, "sort_by": plan.sort_by, "target_bytes": plan.target_bytes}
        return Merging(self._table, rows, self._options.rule, **how)

    def _stamp(self, mark: TableMark) -> Stamp:
        return Stamp(tuple(mark.versions()), {"detent.batch": str(mark.key)})

    def _settle(self, view: IcebergView, *, is_new: bool) -> None:
        """Files are durable before the catalog names them, and the catalog is a database, or says so itself."""
        del view, is_new
