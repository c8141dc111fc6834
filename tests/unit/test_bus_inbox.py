"""`exactly_once`: any function that takes a message with an id, made to take effect once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from busworld import Books, Broken, enter
from detent.bus import SqlTracker, exactly_once
from detent.errors import Invalid
from processes import eventually


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(f"sqlite:///{tmp_path / 'books.db'}")
    yield made
    made.close()


@dataclass
class Order:
    message_id: str
    number: int


def test_a_message_takes_effect_once(books: Books) -> None:
    calls = []

    @exactly_once(books.sessions, consumer="inbox-1")
    def bill(order: Order, session: Session, tax: int = 0) -> int:
        calls.append(order.number)
        enter(session, "bill", order.number + tax)
        return order.number

    assert bill(Order("a", 1)) == 1
    assert bill(Order("a", 1)) is None
    assert bill(Order("b", 2), tax=10) == 2
    assert calls == [1, 2]
    assert books.entries() == [("bill", 1), ("bill", 12)]


def test_a_function_that_fails_can_be_tried_again(books: Books) -> None:
    fails = [True, False]

    @exactly_once(books.sessions, consumer="inbox-2", on_repeat=lambda order: f"seen {order['id']}")
    def bill(order: dict[str, Any], session: Session) -> str:
        enter(session, "bill", order["number"])
        if fails.pop(0):
            raise Broken
        return "done"

    with pytest.raises(Broken):
        bill({"id": "a", "number": 1})
    assert books.entries() == []
    assert bill({"id": "a", "number": 1}) == "done"
    assert bill({"id": "a", "number": 1}) == "seen a"
    assert books.entries() == [("bill", 1)]


def test_two_at_once_have_one_effect(books: Books) -> None:
    inside, go_on, answers = threading.Event(), threading.Event(), []

    @exactly_once(books.sessions, consumer="inbox-3")
    def bill(order: Order, session: Session) -> str:
        inside.set()
        assert go_on.wait(30)
        enter(session, "bill", order.number)
        return "done"

    threads = [threading.Thread(target=lambda: answers.append(bill(Order("a", 1)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, answers)) == ["None", "done"]
    assert books.entries() == [("bill", 1)]


def test_the_id_is_found_or_asked_for(books: Books) -> None:
    seen = []

    @exactly_once(books.sessions, consumer="inbox-4")
    def take(message: Any) -> None:
        seen.append(message)

    take({"MessageId": "1"})
    take({"headers": {"detent-id": "2"}})
    take({"id": 3})
    take({"id": "3"})
    assert len(seen) == 3
    with pytest.raises(Invalid, match="has no id"):
        take({"number": 1})
    with pytest.raises(Invalid, match="1 to 200 bytes"):
        take({"id": "x" * 201})

    @exactly_once(books.sessions, consumer="inbox-5", id=lambda message: message["key"])
    def keyed(message: Any) -> None:
        seen.append(message)

    keyed({"key": "k"})
    keyed({"key": "k"})
    assert len(seen) == 4


def test_a_plain_connection_does_as_well(tmp_path: Path) -> None:
    place = tmp_path / "plain.db"
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE entries (number int)")
    connection.close()

    @exactly_once(lambda: sqlite3.connect(place), consumer="inbox-6")
    def bill(order: Order, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO entries VALUES (?)", (order.number,))

    bill(Order("a", 1))
    bill(Order("a", 1))
    connection = sqlite3.connect(place)
    assert connection.execute("SELECT * FROM entries").fetchall() == [(1,)]
    connection.close()


def test_async_functions_and_sessions(books: Books, tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'books.db'}")
        sessions = async_sessionmaker(engine)

        @exactly_once(sessions, consumer="inbox-7")
        async def bill(order: Order, session: AsyncSession) -> str:
            await session.execute(text("INSERT INTO entries (app, number) VALUES ('bill', :n)"), {"n": order.number})
            return "done"

        assert await bill(Order("a", 1)) == "done"
        assert await bill(Order("a", 1)) is None
        with pytest.raises(Invalid, match="make it async def"):
            exactly_once(sessions, consumer="inbox-8")(lambda order: None)
        await engine.dispose()

        @exactly_once(books.sessions, consumer="inbox-9")
        async def plain_session(order: Order, session: Session) -> str:
            await asyncio.sleep(0)
            enter(session, "bill", order.number)
            return "done"

        assert await plain_session(Order("a", 2)) == "done"
        assert await plain_session(Order("a", 2)) is None

    asyncio.run(main())
    assert books.entries() == [("bill", 1), ("bill", 2)]


def test_two_functions_with_one_consumer_are_refused(books: Books) -> None:
    @exactly_once(books.sessions, consumer="inbox-10")
    def one(message: Any) -> None: ...

    with pytest.raises(Invalid, match="two functions are the consumer 'inbox-10'"):

        @exactly_once(books.sessions, consumer="inbox-10")
        def two(message: Any) -> None: ...

    with pytest.raises(Invalid, match="answers a session or a connection"):
        exactly_once(42, consumer="inbox-11")(one)


def test_marks_beyond_the_retention_are_removed_now_and_then(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("detent.bus.inbox.time.monotonic", lambda: now)

    @exactly_once(books.sessions, consumer="inbox-12", tracker=SqlTracker(retention="0s"))
    def take(message: Any) -> None: ...

    for number in range(5):
        take({"id": number})
    left = books.count("detent_handled")
    assert left >= 4  # the first call sweeps
    now = 61.0
    eventually(lambda: take({"id": "again"}) is None and books.count("detent_handled") <= 1)
