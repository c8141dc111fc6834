"""State in the user's own SQL database: the application's rows and the checkpoint commit in one transaction of it.

A shard is a row of the table ``detent_shards``: its fence, which every restore raises by one, and its checkpoint, which
only the process changes that raised the fence last. Restoring raises the fence before it reads the checkpoint: a
process that is about to commit holds the row's lock, so the fence waits for that commit, and the reading sees it. The
other way round a new process would go on from a checkpoint that the old one has already replaced.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from detent import crash
from detent.engine import Operation
from detent.errors import Fenced, Invalid
from detent.sql.databases import Database
from detent.sql.rows import durable, now
from detent.sql.transactions import OwnTransaction, reaching, transact
from detent.state.base import ShardName, ShardState, State
from detent.state.checkpoint import Checkpoint

if TYPE_CHECKING:
    from detent.store import Store

TABLE: Final = "detent_shards"

_WHAT: Final = "the state of a consumer"

_FENCE_BITS = 62
"""Of the first fence of a shard, which is drawn at random and rises from there."""

_ENDED: Final = (
    "the application ended the transaction of its state itself (commit, rollback or close of the connection): the "
    "changes and the checkpoint are committed together, by the consumer. Raise an error to have it not commit"
)


class ShardRows(NamedTuple):
    """The statements on the table of shards. Each takes :of_consumer and :of_shard."""

    raise_fence: Executable
    """Answers the new fence; nothing if there is no row yet."""
    enter: Executable
    """The first row of a shard, with :first_fence. Of two that enter it at once the second one fails, and then finds
    it."""
    look: Executable
    """Answers the checkpoint."""
    advance: Executable
    """Takes :new_checkpoint, :new_transactions and :my_fence; answers a row unless the fence is another."""


def _shard_rows(table: Table, dialect: str) -> ShardRows:
    mine: dict[str, Any] = {"consumer": bindparam("of_consumer"), "shard": bindparam("of_shard")}
    here = (table.c.consumer == mine["consumer"]) & (table.c.shard == mine["shard"])
    noted = {"updated_at": now(dialect)}  # the time is the database's
    answer = table.c.fence, durable(dialect)
    first = {"fence": bindparam("first_fence"), "transactions": 0}
    last: dict[str, Any] = {"checkpoint": bindparam("new_checkpoint"), "transactions": bindparam("new_transactions")}
    is_mine = table.c.fence == bindparam("my_fence")
    return ShardRows(
        raise_fence=update(table).where(here).values({"fence": table.c.fence + 1} | noted).returning(*answer),
        enter=insert(table).values(mine | first | noted).returning(*answer),
        look=select(table.c.checkpoint).where(here),
        advance=update(table).where(here, is_mine).values(last | noted).returning(*answer),
    )


def _table(name: str) -> Table:
    """The table of that name, with the name of its schema before it if need be."""
    schema, _, plain = name.rpartition(".")
    return Table(
        plain,
        MetaData(),
        Column("consumer", Text, primary_key=True),
        Column("shard", Integer, primary_key=True, autoincrement=False),
        Column("fence", BigInteger, nullable=False),
        Column("checkpoint", LargeBinary),
        Column("transactions", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        schema=schema or None,
    )


class SqlState(State):
    """State in a SQLite or PostgreSQL database, beside the tables of the application.

    >>> SqlState("postgresql+psycopg://shop@db/shop")
    >>> SqlState(lambda: sqlalchemy.create_engine(...))

    `engine` is a URL of SQLAlchemy's, or a function without arguments that answers an engine; it is called once in each
    process that needs one. `table` is made if it is not there. What the application gets as `state` is a `SqlHandle`.

    Several shards want PostgreSQL. SQLite has one writer for the whole file: a shard has the lock from its first use of
    the state in a transaction until that is committed, and the others wait, for half a minute at most. That holds for
    a process that takes over from one that stands still, too: on PostgreSQL it waits only for rows that both change.
    """

    def __init__(self, engine: str | Callable[[], Engine], *, table: str = TABLE) -> None:
        if not isinstance(engine, str) and not callable(engine):
            raise Invalid(f"{_WHAT} needs the URL of a database, or a function that answers an engine, not {engine!r}")
        if not isinstance(table, str) or not table:
            raise Invalid(f"{table!r} is not the name of a table")
        self._rows = _table(table)
        self._database = Database(engine, _WHAT, "shards.db", self._prepare)

    def open(self, store: Store, shard: ShardName) -> SqlShard:
        """The state of one shard, whose row is claimed when it is restored."""
        del store
        return SqlShard(self, shard)

    def database(self) -> tuple[Engine, ShardRows]:
        """The engine of this process, and the statements on the table in it, which is there."""
        return self._database.opened()

    def _prepare(self, connection: Connection) -> ShardRows:
        self._rows.metadata.create_all(connection)
        return _shard_rows(self._rows, connection.dialect.name)

    def close(self) -> None:
        """Close this process's connections that are not in use."""
        self._database.close()


