"""Spark under a command that a person watches: no log of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def silence(spark: SparkSession) -> None:
    """Let Spark log nothing: why something failed is told by us, in a line. Spark's own way to say so, setLogLevel,
    skips the loggers that matter. A function of a sink that fails is logged on this side of Java, with its trace."""
    for name in ("py4j", "py4j.clientserver", "py4j.java_gateway", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """What the connection to Java logs when that is gone, under no name of its own."""
    return record.module not in {"java_gateway", "clientserver"}
