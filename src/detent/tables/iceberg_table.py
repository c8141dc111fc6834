"""An Iceberg table in any catalog, at any place: made, widened, and changed by one commit with the marks in it.

The marks of a commit are in its snapshot, and as properties of the table in the same commit: snapshots expire, and a
walk along them then takes "expired" for "never". An append asserts which snapshot the branch had in the view where the
marks were looked up, so a commit that came in between makes it fail, and the marks are looked up again.

PyIceberg would repeat a commit that failed by itself, without looking at our marks, and delete the manifests of one
that was refused, which a lost answer can be, too. So the catalog is asked directly. Manifests of commits that were
refused stay behind, and are swept with the other orphans.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from detent.errors import Conflict, DetentError, Invalid, NotFound, OutcomeUnknown, Unavailable
from detent.runtime.backoff import Backoff
from detent.tables.catalogs import CatalogGiven, missing_iceberg, open_catalog
from detent.tables.files import FilePlan, WrittenFile, read_footer, schema_bytes
from detent.tables.iceberg_io import storage_of
from detent.tables.iceberg_metadata import PROPERTIES, dropped_versions, forgetting, lightened

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

MARK: Final = "detent.mark."
"""What properties of the table and of snapshots begin with that say which version of an application is in it."""

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried that other writers of the table came before."""

RETRY: Final = Backoff(0.02, 2, jitter=1)
"""An attempt at a catalog elsewhere takes some 100 ms."""

SNAPSHOTS_KEPT: Final = 100
SNAPSHOT_AGE_S: Final = 3600.0
"""A snapshot is forgotten when there are a hundred after it, and it is an hour old: readers have planned by it."""

_NONE: Final[Mapping[str, str]] = {}

logger = logging.getLogger("detent.tables")


@dataclass(frozen=True)
class Stamp:
    """What a commit says of itself: the versions of applications, and remarks for readers of the history."""

    versions: tuple[tuple[str, int], ...]
    remarks: Mapping[str, str] = field(default_factory=dict)

    def marks(self) -> dict[str, str]:
        """The properties of the table, and of the snapshot."""
        return {f"{MARK}{application}": str(version) for application, version in self.versions}


class IcebergView:
    """The table as it was when it was opened."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def transaction_version(self, app_id: str) -> int | None:
        """The last version of an application that the table has. The property says it; where it was taken away, the
        newest snapshot that does. (Versions need not grow: that of a batch's input is a digest.)"""
        name = f"{MARK}{app_id}"
        metadata = self.table.metadata
        newest = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0, reverse=True)
        summaries = (one.summary.additional_properties for one in newest if one.summary is not None)
        for properties in (metadata.properties, *summaries):
            if name in properties:
                return int(properties[name])
        return None


Look = Callable[[IcebergView], Stamp | None]
"""Looks a commit's marks up in a view of the table, and answers what the commit says of itself; None if nothing is to
be committed."""

Change = Callable[["Transaction", dict[str, str]], None]
"""What a commit does in a transaction, with the properties of its snapshot."""


