"""Whole apps on each kind of transaction: what a message changes and what it sends take effect once."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import detent
from busworld import AT_ONCE, Books, Broken, Invoiced, OrderPlaced, app, enter
from detent.bus import (
    Bus,
    Context,
    DbApiUnitOfWork,
    EngineUnitOfWork,
    IdempotencyConfig,
    Outcome,
    QueueTransport,
    SqlAlchemyUnitOfWork,
    SqlOutbox,
    SqlTracker,
    run,
    run_async,
)
from postgresserver import new_database
from processes import eventually

INSERT = "INSERT INTO entries (app, number) VALUES ('bill', {})"


def both(unit_of_work: Any) -> dict[str, Any]:
    return {"unit_of_work": unit_of_work, "idempotency": IdempotencyConfig(SqlTracker()), "outbox": SqlOutbox()}


def plain_handler(write: Callable[..., None], name: str) -> Callable[[Bus], None]:
    def declare(bus: Bus) -> None:
        def bill(order: OrderPlaced, context: Context, **things: Any) -> None:
            write(things[name], order.number)
            context.send(Invoiced(order.number), to=bus.name)
            if context.attempts == 1:
                raise Broken

        exec(  # a handler with the parameter that this kind provides
            f"def handler(order, context, {name}): bill(order, context, {name}={name})", space := {"bill": bill}
        )
        bus.handler(OrderPlaced)(space["handler"])

    return declare


def async_handler(write: Callable[..., Any], name: str) -> Callable[[Bus], None]:
    def declare(bus: Bus) -> None:
        async def bill(order: OrderPlaced, context: Context, **things: Any) -> None:
            await write(things[name], order.number)
            context.send(Invoiced(order.number), to=bus.name)
            if context.attempts == 1:
                raise Broken

        exec(
            f"async def handler(order, context, {name}): await bill(order, context, {name}={name})",
            space := {"bill": bill},
        )
        bus.handler(OrderPlaced)(space["handler"])

    return declare


async def _async_session(session: AsyncSession, number: int) -> None:
    await session.execute(text(INSERT.format(number)))


async def _async_connection(connection: Any, number: int) -> None:
    await connection.execute(INSERT.format(number))


def _check(books: Books, declare: Callable[[Bus], None], options: dict[str, Any]) -> None:
    """One message, delivered three times, the first attempt failing; and once more as a duplicate."""
    seen: list[int] = []
    with detent.open("memory:") as store, app(store, **options) as bus:
        declare(bus)
        bus.handler(Invoiced)(lambda invoice: seen.append(invoice.order))
        bus.drain()
        bus.send_local(OrderPlaced(7), id="m")
        assert bus.drain() == [Outcome.RETRIED, Outcome.HANDLED, Outcome.HANDLED]
        store.queue(bus.name).publish(b'{"number": 7}', headers={"detent-type": "OrderPlaced", "detent-id": "m"})
        assert bus.drain() == [Outcome.REPEATED]
    assert seen == [7]
    assert books.entries() == [("bill", 7)]
    assert books.count("detent_outbox") == 0


def test_sessions_of_sqlite(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")
    _check(books, plain_handler(lambda session, number: enter(session, "bill", number), "session"), books.options())
    books.close()


def test_plain_connections_of_sqlite(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")
    unit_of_work = DbApiUnitOfWork(lambda: sqlite3.connect(tmp_path / "books.db"))
    declare = plain_handler(lambda connection, number: connection.execute(INSERT.format(number)), "connection")
    _check(books, declare, both(unit_of_work))
    books.close()


def test_async_sessions_of_sqlite(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'books.db'}")
    _check(books, async_handler(_async_session, "session"), both(SqlAlchemyUnitOfWork(async_sessionmaker(engine))))
    asyncio.run(engine.dispose())
    books.close()


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_async_sessions_of_postgres(driver: str) -> None:
    url = new_database()
    books = Books(url)
    engine = create_async_engine(url.replace("+psycopg", f"+{driver}"), poolclass=NullPool)
    _check(books, async_handler(_async_session, "session"), both(SqlAlchemyUnitOfWork(async_sessionmaker(engine))))
    books.close()


@pytest.mark.xdist_group("postgres")
def test_plain_connections_of_postgres() -> None:
    url = new_database()
    books, place = Books(url), url.replace("+psycopg", "")
    declare = plain_handler(lambda connection, number: connection.execute(INSERT.format(number)), "connection")
    _check(books, declare, both(DbApiUnitOfWork(lambda: psycopg.connect(place))))
    books.close()


@pytest.mark.xdist_group("postgres")
def test_async_connections_of_postgres() -> None:
    url = new_database()
    books, place = Books(url), url.replace("+psycopg", "")

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(place)

    _check(books, async_handler(_async_connection, "connection"), both(DbApiUnitOfWork(connect)))
    books.close()


def test_the_engine_needs_neither_tracker_nor_outbox() -> None:
    seen: list[int] = []
    with detent.open("memory:") as store, app(store, unit_of_work=EngineUnitOfWork()) as bus:

        @bus.handler
        def bill(order: OrderPlaced, transaction: detent.Transaction, context: Context) -> None:
            transaction.append("entries", b"%d" % order.number)
            context.send(Invoiced(order.number), to=bus.name)
            if context.attempts == 1:
                raise Broken
            if context.attempts == 2:
                transaction.commit()
            if context.attempts == 3:
                with transaction:  # its end would commit
                    transaction.append("entries", b"alone")

        bus.handler(Invoiced)(lambda invoice: seen.append(invoice.order))
        bus.drain()
        bus.send_local(OrderPlaced(7), id="m")
        assert bus.drain() == [Outcome.RETRIED] * 3 + [Outcome.HANDLED] * 2
        assert [message.body for message in store.journal("entries").read()] == [b"7"]
        assert store.queue(bus.name).info().in_flight == 0
    assert seen == [7]


def test_a_stale_delivery_changes_nothing_in_the_engine() -> None:
    """The lease ends while the handler runs, and somebody else gets the message."""
    with detent.open("memory:") as store:
        bus = Bus("stale", QueueTransport(store, lease="20ms"), unit_of_work=EngineUnitOfWork(), retries=AT_ONCE)

        @bus.handler
        def bill(order: OrderPlaced, transaction: detent.Transaction, context: Context) -> None:
            transaction.append("entries", b"%d" % order.number)
            context.send(Invoiced(1), to="stale")
            if context.attempts == 1:
                eventually(lambda: store.queue("stale").info().available == 1)

        bus.handler(Invoiced)(lambda invoice: None)
        bus.drain()
        bus.send_local(OrderPlaced(7))
        assert bus.drain() == [Outcome.LEFT, Outcome.HANDLED, Outcome.HANDLED]
        assert [message.body for message in store.journal("entries").read()] == [b"7"]
        bus.stop()


@pytest.mark.xdist_group("postgres")
def test_a_duplicate_waits_for_the_first_one_on_postgres() -> None:
    """While the first is still in its handler, the second one is delivered to another thread: it waits, and is
    skipped."""
    books, inside, go_on = Books(new_database()), threading.Event(), threading.Event()
    outcomes: list[Outcome] = []
    with detent.open("memory:") as store, app(store, **books.options()) as bus:

        @bus.handler
        def bill(order: OrderPlaced, session: Session) -> None:
            inside.set()
            assert go_on.wait(30)
            enter(session, "bill", order.number)

        bus.prepare()
        for _ in range(2):
            store.queue(bus.name).publish(b'{"number": 7}', headers={"detent-type": "OrderPlaced", "detent-id": "m"})
        deliveries = bus.transport.receive(2, 5)
        threads = [threading.Thread(target=lambda one=one: outcomes.append(bus.handle(one))) for one in deliveries]
        for thread in threads:
            thread.start()
        assert inside.wait(30)
        eventually(lambda: _is_waiting(books), what="the second one waiting for the first")
        assert outcomes == []
        go_on.set()
        for thread in threads:
            thread.join(30)
    assert sorted(outcome.name for outcome in outcomes) == ["HANDLED", "REPEATED"]
    assert books.entries() == [("bill", 7)]
    books.close()


def _is_waiting(books: Books) -> bool:
    with books.engine.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return connection.execute(text(query)).scalar_one() == 1


@pytest.mark.parametrize("how", ["plain", "async"])
def test_several_apps_in_a_process_run_until_they_are_told_to_stop(how: str) -> None:
    """A handler that is running ends, and its message is acknowledged; nothing new is begun."""
    seen: list[str] = []
    begun = threading.Event()
    with detent.open("memory:") as store:
        one = Bus("one", QueueTransport(store), concurrency=1)
        two = Bus("two", QueueTransport(store), concurrency=1)
        one.handler(OrderPlaced)(lambda order: one.publish(Invoiced(order.number)))

        @two.handler
        async def take(invoice: Invoiced) -> None:
            begun.set()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)
            seen.append(f"ended {invoice.order}")

        for bus in (one, two):
            store.queue(bus.name).create(max_attempts=0)
        shop = Bus("shop", QueueTransport(store), send_only=True)
        for number in range(3):
            shop.send(OrderPlaced(number), to="one")
        shop.stop()
        if how == "plain":
            run(one, two)
        else:
            asyncio.run(run_async(one, two))
        assert begun.is_set()
        assert seen == ["ended 0"]
        assert store.queue("two").info().in_flight == 0
        assert [
            thread for thread in threading.enumerate() if thread.name.startswith(("detent-bus", "detent-loop"))
        ] == []


def test_async_with_runs_handlers_on_the_callers_loop() -> None:
    async def main() -> None:
        loops: list[Any] = []
        done = asyncio.Event()
        with detent.open("memory:") as store:
            bus = Bus("mine", QueueTransport(store))

            @bus.handler
            async def take(order: OrderPlaced) -> None:
                loops.append(asyncio.get_running_loop())
                done.set()

            async with bus:
                await bus.send_async(OrderPlaced(1), to="mine")
                await asyncio.wait_for(done.wait(), 30)
            assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


def test_async_transactions_outside_of_handlers(tmp_path: Path) -> None:
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'books.db'}")
        sessions, seen = async_sessionmaker(engine), []
        arrived = asyncio.Event()
        with detent.open("memory:") as store:
            bus = Bus("view", QueueTransport(store), **both(SqlAlchemyUnitOfWork(sessions)))

            @bus.handler
            async def take(order: OrderPlaced) -> None:
                seen.append(order.number)
                arrived.set()

            async with bus:
                with pytest.raises(Broken):
                    async with sessions() as session, bus.transaction(session):
                        bus.publish(OrderPlaced(1))
                        raise Broken
                async with sessions() as session, bus.transaction(session):
                    await _async_session(session, 2)
                    bus.publish(OrderPlaced(2))
                await asyncio.wait_for(arrived.wait(), 30)
        assert seen == [2]
        await engine.dispose()

    asyncio.run(main())
    assert books.entries() == [("bill", 2)]
    books.close()
