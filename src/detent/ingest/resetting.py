"""Beginning anew with a table that is gone: what a source remembers is forgotten, all of it in one transaction.

Its owner stays the same, so a mark that is left in a folder stays valid. The next pipeline may choose another table.
A new epoch begins: pipelines that ran meanwhile remember files of the table that is gone, and are refused.
"""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, delete, func, select, update

from detent.errors import Invalid, NotFound
from detent.ingest import steering
from detent.ingest.committer import Committer
from detent.ingest.config import IngestConfig
from detent.ingest.epoch import EPOCH
from detent.ingest.metastore import transact
from detent.ingest.ownership import TABLE, note, noted
from detent.ingest.shard_sql import BATCHES, FILES, SCHEMAS, SHARDS, SOURCES
from detent.ingest.shared_state import QueueSharedState
from detent.ingest.source import has_batches
from detent.tables.orphans import DATA_FOLDER


class Forgotten(NamedTuple):
    """What a reset forgets."""

    files: int
    """Files that are remembered, whether they are done, open or in quarantine."""
    batches: int
    rows: int
    table: str
    """Where the table was."""


def look(engine: Engine, config: IngestConfig) -> Forgotten:
    """What a reset would forget; `Invalid` if the table is there, since its rows would come twice."""
    return _look(engine, config)[0]


def _look(engine: Engine, config: IngestConfig) -> tuple[Forgotten, Committer]:
    settings, found = transact(engine, lambda connection: _remembered(connection, config))
    committer = _committer(engine, config, settings)
    committer.require_gone(settings.get(TABLE))
    if has_batches(Path(found.table)):
        raise Invalid(
            f"{found.table}/{DATA_FOLDER} still has data of the table. Move the folder {found.table} away or delete "
            "it: what is left in it would be taken for what pipelines never committed, and be deleted"
        )
    return found, committer


def reset(engine: Engine, config: IngestConfig) -> Forgotten:
    """Forget what a source has ingested, into a table that is gone; what was forgotten. A pipeline that runs ends with
    `Fenced` before it commits or acknowledges anything more."""
    _, committer = _look(engine, config)
    has_none = committer.identity() is None

    def forget(connection: Connection) -> Forgotten:
        settings, found = _remembered(connection, config)
        for table in (SHARDS, BATCHES, FILES):
            connection.execute(delete(table).where(table.c.source == config.name))
        connection.execute(delete(SCHEMAS).where(SCHEMAS.c.source.in_([config.name, f"{config.name}/table"])))
        times = {"pruned_at": 0, "swept_at": 0, "forgotten_to": 0}
        connection.execute(update(SOURCES).where(SOURCES.c.source == config.name).values(**times))
        note(connection, config.name, {"owner": settings["owner"], EPOCH: uuid.uuid4().hex})
        if has_none:
            committer.forget_table(connection)
        return found

    return transact(engine, forget)


def _remembered(connection: Connection, config: IngestConfig) -> tuple[dict[str, Any], Forgotten]:
    settings = noted(connection, config.name)
    if settings is None:
        raise NotFound(f"no ingest called {config.name!r} ever ran on this database")
    files = connection.execute(select(func.count()).where(SHARDS.c.source == config.name)).scalar_one()
    commits = steering.commits(connection, config.name)
    location = settings.get("table", config.location)
    return settings, Forgotten(files, commits["batches"], commits["rows"], location)


def _committer(engine: Engine, config: IngestConfig, settings: dict[str, Any]) -> Committer:
    """That of the table which the source has noted, whatever the configuration names now."""
    from detent.ingest.running import committer_of

    kept = {name: settings[name] for name in ("table", "committer", "iceberg_table") if name in settings}
    shared = QueueSharedState(engine, config.name, uuid.uuid4().hex, round(config.grace_s * 1000))
    return committer_of(dataclasses.replace(config, **kept), shared)