class IcebergTable:
    """Where an Iceberg table is, or can be: a catalog, its name there, and its folder or URL if the catalog does not
    choose one."""

    kind: Final = "Iceberg"

    def __init__(
        self, name: str, catalog: CatalogGiven, location: str | None = None, storage: Mapping[str, str] = _NONE
    ) -> None:
        self.name = name
        self._namespace, _, plain = name.rpartition(".")
        if not all((*self._namespace.split("."), plain)):
            raise Invalid(f"an Iceberg table is named with its namespace, such as lake.orders, and not {name!r}")
        self.location = None if location is None else location.rstrip("/")
        self.given = catalog
        self.storage = dict(storage)
        self._catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_catalog": None}

    def __str__(self) -> str:
        return f"the Iceberg table {self.name}"

    @property
    def catalog(self) -> Catalog:
        """The catalog, opened once."""
        if self._catalog is None:
            parent = None if self.location is None else self.location.rpartition("/")[0]
            self._catalog = open_catalog(self.given, self.storage, parent)
        return self._catalog

    def close(self) -> None:
        """Close the connections to the catalog; the next use opens them again."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    # -- what is there ----------------------------------------------------------------------------------------------

    def open(self) -> IcebergView:
        """A view of the table as it is now; `NotFound` if there is none."""
        view = self.open_if_there()
        if view is None:
            raise NotFound(f"the catalog knows no Iceberg table {self.name}")
        return view

    def open_if_there(self) -> IcebergView | None:
        """The same; None if there is no table."""
        from pyiceberg.exceptions import NoSuchTableError

        with _reaching(self.name):
            try:
                table = self.catalog.load_table(self.name)
            except NoSuchTableError:
                return None
        if self.location is not None and table.location().rstrip("/") not in {self.location, f"file://{self.location}"}:
            raise Invalid(f"the Iceberg table {self.name} is in {table.location()}, and not in {self.location}")
        return IcebergView(table)

    def create(self, schema: Schema, partition_by: Sequence[str] = (), properties: Mapping[str, str] = _NONE) -> None:
        """Make the table, unless another process has made it just now."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        made = {**PROPERTIES, "detent.snapshots-kept": str(SNAPSHOTS_KEPT), **properties}
        with _reaching(self.name):
            with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
                self.catalog.create_namespace(self._namespace)
            with contextlib.suppress(TableAlreadyExistsError):
                spec = _identities(schema, partition_by)
                self.catalog.create_table(self.name, schema, self.location, partition_spec=spec, properties=made)

    def fit(self, view: IcebergView, wanted: Schema, *, evolve: bool, attempts: int = COMMIT_ATTEMPTS) -> IcebergView:
        """A view of the table that holds rows of a schema; `Invalid` if they do not fit. With `evolve` the table gets
        the columns that it lacks, and types that hold the rows' values; rows may lack what it has."""
        from detent.tables.iceberg_schema import check_same, lacks_columns

        if not evolve:
            check_same(view.table.schema(), wanted, self.name)
            return view

        def look(view: IcebergView) -> Stamp | None:
            return Stamp(()) if lacks_columns(view.table.schema(), wanted, self.name, widens=True) else None

        def change(transaction: Transaction, _properties: dict[str, str]) -> None:
            with transaction.update_schema() as update:
                update.union_by_name(wanted)

        done = self.commit(look, change, attempts, view)
        return view if done is None else self.open()

    # -- files ------------------------------------------------------------------------------------------------------

    def plan(self, view: IcebergView, **how: Any) -> FilePlan:
        """How tasks write files that belong into the table; `how` are arguments of `FilePlan`."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        table = view.table
        schema = table.schema()
        return FilePlan(
            table.location(),
            storage_of(table.io.properties),
            schema_bytes(schema_to_pyarrow(schema)),
            partitions_of(view),
            tuple(field.name for field in schema.fields if field.required),
            holds_values=True,
            tells_footer=True,
            **how,
        )

    def data_files(self, view: IcebergView, files: Sequence[WrittenFile]) -> list[DataFile]:
        """What the table will say of files that tasks wrote, from what the tasks answered: nothing is read."""
        from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping

        metadata = view.table.metadata
        schema = metadata.schema()
        plan = compute_statistics_plan(schema, metadata.properties)
        places = parquet_path_to_id_mapping(schema)
        return [_data_file(view, file, plan, places) for file in files]

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(
        self, look: Look, change: Change, attempts: int = COMMIT_ATTEMPTS, view: IcebergView | None = None
    ) -> IcebergView | None:
        """Change the table from the view of it in which the marks were looked up; that view, or None if `look` found
        that there is nothing to commit. When another commit came in between, or it is unknown whether this one was
        made, a new view is opened and looked at."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        is_unknown = False
        for attempt in range(1, attempts + 1):
            view = view or self.open()
            stamp = look(view)
            if stamp is None:
                return None
            try:
                self._commit(view, stamp, change)
            except (CommitFailedException, ValidationException) as error:
                failure: Exception = error
            except _unclear() as error:
                failure, is_unknown = error, True
            else:
                return view
            view = None
            time.sleep(RETRY.pause_s(attempt))
        if is_unknown:
            raise OutcomeUnknown(f"it cannot be told whether {self} has the commit: {failure}") from failure
        raise Unavailable(f"others wrote to {self} first, {attempts} times: {failure}") from failure

    def _commit(self, view: IcebergView, stamp: Stamp, change: Change) -> None:
        from pyiceberg.table.update import AssertTableUUID

        table = view.table
        before = table.metadata
        table.metadata = lightened(before)
        try:
            transaction = table.transaction()
            if stamp.versions:
                transaction.set_properties(stamp.marks())
            change(transaction, {**stamp.remarks, **stamp.marks()})
            requirements = (*transaction._requirements, AssertTableUUID(uuid=before.table_uuid))
            answer = self.catalog.commit_table(table, requirements, transaction._updates)
        finally:
            table.metadata = before
        self._tidy(view, answer.metadata)

    def adding(self, view: IcebergView, files: Sequence[WrittenFile], mode: str = "append") -> Change:
        """The change that brings files into the table, beside what is there or (``overwrite``) in its place. Without
        files an append moves the branch all the same."""
        added = self.data_files(view, files)
        spec = view.table.metadata.default_spec_id

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            if added and transaction.table_metadata.default_spec_id != spec:
                raise Conflict(f"the partitions of {self} were changed while the files of this commit were written")
            update = transaction.update_snapshot(snapshot_properties=properties)
            with update.overwrite() if mode == "overwrite" else update.merge_append() as producer:
                if mode == "overwrite":
                    for task in transaction._table.scan().plan_files():
                        producer.delete_data_file(task.file)
                for file in added:
                    producer.append_data_file(file)

        return change

    def _tidy(self, view: IcebergView, after: Any) -> None:
        """Delete the metadata that a commit made superfluous, and forget old snapshots. It is not what was asked for,
        so it may fail: then the next commit does it, or the sweeper."""
        table = view.table
        gone = dropped_versions(table.metadata, after)
        passing: tuple[type[Exception], ...] = (*_unclear(), *_refused(), DetentError, OSError, ValueError)
        try:
            for location in gone:
                table.io.delete(location)
            table.metadata = after
            requirements, updates = forgetting(table, (time.time() - SNAPSHOT_AGE_S) * 1000)
            if updates:
                self.catalog.commit_table(table, requirements, updates)
        except passing as error:
            logger.info("%s was committed to, and not tidied: %s", self, error)


