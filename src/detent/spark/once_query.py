"""What a batch's query is like: its output mode, and whether it keeps state. A function of ``foreachBatch`` is told
neither, so Spark's own object of the query is asked."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from detent.errors import Invalid
from detent.spark.batch_input import running_query
from detent.spark.identity import QUERY_PROPERTY

APPEND, UPDATE, COMPLETE = "append", "update", "complete"

_STATE_MARKS: Final = ("state info [", "StateStore")
"""What Spark's plans say of operators that keep state from batch to batch."""


class QueryKind(NamedTuple):
    """The output mode, empty where Spark does not say it; and whether the query keeps state."""

    mode: str
    keeps_state: bool


def query_kind(batch: DataFrame) -> QueryKind:
    """What the query is like that a ``foreachBatch`` function works for."""
    execution = _execution(batch)
    if execution is None:
        return QueryKind("", False)
    plan = str(execution.lastExecution().executedPlan().toString())
    return QueryKind(_mode(execution), any(mark in plan for mark in _STATE_MARKS))


def output_mode(batch: DataFrame) -> str:
    """The output mode of the query alone."""
    execution = _execution(batch)
    return "" if execution is None else _mode(execution)


def _mode(execution: Any) -> str:
    return str(execution.outputMode().toString()).lower()


def _execution(batch: DataFrame) -> Any:
    """Spark's object of the running query; None outside of one."""
    session: Any = batch.sparkSession
    query = session.sparkContext.getLocalProperty(QUERY_PROPERTY)
    return running_query(session, query) if query else None


def compute(batch: DataFrame) -> None:
    """Compute all of a batch, for the state that its query keeps: Spark fails a batch whose state was not written, also
    one that changes nothing in any sink because it is a replay."""
    batch.write.format("noop").mode("append").save()


def check_mode(mode: str, merge_on: tuple[str, ...], write_mode: str | None, place: str) -> None:
    """Refuse an output mode that would leave the wrong rows in a table: rows of update mode replace earlier ones, those
    of complete mode all of them."""
    if mode == UPDATE and not merge_on:
        raise Invalid(
            f"rows of a stream in update mode replace earlier ones, and {place} would get them as further rows: say "
            'which columns name a row, with merge_on=["id"]'
        )
    if mode == COMPLETE and write_mode == APPEND:
        raise Invalid(
            f"a stream in complete mode writes its whole result with each batch, and {place} would get all rows again: "
            'leave mode="append" out, and each batch replaces the rows'
        )
