"""The statements of the shard table, for SQLite and PostgreSQL, and the tables themselves.

Three rules hold for all of them. The time is the database's: pipelines on several machines compare nothing else. Keys
come sorted, so that pipelines which meet lock rows in one order. And what changes many rows goes through their primary
key: PostgreSQL is handed an array and upserts (an UPDATE joined to an array may be planned as a scan of the whole
table), SQLite gets the statement once a row, which costs it nothing.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    event,
    text,
)
from sqlalchemy.sql.elements import TextClause

from detent.sql.dialects import NOW

METADATA: Final = MetaData()

SHARDS: Final = Table(
    "detent_ingest_shards",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("shard", LargeBinary, primary_key=True),
    Column("state", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("position", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("begun", Integer, nullable=False, server_default=text("0")),
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    Column("uri", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("batch", Text, nullable=False),
    Column("reason", Text, nullable=False),
)
_UNFINISHED: Final = text("state IN ('open', 'redriven')")
Index(
    "detent_ingest_shards_open",
    SHARDS.c.source,
    SHARDS.c.token,
    sqlite_where=_UNFINISHED,
    postgresql_where=_UNFINISHED,
)
Index("detent_ingest_shards_age", SHARDS.c.source, SHARDS.c.state, SHARDS.c.updated_at)

SOURCES: Final = Table(
    "detent_ingest_sources",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("settings", Text, nullable=False),
    Column("pruned_at", BigInteger, nullable=False),
    Column("forgotten_to", BigInteger, nullable=False),
    Column("swept_at", BigInteger, nullable=False),
)

SCHEMAS: Final = Table(
    "detent_ingest_schemas",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("columns", Text, nullable=False),
    Column("kept_at", BigInteger, nullable=False),
)

BATCHES: Final = Table(
    "detent_ingest_batches",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("batch", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("committed_at", BigInteger, nullable=False),
    Column("shards", Integer, nullable=False),
    Column("files", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
Index("detent_ingest_batches_age", BATCHES.c.source, BATCHES.c.committed_at)

FILES: Final = Table(
    "detent_ingest_files",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("batch", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("committed_at", BigInteger, nullable=False),
)


PREPARED: Final = Table(
    "detent_ingest_prepared",
    METADATA,
    Column("source", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("batch", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("prepared_at", BigInteger, nullable=False),
)
"""The one batch of a source that may be on its way into a table elsewhere, and how many there were; no batch: none."""

_VIEW: Final = (
    "detent_ingest_manifest AS SELECT source AS ingest, path, rows, bytes, committed_at FROM detent_ingest_files"
)
event.listen(FILES, "after_create", DDL(f"CREATE VIEW {_VIEW}"))  # type: ignore[no-untyped-call]


ENDS: Final = {
    "sqlite": text("'~' || printf('%020d', size)"),
    "postgresql": text("'~' || lpad(CAST(size AS text), 20, '0')"),
}
"""The position after all of a shard's file."""


class ShardStatements(NamedTuple):
    """The statements whose form differs between the two databases. Those in the plural take arrays on PostgreSQL and
    one row at a time on SQLite."""

    now: str
    open: TextClause
    look: TextClause
    advance: TextClause
    finish: TextClause
    touch: TextClause
    set_aside: TextClause
    enter: TextClause


AHEAD_MS: Final = 3_600_000
"""A time that is further ahead than this was written when the database's clock was: what it says of a pipeline, or of a
turn, would else hold until that time has come."""

_COLUMNS: Final = (
    "source, shard, state, token, position, opened_at, updated_at, attempts, uri, version, size, batch, reason"
)
_TAKEN: Final = f"""
ON CONFLICT (source, shard) DO UPDATE SET
    deaths = detent_ingest_shards.deaths + CASE WHEN detent_ingest_shards.state = 'open'
        AND detent_ingest_shards.token NOT IN ('', excluded.token) THEN detent_ingest_shards.begun ELSE 0 END,
    begun = CASE WHEN detent_ingest_shards.token = excluded.token THEN detent_ingest_shards.begun ELSE 0 END,
    state = 'open', token = excluded.token, updated_at = excluded.updated_at
WHERE detent_ingest_shards.state = 'redriven' OR (detent_ingest_shards.state = 'open' AND (
    detent_ingest_shards.token = excluded.token OR detent_ingest_shards.updated_at < excluded.updated_at - :grace
    OR (detent_ingest_shards.token <> '' AND detent_ingest_shards.updated_at > excluded.updated_at + {AHEAD_MS})))
"""
_ADVANCED: Final = """
ON CONFLICT (source, shard) DO UPDATE SET
    state = 'done', position = excluded.position, updated_at = excluded.updated_at, batch = excluded.batch, reason = ''
WHERE detent_ingest_shards.state = 'open' AND detent_ingest_shards.position = ''
    AND detent_ingest_shards.token = excluded.token
"""
_FINISHED: Final = """
ON CONFLICT (source, shard) DO UPDATE SET
    state = 'done', position = excluded.position, updated_at = excluded.updated_at, batch = excluded.batch,
    reason = excluded.reason
WHERE detent_ingest_shards.state <> 'done'
"""


