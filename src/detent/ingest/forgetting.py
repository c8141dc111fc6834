"""What a source forgets: finished files after the window, and with a reset all of it, to begin anew with another table.

A reset is for a table that is gone, and one transaction. The owner of the source stays the same, so a mark that is left
in a folder stays valid. The next pipeline may choose another table. A new epoch begins: pipelines that ran meanwhile
remember files of the table that is gone, and are refused.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, delete, func, select, update

from detent.durations import no_shorter_text, span_text
from detent.errors import Invalid, NotFound
from detent.ingest import steering
from detent.ingest.committer import TableCommitter
from detent.ingest.committers import committer_of
from detent.ingest.config import IngestConfig
from detent.ingest.epoch import EPOCH
from detent.ingest.ownership import TABLE, has_batches, note, noted
from detent.ingest.progress import log
from detent.ingest.shard_sql import BATCHES, FILES, PREPARED, SCHEMAS, SHARDS, SOURCES
from detent.ingest.shared_state import MESSAGE_SCHEME, QueueSharedState, now_ms
from detent.sql.transactions import read, transact
from detent.tables.orphans import DATA_FOLDER
from detent.transports.contract import MessageQueue

PRUNE_ROWS: Final = 5_000
"""Rows that are deleted in one transaction, so that others can go on in between."""


def check_window(config: IngestConfig, queue: MessageQueue, retention_s: float | None) -> None:
    """`Invalid` if the queue can deliver a message after its file was forgotten: it would be ingested again. A queue
    that does not say how long it keeps messages delivers one again when its visibility is over, at least."""
    known_s = queue.visibility_max_s if retention_s is None else retention_s
    if config.window_s < known_s:
        raise Invalid(
            f"the window of {span_text(config.window_s)} is shorter than the {span_text(known_s)} for which the queue "
            f"{queue.name!r} can deliver a message again, so a late one would be ingested twice: set "
            f'window = "{no_shorter_text(known_s)}" or more'
        )
    if retention_s is None:
        log.warning(
            "the queue %r does not say how long it keeps messages, and finished files are remembered for %s: set the "
            "window longer than the oldest message that can wait there, or a late one is ingested twice",
            queue.name,
            span_text(config.window_s),
        )


def forgotten_to(engine: Engine, source: str) -> int:
    """The time up to which finished files may be forgotten, in milliseconds; 0 if all are known."""
    query = select(SOURCES.c.forgotten_to).where(SOURCES.c.source == source)
    return read(engine, lambda connection: connection.execute(query).scalar()) or 0


def prune(engine: Engine, config: IngestConfig, retention_s: float | None) -> int:
    """Forget finished files: those older than the window and, where a count is set and there are more, the oldest that
    the queue cannot deliver any more. Files that are being worked on, or that failed too often, stay; records that
    were refused or malformed go with the window. How many finished files went."""
    now = read(engine, now_ms)
    by_age = now - round(config.window_s * 1000)
    pruned = _prune(engine, config.name, by_age, None)
    if config.window_files:
        kept_s = config.window_s if retention_s is None else retention_s
        pruned += _prune(engine, config.name, now - round(kept_s * 1000), config.window_files)
    _forget_batches(engine, config.name, by_age)
    _forget_messages(engine, config.name, by_age)
    _forget_set_aside(engine, config.name, by_age)
    return pruned


def _prune(engine: Engine, source: str, before_ms: int, keep: int | None) -> int:
    total = 0
    while True:
        limit = PRUNE_ROWS
        if keep is not None:
            limit = min(limit, _finished(engine, source) - keep)
        if limit <= 0:
            return total
        count = transact(engine, lambda connection, limit=limit: _prune_some(connection, source, before_ms, limit))  # type: ignore[misc]
        total += count
        if count < limit:
            return total


def _finished(engine: Engine, source: str) -> int:
    query = select(func.count()).where(SHARDS.c.source == source, SHARDS.c.state == "done")
    return read(engine, lambda connection: connection.execute(query).scalar_one())


def _prune_some(connection: Connection, source: str, before_ms: int, limit: int) -> int:
    old = (SHARDS.c.source == source, SHARDS.c.state == "done", SHARDS.c.updated_at < before_ms)
    query = select(SHARDS.c.shard, SHARDS.c.updated_at).where(*old).order_by(SHARDS.c.updated_at).limit(limit)
    rows = connection.execute(query).all()
    if not rows:
        return 0
    # First what is forgotten, then the rows: a backfill that sees no row sees why.
    horizon = max(row.updated_at for row in rows)
    connection.execute(
        update(SOURCES).where(SOURCES.c.source == source, SOURCES.c.forgotten_to < horizon).values(forgotten_to=horizon)
    )
    keys = sorted(bytes(row.shard) for row in rows)
    # Their state again: one of them may have been put back meanwhile.
    gone = delete(SHARDS).where(SHARDS.c.source == source, SHARDS.c.shard.in_(keys), SHARDS.c.state == "done")
    return connection.execute(gone).rowcount


def _forget_messages(engine: Engine, source: str, before_ms: int) -> None:
    """Data in messages that failed: the queue does not have them any more."""
    columns = SHARDS.c
    old = (columns.source == source, columns.state == "open", columns.token == "", columns.updated_at < before_ms)
    named = columns.uri.startswith(MESSAGE_SCHEME, autoescape=True)
    transact(engine, lambda connection: connection.execute(delete(SHARDS).where(*old, named)))


def _forget_set_aside(engine: Engine, source: str, before_ms: int) -> None:
    """Records that are malformed or refused: a sender could else fill the database with them. They were put into
    quarantine without an attempt; a file that was tried stays there until it is redriven."""
    columns = SHARDS.c
    untried = (columns.source == source, columns.state == "quarantined", columns.attempts == 0)
    old = delete(SHARDS).where(*untried, columns.updated_at < before_ms)
    transact(engine, lambda connection: connection.execute(old))


def _forget_batches(engine: Engine, source: str, before_ms: int) -> None:
    """Records of commits go with their files, except those that name the live files of a manifest."""
    used = select(FILES.c.batch).where(FILES.c.source == source)
    old = (BATCHES.c.source == source, BATCHES.c.committed_at < before_ms, BATCHES.c.batch.not_in(used))
    decided = BATCHES.c.shards >= 0  # one that is prepared is not
    transact(engine, lambda connection: connection.execute(delete(BATCHES).where(*old, decided)))


# -- a reset -----------------------------------------------------------------------------------------------------------


class Forgotten(NamedTuple):
    """What a reset forgets."""

    files: int
    """Files that are remembered, whether they are done, open or in quarantine."""
    batches: int
    rows: int
    table: str
    """Where the table was."""


def look_for_reset(engine: Engine, config: IngestConfig) -> Forgotten:
    """What a reset would forget; `Invalid` if the table is there, since its rows would come twice."""
    return _look(engine, config)[0]


def _look(engine: Engine, config: IngestConfig) -> tuple[Forgotten, TableCommitter]:
    settings, found = transact(engine, lambda connection: _remembered(connection, config))
    committer = _committer(engine, config, settings)
    committer.require_gone(settings.get(TABLE))
    if has_batches(found.table, config.table_storage):
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
        free = update(PREPARED).where(PREPARED.c.source == config.name).values(batch="", files="")
        connection.execute(free)  # its number stays: no two batches of a source have the same
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


def _committer(engine: Engine, config: IngestConfig, settings: dict[str, Any]) -> TableCommitter:
    """That of the table which the source has noted, whatever the configuration names now."""
    kept = {name: settings[name] for name in ("table", "committer", "iceberg_table") if name in settings}
    shared = QueueSharedState(engine, config.name, uuid.uuid4().hex, round(config.grace_s * 1000))
    return committer_of(dataclasses.replace(config, **kept), shared)
