"""The spans of real requests, as OpenTelemetry's conventions for messaging want them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import detent
from detent.engine import Request as Transaction
from detent.journal import operations as journals
from detent.queue import operations as queues
from detent.remote.asgi import REQUESTS
from detent.server.access import Caller
from detent.server.api import Api
from detent.server.app import ServerApplication
from detent.server.http import HttpRequest
from detent.server.native import NativePart
from detent.server.tracing import Tracing

Ask = Callable[..., Awaitable[ReadableSpan]]


def traced(work: Callable[[Ask], Awaitable[None]]) -> None:
    """Run something that asks a server, each time for the span of its request."""
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(provider.get_tracer("test"), propagate.extract, trace.SpanKind.SERVER)

    async def main() -> None:
        async with detent.open_async("memory:") as store:
            app = ServerApplication([Api(store), NativePart(store)], tracing=tracing)

            async def ask(method: str, path: str, body: Any = None, **more: Any) -> ReadableSpan:
                exported.clear()
                await app(_scope(method, path, more), _receive(body), _nowhere)
                (span,) = exported.get_finished_spans()
                return span

            await work(ask)

    asyncio.run(main())


def _scope(method: str, path: str, more: Mapping[str, Any]) -> dict[str, Any]:
    address, _, query = path.partition("?")
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    return {
        "type": "http", "method": method, "path": address, "raw_path": address.encode(), "query_string": query.encode(),
        "headers": headers, "client": ("127.0.0.1", 5), **more,
    }  # fmt: skip


def _receive(body: Any) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if body is None else msgspec.json.encode(body)}

    return receive


async def _nowhere(message: dict[str, Any]) -> None:
    del message


def about(span: ReadableSpan) -> dict[str, Any]:
    """What a span says of messages and errors, by the ends of its attributes' names."""
    short = {"messaging.operation.name": "name", "messaging.operation.type": "type",
             "messaging.destination.name": "destination", "messaging.batch.message_count": "count",
             "error.type": "error"}  # fmt: skip
    return {short[name]: value for name, value in (span.attributes or {}).items() if name in short}


def test_every_operation_has_its_type_and_its_count() -> None:
    async def work(ask: Ask) -> None:
        await ask("PUT", "/v1/queues/q", {"filter": "true"})
        send = {"name": "publish", "type": "send", "destination": "q"}
        assert about(await ask("POST", "/v1/queues/q/messages", {"body": "a"})) == send
        assert about(await ask("POST", "/v1/queues/q/messages", [{"body": "a"}] * 3)) == {**send, "count": 3}
        anywhere = await ask("POST", "/v1/messages", [{"body": "a"}] * 2)
        assert about(anywhere) == {"name": "publish_anywhere", "type": "send", "count": 2}
        claimed = await ask("POST", "/v1/queues/q/claim", {"count": 2})
        assert about(claimed) == {"name": "claim", "type": "receive", "destination": "q", "count": 2}
        assert claimed.name == "claim q"
        assert claimed.kind is trace.SpanKind.SERVER
        appended = await ask("POST", "/v1/journals/j/messages", [{"body": "a"}] * 4)
        assert about(appended) == {"name": "append", "type": "send", "destination": "j", "count": 4}
        read = await ask("GET", "/v1/journals/j/messages")
        assert about(read) == {"name": "read", "type": "receive", "destination": "j", "count": 4}

    traced(work)


