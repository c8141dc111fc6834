"""The committer that a configuration names. Each needs packages of its own, which are imported when it is used."""

from __future__ import annotations

from detent.ingest.committer import TableCommitter
from detent.ingest.config import IngestConfig
from detent.ingest.shared_state import QueueSharedState


def committer_of(config: IngestConfig, shared: QueueSharedState) -> TableCommitter:
    """The committer that a configuration names."""
    if config.committer == "delta":
        from detent.ingest.commit_delta import DeltaCommitter

        return DeltaCommitter(config.location, shared, config.window_s)
    if config.committer == "iceberg":
        from detent.ingest.commit_iceberg import IcebergCommitter

        return IcebergCommitter(config.location, shared, config.iceberg_table or f"detent.{config.name}")
    from detent.ingest.commit_manifest import ManifestCommitter

    return ManifestCommitter(config.location, shared)
