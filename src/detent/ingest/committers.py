"""The committer that a configuration names. Each needs packages of its own, which are imported when it is used."""

from __future__ import annotations

from detent.ingest.committer import TableCommitter
from detent.ingest.config import IngestConfig
from detent.ingest.shared_state import QueueSharedState
from detent.tables.files import is_local


def committer_of(config: IngestConfig, shared: QueueSharedState) -> TableCommitter:
    """The committer that a configuration names."""
    place = (config.table_storage, config.style)
    if config.committer == "delta":
        from detent.ingest.commit_delta import DeltaCommitter

        return DeltaCommitter(config.location, shared, config.window_s, *place)
    if config.committer == "iceberg":
        name = config.iceberg_table or f"detent.{config.name}"
        if config.catalog or config.partition_by or config.merge_on or not is_local(config.location):
            from detent.ingest.commit_lake_iceberg import CatalogCommitter

            return CatalogCommitter(config.location, shared, name, config.catalog or config.state_url, *place)
        from detent.ingest.commit_iceberg import IcebergCommitter

        return IcebergCommitter(config.location, shared, name, style=config.style)
    from detent.ingest.commit_manifest import ManifestCommitter

    return ManifestCommitter(config.location, shared, *place)
