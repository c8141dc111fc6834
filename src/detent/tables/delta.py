"""A Delta table: opened, made, widened, and changed by one commit with the marks of what is in it.

A table keeps, for each application, the last version that it wrote, and refuses a commit that names one when another of
the same application came after the view of the table that the commit is made from. A commit from a fresh view with a
version that is there is accepted: the library compares nothing. So marks are looked up and committed from one handle,
and `DeltaPlace.commit` is the one place that does both.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from detent.errors import Conflict, Invalid, Unavailable
from detent.extras import install_command
from detent.tables.delta_log import known_applications, sync_log
from detent.tables.delta_schema import required_columns
from detent.tables.files import FilePlan, WrittenFile, is_local, schema_bytes

if TYPE_CHECKING:
    from deltalake import DeltaTable

CHECKPOINT_INTERVAL: Final = "10"
"""Commits between checkpoints of a table that is made here: every batch opens the table, and reads the log since."""

RETENTION: Final = "delta.setTransactionRetentionDuration"
"""The property of a table that forgets the marks of applications after a while."""

_DURATION: Final = re.compile(r"(?:interval\s+)?(\d+)\s*(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
_UNIT_S: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}

_NONE: Final[Mapping[str, str]] = {}

Look = Callable[["DeltaTable"], Any]
"""Looks a commit's marks up in a view of the table, and answers what the commit says of itself; None if nothing is to
be committed."""

Change = Callable[["DeltaTable", Any], None]
"""What a commit does to a view of the table, with what it says of itself."""


@dataclass(frozen=True)
class DeltaPlace:
    """Where a Delta table is, or can be: a folder, or a URL with what the library needs to know for it."""

    uri: str
    storage: Mapping[str, str] = field(default_factory=dict)
    kind: ClassVar = "Delta"

    @classmethod
    def at(cls, path: str | os.PathLike[str], storage: Mapping[str, str] = _NONE) -> DeltaPlace:
        """A table by a path, which is made absolute, a ``file:`` URL, or another URL."""
        text = os.fspath(path)
        if not isinstance(text, str) or not text:
            raise Invalid(f"a Delta table is a folder, or a URL such as s3://bucket/table, and not {path!r}")
        parts = urlsplit(text)
        if parts.scheme == "file":
            return cls(str(Path(unquote(parts.path)).absolute()), storage)
        return cls(text if "://" in text else str(Path(text).absolute()), storage)

    def __str__(self) -> str:
        return f"the Delta table {self.uri}"

    def open(self) -> DeltaTable:
        """A view of the table as it is now. A view does not follow its own commits, and gets slower with each."""
        table: DeltaTable = deltalake_module().DeltaTable(self.uri, storage_options=dict(self.storage) or None)
        return table

    def open_if_there(self) -> DeltaTable | None:
        """The same; None if there is no table."""
        try:
            return self.open()
        except deltalake_module().exceptions.TableNotFoundError:
            return None

    def create(self, schema: Any, partition_by: Sequence[str] = (), configuration: Mapping[str, str] = _NONE) -> None:
        """Make the table, unless another process has made it just now."""
        deltalake_module().DeltaTable.create(
            self.uri,
            schema=schema,
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration={"delta.checkpointInterval": CHECKPOINT_INTERVAL, **configuration},
            storage_options=dict(self.storage) or None,
        )

    def commit(self, look: Look, change: Change, attempts: int, table: DeltaTable | None = None) -> DeltaTable | None:
        """Change the table from the view of it in which the marks were looked up; that view, or None if `look` found
        that there is nothing to commit. When another commit came in between, a new view is opened and looked at."""
        failed: type[Exception] = deltalake_module().exceptions.CommitFailedError
        for _ in range(attempts):
            view = table or self.open()
            properties = look(view)
            if properties is None:
                return None
            try:
                change(view, properties)
            except failed as error:
                failure, table = error, None
            except (deltalake_module().exceptions.DeltaError, OSError):
                if look(self.open()) is None:  # it was made, and its answer was lost
                    return None
                raise
            else:
                return view
        raise Unavailable(f"others wrote to the Delta table {self.uri} first, {attempts} times") from failure

    def plan(self, view: DeltaTable, **how: Any) -> FilePlan:
        """How tasks write files that belong into the table; `how` are arguments of `FilePlan`."""
        schema = schema_bytes(pa.schema(view.schema().to_arrow()))
        partitions = tuple(view.metadata().partition_columns)
        return FilePlan(self.uri, dict(self.storage), schema, partitions, required_columns(view), **how)

    def adding(self, view: DeltaTable, files: Sequence[WrittenFile], mode: str = "append") -> Change:
        """The change that brings files of tasks into the table, beside what is there or (``overwrite``) in its place.
        `Conflict` if the table got other types than those of the view by which the files were written: other readers
        could not read them."""
        bring = adding([add_of_task(file) for file in files], mode)
        types = column_types(view)

        def change(table: DeltaTable, properties: Any) -> None:
            if files and types.items() - column_types(table).items():
                raise Conflict(f"the types of {self} were changed while the files of this commit were written")
            bring(table, properties)

        return change

    def known(self, table: DeltaTable, applications: Collection[str]) -> frozenset[str]:
        """Which of many applications have a mark in a view of the table."""
        log = Path(self.uri) / "_delta_log" if is_local(self.uri) else None
        return known_applications(table, log, applications)

    def sync(self, since: int) -> None:
        """Make what was committed after a version survive a power failure. On an object store it does anyway."""
        if is_local(self.uri):
            sync_log(Path(self.uri), since)


def deltalake_module() -> ModuleType:
    """The package that writes Delta tables; `Invalid` says how to get it."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ModuleNotFoundError as error:
        raise Invalid(f"a Delta table needs the package deltalake: {install_command('delta')}") from error
    return deltalake


def id_of(table: DeltaTable | None) -> str | None:
    """What tells a table from every other that could stand in its place; None if there is none."""
    return None if table is None else str(table.metadata().id)


def column_types(table: DeltaTable) -> dict[str, str]:
    """The types of a table's columns, as text."""
    fields = json.loads(table.schema().to_json())["fields"]
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields}


def remembered_s(table: DeltaTable) -> float:
    """How long a table remembers marks: without end, unless its property says so; 0 if that cannot be read."""
    kept = table.metadata().configuration.get(RETENTION)
    if kept is None:
        return math.inf
    match = _DURATION.fullmatch(kept.strip())
    return 0.0 if match is None else int(match[1]) * _UNIT_S[match[2].lower()]


# -- commits --------------------------------------------------------------------------------------------------------


def properties(
    versions: Iterable[tuple[str, int]], now_ms: int | None = None, remarks: dict[str, str] | None = None
) -> Any:
    """What a commit says of itself: the versions of applications, when, and remarks for readers of the history."""
    delta = deltalake_module()
    ids = [delta.Transaction(application, version, now_ms) for application, version in versions]
    return delta.CommitProperties(app_transactions=ids, custom_metadata=remarks)


def adding(adds: Sequence[Any], mode: str = "append") -> Change:
    """The change that brings files into a table, beside what is there or (``overwrite``) in its place."""

    def change(table: DeltaTable, properties: Any) -> None:
        table.create_write_transaction(
            list(adds), mode, table.schema(), table.metadata().partition_columns, commit_properties=properties
        )

    return change


def add_of_task(file: WrittenFile) -> Any:
    """A file that a task wrote, for a commit."""
    return deltalake_module().transaction.AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition_values,
        modification_time=file.modification_time,
        data_change=True,
        stats=file.stats,
    )
