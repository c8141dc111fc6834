"""Which table a source owns: as its database remembers it, and by a mark in the table's folder.

The rows of the database say which files are finished. They are true only as long as the table is there that has these
files. So a source notes what tells its table from every other in its place: the id of a Delta table, the UUID of an
Iceberg table, the mark in the folder of a list of Parquet files. It is noted before anything is committed. If there is
no table any more, or another one, a pipeline is refused until the table is back or the ingest was reset.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from detent.engine import MALFORMED as UNREADABLE
from detent.errors import Conflict, Corrupt, Exists, Invalid, NotFound
from detent.ingest import steering
from detent.ingest.config import IngestConfig
from detent.ingest.epoch import EPOCH
from detent.ingest.shard_sql import SOURCES
from detent.ingest.shared_state import QueueSharedState
from detent.kv.localobjects import sync_directory
from detent.kv.wholefiles import open_whole_files
from detent.sql.transactions import read, transact
from detent.tables.files import is_local
from detent.tables.orphans import BATCH, DATA_FOLDER

TABLE: Final = "table_id"
"""What tells the table from others, among the settings of its source."""

MARKED: Final = "marked"
"""Whether the table's folder has the mark of its owner."""


OWNER_FILE: Final = "_detent_owner.json"
"""The file in the folder of the data that says whose they are. Readers of tables pass over such names."""

_MARK: Final = f"{DATA_FOLDER}/{OWNER_FILE}"


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
        f"{what}. {had(engine, source)} Put the table back as it was. Or begin anew: `detent reset FILE` forgets "
        "these files, and `detent run FILE --backfill PREFIX` brings them into a new table"
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


# -- the source and the mark of its table ---------------------------------------------------------------------------


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
    location, storage = config.location, config.table_storage
    if owner_of(location, storage) is None:
        if is_marked:
            raise lost(engine, config.name, f"the folder of the table {location} is gone, or its mark is")
        require_nothing_lost(engine, config.name, config.location)
    _own(location, storage, config.name, owner)
    if not is_marked:
        transact(engine, partial(_note_mark, source=config.name))
    return epoch


def _note_mark(connection: Connection, source: str) -> None:
    settings = noted(connection, source)
    if settings is not None:
        note(connection, source, {**settings, MARKED: True})


def owner_of(location: str, storage: Mapping[str, str] | None = None) -> str | None:
    """The owner that a table's folder, or its place on an object store, is marked with; None if there is no mark."""
    found = _read_mark(location, storage)
    return None if found is None else str(found.get("owner"))


def _read_mark(location: str, storage: Mapping[str, str] | None) -> dict[str, str] | None:
    try:
        content = open_whole_files(location, storage).get(_MARK)
        return msgspec.json.decode(content, type=dict[str, str])
    except (NotFound, IsADirectoryError):
        return None
    except UNREADABLE as error:
        raise Corrupt(f"{location}/{_MARK} says whose table this is, and cannot be read: {error}") from error


def _own(location: str, storage: Mapping[str, str] | None, name: str, owner: str) -> None:
    """Mark a folder; `Invalid` if it has the mark of another ingest, or data without a mark."""
    if is_local(location):
        try:
            (Path(location) / DATA_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"the table {location} cannot be made: {error}") from error
    found = _read_mark(location, storage)
    if found is None:
        if has_batches(location, storage):
            raise Invalid(
                f"{location}/{DATA_FOLDER} has data of an ingest that this database does not know: name another table, "
                "or the database that it was made with"
            )
        content = json.dumps({"ingest": name, "owner": owner}).encode()
        if is_local(location):
            _write_mark(Path(location) / _MARK, content)
        else:
            with suppress(Exists):
                open_whole_files(location, storage).put(_MARK, content)
        found = _read_mark(location, storage) or {}  # another pipeline may have been faster
    if found.get("owner") != owner:
        raise Invalid(f"the table {location} is that of the ingest {found.get('ingest')!r}: name another folder")


def has_batches(location: str, storage: Mapping[str, str] | None = None) -> bool:
    """Whether there is data of batches where a table is, be they committed or not."""
    if not is_local(location):
        found = open_whole_files(location, storage).list(f"{DATA_FOLDER}/")
        return any(BATCH.fullmatch(one.name.split("/")[1]) for one in found)
    folder = Path(location) / DATA_FOLDER
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
