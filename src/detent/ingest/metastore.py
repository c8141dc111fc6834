"""The database that pipelines share: SQLite for one machine, PostgreSQL for many."""

from __future__ import annotations

from typing import Final

import sqlalchemy
from sqlalchemy import Engine

from detent.errors import NotFound
from detent.ingest.shard_sql import METADATA, SOURCES
from detent.sql.databases import file_of, open_engine, parse
from detent.sql.transactions import read, transact

_NAMED: Final = ("state", "ingest.db")
"""What the configuration calls the database, and an example of a file."""


def connect(url: str) -> Engine:
    """The database at a URL of SQLAlchemy's, with Detent's tables in it, which are made where there are none."""
    engine = open_engine(parse(url, *_NAMED))
    transact(engine, METADATA.create_all)
    return engine


def connect_existing(url: str) -> Engine:
    """The database at a URL, to look at; `NotFound` if no pipeline has made its tables."""
    parsed = parse(url, *_NAMED)
    file = file_of(parsed)
    if file is None or file.exists():
        engine = open_engine(parsed)
        if read(engine, lambda connection: sqlalchemy.inspect(connection).has_table(SOURCES.name)):
            return engine
        engine.dispose()
    raise NotFound(f"no ingest ever ran on {parsed.render_as_string(hide_password=True)}: `detent run` makes it")
