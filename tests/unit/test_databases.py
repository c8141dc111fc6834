"""What is tried again on a database, and what is not. The rest of it is tested where it is used."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from detent.errors import Invalid, Unavailable
from detent.runtime.backoff import Backoff
from detent.sql import databases, dialects, transactions


class Failure(Exception):
    """An error of PostgreSQL's, as drivers raise it."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "is_passing"),
    [
        (None, True),  # nobody answered
        ("08006", True),  # the connection failed
        ("40001", True),  # transactions met
        ("40P01", True),  # a deadlock
        ("57P01", True),  # the server goes down
        ("53300", True),  # too many connections
        ("42P01", False),  # no such table
        ("28P01", False),  # a wrong password
        ("23505", False),  # a key that is there
    ],
)
def test_an_error_passes_if_the_same_may_succeed_later(state: str | None, is_passing: bool) -> None:
    assert dialects.is_passing(OperationalError("x", {}, Failure(state))) is is_passing


def test_an_error_passes_only_if_it_is_of_the_database_and_not_of_the_statement() -> None:
    assert not dialects.is_passing(ProgrammingError("x", {}, Failure(None)))
    assert not dialects.is_passing(IntegrityError("x", {}, Failure("23505")))


def test_what_sqlite_does_not_understand_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "BUSY_MS", 10)
    monkeypatch.setattr(transactions, "RETRY", Backoff(0.0, 0.0))
    parsed = databases.parse(f"sqlite:///{tmp_path}/some.db", "it", "some.db")
    engine = databases.open_engine(parsed)
    calls: list[int] = []

    def work(connection: sqlalchemy.Connection) -> None:
        calls.append(1)
        connection.exec_driver_sql("SELECT 1 FROM nowhere")

    with pytest.raises(OperationalError, match="nowhere"):
        transactions.transact(engine, work)
    assert len(calls) == 1
    blocker = sqlite3.connect(tmp_path / "some.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        transactions.transact(engine, work)
    assert len(calls) == 1
    blocker.close()
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("some.db", "it needs a database's URL: sqlite:///some.db"),
        ("sqlite://", "it needs a file, such as sqlite:///some.db"),
        ("mysql://localhost/x", "it is kept in SQLite or PostgreSQL, not in mysql"),
        ("sqlite+aiosqlite:///some.db", "for async code only"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_the_callers_words(url: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        databases.parse(url, "it", "some.db")
