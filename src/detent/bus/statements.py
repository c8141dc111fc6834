"""The tables of trackers and outboxes, and every statement on them, for SQLite and PostgreSQL.

Text is compared byte by byte (COLLATE "C"): an index whose order came from the operating system is broken by its next
update, and a key that is not found again is a message handled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from detent.bus.lane_statements import (
    LATER,
    PENDING,
    READY,
    candidates,
    candidates_after,
    listed,
    take,
    take_after,
)
from detent.errors import Invalid
from detent.sql.dialects import DIALECTS, DURABLE, NOW, POSTGRESQL, SQLITE
from detent.sql.tables import TableName, table_named

HANDLED: Final = "detent_handled"
CONSUMERS: Final = "detent_consumers"
OUTBOX: Final = "detent_outbox"

LANE_IDLE_MS: Final = 3_600_000
"""How long a lane is remembered that nothing waits in: making it anew at each message would cost a write."""

SAVED_AT_ONCE: Final = 100
"""Rows of one insert: SQLite takes 999 values in a statement where it is old, and these are 5 each."""

_LANES: Final = "_lanes"


class TrackerStatements(NamedTuple):
    """What is asked of the marks of handled messages, and of the names of consumers."""

    tables: tuple[str, ...]
    make: tuple[str, ...]
    track: str
    """Takes :consumer and :message_id; answers a row unless that mark is there."""
    look: str
    """Answers a row if a mark is there."""
    forget: str
    """Takes :consumer, :age and :limit; answers a row for each mark that it removes."""
    enter: str
    """Takes :consumer and :place."""
    place: str
    """Answers the place that a consumer was entered with."""


class OutboxStatements(NamedTuple):
    """What is asked of an outbox. Statements after a claim take :lane and :token, and answer nothing if the lane has
    another token by now."""

    dialect: str
    table: TableName
    tables: tuple[str, ...]
    make: tuple[str, ...]
    candidates: str
    """PostgreSQL only: free lanes near the oldest message, whether each has a row, and how many messages were looked
    at. Without a free lane, a row without a lane."""
    candidates_after: str
    """PostgreSQL only: free lanes whose names come after :after."""
    enter: str
    """PostgreSQL only: rows for :lanes."""
    take: str
    """Answers lane, token and failures of the lane that was taken: on PostgreSQL of :lanes, else near the oldest
    message."""
    take_after: str
    """SQLite only: the same of those whose names come after :after."""
    read: str
    """The first :limit messages of :lane that are due within :ahead."""
    renew: str
    settle: str
    """Something of the lane was dealt with: it has not failed any more."""
    back_off: str
    release: str
    remove: str
    """Messages at :positions of :lane go."""
    mark: str
    """They are kept as sent."""
    fail: str
    """The message at :position is set aside with :error."""
    forget: str
    forget_lanes: str
    counts: str
    set_aside: str
    redrive: str
    """Of the messages set aside, up to :limit after the position :after."""
    redrive_some: str
    """Those at :positions."""

    def save(self, rows: int) -> str:
        """The insert of so many messages: :lane_0, :id_0, :headers_0, :body_0, :visible_0, and so on."""
        return _save(self.dialect, self.table, rows)


# -- making tables ----------------------------------------------------------------------------------------------


def schema(dialect: str, *, tracker: str | None = HANDLED, outbox: str | None = OUTBOX) -> str:
    """The statements that make the tables of a tracker and an outbox, for those who have migrations of their own."""
    if dialect not in DIALECTS:
        raise Invalid(f"marks and messages are kept in SQLite or PostgreSQL, not in {dialect!r}")
    made: list[str] = []
    if tracker is not None and outbox is not None and tracker.casefold() == outbox.casefold():
        raise Invalid(f"a tracker and an outbox have tables of their own: {tracker!r} cannot be both")
    if tracker is not None:
        made += tracker_statements(dialect, tracker).make
    if outbox is not None:
        made += outbox_statements(dialect, outbox).make
    return "".join(f"{statement};\n" for statement in made)


def _index(dialect: str, table: TableName, suffix: str, what: str) -> str:
    """An index is in the schema of its table; SQLite wants that said of the index, PostgreSQL of the table."""
    index = TableName(table.schema if dialect == SQLITE else "", f"{table.name}_{suffix}").quoted
    on = TableName("" if dialect == SQLITE else table.schema, table.name).quoted
    return f"CREATE INDEX IF NOT EXISTS {index} ON {on} {what}"


def outbox_named(name: str, dialect: str | None = None) -> TableName:
    """The table of an outbox; `Invalid` for a name that is one of lanes, or no name."""
    table = table_named(name, dialect)
    if table.name.casefold().endswith(_LANES):
        raise Invalid(f"{name!r} would be where the lanes of another outbox are: leave {_LANES} out of its name")
    return table


def _text(dialect: str) -> str:
    return 'text COLLATE "C"' if dialect == POSTGRESQL else "text"


# -- trackers ---------------------------------------------------------------------------------------------------


@lru_cache
def tracker_statements(dialect: str, name: str) -> TrackerStatements:
    """The statements on the marks in the table of that name. The names of consumers are beside it."""
    table = table_named(name, dialect)
    if table.name.casefold() == CONSUMERS:
        raise Invalid(f"{CONSUMERS} is where the names of consumers are: call the table of a tracker otherwise")
    consumers = table.beside(CONSUMERS)
    now, text = NOW[dialect], _text(dialect)
    handled, entered = table.quoted, consumers.quoted
    make = (
        f"CREATE TABLE IF NOT EXISTS {handled} (consumer {text} NOT NULL, message_id {text} NOT NULL, "
        "handled_at bigint NOT NULL, PRIMARY KEY (consumer, message_id))",
        _index(dialect, table, "age", "(consumer, handled_at)"),
        f"CREATE TABLE IF NOT EXISTS {entered} (consumer {text} NOT NULL PRIMARY KEY, place text NOT NULL, "
        "entered_at bigint NOT NULL)",
    )
    return TrackerStatements(
        tables=(handled, entered),
        make=make,
        # Only a conflict on this very key is a duplicate: every other error is one.
        track=f"INSERT INTO {handled} (consumer, message_id, handled_at) VALUES (:consumer, :message_id, {now}) "
        f"ON CONFLICT (consumer, message_id) DO NOTHING RETURNING {DURABLE[dialect]}",
        look=f"SELECT 1 FROM {handled} WHERE consumer = :consumer AND message_id = :message_id",
        forget=f"DELETE FROM {handled} WHERE (consumer, message_id) IN (SELECT consumer, message_id FROM {handled} "
        f"WHERE consumer = :consumer AND handled_at <= {now} - :age ORDER BY handled_at LIMIT :limit"
        f"{_skipping(dialect)}) RETURNING 1",
        enter=f"INSERT INTO {entered} (consumer, place, entered_at) VALUES (:consumer, :place, {now}) "
        "ON CONFLICT (consumer) DO NOTHING",
        place=f"SELECT place FROM {entered} WHERE consumer = :consumer",
    )


def _skipping(dialect: str) -> str:
    """Rows that another transaction is about to change are left to it. SQLite has one writer."""
    return " FOR UPDATE SKIP LOCKED" if dialect == POSTGRESQL else ""


# -- outboxes ---------------------------------------------------------------------------------------------------


@lru_cache
def outbox_statements(dialect: str, name: str) -> OutboxStatements:
    """The statements on the messages in the table of that name. Lanes are in one beside it."""
    table = outbox_named(name, dialect)
    beside = table.beside(f"{table.name}{_LANES}")
    now, outbox, lanes = NOW[dialect], table.quoted, beside.quoted
    mine = "WHERE lane = :lane AND token = :token RETURNING failures"
    here = _among(dialect)
    aside = f"SELECT position FROM {outbox} WHERE failed_at IS NOT NULL"
    waits = f"EXISTS (SELECT 1 FROM {outbox} o WHERE o.lane = l.lane AND"
    columns = "position, lane, message_id, headers, body, visible_at"
    return OutboxStatements(
        dialect=dialect,
        table=table,
        tables=(outbox, lanes),
        make=_make_outbox(dialect, table, beside),
        candidates=candidates(dialect, outbox, table.name, lanes),
        candidates_after=candidates_after(dialect, outbox, lanes),
        enter=f"INSERT INTO {lanes} (lane) SELECT lane FROM {listed('lanes')} AS c(lane) ORDER BY lane "
        "ON CONFLICT (lane) DO NOTHING",
        take=take(dialect, outbox, table.name, lanes),
        take_after=take_after(dialect, outbox, lanes),
        read=_read(dialect, outbox, columns),
        renew=f"UPDATE {lanes} SET leased_until = {now} + :lease {mine}",
        settle=f"UPDATE {lanes} SET failures = 0, error = NULL {mine}",
        back_off=f"UPDATE {lanes} SET leased_until = {now}, retry_at = {now} + :delay, failures = failures + 1, "
        f"error = :error {mine}",
        release=f"UPDATE {lanes} SET leased_until = {now} {mine}",
        remove=f"DELETE FROM {outbox} WHERE {here} AND lane = :lane",
        mark=f"UPDATE {outbox} SET sent_at = {now} WHERE {here} AND lane = :lane",
        fail=f"UPDATE {outbox} SET failed_at = {now}, error = :error WHERE position = :position AND lane = :lane "
        "AND sent_at IS NULL",
        forget=f"DELETE FROM {outbox} WHERE position IN (SELECT position FROM {outbox} WHERE sent_at IS NOT NULL "
        f"AND sent_at <= {now} - :age ORDER BY sent_at LIMIT :limit{_skipping(dialect)}) RETURNING 1",
        forget_lanes=f"DELETE FROM {lanes} WHERE lane IN (SELECT lane FROM {lanes} l WHERE leased_until <= {now} - "
        f":idle AND retry_at <= {now} - :idle AND NOT {waits} {READY}) AND NOT {waits} {LATER}) "
        f"LIMIT :limit{_skipping(dialect)})",
        counts=f"SELECT count(*), {now} - min(COALESCE(visible_at, saved_at)), (SELECT count(*) FROM {outbox} "
        f"WHERE failed_at IS NOT NULL) FROM {outbox} WHERE {PENDING}",
        set_aside=f"SELECT {columns}, error FROM {outbox} WHERE failed_at IS NOT NULL ORDER BY position LIMIT :limit",
        redrive=f"UPDATE {outbox} SET failed_at = NULL, error = NULL WHERE position IN ({aside} AND position > :after "
        "ORDER BY position LIMIT :limit) RETURNING position",
        redrive_some=f"UPDATE {outbox} SET failed_at = NULL, error = NULL WHERE {here} AND failed_at IS NOT NULL "
        "RETURNING position",
    )


def _make_outbox(dialect: str, table: TableName, lanes: TableName) -> tuple[str, ...]:
    """Positions and tokens are never used twice, whatever was deleted meanwhile: a lane that is made anew must not have
    a token again that a process still holds."""
    text = _text(dialect)
    if dialect == POSTGRESQL:
        position = "position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
        lane = f"lane {text} NOT NULL PRIMARY KEY, token bigint GENERATED ALWAYS AS IDENTITY"
        body = "bytea"
    else:
        position = "position INTEGER PRIMARY KEY AUTOINCREMENT"
        lane = "token INTEGER PRIMARY KEY AUTOINCREMENT, lane text NOT NULL UNIQUE"
        body = "blob"
    return (
        f"CREATE TABLE IF NOT EXISTS {table.quoted} ({position}, lane {text} NOT NULL, message_id text NOT NULL, "
        f"headers text NOT NULL, body {body} NOT NULL, visible_at bigint, saved_at bigint NOT NULL, sent_at bigint, "
        "failed_at bigint, error text)",
        _index(dialect, table, "ready", f"(lane, position) WHERE {READY}"),
        _index(dialect, table, "later", f"(lane, visible_at, position) WHERE {LATER}"),
        _index(dialect, table, "order", f"(position) WHERE {READY}"),
        _index(dialect, table, "due", f"(visible_at) WHERE {LATER}"),
        _index(dialect, table, "sent", "(sent_at) WHERE sent_at IS NOT NULL"),
        _index(dialect, table, "failed", "(position) WHERE failed_at IS NOT NULL"),
        f"CREATE TABLE IF NOT EXISTS {lanes.quoted} ({lane}, leased_until bigint NOT NULL DEFAULT 0, "
        "retry_at bigint NOT NULL DEFAULT 0, failures integer NOT NULL DEFAULT 0, error text)",
    )


def _read(dialect: str, outbox: str, columns: str) -> str:
    due = f"{LATER} AND lane = :lane AND visible_at <= {NOW[dialect]} + :ahead"
    return (
        f"SELECT {columns} FROM (SELECT * FROM (SELECT {columns} FROM {outbox} WHERE {READY} AND lane = :lane "
        "ORDER BY position LIMIT :limit) AS a UNION ALL "
        f"SELECT * FROM (SELECT {columns} FROM {outbox} WHERE {due} ORDER BY position LIMIT :limit) AS b) AS c "
        "ORDER BY position LIMIT :limit"
    )


def _among(dialect: str) -> str:
    """Whether a position is in a JSON list. PostgreSQL has an index looked at for each number of an array, and may look
    at the whole table for rows of a function."""
    if dialect == SQLITE:
        return "position IN (SELECT value FROM json_each(:positions))"
    return "position = ANY(CAST(translate(CAST(:positions AS text), '[]', '{}') AS bigint[]))"


@lru_cache(4 * SAVED_AT_ONCE)
def _save(dialect: str, table: TableName, rows: int) -> str:
    now = NOW[dialect]
    values = ", ".join(
        f"(:lane_{row}, :id_{row}, :headers_{row}, :body_{row}, CAST(:visible_{row} AS bigint), {now})"
        for row in range(rows)
    )
    return (
        f"INSERT INTO {table.quoted} (lane, message_id, headers, body, visible_at, saved_at) VALUES {values} "
        f"RETURNING {DURABLE[dialect]}"
    )


def numbered(index: int, values: Sequence[object]) -> dict[str, object]:
    """The values of one row of `save`."""
    lane, message_id, headers, body, visible = values
    return {
        f"lane_{index}": lane,
        f"id_{index}": message_id,
        f"headers_{index}": headers,
        f"body_{index}": body,
        f"visible_{index}": visible,
    }
