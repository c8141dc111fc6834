"""Files that a queue announces, each into a table exactly once, through Spark.

>>> from detent.ingest import Ingest, IngestConfig
>>> config = IngestConfig(name="orders", queue="sqs:new-orders", table="./orders", committer="delta")
>>> Ingest(config).run(once=True)

Names are loaded when they are first used, so that importing this package imports neither pyspark
nor SQLAlchemy.

The pipeline; the queue that it reads is in `detent.transports`:

    config.py            what an ingest is to do, from TOML or Python
    pipeline.py          `Ingest`: the tasks of a pipeline, until it is stopped or all is done
    coordinator.py       a message's whole way: received, read, committed, acknowledged

A file, in the order in which things happen:

    announcements.py     the files in a message: S3 notification, URI, or the data itself
    delivery_records.py  each record of a message: a file to ask for, one to refuse, one to wait for
    identity.py          what makes it this file: its name, and by policy its version
    objects.py           looks it up, reads or fetches it, lists what was never announced
    local_files.py       opens and copies a local file, through no link
    local_state.py       recent messages: what they wait for, until when they are held, which files are due
    shared_state.py      which pipeline has which file, and which are finished
    shard_sql.py         the tables and statements for that
    metastore.py         the database that they are in
    epoch.py             which pipelines are from before a reset
    ownership.py         what all pipelines of a source agree on, and which table it has
    staging.py           the batch's files: copied into one folder, or pinned for the tasks that read them
    job.py               Spark's part: read, apply the user's function, write Parquet
    reading.py           the files as one DataFrame, with the column that says where a row came from
    staged_reading.py    files of a folder, by Spark's readers
    executor_reading.py  objects, by the tasks that parse them
    pinned.py            what a task reads of an object: ranges of the writing that was announced or seen
    object_rows.py       lines, texts and bytes of objects as rows, and how objects are divided between tasks
    lines.py             the lines of a part of an object
    parquet_rows.py      Parquet objects as rows, with the types that Spark's reader gives
    schemas.py           the schemas that pipelines share
    csv_headers.py       the columns of each CSV file

The commit, of data files and finished shards together; `detent.tables` does the tables' part:

    committer.py         the contract
    committers.py        finds the one that a configuration names
    commit_manifest.py   a list of Parquet files in the database
    prepared.py          the batch of a source that is on its way into a table elsewhere
    commit_lake.py       tables elsewhere: prepared, committed with a mark, finished, and resolved by any pipeline
    commit_delta.py      a Delta table
    commit_lake_iceberg.py  an Iceberg table in any catalog
    commit_iceberg.py    an Iceberg table in a folder, whose catalog is the database of the shards: one transaction

Looking and steering:

    steering.py          list files, put them back, forget them
    forgetting.py        finished files after the window; all of them when the table is gone
    progress.py          what a pipeline says of itself: counters, how far it is, its log
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.ingest.announcements import Announced
    from detent.ingest.commit_manifest import read_table
    from detent.ingest.committer import BatchOutput, TableCommitter
    from detent.ingest.config import IngestConfig
    from detent.ingest.pipeline import Ingest
    from detent.ingest.progress import Counters, IngestProgress
    from detent.tables.files import WrittenFile
    from detent.transports.contract import Delivery, FileQueue
    from detent.transports.urls import open_queue

_HOMES = {
    "detent.ingest.announcements": ("Announced",),
    "detent.ingest.commit_manifest": ("read_table",),
    "detent.ingest.committer": ("TableCommitter", "BatchOutput"),
    "detent.ingest.config": ("IngestConfig",),
    "detent.ingest.progress": ("Counters", "IngestProgress"),
    "detent.tables.files": ("WrittenFile",),
    "detent.transports.urls": ("open_queue",),
    "detent.transports.contract": ("Delivery", "FileQueue"),
    "detent.ingest.pipeline": ("Ingest",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Announced",
    "BatchOutput",
    "Counters",
    "Delivery",
    "FileQueue",
    "Ingest",
    "IngestConfig",
    "IngestProgress",
    "TableCommitter",
    "WrittenFile",
    "open_queue",
    "read_table",
]


if not TYPE_CHECKING:  # a checker that saw this would believe every name
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
