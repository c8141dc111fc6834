"""An Iceberg table in a folder, whose catalog is in a SQL database.

A commit to it writes new metadata files and then moves one pointer to them: a row of the catalog. Other rows of the
same database can move in the same transaction. PyIceberg begins and ends that transaction itself; a listener that runs
just before its end does the caller's work, and sees to it that the metadata files survive a power failure, which
PyIceberg leaves to chance. Any reader finds the table with PyIceberg's catalog of type ``sql`` on the same database,
under the name ``detent``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine, delete, event, select
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from detent.errors import Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable
from detent.extras import install_command
from detent.kv.localobjects import sync_directory
from detent.runtime.backoff import Backoff
from detent.sql.transactions import read, transact
from detent.tables.iceberg_metadata import (
    METADATA_ENDINGS,
    PROPERTIES,
    delete_files,
    dropped_versions,
    forgetting,
    lightened,
    path_of,
    reached_files,
)
from detent.tables.orphans import old_files

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from sqlalchemy import Select

CATALOG_NAME: Final = "detent"
"""The catalog's name. It is part of the key of all its rows, so readers of the table have to say it."""

COMMIT_ATTEMPTS: Final = 30
"""How often a commit is tried that others came in the way of. Of those that commit at once one wins each time, so this
is also about how many pipelines a table has room for."""

RETRY: Final = Backoff(0.01, 0.5, jitter=1)
"""An attempt takes 10 to 20 ms: waits begin at that size, and are drawn anew each time, so that rivals fall out of
step."""

SOURCE_PROPERTY: Final = "detent.source"
"""The property of a table that says whose it is."""

Result = TypeVar("Result")

Swap = Callable[[Connection, list[str]], None]
"""What is done in the transaction that moves the pointer to an append, with the metadata files that are new."""

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


