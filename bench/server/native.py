"""Publishing and consuming through the JSON API, against Redis Streams and PostgreSQL that sync as often."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import msgspec

from bench.harness import Plan, Size, Skipped
from bench.place import Place
from bench.server import comparison, peers
from bench.server.load import Call
from bench.server.suite import SUITE
from bench.server.wire import Connection, http_answer, http_request, redis_answer, redis_request

QUEUE = "bench"
BODY = os.urandom(512).hex()
"""1 KiB of text."""

JSON = {"content-type": "application/json"}


# -- the sides ----------------------------------------------------------------------------------------------------


class Ours:
    """The JSON API."""

    def __init__(self, server: peers.Server) -> None:
        self._port = server.port

    async def prepare(self) -> None:
        connection = await Connection.open("127.0.0.1", self._port, http_answer)
        await connection.call(http_request("PUT", f"/v1/queues/{QUEUE}", b"{}", JSON))
        connection.close()

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        opened = [await Connection.open("127.0.0.1", self._port, http_answer) for _ in range(count)]
        send = http_request("POST", f"/v1/queues/{QUEUE}/messages", msgspec.json.encode({"body": BODY}), JSON)
        claim = http_request("POST", f"/v1/queues/{QUEUE}/claim", b'{"count": 1}', JSON)

        def consume(connection: Connection) -> Call:
            async def both() -> None:
                (message,) = msgspec.json.decode(await connection.call(claim))["messages"]
                assert message["body"] == BODY
                ack = msgspec.json.encode({"receipts": [message["receipt"]]})
                await connection.call(http_request("POST", f"/v1/queues/{QUEUE}/ack", ack, JSON))

            return both

        yield {
            "publish": [lambda one=one: one.call(send) for one in opened],
            "consume": [consume(one) for one in opened],
        }
        for one in opened:
            one.close()


class Redis:
    """A stream with one group; a message that is acknowledged is deleted, as it would have to be sooner or later."""

    def __init__(self, server: peers.Server) -> None:
        self._port = server.port

    async def prepare(self) -> None:
        connection = await Connection.open("127.0.0.1", self._port, redis_answer)
        await connection.call(redis_request(b"XGROUP", b"CREATE", b"s", b"g", b"0", b"MKSTREAM"))
        connection.close()

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        opened = [await Connection.open("127.0.0.1", self._port, redis_answer) for _ in range(count)]
        send = redis_request(b"XADD", b"s", b"*", b"body", BODY.encode())
        claim = redis_request(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"s", b">")

        def consume(connection: Connection) -> Call:
            async def both() -> None:
                ((_, ((identity, _),)),) = await connection.call(claim)
                await connection.call(redis_request(b"XACK", b"s", b"g", identity))
                await connection.call(redis_request(b"XDEL", b"s", identity))

            return both

        yield {
            "publish": [lambda one=one: one.call(send) for one in opened],
            "consume": [consume(one) for one in opened],
        }
        for one in opened:
            one.close()


SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    priority smallint NOT NULL DEFAULT 128,
    lease_until timestamptz,
    attempts int NOT NULL DEFAULT 0,
    body text NOT NULL
);
CREATE INDEX IF NOT EXISTS claimable ON jobs (priority, id) WHERE lease_until IS NULL;
"""
CLAIM = """
UPDATE jobs SET lease_until = now() + interval '30 s', attempts = attempts + 1
WHERE id = (SELECT id FROM jobs WHERE lease_until IS NULL ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, body
"""


class Postgres:
    """A table with SKIP LOCKED, through asyncpg with prepared statements."""

    def __init__(self, server: peers.Server) -> None:
        try:
            import asyncpg
        except ModuleNotFoundError as error:
            raise Skipped("there is no asyncpg: pip install asyncpg") from error
        self._connect = lambda: asyncpg.connect(host="127.0.0.1", port=server.port, user="bench", database="postgres")

    async def prepare(self) -> None:
        connection = await self._connect()
        await connection.execute(SCHEMA)
        await connection.close()

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        opened = [await self._connect() for _ in range(count)]
        calls: dict[str, list[Call]] = {"publish": [], "consume": []}
        for one in opened:
            send = await one.prepare("INSERT INTO jobs (body) VALUES ($1)")
            claim, ack = await one.prepare(CLAIM), await one.prepare("DELETE FROM jobs WHERE id = $1")

            async def both(claim: Any = claim, ack: Any = ack) -> None:
                row = await claim.fetchrow()
                assert row["body"] == BODY
                await ack.fetch(row["id"])

            calls["publish"].append(lambda send=send: send.fetch(BODY))
            calls["consume"].append(both)
        yield calls
        for one in opened:
            await one.close()


# -- the measurement ----------------------------------------------------------------------------------------------


@SUITE.measurement("native")
@contextmanager
def native(place: Place, size: Size) -> Iterator[Plan]:
    with ExitStack() as stack:
        directory = stack.enter_context(place.fresh())
        started: dict[str, comparison.System] = {
            "ours": Ours(stack.enter_context(peers.detent(directory))),
            "redis": Redis(stack.enter_context(peers.redis(directory))),
            "postgres": Postgres(stack.enter_context(peers.postgres(directory))),
        }
        note = "as bare requests, a connection for each caller; PostgreSQL through asyncpg, with prepared statements"
        yield comparison.plan(started, size, note=note)
