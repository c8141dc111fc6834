"""Outgoing messages in the user's own database, in the transaction in which the handlers write."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar

from detent.bus.messages import Envelope
from detent.bus.outbox import Claim, FailedEnvelope, OutboxCounts, Pending
from detent.bus.statements import (
    HELD_MS_MAX,
    LANE_IDLE_MS,
    LOOKED_AT,
    OUTBOX,
    OutboxStatements,
    outbox_named,
    outbox_statements,
)
from detent.bus.unit_of_work import Unit, sql_of
from detent.durations import Duration, milliseconds
from detent.errors import Corrupt, Fenced, Invalid
from detent.sql.dialects import DURABLE, NOW, SQLITE
from detent.sql.port import PlacedTable, SqlPort, answer, call

SAVED_AT_ONCE: Final = 100
"""Rows of one insert: SQLite takes 999 values in a statement where it is old, and these are 5 each."""

AHEAD_MS_MAX: Final = 1 << 61
"""What "however late" is in milliseconds: with the time added, the sum still fits the database's numbers."""

HEADERS_BYTES_MAX: Final = 1 << 20
"""What headers of one message can be; more cannot be a message of ours, and would fill the memory of the forwarder."""

ERROR_LETTERS_MAX: Final = 2_000
"""Of what went wrong, as much as people read."""

POSITIONS_AT_ONCE: Final = 1_000
"""Messages of one statement when all are tried again that were set aside."""

CLAIMS_TRIED: Final = 3
"""How often a claim looks for another lane when the one it took was emptied meanwhile."""

_WHAT: Final = "an outbox"

Result = TypeVar("Result")