def _common(now: str) -> dict[str, Any]:
    """The statements that differ by the time only."""
    return {
        "now": now,
        "touch": text(
            f"UPDATE detent_ingest_shards SET updated_at = {now} "
            "WHERE source = :source AND token = :token AND state = 'open' RETURNING shard"
        ),
        "set_aside": text(
            f"INSERT INTO detent_ingest_shards ({_COLUMNS}) VALUES (:source, :key, 'quarantined', '', '', {now}, "
            f"{now}, 0, :uri, :version, :size, '', :reason) ON CONFLICT (source, shard) DO NOTHING"
        ),
        "enter": text(
            "INSERT INTO detent_ingest_batches (source, batch, token, committed_at, shards, files, rows, bytes) "
            f"VALUES (:source, :batch, :token, {now}, :shards, :files, :rows, :bytes) "
            "ON CONFLICT (source, batch) DO NOTHING"
        ),
    }


_SQLITE_NOW: Final = NOW["sqlite"]
_POSTGRES_NOW: Final = NOW["postgresql"]

SQLITE: Final = ShardStatements(
    **_common(_SQLITE_NOW),
    open=text(
        f"INSERT INTO detent_ingest_shards ({_COLUMNS}) VALUES (:source, :shard, 'open', :token, '', {_SQLITE_NOW}, "
        f"{_SQLITE_NOW}, 0, :uri, :version, :size, '', '') {_TAKEN}"
    ),
    # A list of values, and no join with json_each: in that SQLite scans the table, and looks each row up in the list.
    look=text(
        "SELECT shard, state, token, deaths, opened_at = updated_at AS is_new FROM detent_ingest_shards "
        "WHERE source = :source AND shard IN :shards"
    ).bindparams(bindparam("shards", expanding=True)),
    advance=text(
        f"UPDATE detent_ingest_shards SET state = 'done', position = :position, updated_at = {_SQLITE_NOW}, "
        "batch = :batch, reason = '' "
        "WHERE source = :source AND shard = :shard AND state = 'open' AND position = '' AND token = :token"
    ),
    finish=text(
        f"INSERT INTO detent_ingest_shards ({_COLUMNS}) VALUES (:source, :shard, 'done', :token, :position, "
        f"{_SQLITE_NOW}, {_SQLITE_NOW}, 0, :uri, :version, :size, :batch, :reason) {_FINISHED}"
    ),
)

_KEYS: Final = (
    "unnest(CAST(:shards AS bytea[]), CAST(:uris AS text[]), CAST(:versions AS text[]), CAST(:sizes AS bigint[]), "
    "CAST(:positions AS text[])) AS k (shard, uri, version, size, position)"
)
_LOOKED: Final = (
    "SELECT s.shard, s.state, s.token, s.deaths, s.opened_at = s.updated_at AS is_new "
    "FROM unnest(CAST(:shards AS bytea[])) AS k (shard) "
    "CROSS JOIN LATERAL (SELECT * FROM detent_ingest_shards AS r "
    "WHERE r.source = :source AND r.shard = k.shard OFFSET 0) AS s"
)

POSTGRES: Final = ShardStatements(
    **_common(_POSTGRES_NOW),
    # One round trip: what was touched is ours, and of the rest the row as it was before says whose it is.
    open=text(
        f"WITH taken AS (INSERT INTO detent_ingest_shards ({_COLUMNS}) "
        f"SELECT :source, k.shard, 'open', :token, '', {_POSTGRES_NOW}, {_POSTGRES_NOW}, 0, k.uri, k.version, k.size, "
        f"'', '' FROM {_KEYS} ORDER BY k.shard {_TAKEN} "
        "RETURNING shard, state, token, deaths, opened_at = updated_at AS is_new) "
        "SELECT shard, state, token, deaths, is_new FROM taken UNION ALL "
        f"{_LOOKED} WHERE s.shard NOT IN (SELECT shard FROM taken)"
    ),
    look=text(_LOOKED),
    # A row that had vanished comes back with an opened_at of 0, which no row that was opened has.
    advance=text(
        f"INSERT INTO detent_ingest_shards ({_COLUMNS}) "
        f"SELECT :source, k.shard, 'done', :token, k.position, 0, {_POSTGRES_NOW}, 0, k.uri, k.version, k.size, "
        f":batch, '' FROM {_KEYS} ORDER BY k.shard {_ADVANCED} RETURNING shard, opened_at"
    ),
    finish=text(
        f"INSERT INTO detent_ingest_shards ({_COLUMNS}) "
        f"SELECT :source, k.shard, 'done', :token, k.position, {_POSTGRES_NOW}, {_POSTGRES_NOW}, 0, k.uri, k.version, "
        f"k.size, :batch, :reason FROM {_KEYS} ORDER BY k.shard {_FINISHED}"
    ),
)

BY_DIALECT: Final = {"sqlite": SQLITE, "postgresql": POSTGRES}
