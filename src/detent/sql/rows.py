"""What statements of SQLAlchemy's on the rows that Detent keeps have in common: the database's time, commits that wait
for the disk, and rows that are written once.

- A *mark* is a row that is inserted once: of two transactions that insert it the second waits for the first one's end,
  and then finds it (`marking`).
- A *high-water row* has a number that only rises: of two transactions with one number the second changes nothing
  (`raising`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import ColumnElement, MetaData, Table, Text, literal_column
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.dml import ReturningInsert

from detent.sql.dialects import DURABLE, NOW, POSTGRESQL, SQLITE

BYTEWISE: Final = Text().with_variant(Text(collation="C"), POSTGRESQL)
"""Compared byte by byte: an index whose order came from the operating system is broken by its next update, and a key
that is not found again is an effect that happens twice."""


def now(dialect: str) -> ColumnElement[Any]:
    """The database's own time, in milliseconds."""
    return literal_column(NOW[dialect])


def durable(dialect: str) -> ColumnElement[Any]:
    """Has the transaction wait for the disk, where a statement answers it."""
    return literal_column(DURABLE[dialect])


def inserting(dialect: str, table: Table) -> Any:
    """An INSERT that can say what is to happen on a conflict."""
    return postgresql.insert(table) if dialect == POSTGRESQL else sqlite.insert(table)


def marking(dialect: str, table: Table, *, source: Any = None, **values: Any) -> Any:
    """Inserts a row, of values or of what `source` selects for all columns, unless one with its key is there."""
    insert = inserting(dialect, table)
    names = [column.name for column in table.columns]
    filled = insert.values(**values) if source is None else insert.from_select(names, source, include_defaults=False)
    return filled.on_conflict_do_nothing(index_elements=list(table.primary_key))


def raising(dialect: str, table: Table, column: str, **values: Any) -> ReturningInsert[Any]:
    """Inserts a row, or raises `column` of the one with its key. It answers a row if it did either: not every driver
    counts the rows of such a statement."""
    insert = inserting(dialect, table).values(**values)
    above = insert.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column: insert.excluded[column]},
        where=table.c[column] < insert.excluded[column],
    )
    raised: ReturningInsert[Any] = above.returning(table.c[column])
    return raised


def replacing(dialect: str, table: Table, keys: Iterable[str], names: Iterable[str]) -> Any:
    """Inserts a row, or replaces these columns of the one with its key."""
    keys, insert = tuple(keys), inserting(dialect, table)
    others = {name: insert.excluded[name] for name in names if name not in keys}
    where = [table.c[name] for name in keys]
    if not others:
        return insert.on_conflict_do_nothing(index_elements=where)
    return insert.on_conflict_do_update(index_elements=where, set_=others)


def making(dialect: str, metadata: MetaData) -> str:
    """The statements that make tables, as text, for those who have migrations of their own."""
    kind: Any = {SQLITE: sqlite, POSTGRESQL: postgresql}[dialect].dialect()
    made = [CreateTable(one, if_not_exists=True).compile(dialect=kind) for one in metadata.sorted_tables]
    return "".join(f"{str(text).strip()};\n" for text in made)
