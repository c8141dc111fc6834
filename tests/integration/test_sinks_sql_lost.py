"""A `SqlSink` whose database was deleted, went back to an older copy, or is another one: the processor is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Connection
from sqlalchemy.pool import NullPool

import detent
import postgresserver
from detent.errors import Corrupt
from detent.processor import Graph, Message, Out, SqlSink
from detent.processor.sink_sql import FLOORS, TABLE
from detent.processor.step import Step

HOW = [{}, {"batch": 7}, {"batch": 7, "whole": True}, {"parallel": 4}, {"delivery": "at-most-once"}]
POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))


class Shop:
    """A journal, and a database that its messages are delivered to."""

    def __init__(self, store: detent.Store, url: str) -> None:
        self.store, self.url = store, url
        self.sent = 0
        self.make()

    @property
    def file(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def make(self) -> None:
        """A database as the application makes it."""
        self.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")

    def execute(self, statement: str) -> list[Any]:
        engine = sqlalchemy.create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            answer = connection.execute(sqlalchemy.text(statement))
            return list(answer.scalars()) if answer.returns_rows else []

    def lose(self) -> None:
        """The database is deleted, and made anew without what was in it."""
        if self.url.startswith("sqlite"):
            for path in self.file.parent.glob(f"{self.file.name}*"):
                path.unlink()
        else:
            for table in (TABLE, f"{TABLE}{FLOORS}", "effects"):
                self.execute(f"DROP TABLE {table}")

    def send(self, count: int = 10) -> None:
        self.store.journal("orders").append_many([b"%d" % (self.sent + one) for one in range(count)])
        self.sent += count

    def graph(self, sink: SqlSink, **how: Any) -> Graph:
        graph = Graph("shop")
        graph.source("orders")

        @sink.sink
        def bill(connection: Connection, order: Message | list[Message]) -> None:
            for one in order if isinstance(order, list) else [order]:
                connection.execute(sqlalchemy.text("INSERT INTO effects (value) VALUES (:v)"), {"v": one.body.decode()})

        graph.sink(input="orders", name="bill", **how)(bill)
        return graph

    def run(self, **how: Any) -> None:
        """As a process of its own does it."""
        table = how.pop("table", TABLE)
        with SqlSink(self.url, table=table) as sink:
            self.graph(sink, **how).run(self.store, once=True)

    def effects(self) -> list[int]:
        return sorted(map(int, self.execute("SELECT value FROM effects")))

    def check(self) -> None:
        assert self.effects() == list(range(self.sent))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    with detent.open("memory:") as store:
        yield lambda url: Shop(store, url)


@pytest.fixture(params=["sqlite", POSTGRES])
def shop(request: pytest.FixtureRequest, make: Callable[[str], Shop], tmp_path: Path) -> Shop:
    """A shop with ten orders billed, and ten more to be."""
    is_sqlite = request.param == "sqlite"
    found = make(f"sqlite:///{tmp_path}/shop.db" if is_sqlite else postgresserver.new_database())
    found.send()
    return found


@pytest.fixture
def sqlite(make: Callable[[str], Shop], tmp_path: Path) -> Shop:
    found = make(f"sqlite:///{tmp_path}/shop.db")
    found.send()
    return found


@pytest.mark.parametrize("how", HOW, ids=str)
def test_processor_is_refused_when_its_database_was_deleted(shop: Shop, how: dict[str, Any]) -> None:
    shop.run(**how)
    shop.run(**how)
    shop.lose()
    shop.send()
    with pytest.raises(Corrupt, match="has had delivery"):
        shop.run(**how)
    shop.make()
    with pytest.raises(Corrupt, match="has had delivery"):
        shop.run(**how)
    assert shop.effects() == []


def test_question_makes_no_database(sqlite: Shop) -> None:
    sqlite.run()
    sqlite.lose()
    with pytest.raises(Corrupt):
        sqlite.run()
    assert not sqlite.file.exists()


def test_processor_goes_on_when_its_database_is_put_back(sqlite: Shop) -> None:
    sqlite.run()
    away = sqlite.file.rename(sqlite.file.with_name("away.db"))
    sqlite.send()
    with pytest.raises(Corrupt):
        sqlite.run()
    away.rename(sqlite.file)
    sqlite.run()
    sqlite.check()


def test_processor_is_refused_when_its_database_is_an_older_copy(sqlite: Shop) -> None:
    sqlite.run()
    copy = shutil.copy(sqlite.file, sqlite.file.with_name("copy.db"))
    sqlite.send()
    sqlite.run()
    sqlite.lose()
    shutil.move(copy, sqlite.file)
    with pytest.raises(Corrupt, match="older copy"):
        sqlite.run()


def test_processor_is_refused_when_its_deliveries_are_looked_for_in_another_table(shop: Shop) -> None:
    shop.run()
    with pytest.raises(Corrupt, match="another one"):
        shop.run(table="elsewhere")


def test_reset_makes_a_new_database_good(shop: Shop) -> None:
    shop.run()
    shop.lose()
    shop.make()
    with SqlSink(shop.url) as sink:
        with shop.graph(sink).open(shop.store) as live:
            live.reset("bill", "earliest")
        shop.send()
        shop.graph(sink).run(shop.store, once=True)
    shop.run()
    shop.check()


def test_deliveries_below_the_floor_are_remembered(sqlite: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.processor.sink_sql.FORGET_EVERY", 1)
    for _ in range(3):
        sqlite.run(batch=3)
        sqlite.send()
    sqlite.run()
    sqlite.check()


def test_processor_is_refused_when_its_database_is_deleted_while_it_is_open(sqlite: Shop) -> None:
    with SqlSink(sqlite.url) as sink, sqlite.graph(sink).open(sqlite.store) as live:
        live.start()
        live.settle()
        away = [path.rename(path.with_name(f"away-{path.name}")) for path in sqlite.file.parent.glob("shop.db*")]
        sqlite.send()
        with pytest.raises(Corrupt):
            live.settle()
        for path in away:
            path.rename(path.with_name(path.name.removeprefix("away-")))
        live.restart("bill")
        live.settle()
    sqlite.check()


def test_sink_that_replaces_a_plain_function_begins_where_that_was(sqlite: Shop) -> None:
    graph = Graph("shop")
    graph.source("orders")
    graph.sink(input="orders", name="bill")(lambda order: None)
    graph.run(sqlite.store, once=True)
    sqlite.send()
    sqlite.run()
    sqlite.send()
    sqlite.run()
    assert sqlite.effects() == list(range(10, 30))


def test_messages_that_are_filtered_are_no_deliveries(sqlite: Shop) -> None:
    graph = Graph("shop")
    graph.source("orders")

    @graph.stream(input="orders", output="typed")
    def typed(order: Message, step: Step) -> Out:
        return Out(order.body, type="big" if step.number >= 8 else "small")

    def run() -> None:
        with SqlSink(sqlite.url) as sink:
            graph_of_sink = Graph("bills")
            graph_of_sink.source("typed")

            @sink.sink
            def bill(connection: Connection, order: Message) -> None:
                insert = sqlalchemy.text("INSERT INTO effects (value) VALUES (:v)")
                connection.execute(insert, {"v": order.body.decode()})

            graph_of_sink.sink(input="typed", name="bill", types="big", batch=3)(bill)
            graph_of_sink.run(sqlite.store, once=True)

    graph.run(sqlite.store, once=True)
    run()
    run()
    assert sqlite.effects() == [8, 9]
