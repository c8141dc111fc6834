"""Names of tables that Detent makes in databases of its users, and how such tables are found again. It needs no driver
and no SQLAlchemy."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from detent.errors import Invalid
from detent.sql.dialects import POSTGRESQL, SQLITE

NAME_MAX: Final = 48
"""Letters of a table's name: PostgreSQL cuts names after 63, and indexes and other tables are called after it."""

_PART: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_MAX - 1}}}")

_LOCK: Final = 5_499_847_031_290_881_351
"""Of PostgreSQL's advisory locks, the one for making tables: two who make the same one at once both fail otherwise."""


class TableName(NamedTuple):
    """A table's name, and that of its schema if it has one."""

    schema: str
    name: str

    @property
    def quoted(self) -> str:
        """As statements say it."""
        return f'"{self.schema}"."{self.name}"' if self.schema else f'"{self.name}"'

    def beside(self, name: str) -> TableName:
        """Another table in the same schema."""
        return TableName(self.schema, name)


def table_named(name: str, dialect: str | None = None) -> TableName:
    """The table of that name, with its schema before it if need be; `Invalid` for what is not a name, or not one of a
    table in this kind of database."""
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) not in (1, 2) or not all(_PART.fullmatch(part) for part in parts):
        raise Invalid(
            f"{name!r} is not the name of a table: write up to {NAME_MAX} letters, digits and underscores, with the "
            "name of a schema and a dot before it if need be"
        )
    table = TableName(parts[0] if len(parts) == 2 else "", parts[-1])
    if dialect == SQLITE and table.schema not in ("", "main"):
        raise Invalid(
            f"{name!r} would be in another file than the rest of the transaction, and SQLite does not commit to two "
            "files at once: leave the schema out"
        )
    return table


def make_lock(dialect: str) -> str | None:
    """What comes before tables are made, so that of several who do so at once one does."""
    return f"SELECT pg_advisory_xact_lock({_LOCK})" if dialect == POSTGRESQL else None


def schema_of(dialect: str) -> str | None:
    """The schema in which the table :name is found; none if it is not there. Not asked of SQLite: a transaction that
    reads first may not come to write."""
    if dialect == SQLITE:
        return None
    return (
        "SELECT (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(CAST(:name AS text)))"
    )


def within(schema: str | None, table: str) -> str:
    """A table's name with the schema that it was found in, unless it names one, or that is a name which is not written
    here, such as the one of temporary tables. Later statements say it, so that an application which sets another
    ``search_path`` does not change where the table is."""
    is_plain = schema is not None and _PART.fullmatch(schema) is not None and not schema.startswith("pg_")
    return f"{schema}.{table}" if is_plain and "." not in table else table


def index(dialect: str, table: TableName, suffix: str, what: str) -> str:
    """An index is in the schema of its table; SQLite wants that said of the index, PostgreSQL of the table."""
    index = TableName(table.schema if dialect == SQLITE else "", f"{table.name}_{suffix}").quoted
    on = TableName("" if dialect == SQLITE else table.schema, table.name).quoted
    return f"CREATE INDEX IF NOT EXISTS {index} ON {on} {what}"


def text_type(dialect: str) -> str:
    """The type of text that is compared byte by byte: an index whose order came from the operating system is broken by
    its next update, and a key that is not found again is an effect that happens twice."""
    return 'text COLLATE "C"' if dialect == POSTGRESQL else "text"


def skipping(dialect: str) -> str:
    """Rows that another transaction is about to change are left to it. SQLite has one writer."""
    return " FOR UPDATE SKIP LOCKED" if dialect == POSTGRESQL else ""
