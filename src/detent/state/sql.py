"""State in the user's own SQL database: the application's rows and the checkpoint commit in one transaction of it.

A shard is a row of the table ``detent_shards``. Restoring raises the fence in it before it reads the checkpoint: who is
about to commit holds the row's lock, so the fence waits for that commit, and the reading sees it. The other way round a
new process would go on from a checkpoint that the old one has already replaced.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy
from sqlalchemy import Connection, Engine, Executable, RootTransaction, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from detent import crash, forks
from detent.engine import Operation
from detent.errors import Fenced, Invalid, OutcomeUnknown, Unavailable
from detent.sql.databases import adopt, file_of, is_passing, open_engine, parse, state_of, transact
from detent.sql.dialects import ABORTED, ends_transaction
from detent.state.base import ShardName, ShardState, State
from detent.state.checkpoint import Checkpoint
from detent.state.shard_rows import TABLE, ShardRows, shard_rows

if TYPE_CHECKING:
    from detent.store import Store

_WHAT: Final = "the state of a consumer"

_UNLIMITED: Final = 0
"""A pool of SQLAlchemy's that keeps every connection: a shard has one at a time, and waits for nobody else's."""

_FENCE_BITS = 62
"""Of the first fence of a shard, which is drawn at random and rises from there."""

_ENDED: Final = (
    "the application ended the transaction of its state itself (commit, rollback or close of the connection): the "
    "changes and the checkpoint are committed together, by the consumer. Raise an error to have it not commit"
)


class SqlState(State):
    """State in a SQLite or PostgreSQL database, beside the tables of the application.

    >>> SqlState("postgresql+psycopg://shop@db/shop")
    >>> SqlState(lambda: sqlalchemy.create_engine(...))

    `engine` is a URL of SQLAlchemy's, or a function without arguments that answers an engine; it is called once in each
    process that needs one. `table` is made if it is not there. What the application gets as `state` is a `SqlHandle`.

    Several shards want PostgreSQL. SQLite has one writer for the whole file: a shard has the lock from its first use of
    the state in a transaction until that is committed, and the others wait, for half a minute at most. That holds for
    whoever takes over from a process that stands still, too: on PostgreSQL it waits only for rows that both change.
    """

    def __init__(self, engine: str | Callable[[], Engine], *, table: str = TABLE) -> None:
        if not isinstance(engine, str) and not callable(engine):
            raise Invalid(f"{_WHAT} needs the URL of a database, or a function that answers an engine, not {engine!r}")
        if not isinstance(table, str) or not table:
            raise Invalid(f"{table!r} is no name of a table")
        self._make: Callable[[], Engine] | None = None if isinstance(engine, str) else engine
        self._url = parse(engine, _WHAT, "shards.db") if isinstance(engine, str) else None
        self._table = table
        # By the generation of the process: a forked child makes its own, and never touches its parent's.
        self._locks: dict[int, threading.Lock] = {}
        self._databases: dict[int, tuple[Engine, ShardRows]] = {}

    def open(self, store: Store, shard: ShardName) -> SqlShard:
        """The state of one shard, whose row is claimed when it is restored."""
        del store
        return SqlShard(self, shard)

    def database(self) -> tuple[Engine, ShardRows]:
        """The engine of this process, and the table in it, which is there."""
        with self._locks.setdefault(forks.generation, threading.Lock()):
            if forks.generation not in self._databases:
                self._databases[forks.generation] = self._opened()
            return self._databases[forks.generation]

    def _opened(self) -> tuple[Engine, ShardRows]:
        engine = self._engine()
        rows = shard_rows(self._table, engine.dialect.name)
        try:
            with _reaching():
                transact(engine, rows.table.metadata.create_all)
        except BaseException:
            engine.dispose()
            raise
        return engine, rows

    def _engine(self) -> Engine:
        if self._make is not None:
            return adopt(self._make(), _WHAT)
        assert self._url is not None
        file = file_of(self._url)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        return open_engine(self._url, pool_size=_UNLIMITED, pool_pre_ping=True)

    def close(self) -> None:
        """Close this process's connections that nobody uses."""
        found = self._databases.pop(forks.generation, None)
        if found is not None:
            found[0].dispose()


