"""The metadata files of an Iceberg table: which it needs, and which it can forget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

SNAPSHOTS_KEPT: Final = 10
"""Snapshots that a table remembers at least; at twice as many, it forgets the rest. Each commit reads and writes all of
them, so without end it would take longer and longer."""

METADATA_KEPT: Final = 20
"""Metadata files of earlier commits that stay, for readers that have looked the pointer up and not read it so far."""

MANIFESTS_MERGED_AT: Final = 20
"""A commit adds a manifest, and a snapshot lists them all: at this number they are merged into one."""

MANIFEST_BYTES: Final = 256 << 10
"""Manifests that have come to this size are not merged any more. It is some thousand files, which take 0.3 s to rewrite
in the one commit of twenty that does; less would be faster there, and make longer lists for all commits."""

SNAPSHOTS_PROPERTY: Final = "detent.snapshots-kept"
"""The property of a table that says how many snapshots it remembers."""

DELETE_PROPERTY: Final = "write.metadata.delete-after-commit.enabled"
"""Iceberg's property of a table whose metadata files are deleted when its log forgets them."""

METADATA_ENDINGS: Final = (".avro", ".metadata.json")
"""What the names of metadata files end with. All else in their folder is not ours."""

PROPERTIES: Final = {
    "format-version": "2",
    DELETE_PROPERTY: "true",
    "write.metadata.previous-versions-max": str(METADATA_KEPT),
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": str(MANIFESTS_MERGED_AT),
    "commit.manifest.target-size-bytes": str(MANIFEST_BYTES),
    SNAPSHOTS_PROPERTY: str(SNAPSHOTS_KEPT),
}
"""What a table is made with. Its owner may change all of it; one without `SNAPSHOTS_PROPERTY` keeps all snapshots."""


def lightened(metadata: TableMetadata) -> TableMetadata:
    """A table as an append has to see it: the newest snapshot, and none before.

    PyIceberg copies all that it is handed a dozen times a commit, and then applies what changed to the table as it is
    in the catalog, so what is left out here is not lost. It would also try again by itself, after waits that suit
    others; its property is set in this copy only, and other writers to the table have their own.
    """
    newest = metadata.current_snapshot()
    return metadata.model_copy(
        update={
            "properties": {**metadata.properties, "commit.retry.num-retries": "0"},
            "snapshots": [] if newest is None else [newest],
            "snapshot_log": [],
            "metadata_log": [],
        }
    )


def forgetting(
    table: Table, before_ms: float = math.inf
) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """The change that drops old snapshots, from before a time, once there are enough of them; nothing until then.

    Those with a name stay, and those that are not of the table's own line. It costs no rows: a table that only grows
    has all of its files in the newest snapshot.
    """
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

    metadata = table.metadata
    kept = max(1, int(metadata.properties.get(SNAPSHOTS_PROPERTY, len(metadata.snapshots) + 1)))
    line = list(ancestors_of(table.current_snapshot(), metadata))
    history = [one.snapshot_id for one in line]
    named = {reference.snapshot_id for reference in metadata.refs.values()}
    old = [one.snapshot_id for one in line[kept:] if one.snapshot_id not in named and one.timestamp_ms < before_ms]
    if len(history) < 2 * kept or not old:
        return (), ()
    head = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": metadata.current_snapshot_id})
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old})
    return (AssertTableUUID(uuid=metadata.table_uuid), head), (update,)


def dropped_versions(before: TableMetadata, after: TableMetadata) -> set[str]:
    """The metadata files that the table's log forgot with a commit, if the table says that they can go."""
    if after.properties.get(DELETE_PROPERTY, "false").lower() != "true":
        return set()
    return {one.metadata_file for one in before.metadata_log} - {one.metadata_file for one in after.metadata_log}


def reached_files(table: Table, lists: dict[str, frozenset[str]]) -> frozenset[str]:
    """The names of the metadata files that a table needs. `lists` remembers what is in lists of manifests."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {entry.statistics_path for entry in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        path = snapshot.manifest_list
        if path not in lists:
            lists[path] = frozenset(manifest.manifest_path for manifest in snapshot.manifests(table.io))
        found |= {path, *lists[path]}
    return frozenset(path_of(path).name for path in found)


def path_of(location: str) -> Path:
    """A local file, by the name that a table has for it."""
    return Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)


def delete_files(paths: Iterable[str]) -> None:
    """Delete files, of which others may have deleted some."""
    for path in paths:
        path_of(path).unlink(missing_ok=True)
