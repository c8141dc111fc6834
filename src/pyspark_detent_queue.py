"""Lets Spark find the format "detent.queue": it asks every installed module named pyspark_* for a `DefaultSource`."""

from __future__ import annotations

from typing import Any

from detent.spark.formats import found_by_spark


def __getattr__(name: str) -> Any:
    return found_by_spark("detent.queue", name)
