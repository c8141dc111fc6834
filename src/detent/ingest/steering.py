"""Questions about an ingest, and what a person does about its files: list them, put them back, forget them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, select, text, update

from detent.errors import Invalid, NotFound
from detent.ingest.identity import MALFORMED
from detent.ingest.shard_sql import BATCHES, BY_DIALECT, SHARDS, SOURCES
from detent.ingest.shared_state import now_ms
from detent.sql.transactions import transact

PAGE: Final = 1_000
STATES: Final = ("open", "redriven", "done", "quarantined")


@dataclass(frozen=True)
class SourceStatus:
    """An ingest in numbers."""

    name: str
    open: int
    redriven: int
    done: int
    quarantined: int
    pipelines: int
    """Pipelines that hold files now."""

    oldest_open_ms: int
    """How long ago the oldest unfinished file was announced; 0 if there is none."""

    batches: int
    files: int
    rows: int
    bytes: int
    last_commit_at: int
    forgotten_to: int

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(frozen=True)
class FileStatus:
    """A file of an ingest."""

    shard: str
    uri: str
    version: str
    size: int
    state: str
    attempts: int
    reason: str
    batch: str
    opened_at: int
    updated_at: int

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def status(engine: Engine, source: str) -> SourceStatus:
    """An ingest in numbers; `NotFound` if the database does not know it."""
    with engine.connect() as connection:
        kept = connection.execute(select(SOURCES.c.forgotten_to).where(SOURCES.c.source == source)).first()
        if kept is None:
            raise NotFound(f"no ingest called {source!r} ever ran on this database")
        counts = dict.fromkeys(STATES, 0)
        for row in connection.execute(
            select(SHARDS.c.state, func.count().label("files"))
            .where(SHARDS.c.source == source)
            .group_by(SHARDS.c.state)
        ):
            counts["open" if row.state == "prepared" else row.state] += row.files
        return SourceStatus(
            name=source,
            **counts,
            **_unfinished(connection, source),
            **commits(connection, source),
            forgotten_to=kept[0],
        )


def _unfinished(connection: Connection, source: str) -> dict[str, int]:
    query = select(
        func.count(SHARDS.c.token.distinct()).filter(SHARDS.c.token != ""), func.min(SHARDS.c.opened_at)
    ).where(SHARDS.c.source == source, SHARDS.c.state.in_(("open", "redriven", "prepared")))
    pipelines, oldest = connection.execute(query).one()
    return {"pipelines": pipelines, "oldest_open_ms": 0 if oldest is None else max(0, now_ms(connection) - oldest)}


def commits(connection: Connection, source: str) -> dict[str, int]:
    """What an ingest has committed, as far back as its database remembers."""
    columns = BATCHES.c
    query = select(
        func.count(),
        func.coalesce(func.sum(columns.shards), 0),
        func.coalesce(func.sum(columns.rows), 0),
        func.coalesce(func.sum(columns.bytes), 0),
        func.coalesce(func.max(columns.committed_at), 0),
    ).where(columns.source == source, columns.shards > 0)
    names = ("batches", "files", "rows", "bytes", "last_commit_at")
    return {name: int(value) for name, value in zip(names, connection.execute(query).one(), strict=True)}


def files(engine: Engine, source: str, *, state: str | None = None, containing: str = "") -> Iterator[FileStatus]:
    """The files that are known, by name, a page at a time."""
    if state is not None and state not in STATES:
        raise Invalid(f"a file is {', '.join(STATES)}, not {state!r}")
    columns = SHARDS.c
    after: tuple[str, bytes] = ("", b"")
    while True:
        query = select(SHARDS).where(columns.source == source)
        if state is not None:
            query = query.where(columns.state == state)
        if containing:
            query = query.where(columns.uri.contains(containing, autoescape=True))
        behind = (columns.uri > after[0]) | ((columns.uri == after[0]) & (columns.shard > after[1]))
        with engine.connect() as connection:
            rows = connection.execute(query.where(behind).order_by(columns.uri, columns.shard).limit(PAGE)).all()
        for row in rows:
            yield _file(row)
        if len(rows) < PAGE:
            return
        after = (rows[-1].uri, bytes(rows[-1].shard))


def _file(row: Any) -> FileStatus:
    return FileStatus(
        bytes(row.shard).hex(),
        row.uri,
        row.version,
        row.size,
        row.state,
        row.attempts,
        row.reason,
        row.batch,
        row.opened_at,
        row.updated_at,
    )


def redrive(engine: Engine, source: str, uris: Sequence[str] = ()) -> int:
    """Put files in quarantine back, all of them or those of these names: whichever pipeline runs takes them, with all
    attempts before them. How many. Malformed records stay: there is no file to try again."""
    columns = SHARDS.c
    quarantined = [columns.source == source, columns.state == "quarantined"]
    chosen = [*quarantined, columns.version != MALFORMED]
    if uris:
        chosen.append(columns.uri.in_(uris))

    def put_back(connection: Connection) -> int:
        if uris:
            there = connection.execute(select(columns.uri, columns.version).where(*quarantined, columns.uri.in_(uris)))
            versions = {row.uri: row.version for row in there}
            unknown = sorted(set(uris) - versions.keys())
            if unknown:
                raise NotFound(
                    f"not in quarantine: {', '.join(unknown[:10])}. `detent ingest quarantine` lists what is"
                )
            malformed = sorted(uri for uri, version in versions.items() if version == MALFORMED)
            if malformed:
                raise Invalid(
                    f"malformed records of notifications: {', '.join(malformed[:10])}. They name no file that could be "
                    "tried again: announce the file anew"
                )
        now = text(BY_DIALECT[connection.dialect.name].now)
        values = {"state": "redriven", "attempts": 0, "deaths": 0, "token": "", "updated_at": now}
        return connection.execute(update(SHARDS).where(*chosen).values(values)).rowcount

    return transact(engine, put_back)
