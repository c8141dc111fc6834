"""How servers that do nothing stand to the bars: where these miss one, nothing behind the same protocol meets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager

import msgspec

from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.place import Place
from bench.server import peers
from bench.server.load import Call, rate_of
from bench.server.native import BODY, JSON, QUEUE, Postgres, Redis
from bench.server.sqs import Side
from bench.server.suite import SUITE
from bench.server.wire import Connection, http_answer, http_request

KINDS = {"raw": "a Python server that does nothing", "asgi": "an ASGI application that does nothing"}
IN_FLIGHT = 100


class Nothing:
    """Publishing to a server that does not even look at it."""

    def __init__(self, server: peers.Server) -> None:
        self._port = server.port

    @asynccontextmanager
    async def callers(self, count: int) -> AsyncIterator[dict[str, list[Call]]]:
        opened = [await Connection.open("127.0.0.1", self._port, http_answer) for _ in range(count)]
        send = http_request("POST", f"/v1/queues/{QUEUE}/messages", msgspec.json.encode({"body": BODY}), JSON)
        yield {"publish": [lambda one=one: one.call(send) for one in opened]}
        for one in opened:
            one.close()


@SUITE.measurement("limits")
@contextmanager
def limits(place: Place, size: Size) -> Iterator[Plan]:
    total, calls = size.of(6_000, 600), size.of(60, 40)
    with ExitStack() as stack:
        directory = stack.enter_context(place.fresh())
        servers = {kind: stack.enter_context(peers.nothing(directory, kind, BODY)) for kind in KINDS}
        redis = Redis(stack.enter_context(peers.redis(directory)))
        postgres = Postgres(stack.enter_context(peers.postgres(directory)))
        asyncio.run(redis.prepare())
        asyncio.run(postgres.prepare())
        sides = {**{kind: Nothing(server) for kind, server in servers.items()}, "redis": redis, "postgres": postgres}
        boto = {
            "raw": Side(servers["raw"].port, make_queue=False),
            "moto": Side(stack.enter_context(peers.moto(directory)).port),
        }

        def publish() -> Mapping[str, float]:
            found = {name: _published(side, total) for name, side in sides.items()}
            return {**found, "better": max(found["redis"], found["postgres"])}

        def sent(side: Side) -> Callable[[], float]:
            return lambda: side.sent_through_boto(calls)

        rows = [
            Row(f"{text}, {IN_FLIGHT} publishes in flight", "msg/s", f"publish.{kind}", INFORMATIVE, "publish.better",
                "against the better of Redis and PostgreSQL")
            for kind, text in KINDS.items()
        ]  # fmt: skip
        text = f"SendMessage through boto3 to {KINDS['raw']}, one after another"
        rows.append(Row(text, "msg/s", "boto", INFORMATIVE, "moto", "against moto"))
        yield Plan({"publish": publish, "boto": sent(boto["raw"]), "moto": sent(boto["moto"])}, rows)


def _published(side: Nothing | Redis | Postgres, total: int) -> float:
    async def work() -> float:
        async with side.callers(IN_FLIGHT) as calls:
            return await rate_of(calls["publish"], total)

    return asyncio.run(work())