class SqlOutbox:
    """Keeps outgoing messages in a table until they were sent.

    >>> bus = Bus("shop", ..., outbox=SqlOutbox(), unit_of_work=SqlAlchemyUnitOfWork(sessionmaker(engine)))

    `table` and one beside it, with ``_lanes`` after its name, are made if need be, or by your migrations (see
    `detent.bus.statements.schema`); a schema may come before the name. Messages that were sent are deleted at once, or
    kept for `keep_sent` if you want to look at them.

    A table without a schema is looked for when the app starts, by PostgreSQL's ``search_path``, and stays the one that
    was found: a handler, or a web request, that sets another ``search_path`` does not change where messages go.

    Messages to one address are sent in the order in which their transactions were committed, where one began after the
    other had ended. Two that overlap have no order. Those that are to be delivered later hold up no others.
    """

    def __init__(self, table: str = OUTBOX, *, keep_sent: Duration = "0s") -> None:
        outbox_named(table)
        self._table = PlacedTable(table, outbox_statements)
        self._lanes = _Lanes()
        self._keep_ms = milliseconds(keep_sent)

    def prepare(self, unit: Unit) -> Awaitable[None] | None:
        """Make the tables."""
        port = sql_of(unit, _WHAT)
        return answer(port, self._table.make(port))

    def save(self, unit: Unit, envelopes: Sequence[Envelope]) -> Awaitable[None] | None:
        """Keep messages, in their order."""
        port, statements = self._at(unit)
        return answer(port, _save(port, statements, envelopes))

    # -- forwarding ---------------------------------------------------------------------------------------------

    def claim(self, unit: Unit, limit: int, lease_s: float, ahead_s: float) -> Claim | Awaitable[Claim | None] | None:
        """Take the free lane whose first message has waited longest, with up to `limit` of its messages. Where more
        than a hundred messages of other lanes are before it, which others have or which wait, any free lane is taken,
        one after the other. A lease is for an hour at most."""
        port, statements = self._at(unit)
        return answer(port, _LaneClaiming(port, statements, limit, lease_s, ahead_s).claim(self._lanes))

    def renew(
        self, unit: Unit, claim: Claim, limit: int, lease_s: float, ahead_s: float
    ) -> Claim | Awaitable[Claim | None] | None:
        """Hold a lane for longer, and read on in it."""
        port, statements = self._at(unit)
        return answer(port, _LaneClaiming(port, statements, limit, lease_s, ahead_s).renew(claim))

    def sent(self, unit: Unit, claim: Claim, positions: Sequence[int]) -> Awaitable[None] | None:
        """Messages of a claim were sent."""
        port, statements = self._at(unit)

        async def work() -> None:
            await _held(port, statements.settle, claim)
            done = statements.remove if self._keep_ms == 0 else statements.mark
            await call(port, done, {"lane": claim.lane, "positions": json.dumps(list(positions))})

        return answer(port, work())

    def failed(self, unit: Unit, claim: Claim, errors: Sequence[tuple[int, str]]) -> Awaitable[None] | None:
        """Messages of a claim can never be sent."""
        port, statements = self._at(unit)

        async def work() -> None:
            await _held(port, statements.settle, claim)
            await _fail(port, statements, claim.lane, errors)

        return answer(port, work())

    def back_off(self, unit: Unit, claim: Claim, delay_s: float, error: str) -> Awaitable[None] | None:
        """Give the lane back, to be claimed after a delay."""
        port, statements = self._at(unit)
        values = {"delay": min(_milliseconds(delay_s), HELD_MS_MAX), "error": _readable(error)}
        return answer(port, _ended(port, statements.back_off, claim, values))

    def release(self, unit: Unit, claim: Claim) -> Awaitable[None] | None:
        """Give the lane back, to be claimed at once."""
        port, statements = self._at(unit)
        return answer(port, _ended(port, statements.release, claim, {}))

    # -- for people, and for housekeeping -----------------------------------------------------------------------

    def forget(self, unit: Unit, limit: int) -> int | Awaitable[int]:
        """Remove messages that were sent longer ago than `keep_sent`, and lanes that were not used for an hour."""
        port, statements = self._at(unit)

        async def work() -> int:
            removed = await call(port, statements.forget, {"age": self._keep_ms, "limit": limit})
            await call(port, statements.forget_lanes, {"idle": LANE_IDLE_MS, "limit": limit})
            return len(removed)

        return answer(port, work())

    def counts(self, unit: Unit) -> OutboxCounts | Awaitable[OutboxCounts]:
        """How much waits, how much was set aside, and how long the oldest has waited since it was due."""
        port, statements = self._at(unit)

        async def work() -> OutboxCounts:
            ((pending, oldest_ms, failed),) = await call(port, statements.counts)
            return OutboxCounts(pending, failed, max(0, oldest_ms or 0) / 1000)

        return answer(port, work())

    def set_aside(self, unit: Unit, limit: int) -> Sequence[FailedEnvelope] | Awaitable[Sequence[FailedEnvelope]]:
        """The oldest messages that were set aside."""
        port, statements = self._at(unit)

        async def work() -> list[FailedEnvelope]:
            return [
                FailedEnvelope(row[0], _envelope(row, is_shown=True), row[6] or "")
                for row in await call(port, statements.set_aside, {"limit": limit})
            ]

        return answer(port, work())

    def redrive(self, unit: Unit, positions: Sequence[int] | None) -> int | Awaitable[int]:
        """Put messages back that were set aside, at their old place."""
        port, statements = self._at(unit)

        async def work() -> int:
            if positions is not None:
                return len(await call(port, statements.redrive_some, {"positions": json.dumps(list(positions))}))
            count, after = 0, 0
            while moved := await call(port, statements.redrive, {"after": after, "limit": POSITIONS_AT_ONCE}):
                count, after = count + len(moved), max(row[0] for row in moved)
            return count

        return answer(port, work())

    def _at(self, unit: Unit) -> tuple[SqlPort, OutboxStatements]:
        port = sql_of(unit, _WHAT)
        return port, self._table.at(port)


# -- saving -----------------------------------------------------------------------------------------------------


