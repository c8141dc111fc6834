"""One stream as a query of Spark: started, looked at, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from detent.spark.pipeline_stream import Stream
from detent.spark.running_frames import frames_of
from detent.spark.running_sinks import writer_of

LOOK_S: Final = 0.02
"""How often a query that is about to stop is asked whether its batch has ended."""


class RunningQuery:
    """A query of Spark for one stream."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen: tuple[int, bool] | None = None

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return bool(self._query.isActive)

    def error(self) -> BaseException | None:
        """Why it ended, if it failed."""
        return self._query.exception()

    def progress(self) -> Iterator[dict[str, Any]]:
        """What Spark has reported since the last time, oldest first."""
        last = self._query.lastProgress
        if last is None or self._place(last) == self._seen:
            return
        missed = self._seen is None or last.batchId > self._seen[0] + self._seen[1]
        for one in self._query.recentProgress if missed else [last]:
            place = self._place(one)
            if self._seen is None or place > self._seen:
                self._seen = place
                yield json.loads(one.json)

    @staticmethod
    def _place(progress: Any) -> tuple[int, bool]:
        """The number of a batch, and whether it has been done: a look that finds nothing has the next one's number."""
        return progress.batchId, "addBatch" in progress.durationMs

    def stop(self, patience_s: float) -> None:
        """Let the batch that runs end, then stop. What begins in between, or takes longer, is interrupted: the next
        start does it again, and the ledger knows whether it was done."""
        deadline = time.monotonic() + patience_s
        before = self._query.lastProgress
        while self.is_active and self._query.status["isTriggerActive"] and time.monotonic() < deadline:
            now = self._query.lastProgress
            if now is not None and (before is None or self._place(now) > self._place(before)):
                break
            time.sleep(LOOK_S)
        self._query.stop()


def start_query(
    spark: SparkSession, url: str, checkpoint: str, stream: Stream, *, once: bool, ends: Mapping[str, int]
) -> RunningQuery:
    """Start a stream. With `once` it reads what there is, and the journals in `ends` up to there."""
    writer = writer_of(url, stream, frames_of(spark, url, stream, ends))
    writer = writer.queryName(stream.full_name).option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif stream.settings.every_ms is not None:
        writer = writer.trigger(processingTime=f"{stream.settings.every_ms} milliseconds")
    return RunningQuery(writer.start())
