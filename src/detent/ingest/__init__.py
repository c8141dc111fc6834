"""Files that a queue announces, each into a table exactly once, through Spark.

>>> from detent.ingest import Ingest, IngestConfig
>>> config = IngestConfig(name="orders", queue="sqs:new-orders", table="./orders", committer="delta")
>>> Ingest(config).run(once=True)

Names are loaded when they are first used, so that importing this package imports neither pyspark nor SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.ingest.announced import Announced
    from detent.ingest.commit_manifest import read_table
    from detent.ingest.committer import Committer, DataFile, Output
    from detent.ingest.config import IngestConfig
    from detent.ingest.counters import Counters
    from detent.ingest.queue_urls import open_queue
    from detent.ingest.queues import Delivery, FileQueue
    from detent.ingest.running import Ingest, Progress

_HOMES = {
    "detent.ingest.announced": ("Announced",),
    "detent.ingest.commit_manifest": ("read_table",),
    "detent.ingest.committer": ("Committer", "DataFile", "Output"),
    "detent.ingest.config": ("IngestConfig",),
    "detent.ingest.counters": ("Counters",),
    "detent.ingest.queue_urls": ("open_queue",),
    "detent.ingest.queues": ("Delivery", "FileQueue"),
    "detent.ingest.running": ("Ingest", "Progress"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Announced",
    "Committer",
    "Counters",
    "DataFile",
    "Delivery",
    "FileQueue",
    "Ingest",
    "IngestConfig",
    "Output",
    "Progress",
    "open_queue",
    "read_table",
]


if not TYPE_CHECKING:  # a checker that saw this would believe every name
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