def test_trace_of_a_request_ends_with_it() -> None:
    """Also for the one behind it on a connection, which its task begins."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def main() -> None:
        async with detent.open_async("memory:") as store:
            app = ServerApplication([Api(store)])
            await store.queue("q").create()
            for headers in ([(b"traceparent", parent.encode())], []):
                scope = _scope("POST", "/v1/queues/q/messages", {})
                await app({**scope, "headers": [*scope["headers"], *headers]}, _receive({"body": "a"}), _nowhere)
            found = [message.headers.get("traceparent") for message in await store.queue("q").claim(2)]
            assert found == [parent, None]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "publish", "body": "a"}, {"op": "append", "journal": "j", "body": "a"}],
         {"type": "send", "count": 2}),
        ([{"op": "append", "journal": "j", "body": "a"}], {"type": "send"}),
        ([{"op": "check_next_offset", "journal": "j", "offset": 0}], {}),
        ([{"op": "append", "journal": "j", "body": "a"}, {"op": "ack", "receipts": ["1-0-1", "1-1-1"]}],
         {"type": "settle", "count": 3, "error": "StaleReceipt"}),
    ],
)  # fmt: skip
def test_a_transaction_is_of_the_type_of_what_it_does(operations: Any, expected: dict[str, Any]) -> None:
    async def work(ask: Ask) -> None:
        span = await ask("POST", "/v1/transaction", {"operations": operations})
        assert about(span) == {"name": "commit", **expected}

    traced(work)


def test_an_error_is_named_and_only_the_servers_own_are_errors_of_the_span() -> None:
    async def work(ask: Ask) -> None:
        missing = await ask("POST", "/v1/queues/none/claim", {})
        assert about(missing)["error"] == "NotFound"
        assert missing.status.status_code is trace.StatusCode.UNSET
        assert about(await ask("GET", "/nothing"))["error"] == "404"
        assert about(await ask("POST", "/v1/queues"))["error"] == "405"

    traced(work)


def test_a_fault_of_the_server_is_an_error_of_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Api, request: HttpRequest, caller: Caller) -> None:
        raise detent.Unavailable("not now") if request.path == "/v1/queues" else RuntimeError("a fault")

    monkeypatch.setattr(Api, "answer", fail)

    async def work(ask: Ask) -> None:
        later = await ask("GET", "/v1/queues")
        assert (later.status.status_code, about(later)["error"]) == (trace.StatusCode.ERROR, "Unavailable")

    traced(work)
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(provider.get_tracer("test"), propagate.extract, trace.SpanKind.SERVER)
    with (
        pytest.raises(RuntimeError),
        tracing.span(HttpRequest(_scope("GET", "/v1/queues/q", {}), _receive(None))),
    ):
        raise RuntimeError("a fault")
    (span,) = exported.get_finished_spans()
    assert (span.status.status_code, about(span)["error"]) == (trace.StatusCode.ERROR, "RuntimeError")


def test_requests_of_our_own_clients_say_what_they_are_about() -> None:
    async def work(ask: Ask) -> None:
        waiting = await ask("GET", "/v1/native/wait/queue?queue=q&timeout_ms=1")
        assert (waiting.name, about(waiting)) == ("wait q", {"name": "wait", "destination": "q"})
        reading = await ask("GET", "/v1/native/journals/committed?journal=j&start=0&end=1")
        assert about(reading) == {"name": "read", "type": "receive", "destination": "j", "error": "NotFound"}
        assert about(await ask("GET", "/v1/native/wait/queue?queue=q&queue=r"))["name"] == "wait"
        assert about(await ask("POST", "/v1/transactions"))["name"] == "commit"
        assert about(await ask("GET", "/v1/status")) == {}

    traced(work)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([queues.Publish([b"a", b"b"], to="q")], {"name": "publish", "type": "send", "destination": "q", "count": 2}),
        ([queues.Claim("q", 10)], {"name": "claim", "type": "receive", "destination": "q"}),
        ([queues.Ack(1, [0, 1], [1, 2])], {"name": "ack", "type": "settle", "count": 2}),
        ([journals.Append("j", [b"a"]), journals.Append("j", [b"a"])],
         {"name": "append", "type": "send", "destination": "j", "count": 2}),
        ([journals.Append("j", [b"a"]), queues.Ack(1, [0], [1])], {"name": "commit", "type": "settle", "count": 2}),
        ([queues.DescribeQueues("q")], {"name": "commit", "destination": "q"}),
    ],
)  # fmt: skip
def test_transactions_of_our_own_clients_have_the_verb_of_what_they_do(
    operations: Any, expected: dict[str, Any]
) -> None:
    async def work(ask: Ask) -> None:
        known = {REQUESTS: [Transaction(b"s" * 16, 0, 0, operations)]}
        found = about(await ask("POST", "/v1/transactions", **known))
        del found["error"]  # there is no body
        assert found == expected

    traced(work)
