"""The marks of SQL databases: which batch a database has last, and what it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detent.tables.marks import BatchKey, is_done

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

INPUTS_TABLE = "detent_ledger_inputs"


def inputs_table(sqlalchemy: Any) -> Table:
    """For each row of `detent_ledger` what its batch was made from: a table of its own, as the other one may be older
    and belong to another program."""
    table: Table = sqlalchemy.Table(
        INPUTS_TABLE,
        sqlalchemy.MetaData(),
        sqlalchemy.Column("name", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("sink", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("query", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("batch", sqlalchemy.BigInteger, nullable=False),
        sqlalchemy.Column("input", sqlalchemy.Text, nullable=False),
    )
    return table


def sql_has(sqlalchemy: Any, connection: Connection, label: str, key: BatchKey, last: int | None) -> bool:
    """Whether a database has a batch, of which `last` is the highest one entered."""
    if last is None or last < key.batch:
        return False
    table = inputs_table(sqlalchemy)
    row = (table.c.name == key.name) & (table.c.sink == label) & (table.c.query == key.query) & (table.c.batch == last)
    made_from = connection.execute(sqlalchemy.select(table.c.input).where(row)).scalar()
    return is_done(key, last, made_from, key.input.hex(), f"the row {label!r} of detent_ledger")


def sql_mark(sqlalchemy: Any, connection: Connection, label: str, key: BatchKey) -> None:
    """Note what a batch is made from, in the transaction that enters it."""
    if not key.input:
        return
    table = inputs_table(sqlalchemy)
    insert = getattr(sqlalchemy.dialects, connection.dialect.name).insert(table)
    values = {"name": key.name, "sink": label, "query": key.query, "batch": key.batch, "input": key.input.hex()}
    kept = {"batch": insert.excluded.batch, "input": insert.excluded.input}
    connection.execute(
        insert.values(**values).on_conflict_do_update(
            index_elements=[table.c.name, table.c.sink, table.c.query], set_=kept
        )
    )
