"""Spark in tests: one session for all of them, because starting Java takes seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import detent.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKS = [pytest.mark.xdist_group("spark")]
"""``pytestmark = sparkling.MARKS``: all tests with Spark run in one process, and share its session."""

PROCESS_MARKS = [pytest.mark.xdist_group("spark-processes")]
"""The same for tests whose programs each have a Spark of their own: a small machine has room for few."""


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """A quick session on two cores, stopped at the end."""
    spark = detent.spark.session(app="tests", cores=2, quick=True)
    try:
        yield spark
    finally:
        spark.stop()
