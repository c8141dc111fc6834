"""Every kind of sink in a graph: one message at a time, in batches, in parallel; and after a reset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy
from sqlalchemy import Connection
from sqlalchemy.pool import NullPool

import detent
from detent.processor import FileSink, Graph, HttpSink, Message, ObjectSink, SqlSink

MESSAGES = 20
BODIES = [b'{"id": %d}' % number for number in range(MESSAGES)]

HOW = [{}, {"batch": 7}, {"batch": 7, "whole": True}, {"parallel": 4}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open("memory:") as found:
        found.journal("orders").append_many(BODIES)
        yield found


def run(graph: Graph, store: detent.Store) -> None:
    graph.run(store, once=True)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_lines_of_a_file(store: detent.Store, tmp_path: Path, how: dict[str, int]) -> None:
    graph = Graph("shop")
    graph.source("orders")
    with FileSink(tmp_path / "orders.jsonl") as file:
        graph.sink(input="orders", name="log", **how)(file)
        for _ in range(2):
            run(graph, store)
    assert sorted((tmp_path / "orders.jsonl").read_bytes().splitlines()) == sorted(BODIES)


@pytest.mark.parametrize("how", [{}, {"parallel": 4}], ids=str)
def test_objects(store: detent.Store, tmp_path: Path, how: dict[str, int]) -> None:
    graph = Graph("shop")
    graph.source("orders")
    graph.sink(input="orders", name="archive", **how)(ObjectSink(f"file:{tmp_path}/out"))
    for _ in range(2):
        run(graph, store)
    assert sorted(path.read_bytes() for path in (tmp_path / "out").iterdir()) == sorted(BODIES)


def test_requests(store: detent.Store) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200)

    graph = Graph("shop")
    graph.source("orders")
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        graph.sink(input="orders", name="send")(HttpSink("http://shop.example", client=client))

        def ids(messages: list[Message]) -> list[int]:
            return [message.json()["id"] for message in messages]

        batches = HttpSink("http://shop.example/all", client=client, content=ids)
        graph.sink(input="orders", name="send_all", batch=100, whole=True)(batches)
        run(graph, store)
    singles = [request for request in asked if request.url.path == "/"]
    assert [request.content for request in singles] == BODIES
    assert len({request.headers["Idempotency-Key"] for request in asked}) == len(asked) == MESSAGES + 1


@pytest.mark.parametrize("how", HOW, ids=str)
def test_rows(store: detent.Store, tmp_path: Path, how: dict[str, int]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE booked (id INTEGER)"))
    insert = sqlalchemy.text("INSERT INTO booked VALUES (:id)")
    graph = Graph("shop")
    graph.source("orders")
    with SqlSink(url) as sql:
        if "whole" in how:

            @graph.sink(input="orders", **how)
            @sql.sink
            def book(connection: Connection, orders: list[dict[str, int]]) -> None:
                connection.execute(insert, orders)

        else:

            @graph.sink(input="orders", **how)
            @sql.sink
            def book(connection: Connection, order: dict[str, int]) -> None:
                connection.execute(insert, order)

        for _ in range(2):
            run(graph, store)
        with engine.begin() as connection:
            assert sorted(connection.execute(sqlalchemy.text("SELECT id FROM booked")).scalars()) == [*range(MESSAGES)]
        with graph.open(store) as live:
            live.reset("book", "earliest")
        run(graph, store)
        with engine.begin() as connection:
            count = connection.execute(sqlalchemy.text("SELECT count(*) FROM booked")).scalar()
    assert count == 2 * MESSAGES, "after a reset these are new deliveries"
