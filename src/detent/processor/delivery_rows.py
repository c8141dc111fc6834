"""The tables in which an SQL database remembers what was delivered to it, and the statements on them.

A delivery is a row of the one table, until its number is below the floor. The other has one row for each processor: the
series that its deliveries belong to, and the floor, below which everything is done. In the first table, a row with the
number -1 says that a series is over.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Executable,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    exists,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from detent.errors import Invalid
from detent.sql.dialects import DIALECTS, DURABLE, NOW, POSTGRESQL, SQLITE

TABLE: Final = "detent_deliveries"
FLOORS: Final = "_floors"

NAME_MAX: Final = 48
"""Letters of a table's name: PostgreSQL cuts names after 63, and the other table is called after this one."""

OVER: Final = -1
"""The number of the row that says that a series is over: those of deliveries begin at 0."""

_PART: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_MAX - 1}}}")

_TEXT: Final = Text().with_variant(Text(collation="C"), POSTGRESQL)
"""Compared byte by byte: an index whose order came from the operating system is broken by its next update, and a key
that is not found again is an effect that happens twice."""


class DeliveryRows(NamedTuple):
    """What is asked of the tables. Each statement takes :of_processor, most take :of_series and :of_number."""

    metadata: MetaData
    enter: Executable
    """Adds the row of a delivery, and answers one; none if the row is there, if the number is below the floor, or if
    the series is not the processor's."""
    look: Executable
    """Answers a row if that of the delivery is there."""
    confirm: Executable
    """Answers a row if the series is the processor's, and the number not below the floor; both stay so until the
    transaction ends, which waits for the disk."""
    begin: Executable
    """The first row of a processor, with :new_floor; nothing if it has one."""
    lock: Executable
    """Answers series and floor; nobody else changes them until the transaction ends."""
    floor: Executable
    """Answers series and floor."""
    is_over: Executable
    """Answers a row if the series was replaced."""
    end: Executable
    """The series is over."""
    forget_all: Executable
    """The deliveries of a series go."""
    replace: Executable
    """The processor's series is :of_series from now on, and its floor :new_floor."""
    raise_floor: Executable
    """To :new_floor; answers a row if it was lower, and the series is the processor's."""
    forget: Executable
    """The deliveries below :new_floor go."""


def check_table(name: str, dialect: str | None = None) -> None:
    """`Invalid` unless a table can be called so, with the name of its schema before it if need be."""
    if not is_table(name):
        raise Invalid(
            f"{name!r} is no name of a table: write up to {NAME_MAX} letters, digits and underscores, with the name of "
            "a schema and a dot before it if need be"
        )
    if dialect == SQLITE and "." in name and not name.startswith("main."):
        raise Invalid(f"{name!r} would be in another file than your own tables: leave the schema out")


def is_table(name: str) -> bool:
    """Whether a table can be called so."""
    parts = name.split(".") if isinstance(name, str) else []
    return len(parts) in (1, 2) and all(_PART.fullmatch(part) is not None for part in parts)


def schema(dialect: str, table: str = TABLE) -> str:
    """The statements that make the tables, for those who have migrations of their own."""
    if dialect not in DIALECTS:
        raise Invalid(f"deliveries are kept in SQLite or PostgreSQL, not in {dialect!r}")
    check_table(table, dialect)
    kind: Any = {SQLITE: sqlite, POSTGRESQL: postgresql}[dialect].dialect()
    made = [CreateTable(one, if_not_exists=True).compile(dialect=kind) for one in _tables(table)]
    return "".join(f"{str(text).strip()};\n" for text in made)


def delivery_rows(name: str, dialect: str) -> DeliveryRows:
    """The tables of that name, and their statements."""
    rows, floors = _tables(name)
    insert = postgresql.insert if dialect == POSTGRESQL else sqlite.insert
    now: ColumnElement[Any] = literal_column(NOW[dialect])
    processor, series = bindparam("of_processor", type_=_TEXT), bindparam("of_series", type_=_TEXT)
    number, floor = bindparam("of_number", type_=BigInteger), bindparam("new_floor", type_=BigInteger)
    here = (rows.c.processor == processor) & (rows.c.series == series)
    mine = floors.c.processor == processor
    is_due = mine & (floors.c.series == series) & (floors.c.floor <= number)
    entered = select(floors.c.processor, floors.c.series, cast(number, BigInteger), now).where(is_due)
    one = [rows.c.processor, rows.c.series, rows.c.number]
    return DeliveryRows(
        rows.metadata,
        enter=insert(rows)
        .from_select(["processor", "series", "number", "delivered_at"], entered, include_defaults=False)
        .on_conflict_do_nothing(index_elements=one)
        .returning(rows.c.number),
        look=select(rows.c.number).where(here, rows.c.number == number),
        confirm=select(literal_column(DURABLE[dialect]))
        .select_from(floors)
        .where(is_due, exists().where(here, rows.c.number == number))
        .with_for_update(read=True, of=floors),
        begin=insert(floors)
        .values(processor=processor, series=series, floor=floor)
        .on_conflict_do_nothing(index_elements=[floors.c.processor]),
        lock=select(floors.c.series, floors.c.floor).where(mine).with_for_update(),
        floor=select(floors.c.series, floors.c.floor).where(mine),
        is_over=select(rows.c.number).where(here, rows.c.number == OVER),
        end=insert(rows)
        .values(processor=processor, series=series, number=OVER, delivered_at=now)
        .on_conflict_do_nothing(index_elements=one),
        forget_all=delete(rows).where(here, rows.c.number > OVER),
        replace=update(floors).where(mine).values(series=series, floor=floor),
        raise_floor=update(floors)
        .where(mine, floors.c.series == series, floors.c.floor < floor)
        .values(floor=floor)
        .returning(floors.c.floor),
        forget=delete(rows).where(here, rows.c.number > OVER, rows.c.number < floor),
    )


def _tables(name: str) -> tuple[Table, Table]:
    before, _, plain = name.rpartition(".")
    metadata = MetaData(schema=before or None)
    rows = Table(
        plain,
        metadata,
        Column("processor", _TEXT, primary_key=True),
        Column("series", _TEXT, primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("delivered_at", BigInteger, nullable=False),
    )
    floors = Table(
        f"{plain}{FLOORS}",
        metadata,
        Column("processor", _TEXT, primary_key=True),
        Column("series", _TEXT, nullable=False),
        Column("floor", BigInteger, nullable=False),
    )
    return rows, floors
