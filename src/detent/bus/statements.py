"""The tables of trackers and outboxes, and every statement on them, for SQLite and PostgreSQL."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from detent.errors import Invalid
from detent.sql.dialects import DIALECTS, DURABLE, NOW, POSTGRESQL, SQLITE
from detent.sql.tables import TableName, index, skipping, table_named, text_type

HANDLED: Final = "detent_handled"
CONSUMERS: Final = "detent_consumers"
OUTBOX: Final = "detent_outbox"

LANE_IDLE_MS: Final = 3_600_000
"""How long a lane is remembered that nothing waits in: making it anew at each message would cost a write."""

LANES_TRIED: Final = 64
"""Lanes that a claim tries on PostgreSQL, the oldest first, while others claim at the same moment."""

LOOKED_AT: Final = 128
"""How many of the oldest messages a claim looks at, for one whose lane is free. Only if these are all of lanes that
others have, or that wait, it goes from lane to lane: to do so each time would take longer with each lane more."""

HELD_MS_MAX: Final = 3_600_000
"""How long a lane is leased or waits at most. One that is said to do so for longer was written by a clock that was
ahead, and is free: it would stand still until that time has come."""

PENDING: Final = "sent_at IS NULL AND failed_at IS NULL"
READY: Final = f"{PENDING} AND visible_at IS NULL"
LATER: Final = f"{PENDING} AND visible_at IS NOT NULL"
"""Messages without and with a time of their own. Each has an index: a lane in which thousands wait for next week has
its first message found at once."""

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


def outbox_named(name: str, dialect: str | None = None) -> TableName:
    """The table of an outbox; `Invalid` for a name that is one of lanes, or no name."""
    table = table_named(name, dialect)
    if table.name.casefold().endswith(_LANES):
        raise Invalid(f"{name!r} would be where the lanes of another outbox are: leave {_LANES} out of its name")
    return table


# -- trackers ---------------------------------------------------------------------------------------------------


@lru_cache
def tracker_statements(dialect: str, name: str) -> TrackerStatements:
    """The statements on the marks in the table of that name. The names of consumers are beside it."""
    table = table_named(name, dialect)
    if table.name.casefold() == CONSUMERS:
        raise Invalid(f"{CONSUMERS} is where the names of consumers are: call the table of a tracker otherwise")
    consumers = table.beside(CONSUMERS)
    now, text = NOW[dialect], text_type(dialect)
    handled, entered = table.quoted, consumers.quoted
    make = (
        f"CREATE TABLE IF NOT EXISTS {handled} (consumer {text} NOT NULL, message_id {text} NOT NULL, "
        "handled_at bigint NOT NULL, PRIMARY KEY (consumer, message_id))",
        index(dialect, table, "age", "(consumer, handled_at)"),
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
        f"{skipping(dialect)}) RETURNING 1",
        enter=f"INSERT INTO {entered} (consumer, place, entered_at) VALUES (:consumer, :place, {now}) "
        "ON CONFLICT (consumer) DO NOTHING",
        place=f"SELECT place FROM {entered} WHERE consumer = :consumer",
    )


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
        f"AND sent_at <= {now} - :age ORDER BY sent_at LIMIT :limit{skipping(dialect)}) RETURNING 1",
        forget_lanes=f"DELETE FROM {lanes} WHERE lane IN (SELECT lane FROM {lanes} l WHERE leased_until <= {now} - "
        f":idle AND retry_at <= {now} - :idle AND NOT {waits} {READY}) AND NOT {waits} {LATER}) "
        f"LIMIT :limit{skipping(dialect)})",
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
    text = text_type(dialect)
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
        index(dialect, table, "ready", f"(lane, position) WHERE {READY}"),
        index(dialect, table, "later", f"(lane, visible_at, position) WHERE {LATER}"),
        index(dialect, table, "order", f"(position) WHERE {READY}"),
        index(dialect, table, "due", f"(visible_at) WHERE {LATER}"),
        index(dialect, table, "sent", "(sent_at) WHERE sent_at IS NOT NULL"),
        index(dialect, table, "failed", "(position) WHERE failed_at IS NOT NULL"),
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


# -- how lanes are claimed ------------------------------------------------------------------------------------------
#
# `outbox` and `lanes` are tables as statements name them, and `name` is what the indexes of the outbox begin with.


def _free(dialect: str, lanes: str) -> str:
    now = NOW[dialect]
    return " AND ".join(
        f"({lanes}.{until} <= {now} OR {lanes}.{until} > {now} + {HELD_MS_MAX})"
        for until in ("leased_until", "retry_at")
    )


def _oldest(dialect: str, outbox: str, name: str) -> str:
    """Lanes and positions of the oldest messages that are due. SQLite has to be told which index it is: it takes
    positions for the order of the table itself, in which thousands may come first that were sent or wait."""

    def some(which: str, suffix: str, order: str) -> str:
        index = f' INDEXED BY "{name}_{suffix}"' if dialect == SQLITE else ""
        return (
            f"SELECT * FROM (SELECT lane, position FROM {outbox}{index} WHERE {which} ORDER BY {order} "
            f"LIMIT {LOOKED_AT}) AS {suffix}_ones"
        )

    due = f"{LATER} AND visible_at <= {NOW[dialect]} + :ahead"
    return f"{some(READY, 'order', 'position')} UNION ALL {some(due, 'due', 'visible_at')}"


def _near(dialect: str, lanes: str, oldest: str) -> str:
    """The free lanes of `oldest`, the first one first. Each is looked up by itself, which PostgreSQL has to be told: it
    would read all lanes otherwise, and there may be thousands."""
    of_lane = f"SELECT * FROM {lanes} WHERE {lanes}.lane = o.lane LIMIT 1"
    found = f"{lanes} l ON l.lane = o.lane" if dialect == SQLITE else f"LATERAL ({of_lane}) AS l ON true"
    return (
        f"SELECT o.lane AS lane, o.head AS head, l.lane IS NOT NULL AS known, l.failures AS failures FROM "
        f"(SELECT lane, min(position) AS head FROM {oldest} AS ones GROUP BY lane) AS o LEFT JOIN {found} "
        f"WHERE l.lane IS NULL OR ({_free(dialect, 'l')}) ORDER BY o.head"
    )


def _after(dialect: str, outbox: str, lanes: str) -> str:
    """Free lanes after a name, by that, with the position of their first message. Lanes are found by going from one to
    the next in the index, until there are enough, and not by looking at all messages."""

    def each(name: str, which: str) -> str:
        first = f"SELECT lane FROM {outbox} WHERE {which} AND lane > :after ORDER BY lane LIMIT 1"
        following = f"SELECT o.lane FROM {outbox} o WHERE {which} AND o.lane > {name}.lane ORDER BY o.lane LIMIT 1"
        return (
            f"{name}(lane) AS (SELECT * FROM ({first}) AS one UNION ALL SELECT ({following}) FROM {name} "
            f"WHERE {name}.lane IS NOT NULL)"
        )

    def head(name: str, which: str) -> str:
        found = f"SELECT min(o.position) FROM {outbox} o WHERE {which} AND o.lane = {name}.lane"
        return (
            f"SELECT * FROM (SELECT {name}.lane AS lane, ({found}) AS head, l.lane AS known, l.failures AS failures "
            f"FROM {name} LEFT JOIN {lanes} l ON l.lane = {name}.lane WHERE {name}.lane IS NOT NULL "
            f"AND ({found}) IS NOT NULL AND (l.lane IS NULL OR ({_free(dialect, 'l')})) LIMIT {LANES_TRIED}) AS {name}s"
        )

    due = f"{LATER} AND visible_at <= {NOW[dialect]} + :ahead"
    return (
        f"WITH RECURSIVE {each('ready', READY)}, {each('later', LATER)}, "
        f"heads AS ({head('ready', READY)} UNION ALL {head('later', due)}) "
        "SELECT lane, min(head) AS head, count(known) AS known, max(failures) AS failures FROM heads GROUP BY lane "
        "ORDER BY head"
    )


def candidates(dialect: str, outbox: str, name: str, lanes: str) -> str:
    """Free lanes near the oldest message, whether each has a row, and how many messages were looked at."""
    if dialect == SQLITE:
        return ""
    return (
        f"WITH oldest AS MATERIALIZED ({_oldest(dialect, outbox, name)}) SELECT f.lane, f.known, s.seen "
        f"FROM (SELECT count(*) AS seen FROM oldest) s LEFT JOIN ({_near(dialect, lanes, 'oldest')}) f ON true "
        f"ORDER BY f.head LIMIT {LANES_TRIED}"
    )


def candidates_after(dialect: str, outbox: str, lanes: str) -> str:
    """Free lanes whose names come after :after."""
    if dialect == SQLITE:
        return ""
    return f"SELECT lane, known FROM ({_after(dialect, outbox, lanes)}) AS f ORDER BY head LIMIT {LANES_TRIED}"


def take(dialect: str, outbox: str, name: str, lanes: str) -> str:
    """A lane near the oldest message, or on PostgreSQL of :lanes."""
    if dialect == SQLITE:
        return _taking(dialect, lanes, _near(dialect, lanes, f"({_oldest(dialect, outbox, name)})"))
    return (
        f"UPDATE {lanes} SET token = DEFAULT, leased_until = {NOW[dialect]} + :lease WHERE lane = (SELECT l.lane "
        f"FROM {lanes} l JOIN {listed('lanes')} WITH ORDINALITY AS c(lane, place) ON c.lane = l.lane "
        f"WHERE {_free(dialect, 'l')} ORDER BY c.place LIMIT 1 FOR UPDATE OF l SKIP LOCKED) "
        "RETURNING lane, token, failures"
    )


def take_after(dialect: str, outbox: str, lanes: str) -> str:
    """A lane of those whose names come after :after."""
    return _taking(dialect, lanes, _after(dialect, outbox, lanes)) if dialect == SQLITE else ""


def _taking(dialect: str, lanes: str, free: str) -> str:
    """Take the first of the free lanes. Replacing the row draws a new token. It is one statement that writes, so that
    it has SQLite's lock from the start."""
    return (
        f"INSERT OR REPLACE INTO {lanes} (lane, leased_until, failures) SELECT lane, {NOW[dialect]} + :lease, "
        f"COALESCE(failures, 0) FROM ({free} LIMIT 1) RETURNING lane, token, failures"
    )


def listed(name: str) -> str:
    """The texts of a JSON list, on PostgreSQL. What is cast from text is the same for every driver."""
    return f"json_array_elements_text(CAST(CAST(:{name} AS text) AS json))"