async def _save(port: SqlPort, statements: OutboxStatements, envelopes: Sequence[Envelope]) -> None:
    for start in range(0, len(envelopes), SAVED_AT_ONCE):
        chunk = envelopes[start : start + SAVED_AT_ONCE]
        values: dict[str, Any] = {}
        for row, envelope in enumerate(chunk):
            values[f"lane_{row}"] = envelope.to
            values[f"id_{row}"] = envelope.id
            values[f"headers_{row}"] = json.dumps(dict(envelope.headers), separators=(",", ":"))
            values[f"body_{row}"] = envelope.body
            values[f"visible_{row}"] = envelope.visible_ms
        await call(port, _inserting(port.dialect, statements.tables[0], len(chunk)), values)


@lru_cache(4 * SAVED_AT_ONCE)
def _inserting(dialect: str, outbox: str, rows: int) -> str:
    now = NOW[dialect]
    values = ", ".join(
        f"(:lane_{row}, :id_{row}, :headers_{row}, :body_{row}, CAST(:visible_{row} AS bigint), {now})"
        for row in range(rows)
    )
    return (
        f"INSERT INTO {outbox} (lane, message_id, headers, body, visible_at, saved_at) VALUES {values} "
        f"RETURNING {DURABLE[dialect]}"
    )


def _envelope(row: Sequence[Any], *, is_shown: bool = False) -> Envelope:
    """The message of a row. `Corrupt` if it was written by hand, and not as it has to be; where it `is_shown`
    only, what cannot be read is left out."""
    position, lane, message_id, headers, body, visible_ms = row[:6]
    try:
        found = _headers(headers)
        if not isinstance(body, bytes | bytearray | memoryview):
            raise Corrupt(f"its body is not bytes, but {type(body).__name__}")
        if not isinstance(message_id, str) or not isinstance(lane, str):
            raise Corrupt("its id and its address are texts")
        if visible_ms is not None and not isinstance(visible_ms, int):
            raise Corrupt(f"the time when it is due is a number of milliseconds, and not {visible_ms!r}")
    except Corrupt as error:
        if not is_shown:
            raise Corrupt(f"the row of the message {message_id} at {position} was spoilt: {error}") from error
        found, body, visible_ms = {}, body if isinstance(body, bytes) else str(body).encode(errors="replace"), None
    return Envelope(str(message_id), str(lane), found, bytes(body), visible_ms)


def _headers(text: Any) -> dict[str, str]:
    if not isinstance(text, str) or len(text) > HEADERS_BYTES_MAX:
        raise Corrupt(f"its headers are text in JSON's form, of {HEADERS_BYTES_MAX} bytes at most")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"its headers are no headers: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Corrupt("its headers are no headers: not a list of names and texts")
    return found


def _readable(error: str) -> str:
    """What went wrong, as any database takes it."""
    return error[:ERROR_LETTERS_MAX].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _milliseconds(seconds: float) -> int:
    return int(min(max(seconds, 0.0) * 1000, AHEAD_MS_MAX))


# -- what a claim is needed for ---------------------------------------------------------------------------------


async def _held(port: SqlPort, statement: str, claim: Claim, values: dict[str, Any] | None = None) -> int:
    """Change the lane of a claim, if it still is the claimer's; its failures."""
    rows = await call(port, statement, {"lane": claim.lane, "token": claim.token, **(values or {})})
    if not rows:
        _lost(claim)
    failures: int = rows[0][0]
    return failures


async def _ended(port: SqlPort, statement: str, claim: Claim, values: dict[str, Any]) -> None:
    await _held(port, statement, claim, values)


def _lost(claim: Claim) -> NoReturn:
    raise Fenced(f"another process forwards the messages to {claim.lane} by now: nothing was changed")


async def _fail(port: SqlPort, statements: OutboxStatements, lane: str, errors: Sequence[tuple[int, str]]) -> None:
    for position, error in errors:
        await call(port, statements.fail, {"lane": lane, "position": position, "error": _readable(error)})


