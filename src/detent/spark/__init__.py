"""Spark over Detent's journals and queues: sessions, sources, sinks, pipelines.

>>> import detent.spark
>>> spark = detent.spark.session(store="file:./data")
>>> orders = spark.readStream.format("detent").load("file:./data")

Names are loaded when they are first used, so that importing this package imports no pyspark.

The formats, and what they share:

    formats.py          which formats Spark can load by name, and where their classes are
    journals.py         the format ``detent``
    queues.py           the format ``detent.queue``
    tables.py           the format ``detent.table``: what a store knows of itself
    table_columns.py    the types of its columns
    table_journals.py   its tables about journals, producers and ledgers
    table_queues.py     its tables about queues
    options.py          the options of the formats, checked
    advice.py           commands in errors, with the store's URL
    opened.py           stores that a Python process of Spark's keeps open
    progress.py         how far a query is, by the names of its sources and its sink
    batch_identity.py   which query and run a batch is of, and a digest of what it is made from

Reading:

    journal_reading.py  the driver plans, tasks read straight from the store
    lives.py            whether a stream's offsets are ahead of a store that was restored
    planned.py          what a stream has planned, kept in the store, so that it plans the same again
    idle.py             what an idle stream asks: nothing, while it is known that nothing has come
    extents.py          which journals there are, where each begins and ends
    places.py           where a read starts or ends, as the user says it
    ranges.py           cuts a batch into partitions, the same way at each replay
    pushdown.py         filters that narrow a batch read
    rows.py             messages as Arrow batches
    queue_reading.py    a queue: planning assigns messages, the assignment's number is the offset

Writing:

    outgoing.py         rows become messages for journals
    journal_writing.py  tasks stage rows, the driver's commit makes them messages once a batch
    queue_outgoing.py   rows become messages for queues, as many as a transaction takes
    queue_writing.py    the same for queues
    queue_splitting.py  a batch that is too large for one, in parts
    once_writing.py     `once(...)`: a function for ``foreachBatch`` with any number of sinks
    once_batch.py       the batch: its name, its query, whether it was there before, its rows
    once_engine.py      sink: journals and queues
    once_table.py       sink: a table of any format (`detent.tables`)
    once_delta.py       the same for Delta
    once_iceberg.py     the same for Iceberg
    once_sql.py         sink: an SQL database

Tables of other formats, read:

    read_table.py       Delta and Iceberg tables as DataFrames, from pip alone

Pipelines (`detent run`):

    pipeline.py         `Pipeline`: streams, declared in a file; their order, and how they are drawn
    pipeline_stream.py  one stream: what it reads and writes, checked
    pipeline_runner.py  runs every stream as a query, and starts it again when it fails
    store_place.py      where its store is: the data, the owner, the checkpoints
    pipeline_prepare.py what is settled before that: journals and queues, streams that were renamed
    stream_task.py      one stream under supervision: a task whose life is a query
    stream_query.py     one query: started, looked at, stopped; where its rows go
    stream_frames.py    the DataFrames that a stream's function gets and returns
    stream_state.py     how far, how fast, how far behind; the events of that; how far a run that ends reads
    stream_failure.py   why a stream failed, whether to try again, and what to do about it
    quarantine.py       bodies that did not match their schema, kept with the reason

Starting Spark quickly, from pip alone:

    sessions.py         `session()`, and the stores that it keeps open
    settings.py         what is set in Spark, and why
    launch.py           before Java runs: environment, settings, sockets, a launcher for Python
    java.py             which Java, and its archive of loaded classes
    cache.py            the folder for what is prepared once
    daemon.py           Spark's Python daemon, with less garbage collection
    source_process.py   the process of a stream's source, and the zygote that forks such processes
    source_request.py   asks the zygote for one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.spark.formats import register
    from detent.spark.once_delta import to_delta
    from detent.spark.once_engine import to_journal, to_queue
    from detent.spark.once_iceberg import to_iceberg
    from detent.spark.once_sql import to_sql
    from detent.spark.once_writing import call, once
    from detent.spark.pipeline import Pipeline, queue
    from detent.spark.progress import progress
    from detent.spark.read_table import read_table
    from detent.spark.sessions import session, store_of

_HOMES = {
    "detent.spark.formats": ("register",),
    "detent.spark.once_delta": ("to_delta",),
    "detent.spark.once_engine": ("to_journal", "to_queue"),
    "detent.spark.once_iceberg": ("to_iceberg",),
    "detent.spark.once_sql": ("to_sql",),
    "detent.spark.once_writing": ("call", "once"),
    "detent.spark.pipeline": ("Pipeline", "queue"),
    "detent.spark.progress": ("progress",),
    "detent.spark.read_table": ("read_table",),
    "detent.spark.sessions": ("session", "store_of"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Pipeline",
    "call",
    "once",
    "progress",
    "queue",
    "read_table",
    "register",
    "session",
    "store_of",
    "to_delta",
    "to_iceberg",
    "to_journal",
    "to_queue",
    "to_sql",
]


if not TYPE_CHECKING:  # a checker that saw this would believe every name
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
