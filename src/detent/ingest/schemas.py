"""Schemas that are kept in the database: what a source's files look like, and what its table has.

A schema changes in two ways: it gets columns, and types become wider (`detent.tables.widening`), never narrower. So all
pipelines of a source agree on it, whichever found the column.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, insert, select, text

from detent.errors import Invalid
from detent.ingest.shard_sql import BY_DIALECT, SCHEMAS
from detent.ingest.shared_state import QueueSharedState
from detent.sql.transactions import read, transact
from detent.tables.widening import wider

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS_MAX: Final = 10_000
"""Columns of a schema: files whose keys are data would add without end."""


class KeptSchema(NamedTuple):
    """A schema as it is kept: its number counts the changes, `columns` is Spark's JSON of it."""

    number: int
    columns: str


def kept_schema(engine: Engine, name: str) -> KeptSchema | None:
    """The newest schema under a name; None if there is none."""
    return read(engine, lambda connection: _newest(connection, name))


def _newest(connection: Connection, name: str) -> KeptSchema | None:
    query = select(SCHEMAS.c.number, SCHEMAS.c.columns).where(SCHEMAS.c.source == name)
    row = connection.execute(query.order_by(SCHEMAS.c.number.desc()).limit(1)).first()
    return None if row is None else KeptSchema(row.number, row.columns)


def widen(engine: Engine, name: str, schema: StructType, *, takes_types: bool = False) -> StructType:
    """Keep a schema: the first under its name as it is, later ones by the columns that are new, and if it `takes_types`
    by types that are wider. What is kept then."""
    from pyspark.sql.types import StructType

    def keep(connection: Connection) -> str:
        have = _newest(connection, name)
        wanted = json.loads(schema.json())
        if have is not None:
            wanted = _joined(json.loads(have.columns), wanted, takes_types=takes_types)
            if wanted == json.loads(have.columns):
                return have.columns
        if len(wanted["fields"]) > COLUMNS_MAX:
            raise Invalid(
                f"the schema of {name} would have {len(wanted['fields'])} columns: {COLUMNS_MAX} is the limit"
            )
        columns = json.dumps(wanted)
        number = 1 if have is None else have.number + 1
        now = text(BY_DIALECT[connection.dialect.name].now)
        connection.execute(insert(SCHEMAS).values(source=name, number=number, columns=columns, kept_at=now))
        return columns

    return StructType.fromJson(json.loads(transact(engine, keep)))


def _joined(have: dict[str, Any], more: dict[str, Any], *, takes_types: bool) -> dict[str, Any]:
    """The columns that are there, and behind them the new ones. Names that differ in case only are one, as in Spark."""
    given = {field["name"].lower(): field["type"] for field in more["fields"]} if takes_types else {}
    names = {field["name"].lower() for field in have["fields"]}
    kept = [
        {**field, "type": wider(field["type"], given.get(field["name"].lower())) or field["type"]}
        for field in have["fields"]
    ]
    return {**have, "fields": kept + [field for field in more["fields"] if field["name"].lower() not in names]}


def check_fits(state: QueueSharedState, table: str, schema: StructType) -> None:
    """Keep what a table has, by the rows that it gets; `Invalid` for columns of other types than the table's."""
    from pyspark.sql.types import StructType

    name = f"{state.source}/{table}"
    rows = schema.toNullable()
    before = kept_schema(state.engine, name)
    _check_types(state.source, rows, rows if before is None else StructType.fromJson(json.loads(before.columns)))
    _check_types(state.source, rows, widen(state.engine, name, rows))  # another pipeline may have been faster


def _check_types(source: str, rows: StructType, table: StructType) -> None:
    kinds = {field.name.lower(): field.dataType for field in table}
    wrong = [
        f"{field.name} is {field.dataType.simpleString()} and was {kinds[field.name.lower()].simpleString()}"
        for field in rows
        if kinds.get(field.name.lower(), field.dataType) != field.dataType
    ]
    if wrong:
        raise Invalid(f"the rows do not fit the table of {source}: {'; '.join(wrong)}. Cast them in the transform")
