"""An Iceberg table whose catalog is in the database of the shards, which move in the same transaction as its pointer.

See `detent.tables.iceberg`; :meth:`IcebergCommitter.table` is a short way to the table for readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from detent.errors import Corrupt, NotFound, ShardsLost
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.config import TableStyle
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.iceberg import SOURCE_PROPERTY, IcebergPlace, id_of
from detent.tables.iceberg_metadata import delete_files
from detent.tables.orphans import sweeping_time_s

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType


class IcebergCommitter(TableCommitter):
    """Publishes into an Iceberg table in a folder. A table belongs to one source, which sweeps its folders."""

    kind = "iceberg"

    def __init__(
        self,
        location: str,
        state: QueueSharedState,
        table_name: str,
        catalog_properties: Mapping[str, str] | None = None,
        style: TableStyle | None = None,
    ) -> None:
        """`table_name` has a namespace, such as ``lake.orders``; `catalog_properties` are passed on to PyIceberg."""
        self._place = IcebergPlace(state.engine, location, table_name, state.source, catalog_properties)
        super().__init__(self._place.location, state, style=style)

    def table(self) -> Table:
        """The table as it is now, as PyIceberg has it."""
        return self._place.open()

    def identity(self) -> str | None:
        return self._place.identity()

    def forget_table(self, connection: Connection) -> None:
        self._place.forget(connection)

    def _require_same(self, table: Table) -> None:
        self.require_same(id_of(table))

    def prepare(self, schema: StructType) -> None:
        from detent.tables.iceberg_schema import iceberg_schema

        wanted = iceberg_schema(schema)
        self.require_owned()
        self._place.repeat(lambda: self._place.fit(wanted, self._require_same))

    def publish(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        publication = _Publication(self.state, shards, output)
        self.require_owned()
        work = publication.advance_alone
        if output.files:
            files = self._describe(shards, output)
            properties = publication.properties()
            work = partial(self._place.append, files, properties, self._require_same, publication.advance_with)
        self._place.repeat(lambda: publication.attempt(work), lambda: publication.is_unknown)

    def _describe(self, shards: Sequence[FileShard], output: BatchOutput) -> list[DataFile]:
        try:
            return self._place.describe(f"{self.location}/{file.path}" for file in output.files)
        except FileNotFoundError as error:
            if self.state.was_refused(output.batch):  # it was swept while we slept
                raise self.state.shards_lost(shard.key for shard in shards) from error
            raise NotFound(f"a file of the batch {output.batch} is gone: {error}") from error

    def live_batches(self) -> frozenset[str]:
        """Those that the database has, and those whose files a snapshot has: of old commits the database forgets."""
        known = self.state.committed()
        try:
            return known | {path.parent.name for path in self._place.files()}
        except NotFound:
            return known

    def refuse(self, batch: str) -> bool:
        return self.state.refuse(batch)

    def sweep(self, older_than_s: float, known_s: float = math.inf) -> int:
        """As for every table, and then the metadata files that the table does not reach."""
        swept = super().sweep(older_than_s, known_s)
        self._place.sweep_metadata(sweeping_time_s() - older_than_s)
        return swept


class _Publication:
    """A batch on its way into the table, through as many attempts as it takes."""

    def __init__(self, state: QueueSharedState, shards: Sequence[FileShard], output: BatchOutput) -> None:
        self._state = state
        self._shards = shards
        self._output = output
        self._is_advanced = False
        self._files: list[str] = []
        """Metadata files of the attempt, if it came as far as to name them."""

        self.is_unknown = False
        """Whether an attempt failed when all of it was done, so that it may have been committed."""

    def properties(self) -> dict[str, str]:
        """What the snapshot says of where it is from, for those who look into a table's history."""
        state = self._state
        return {"detent.batch": self._output.batch, "detent.token": state.token, SOURCE_PROPERTY: state.source}

    def advance_with(self, connection: Connection, files: list[str]) -> None:
        """Move the shards, in the transaction that publishes their rows."""
        self._files = files
        self._advance(connection)

    def advance_alone(self) -> None:
        """A batch without rows is none of the table's business."""
        with self._state.engine.begin() as connection:
            self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        self._state.advance(connection, self._shards, self._output.record(len(self._shards)))
        self._is_advanced = True

    def attempt(self, work: Callable[[], None]) -> None:
        """Try once. A failure whose outcome is unknown is cleared up by the next attempt: it waits for the rows that
        the first one may still hold, and then either gets them or finds the batch committed."""
        self._is_advanced = False
        self._files = []
        try:
            work()
        except Exception as error:
            self.is_unknown |= self._is_advanced
            if isinstance(error, ShardsLost):
                delete_files(self._files)  # that transaction never ended, so no reader will ask for them
            if self.is_unknown and self._state.has_committed(self._output.batch):
                return
            if isinstance(error, IntegrityError) and self._state.has_committed(self._output.batch):
                raise self._state.shards_lost(shard.key for shard in self._shards) from error
            raise
        if not self._is_advanced:
            raise Corrupt("PyIceberg committed without asking: its rows are there, and their files are not finished")