class SqlHandle:
    """What an application gets as `state`: a transaction of its database, which the consumer commits.

    The transaction begins at the first use, and not before the one before has committed: what is read here is what the
    last transaction has left, although the two overlap. Nobody but the consumer ends it; savepoints are welcome. It is
    for one thread at a time. In async code, `await asyncio.to_thread(state.execute, ...)` keeps the loop free.
    """

    def __init__(self, engine: Engine, settled: Callable[[], None]) -> None:
        self._engine = engine
        self._settled = settled
        self._lock = threading.Lock()
        self._begun: tuple[Connection, RootTransaction] | None = None
        self._session: Session | None = None
        self._is_usable = True
        self._is_ending = False
        self._is_committed = False

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
        with _reaching():
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
        self._is_ending = True
        self._begun[1].commit()
        self._is_committed = True

    def release(self) -> None:
        """Roll back what is not committed, and give the connection back."""
        with self._lock:
            self._is_usable = False
            begun, self._begun = self._begun, None
            session, self._session = self._session, None
        if begun is None:
            return
        connection, transaction = begun
        try:
            if session is not None:
                session.close()
            if not self._is_committed and not transaction.is_active and not connection.closed:
                connection.invalidate()  # SQLAlchemy takes it for ended, and would not roll it back
            connection.close()
        except DBAPIError:  # nobody is there to be told, and a transaction ends with its connection
            connection.invalidate()
            connection.close()

    def _whole(self) -> Connection:
        """The connection, in the transaction that was begun on it and no other."""
        if self._begun is None:
            self._begun = self._begin()
        connection, transaction = self._begun
        if connection.invalidated:
            raise Unavailable("the connection was lost in the transaction, and nothing of it was committed")
        if connection.closed or connection.get_transaction() is not transaction or not transaction.is_active:
            raise Invalid(_ENDED)
        return connection

    def _begin(self) -> tuple[Connection, RootTransaction]:
        with _reaching():
            connection = self._engine.connect()
            try:
                transaction = connection.begin()
            except BaseException:
                connection.close()
                raise
        event.listen(connection, "commit", self._refuse_commit)
        event.listen(connection, "before_cursor_execute", self._refuse_endings)
        return connection, transaction

    def _refuse_commit(self, connection: Connection) -> None:
        if not self._is_ending:
            connection.connection.rollback()  # SQLAlchemy will not: for it, the transaction has ended now
            raise Invalid(_ENDED)

    def _refuse_endings(self, connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        """Statements in text that end the transaction pass by SQLAlchemy, which would not know."""
        del connection, cursor
        if ends_transaction(statement):
            raise Invalid(_ENDED)


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
        with _reaching():
            self._fence, found = transact(engine, lambda connection: self._claim(connection, rows))
        crash.point("state.sql.after_restore")
        return None if found is None else Checkpoint.decode(found)

    def _claim(self, connection: Connection, rows: ShardRows) -> tuple[int, bytes | None]:
        """Raise the fence, and only then read."""
        fence = connection.execute(rows.raise_fence, self._key).scalar()
        if fence is None:
            # Not 1: whoever had the shard before its row was deleted must not find their fence again.
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
        with _reaching():
            handle.seal()
        return handle

    def commit(self, sealed: SqlHandle, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
        if outputs:
            raise Invalid("a database cannot apply operations of a store: they are published, and acknowledged later")
        fence = self._require_restored()
        try:
            with _reaching():
                self._advance(sealed.ready(), checkpoint, fence)
            crash.point("state.sql.before_commit")
            with _committing():
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


@contextmanager
def _reaching() -> Iterator[None]:
    """Says `Unavailable` of errors that pass: nothing was committed."""
    try:
        yield
    except sqlalchemy.exc.TimeoutError as error:
        raise Unavailable(f"the engine's pool had no connection left: {error}") from error
    except DBAPIError as error:
        if state_of(error) == ABORTED:
            raise Invalid(
                "a statement of the application failed, it went on, and PostgreSQL takes nothing more in such a "
                "transaction: let the error out, or try such statements within connection.begin_nested()"
            ) from error
        if is_passing(error):
            raise Unavailable(f"the database of the state cannot be had: {error.orig}") from error
        raise


@contextmanager
def _committing() -> Iterator[None]:
    """Says `OutcomeUnknown` of errors that pass: who has lost the connection does not know what became of a COMMIT."""
    try:
        yield
    except DBAPIError as error:
        if is_passing(error):
            raise OutcomeUnknown(f"nobody said whether a transaction was committed: {error.orig}") from error
        raise
