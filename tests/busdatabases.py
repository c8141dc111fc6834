"""Databases that trackers, outboxes and units of work are tested on, one for each way to reach one."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from detent.bus.unit_dbapi import DbApiUnitOfWork
from detent.bus.unit_of_work import UnitOfWork
from detent.bus.unit_sqlalchemy import SqlAlchemyUnitOfWork

POSTGRES = pytest.mark.xdist_group("postgres")

PLAIN = [
    "sqlite-session",
    "sqlite-raw",
    *(pytest.param(f"postgres-{way}", marks=POSTGRES) for way in ("session", "raw")),
]
ASYNC = [
    "sqlite-aiosqlite",
    *(pytest.param(f"postgres-{way}", marks=POSTGRES) for way in ("asyncpg", "async-session", "async-raw")),
]
KINDS = PLAIN + ASYNC
ON_POSTGRES = PLAIN[2:] + ASYNC[1:]

_NEEDS_GREENLET = ("aiosqlite", "asyncpg", "async-session")

_numbers = itertools.count(1)


@cache
def postgres_url() -> str:
    """One database for all tests of this process; each has tables of its own."""
    from postgresserver import new_database

    return new_database()


def libpq(url: str) -> str:
    """A URL of SQLAlchemy's as drivers want it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class BusDatabase:
    """A database, by one of `KINDS`."""

    def __init__(self, kind: str, folder: Path) -> None:
        name, _, self.way = kind.partition("-")
        self.dialect = {"sqlite": "sqlite", "postgres": "postgresql"}[name]
        if self.way in _NEEDS_GREENLET:
            pytest.importorskip("greenlet")  # what SQLAlchemy needs for asyncio
        number = next(_numbers)
        self.handled, self.outbox = f"handled_{number}", f"outbox_{number}"
        self.file = folder / "bus.db"
        self.url = f"sqlite:///{self.file}" if self.dialect == "sqlite" else postgres_url()
        self._engines: list[Any] = []

    def unit_of_work(self) -> UnitOfWork:
        """A new one on this database."""
        if self.way == "raw":
            connect: Callable[[], Any] = lambda: sqlite3.connect(self.file, timeout=30)  # noqa: E731
            return DbApiUnitOfWork(connect if self.dialect == "sqlite" else lambda: psycopg.connect(libpq(self.url)))
        if self.way == "async-raw":
            return DbApiUnitOfWork(lambda: psycopg.AsyncConnection.connect(libpq(self.url)))
        if self.way == "session":
            waits = {"timeout": 30} if self.dialect == "sqlite" else {}
            engine = create_engine(self.url, connect_args=waits)
            self._engines.append(engine)
            return SqlAlchemyUnitOfWork(sessionmaker(engine))
        return self._async()

    def _async(self) -> UnitOfWork:
        from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

        drivers = {
            "aiosqlite": "sqlite+aiosqlite",
            "asyncpg": "postgresql+asyncpg",
            "async-session": "postgresql+psycopg",
        }
        engine = create_async_engine(make_url(self.url).set(drivername=drivers[self.way]))
        self._engines.append(engine)
        return SqlAlchemyUnitOfWork(async_sessionmaker(engine))

    def execute(self, statement: str) -> list[Any]:
        """The rows of a statement that is committed at once, from outside."""
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.file, timeout=30, isolation_level=None)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        with psycopg.connect(libpq(self.url), autocommit=True) as other:
            found = other.execute(statement)
            return found.fetchall() if found.description else []

    def close(self) -> Any:
        """Close what was opened; awaited where that is async."""
        if self.way in _NEEDS_GREENLET:
            return self._close_async()
        for engine in self._engines:
            engine.dispose()
        return None

    async def _close_async(self) -> None:
        for engine in self._engines:
            await engine.dispose()
