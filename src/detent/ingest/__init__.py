"""Files that a queue announces, each into a table exactly once, through Spark.

>>> from detent.ingest import Ingest, IngestConfig
>>> config = IngestConfig(name="orders", queue="sqs:new-orders", table="./orders", committer="delta")
>>> Ingest(config).run(once=True)

Names are loaded when they are first used, so that importing this package imports neither pyspark
nor SQLAlchemy.

The pipeline; the queue that it reads is in `detent.transports`:

    config.py            what an ingest is to do, from TOML or Python
    running.py           `Ingest`: the threads of a pipeline, until it is stopped or all is done
    coordinator.py       a message's whole way: received, read, committed, acknowledged

A file, in the order in which things happen:

    envelope.py          finds the files in a message: S3 notification, URI, or the data itself
    announced.py         one announced file
    understanding.py     each record of a message: a file to ask for, one to refuse, one to wait for
    identity.py          what makes it this file: its name, and by policy its version
    objects.py           looks it up, fetches it, lists what was never announced
    local_files.py       opens and copies a local file, through no link
    local_state.py       what this pipeline knows of recent messages
    shared_state.py      which pipeline has which file, and which are finished
    shard_sql.py         the tables and statements for that
    metastore.py         the database that they are in
    epoch.py             which pipelines are from before a reset
    source.py            what all pipelines of a source agree on, and what is forgotten
    ownership.py         which table a source has, and what it had if that is gone
    visibility.py        extends messages while their files are in work
    batching.py          when a batch is due, and which files are in it
    staging.py           the batch's files in one folder
    job.py               Spark's part: read, transform, write Parquet
    reading.py           the files as one DataFrame
    schemas.py           the schemas that pipelines share
    csv_headers.py       the columns of each CSV file
    origins.py           the column that says which file a row came from
    transforms.py        finds the user's function

The commit, of data files and finished shards together; `detent.tables` does the tables' part:

    committer.py         the contract
    commit_manifest.py   a list of Parquet files in the database
    commit_delta.py      a Delta table
    commit_iceberg.py    an Iceberg table

Looking and steering:

    log.py               the log, a line a record
    steering.py          list files, put them back, forget them
    resetting.py         begin anew when the table is gone
    counters.py          what a pipeline has done
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.ingest.announced import Announced
    from detent.ingest.commit_manifest import read_table
    from detent.ingest.committer import Committer, Output
    from detent.ingest.config import IngestConfig
    from detent.ingest.counters import Counters
    from detent.ingest.running import Ingest, Progress
    from detent.tables.files import DataFile
    from detent.transports.contract import Delivery, FileQueue
    from detent.transports.urls import open_queue

_HOMES = {
    "detent.ingest.announced": ("Announced",),
    "detent.ingest.commit_manifest": ("read_table",),
    "detent.ingest.committer": ("Committer", "Output"),
    "detent.ingest.config": ("IngestConfig",),
    "detent.ingest.counters": ("Counters",),
    "detent.tables.files": ("DataFile",),
    "detent.transports.urls": ("open_queue",),
    "detent.transports.contract": ("Delivery", "FileQueue"),
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
