"""As much of Spark's DataFrame as the sinks of `once` use, over Arrow batches, without Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from detent.spark import once_batch


class Frame:
    """Rows in partitions. `query` and `run` are what Spark tells of the stream, `mode` and `plan` what it knows."""

    def __init__(
        self,
        schema: StructType,
        *partitions: list[Any],
        query: str | None = "query",
        run: str = "run",
        mode: str = "Append",
        plan: str = "Project",
    ) -> None:
        self.schema = schema
        self.partitions = partitions
        self.jobs = 0
        self.kept: list[bool] = []
        properties = {"sql.streaming.queryId": query, "spark.jobGroup.id": run}
        jvm = SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=SimpleNamespace(fromString=str))))
        context = SimpleNamespace(getLocalProperty=properties.get, _jvm=jvm)
        self.sparkSession = SimpleNamespace(sparkContext=context, _jsparkSession=_java(query, mode, plan))
        self.computed = 0

    def persist(self) -> None:
        self.kept.append(True)

    def unpersist(self) -> None:
        self.kept.append(False)

    @property
    def write(self) -> SimpleNamespace:
        """A write that computes the rows, and keeps none."""

        def save() -> None:
            self.computed += 1

        return SimpleNamespace(format=lambda name: SimpleNamespace(mode=lambda mode: SimpleNamespace(save=save)))

    def limit(self, count: int) -> Self:
        assert count == 0
        return self

    def toArrow(self) -> Any:
        return pa.table({field.name: pa.array([], pa.int64()) for field in self.schema})

    def mapInArrow(self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> SimpleNamespace:
        del schema
        return SimpleNamespace(collect=lambda: self._run(function))

    def _run(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> list[dict[str, Any]]:
        self.jobs += 1
        found = []
        for number, batches in enumerate(self.partitions):
            with pytest.MonkeyPatch.context() as patch:
                context = SimpleNamespace(partitionId=lambda number=number: number)
                patch.setattr(once_batch, "TaskContext", SimpleNamespace(get=lambda context=context: context))
                found += [row for answer in function(iter(batches)) for row in answer.to_pylist()]
        return found[::-1]  # in whatever order they come


def _java(query: str | None, mode: str, plan: str) -> SimpleNamespace:
    """As much of Java's session as tells the kind of a query."""
    last = SimpleNamespace(executedPlan=lambda: SimpleNamespace(toString=lambda: plan))
    execution = SimpleNamespace(
        outputMode=lambda: SimpleNamespace(toString=lambda: mode),
        lastExecution=lambda: last,
        resolvedCheckpointRoot=lambda: "/nowhere",  # so the inputs of its batches are not known
    )
    queries = {query: execution}
    return SimpleNamespace(sharedState=lambda: SimpleNamespace(activeStreamingQueries=lambda: queries))
