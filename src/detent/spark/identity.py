"""Who writes: the query, its run, and the name under which the ledger knows it.

Spark tells a sink neither its query nor its run; both stand among the local properties of each task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from detent.errors import Invalid
from detent.spark.batch_input import UNKNOWN, input_of, local_checkpoint
from detent.spark.options import Options

QUERY_PROPERTY: Final = "sql.streaming.queryId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query puts its jobs into a group that is named by the run, so that stopping it can cancel them."""


CHECKPOINTS_PROPERTY: Final = "spark.sql.streaming.checkpointLocation"
"""Where the session has the checkpoints of streams that have none of their own, each under the query's name."""


class BatchIdentity(NamedTuple):
    """The query that a task works for, and which run of it: each start of a query is a new run. `checkpoints` is where
    its session has checkpoints."""

    query: str
    run: str
    checkpoints: str = ""

    @classmethod
    def common(cls, identities: Iterable[BatchIdentity]) -> BatchIdentity:
        """The identity that all tasks of a batch share."""
        found = set(identities)
        if len(found) != 1 or not next(iter(found)).query:
            raise Invalid(f"the tasks of a batch say that they work for {sorted(found)}, not for one streaming query")
        return found.pop()


def task_identity(context: Any) -> BatchIdentity:
    """Who a task works for; empty outside a streaming query."""
    properties = (QUERY_PROPERTY, RUN_PROPERTY, CHECKPOINTS_PROPERTY)
    return BatchIdentity(*(context.getLocalProperty(name) or "" for name in properties))


def ledger_name(options: Options) -> str | None:
    """The name of a stream in the ledger: its own, the query's, or that of its checkpoint. With none of them, a deleted
    checkpoint cannot be told from a new query."""
    named = options.text("ledgerName") or options.text("queryName")
    if named is not None:
        return named
    checkpoint = options.text("checkpointLocation")
    return None if checkpoint is None else f"checkpoint:{checkpoint}"


@dataclass(frozen=True)
class CheckpointPlace:
    """Where a stream has its checkpoint, as far as the options of its sink say."""

    location: str | None = None
    query_name: str | None = None

    @classmethod
    def of(cls, options: Options) -> CheckpointPlace:
        return cls(options.text("checkpointLocation"), options.text("queryName"))

    def input_of(self, identity: BatchIdentity, batch: int) -> bytes:
        """What a batch is made from, if the checkpoint is in a folder that this process can open."""
        location = self.location
        if location is None and identity.checkpoints and self.query_name:
            location = f"{identity.checkpoints}/{self.query_name}"
        checkpoint = None if location is None else local_checkpoint(location)
        return UNKNOWN if checkpoint is None else input_of(checkpoint, batch)


NOT_SAID: Final = CheckpointPlace()
"""The place of a checkpoint of which the sink knows nothing."""
