"""A source as the database knows it: what may not change between pipelines, what is forgotten, and when."""

from __future__ import annotations

import json
import logging
import os
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from detent.durations import no_shorter_text, span_text
from detent.engine import MALFORMED as UNREADABLE
from detent.errors import Corrupt, Invalid
from detent.ingest.config import IngestConfig
from detent.ingest.epoch import EPOCH
from detent.ingest.metastore import read, transact
from detent.ingest.ownership import MARKED, lost, note, noted, require_nothing_lost
from detent.ingest.shard_sql import BATCHES, FILES, SHARDS, SOURCES
from detent.ingest.shared_state import MESSAGE_SCHEME, now_ms
from detent.kv.localobjects import sync_directory
from detent.tables.orphans import BATCH, DATA_FOLDER
from detent.transports.contract import MessageQueue

logger = logging.getLogger("detent.ingest")

OWNER_FILE: Final = "_detent_owner.json"
"""The file in the folder of the data that says whose they are. Readers of tables pass over such names."""

PRUNE_ROWS: Final = 5_000
"""Rows that are deleted in one transaction, so that others can go on in between."""


def register(engine: Engine, config: IngestConfig) -> str:
    """Note the source, or check that it is the same: with another identity or table, files would come twice. And mark
    the table's folder as this source's, or check that it is: what one source sweeps would be another's data. `Conflict`
    if the folder had the mark and has it no more: what it had counts as done. The epoch of the source, which a reset
    ends."""
    fixed = {
        "identity": config.identity,
        "committer": config.committer,
        "table": config.location,
        "iceberg_table": config.iceberg_table,
    }

    def enter(connection: Connection) -> tuple[str, bool, str]:
        before = noted(connection, config.name)
        if before is None:
            owner = uuid.uuid4().hex
            values = {"source": config.name, "settings": json.dumps({**fixed, "owner": owner})}
            connection.execute(insert(SOURCES).values(**values, pruned_at=0, swept_at=0, forgotten_to=0))
            return owner, False, ""
        changed = [
            f"{name} was {before[name]!r}, now {value!r}"
            for name, value in fixed.items()
            if before.get(name, value) != value
        ]
        if changed:
            raise Invalid(
                f"the ingest {config.name} is another one in this database: {'; '.join(changed)}. Give it another name "
                "and another table"
            )
        if not fixed.keys() <= before.keys():  # it was reset
            note(connection, config.name, {**before, **fixed})
        return str(before["owner"]), bool(before.get(MARKED)), str(before.get(EPOCH, ""))

    owner, is_marked, epoch = transact(engine, enter)
    location = Path(config.location)
    if owner_of(location) is None:
        if is_marked:
            raise lost(engine, config.name, f"the folder of the table {location} is gone, or its mark is")
        require_nothing_lost(engine, config.name, config.location)
    _own(location, config.name, owner)
    if not is_marked:
        transact(engine, partial(_note_mark, source=config.name))
    return epoch


def _note_mark(connection: Connection, source: str) -> None:
    settings = noted(connection, source)
    if settings is not None:
        note(connection, source, {**settings, MARKED: True})


def owner_of(location: Path) -> str | None:
    """The owner that a table's folder is marked with; None if there is no mark."""
    found = _read_mark(location)
    return None if found is None else str(found.get("owner"))


def _read_mark(location: Path) -> dict[str, str] | None:
    mark = location / DATA_FOLDER / OWNER_FILE
    try:
        return msgspec.json.decode(mark.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UNREADABLE as error:
        raise Corrupt(f"{mark} says whose table this is, and cannot be read: {error}") from error


def _own(location: Path, name: str, owner: str) -> None:
    """Mark a folder; `Invalid` if it has the mark of another ingest, or data without a mark."""
    folder = location / DATA_FOLDER
    mark = folder / OWNER_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"the table {location} cannot be made: {error}") from error
    found = _read_mark(location)
    if found is None:
        if has_batches(location):
            raise Invalid(
                f"{folder} has data of an ingest that this database does not know: name another table, or the database "
                "that it was made with"
            )
        _write_mark(mark, json.dumps({"ingest": name, "owner": owner}).encode())
        found = _read_mark(location) or {}  # another pipeline may have been faster
    if found.get("owner") != owner:
        raise Invalid(f"the table {location} is that of the ingest {found.get('ingest')!r}: name another folder")


def has_batches(location: Path) -> bool:
    """Whether a table's folder has data of batches in it, be they committed or not."""
    folder = location / DATA_FOLDER
    return folder.is_dir() and any(BATCH.fullmatch(path.name) for path in folder.iterdir())


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
        sync_directory(folder)


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
        logger.warning(
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
    transact(engine, lambda connection: connection.execute(delete(BATCHES).where(*old)))
