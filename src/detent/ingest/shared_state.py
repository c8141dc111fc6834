"""`QueueSharedState`: which files belong to which pipeline, and which are finished, for all pipelines of a source.

Each file is a *shard*: a row with the token of the pipeline that has it. A token is one run of one pipeline. A
commit of a file has to hold its row in the same transaction, so a pipeline that was given up for dead, and was not, is
refused at its commit, and no table has what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, Row, bindparam, delete, func, select, text, update

from detent.errors import Invalid, ShardsLost
from detent.ingest.epoch import SourceEpoch
from detent.ingest.shard_sql import AHEAD_MS, BATCHES, BY_DIALECT, SHARDS, SOURCES
from detent.sql.transactions import read, transact

STATEMENT_ROWS: Final = 1_000
"""Rows of one statement: more brings nothing, and makes others wait for longer."""

REASON_MAX: Final = 2_000
"""Characters of a reason that are kept."""

MESSAGE_SCHEME: Final = "message:"
"""How the names of data begin that came in a message."""

BEGINNING: Final = ""
"""The position of a file of which nothing was committed."""


Item = TypeVar("Item")


class FileShard(NamedTuple):
    """A file of a source: its key is what its identity comes to."""

    key: bytes
    uri: str
    version: str
    size: int

    @property
    def end(self) -> str:
        """The position after all of it. It sorts behind every other."""
        return f"~{self.size:020d}"


class ShardGrant(NamedTuple):
    """A shard that is ours now."""

    deaths: int
    """How many pipelines went silent while they read it."""

    is_new: bool
    """No pipeline had asked for it before."""


class Opened(NamedTuple):
    """What came of asking for shards."""

    granted: dict[bytes, ShardGrant]
    """Ours now."""

    finished: frozenset[bytes]
    """Nothing is left to do: committed, or in quarantine."""

    held: frozenset[bytes]
    """Another pipeline's, which was seen lately."""


class BatchRecord(NamedTuple):
    """What is kept of a commit."""

    batch: str
    shards: int
    files: int
    rows: int
    bytes: int


