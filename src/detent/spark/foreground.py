"""Spark under a command that a person watches: no log of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def silence(spark: SparkSession) -> None:
    """Let Spark log nothing: why something failed is told by us, in a line. Spark's own way to say so, setLogLevel,
    skips the loggers that matter. A function of a sink that fails is logged on this side of Java, with its trace."""
    for name in ("py4j.clientserver", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)