class SqlHandle:
    """What an application gets as `state`: a transaction of its database, which the consumer commits.

    The transaction begins at the first use, and not before the one before has committed: what is read here is what the
    last transaction has left, although the two overlap. The consumer alone ends it; savepoints are welcome. It is
    for one thread at a time. In async code, `await asyncio.to_thread(state.execute, ...)` keeps the loop free.
    """

    def __init__(self, engine: Engine, settled: Callable[[], None]) -> None:
        self._engine = engine
        self._settled = settled
        self._lock = threading.Lock()
        self._begun: OwnTransaction | None = None
        self._session: Session | None = None
        self._is_usable = True

    # -- for the application ------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The connection, inside the transaction. The first access waits for the transaction before."""
        with self._lock:
            if not self._is_usable:
                raise Invalid("this transaction has ended: use the state that comes with the next message")
            if self._begun is None:
                self._settled()
            return self._whole()

    def execute(
        self, statement: str | Executable, parameters: dict[str, Any] | list[dict[str, Any]] | None = None
    ) -> sqlalchemy.CursorResult[Any]:
        """Execute a statement of SQLAlchemy's, or one in text with parameters like ``:name``. `Unavailable` if it may
        succeed when the transaction is done again; other errors are SQLAlchemy's."""
        connection = self.connection
        with reaching():
            return connection.execute(
                sqlalchemy.text(statement) if isinstance(statement, str) else statement, parameters
            )

    def scalar(self, statement: str | Executable, parameters: dict[str, Any] | None = None) -> Any:
        """The first column of the first row that a statement answers; None without any."""
        return self.execute(statement, parameters).scalar()

    def session(self) -> Session:
        """The ORM session of this transaction. It works within a savepoint: its commit keeps what it has for the
        transaction's, its rollback drops it. What is left in it at the end is kept."""
        connection = self.connection
        if self._session is None:
            self._session = Session(bind=connection, join_transaction_mode="create_savepoint")
        return self._session

    # -- for the shard ------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Write what the session has, and end the application's use."""
        with self._lock:
            if not self._is_usable:
                raise Invalid("this transaction has ended")
            if self._begun is not None:
                self._whole()
                if self._session is not None:
                    self._session.commit()
            self._is_usable = False

    def ready(self) -> Connection:
        """The connection, to write the checkpoint to; it begins now if the application did not use it."""
        with self._lock:
            return self._whole()

    def commit(self) -> None:
        """Commit the transaction; the one place where this is done."""
        assert self._begun is not None
        self._begun.commit()

    def release(self) -> None:
        """Roll back what is not committed, and give the connection back."""
        with self._lock:
            self._is_usable = False
            begun, self._begun = self._begun, None
            session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(DBAPIError):  # its transaction ends with the connection
                session.close()
        if begun is not None:
            begun.release()

    def _whole(self) -> Connection:
        """The connection, in the transaction that was begun on it and no other."""
        if self._begun is None:
            with reaching():
                self._begun = OwnTransaction(self._engine.connect(), _ENDED)
        return self._begun.whole()


class SqlShard(ShardState):
    """The row of a shard, and the transactions that change it."""

    def __init__(self, state: SqlState, shard: ShardName) -> None:
        self._state = state
        self._shard = shard
        self._key = {"of_consumer": shard.consumer, "of_shard": shard.shard}
        self._fence: int | None = None
        self._handles: set[SqlHandle] = set()

    def restore(self) -> Checkpoint | None:
        self._let_go()
        engine, rows = self._state.database()
        with reaching():
            self._fence, found = transact(engine, lambda connection: self._claim(connection, rows))
        crash.point("state.sql.after_restore")
        return None if found is None else Checkpoint.decode(found)

    def _claim(self, connection: Connection, rows: ShardRows) -> tuple[int, bytes | None]:
        """Raise the fence, and only then read."""
        fence = connection.execute(rows.raise_fence, self._key).scalar()
        if fence is None:
            # Not 1: a process that had the shard before its row was deleted must not find its fence again.
            first = {**self._key, "first_fence": 1 + secrets.randbits(_FENCE_BITS)}
            fence = connection.execute(rows.enter, first).scalar_one()
        crash.point("state.sql.after_fence")
        found = connection.execute(rows.look, self._key).scalar_one()
        return fence, None if found is None else bytes(found)

    def begin(self, settled: Callable[[], None]) -> SqlHandle:
        self._require_restored()
        handle = SqlHandle(self._state.database()[0], settled)
        self._handles.add(handle)
        return handle

    def seal(self, handle: SqlHandle) -> SqlHandle:
        with reaching():
            handle.seal()
        return handle

    def commit(self, sealed: SqlHandle, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
        if outputs:
            raise Invalid("a database cannot apply operations of a store: they are published, and acknowledged later")
        fence = self._require_restored()
        try:
            with reaching():
                self._advance(sealed.ready(), checkpoint, fence)
            crash.point("state.sql.before_commit")
            with reaching():
                sealed.commit()
        except BaseException:
            self._fence = None  # after a gap nothing may be committed
            raise
        finally:
            self.discard(sealed)
        crash.point("state.sql.after_commit")

    def _advance(self, connection: Connection, checkpoint: Checkpoint, fence: int) -> None:
        """Write the checkpoint, if the fence is still ours."""
        _, rows = self._state.database()
        values = {
            **self._key,
            "my_fence": fence,
            "new_checkpoint": checkpoint.encode(),
            "new_transactions": checkpoint.transaction,
        }
        if connection.execute(rows.advance, values).first() is None:
            raise Fenced(
                f"another process has restored the shard {self._shard} since, or its row was removed: nothing of this "
                "transaction was committed"
            )

    def discard(self, handle: SqlHandle) -> None:
        handle.release()
        self._handles.discard(handle)

    def close(self) -> None:
        self._fence = None
        self._let_go()

    def _let_go(self) -> None:
        for handle in list(self._handles):
            self.discard(handle)

    def _require_restored(self) -> int:
        if self._fence is None:
            raise Invalid(f"the shard {self._shard} was not restored, or a commit of it failed: restore it first")
        return self._fence
