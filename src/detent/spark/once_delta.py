"""A Delta table as a sink of `once`: tasks write the files, the driver commits them with the batch as a transaction id.

A Delta table keeps, for each application, the last version that it wrote, and a commit that names one is refused when
another of the same application came in between. The batch number is that version, so looking it up and committing from
the same view of the table is one step. The application is the ledger's name and the query.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from detent import crash
from detent.errors import Invalid, Unavailable
from detent.extras import install_command
from detent.spark.delta_files import FilePlan, sync_folder, write_files
from detent.spark.delta_merge import merge_rows, sync_files
from detent.spark.once_batch import BatchKey, ExternalSink, Place, Select, check_select, in_tasks, selected
from detent.spark.once_mark import delta_has, delta_marks
from detent.spark.once_merge import check_mode, key_columns, one_row_a_key
from detent.spark.once_query import APPEND, COMPLETE, output_mode
from detent.spark.once_sql import collect

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_ATTEMPTS: Final = 5
"""How often a commit is tried that other writers of the table came before."""

CHECKPOINT_INTERVAL: Final = "10"
"""Commits between checkpoints of a table that is made here: every batch opens the table, and reads the log since."""

OVERWRITE: Final = "overwrite"

Change = Callable[["DeltaTable", Any], None]
"""What a commit does to a table, with the properties that name the batch."""

_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType)
_PLAIN: Final = (BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType, *_NUMBERS)
_PARTITION: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")
"""Types of partition columns: those whose values have one way to be written as text."""

_UNNAMEABLE: Final = frozenset(" ,;{}()\n\t=")
_COMPUTED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


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
    one with the same key, if there is one; see `once_merge` for null and repeated keys. In complete mode, or with
    ``mode="overwrite"``, each batch replaces the table. One that is not there is made, with the batch's columns.

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

    @property
    def name(self) -> str:
        return f"table {self._uri}"

    @property
    def place(self) -> Place:
        return Place(f"the Delta table {self._uri}")

    def check_mode(self, mode: str) -> None:
        check_mode(mode, self._merge_on, self._mode, f"the Delta table {self._uri}")

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        overwrite = self._mode == OVERWRITE or output_mode(batch) == COMPLETE
        rows = selected(batch, self._select)
        table = self._open(rows.schema)
        application = f"detent:{key.name}:{key.query}"
        is_new, version = not delta_has(table, application, key, self._uri), table.version()
        if is_new:
            merges = self._merge_on and not overwrite
            mode = OVERWRITE if overwrite else APPEND
            change = self._merging(table, rows) if merges else self._adding(table, rows, mode)
            if change is not None:
                crash.point("spark.once.delta_before_commit")
                self._commit(table, application, key, change)
                crash.point("spark.once.delta_after_commit")
        elif self._merge_on and is_local(self._uri):
            sync_files(table, Path(self._uri))
        if is_local(self._uri):
            sync_log(Path(self._uri), version if is_new else 0)

    def _adding(self, table: DeltaTable, rows: DataFrame, mode: str) -> Change | None:
        """How files that tasks write come into the table, beside what is there or in its place."""
        plan = self._plan(table, rows.schema)
        files = [file for task in in_tasks(rows, partial(write_files, plan)) for file in task]
        if not files and mode == APPEND:
            return None
        delta = deltalake_module()
        adds = [delta.transaction.AddAction(**file._asdict(), data_change=True) for file in files]

        def change(table: DeltaTable, properties: Any) -> None:
            table.create_write_transaction(
                adds, mode, table.schema(), table.metadata().partition_columns, commit_properties=properties
            )

        return change

    def _merging(self, table: DeltaTable, rows: DataFrame) -> Change | None:
        """How rows come into the table in the place of those with the same keys."""
        plan = self._plan(table, rows.schema)
        found = one_row_a_key(collect(rows), self._merge_on)
        return partial(merge_rows, plan, found, self._merge_on) if found.num_rows else None

    def _open(self, schema: StructType) -> DeltaTable:
        delta = deltalake_module()
        try:
            return self._at_hand()
        except delta.exceptions.TableNotFoundError:
            delta.DeltaTable.create(
                self._uri,
                schema=delta_schema(schema),
                mode="ignore",  # another driver may have made it just now
                partition_by=list(self._partition_by) or None,
                configuration={"delta.checkpointInterval": CHECKPOINT_INTERVAL},
                storage_options=self._storage or None,
            )
            return self._at_hand()

    def _at_hand(self) -> DeltaTable:
        table: DeltaTable = deltalake_module().DeltaTable(self._uri, storage_options=self._storage or None)
        return table

    def _plan(self, table: DeltaTable, schema: StructType) -> FilePlan:
        """How tasks write files that belong into the table; `Invalid` if the rows do not."""
        check_table(table, self._uri)
        fields = json.loads(table.schema().to_json())["fields"]
        check_columns(fields, json.loads(delta_schema(schema).to_json())["fields"], self._uri)
        partitions = tuple(table.metadata().partition_columns)
        if self._partition_by and self._partition_by != partitions:
            raise Invalid(f"the Delta table {self._uri} is partitioned by {list(partitions)}, not {self._partition_by}")
        kinds = {field["name"]: field["type"] for field in fields}
        for name in partitions:
            if kinds[name] not in _PARTITION:
                raise Invalid(f"{name} is {kinds[name]}: a table is partitioned by one of {', '.join(_PARTITION)}")
        required = tuple(field["name"] for field in fields if not field["nullable"])
        return FilePlan(self._uri, self._storage, tuple(kinds), partitions, required)

    def _commit(self, table: DeltaTable, application: str, key: BatchKey, change: Change) -> None:
        """Change the table, from the view of it in which the batch was not there."""
        delta = deltalake_module()
        for _ in range(COMMIT_ATTEMPTS):
            marks = [delta.Transaction(*mark) for mark in delta_marks(application, key)]
            try:
                change(table, delta.CommitProperties(app_transactions=marks))
            except delta.exceptions.CommitFailedError as error:
                failure = error
            else:
                return
            table = self._at_hand()
            if delta_has(table, application, key, self._uri):
                return  # another driver of the same query was faster; our files are nobody's
        raise Unavailable(f"others wrote to the Delta table {self._uri} first, {COMMIT_ATTEMPTS} times") from failure


def deltalake_module() -> ModuleType:
    """The package that writes Delta tables; `Invalid` says how to get it."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ModuleNotFoundError as error:
        raise Invalid(f"a Delta table needs the package deltalake: {install_command('delta')}") from error
    return deltalake


