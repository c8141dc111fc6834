"""Which table a source owns, as its database remembers it.

The rows of the database say which files are finished. They are true only as long as the table is there that has these
files. So a source notes what tells its table from every other in its place: the id of a Delta table, the UUID of an
Iceberg table, the mark in the folder of a list of Parquet files. It is noted before anything is committed. If there is
no table any more, or another one, a pipeline is refused until the table is back or the ingest was reset.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Engine, select, update

from detent.errors import Conflict
from detent.ingest import steering
from detent.ingest.epoch import EPOCH
from detent.ingest.metastore import read, transact
from detent.ingest.shard_sql import SOURCES
from detent.ingest.shared_state import QueueSharedState

TABLE: Final = "table_id"
"""What tells the table from others, among the settings of its source."""

MARKED: Final = "marked"
"""Whether the table's folder has the mark of its owner."""


def noted(connection: Connection, source: str) -> dict[str, Any] | None:
    """What a source has noted of itself, held until the transaction ends; None if it is not known."""
    query = select(SOURCES.c.settings).where(SOURCES.c.source == source).with_for_update()
    row = connection.execute(query).first()
    return None if row is None else dict(json.loads(row.settings))


def note(connection: Connection, source: str, settings: dict[str, Any]) -> None:
    """Note what is to be remembered of a source."""
    connection.execute(update(SOURCES).where(SOURCES.c.source == source).values(settings=json.dumps(settings)))


def require_table(state: QueueSharedState, location: str, found: str | None) -> None:
    """Note the table that stands at a location as the source's, or check that it is the one that was noted. `Conflict`
    if it is another, or if there is none (`found` is None) and there was one; `Fenced` for a pipeline from before a
    reset, whose table is not that of the pipelines after it."""
    engine, source = state.engine, state.source

    def compare(connection: Connection) -> tuple[str | None, bool]:
        settings = noted(connection, source)
        if settings is None:
            return found, True
        state.epoch.require(settings.get(EPOCH, ""))
        known = settings.get(TABLE)
        if known is None and found is not None:
            note(connection, source, {**settings, TABLE: found})
            return found, True
        return known, known == found

    known, is_same = transact(engine, compare)
    if found is None and known is None:
        require_nothing_lost(engine, source, location)
    elif not is_same:
        other = "is gone" if found is None else f"is another one, {found} and not {known}"
        raise lost(engine, source, f"the table {location} {other}")


def require_nothing_lost(engine: Engine, source: str, location: str) -> None:
    """`Conflict` if a source that has noted no table, as earlier releases noted none, has put rows into one."""
    if read(engine, partial(steering.commits, source=source))["rows"]:
        raise lost(engine, source, f"the table {location} is gone")


def lost(engine: Engine, source: str, what: str) -> Conflict:
    """What a pipeline is refused with whose table is not there."""
    return Conflict(
        f"{what}. {had(engine, source)} Put the table back as it was. Or begin anew: `detent ingest reset` forgets "
        "these files, and `detent ingest run --backfill PREFIX` brings them into a new table"
    )


def had(engine: Engine, source: str) -> str:
    """What a source knows to be in its table, for people."""
    found = read(engine, partial(steering.commits, source=source))
    if not found["batches"]:
        return f"The ingest {source!r} remembers no commit to it."
    last = datetime.fromtimestamp(found["last_commit_at"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"The ingest {source!r} remembers {found['batches']:,} commits to it, of {found['rows']:,} rows from "
        f"{found['files']:,} files, the last one at {last}. These files count as done."
    )
