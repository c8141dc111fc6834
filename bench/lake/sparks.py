"""The Spark session of the suite, with Hadoop's file system for S3, so that Spark's own readers and writers reach the
bucket as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import detent.spark
from bench.harness import Skipped
from bench.lake.bucket import bucket
from bench.spark.world import CORES, SMALL_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def lake_session(store: str | None = None) -> Iterator[SparkSession]:
    """A session, stopped at the end. Java has the jars from its start, so that all measurements take theirs here."""
    server = bucket()
    import hadoopaws

    if reason := hadoopaws.JARS.missing():
        raise Skipped(reason)
    spark = detent.spark.session(
        store=store, cores=CORES, memory="4g", conf={**SMALL_ROWS, **hadoopaws.conf(server.environment)}
    )
    try:
        yield spark
    finally:
        spark.stop()


def s3a(url: str) -> str:
    """A URL as Hadoop calls it."""
    return f"s3a{url.removeprefix('s3')}"
