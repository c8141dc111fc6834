"""A source as the database knows it: what may not change between pipelines, what is forgotten, and when."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from detent.engine import MALFORMED
from detent.errors import Corrupt, Invalid
from detent.ingest.committer import BATCH, DATA_FOLDER
from detent.ingest.config import IngestConfig
from detent.ingest.metastore import read, transact
from detent.ingest.shard_sql import BATCHES, FILES, SHARDS, SOURCES
from detent.ingest.shared_state import MESSAGE_SCHEME, now_ms
from detent.spark.delta_files import sync_folder

OWNER_FILE: Final = "_detent_owner.json"
"""The file in the folder of the data that says whose they are. Readers of tables pass over such names."""

PRUNE_ROWS: Final = 5_000
"""Rows that are deleted in one transaction, so that others can go on in between."""


def register(engine: Engine, config: IngestConfig) -> None:
    """Note the source, or check that it is the same: with another identity or table, files would come twice. And mark
    the table's folder as this source's, or check that it is: what one source sweeps would be another's data."""
    fixed = {
        "identity": config.identity,
        "committer": config.committer,
        "table": config.location,
        "iceberg_table": config.iceberg_table,
    }

    def enter(connection: Connection) -> str:
        row = connection.execute(select(SOURCES.c.settings).where(SOURCES.c.source == config.name)).first()
        if row is None:
            owner = uuid.uuid4().hex
            values = {"source": config.name, "settings": json.dumps({**fixed, "owner": owner})}
            connection.execute(insert(SOURCES).values(**values, pruned_at=0, swept_at=0, forgotten_to=0))
            return owner
        before = json.loads(row.settings)
        changed = [
            f"{name} was {before[name]!r}, now {value!r}" for name, value in fixed.items() if before[name] != value
        ]
        if changed:
            raise Invalid(
                f"the ingest {config.name} is another one in this database: {'; '.join(changed)}. Give it another name "
                "and another table"
            )
        return str(before["owner"])

    _own(Path(config.location), config.name, transact(engine, enter))


def _own(location: Path, name: str, owner: str) -> None:
    """Mark a folder; `Invalid` if it is marked by somebody else, or has what nobody marked."""
    folder = location / DATA_FOLDER
    mark = folder / OWNER_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"the table {location} cannot be made: {error}") from error
    try:
        found = _read_mark(mark)
    except FileNotFoundError:
        if any(BATCH.fullmatch(path.name) for path in folder.iterdir()):
            raise Invalid(
                f"{folder} has data of an ingest that this database does not know: name another table, or the database "
                "that it was made with"
            ) from None
        _write_mark(mark, json.dumps({"ingest": name, "owner": owner}).encode())
        found = _read_mark(mark)  # another pipeline may have been faster
    if found.get("owner") != owner:
        raise Invalid(f"the table {location} is that of the ingest {found.get('ingest')!r}: name another folder")


def _read_mark(mark: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(mark.read_bytes(), type=dict[str, str])
    except MALFORMED as error:
        raise Corrupt(f"{mark} says whose table this is, and cannot be read: {error}") from error


def _write_mark(mark: Path, content: bytes) -> None:
    """All of it at once, for good, and only if there is none."""
    temporary = mark.with_name(f".{uuid.uuid4().hex}")
    with temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(temporary, mark)
    temporary.unlink()
    for folder in (mark.parent, mark.parent.parent, mark.parent.parent.parent):
        sync_folder(folder)


def check_window(config: IngestConfig, retention_s: float | None) -> None:
    """`Invalid` if the queue can deliver a message after its file was forgotten: it would be ingested again."""
    if retention_s is not None and config.window_s < retention_s:
        raise Invalid(
            f"the window of {config.window} is shorter than the {retention_s / 86400:g} days that the queue keeps its "
            f'messages, so a late one would be ingested twice: set window = "{int(retention_s // 86400) + 1}d" or more'
        )


def forgotten_to(engine: Engine, source: str) -> int:
    """The time up to which finished files may be forgotten, in milliseconds; 0 if all are known."""
    query = select(SOURCES.c.forgotten_to).where(SOURCES.c.source == source)
    return read(engine, lambda connection: connection.execute(query).scalar()) or 0


def prune(engine: Engine, config: IngestConfig, retention_s: float | None) -> int:
    """Forget finished files: those older than the window and, where a count is set and there are more, the oldest that
    the queue cannot deliver any more. Files that are being worked on, or in quarantine, stay. How many went."""
    now = read(engine, now_ms)
    by_age = now - round(config.window_s * 1000)
    pruned = _prune(engine, config.name, by_age, None)
    if config.window_files:
        kept_s = config.window_s if retention_s is None else retention_s
        pruned += _prune(engine, config.name, now - round(kept_s * 1000), config.window_files)
    _forget_batches(engine, config.name, by_age)
    _forget_messages(engine, config.name, by_age)
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
    """Data in messages that failed, and that the queue does not have any more."""
    columns = SHARDS.c
    old = (columns.source == source, columns.state == "open", columns.token == "", columns.updated_at < before_ms)
    named = columns.uri.startswith(MESSAGE_SCHEME, autoescape=True)
    transact(engine, lambda connection: connection.execute(delete(SHARDS).where(*old, named)))


def _forget_batches(engine: Engine, source: str, before_ms: int) -> None:
    """Records of commits go with their files, except those that name the live files of a manifest."""
    used = select(FILES.c.batch).where(FILES.c.source == source)
    old = (BATCHES.c.source == source, BATCHES.c.committed_at < before_ms, BATCHES.c.batch.not_in(used))
    transact(engine, lambda connection: connection.execute(delete(BATCHES).where(*old)))
