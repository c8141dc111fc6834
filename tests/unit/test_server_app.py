"""The application around the server's parts: who gets in, what is refused, what is noted."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import detent
from detent.errors import Busy, Denied, DetentError, Invalid, Unavailable
from detent.remote import LocalOwner
from detent.server import http
from detent.server.access import Caller
from detent.server.app import Application, refusal
from detent.server.http import Request, Response
from detent.server.keys import KeyRing, new_key
from detent.server.metrics import Metrics
from detent.server.operators import PUBLIC, Operators
from detent.server.tracing import Tracing, find_tracing


class Echo:
    """A part that says who asked, and fails on demand."""

    name = "echo"

    def owns(self, request: Request) -> bool:
        return request.path.startswith("/echo")

    async def answer(self, request: Request, caller: Caller) -> Response:
        if request.path == "/echo/busy":
            raise Busy("later")
        if request.path == "/echo/parts":

            async def parts() -> Any:
                yield b"one "
                yield b"two"

            return Response(parts(), type="text/plain")
        body = await request.body(1000)
        return Response.json({"caller": caller.name, "query": request.query(), "body": body.decode()})

    def refuse(self, request: Request, error: DetentError) -> Response:
        return refusal(error)

    async def close(self) -> None:
        return None


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def ask(
    app: Application,
    method: str,
    path: str,
    *,
    query: str = "",
    headers: Any = (),
    body: bytes | list[bytes] = b"",
) -> Answer:
    """One request, as a server would bring it."""
    parts = body if isinstance(body, list) else [body]
    incoming = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    incoming[-1]["more_body"] = False
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 5),
    }
    await app(scope, receive, send)
    start, *rest = answered
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], named, b"".join(message["body"] for message in rest))


def run(*arguments: Any, **options: Any) -> Answer:
    return asyncio.run(ask(*arguments, **options))


KEY = new_key("somebody", ["publish:queue:a"], now=datetime.now(UTC))
TOKEN = [("Authorization", f"Bearer {KEY.id}.{KEY.secret}")]
LOCKED = Application([Echo()], keys=KeyRing([KEY]))
OPEN = Application([Echo()])


def test_without_keys_anybody_is_let_in() -> None:
    answer = run(OPEN, "GET", "/echo", query="a=1&b=")
    assert (answer.status, answer.json["caller"], answer.json["query"]) == (200, "anybody", {"a": "1", "b": ""})


def test_with_keys_only_those_who_have_one() -> None:
    assert run(LOCKED, "GET", "/echo", headers=TOKEN).json["caller"] == "somebody"
    for headers in ([], [("Authorization", "Bearer x.y")], [("Authorization", "Basic eDp5")], [("Authorization", "")]):
        answer = run(LOCKED, "GET", "/echo", headers=headers)
        assert (answer.status, answer.json["error"]) == (401, "Denied")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert KEY.secret not in answer.body.decode()


def test_nobody_learns_without_a_key_which_paths_there_are() -> None:
    assert run(LOCKED, "GET", "/nothing").status == 401
    assert run(LOCKED, "GET", "/nothing", headers=TOKEN).status == 404


def test_too_much_is_answered_with_when_to_come_again() -> None:
    answer = run(OPEN, "GET", "/echo/busy")
    assert (answer.status, answer.headers["retry-after"], answer.json["error"]) == (429, "1", "Busy")


def test_a_stream_is_sent_in_its_parts() -> None:
    answer = run(OPEN, "GET", "/echo/parts")
    assert (answer.body, "content-length" in answer.headers) == (b"one two", False)


@pytest.mark.parametrize("parts", [[b"x" * 1001], [b"x" * 600, b"x" * 600]])
def test_a_body_over_the_limit_is_refused(parts: list[bytes]) -> None:
    assert run(OPEN, "POST", "/echo", body=parts).status == 413
    declared = [("Content-Length", "100000")]
    assert run(OPEN, "POST", "/echo", headers=declared).status == 413


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_WAIT_S", 0.01)

    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
    with pytest.raises(Invalid, match="not sent within"):
        asyncio.run(Request(scope, never).body())


@pytest.mark.parametrize(
    ("path", "query", "headers", "status"),
    [
        ("/echo/" + "x" * 5000, "", [], 413),
        ("/echo", "x" * 20_000, [], 413),
        ("/echo", "a=1&a=2", [], 400),
        ("/echo", "&".join(f"a{n}=1" for n in range(200)), [], 400),
        ("/echo", "a=%ff", [], 400),
        ("/echo", "", [(f"x{n}", "y") for n in range(200)], 413),
        ("/echo", "", [("x", "y" * 70_000)], 413),
        ("/echo", "", [("Authorization", "Bearer a.b"), ("Authorization", "Bearer c.d")], 400),
        ("/echo", "", [("Content-Length", "0"), ("Content-Length", "1")], 400),
    ],
)
def test_what_no_client_sends_is_refused(path: str, query: str, headers: Any, status: int) -> None:
    assert run(OPEN, "GET", path, query=query, headers=headers).status == status


def test_a_client_that_goes_away_is_no_error_of_the_server() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
    with pytest.raises(Invalid, match="went away"):
        asyncio.run(Request(scope, gone).body())


def test_the_log_has_a_line_for_each_request_and_nothing_that_it_carried(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "detent.server"):
        run(LOCKED, "POST", "/echo\nfake line", query="secret=1", headers=TOKEN, body=b"the body")
    (record,) = caplog.records
    said = vars(record)
    assert (said["method"], said["status"], said["path"]) == ("POST", 200, "/echo\nfake line")
    everything = repr(said)
    assert "the body" not in everything
    assert KEY.secret not in everything
    assert "secret=1" not in everything


# -- health, readiness, metrics -----------------------------------------------------------------------------------


async def with_store(keys: KeyRing | None = None) -> Any:
    store = await detent.open_async("memory:")
    owner = store._store._connection.current
    assert isinstance(owner, LocalOwner)
    metrics = Metrics()
    owner.engine.observer = metrics
    operators = Operators(store, metrics)
    return store, operators, Application([operators], keys=keys, public=PUBLIC, counting=metrics)


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_health_and_readiness_need_no_key_and_metrics_do() -> None:
    async def main() -> None:
        store, operators, app = await with_store(KeyRing([KEY]))
        assert (await ask(app, "GET", "/healthz")).json == {"status": "alive"}
        assert (await ask(app, "GET", "/readyz")).json == {"status": "ready"}
        assert (await ask(app, "GET", "/metrics")).status == 401
        assert (await ask(app, "GET", "/metrics", headers=TOKEN)).status == 403
        assert (await ask(app, "POST", "/healthz")).status == 405
        operators.draining = True
        assert (await ask(app, "GET", "/readyz")).status == 503
        assert (await ask(app, "GET", "/healthz")).status == 200
        await store.close()

    asyncio.run(main())


def test_a_server_whose_store_does_not_answer_is_not_ready() -> None:
    async def main() -> None:
        store, _, app = await with_store()
        await store.close()
        answer = await ask(app, "GET", "/readyz")
        assert (answer.status, answer.json["error"]) == (503, "Unavailable")

    asyncio.run(main())


def test_the_metrics_count_what_happened() -> None:
    async def main() -> None:
        store, _, app = await with_store()
        queue = store.queue("q")
        await queue.create(backoff="0s")
        await queue.publish_many([b"1", b"2", b"3"])
        await queue.publish(b"4", dedup_key="k")
        assert (await queue.publish(b"4", dedup_key="k")).duplicate_of is not None
        first, *_ = await queue.claim(2)
        await first.fail("again")
        again = await queue.claim(1)
        assert again[0].attempts == 2
        await again[0].ack()
        with pytest.raises(detent.StaleReceipt):
            await again[0].ack()
        found = samples((await ask(app, "GET", "/metrics")).body)
        assert found["detent_queue_messages", "q", "available"] == 2
        assert found["detent_queue_messages", "q", "in_flight"] == 1
        assert found["detent_queue_messages", "q", "done"] == 1
        assert found["detent_queue_events_total", "acked", "q"] == 1
        assert found["detent_queue_oldest_age_seconds", "q"] >= 0
        assert found[("detent_published_messages_total",)] == 4
        assert found[("detent_dedup_hits_total",)] == 1
        assert found[("detent_claimed_messages_total",)] == 3
        assert found[("detent_redeliveries_total",)] == 1
        assert found[("detent_stale_receipts_refused_total",)] == 1
        assert found["detent_refused_transactions_total", "StaleReceipt"] == 1
        assert found[("detent_commit_seconds_count",)] >= 6
        assert found[("detent_sync_seconds_count",)] == found[("detent_group_transactions_count",)]
        again_found = samples((await ask(app, "GET", "/metrics")).body)
        assert again_found["detent_http_requests_total", "GET", "operators", "200"] == 1
        await store.close()

    asyncio.run(main())


def test_counting_that_fails_does_not_disturb_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def group(self, *_: Any) -> None:
            raise RuntimeError("cannot count")

    with detent.open("memory:") as store:
        owner: Any = store._connection.current
        owner.engine.observer = Broken()
        assert store.journal("j").append(b"x").offset == 0
    assert "counting a group failed" in caplog.text


def test_errors_have_their_statuses() -> None:
    statuses = {Invalid: 400, Denied: 403, detent.NotFound: 404, detent.Exists: 409, detent.Conflict: 409,
                detent.StaleReceipt: 410, detent.LimitExceeded: 413, Busy: 429, Unavailable: 503}  # fmt: skip
    for kind, status in statuses.items():
        assert refusal(kind("why")).status == status


# -- tracing ------------------------------------------------------------------------------------------------------


def test_a_request_goes_on_with_its_trace_and_says_what_it_did() -> None:
    from opentelemetry import propagate, trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    class Publishing(Echo):
        async def answer(self, request: Request, caller: Caller) -> Response:
            request.operation, request.destination = "publish", "orders"
            return await super().answer(request, caller)

    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(provider.get_tracer("test"), propagate.extract, trace.SpanKind.SERVER)
    app = Application([Publishing()], tracing=tracing)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert run(app, "POST", "/echo", headers=[("traceparent", parent)]).status == 200
    assert run(app, "GET", "/echo/none/../busy", headers=[("traceparent", "nonsense")]).status == 200
    first, second = exported.get_finished_spans()
    assert f"{first.context.trace_id:032x}" == parent.split("-")[1]
    assert first.name == "publish orders"
    assert first.attributes is not None
    assert dict(first.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "messaging.system": "detent",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
    }
    assert second.parent is None


def test_tracing_is_there_when_somebody_has_said_where_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    assert find_tracing() is None
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert find_tracing() is not None