class IcebergPlace:
    """Where an Iceberg table is, or can be: a folder, its name in the catalog, and the source to which it belongs."""

    def __init__(
        self,
        engine: Engine,
        location: str,
        name: str,
        source: str,
        catalog_properties: Mapping[str, str] | None = None,
    ) -> None:
        """`name` has a namespace, such as ``lake.orders``; `catalog_properties` are passed on to PyIceberg."""
        if "://" in location:
            raise Invalid(f"an Iceberg table is in a folder here, and not at {location!r}")
        self.location = os.path.abspath(location)
        self.name = name
        self._namespace, _, self._plain_name = name.rpartition(".")
        if not all((*self._namespace.split("."), self._plain_name)):
            raise Invalid(f"an Iceberg table is named with its namespace, such as lake.orders, and not {name!r}")
        self._source = source
        self._engine = engine
        self._catalog = _open_catalog(engine, self.location, catalog_properties or {})

    @property
    def _metadata_folder(self) -> Path:
        return Path(self.location) / "metadata"

    def open(self) -> Table:
        """The table as it is now, as PyIceberg has it."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self.name)
        except NoSuchTableError:
            raise NotFound(f"the database of the shards knows no Iceberg table {self.name}") from None

    def identity(self) -> str | None:
        """What tells the table from every other that could stand in its place; None if there is none."""
        while True:
            location = read(self._engine, self._located)
            try:
                return id_of(self.open())
            except NotFound:
                return None
            except FileNotFoundError:  # a commit may have replaced the metadata while it was read
                if read(self._engine, self._located) == location:
                    return None

    def _located(self, connection: Connection) -> str | None:
        location: str | None = connection.execute(self._pointer()).scalar_one_or_none()
        return location

    def forget(self, connection: Connection) -> None:
        """Delete the table's row of the catalog: one whose metadata was deleted is there still, and another one cannot
        be made in its place."""
        from pyiceberg.catalog.sql import IcebergTables

        connection.execute(delete(IcebergTables).where(*self._pointing()))

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
            columns.table_name == self._plain_name,
        )

    # -- making and widening the table -------------------------------------------------------------------------------

    def fit(self, wanted: Schema, check: Callable[[Table], None]) -> None:
        """Make the table, or give it the columns that it lacks; `check` may refuse the one that is there."""
        from detent.tables.iceberg_schema import lacks_columns

        table = self._open_or_create(wanted)
        self._check_ours(table)
        check(table)
        is_lacking = lacks_columns(table.schema(), wanted, self.name, widens=True)
        properties = {SOURCE_PROPERTY: self._source}
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

    def _open_or_create(self, wanted: Schema) -> Table:
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        with contextlib.suppress(NotFound):
            return self.open()
        with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):  # another one makes it at this moment
            self._catalog.create_namespace(self._namespace)
        properties = {**PROPERTIES, SOURCE_PROPERTY: self._source}
        with contextlib.suppress(TableAlreadyExistsError), _swapping(self._sync):
            self._catalog.create_table(self.name, wanted, location=self.location, properties=properties)
        return self.open()

    def _check_ours(self, table: Table) -> None:
        if path_of(table.location()) != Path(self.location):
            raise Invalid(f"the Iceberg table {self.name} is in {table.location()}, and not in {self.location}")
        source = table.properties.get(SOURCE_PROPERTY, self._source)
        if source != self._source:
            raise Invalid(
                f"the Iceberg table {self.name} belongs to the source {source!r}, which would sweep the files of "
                f"{self._source!r} away as orphans: give each source a table"
            )
        if table.spec().fields:
            raise Invalid(f"the Iceberg table {self.name} is partitioned, and the files of a batch are not")

    # -- appending ---------------------------------------------------------------------------------------------------

    def describe(self, paths: Iterable[str]) -> list[DataFile]:
        """What the table will say of files, from their footers: they are read once, however often others win."""
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, parquet_file_to_data_file

        table = self.repeat(self.open)
        try:
            return [parquet_file_to_data_file(table.io, table.metadata, path) for path in paths]
        except UnsupportedPyArrowTypeException as error:
            raise Invalid(
                f"a file has what Iceberg has not: {error}. Spark's times are to be written with "
                "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"
            ) from error
        except (ValueError, TypeError) as error:
            raise Invalid(f"the files do not fit the Iceberg table {self.name}: {error}") from error

    def append(
        self, files: Iterable[DataFile], properties: Mapping[str, str], check: Callable[[Table], None], swap: Swap
    ) -> None:
        """Bring files into the table, and do what `swap` does, in one transaction; `properties` are the snapshot's."""
        table = self.open()
        check(table)
        before = table.metadata
        table.metadata = lightened(before)
        transaction = table.transaction()
        with transaction.update_snapshot(snapshot_properties=dict(properties)).merge_append() as append:
            for file in files:
                append.append_data_file(file)

        def work(session: Session) -> None:
            swap(session.connection(), self._sync(session, append.snapshot_id))

        with _swapping(work):
            transaction.commit_transaction()
        delete_files(dropped_versions(before, table.metadata))
        self._forget_snapshots(table)

    def _forget_snapshots(self, table: Table) -> None:
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
            sync_directory(folder)
        return files

    def repeat(self, work: Callable[[], Result], is_unknown: Callable[[], bool] = lambda: False) -> Result:
        """Do what others may come in the way of, until they do not. `is_unknown` says whether an attempt that failed
        may have been committed."""
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                return work()
            except (CommitFailedException, OperationalError, InterfaceError, FileNotFoundError) as error:
                failure = error
            time.sleep(RETRY.pause_s(attempt))
        if is_unknown():
            raise OutcomeUnknown(f"it cannot be told whether {self.name} has the batch: {failure}") from failure
        raise Unavailable(f"{self.name} was not to be had in {COMMIT_ATTEMPTS} attempts: {failure}") from failure

    # -- what is there, and what is left over ------------------------------------------------------------------------

    def files(self) -> list[Path]:
        """The data files of all snapshots; `NotFound` without a table."""
        paths = self.open().inspect.all_data_files().column("file_path").to_pylist()
        return [path_of(path) for path in paths]

    def sweep_metadata(self, limit: float) -> None:
        """Delete the metadata files from before a time that the table does not reach."""
        from pyiceberg.table import StaticTable

        old = old_files(self._metadata_folder, METADATA_ENDINGS, limit)
        lists: dict[str, frozenset[str]] = {}
        with contextlib.suppress(NotFound, FileNotFoundError):  # a table that changes under our eyes is read below
            if reached_files(self.open(), lists).issuperset(old):
                return

        def sweep(connection: Connection) -> None:
            location = connection.execute(self._pointer().with_for_update()).scalar_one_or_none()
            if location is not None:
                reached = reached_files(StaticTable.from_metadata(location), lists)
                delete_files(str(self._metadata_folder / name) for name in old if name not in reached)

        transact(self._engine, sweep)


def id_of(table: Table) -> str:
    """What tells a table from every other that could stand in its place."""
    return str(table.metadata.table_uuid)


def _open_catalog(engine: Engine, location: str, properties: Mapping[str, str]) -> SqlCatalog:
    """A catalog that uses the engine of the shards, so that SQLite is as durable and as patient for both."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
    except ModuleNotFoundError as error:
        raise Invalid(f"an Iceberg table needs PyIceberg: {install_command('iceberg')} ({error})") from error
    transact(engine, SqlCatalogBaseTable.metadata.create_all)
    uri = engine.url.render_as_string(hide_password=False)
    catalog = SqlCatalog(CATALOG_NAME, **{"warehouse": location, **properties, "uri": uri})
    catalog.engine.dispose()
    catalog.engine = engine
    return catalog
