"""An Iceberg table in any catalog, in a folder or on an object store, as the place of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete

from detent.errors import Invalid
from detent.ingest.commit_lake import LakeCommitter
from detent.ingest.config import TableStyle
from detent.ingest.prepared import PreparedBatch
from detent.ingest.shared_state import QueueSharedState
from detent.tables.catalogs import CATALOG_NAME
from detent.tables.files import FilePlan, sweep_folder
from detent.tables.iceberg_merge import Merging
from detent.tables.iceberg_table import IcebergTable, IcebergView, Look, Stamp, partitions_of
from detent.tables.orphans import BATCH_FILE, DATA_FOLDER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class CatalogCommitter(LakeCommitter):
    """Publishes into an Iceberg table through its catalog, which shares no transaction with the shards."""

    kind = "iceberg"

    def __init__(
        self,
        location: str,
        state: QueueSharedState,
        table_name: str,
        catalog: str,
        storage: Mapping[str, str] | None = None,
        style: TableStyle | None = None,
    ) -> None:
        super().__init__(location, state, storage, style)
        self._catalog = catalog
        self._place = IcebergTable(table_name, catalog, location, self.storage)

    def identity(self) -> str | None:
        try:
            view = self._place.open_if_there()
        except FileNotFoundError:  # the catalog names metadata that was deleted
            return None
        return None if view is None else _id_of(view)

    def forget_table(self, connection: Connection) -> None:
        """Delete the table's row of a catalog that is in the database of the shards: one whose metadata was deleted is
        there still. In other catalogs the table has to be dropped by hand."""
        from pyiceberg.catalog.sql import IcebergTables

        if self._catalog != connection.engine.url.render_as_string(hide_password=False):
            return
        namespace, _, name = self._place.name.rpartition(".")
        columns = IcebergTables.__table__.c
        mine = (columns.table_namespace == namespace, columns.table_name == name, columns.catalog_name == CATALOG_NAME)
        connection.execute(delete(IcebergTables).where(*mine))

    def prepare(self, schema: StructType) -> None:
        from detent.tables.iceberg_schema import iceberg_schema

        view = self._place.open_if_there()
        self.require_same(None if view is None else _id_of(view))
        wanted = iceberg_schema(schema)
        if view is None:
            self._place.create(wanted, self.style.partition_by)
            view = self._place.open()
            self.require_same(_id_of(view))
        if partitions_of(view) != self.style.partition_by:
            raise Invalid(
                f"{self._place} is partitioned by {', '.join(partitions_of(view)) or 'nothing'}, and the ingest says "
                f"{', '.join(self.style.partition_by) or 'nothing'}: set partition_by to what it is"
            )
        self._place.fit(view, wanted, evolve=True)

    def plan(self, batch: str, schema: StructType) -> FilePlan:
        del schema  # the table has it by now
        return self.merging_plan(self._place.plan(self._place.open(), **self.how(batch)))

    def mark(self) -> int | None:
        return self._place.open().transaction_version(self.application)

    def check_view(self, view: IcebergView) -> None:
        self.require_same(_id_of(view))

    def commit_marked(
        self, look: Callable[[Any], list[tuple[str, int]] | None], prepared: PreparedBatch, *, is_whole: bool
    ) -> bool:
        def said(view: IcebergView) -> Stamp | None:
            marks = look(view)
            return None if marks is None else Stamp(tuple(marks), {"detent.batch": prepared.batch})

        view = self._place.open()
        if prepared.rule is not None and is_whole:
            return self._merge(said, view, prepared)
        adding = self._place.adding(view, prepared.files if is_whole else ())
        return self._place.commit(said, adding, view=view) is not None

    def _merge(self, look: Look, view: IcebergView, prepared: PreparedBatch) -> bool:
        """Merge the rows of a batch; what attempts wrote that found others before them is swept."""
        if look(view) is None:  # before rows are read that may be gone
            return False
        assert prepared.rule is not None
        folder = f"{DATA_FOLDER}/{prepared.batch}"
        merging = Merging(self._place, self.rows_of(prepared), prepared.rule, **{**self.how(""), "folder": folder})
        if self._place.commit(look, merging, view=view) is None:
            return False
        sweep_folder(self.files, folder, {file.path for file in merging.files})
        return True

    def live_batches(self) -> frozenset[str]:
        """Those that the database has, and those whose files a snapshot has: of old commits the database forgets."""
        known = self.state.committed()
        view = self._place.open_if_there()
        if view is None:
            return known
        paths = view.table.inspect.all_data_files().column("file_path").to_pylist()
        return known | {match[1] for path in paths if (match := BATCH_FILE.search(path))}


def _id_of(view: IcebergView) -> str:
    return str(view.table.metadata.table_uuid)
