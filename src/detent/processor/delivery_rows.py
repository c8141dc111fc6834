"""The tables in which an SQL database remembers what was delivered to it, and the statements on them.

A delivery is a row of the one table, until its number is below the floor. The other has one row for each processor: the
series that its deliveries belong to, and the floor, below which everything is done. In the first table, a row with the
number -1 says that a series is over.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Executable,
    MetaData,
    Table,
    bindparam,
    cast,
    delete,
    exists,
    select,
    update,
)

from detent.errors import Invalid
from detent.sql.dialects import DIALECTS
from detent.sql.rows import BYTEWISE, durable, making, marking, now
from detent.sql.tables import TableName, table_named

TABLE: Final = "detent_deliveries"
FLOORS: Final = "_floors"

OVER: Final = -1
"""The number of the row that says that a series is over: those of deliveries begin at 0."""


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
    """Answers series and floor; no other transaction changes them until this one ends."""
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


def schema(dialect: str, table: str = TABLE) -> str:
    """The statements that make the tables, for those who have migrations of their own."""
    if dialect not in DIALECTS:
        raise Invalid(f"deliveries are kept in SQLite or PostgreSQL, not in {dialect!r}")
    return making(dialect, _tables(table_named(table, dialect))[0].metadata)


def delivery_rows(name: str, dialect: str) -> DeliveryRows:
    """The tables of that name, and their statements; `Invalid` for a name that this kind of database cannot take."""
    rows, floors = _tables(table_named(name, dialect))
    processor, series = bindparam("of_processor", type_=BYTEWISE), bindparam("of_series", type_=BYTEWISE)
    number, floor = bindparam("of_number", type_=BigInteger), bindparam("new_floor", type_=BigInteger)
    here = (rows.c.processor == processor) & (rows.c.series == series)
    mine = floors.c.processor == processor
    is_due = mine & (floors.c.series == series) & (floors.c.floor <= number)
    entered = select(floors.c.processor, floors.c.series, cast(number, BigInteger), now(dialect)).where(is_due)
    over = {"processor": processor, "series": series, "number": OVER, "delivered_at": now(dialect)}
    return DeliveryRows(
        rows.metadata,
        enter=marking(dialect, rows, source=entered).returning(rows.c.number),
        look=select(rows.c.number).where(here, rows.c.number == number),
        confirm=select(durable(dialect))
        .select_from(floors)
        .where(is_due, exists().where(here, rows.c.number == number))
        .with_for_update(read=True, of=floors),
        begin=marking(dialect, floors, processor=processor, series=series, floor=floor),
        lock=select(floors.c.series, floors.c.floor).where(mine).with_for_update(),
        floor=select(floors.c.series, floors.c.floor).where(mine),
        is_over=select(rows.c.number).where(here, rows.c.number == OVER),
        end=marking(dialect, rows, **over),
        forget_all=delete(rows).where(here, rows.c.number > OVER),
        replace=update(floors).where(mine).values(series=series, floor=floor),
        raise_floor=update(floors)
        .where(mine, floors.c.series == series, floors.c.floor < floor)
        .values(floor=floor)
        .returning(floors.c.floor),
        forget=delete(rows).where(here, rows.c.number > OVER, rows.c.number < floor),
    )


def _tables(table: TableName) -> tuple[Table, Table]:
    metadata = MetaData(schema=table.schema or None)
    rows = Table(
        table.name,
        metadata,
        Column("processor", BYTEWISE, primary_key=True),
        Column("series", BYTEWISE, primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("delivered_at", BigInteger, nullable=False),
    )
    floors = Table(
        f"{table.name}{FLOORS}",
        metadata,
        Column("processor", BYTEWISE, primary_key=True),
        Column("series", BYTEWISE, nullable=False),
        Column("floor", BigInteger, nullable=False),
    )
    return rows, floors
