"""The table of a consumer's shards in an SQL database, and the statements on it.

A shard is a row: its fence, which every restore raises by one, and its checkpoint, which only the process changes that
raised the fence last. The time is the database's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    insert,
    literal_column,
    select,
    update,
)

from detent.sql.dialects import DURABLE, NOW

TABLE: Final = "detent_shards"


class ShardRows(NamedTuple):
    """The table, and what is asked of it. Each statement takes :of_consumer and :of_shard."""

    table: Table
    raise_fence: Executable
    """Answers the new fence; nothing if there is no row yet."""
    enter: Executable
    """The first row of a shard, with :first_fence. Of two that enter it at once the second one fails, and then finds
    it."""
    look: Executable
    """Answers the checkpoint."""
    advance: Executable
    """Takes :new_checkpoint, :new_transactions and :my_fence; answers a row unless the fence is another."""


def shard_rows(name: str, dialect: str) -> ShardRows:
    """The table of that name (with the name of its schema before it, if need be) and its statements."""
    table = _table(name)
    now: ColumnElement[Any] = literal_column(NOW[dialect])
    here = (table.c.consumer == bindparam("of_consumer")) & (table.c.shard == bindparam("of_shard"))
    durable: ColumnElement[Any] = literal_column(DURABLE[dialect])
    raised = update(table).where(here).values(fence=table.c.fence + 1, updated_at=now)
    first = insert(table).values(
        consumer=bindparam("of_consumer"),
        shard=bindparam("of_shard"),
        fence=bindparam("first_fence"),
        transactions=0,
        updated_at=now,
    )
    advanced = (
        update(table)
        .where(here, table.c.fence == bindparam("my_fence"))
        .values(checkpoint=bindparam("new_checkpoint"), transactions=bindparam("new_transactions"), updated_at=now)
    )
    return ShardRows(
        table,
        raise_fence=raised.returning(table.c.fence, durable),
        enter=first.returning(table.c.fence, durable),
        look=select(table.c.checkpoint).where(here),
        advance=advanced.returning(table.c.fence, durable),
    )


def _table(name: str) -> Table:
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