class QueueSharedState:
    """The shard table, as one pipeline uses it. `epoch` is the one that it began in, as `SourceEpoch` takes it."""

    def __init__(self, engine: Engine, source: str, token: str, grace_ms: int, epoch: str | None = None) -> None:
        assert token, "a shard without a pipeline has none"
        self.engine = engine
        self.source = source
        self.token = token
        self.grace_ms = grace_ms
        self.epoch = SourceEpoch(engine, source, epoch)
        self._sql = BY_DIALECT[engine.dialect.name]
        self._takes_arrays = engine.dialect.name == "postgresql"

    # -- taking ------------------------------------------------------------------------------------------------------

    def open(self, shards: Iterable[FileShard]) -> Opened:
        """Ask for shards: new ones, those left behind by a pipeline that was not seen for the grace time, and our own
        are ours from now on."""
        asked = _sorted(shards)
        self.epoch.require_current()
        rows: list[Any] = []
        for some in in_portions(asked, STATEMENT_ROWS):
            work = partial(self._open, shards=some)
            rows += transact(self.engine, work, is_single=self._takes_arrays)
        granted = {
            bytes(row.shard): ShardGrant(row.deaths, bool(row.is_new))
            for row in rows
            if row.token == self.token and row.state == "open"
        }
        finished = frozenset(bytes(row.shard) for row in rows if row.state in {"done", "quarantined"})
        # One that is in no row was inserted by another while we looked.
        held = frozenset(shard.key for shard in asked) - finished - granted.keys()
        return Opened(granted, finished, held)

    def _open(self, connection: Connection, shards: Sequence[FileShard]) -> Sequence[Row[Any]]:
        if self._takes_arrays:
            return connection.execute(self._sql.open, self._arrays(shards, grace=self.grace_ms)).all()
        connection.execute(self._sql.open, self._each(shards, grace=self.grace_ms))
        return self._look(connection, [shard.key for shard in shards])

    def _look(self, connection: Connection, keys: Sequence[bytes]) -> Sequence[Row[Any]]:
        return connection.execute(self._sql.look, {"source": self.source, "shards": list(keys)}).all()

    def touch(self) -> frozenset[bytes]:
        """Say that this pipeline is alive; the shards that are still its own."""
        self.epoch.require_current()
        values = {"source": self.source, "token": self.token}
        rows = transact(self.engine, lambda connection: connection.execute(self._sql.touch, values).all())
        return frozenset(bytes(row.shard) for row in rows)

    def lost(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Which of these shards are not ours any more, as far as one can know without holding their rows."""
        self.epoch.require_current()
        asked = sorted(keys)
        ours: set[bytes] = set()
        for some in in_portions(asked, STATEMENT_ROWS):
            rows = read(self.engine, partial(self._look, keys=some))
            ours |= {bytes(row.shard) for row in rows if row.token == self.token and row.state == "open"}
        return frozenset(asked) - ours

    def begin(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Note that shards are being read, so that a death over them is counted; which of them are not ours."""
        self.epoch.require_current()
        asked = sorted(keys)
        ours: set[bytes] = set()
        columns = SHARDS.c
        for some in in_portions(asked, STATEMENT_ROWS):
            mine = (columns.source == self.source, columns.token == self.token, columns.state == "open")
            statement = update(SHARDS).where(*mine, columns.shard.in_(some)).values(begun=1).returning(columns.shard)
            rows = transact(self.engine, partial(_rows_of, statement=statement))
            ours |= {bytes(row.shard) for row in rows}
        return frozenset(asked) - ours

    # -- letting go --------------------------------------------------------------------------------------------------

    def release(self, keys: Iterable[bytes], *, is_death: bool = False) -> None:
        """Let go of shards, so that others, or we ourselves, can have them at once. With `is_death` it is counted that
        a pipeline died over them, as it is where one could not even let go."""
        self._update(keys, token="", updated_at=0, begun=0, **({"deaths": SHARDS.c.deaths + 1} if is_death else {}))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Let go of shards of ours as if no pipeline had ever asked for them."""
        rows = [{"key": key} for key in sorted(keys)]
        if rows:
            statement = delete(SHARDS).where(*self._mine(bindparam("key")))
            transact(self.engine, lambda connection: connection.execute(statement, rows))

    def fail(self, key: bytes, reason: str, delay_ms: int, attempts_max: int | None = None) -> bool:
        """Let go of a shard of ours that failed, to be had again after a delay. With `attempts_max` it counts as an
        attempt, of which the last puts it into quarantine; whether it is there now."""

        def count(connection: Connection) -> bool:
            mine = self._mine(key)
            attempts = connection.execute(select(SHARDS.c.attempts).where(*mine).with_for_update()).scalar()
            if attempts is None:
                return False  # it is another's, who will find out by itself
            counted = attempts + (attempts_max is not None)
            is_last = attempts_max is not None and counted >= attempts_max
            # No pipeline's, and as old as one that was left behind will be when the delay is over.
            back_dated = text(f"{self._sql.now} + {delay_ms - self.grace_ms:d}")
            values = {
                "attempts": counted,
                "reason": reason[:REASON_MAX],
                "state": "quarantined" if is_last else "open",
                "token": "",
                "begun": 0,
                "updated_at": text(self._sql.now) if is_last else back_dated,
            }
            connection.execute(update(SHARDS).where(*mine).values(values))
            return is_last

        return transact(self.engine, count)

    def _mine(self, key: Any) -> tuple[Any, ...]:
        columns = SHARDS.c
        return (
            columns.source == self.source,
            columns.shard == key,
            columns.state == "open",
            columns.token == self.token,
        )

    def _update(self, keys: Iterable[bytes], **values: object) -> None:
        rows = [{"key": key} for key in sorted(keys)]
        if rows:
            statement = update(SHARDS).where(*self._mine(bindparam("key"))).values(**values)
            transact(self.engine, lambda connection: connection.execute(statement, rows))

    # -- finishing ---------------------------------------------------------------------------------------------------

    def advance(self, connection: Connection, shards: Iterable[FileShard], record: BatchRecord) -> None:
        """Move shards of ours to their end, and note the batch, in the caller's transaction. `ShardsLost` if one is not
        ours: the transaction must be rolled back then."""
        self.epoch.hold(connection)
        asked = _sorted(shards)
        if not self.enter(connection, record):
            raise self.shards_lost(shard.key for shard in asked)
        advanced: set[bytes] = set()
        for some in in_portions(asked, STATEMENT_ROWS):
            advanced |= self._advance(connection, some, record.batch)
        if len(advanced) != len(asked):
            raise self.shards_lost({shard.key for shard in asked} - advanced)

    def _advance(self, connection: Connection, shards: Sequence[FileShard], batch: str) -> set[bytes]:
        keys = {shard.key for shard in shards}
        if self._takes_arrays:
            rows = connection.execute(self._sql.advance, self._arrays(shards, batch=batch)).all()
            return {bytes(row.shard) for row in rows if row.opened_at}
        found = connection.execute(self._sql.advance, self._each(shards, batch=batch))
        if found.rowcount == len(keys):
            return keys
        rows = connection.execute(
            select(SHARDS.c.shard).where(
                SHARDS.c.source == self.source, SHARDS.c.shard.in_(keys), SHARDS.c.batch == batch
            )
        ).all()
        return {bytes(row.shard) for row in rows}

    def refuse(self, batch: str) -> bool:
        """See to it that a batch cannot be committed any more; False if it was."""

        def note(connection: Connection) -> bool:
            # The row that its commit would write, with no shards: no commit is without.
            if self.enter(connection, BatchRecord(batch, 0, 0, 0, 0)):
                return True
            return connection.execute(select(BATCHES.c.shards).where(*self._batch(batch))).scalar() == 0

        return transact(self.engine, note)

    def committed(self) -> frozenset[str]:
        """The batches that the database says were committed."""
        query = select(BATCHES.c.batch).where(BATCHES.c.source == self.source, BATCHES.c.shards > 0)
        return frozenset(read(self.engine, lambda connection: connection.execute(query).scalars().all()))

    def has_committed(self, batch: str) -> bool:
        """Whether the database says that a batch was committed."""
        return (self._shards_of(batch) or 0) > 0

    def was_refused(self, batch: str) -> bool:
        """Whether the database says that a batch can never be committed."""
        return self._shards_of(batch) == 0

    def _shards_of(self, batch: str) -> int | None:
        """The shards of a batch; 0 if it was refused, fewer while it is prepared, None if nothing is known of it."""
        query = select(BATCHES.c.shards).where(*self._batch(batch))
        return read(self.engine, lambda connection: connection.execute(query).scalar())

    def _batch(self, batch: str) -> tuple[Any, ...]:
        return BATCHES.c.source == self.source, BATCHES.c.batch == batch

    def enter(self, connection: Connection, record: BatchRecord) -> bool:
        """Note a commit; False if the batch was noted before, as one or as refused."""
        values = {"source": self.source, "token": self.token, **record._asdict()}
        return connection.execute(self._sql.enter, values).rowcount == 1

    def shards_lost(self, keys: Iterable[bytes]) -> ShardsLost:
        """What a commit is refused with."""
        lost = frozenset(keys)
        return ShardsLost(f"{len(lost)} files of this commit were taken or finished by another pipeline", lost)

    def finish(self, shards: Iterable[FileShard], *, batch: str = "", reason: str = "") -> None:
        """Note that shards are finished, whichever pipeline has them: a table says so, which knows better."""

        def note(connection: Connection, values: Any) -> None:
            self.epoch.hold(connection)  # they would count as done in a table that never had them
            connection.execute(self._sql.finish, values)

        for some in in_portions(_sorted(shards), STATEMENT_ROWS):
            transact(self.engine, partial(note, values=self._rows(some, batch=batch, reason=reason[:REASON_MAX])))

    def set_aside(self, reasons: Mapping[FileShard, str]) -> dict[FileShard, str]:
        """Put shards into quarantine that were never asked for; those that were not there, with their reasons."""

        def enter(connection: Connection) -> dict[FileShard, str]:
            new = {}
            for shard in _sorted(reasons):
                kept = reasons[shard][:REASON_MAX]
                values = {**shard._asdict(), "source": self.source, "reason": kept}
                if connection.execute(self._sql.set_aside, values).rowcount:
                    new[shard] = kept
            return new

        return transact(self.engine, enter)

    # -- redriving and forgetting ------------------------------------------------------------------------------------

    def left_behind(self, limit: int) -> list[FileShard]:
        """Shards that were put back, let go of or died over, and that no pipeline has taken: no message may announce
        them again. Data that came in a message is not among them, since only the queue has it."""
        columns = SHARDS.c
        now = self._sql.now
        too_old = text(f"(updated_at < {now} - {self.grace_ms:d} OR (token <> '' AND updated_at > {now} + {AHEAD_MS}))")
        query = (
            select(columns.shard, columns.uri, columns.version, columns.size)
            .where(columns.source == self.source, columns.state.in_(("open", "redriven")))
            .where(columns.token != self.token, (columns.state == "redriven") | too_old)
            .where(~columns.uri.startswith(MESSAGE_SCHEME, autoescape=True))
            .order_by(columns.updated_at, columns.shard)
            .limit(limit)
        )
        rows = read(self.engine, lambda connection: connection.execute(query).all())
        return [FileShard(bytes(row.shard), row.uri, row.version, row.size) for row in rows]

    def unfinished(self) -> int:
        """How many shards are open and ours, or no pipeline's: a source counts as drained when there are none."""
        columns = SHARDS.c
        query = select(func.count()).where(
            columns.source == self.source,
            columns.state.in_(("open", "redriven", "prepared")),
            columns.token.in_(("", self.token)),
            ~columns.uri.startswith(MESSAGE_SCHEME, autoescape=True),
        )
        return read(self.engine, lambda connection: connection.execute(query).scalar_one())

    def others(self) -> dict[str, int]:
        """When other pipelines that have files were last heard of, by their tokens."""
        columns = SHARDS.c
        query = (
            select(columns.token, func.max(columns.updated_at).label("heard"))
            .where(columns.source == self.source, columns.state.in_(("open", "prepared")))
            .where(columns.token.not_in(("", self.token)))
            .group_by(columns.token)
        )
        rows = read(self.engine, lambda connection: connection.execute(query).all())
        return {row.token: row.heard for row in rows}

    def take_turn(self, column: str, interval_ms: int) -> bool:
        """Whether it is this pipeline's turn to do what only one of them does every `interval_ms`."""
        kept = SOURCES.c[column]
        now = text(self._sql.now)
        statement = (
            update(SOURCES)
            .where(SOURCES.c.source == self.source)
            .where(
                (kept <= text(f"{self._sql.now} - {interval_ms:d}")) | (kept > text(f"{self._sql.now} + {AHEAD_MS}"))
            )
            .values({column: now})
        )
        return transact(self.engine, lambda connection: connection.execute(statement).rowcount) == 1

    # -- parameters --------------------------------------------------------------------------------------------------

    def _rows(self, shards: Sequence[FileShard], **more: object) -> Any:
        return self._arrays(shards, **more) if self._takes_arrays else self._each(shards, **more)

    def _arrays(self, shards: Sequence[FileShard], **more: object) -> dict[str, object]:
        return {
            "source": self.source,
            "token": self.token,
            "shards": [shard.key for shard in shards],
            "uris": [shard.uri for shard in shards],
            "versions": [shard.version for shard in shards],
            "sizes": [shard.size for shard in shards],
            "positions": [shard.end for shard in shards],
            **more,
        }

    def _each(self, shards: Sequence[FileShard], **more: object) -> list[Mapping[str, object]]:
        shared = {"source": self.source, "token": self.token, **more}
        return [
            {
                **shared,
                "shard": shard.key,
                "uri": shard.uri,
                "version": shard.version,
                "size": shard.size,
                "position": shard.end,
            }
            for shard in shards
        ]


def _rows_of(connection: Connection, statement: Any) -> Sequence[Row[Any]]:
    return connection.execute(statement).all()


def in_portions(shards: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """What is asked for, in the portions of one statement."""
    return (shards[first : first + size] for first in range(0, len(shards), size))


def now_ms(connection: Connection) -> int:
    """The database's clock."""
    statement = BY_DIALECT[connection.dialect.name].now
    return int(connection.execute(text(f"SELECT {statement}")).scalar_one())


def _sorted(shards: Iterable[FileShard]) -> list[FileShard]:
    """In the order in which everybody locks them. A key that comes twice would be its own enemy."""
    found = sorted(shards, key=lambda shard: shard.key)
    if len({shard.key for shard in found}) != len(found):
        raise Invalid("a file is named twice in one call")
    return found


__all__ = ["BEGINNING", "BatchRecord", "FileShard", "Opened", "QueueSharedState", "now_ms"]
