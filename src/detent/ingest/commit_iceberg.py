"""An Iceberg table whose catalog is in the database of the shards.

An Iceberg commit writes new metadata files and then moves one pointer to them: a row of the catalog. The shards are
rows of the same database, so they move in the same transaction. PyIceberg begins and ends that transaction itself; a
listener that runs just before its end checks and moves the shards, and sees to it that the metadata files survive a
power failure, which PyIceberg leaves to chance.

Any reader finds the table with PyIceberg's catalog of type ``sql`` on the same database, under the name ``detent``;
:meth:`IcebergCommitter.table` is a short way to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, delete, event, select
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from detent.errors import Corrupt, Invalid, NotFound, OutcomeUnknown, ShardsLost, Unavailable
from detent.extras import install_command
from detent.ingest.committer import Committer, Output, sweeping_time_s
from detent.ingest.iceberg_metadata import (
    PROPERTIES,
    delete_files,
    dropped_versions,
    forgetting,
    lightened,
    old_metadata,
    path_of,
    reached_files,
)
from detent.ingest.metastore import read, transact
from detent.ingest.shared_state import QueueSharedState, Shard
from detent.runtime.backoff import Backoff
from detent.spark.delta_files import sync_folder

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql.types import StructType
    from sqlalchemy import Select

CATALOG_NAME: Final = "detent"
"""The catalog's name. It is part of the key of all its rows, so whoever reads the table has to say it."""

COMMIT_ATTEMPTS: Final = 30
"""How often a commit is tried that others came in the way of. Of those that commit at once one wins each time, so this
is also about how many pipelines a table has room for."""

RETRY: Final = Backoff(0.01, 0.5, jitter=1)
"""An attempt takes 10 to 20 ms: waits begin at that size, and are drawn anew each time, so that rivals fall out of
step."""

SOURCE_PROPERTY: Final = "detent.source"
"""The property of a table that says whose it is."""


Result = TypeVar("Result")

_at_swap: ContextVar[Callable[[Session], object] | None] = ContextVar("detent_iceberg_at_swap", default=None)


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    """All sessions of the process come by here; meant are those that PyIceberg opens inside of `_swapping`."""
    work = _at_swap.get()
    if work is not None:
        work(session)


@contextlib.contextmanager
def _swapping(work: Callable[[Session], object]) -> Iterator[None]:
    """Around the one call of PyIceberg's that moves the pointer: `work` is done in the transaction that does."""
    token = _at_swap.set(work)
    try:
        yield
    finally:
        _at_swap.reset(token)