def _uri_of(path: str | os.PathLike[str]) -> str:
    """A folder as an absolute path, or a URL as it is."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise Invalid(f"a Delta table is a folder, or a URL such as s3://bucket/table, and not {path!r}")
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)).absolute())
    return text if "://" in text else str(Path(text).absolute())


def is_local(uri: str) -> bool:
    """Whether a table is a folder."""
    return "://" not in uri


def sync_log(table: Path, since: int) -> None:
    """Make what was committed after a version survive a power failure, which the library leaves to chance: the ledger,
    which is next, must not know of a batch that the table can lose. Checkpoints, too: the library deletes old commits
    that are in one."""
    log = table / "_delta_log"
    for path in _of_log(log, since):
        with suppress(FileNotFoundError), path.open("rb") as file:  # another writer may have cleaned up
            os.fsync(file.fileno())
    for folder in (log, table, table.parent):
        sync_folder(folder)


def _of_log(log: Path, since: int) -> Iterator[Path]:
    """The files of a log since a version; all of them since 0."""
    if not since:
        yield from (path for path in log.iterdir() if path.is_file())
        return
    yield log / "_last_checkpoint"
    for version in itertools.count(max(0, since - 1)):
        commit, checkpoint = (log / f"{version:020d}{ending}" for ending in (".json", ".checkpoint.parquet"))
        if version > since and not commit.exists():
            return
        yield from (commit, checkpoint)


# -- what a table can hold --------------------------------------------------------------------------------------


def delta_schema(schema: StructType) -> Any:
    """The schema of a table for these rows. All columns may be null, so that later rows can leave one out."""
    for field in schema:
        _check_type(field.dataType, field.name)
    names = [field.name for field in schema]
    bad = [name for name in names if not name or _UNNAMEABLE.intersection(name)]
    if bad or len({name.lower() for name in names}) != len(names):
        raise Invalid(
            f"columns of a Delta table have names without any of ' ,;{{}}()=' and differ in more than case: rename "
            f"{', '.join(map(repr, bad or names))}"
        )
    return deltalake_module().Schema.from_json(schema.toNullable().json())


def _check_type(kind: DataType, column: str) -> None:
    if isinstance(kind, StructType):
        for field in kind:
            _check_type(field.dataType, f"{column}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_type(kind.elementType, column)
    elif isinstance(kind, MapType):
        _check_type(kind.keyType, column)
        _check_type(kind.valueType, column)
    elif not isinstance(kind, _PLAIN) and kind != StringType():
        raise Invalid(f"the column {column} is {kind.simpleString()}, which a Delta table does not hold: cast it")


def check_table(table: DeltaTable, uri: str) -> None:
    """Refuse a table that asks more of its writers than to add files, or that forgets which batches it has."""
    if "delta.setTransactionRetentionDuration" in table.metadata().configuration:
        raise Invalid(
            f"the Delta table {uri} forgets transaction ids (delta.setTransactionRetentionDuration), so a batch that "
            "is replayed late would be written twice: unset that property"
        )
    check_writable(table, uri)


def check_writable(table: DeltaTable, uri: str) -> None:
    """Refuse a table that asks more of its writers than to add files."""
    configuration = table.metadata().configuration
    reasons = [name for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("delta.columnMapping.mode")
    for field in json.loads(table.schema().to_json())["fields"]:
        reasons += [f"{name} of {field['name']}" for name in _COMPUTED if name in field["metadata"]]
    if reasons:
        raise Invalid(f"Detent cannot write to the Delta table {uri}: it has {', '.join(reasons)}")


def check_columns(have: list[dict[str, Any]], want: list[dict[str, Any]], uri: str) -> None:
    """Refuse rows whose columns are not those of the table. Their order is no matter."""
    table = {field["name"]: _plain(field["type"]) for field in have}
    rows = {field["name"]: _plain(field["type"]) for field in want}
    wrong = [f"{name} is not in the table" for name in rows if name not in table]
    wrong += [f"{name} is not in the rows" for name in table if name not in rows]
    wrong += [
        f"{name} is {json.dumps(kind)} in the rows and {json.dumps(table[name])} in the table"
        for name, kind in rows.items()
        if table.get(name, kind) != kind
    ]
    if wrong:
        raise Invalid(
            f"the rows do not fit the Delta table {uri}: {'; '.join(wrong)}. Select what fits, or change the table "
            "with DeltaTable(...).alter.add_columns"
        )


def _plain(kind: Any) -> Any:
    """A type without what says whether values may be null, and without remarks."""
    if not isinstance(kind, dict):
        return kind
    if "fields" in kind:
        return {field["name"]: _plain(field["type"]) for field in kind["fields"]}
    return {name: _plain(value) for name, value in kind.items() if not name.lower().endswith("containsnull")}
