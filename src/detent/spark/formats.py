"""The formats that Spark knows by name, and where their classes are."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES: Final = {
    "detent": ("detent.spark.journals", "JournalDataSource"),
    "detent.queue": ("detent.spark.queues", "QueueDataSource"),
    "detent.table": ("detent.spark.tables", "TableDataSource"),
}
"""Each format, and the class behind it. Modules are imported when the format is asked for."""


def register(spark: SparkSession) -> None:
    """Make the formats "detent", "detent.queue" and "detent.table" known to a session that was started elsewhere.

    Spark finds them by itself where Detent is installed beside it. Call this where it does not: on a Spark Connect
    server that had looked for formats before Detent was installed, or with ``spark-submit --py-files``.
    """
    for name in CLASSES:
        spark.dataSource.register(data_source(name))


def data_source(name: str) -> Any:
    """The class of a format."""
    module, attribute = CLASSES[name]
    return getattr(import_module(module), attribute)


def found_by_spark(name: str, attribute: str) -> Any:
    """What the module `pyspark_*` of a format answers when Spark asks it for `DefaultSource`.

    Spark asks every such module whenever any format of that kind is used, and an error would break all of them. So one
    that cannot be loaded is not offered, and the reason goes to the log.
    """
    if attribute != "DefaultSource":
        raise AttributeError(attribute)
    try:
        return data_source(name)
    except Exception as error:
        print(f"the Spark format {name!r} cannot be loaded: {type(error).__name__}: {error}", file=sys.stderr)
        raise AttributeError(attribute) from error