class IcebergCommitter(Committer):
    """Publishes into an Iceberg table in a folder. A table belongs to one source, which sweeps its folders."""

    kind = "iceberg"

    def __init__(
        self,
        location: str,
        state: QueueSharedState,
        table_name: str,
        catalog_properties: Mapping[str, str] | None = None,
    ) -> None:
        """`table_name` has a namespace, such as ``lake.orders``; `catalog_properties` are passed on to PyIceberg."""
        if "://" in location:
            raise Invalid(f"an Iceberg table is in a folder here, and not at {location!r}")
        super().__init__(os.path.abspath(location), state)
        self._namespace, _, name = table_name.rpartition(".")
        if not all((*self._namespace.split("."), name)):
            raise Invalid(f"an Iceberg table is named with its namespace, such as lake.orders, and not {table_name!r}")
        self._name = table_name
        self._catalog = _open_catalog(state, self.location, catalog_properties or {})

    @property
    def _metadata_folder(self) -> Path:
        return Path(self.location) / "metadata"

    def table(self) -> Table:
        """The table as it is now, as PyIceberg has it."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            raise NotFound(f"the database of the shards knows no Iceberg table {self._name}") from None

    def identity(self) -> str | None:
        while True:
            location = read(self.state.engine, self._located)
            try:
                return _id_of(self.table())
            except NotFound:
                return None
            except FileNotFoundError:  # a commit may have replaced the metadata while it was read
                if read(self.state.engine, self._located) == location:
                    return None

    def _located(self, connection: Connection) -> str | None:
        location: str | None = connection.execute(self._pointer()).scalar_one_or_none()
        return location

    def forget_table(self, connection: Connection) -> None:
        """A table whose metadata was deleted is in the catalog still, and another one cannot be made in its place."""
        from pyiceberg.catalog.sql import IcebergTables

        connection.execute(delete(IcebergTables).where(*self._pointing()))

    # -- making and widening the table -------------------------------------------------------------------------------

    def prepare(self, schema: StructType) -> None:
        from detent.ingest.iceberg_schema import iceberg_schema

        wanted = iceberg_schema(schema)
        self.require_owned()
        self._repeat(lambda: self._fit(wanted))

    def _fit(self, wanted: Schema) -> None:
        from detent.ingest.iceberg_schema import lacks_columns

        table = self._load_or_create(wanted)
        self._check_ours(table)
        self.require_same(_id_of(table))
        is_lacking = lacks_columns(table.schema(), wanted, self._name)
        properties = {SOURCE_PROPERTY: self.state.source}
        if table.name_mapping() is None:  # Spark's files know columns by their names only
            properties["schema.name-mapping.default"] = table.schema().name_mapping.model_dump_json()
        if not is_lacking and properties.items() <= table.properties.items():
            return
        transaction = table.transaction()
        transaction.set_properties(properties)
        if is_lacking:
            with transaction.update_schema() as update:
                update.union_by_name(wanted)
        with _swapping(self._sync):
            transaction.commit_transaction()

    def _load_or_create(self, wanted: Schema) -> Table:
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        with contextlib.suppress(NotFound):
            return self.table()
        with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):  # another one makes it at this moment
            self._catalog.create_namespace(self._namespace)
        properties = {**PROPERTIES, SOURCE_PROPERTY: self.state.source}
        with contextlib.suppress(TableAlreadyExistsError), _swapping(self._sync):
            self._catalog.create_table(self._name, wanted, location=self.location, properties=properties)
        return self.table()

    def _check_ours(self, table: Table) -> None:
        if path_of(table.location()) != Path(self.location):
            raise Invalid(f"the Iceberg table {self._name} is in {table.location()}, and not in {self.location}")
        source = table.properties.get(SOURCE_PROPERTY, self.state.source)
        if source != self.state.source:
            raise Invalid(
                f"the Iceberg table {self._name} belongs to the source {source!r}, which would sweep the files of "
                f"{self.state.source!r} away as nobody's: give each source a table"
            )
        if table.spec().fields:
            raise Invalid(f"the Iceberg table {self._name} is partitioned, and the files of a batch are not")

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, shards: Sequence[Shard], output: Output) -> None:
        publication = _Publication(self.state, shards, output)
        self.require_owned()
        if output.files:
            files = self._describe(shards, output)
            self._repeat(lambda: publication.attempt(lambda: self._append(files, publication)), publication)
        else:
            self._repeat(lambda: publication.attempt(publication.advance_alone), publication)

    def _describe(self, shards: Sequence[Shard], output: Output) -> list[DataFile]:
        """What the table will say of the files, from their footers. These are read once, however often others win."""
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, parquet_file_to_data_file

        table = self._repeat(self.table)
        try:
            return [parquet_file_to_data_file(table.io, table.metadata, file.path) for file in output.files]
        except FileNotFoundError as error:
            if self.state.was_refused(output.batch):  # it was swept while we slept
                raise self.state.shards_lost(shard.key for shard in shards) from error
            raise NotFound(f"a file of the batch {output.batch} is gone: {error}") from error
        except UnsupportedPyArrowTypeException as error:
            raise Invalid(
                f"a file has what Iceberg has not: {error}. Spark's times are to be written with "
                "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"
            ) from error
        except (ValueError, TypeError) as error:
            raise Invalid(f"the files do not fit the Iceberg table {self._name}: {error}") from error

    def _append(self, files: list[DataFile], publication: _Publication) -> None:
        table = self.table()
        self.require_same(_id_of(table))
        before = table.metadata
        table.metadata = lightened(before)
        transaction = table.transaction()
        with transaction.update_snapshot(snapshot_properties=publication.properties()).merge_append() as append:
            for file in files:
                append.append_data_file(file)

        def swap(session: Session) -> None:
            publication.files = self._sync(session, append.snapshot_id)
            publication.advance(session.connection())

        with _swapping(swap):
            transaction.commit_transaction()
        delete_files(dropped_versions(before, table.metadata))
        self._forget(table)

    def _forget(self, table: Table) -> None:
        """Drop old snapshots, in a commit of its own. It is not what was asked for, so it may fail: then the next one
        does it."""
        from pyiceberg.exceptions import CommitFailedException

        requirements, updates = forgetting(table)
        if updates:
            # A value is wrong when another one has dropped the same snapshots.
            passing = (CommitFailedException, OperationalError, FileNotFoundError, ValueError)
            with contextlib.suppress(*passing), _swapping(self._sync):
                self._catalog.commit_table(table, requirements, updates)

    def _sync(self, session: Session, snapshot_id: int | None = None) -> list[str]:
        """Make the metadata that the pointer names in this transaction survive a power failure; which files are new.

        If this pipeline slept for very long, they may have been swept. They are opened while the pointer's row is
        ours, and a sweep deletes while it has that row: so they are there to stay, or this fails and nothing is named.
        """
        from pyiceberg.table import StaticTable

        location: str = session.execute(self._pointer()).scalar_one()
        files = [location]
        if snapshot_id is not None:
            table = StaticTable.from_metadata(location)
            snapshot = table.current_snapshot()
            if snapshot is None or snapshot.snapshot_id != snapshot_id:
                raise Corrupt(f"PyIceberg ends another transaction than that of the snapshot {snapshot_id}")
            manifests = [one for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot_id]
            files += [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
        for file in files:
            with path_of(file).open("rb") as opened:
                os.fsync(opened.fileno())
        for folder in (self._metadata_folder, Path(self.location), Path(self.location).parent):
            sync_folder(folder)
        return files

    def _pointer(self) -> Select[Any]:
        from pyiceberg.catalog.sql import IcebergTables

        return select(IcebergTables.__table__.c.metadata_location).where(*self._pointing())

    def _pointing(self) -> tuple[Any, ...]:
        """What chooses the table's row of the catalog."""
        from pyiceberg.catalog.sql import IcebergTables

        columns = IcebergTables.__table__.c
        return (
            columns.catalog_name == CATALOG_NAME,
            columns.table_namespace == self._namespace,
            columns.table_name == self._name.rpartition(".")[2],
        )

    def _repeat(self, work: Callable[[], Result], publication: _Publication | None = None) -> Result:
        """Do what others may come in the way of, until they do not."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                return work()
            except (CommitFailedException, OperationalError, InterfaceError, FileNotFoundError) as error:
                failure = error
            time.sleep(RETRY.pause_s(attempt))
        if publication is not None and publication.is_unknown:
            raise OutcomeUnknown(f"nobody can say whether {self._name} has the batch: {failure}") from failure
        raise Unavailable(f"{self._name} was not to be had in {COMMIT_ATTEMPTS} attempts: {failure}") from failure

    # -- what is there, and what is left over ------------------------------------------------------------------------

    def live_batches(self) -> frozenset[str]:
        """Those that the database has, and those whose files a snapshot has: of old commits the database forgets."""
        known = self.state.committed()
        try:
            paths = self.table().inspect.all_data_files().column("file_path").to_pylist()
        except NotFound:
            return known
        return known | {path_of(path).parent.name for path in paths}

    def refuse(self, batch: str) -> bool:
        return self.state.refuse(batch)

    def sweep(self, older_than_s: float, known_s: float = math.inf) -> int:
        """As for every table, and then the metadata files that the table does not reach."""
        swept = super().sweep(older_than_s, known_s)
        self._sweep_metadata(sweeping_time_s() - older_than_s)
        return swept

    def _sweep_metadata(self, limit: float) -> None:
        from pyiceberg.table import StaticTable

        old = old_metadata(self._metadata_folder, limit)
        lists: dict[str, frozenset[str]] = {}
        with contextlib.suppress(NotFound, FileNotFoundError):  # a table that changes under our eyes is read below
            if reached_files(self.table(), lists).issuperset(old):
                return

        def delete(connection: Connection) -> None:
            location = connection.execute(self._pointer().with_for_update()).scalar_one_or_none()
            if location is not None:
                reached = reached_files(StaticTable.from_metadata(location), lists)
                delete_files(str(self._metadata_folder / name) for name in old if name not in reached)

        transact(self.state.engine, delete)


def _id_of(table: Table) -> str:
    return str(table.metadata.table_uuid)


class _Publication:
    """A batch on its way into the table, through as many attempts as it takes."""

    def __init__(self, state: QueueSharedState, shards: Sequence[Shard], output: Output) -> None:
        self._state = state
        self._shards = shards
        self._output = output
        self._is_advanced = False
        self.files: list[str] = []
        """Metadata files of the attempt, if it came as far as to name them."""

        self.is_unknown = False
        """Whether an attempt failed when all of it was done, so that it may have been committed."""

    def properties(self) -> dict[str, str]:
        """What the snapshot says of where it is from, for those who look into a table's history."""
        state = self._state
        return {"detent.batch": self._output.batch, "detent.token": state.token, SOURCE_PROPERTY: state.source}

    def advance(self, connection: Connection) -> None:
        """Move the shards, in the transaction that publishes their rows."""
        self._state.advance(connection, self._shards, self._output.record(len(self._shards)))
        self._is_advanced = True

    def advance_alone(self) -> None:
        """A batch without rows is none of the table's business."""
        with self._state.engine.begin() as connection:
            self.advance(connection)

    def attempt(self, work: Callable[[], None]) -> None:
        """Try once. A failure of which nobody knows what came of it is cleared up by the next attempt: it waits for
        the rows that the first one may still hold, and then either gets them or finds the batch committed."""
        self._is_advanced = False
        self.files = []
        try:
            work()
        except Exception as error:
            self.is_unknown |= self._is_advanced
            if isinstance(error, ShardsLost):
                delete_files(self.files)  # that transaction never ended, so nobody will ever read them
            if self.is_unknown and self._state.has_committed(self._output.batch):
                return
            if isinstance(error, IntegrityError) and self._state.has_committed(self._output.batch):
                raise self._state.shards_lost(shard.key for shard in self._shards) from error
            raise
        if not self._is_advanced:
            raise Corrupt("PyIceberg committed without asking: its rows are there, and their files are not finished")


def _open_catalog(state: QueueSharedState, location: str, properties: Mapping[str, str]) -> SqlCatalog:
    """A catalog that uses the engine of the shards, so that SQLite is as durable and as patient for both."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
    except ModuleNotFoundError as error:
        raise Invalid(f"an Iceberg table needs PyIceberg: {install_command('iceberg')} ({error})") from error
    transact(state.engine, SqlCatalogBaseTable.metadata.create_all)
    uri = state.engine.url.render_as_string(hide_password=False)
    catalog = SqlCatalog(CATALOG_NAME, **{"warehouse": location, **properties, "uri": uri})
    catalog.engine.dispose()
    catalog.engine = state.engine
    return catalog
