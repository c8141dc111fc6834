"""Who writes: the query, its run, and the name under which the ledger knows it.

Spark tells a sink neither its query nor its run; both stand among the local properties of each task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from detent.errors import Invalid
from detent.spark.options import Options

QUERY_PROPERTY: Final = "sql.streaming.queryId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query puts its jobs into a group that is named by the run, so that stopping it can cancel them."""


class BatchIdentity(NamedTuple):
    """The query that a task works for, and which run of it: each start of a query is a new run."""

    query: str
    run: str

    @classmethod
    def common(cls, identities: Iterable[BatchIdentity]) -> BatchIdentity:
        """The identity that all tasks of a batch share."""
        found = set(identities)
        if len(found) != 1 or not next(iter(found)).query:
            raise Invalid(f"the tasks of a batch say that they work for {sorted(found)}, not for one streaming query")
        return found.pop()


def task_identity(context: Any) -> BatchIdentity:
    """Who a task works for; empty outside a streaming query."""
    return BatchIdentity(context.getLocalProperty(QUERY_PROPERTY) or "", context.getLocalProperty(RUN_PROPERTY) or "")


def ledger_name(options: Options) -> str | None:
    """The name of a stream in the ledger: its own, the query's, or that of its checkpoint. With none of them, a deleted
    checkpoint cannot be told from a new query."""
    named = options.text("ledgerName") or options.text("queryName")
    if named is not None:
        return named
    checkpoint = options.text("checkpointLocation")
    return None if checkpoint is None else f"checkpoint:{checkpoint}"
