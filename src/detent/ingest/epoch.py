"""The time between two resets of an ingest, which tells pipelines from before a reset from those after it.

A pipeline remembers which files are finished, so that a duplicate costs no question. After a reset that is not true any
more: a file that is announced again has to be ingested again. So a reset begins a new epoch, and a pipeline of an
earlier one is refused wherever it would take, commit, finish or acknowledge a file.
"""

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import Connection, Engine, select

from detent.errors import Fenced
from detent.ingest.shard_sql import SOURCES
from detent.sql.transactions import read

EPOCH: Final = "epoch"
"""Its name among the settings of a source, which has none before its first reset."""


class SourceEpoch:
    """The epoch that a pipeline began in. `known` is the one that :func:`detent.ingest.ownership.register` found; left
    out, it is the first one that is seen."""

    def __init__(self, engine: Engine, source: str, known: str | None = None) -> None:
        self._engine = engine
        self._source = source
        self._known = known

    def require_current(self) -> None:
        """`Fenced` if the source was reset since this pipeline began."""
        read(self._engine, lambda connection: self.require(_epoch_of(connection, self._source)))

    def hold(self, connection: Connection) -> None:
        """The same, in a transaction, before whose end no reset comes."""
        self.require(_epoch_of(connection, self._source, is_held=True))

    def require(self, found: str) -> None:
        """The same, of the epoch that a transaction has found."""
        if self._known is None:
            self._known = found
        if found != self._known:
            raise Fenced(
                f"the ingest {self._source!r} was reset while this pipeline ran, which remembers files of the table "
                "that is gone: start the pipeline again"
            )


def _epoch_of(connection: Connection, source: str, *, is_held: bool = False) -> str:
    query = select(SOURCES.c.settings).where(SOURCES.c.source == source)
    if is_held:  # any number of commits hold it together, and a reset waits for them
        query = query.with_for_update(read=True, key_share=True)
    settings = connection.execute(query).scalar()
    return "" if settings is None else str(json.loads(settings).get(EPOCH, ""))
