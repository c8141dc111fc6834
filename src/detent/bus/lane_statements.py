"""How the lanes of an outbox are claimed, in SQL. `outbox` and `lanes` are tables as statements name them, and `name`
is what the indexes of the outbox begin with."""

from __future__ import annotations

from typing import Final

from detent.sql.dialects import NOW, SQLITE

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
