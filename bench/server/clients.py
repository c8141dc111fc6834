"""Publishing and consuming through what programs really use from asyncio: each system's own client library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import detent
from bench.harness import Plan, Size, Skipped
from bench.place import Place
from bench.server import comparison, peers
from bench.server.load import Call
from bench.server.native import BODY as TEXT
from bench.server.native import QUEUE, Postgres
from bench.server.suite import SUITE

BODY = TEXT.encode()
STREAM, GROUP, CONSUMER = "s", "g", "c"


class Ours:
    """One client for all callers: it shares its way to the server among them by itself."""

    def __init__(self, server: peers.Server) -> None:
        self._url = f"http://127.0.0.1:{server.port}"

    async def prepare(self) -> None:
        async with detent.open_async(self._url) as store:
            await store.queue(QUEUE).create(exist_ok=True)

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        async with detent.open_async(self._url) as store:
            queue = store.queue(QUEUE)
            await queue.info()  # connected before the clock starts, as the others are

            async def publish() -> None:
                await queue.publish(BODY)

            async def consume() -> None:
                (message,) = await queue.claim(1)
                assert message.body == BODY
                await message.ack()

            yield {"publish": [publish] * count, "consume": [consume] * count}


class Redis:
    """redis-py, with a connection for each caller, which is faster than its pool."""

    def __init__(self, server: peers.Server) -> None:
        try:
            from redis.asyncio import Redis as Client
        except ModuleNotFoundError as error:
            raise Skipped("there is no redis-py: pip install redis") from error
        self._client = lambda: Client(host="127.0.0.1", port=server.port, single_connection_client=True)

    async def prepare(self) -> None:
        async with self._client() as client:
            await client.xgroup_create(STREAM, GROUP, "0", mkstream=True)

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        opened = [self._client() for _ in range(count)]
        for one in opened:
            await one.ping()

        def consume(client: Any) -> Call:
            async def both() -> None:
                ((_, ((identity, fields),)),) = await client.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=1)
                assert fields[b"body"] == BODY
                await client.xack(STREAM, GROUP, identity)
                await client.xdel(STREAM, identity)

            return both

        yield {
            "publish": [lambda one=one: one.xadd(STREAM, {"body": BODY}) for one in opened],
            "consume": [consume(one) for one in opened],
        }
        for one in opened:
            await one.aclose()


@SUITE.measurement("clients")
@contextmanager
def clients(place: Place, size: Size) -> Iterator[Plan]:
    with ExitStack() as stack:
        directory = stack.enter_context(place.fresh())
        started: dict[str, comparison.System] = {
            "ours": Ours(stack.enter_context(peers.detent(directory))),
            "redis": Redis(stack.enter_context(peers.redis(directory))),
            "postgres": Postgres(stack.enter_context(peers.postgres(directory))),
        }
        note = (
            "ours: one client of detent.open_async for all callers; redis.asyncio, and asyncpg with prepared "
            "statements: a connection for each"
        )
        yield comparison.plan(started, size, through=", through each one's own client", note=note)
