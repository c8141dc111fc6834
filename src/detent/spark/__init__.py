"""Spark over Detent's journals and queues: sessions, sources, sinks.

>>> import detent.spark
>>> spark = detent.spark.session(store="file:./data")
>>> orders = spark.readStream.format("detent").load("file:./data")

Names are loaded when they are first used, so that importing this package imports no pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.spark.formats import register
    from detent.spark.once_delta import to_delta
    from detent.spark.once_engine import to_journal, to_queue
    from detent.spark.once_sql import to_sql
    from detent.spark.once_writing import call, once
    from detent.spark.pipeline import Pipeline, queue
    from detent.spark.sessions import session
    from detent.spark.stores import store_of

_HOMES = {
    "detent.spark.formats": ("register",),
    "detent.spark.once_delta": ("to_delta",),
    "detent.spark.once_engine": ("to_journal", "to_queue"),
    "detent.spark.once_sql": ("to_sql",),
    "detent.spark.once_writing": ("call", "once"),
    "detent.spark.pipeline": ("Pipeline", "queue"),
    "detent.spark.sessions": ("session",),
    "detent.spark.stores": ("store_of",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Pipeline",
    "call",
    "once",
    "queue",
    "register",
    "session",
    "store_of",
    "to_delta",
    "to_journal",
    "to_queue",
    "to_sql",
]


if not TYPE_CHECKING:  # a checker that saw this would believe every name
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