class _Lanes:
    """Where a process is in going from lane to lane: each has its turn, whatever the others have to send."""

    def __init__(self) -> None:
        self._after = ""

    def turns(self) -> tuple[str, ...]:
        """The names after which to look: from the last one on, and then from the first one."""
        return (self._after, "") if self._after else ("",)

    def took(self, lane: str) -> None:
        self._after = lane


class _LaneClaiming:
    """Takes lanes, and reads what waits in them."""

    def __init__(self, port: SqlPort, statements: OutboxStatements, limit: int, lease_s: float, ahead_s: float) -> None:
        if limit < 1 or not lease_s > 0:
            raise Invalid(f"a claim is for one message or more and for some time, not for {limit} and {lease_s} s")
        self._port = port
        self._statements = statements
        self._limit = limit
        self._lease = {"lease": min(_milliseconds(lease_s), HELD_MS_MAX)}
        self._ahead = {"ahead": _milliseconds(ahead_s)}

    async def claim(self, lanes: _Lanes) -> Claim | None:
        for _ in range(CLAIMS_TRIED):
            taken = await (self._take(lanes) if self._port.dialect == SQLITE else self._take_locked(lanes))
            if taken is None:
                return None
            # Read under the lane's lock: its holder before has said by now what became of its messages.
            found = await self._read(Claim(*taken[:2], (), taken[2]))
            if found is not None:
                return found
        return None

    async def renew(self, claim: Claim) -> Claim | None:
        failures = await _held(self._port, self._statements.renew, claim, self._lease)
        return await self._read(claim._replace(failures=failures))

    async def _take(self, lanes: _Lanes) -> tuple[str, int, int] | None:
        taken = await call(self._port, self._statements.take, self._lease | self._ahead)
        if not taken:
            for after in lanes.turns():
                values = self._lease | self._ahead | {"after": after}
                if taken := await call(self._port, self._statements.take_after, values):
                    lanes.took(taken[0][0])
                    break
        return tuple(taken[0]) if taken else None

    async def _take_locked(self, lanes: _Lanes) -> tuple[str, int, int] | None:
        """On PostgreSQL others claim at the same moment: of the free lanes, the first is taken that is not locked."""
        found = await call(self._port, self._statements.candidates, self._ahead)
        if found[0][0] is not None:
            return await self._lock([row[:2] for row in found])
        if found[0][2] < LOOKED_AT:
            return None  # it has seen all there is
        for after in lanes.turns():
            free = await call(self._port, self._statements.candidates_after, self._ahead | {"after": after})
            if free and (taken := await self._lock(free)) is not None:
                lanes.took(taken[0])
                return taken
        return None

    async def _lock(self, free: Sequence[Sequence[Any]]) -> tuple[str, int, int] | None:
        unknown = [lane for lane, is_known in free if not is_known]
        if unknown:
            await call(self._port, self._statements.enter, {"lanes": json.dumps(unknown)})
        lanes = {"lanes": json.dumps([lane for lane, _ in free])}
        taken = await call(self._port, self._statements.take, self._lease | lanes)
        return tuple(taken[0]) if taken else None

    async def _read(self, claim: Claim) -> Claim | None:
        """The claim with its messages; None, and the lane given back, if there are none. A message whose row was
        spoilt is set aside, or it would be in the way for ever."""
        while rows := await self._rows(claim.lane):
            pending, spoilt = [], []
            for row in rows:
                try:
                    pending.append(Pending(row[0], _envelope(row)))
                except Corrupt as error:
                    spoilt.append((row[0], str(error)))
            await _fail(self._port, self._statements, claim.lane, spoilt)
            if pending:
                return claim._replace(pending=pending)
        await _ended(self._port, self._statements.release, claim, {})
        return None

    def _rows(self, lane: str) -> Coroutine[Any, Any, Sequence[Sequence[Any]]]:
        return call(self._port, self._statements.read, {"lane": lane, "limit": self._limit, **self._ahead})
