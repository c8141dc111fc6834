"""Tables kept fit: small files become large ones, and what no reader needs any more is deleted.

Both go on beside writers. A compaction takes no rows away and adds none: an append that comes in between is no
hindrance to it, nor it to an append, and one that finds its files replaced begins anew. Marks stay, since they are
properties of the table and not of its files.

What is deleted is older than a floor: a batch that is being written, or that is prepared and waits for its commit, has
files that no commit names. The floor is a time that such a batch is younger than, and never less than `FLOOR_S` ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from detent.errors import Conflict, Corrupt, Invalid, Unavailable
from detent.kv.wholefiles import open_whole_files
from detent.tables.delta import DeltaPlace, deltalake_module
from detent.tables.files import FILE_BYTES_TARGET, is_local, write_files
from detent.tables.iceberg_io import storage_of
from detent.tables.iceberg_metadata import forgetting, reached_files
from detent.tables.iceberg_table import IcebergTable, IcebergView, Stamp
from detent.tables.merge import sync_files
from detent.tables.orphans import sweeping_time_s

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Transaction

SMALL_BYTES: Final = 32 << 20
"""A file below this is small: a quarter of what the library for Delta makes by default."""

FLOOR_S: Final = 24 * 3600.0
"""Nothing younger than a day is deleted: no batch takes longer, nor a query over the table."""

RETENTION_S: Final = 7 * 24 * 3600.0
"""What is older than a week goes, unless told otherwise."""

ATTEMPTS: Final = 5

Place = DeltaPlace | IcebergTable


@dataclass(frozen=True)
class TableInfo:
    """What a table is like."""

    table: str
    kind: str
    version: int
    files: int
    bytes: int
    small_files: int
    rows: int | None
    partition_by: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


def info(place: Place) -> TableInfo:
    """Look at a table: files and bytes of its newest version. Small files have less than `SMALL_BYTES`."""
    if isinstance(place, DeltaPlace):
        return _delta_info(place)
    view = place.open()
    table = view.table
    found = [(task.file.file_size_in_bytes, task.file.record_count) for task in table.scan().plan_files()]
    fields = tuple(one.name for one in table.spec().fields)
    properties = dict(table.metadata.properties)
    version = table.metadata.current_snapshot_id or 0
    return _summed(place, version, found, fields, properties)


def _delta_info(place: DeltaPlace) -> TableInfo:
    view = place.open()
    adds = pa.table(view.get_add_actions())
    found = list(zip(adds.column("size_bytes").to_pylist(), adds.column("num_records").to_pylist(), strict=True))
    metadata = view.metadata()
    return _summed(place, view.version(), found, tuple(metadata.partition_columns), dict(metadata.configuration))


def _summed(
    place: Place, version: int, files: Sequence[tuple[int, Any]], fields: tuple[str, ...], properties: dict[str, str]
) -> TableInfo:
    sizes, rows = [size for size, _ in files], [count for _, count in files]
    total = None if None in rows else sum(rows)
    small = sum(size < SMALL_BYTES for size in sizes)
    name = place.uri if isinstance(place, DeltaPlace) else place.name
    return TableInfo(name, place.kind, version, len(sizes), sum(sizes), small, total, fields, properties)


# -- small files ------------------------------------------------------------------------------------------------------


def compact(place: Place, target_bytes: int = FILE_BYTES_TARGET) -> int:
    """Make small files into larger ones, of about this size; how many were replaced."""
    return (
        _compact_delta(place, target_bytes) if isinstance(place, DeltaPlace) else _compact_iceberg(place, target_bytes)
    )


def _compact_delta(place: DeltaPlace, target_bytes: int) -> int:
    failed = deltalake_module().exceptions.CommitFailedError
    for _ in range(ATTEMPTS):
        view = place.open()
        since = view.version()
        try:
            metrics = view.optimize.compact(target_size=target_bytes)
        except failed as error:
            failure = error
            continue
        if is_local(place.uri) and metrics["numFilesRemoved"]:
            sync_files(place.open(), Path(place.uri))
            place.sync(since)
        return int(metrics["numFilesRemoved"])
    raise Unavailable(f"{place} was changed all the time while it was compacted") from failure


def _compact_iceberg(place: IcebergTable, target_bytes: int) -> int:
    view = place.open()
    groups = list(_groups(view, target_bytes))
    old = [task for group in groups for task in group]
    if not old:
        return 0
    plan = place.plan(view, folder=f"data/compacted-{view.table.metadata.current_snapshot_id}")
    new = [file for group in groups for file in write_files(plan, _rows(view, group))]
    added = place.data_files(view, new)
    names = {task.file.file_path for task in old}

    def change(transaction: Transaction, properties: dict[str, str]) -> None:
        table = transaction._table
        found = {task.file.file_path: task for task in table.scan().plan_files()}
        there = [found[name] for name in names if name in found]
        if len(there) < len(names) or {_deletes(one) for one in there} != {_deletes(one) for one in old}:
            raise Conflict(f"rows of {place} were changed while it was compacted: do it again")
        if table.metadata.default_spec_id != view.table.metadata.default_spec_id:
            raise Conflict(f"the partitions of {place} were changed while it was compacted: do it again")
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as producer:
            for task in there:
                producer.delete_data_file(task.file)
            for file in added:
                producer.append_data_file(file)

    place.commit(lambda _: Stamp((), {"detent.reason": "compaction"}), change, view=view)
    return len(old)


def _deletes(task: FileScanTask) -> tuple[str, frozenset[str]]:
    """What of a file is deleted."""
    return task.file.file_path, frozenset(one.file_path for one in task.delete_files)


def _groups(view: IcebergView, target_bytes: int) -> Iterator[list[FileScanTask]]:
    """Small files of the same partition that become one file."""
    waiting: dict[Any, list[FileScanTask]] = {}
    for task in view.table.scan().plan_files():
        file = task.file
        if file.file_size_in_bytes >= min(target_bytes, SMALL_BYTES) or file.spec_id != view.table.spec().spec_id:
            continue
        group = waiting.setdefault(tuple(file.partition[place] for place in range(len(file.partition))), [])
        group.append(task)
        if sum(one.file.file_size_in_bytes for one in group) >= target_bytes:
            yield waiting.pop(tuple(file.partition[place] for place in range(len(file.partition))))
    yield from (group for group in waiting.values() if len(group) > 1)


def _rows(view: IcebergView, tasks: list[FileScanTask]) -> Iterator[Any]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    table = view.table
    for task in tasks:
        yield from ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_record_batches([task])


# -- what no reader needs ---------------------------------------------------------------------------------------------


def vacuum(
    place: Place, older_than_s: float = RETENTION_S, *, floor_s: float | None = None, dry_run: bool = False
) -> list[str]:
    """Delete files that no version of the table needs which is kept, and that are older than this; which ones. Iceberg
    tables forget snapshots of that age before, except the newest. `floor_s` is when the oldest batch was prepared that
    waits for its commit: nothing since then is touched."""
    if older_than_s < FLOOR_S:
        raise Invalid(
            "files may belong to a batch that is being written, or to a query that reads: keep them for a day, and "
            f"not for {older_than_s:g} s"
        )
    now = sweeping_time_s()
    limit = now - older_than_s if floor_s is None else min(now - older_than_s, floor_s)
    if isinstance(place, DeltaPlace):
        return _vacuum_delta(place, now - limit, dry_run=dry_run)
    return _vacuum_iceberg(place, limit, dry_run=dry_run)


def _vacuum_delta(place: DeltaPlace, age_s: float, *, dry_run: bool) -> list[str]:
    """The library says what may go, and would also delete the notes of others."""
    hours = -int(-age_s // 3600)
    found = place.open().vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    old = [name for name in found if not _is_note(name)]
    if not dry_run:
        open_whole_files(place.uri, place.storage).delete(old)
    return old


def _is_note(name: str) -> bool:
    """Whether a file is not one of rows: such as an ingest's, that says whose table it is."""
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _vacuum_iceberg(place: IcebergTable, limit_s: float, *, dry_run: bool) -> list[str]:
    view = place.open()
    if not dry_run:
        _expire(place, view, limit_s)
        view = place.open()
    table = view.table
    reached = _data_files(view)
    names = reached_files(table, {})
    location = table.location().rstrip("/")
    files = open_whole_files(location, storage_of(table.io.properties))
    old = [
        found.name
        for folder in ("data/", "metadata/")
        for found in files.list(folder)
        if found.modified_ms < limit_s * 1000
        and not _is_note(found.name)
        and f"{location}/{found.name}" not in reached
        and not (folder == "metadata/" and found.name.rpartition("/")[2] in names)
    ]
    if not dry_run:
        files.delete(old)
    return old


def _data_files(view: IcebergView) -> set[str]:
    """The files with rows, and with deletes of rows, of all snapshots."""
    table = view.table
    found: set[str] = set()
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    location = table.location()
    if any(not path.startswith(location) for path in found):
        raise Corrupt(f"{location} has files elsewhere, so it cannot be told which ones are its own: vacuum it by hand")
    return found


def _expire(place: IcebergTable, view: IcebergView, limit_s: float) -> None:
    """Forget the snapshots from before a time; the newest stays, and those with a name."""
    table = view.table
    kept = table.metadata.model_copy(update={"properties": {**table.metadata.properties, "detent.snapshots-kept": "1"}})
    before, table.metadata = table.metadata, kept
    try:
        requirements, updates = forgetting(table, limit_s * 1000)
    finally:
        table.metadata = before
    if updates:
        place.catalog.commit_table(table, requirements, updates)
