"""Whatever comes over the wire: the server answers with what is wrong with it, and changes nothing then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from detent.server.api import ROUTES, Api
from detent.server.route import ARROW
from httpserver import HttpServer, serve

FUZZ = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

METHODS = st.sampled_from(["GET", "PUT", "PATCH", "POST", "DELETE", "HEAD", "OPTIONS", "BREW"])
PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)
TYPES = st.sampled_from(["application/json", ARROW, "text/plain", "application/json; charset=latin-1", ""])

NEARLY = st.sampled_from(
    ["9" * 400 + "s", "0.5ms", "1-1-1", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00", "q", ""]
)
"""Text that is nearly something."""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | NEARLY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)

GOOD: dict[tuple[str, str], Any] = {
    ("PUT", "/v1/queues/q"): {"lease": "30s", "filter": "true", "earliest": True, "done_retention": None},
    ("PATCH", "/v1/queues/q"): {"max_attempts": 3, "backoff": 1.5, "priority_header": "p", "description": "d"},
    ("POST", "/v1/queues/q/messages"): {
        "body": {"json": {}}, "headers": {"a": "b"}, "delay": "1h", "retention": "1h", "dedup_key": "k",
        "created": "2026-01-01T00:00:00Z",
    },
    ("POST", "/v1/queues/q/claim"): {"count": 1, "wait": "0s", "lease": "1h", "consumer": "me"},
    ("POST", "/v1/queues/q/ack"): {"receipts": ["1-0-1"]},
    ("POST", "/v1/queues/q/fail"): {"receipt": "1-0-1", "reason": "r", "delay": 1, "final": False},
    ("POST", "/v1/queues/q/extend"): {"receipt": "1-0-1", "lease": "1h"},
    ("POST", "/v1/queues/q/redrive"): {"messages": [0], "filter": None, "all": False, "to": None},
    ("POST", "/v1/queues/q/purge"): {"available": False, "failed": False, "messages": [0]},
    ("POST", "/v1/messages"): {"uri": "s3://a/b", "visible_at": "2026-01-01T00:00:00Z"},
    ("PUT", "/v1/journals/j"): {"retention": "1d", "retention_bytes": 5},
    ("PATCH", "/v1/journals/j"): {"transaction_deadline": "1h", "producer_horizon": "1d"},
    ("POST", "/v1/journals/j/messages"): {"body": {"base64": "AA=="}, "key": "k", "headers": {"a": "b"}},
    ("PATCH", "/v1/journals/j/registers"): {"set": {"a": "b"}, "expect": {"a": None}},
    ("POST", "/v1/journals/j/trim"): {"before": 0},
    ("PUT", "/v1/schedules/s"): {"every": "1h", "queue": "q", "headers": {"a": "b"}, "paused": True},
    ("PATCH", "/v1/schedules/s"): {"missed": "all", "missed_max": 3, "delay": "1m", "paused": True},
    ("PATCH", "/v1/consumers/c"): {"paused": True},
    ("POST", "/v1/consumers/c/reset"): {"offsets": {"j": 0}},
    ("POST", "/v1/transaction"): {
        "operations": [
            {"op": "publish", "queue": "q", "body": "a"},
            {"op": "append", "journal": "j", "body": "a"},
            {"op": "check_next_offset", "journal": "j", "offset": 1},
            {"op": "set_registers", "journal": "j", "set": {"a": "b"}},
        ]
    },
}  # fmt: skip
"""A good request of each route that takes a body."""


STABLE = ("name", "number", "filter", "lease", "max_attempts", "paused", "description", "total_routed", "total_acked")
"""Of a queue, what time does not change."""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    """Nobody waits here: a request that wants to is refused."""
    with serve("memory:", lambda store: [Api(store, wait_max="0s")]) as running:
        yield running


def state(server: HttpServer) -> Any:
    """What only requests change, and not time."""

    async def look() -> Any:
        queues = [[getattr(info, name) for name in STABLE] for info in await server.store.queues()]
        journals = [await server.store.journal(name).info() for name in await server.store.journals()]
        extents = [
            (info.name, info.id, info.next_offset, info.next_position, info.retention_ms, info.registers)
            for info in journals
        ]
        return queues, extents, server.owner.queues.log_end

    return server.run(look())


def ask(server: HttpServer, method: str, raw_path: bytes, body: bytes, kind: str) -> httpx.Response:
    """A request as it stands; it is answered, and what is refused has changed nothing."""
    before = state(server)
    url = httpx.URL(server.url).copy_with(raw_path=raw_path)
    answer = server.client.request(method, url, content=body, headers={"content-type": kind} if kind else {})
    assert 200 <= answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert state(server) == before
        assert method == "HEAD" or set(answer.json()) == {"error", "message"}
    return answer


def fill(server: HttpServer) -> None:
    """There is something that a request could change."""
    server.client.put("/v1/queues/q", json={})
    server.client.put("/v1/journals/j", json={})


def test_every_route_with_a_body_has_a_good_example() -> None:
    listed = {(route.method, route.path) for route in ROUTES if route.body is not None}
    templates = (
        ("queues/q", "queues/{queue}"),
        ("journals/j", "journals/{journal}"),
        ("schedules/s", "schedules/{schedule}"),
        ("consumers/c", "consumers/{consumer}"),
    )
    named = set()
    for method, path in GOOD:
        for name, template in templates:
            path = path.replace(name, template)
        named.add((method, path))
    assert named == listed


@FUZZ
@given(method=METHODS, path=PRINTABLE, below=st.sampled_from(["/", "/v1/", "/v1/queues/", "/v1/journals/q/"]))
@example("GET", "", "/")
@example("GET", "//../%2e%2e/%00", "/v1/queues/")
@example("PUT", "%ff", "/v1/queues/")
def test_arbitrary_paths_are_answered(server: HttpServer, method: str, path: str, below: str) -> None:
    ask(server, method, (below + path.replace("#", "")).encode(), b"{}", "application/json")


@FUZZ
@given(route=st.sampled_from(sorted(GOOD)), body=st.binary(max_size=200), kind=TYPES)
def test_arbitrary_bytes_are_answered(server: HttpServer, route: tuple[str, str], body: bytes, kind: str) -> None:
    fill(server)
    ask(server, route[0], route[1].encode(), body, kind)


@FUZZ
@given(route=st.sampled_from(sorted(GOOD)), value=JSON_VALUES)
def test_arbitrary_json_is_answered(server: HttpServer, route: tuple[str, str], value: Any) -> None:
    fill(server)
    ask(server, route[0], route[1].encode(), json.dumps(value).encode(), "application/json")


@FUZZ
@given(data=st.data())
def test_good_requests_with_something_else_in_them_are_answered(server: HttpServer, data: st.DataObject) -> None:
    fill(server)
    method, path = data.draw(st.sampled_from(sorted(GOOD)))
    value = json.loads(json.dumps(GOOD[method, path]))
    inside = data.draw(st.sampled_from([value, *value.get("operations", [])]))
    name = data.draw(st.sampled_from([*inside, "nothing"]))
    inside[name] = data.draw(JSON_VALUES)
    ask(server, method, path.encode(), json.dumps(value).encode(), "application/json")


@FUZZ
@given(
    path=st.sampled_from(["/v1/queues", "/v1/journals", "/v1/queues/q/failed", "/v1/journals/j/messages"]),
    name=st.sampled_from(["prefix", "after", "limit", "from", "to", "wait", "isolation", "x"]),
    value=PRINTABLE | st.integers().map(str),
)
def test_arbitrary_queries_are_answered(server: HttpServer, path: str, name: str, value: str) -> None:
    fill(server)
    query = value.replace("#", "")
    answer = ask(server, "GET", f"{path}?{name}={query}".encode(), b"", "")
    assert answer.status_code in {200, 400, 404, 413}