def partitions_of(view: IcebergView) -> tuple[str, ...]:
    """The columns that a table is partitioned by; `Invalid` if by more than their values."""
    from pyiceberg.transforms import IdentityTransform

    table = view.table
    schema = table.schema()
    fields = table.spec().fields
    other = [str(one.transform) for one in fields if not isinstance(one.transform, IdentityTransform)]
    if other:
        raise Invalid(
            f"the Iceberg table {'.'.join(table.name())} is partitioned by {', '.join(other)} of a column: Detent "
            "writes tables that are partitioned by columns themselves, such as a date that select computes"
        )
    return tuple(schema.find_column_name(one.source_id) or "" for one in fields)


def _identities(schema: Schema, columns: Sequence[str]) -> Any:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    names = {one.name: one.field_id for one in schema.fields}
    missing = [column for column in columns if column not in names]
    if missing:
        raise Invalid(f"the rows have no column {', '.join(missing)} to partition by")
    fields = (
        PartitionField(source_id=names[column], field_id=1000 + place, transform=IdentityTransform(), name=column)
        for place, column in enumerate(columns)
    )
    return PartitionSpec(*fields)


def _data_file(view: IcebergView, file: WrittenFile, plan: Any, places: Any) -> DataFile:
    from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metadata = view.table.metadata
    schema = metadata.schema()
    found = data_file_statistics_from_parquet_metadata(read_footer(file.footer), plan, places)
    values = []
    for one in metadata.spec().fields:
        source = schema.find_field(one.source_id)
        text = file.partition_values[source.name]
        values.append(None if text is None else _value(source.field_type, text))
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{metadata.location.rstrip('/')}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **found.to_serialized_dict(),
    )


def _value(kind: Any, text: str) -> Any:
    """A partition's value, by what a task said of it."""
    from pyiceberg.conversions import partition_to_py
    from pyiceberg.types import DateType

    if isinstance(kind, DateType):  # which PyIceberg expects as a number of days
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    return partition_to_py(kind, text)


def _refused() -> tuple[type[Exception], ...]:
    """Errors of a catalog that did nothing."""
    from pyiceberg.exceptions import CommitFailedException, RESTError, ValidationException

    return CommitFailedException, ValidationException, RESTError


def _unclear() -> tuple[type[Exception], ...]:
    """Errors of a commit after which it may be in the table."""
    from pyiceberg.exceptions import (
        CommitStateUnknownException,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
    )
    from requests.exceptions import RequestException

    return (
        CommitStateUnknownException,
        ServerError,
        ServiceUnavailableError,
        TooManyRequestsError,
        RequestException,
        OperationalError,
        InterfaceError,
        FileNotFoundError,
    )


@contextlib.contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Says `Unavailable` of a catalog that does not answer."""
    try:
        from pyiceberg.exceptions import ServerError, ServiceUnavailableError
        from requests.exceptions import RequestException
    except ModuleNotFoundError as error:
        raise missing_iceberg(error) from error
    try:
        yield
    except (ServerError, ServiceUnavailableError, RequestException, OperationalError, InterfaceError) as error:
        raise Unavailable(f"the catalog of the Iceberg table {name} does not answer: {error}") from error
