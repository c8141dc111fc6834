"""The HTTP API over a real server: every route as it should be used, as it should not, and by whom it may not."""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import detent
from detent.errors import Busy, Denied, NotFound
from detent.journal import AsyncJournal
from detent.queue import AsyncQueue, QueueInfo
from detent.queue.operations import BODY_BYTES_MAX
from detent.remote.wire import PROBLEM_TYPE
from detent.server import api_journals, api_queues
from detent.server.access import UNCHECKED, Caller, Grant
from detent.server.api import ROUTES, Api
from detent.server.api_queues import check_settings
from detent.server.app import Part
from detent.server.http import JSON_BYTES_MAX, HttpRequest, Response
from detent.server.jsonbody import STRINGS_MAX, VALUES_MAX
from detent.server.keys import Unauthenticated
from detent.server.limits import (
    ANSWER_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    CLAIM_MESSAGES_MAX,
    CLAIM_STEP,
    LARGE_BYTES,
)
from detent.server.metrics import Metrics
from detent.server.models import JournalSettings, NewQueue, QueueSettings
from detent.server.models_queues import QueueDescription
from detent.server.route import ARROW
from detent.settings.journal import JournalSettings as JournalSettingNames
from detent.settings.queue import QueueSettings as QueueSettingNames
from httpserver import HOST, HttpServer, Posing, serve
from processes import eventually

WAIT = "30s"
"""How long a request waits for what must come."""


@pytest.fixture(params=["memory", "file"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpServer]:
    url = "memory:" if request.param == "memory" else f"file:{tmp_path / 'store'}"
    with serve(url, lambda store: [Api(store)]) as running:
        yield running


@pytest.fixture
def memory() -> Iterator[HttpServer]:
    """A server where it does not matter what is below it."""
    with serve("memory:", lambda store: [Api(store)]) as running:
        yield running


@pytest.fixture
def posing() -> Iterator[HttpServer]:
    """A server whose caller a test can change."""
    with serve("memory:", lambda store: [Posing(Api(store), UNCHECKED)]) as running:
        yield running


def good(answer: httpx.Response, status: int = 200) -> Any:
    """The JSON of an answer that went well."""
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def refused(answer: httpx.Response, status: int, error: str, *words: str) -> None:
    """The answer says what is wrong, by name and in words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM_TYPE
    body = answer.json()
    assert set(body) == {"error", "message"}
    assert body["error"] == error
    for word in words:
        assert word in body["message"]


def claim(server: HttpServer, queue: str = "q", **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = good(server.client.post(f"/v1/queues/{queue}/claim", json=wanted))["messages"]
    return found


def snapshot(server: HttpServer) -> Any:
    """All that a request could have changed."""
    queues = good(server.client.get("/v1/queues"))
    journals = good(server.client.get("/v1/journals"))
    return queues, journals, server.run(server.store.unmatched())


# -- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_once_and_its_settings_are_compared_after_that(server: HttpServer) -> None:
    client = server.client
    made = good(client.put("/v1/queues/q", json={"lease": "5m", "max_attempts": 3, "done_retention": None}), 201)
    assert (made["lease"], made["max_attempts"], made["done_retention"]) == ("5m", 3, None)
    assert good(client.put("/v1/queues/q", json={"lease": 300}))["number"] == made["number"]
    good(client.put("/v1/queues/q", json={}))
    refused(client.put("/v1/queues/q", json={"lease": "1m"}), 409, "Conflict", "lease")
    assert good(client.get("/v1/queues/q")) == made


def test_a_queue_is_configured_listed_and_deleted(server: HttpServer) -> None:
    client = server.client
    for name in ("a", "b%2Fx", "b%2Fy"):
        good(client.put(f"/v1/queues/{name}", json={}), 201)
    changed = good(client.patch("/v1/queues/b%2Fx", json={"paused": True, "backoff": 0.5, "filter": "true"}))
    assert (changed["name"], changed["paused"], changed["backoff"]) == ("b/x", True, "500ms")
    names = [queue["name"] for queue in good(client.get("/v1/queues", params={"prefix": "b/"}))["queues"]]
    assert names == ["b/x", "b/y"]
    first = good(client.get("/v1/queues", params={"limit": 2}))
    assert (first["next"], len(first["queues"])) == ("b/x", 2)
    rest = good(client.get("/v1/queues", params={"limit": 2, "after": first["next"]}))
    assert ([queue["name"] for queue in rest["queues"]], rest["next"]) == (["b/y"], None)
    good(client.delete("/v1/queues/b%2Fx"), 204)
    refused(client.get("/v1/queues/b%2Fx"), 404, "NotFound")
    refused(client.delete("/v1/queues/b%2Fx"), 404, "NotFound")
    refused(client.patch("/v1/queues/b%2Fx", json={"paused": True}), 404, "NotFound")
    refused(client.patch("/v1/queues/a", json={}), 400, "Invalid", "nothing to change")
    refused(client.patch("/v1/queues/a", json={"filter": "headers."}), 400, "Invalid")
    for lease in (45, "45", "45s", 45.0):
        assert good(client.patch("/v1/queues/a", json={"lease": lease}))["lease"] == "45s"
    refused(client.patch("/v1/queues/a", json={"lease": "soon"}), 400, "Invalid", "no duration")
    refused(client.patch("/v1/queues/a", json={"lease": 1e300}), 400, "Invalid")


def test_names_are_decoded_once_and_lead_nowhere_else(memory: HttpServer) -> None:
    client = memory.client
    good(client.put("/v1/queues/messages%2Fclaim", json={}), 201)
    assert good(client.get("/v1/queues/messages%2Fclaim"))["name"] == "messages/claim"
    for path in ("..%2Fq", "%2e%2e", "a%252Fb", "a%2F", "%2Fa", "%00", "%ff", "a%20b", "%zz", "a" * 201, "{}", ""):
        url = httpx.URL(memory.url).copy_with(raw_path=b"/v1/queues/" + path.encode())
        refused(client.put(url, json={}), 400, "Invalid")
    for path in (
        "/v1/queues/a/b",
        "/v1/queues/a/claim/",
        "/v1/queues/a/nothing",
        "/v1/transaction/x",
        "/v1/queues/a//",
    ):
        refused(client.get(httpx.URL(memory.url).copy_with(raw_path=path.encode())), 404, "NotFound")
    assert [queue["name"] for queue in good(client.get("/v1/queues"))["queues"]] == ["messages/claim"]


def test_other_paths_and_methods_are_refused(memory: HttpServer) -> None:
    client = memory.client
    for path in ("/", "/v1", "/v1/nothing", "/V1/queues", "//v1/queues", "/openapi.yaml"):
        assert client.get(httpx.URL(memory.url).copy_with(raw_path=path.encode())).status_code == 404
    answer = client.post("/v1/queues/q")
    refused(answer, 405, "NotAllowed")
    assert answer.headers["allow"] == "DELETE, GET, PATCH, PUT"
    assert client.request("BREW", "/v1/queues").headers["allow"] == "GET"
    refused(client.get("/v1/queues/q?a=1"), 400, "Invalid", "no query")
    refused(client.get("/v1/queues?limit=x"), 400, "Invalid", "$.limit")
    refused(client.get("/v1/queues?limit=1001"), 413, "LimitExceeded")
    refused(client.get("/v1/queues?nothing=1"), 400, "Invalid", "nothing")
    refused(client.get("/v1/queues?prefix=a&prefix=b"), 400, "Invalid", "twice")
    refused(client.get("/v1/journals", params={"prefix": "x" * 201}), 400, "Invalid")


# -- messages of queues ---------------------------------------------------------------------------------------------


def test_messages_are_published_as_text_base64_json_or_uri_and_come_out_the_same(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    wrong = {"body": "x", "headers": {"priority": "high"}}
    refused(client.post("/v1/queues/q/messages", json=wrong), 400, "Invalid", "the header 'priority' is a priority")
    one = good(client.post("/v1/queues/q/messages", json={"body": "täxt", "headers": {"priority": "7"}}))
    assert one == {"messages": [{"id": 0, "duplicate_of": None}]}
    many = b'[{"body": {"base64": "AP8="}}, {"body": {"json": {"n": 12345678901234567890123 }}}, {"uri": "s3://b/k"}]'
    answer = client.post("/v1/queues/q/messages", content=many, headers={"content-type": "application/json"})
    assert [message["id"] for message in good(answer)["messages"]] == [1, 2, 3]
    found = claim(server, count=10, consumer="me", lease="1m")
    assert [message.get("body") for message in found] == [
        "täxt", {"base64": "AP8="}, '{"n": 12345678901234567890123 }', None,
    ]  # fmt: skip
    assert [message.get("uri") for message in found] == [None, None, None, "s3://b/k"]
    assert (found[0]["priority"], found[0]["attempts"], found[0]["retention"]) == (7, 1, "4d")
    assert found[0]["headers"] == {"priority": "7", "queue": "q"}
    tokens = [message["fencing_token"] for message in found]
    assert tokens == sorted(set(tokens))
    assert found[0]["lease_until"].endswith("Z")


def test_a_message_has_its_times_its_retention_and_its_key(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    message = {"body": "p", "created": "2026-01-31T12:00:00Z", "delay": "1h", "retention": "7d", "dedup_key": "k"}
    good(client.post("/v1/queues/q/messages", json=message))
    shown = good(client.get("/v1/messages/0"))
    assert (shown["created"], shown["retention"], shown["body"]) == ("2026-01-31T12:00:00.000Z", "7d", "p")
    assert [(place["queue"], place["state"]) for place in shown["queues"]] == [("q", "delayed")]
    again = good(client.post("/v1/queues/q/messages", json=message))
    assert again == {"messages": [{"id": 0, "duplicate_of": 0}]}
    late = {"body": "p", "visible_at": "2100-01-01T00:00:00+02:00"}
    good(client.post("/v1/queues/q/messages", json=late))
    assert good(client.get("/v1/messages/1"))["visible"] == "2099-12-31T22:00:00.000Z"
    assert claim(server) == []
    refused(client.get("/v1/messages/99"), 404, "NotFound")
    refused(client.get("/v1/messages/x"), 400, "Invalid")


def test_an_idempotency_key_is_the_dedup_key_of_one_message(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    key = {"idempotency-key": "payment-7"}
    url = "/v1/queues/q/messages"
    assert good(client.post(url, json={"body": "a"}, headers=key))["messages"][0]["duplicate_of"] is None
    assert good(client.post(url, json=[{"body": "a"}], headers=key))["messages"][0]["duplicate_of"] == 0
    assert good(client.post(url, json={"body": "a", "dedup_key": "payment-7"}))["messages"][0]["duplicate_of"] == 0
    own = good(client.post(url, json={"body": "a", "dedup_key": "payment-8"}, headers=key))
    assert own["messages"][0]["duplicate_of"] is None
    refused(client.post(url, json=[{"body": "a"}] * 2, headers=key), 400, "Invalid", "one message")
    refused(client.post(url, json={"body": "a"}, headers={"idempotency-key": ""}), 400, "Invalid")
    refused(client.post(url, json={"body": "a"}, headers={"idempotency-key": "x" * 256}), 413, "LimitExceeded")
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    refused(client.post(url, json={"body": "a"}, headers=twice), 400, "Invalid", "twice")
    refused(client.post("/v1/journals/j/messages", json={"body": "a"}, headers=key), 400, "Invalid")
    operation = {"op": "append", "journal": "j", "body": "a"}
    refused(client.post("/v1/transaction", json={"operations": [operation]}, headers=key), 400, "Invalid")
    assert good(client.get("/v1/queues/q"))["available"] == 2
    assert good(client.get("/v1/journals"))["journals"] == []


def test_a_message_can_go_to_whichever_queues_match(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/gold", json={"filter": 'headers.tier == "gold"'}), 201)
    good(client.put("/v1/queues/all", json={"filter": "true"}), 201)
    done = client.post("/v1/messages", json=[{"body": "a", "headers": {"tier": "gold"}}, {"body": "b"}])
    assert [one["id"] for one in good(done)["messages"]] == [0, 1]
    assert [message["body"] for message in claim(server, "gold", count=5)] == ["a"]
    assert [message["body"] for message in claim(server, "all", count=5)] == ["a", "b"]
    refused(client.post("/v1/queues/gold/messages", json={"body": "c"}), 400, "Invalid", "filter")


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"body": "a", "uri": "s3://b/k"},
        {"body": None},
        {"body": 5},
        {"body": {"base64": "?"}},
        {"body": {"base64": "AA", "json": 1}},
        {"body": {}},
        {"uri": "no uri"},
        {"body": "a", "priority": 5},
        {"body": "a", "headers": {"a": 1}},
        {"body": "a", "headers": {"queue": "other"}},
        {"body": "a", "delay": -1},
        {"body": "a", "delay": "1 fortnight"},
        {"body": "a", "delay": "1s", "visible_at": "2100-01-01T00:00:00Z"},
        {"body": "a", "visible_at": "2100-01-01T00:00:00"},
        {"body": "a", "created": "1960-01-01T00:00:00Z"},
        {"body": "a", "dedup_key": ""},
        [],
        [{"body": "a"}, {"body": 1}],
        "a",
        True,
    ],
)
def test_a_message_that_is_none_is_refused_and_nothing_is_published(memory: HttpServer, message: Any) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    before = snapshot(memory)
    refused(memory.client.post("/v1/queues/q/messages", json=message), 400, "Invalid")
    assert snapshot(memory) == before


def test_what_is_over_a_limit_is_refused_with_413(memory: HttpServer) -> None:
    client = memory.client
    good(client.put("/v1/queues/q", json={}), 201)
    before = snapshot(memory)
    url = "/v1/queues/q/messages"
    many = [{"body": "a"}] * (BATCH_MESSAGES_MAX + 1)
    refused(client.post(url, json=many), 413, "LimitExceeded", str(BATCH_MESSAGES_MAX))
    refused(client.post("/v1/journals/j/messages", json=[{"body": "a"}] * len(many)), 413, "LimitExceeded")
    refused(client.post(url, json={"body": "a" * JSON_BYTES_MAX}), 413, "LimitExceeded", str(JSON_BYTES_MAX))
    values = b'{"body": {"json": [' + b"0," * VALUES_MAX + b"0]}}"
    refused(client.post(url, content=values, headers={"content-type": "application/json"}), 413, "LimitExceeded")
    strings = b'{"body": {"json": [' + b'""' * STRINGS_MAX + b'""]}}'
    refused(client.post(url, content=strings, headers={"content-type": "application/json"}), 413, "LimitExceeded")
    refused(client.post(url, json={"body": "a", "headers": {"a": "b" * 9000}}), 413, "LimitExceeded")
    refused(client.post("/v1/queues/q/claim", json={"count": CLAIM_MESSAGES_MAX + 1}), 413, "LimitExceeded")
    refused(client.post("/v1/queues/q/claim", json={"wait": "61s"}), 413, "LimitExceeded", "60000 ms")
    refused(client.post("/v1/queues/q/ack", json={"receipts": ["1-1-1"] * 10_001}), 413, "LimitExceeded")
    refused(client.get("/v1/queues/q/failed?limit=1001"), 413, "LimitExceeded")
    refused(client.get("/v1/journals/j/messages?limit=10001"), 413, "LimitExceeded")
    checks = [{"op": "check_next_offset", "journal": "j", "offset": 0}] * 1001
    refused(client.post("/v1/transaction", json={"operations": checks}), 413, "LimitExceeded")
    assert snapshot(memory) == before


def test_claimed_messages_are_acknowledged_failed_and_extended(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={"backoff": "0s"}), 201)
    good(client.post("/v1/queues/q/messages", json=[{"body": str(n)} for n in range(3)]))
    one, two, three = (message["receipt"] for message in claim(server, count=3))
    assert good(client.post("/v1/queues/q/ack", json={"receipts": [one, one]})) == {"acknowledged": [one]}
    refused(client.post("/v1/queues/q/ack", json={"receipts": [two, one]}), 410, "StaleReceipt")
    extended = good(client.post("/v1/queues/q/extend", json={"receipt": two, "lease": "2h"}))
    assert extended["receipt"] == two
    assert good(client.get("/v1/messages/1"))["queues"][0]["at"] == extended["lease_until"]
    failed = client.post("/v1/queues/q/fail", json={"receipt": two, "reason": "no answer", "delay": 0})
    assert good(failed) == {"failed": [two]}
    (again,) = claim(server, wait=WAIT)
    assert (again["id"], again["attempts"]) == (1, 2)
    refused(client.post("/v1/queues/q/extend", json={"receipt": two}), 410, "StaleReceipt")
    good(client.post("/v1/queues/q/fail", json={"receipt": three, "final": True}))
    refused(
        client.post("/v1/queues/q/fail", json={"receipt": again["receipt"], "final": True, "delay": 1}), 400, "Invalid"
    )
    for receipts in ([], ["x"], ["1-2"], ["1-1-1-1"], [f"{'9' * 20}-1-1"]):
        refused(client.post("/v1/queues/q/ack", json={"receipts": receipts}), 400, "Invalid")
    refused(client.post("/v1/queues/q/ack", json={"receipts": ["9-9-9"]}), 410, "StaleReceipt")
    info = good(client.get("/v1/queues/q"))
    assert (info["done"], info["in_flight"], info["failed"]) == (1, 1, 1)


def test_a_receipt_is_good_in_its_own_queue_only(memory: HttpServer) -> None:
    client = memory.client
    for name in ("a", "b"):
        good(client.put(f"/v1/queues/{name}", json={}), 201)
        good(client.post(f"/v1/queues/{name}/messages", json={"body": name}))
    (held,) = claim(memory, "a")
    for action, body in (
        ("ack", {"receipts": [held["receipt"]]}),
        ("fail", {"receipt": held["receipt"]}),
        ("extend", {"receipt": held["receipt"]}),
    ):
        refused(client.post(f"/v1/queues/b/{action}", json=body), 410, "StaleReceipt", "'b'")
        refused(client.post(f"/v1/queues/none/{action}", json=body), 410, "StaleReceipt", "'none'")
    good(client.post("/v1/queues/a/ack", json={"receipts": [held["receipt"]]}))


def test_failed_messages_are_paged_driven_again_and_purged(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={"max_attempts": 1}), 201)
    good(client.put("/v1/queues/other", json={}), 201)
    good(client.post("/v1/queues/q/messages", json=[{"body": str(n), "headers": {"n": str(n)}} for n in range(5)]))
    for message in claim(server, count=5, consumer="me"):
        good(client.post("/v1/queues/q/fail", json={"receipt": message["receipt"], "reason": "broken"}))
    page = good(client.get("/v1/queues/q/failed?limit=2"))
    assert ([one["id"] for one in page["messages"]], page["next"]) == ([0, 1], 1)
    assert (page["messages"][0]["reason"], page["messages"][0]["body"]) == ("broken", "0")
    assert page["messages"][0]["history"][0]["consumer"] == "me"
    rest = good(client.get("/v1/queues/q/failed", params={"after": page["next"]}))
    assert ([one["id"] for one in rest["messages"]], rest["next"]) == ([2, 3, 4], None)
    url = "/v1/queues/q/redrive"
    assert good(client.post(url, json={"messages": [0]})) == {"queue": "q", "to": "q", "messages": 1}
    assert good(client.post(url, json={"filter": 'headers.n == "1"', "to": "other"}))["messages"] == 1
    assert [message["body"] for message in claim(server, "other", count=5)] == ["1"]
    for wrong in ({}, {"all": True, "messages": [2]}, {"filter": "("}, {"messages": [-1]}, {"all": True, "to": "a b"}):
        refused(client.post(url, json=wrong), 400, "Invalid")
    refused(client.post(url, json={"messages": [99]}), 404, "NotFound")
    refused(client.post(url, json={"all": True, "to": "none"}), 404, "NotFound")
    refused(client.post("/v1/queues/none/redrive", json={"messages": []}), 404, "NotFound")
    assert good(client.post("/v1/queues/q/purge", json={"messages": [2]})) == {"queue": "q", "messages": 1}
    assert good(client.post("/v1/queues/q/purge", json={"failed": True}))["messages"] == 2
    assert good(client.post("/v1/queues/q/purge", json={"available": True, "failed": True}))["messages"] == 1
    for wrong in ({}, {"failed": True, "messages": [1]}):
        refused(client.post("/v1/queues/q/purge", json=wrong), 400, "Invalid")
    refused(client.post("/v1/queues/q/purge", json={"messages": [99]}), 404, "NotFound")
    refused(client.post("/v1/queues/none/purge", json={"available": True}), 404, "NotFound")
    refused(client.get("/v1/queues/none/failed"), 404, "NotFound")


def test_messages_of_a_queue_are_shown_without_a_claim(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    texts = ["é" * 10, "x", "y"]
    sent = [{"body": text, "headers": {"n": str(n), "priority": str(n)}} for n, text in enumerate(texts)]
    good(client.post("/v1/queues/q/messages", json=sent))
    (held,) = claim(server)
    url = "/v1/queues/q/messages"
    before = snapshot(server)
    page = good(client.get(url, params={"limit": 2, "body_bytes": 5}))
    rest = good(client.get(url, params={"cursor": page["cursor"]}))
    assert [one["id"] for one in (*page["messages"], *rest["messages"])] == [0, 1, 2]
    assert (rest["cursor"], page["messages"][0]["state"]) == (None, "in flight")
    assert (page["messages"][0]["body"], page["messages"][0]["size"]) == ("éé", 20)
    for options, expected in (
        ({"state": "available,failed"}, [1, 2]), ({"priority": 2}, [2]), ({"filter": 'headers.n == "1"'}, [1]),
        ({"older_than": "3600"}, []), ({"newer_than": "1h"}, [0, 1, 2]), ({"state": "in flight"}, [0]),
    ):  # fmt: skip
        assert [one["id"] for one in good(client.get(url, params=options))["messages"]] == expected, options
    for wrong in (
        {"state": "lost"},
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"filter": "("},
        {"priority": 256},
    ):
        refused(client.get(url, params=wrong), 400, "Invalid")
    refused(client.get("/v1/queues/none/messages"), 404, "NotFound")
    assert snapshot(server) == before
    good(client.post("/v1/queues/q/ack", json={"receipts": [held["receipt"]]}))


def test_dead_letter_tells_where_it_came_from(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/dead", json={"max_attempts": 1}), 201)
    good(client.put("/v1/queues/q", json={"max_attempts": 1, "dead_letter": "dead"}), 201)
    good(client.post("/v1/queues/q/messages", json={"body": "x"}))
    (message,) = claim(server, consumer="me")
    assert (message["total_attempts"], message["dead_letters"]) == (1, [])
    good(client.post("/v1/queues/q/fail", json={"receipt": message["receipt"], "reason": "boom"}))
    (found,) = claim(server, "dead")
    (move,) = found["dead_letters"]
    assert (found["attempts"], found["total_attempts"]) == (1, 2)
    assert (move["queue"], move["reason"], move["attempts"]) == ("q", "boom", 1)
    assert [(one["consumer"], one["outcome"]) for one in move["history"]] == [("me", "failed")]
    good(client.post("/v1/queues/dead/fail", json={"receipt": found["receipt"], "reason": "again"}))
    assert good(client.get("/v1/queues/dead/failed"))["messages"][0]["dead_letters"] == [move]
    assert good(client.get("/v1/messages/0"))["queues"][0]["dead_letters"] == [move]
    assert good(client.get("/v1/queues/q"))["total_dead_lettered"] == 1


def test_a_page_of_failed_messages_ends_early_when_they_are_large(memory: HttpServer) -> None:
    client = memory.client
    good(client.put("/v1/queues/q", json={}), 201)
    for _ in range(20):
        good(client.post("/v1/queues/q/messages", json={"body": "x" * (1 << 20)}))
    for message in [*claim(memory, count=10), *claim(memory, count=10)]:
        good(client.post("/v1/queues/q/fail", json={"receipt": message["receipt"], "final": True}))
    page = good(client.get("/v1/queues/q/failed"))
    rest = good(client.get("/v1/queues/q/failed", params={"after": page["next"]}))
    assert 0 < len(page["messages"]) < 20
    assert [one["id"] for one in page["messages"] + rest["messages"]] == list(range(20))


# -- large messages -------------------------------------------------------------------------------------------------


def publish_to(server: HttpServer, bodies: Iterable[bytes]) -> None:
    """Publish each by itself, past the API: what is over its JSON limit too."""
    queue = server.store.queue("q")
    for body in bodies:
        server.run(queue.publish(body))


def test_a_claim_counts_why_its_dead_letters_were_given_up(memory: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    good(memory.client.put("/v1/queues/first", json={"dead_letter": "q", "max_attempts": 1}), 201)
    good(memory.client.post("/v1/queues/first/messages", json=[{"body": "x"}] * 40))

    async def give_up() -> None:
        for message in await memory.store.queue("first").claim(40):
            await message.fail("r" * 1_000)

    memory.run(give_up())
    monkeypatch.setattr(api_queues, "ANSWER_BYTES_MAX", 10_000)
    assert len(claim(memory, count=40)) == CLAIM_STEP


def test_a_claim_gives_fewer_messages_when_they_are_large_and_holds_no_others(memory: HttpServer) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    bodies = [bytes([65 + number]) * (2 << 20) for number in range(29)] + [b"\xff" * (2 << 20)]
    publish_to(memory, bodies)
    given: list[dict[str, Any]] = []
    sizes = []
    while came := claim(memory, count=1000):
        given += came
        sizes.append(len(came))
        assert good(memory.client.get("/v1/queues/q"))["in_flight"] == len(given)
    assert sizes[0] == CLAIM_STEP  # nobody knew yet how large they are
    assert max(sizes[1:]) * (2 << 20) <= ANSWER_BYTES_MAX
    assert [message["id"] for message in given] == list(range(30))
    assert {message["attempts"] for message in given} == {1}
    assert [message["body"] for message in given[:-1]] == [body.decode() for body in bodies[:-1]]
    assert base64.b64decode(given[-1]["body"]["base64"]) == bodies[-1]
    good(memory.client.post("/v1/queues/q/ack", json={"receipts": [message["receipt"] for message in given]}))


def test_one_message_always_finds_room_in_a_claim(memory: HttpServer) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    publish_to(memory, [b"x" * BODY_BYTES_MAX] * 2 + [b"small"] * 20)
    assert [len(message["body"]) for message in claim(memory)] == [BODY_BYTES_MAX]
    assert [len(message["body"]) for message in claim(memory, count=1000)] == [BODY_BYTES_MAX]
    assert len(claim(memory, count=1000)) == 20


def test_a_claim_of_many_small_messages_gives_them_all(server: HttpServer) -> None:
    good(server.client.put("/v1/queues/q", json={}), 201)
    good(server.client.post("/v1/queues/q/messages", json=[{"body": str(number)} for number in range(100)]))
    assert [message["body"] for message in claim(server, count=70)] == [str(number) for number in range(70)]
    assert [message["body"] for message in claim(server, count=70)] == [str(number) for number in range(70, 100)]


def test_what_a_claim_has_got_is_given_out_when_its_next_step_fails(
    memory: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    good(memory.client.post("/v1/queues/q/messages", json=[{"body": "a"}] * 50))
    whole, calls = AsyncQueue.claim, []

    async def once(queue: AsyncQueue, count: int, **options: Any) -> Any:
        calls.append(count)
        if len(calls) > 1:
            raise Busy("too many transactions are waiting")
        return await whole(queue, count, **options)

    monkeypatch.setattr(AsyncQueue, "claim", once)
    assert len(claim(memory, count=50)) == CLAIM_STEP
    refused(memory.client.post("/v1/queues/q/claim", json={"count": 50}), 429, "Busy")


def test_large_answers_are_put_together_in_threads(memory: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = memory.client
    good(client.put("/v1/queues/q", json={}), 201)
    publish_to(memory, [b"x" * LARGE_BYTES])
    good(client.post("/v1/journals/j/messages", json={"body": "x" * LARGE_BYTES}))
    threads: dict[str, set[int]] = {}

    def note_threads(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def noting(*arguments: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return whole(*arguments)

        monkeypatch.setattr(module, name, noting)

    for name in ("claimed_message", "failure", "describe_message"):
        note_threads(api_queues, name)
    note_threads(api_journals, "journal_message")
    good(client.get("/v1/messages/0"))
    (message,) = claim(memory)
    good(client.post("/v1/queues/q/fail", json={"receipt": message["receipt"], "final": True}))
    good(client.get("/v1/queues/q/failed"))
    good(client.get("/v1/journals/j/messages"))

    async def loop_thread() -> int:
        return threading.get_ident()

    assert len(threads) == 4
    assert memory.run(loop_thread()) not in set().union(*threads.values())


# -- long polls -----------------------------------------------------------------------------------------------------


class Rechecked(HttpRequest):
    """A request whose caller can be asked for again."""

    __slots__ = ("recheck",)


class Revoking(Posing):
    """A part whose caller may be another one by the time it is asked for again, or nobody."""

    def __init__(self, part: Part, caller: Caller) -> None:
        super().__init__(part, caller)
        self.left: int | None = None
        """How often it is still known who asks."""

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        asked = Rechecked(request.scope, request.receive)
        asked.recheck = self._recheck
        return await super().answer(asked, caller)

    async def _recheck(self) -> Caller:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Unauthenticated("this token is not known here, was revoked, or has expired")
        return self.caller


@pytest.fixture
def revoking() -> Iterator[HttpServer]:
    with serve("memory:", lambda store: [Revoking(Api(store), UNCHECKED)]) as running:
        yield running


def test_a_claim_that_waits_gives_nothing_to_a_key_that_is_revoked(revoking: HttpServer) -> None:
    good(revoking.client.put("/v1/queues/q", json={}), 201)
    (part,) = revoking.parts
    assert isinstance(part, Revoking)
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(httpx.post(f"{revoking.url}/v1/queues/q/claim", json={"wait": WAIT}, timeout=60))

    for revoke, status in ((lambda: setattr(part, "left", 0), 401), (lambda: pose(revoking), 403)):
        pose(revoking, ("consume", "queue", "q"))
        part.left = None
        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: revoking.waiters() == 1)
        revoke()
        publish_to(revoking, [b"secret"])
        waiting.join()
        assert (answers[-1].status_code, "secret" in answers[-1].text) == (status, False)
        part.left = None
        pose(revoking, ("consume", "queue", "q"))
        assert [message["attempts"] for message in claim(revoking, count=5)] == [1]
    assert claim(revoking, wait="10ms") == []


def test_a_read_that_waits_gives_nothing_to_a_key_that_is_revoked(revoking: HttpServer) -> None:
    good(revoking.client.put("/v1/journals/j", json={}), 201)
    answers: list[httpx.Response] = []
    address = f"{revoking.url}/v1/journals/j/messages?wait={WAIT}"
    waiting = threading.Thread(target=lambda: answers.append(httpx.get(address, timeout=60)))
    waiting.start()
    eventually(lambda: revoking.waiters() == 1)
    pose(revoking)
    revoking.run(revoking.store.journal("j").append(b"secret"))
    waiting.join()
    refused(answers[0], 403, "Denied")


def test_a_stream_ends_without_its_end_when_its_key_is_revoked(revoking: HttpServer) -> None:
    for _ in range(3):
        good(post_arrow(revoking, ipc(pa.table({"body": [b"x" * (8 << 20)]}))))
    (part,) = revoking.parts
    assert isinstance(part, Revoking)
    assert revoking.client.get("/v1/journals/j/messages", headers={"accept": ARROW}).status_code == 200
    part.left = 1
    with pytest.raises(httpx.RemoteProtocolError):
        revoking.client.get("/v1/journals/j/messages", headers={"accept": ARROW})


def test_a_claim_waits_for_a_message(server: HttpServer) -> None:
    good(server.client.put("/v1/queues/q", json={}), 201)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(claim(server, wait=WAIT)))
    waiting.start()
    eventually(lambda: server.waiters() == 1)
    good(server.client.post("/v1/queues/q/messages", json={"body": "here"}))
    waiting.join()
    assert [message["body"] for message in found] == ["here"]
    eventually(lambda: server.waiters() == 0)
    assert claim(server, wait="10ms") == []


def test_a_read_waits_for_a_message(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/journals/j", json={}), 201)
    found: list[Any] = []
    address = f"/v1/journals/j/messages?from=0&to=2&wait={WAIT}"
    waiting = threading.Thread(target=lambda: found.append(good(client.get(address))))
    waiting.start()
    eventually(lambda: server.waiters() == 1)
    for body in ("a", "b"):
        good(client.post("/v1/journals/j/messages", json={"body": body}))
    waiting.join()
    assert [message["body"] for message in found[0]["messages"]] == ["a", "b"]
    assert good(client.get(f"/v1/journals/j/messages?wait={WAIT}"))["next"] == 2
    assert good(client.get(f"/v1/journals/j/messages?from=0&to=0&wait={WAIT}"))["next"] == 0
    assert good(client.get("/v1/journals/j/messages?from=2&wait=0.01")) == {"messages": [], "next": 2}
    refused(client.get("/v1/journals/j/messages?from=0&to=3&wait=10ms"), 404, "NotFound")
    refused(client.get(f"/v1/journals/none/messages?wait={WAIT}"), 404, "NotFound")
    refused(client.get("/v1/journals/j/messages?wait=1s&isolation=uncommitted"), 400, "Invalid")
    assert server.waiters() == 0


@pytest.mark.parametrize(
    "request_text",
    [
        "POST /v1/queues/q/claim HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n"
        '{"wait":"60s"}',
        "GET /v1/journals/j/messages?wait=60s HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_a_client_that_goes_while_it_waits_leaves_nothing_behind(server: HttpServer, request_text: str) -> None:
    good(server.client.put("/v1/queues/q", json={}), 201)
    good(server.client.put("/v1/journals/j", json={}), 201)
    tasks = server.tasks()
    for _ in range(3):
        with socket.create_connection((HOST, server.port)) as connection:
            connection.sendall(request_text.encode())
            eventually(lambda: server.waiters() == 1)
        eventually(lambda: server.waiters() == 0)
    eventually(lambda: server.tasks() <= tasks)
    good(server.client.post("/v1/queues/q/messages", json={"body": "a"}))
    assert [message["attempts"] for message in claim(server)] == [1]


def test_a_server_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    answers: list[Any] = []
    with serve(f"file:{tmp_path / 'store'}", lambda store: [Api(store)]) as server:
        good(server.client.put("/v1/queues/q", json={}), 201)

        def wait() -> None:
            answers.append(httpx.post(f"{server.url}/v1/queues/q/claim", json={"wait": "60s"}, timeout=60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: server.waiters() == 1)
    waiting.join()
    assert good(answers[0]) == {"messages": []}


# -- journals -------------------------------------------------------------------------------------------------------


def test_a_journal_is_created_configured_listed_and_deleted(server: HttpServer) -> None:
    client = server.client
    made = good(client.put("/v1/journals/j%2Fa", json={"retention": "7d", "retention_bytes": 1000}), 201)
    assert (made["name"], made["retention"], made["retention_bytes"]) == ("j/a", "7d", 1000)
    good(client.put("/v1/journals/j%2Fa", json={"retention": 604800}))
    refused(client.put("/v1/journals/j%2Fa", json={"retention": "1d"}), 409, "Conflict")
    changed = good(client.patch("/v1/journals/j%2Fa", json={"retention": "0s"}))
    assert (changed["retention"], changed["retention_bytes"]) == ("0s", 1000)
    refused(client.patch("/v1/journals/j%2Fa", json={}), 400, "Invalid")
    refused(client.patch("/v1/journals/none", json={"retention": "1d"}), 404, "NotFound")
    refused(client.put("/v1/journals/new", json={"retention_bytes": -1}), 400, "Invalid")
    refused(client.put("/v1/journals/new", json={"filter": "true"}), 400, "Invalid", "filter")
    good(client.put("/v1/journals/k", json={}), 201)
    page = good(client.get("/v1/journals?limit=1"))
    assert ([one["name"] for one in page["journals"]], page["next"]) == (["j/a"], "j/a")
    assert [one["name"] for one in good(client.get("/v1/journals?prefix=k"))["journals"]] == ["k"]
    good(client.delete("/v1/journals/j%2Fa"), 204)
    refused(client.get("/v1/journals/j%2Fa"), 404, "NotFound")
    refused(client.delete("/v1/journals/j%2Fa"), 404, "NotFound")


def test_messages_are_appended_and_read_in_pages(server: HttpServer) -> None:
    client = server.client
    url = "/v1/journals/j/messages"
    one = good(client.post(url, json={"body": {"json": [1, 2]}, "key": {"base64": "/w=="}, "headers": {"a": "b"}}))
    assert (one["offset"], one["committed"]) == (0, 1)
    many = good(client.post(url, json=[{"body": f"m{n}"} for n in range(1, 250)]))
    assert (many["offset"], many["committed"]) == (1, 249)
    page = good(client.get(url))
    assert (len(page["messages"]), page["next"]) == (100, 100)
    first = page["messages"][0]
    assert (first["offset"], first["body"], first["key"]) == (0, "[1,2]", {"base64": "/w=="})
    assert first["headers"] == {"a": "b"}
    bodies, at = [], 0
    while at < 250:
        page = good(client.get(url, params={"from": at, "limit": 90}))
        bodies += [message["body"] for message in page["messages"]]
        at = page["next"]
    assert bodies[1:] == [f"m{n}" for n in range(1, 250)]
    part = good(client.get(url, params={"from": 10, "to": 12}))
    assert ([message["offset"] for message in part["messages"]], part["next"]) == ([10, 11], 12)
    rows = good(client.get(url, params={"isolation": "uncommitted", "from": 248}))
    assert [message["position"] for message in rows["messages"]] == [248, 249]
    assert good(client.get(url, params={"from": 250})) == {"messages": [], "next": 250}
    refused(client.get(url, params={"from": 251}), 404, "NotFound", "does not exist yet")
    refused(client.get(url, params={"to": 251}), 404, "NotFound", "does not exist yet")
    refused(client.get(url, params={"from": 5, "to": 4}), 400, "Invalid")
    refused(client.get(url, params={"isolation": "none"}), 400, "Invalid", "$.isolation")
    for wrong in ({}, {"body": 1}, {"body": "a", "payload": "b"}, [], {"body": "a", "headers": {"a": None}}):
        refused(client.post(url, json=wrong), 400, "Invalid")
    assert good(client.get("/v1/journals/j"))["next_offset"] == 250


def test_a_page_of_a_journal_ends_early_when_its_messages_are_large(memory: HttpServer) -> None:
    for _ in range(20):
        good(memory.client.post("/v1/journals/j/messages", json={"body": "x" * (1 << 20)}))
    page = good(memory.client.get("/v1/journals/j/messages"))
    assert 0 < len(page["messages"]) < 20
    assert page["next"] == len(page["messages"])


def test_old_messages_are_trimmed(server: HttpServer) -> None:
    client = server.client
    good(client.post("/v1/journals/j/messages", json=[{"body": "a"}, {"body": "b"}]))
    assert good(client.post("/v1/journals/j/trim", json={"before": 1})) == {"journal": "j", "first_offset": 1}
    refused(client.get("/v1/journals/j/messages?from=0"), 404, "NotFound", "gone")
    assert [one["offset"] for one in good(client.get("/v1/journals/j/messages"))["messages"]] == [1]
    refused(client.post("/v1/journals/j/trim", json={"before": -1}), 400, "Invalid")
    refused(client.post("/v1/journals/none/trim", json={"before": 1}), 404, "NotFound")


def test_registers_are_set_if_they_are_as_expected(server: HttpServer) -> None:
    client = server.client
    url = "/v1/journals/j/registers"
    assert good(client.get(url)) == {"registers": {}}
    assert good(client.patch(url, json={"set": {"author": "me"}, "expect": {"author": None}})) == {
        "registers": {"author": "me"}
    }
    refused(client.patch(url, json={"set": {"author": "you"}, "expect": {"author": None}}), 409, "Conflict")
    assert good(client.patch(url, json={"set": {"author": None, "b": "c"}})) == {"registers": {"b": "c"}}
    assert good(client.get(url)) == {"registers": {"b": "c"}}
    for wrong in ({}, {"set": {}}, {"set": {"a": 1}}, {"set": {"": "a"}}, {"set": {"a": "b" * 257}}):
        refused(client.patch(url, json=wrong), 400, "Invalid")


# -- Arrow ----------------------------------------------------------------------------------------------------------


def ipc(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=1000)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def post_arrow(server: HttpServer, data: bytes) -> httpx.Response:
    return server.client.post("/v1/journals/j/messages", content=data, headers={"content-type": ARROW})


def test_arrow_streams_are_appended_and_read(server: HttpServer) -> None:
    headers = pa.array([[("n", str(n))] for n in range(5000)], pa.map_(pa.string(), pa.string()))
    table = pa.table(
        {"body": [b"%d" % n for n in range(5000)], "key": [f"k{n}" for n in range(5000)], "headers": headers}
    )
    done = good(post_arrow(server, ipc(table)))
    assert (done["offset"], done["committed"]) == (0, 5000)
    answer = server.client.get("/v1/journals/j/messages?from=10", headers={"accept": ARROW})
    assert answer.headers["content-type"] == ARROW
    assert (answer.headers["detent-first"], answer.headers["detent-next"]) == ("10", "5000")
    read = pa.ipc.open_stream(answer.content).read_all()
    assert read.column("body").to_pylist() == [b"%d" % n for n in range(10, 5000)]
    assert read.column("headers").to_pylist()[0] == [("n", "10")]
    part = server.client.get("/v1/journals/j/messages?limit=7", headers={"accept": ARROW})
    assert pa.ipc.open_stream(part.content).read_all().num_rows == 7
    none = server.client.get("/v1/journals/j/messages?from=5000", headers={"accept": ARROW})
    assert pa.ipc.open_stream(none.content).read_all().num_rows == 0
    refused(server.client.get("/v1/journals/none/messages", headers={"accept": ARROW}), 404, "NotFound")
    refused(server.client.get("/v1/journals/j/messages?from=5001", headers={"accept": ARROW}), 404, "NotFound")


def test_arrow_streams_that_are_none_are_refused(memory: HttpServer) -> None:
    fine = ipc(pa.table({"body": [b"a" * 100]}))
    damaged = bytearray(fine)
    for at in range(0, len(damaged), 7):
        damaged[at] ^= 0xFF
    for data in (
        b"",
        b"nothing",
        fine[:50],
        bytes(damaged),
        ipc(pa.table({"body": [b"a" * 1000]}), compression="zstd"),
        ipc(pa.table({"body": pa.array(["a", "a"]).dictionary_encode()})),
        ipc(pa.table({"body": [1, 2]})),
        ipc(pa.table({"body": [None, b"a"]})),
        ipc(pa.table({"key": [b"a"]})),
        ipc(pa.table({"body": [b"a"], "more": [b"a"]})),
        ipc(pa.table({"body": pa.array([], pa.binary())})),
    ):
        refused(post_arrow(memory, data), 400, "Invalid")
    assert good(memory.client.get("/v1/journals"))["journals"] == []
    refused(post_arrow(memory, b"x" * (73 << 20)), 413, "LimitExceeded")


def test_damaged_arrow_streams_never_break_the_server(memory: HttpServer) -> None:
    """Each byte of a stream turned over, one after another: refused, or another body of the same length."""
    fine = ipc(pa.table({"body": [b"a" * 10], "key": ["k"]}))
    for at in range(len(fine)):
        data = bytearray(fine)
        data[at] ^= 0xFF
        assert post_arrow(memory, bytes(data)).status_code in {200, 400, 413}


def test_a_client_that_goes_while_it_reads_a_stream_ends_the_read(memory: HttpServer) -> None:
    for _ in range(8):
        good(post_arrow(memory, ipc(pa.table({"body": [b"x" * (8 << 20)]}))))
    tasks = memory.tasks()
    with socket.create_connection((HOST, memory.port)) as connection:
        connection.sendall(f"GET /v1/journals/j/messages HTTP/1.1\r\nhost: x\r\naccept: {ARROW}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    eventually(lambda: memory.tasks() <= tasks)


def test_a_stream_that_cannot_be_finished_ends_without_its_end(
    memory: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    good(post_arrow(memory, ipc(pa.table({"body": [b"a", b"b"]}))))
    whole = AsyncJournal.read_batches

    async def trimmed(journal: AsyncJournal, start: int, end: int, **options: Any) -> AsyncIterator[Any]:
        async for batch in whole(journal, start, end, **options):
            yield batch
        raise NotFound("offset 1 is gone")

    monkeypatch.setattr(AsyncJournal, "read_batches", trimmed)
    with pytest.raises(httpx.RemoteProtocolError):
        memory.client.get("/v1/journals/j/messages", headers={"accept": ARROW})


# -- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction_does_all_of_its_operations(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    good(client.post("/v1/queues/q/messages", json=[{"body": str(n)} for n in range(3)]))
    one, two, three = (message["receipt"] for message in claim(server, count=3))
    operations = [
        {"op": "check_registers", "journal": "j", "expect": {"run": None}},
        {"op": "check_next_offset", "journal": "j", "offset": 0},
        {"op": "set_registers", "journal": "j", "set": {"run": "1"}},
        {"op": "append", "journal": "j", "body": "effect", "key": "k"},
        {"op": "publish", "queue": "q", "body": "next", "dedup_key": "d"},
        {"op": "publish", "body": "to whoever wants it"},
        {"op": "ack", "receipts": [one]},
        {"op": "fail", "receipt": two, "reason": "no", "final": True},
        {"op": "extend", "receipt": three, "lease": "1h"},
    ]
    results = good(client.post("/v1/transaction", json={"operations": operations}))["results"]
    assert [result["op"] for result in results] == [operation["op"] for operation in operations]
    assert results[3] == {"op": "append", "position": 0, "count": 1, "offset": 0, "committed": 1}
    assert results[4] == {"op": "publish", "id": 3, "duplicate_of": None}
    assert results[8]["lease_until"].endswith("Z")
    info = good(client.get("/v1/queues/q"))
    assert (info["done"], info["failed"], info["in_flight"], info["available"]) == (1, 1, 1, 1)
    refused(client.post("/v1/transaction", json={"operations": operations}), 409, "Conflict", "run")


def test_a_transaction_that_is_refused_does_nothing(server: HttpServer) -> None:
    client = server.client
    good(client.put("/v1/queues/q", json={}), 201)
    append = {"op": "append", "journal": "j", "body": "effect"}
    before = snapshot(server)
    for status, error, operation in (
        (410, "StaleReceipt", {"op": "ack", "receipts": ["1-0-1"]}),
        (409, "Conflict", {"op": "check_next_offset", "journal": "j", "offset": 5}),
        (404, "NotFound", {"op": "publish", "queue": "none", "body": "a"}),
        (400, "Invalid", {"op": "publish", "queue": "q"}),
        (400, "Invalid", {"op": "publish", "queue": "a b", "body": "a"}),
        (400, "Invalid", {"op": "append", "journal": "..", "body": "a"}),
        (400, "Invalid", {"op": "ack", "receipts": []}),
        (400, "Invalid", {"op": "extend", "receipt": "1-0-1", "lease": "long"}),
        (400, "Invalid", {"op": "delete"}),
        (400, "Invalid", {"op": "append", "journal": "j", "body": "a", "more": 1}),
    ):
        refused(client.post("/v1/transaction", json={"operations": [append, operation]}), status, error)
    refused(client.post("/v1/transaction", json={"operations": []}), 400, "Invalid")
    refused(client.post("/v1/transaction", json={}), 400, "Invalid")
    assert snapshot(server) == before


# -- what is wrong with any body ------------------------------------------------------------------------------------

BODIES = [(route.method, re.sub(r"\{\w+\}", "x", route.path)) for route in ROUTES if route.body]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"{}x", ""),
        (b'{"nothing": 1}', ""),
        (b'{"nothing": NaN}', ""),
        (b'{"a": 1, "a": 2}', ""),
        (b'"\xff"', ""),
        (b"[" * 100_000, ""),
        (b'{"a":' * 100_000, ""),
        (b"9" * 100_000, ""),
        (b'"' + b'\\"' * 1_000_000, ""),
        (b'{"a' + b"\\" * 1_000_001, ""),
        (b"1e999", ""),
        (b"true", ""),
        (b"\xef\xbb\xbf{}", "malformed"),
        (b"\x00", "malformed"),
    ],
)
def test_a_body_that_is_wrong_is_refused_everywhere(memory: HttpServer, body: bytes, words: str) -> None:
    before = snapshot(memory)
    for method, path in BODIES:
        answer = memory.client.request(method, path, content=body, headers={"content-type": "application/json"})
        refused(answer, 400, "Invalid", words)
    assert snapshot(memory) == before


@pytest.mark.parametrize(
    "body",
    [
        b'{"body": "a", "payload": "b"}',
        b'[{"body": "a", "headers": {"a": "1", "a": "2"}}]',
        b'{"body": {"json": {"a": {"b": 1, "b": 1}}}}',
        b'{"body": "a:b", "pay\\u006coad": "c"}',
        b'{"body": {"json": 1e999}}',
        b'{"body": {"json": "\xff"}}',
        b'{"body": {"json": NaN}}',
        b'{"body": "\\ud800"}',
        b'{"body": {"json": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    ],
)
def test_json_that_parsers_do_not_agree_on_is_refused(memory: HttpServer, body: bytes) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    before = snapshot(memory)
    headers = {"content-type": "application/json; charset=utf-8"}
    refused(memory.client.post("/v1/queues/q/messages", content=body, headers=headers), 400, "Invalid")
    assert snapshot(memory) == before


def test_colons_and_quotes_in_strings_are_no_keys(memory: HttpServer) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    text = 'a:"b\\":{"c":1,"c":2}\\'
    good(memory.client.post("/v1/queues/q/messages", json={"body": text, "headers": {"a:b": ":"}}))
    assert claim(memory)[0]["body"] == text


def test_a_body_of_another_type_is_refused_everywhere(memory: HttpServer) -> None:
    for method, path in BODIES:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
            answer = memory.client.request(method, path, content=b"{}", headers={"content-type": kind})
            refused(answer, 415, "WrongType", "application/json")


def test_a_wrong_field_is_named_by_its_place(memory: HttpServer) -> None:
    answer = memory.client.post("/v1/queues/q/messages", json=[{"body": "a"}, {"body": "b", "delay": []}])
    refused(answer, 400, "Invalid", "$[1].delay")


def test_an_error_does_not_repeat_all_of_what_is_wrong(memory: HttpServer) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    long = "x" * (1 << 20)
    for path, body in (
        ("/v1/queues/q/ack", {"receipts": [long]}),
        ("/v1/queues/q/claim", {"lease": long}),
        ("/v1/queues/q/claim", {"lease": "9" * 1000 + "s"}),
        ("/v1/queues/q/messages", {"uri": long}),
        ("/v1/transaction", {"operations": [{"op": "append", "journal": long, "body": ""}]}),
    ):
        answer = memory.client.post(path, json=body)
        assert answer.status_code in {400, 413}
        assert len(answer.content) < 10_000


# -- rights ---------------------------------------------------------------------------------------------------------

HOURLY = {"every": "1h", "queue": "mine/x"}
NEEDED: list[tuple[str, str, Any, str, str]] = [
    ("PUT", "/v1/queues/{queue}", {}, "admin", "queue"),
    ("PATCH", "/v1/queues/{queue}", {"paused": False}, "admin", "queue"),
    ("GET", "/v1/queues/{queue}", None, "publish", "queue"),
    ("GET", "/v1/queues/{queue}", None, "consume", "queue"),
    ("POST", "/v1/queues/{queue}/messages", {"body": "a"}, "publish", "queue"),
    ("POST", "/v1/queues/{queue}/claim", {}, "consume", "queue"),
    ("POST", "/v1/queues/{queue}/ack", {"receipts": ["1-0-1"]}, "consume", "queue"),
    ("POST", "/v1/queues/{queue}/fail", {"receipt": "1-0-1"}, "consume", "queue"),
    ("POST", "/v1/queues/{queue}/extend", {"receipt": "1-0-1"}, "consume", "queue"),
    ("GET", "/v1/queues/{queue}/failed", None, "consume", "queue"),
    ("GET", "/v1/queues/{queue}/messages", None, "consume", "queue"),
    ("POST", "/v1/queues/{queue}/redrive", {"all": True}, "admin", "queue"),
    ("POST", "/v1/queues/{queue}/purge", {"failed": True}, "admin", "queue"),
    ("DELETE", "/v1/queues/{queue}", None, "admin", "queue"),
    ("PUT", "/v1/journals/{journal}", {}, "admin", "journal"),
    ("PATCH", "/v1/journals/{journal}", {"retention": "1d"}, "admin", "journal"),
    ("GET", "/v1/journals/{journal}", None, "consume", "journal"),
    ("POST", "/v1/journals/{journal}/messages", {"body": "a"}, "publish", "journal"),
    ("GET", "/v1/journals/{journal}/search?text=a", None, "read", "journal"),
    ("GET", "/v1/journals/{journal}/offset?at=2026-01-01T00:00:00Z", None, "read", "journal"),
    ("GET", "/v1/journals/{journal}/journey?offset=0", None, "read", "journal"),
    ("GET", "/v1/journals/{journal}/messages", None, "consume", "journal"),
    ("GET", "/v1/journals/{journal}/registers", None, "consume", "journal"),
    ("PATCH", "/v1/journals/{journal}/registers", {"set": {"a": "b"}}, "publish", "journal"),
    ("POST", "/v1/journals/{journal}/trim", {"before": 0}, "admin", "journal"),
    ("DELETE", "/v1/journals/{journal}", None, "admin", "journal"),
    ("PUT", "/v1/schedules/{schedule}", HOURLY, "admin", "schedule"),
    ("PATCH", "/v1/schedules/{schedule}", {"every": "2h"}, "admin", "schedule"),
    ("GET", "/v1/schedules/{schedule}", None, "read", "schedule"),
    ("POST", "/v1/schedules/{schedule}/pause", None, "admin", "schedule"),
    ("POST", "/v1/schedules/{schedule}/resume", None, "admin", "schedule"),
    ("POST", "/v1/schedules/{schedule}/run", None, "publish", "schedule"),
    ("DELETE", "/v1/schedules/{schedule}", None, "admin", "schedule"),
    ("GET", "/v1/consumers/{consumer}", None, "read", "consumer"),
    ("PATCH", "/v1/consumers/{consumer}", {"paused": True}, "admin", "consumer"),
    ("POST", "/v1/consumers/{consumer}/reset", {"offsets": {"mine/x": 0}}, "admin", "consumer"),
]


def pose(server: HttpServer, *grants: tuple[str, str, str]) -> None:
    """Requests come from somebody who may do this from now on."""
    (part,) = server.parts
    assert isinstance(part, Posing)
    part.caller = Caller("somebody", tuple(Grant(*grant) for grant in grants))


def test_every_route_with_a_name_is_tried_with_and_without_its_right(posing: HttpServer) -> None:
    listed = {(route.method, route.path) for route in ROUTES if route.kind is not None}
    assert {(method, path.partition("?")[0]) for method, path, *_ in NEEDED} == listed
    others = {"admin": ("publish", "consume"), "publish": ("consume",), "consume": ("publish",), "read": ("publish",)}
    for method, template, body, right, kind in NEEDED:
        pose(posing, ("admin", "*", "*"))
        posing.client.put("/v1/queues/mine%2Fx", json={})
        posing.client.put("/v1/journals/mine%2Fx", json={})
        posing.client.put("/v1/schedules/mine%2Fx", json=HOURLY)
        path = re.sub(r"\{\w+\}", "mine%2Fx", template)
        before = snapshot(posing)
        wrong = [("admin", kind, "yours/*"), ("admin", "ledger", "*")]
        if template not in {"/v1/queues/{queue}", "/v1/journals/{journal}"} or method != "GET":
            wrong += [(other, kind, "mine/*") for other in others[right]]
        pose(posing, *wrong)
        refused(posing.client.request(method, path, json=body), 403, "Denied", "somebody")
        pose(posing, ("admin", "*", "*"))
        assert snapshot(posing) == before
        pose(posing, (right, kind, "mine/*"), ("publish", "queue", "mine/*"))
        allowed = {200, 201, 204, 410} if kind != "consumer" else {404}  # there is none: rights are looked at before
        assert posing.client.request(method, path, json=body).status_code in allowed


def test_a_body_is_not_read_of_somebody_who_may_not_send_it(posing: HttpServer) -> None:
    pose(posing)
    answer = posing.client.post(
        "/v1/queues/q/messages", content=b"no json", headers={"content-type": "application/json"}
    )
    refused(answer, 403, "Denied")


def test_lists_show_what_the_caller_may_see(posing: HttpServer) -> None:
    for name in ("a", "b", "c"):
        good(posing.client.put(f"/v1/queues/{name}", json={}), 201)
        good(posing.client.put(f"/v1/journals/{name}", json={}), 201)
    pose(posing, ("consume", "queue", "b"), ("publish", "journal", "c"))
    assert [queue["name"] for queue in good(posing.client.get("/v1/queues"))["queues"]] == ["b"]
    assert [journal["name"] for journal in good(posing.client.get("/v1/journals"))["journals"]] == ["c"]
    pose(posing)
    found = good(posing.client.get("/v1/queues"))
    assert (found["queues"], found["next"], found["totals"]["queues"]) == ([], None, 0)


def test_what_concerns_the_whole_store_needs_a_right_on_the_whole_store(posing: HttpServer) -> None:
    pose(posing, ("publish", "queue", "*"))
    refused(posing.client.post("/v1/messages", json={"body": "a"}), 403, "Denied", "whole store")
    pose(posing, ("publish", "*", "*"))
    good(posing.client.post("/v1/messages", json={"body": "a"}))


def test_a_filter_needs_the_right_to_consume_all_queues(posing: HttpServer) -> None:
    client = posing.client
    spying = {"filter": "true", "earliest": True}
    pose(posing, ("admin", "queue", "mine/*"))
    refused(client.put("/v1/queues/mine%2Fspy", json=spying), 403, "Denied", "filter")
    refused(client.get("/v1/queues/mine%2Fspy"), 404, "NotFound")
    good(client.put("/v1/queues/mine%2Fspy", json={"filter": None}), 201)
    good(client.put("/v1/queues/mine%2Fspy", json={"filter": 'headers.queue == "mine/spy"'}))
    refused(client.patch("/v1/queues/mine%2Fspy", json={"filter": "true"}), 403, "Denied", "filter")
    pose(posing, ("admin", "queue", "mine/*"), ("consume", "queue", "*"))
    good(client.patch("/v1/queues/mine%2Fspy", json={"filter": "true"}))


def test_a_queue_that_a_setting_names_needs_the_right_to_publish_there() -> None:
    caller = Caller("somebody", (Grant("admin", "queue", "mine/*"),))
    check_settings(caller, "mine/a", {"dead_letter": "mine/b"})
    check_settings(caller, "mine/a", {"dead_letter": ""})
    with pytest.raises(Denied):
        check_settings(caller, "mine/a", {"dead_letter": "yours"})


def test_a_message_is_shown_to_those_who_may_consume_one_of_its_queues(posing: HttpServer) -> None:
    for name in ("a", "b"):
        good(posing.client.put(f"/v1/queues/{name}", json={"filter": "true"}), 201)
    good(posing.client.post("/v1/messages", json={"body": "secret"}))
    pose(posing, ("consume", "queue", "b"))
    assert [place["queue"] for place in good(posing.client.get("/v1/messages/0"))["queues"]] == ["b"]
    pose(posing, ("consume", "queue", "c"))
    hidden, absent = posing.client.get("/v1/messages/0"), posing.client.get("/v1/messages/1")
    refused(hidden, 404, "NotFound")
    assert hidden.text.replace("message 0", "") == absent.text.replace("message 1", "")


def test_a_redrive_into_another_queue_needs_the_right_to_publish_there(posing: HttpServer) -> None:
    for name in ("a", "b"):
        good(posing.client.put(f"/v1/queues/{name}", json={}), 201)
    pose(posing, ("admin", "queue", "a"))
    refused(posing.client.post("/v1/queues/a/redrive", json={"all": True, "to": "b"}), 403, "Denied", "'b'")
    pose(posing, ("admin", "queue", "a"), ("publish", "queue", "b"))
    good(posing.client.post("/v1/queues/a/redrive", json={"all": True, "to": "b"}))


def test_every_operation_of_a_transaction_needs_its_right(posing: HttpServer) -> None:
    client = posing.client
    for name in ("a", "b"):
        good(client.put(f"/v1/queues/{name}", json={}), 201)
    good(client.post("/v1/queues/b/messages", json=[{"body": "x"}] * 3))
    one, two, three = (message["receipt"] for message in claim(posing, "b", count=3))
    good(client.post("/v1/journals/mine/messages", json={"body": "a"}))
    mine = {"op": "append", "journal": "mine", "body": "a"}
    for operation, right in (
        ({"op": "publish", "queue": "b", "body": "a"}, ("publish", "queue", "b")),
        ({"op": "publish", "body": "a"}, ("publish", "*", "*")),
        ({"op": "ack", "receipts": [one]}, ("consume", "queue", "b")),
        ({"op": "fail", "receipt": two}, ("consume", "queue", "b")),
        ({"op": "extend", "receipt": three}, ("consume", "queue", "b")),
        ({"op": "append", "journal": "yours", "body": "a"}, ("publish", "journal", "yours")),
        ({"op": "check_registers", "journal": "yours", "expect": {}}, ("publish", "journal", "yours")),
        ({"op": "set_registers", "journal": "yours", "set": {"a": "b"}}, ("publish", "journal", "yours")),
        ({"op": "check_next_offset", "journal": "yours", "offset": 1}, ("publish", "journal", "yours")),
    ):
        pose(posing, ("admin", "*", "*"))
        before = snapshot(posing)
        pose(posing, ("admin", "journal", "mine"), ("admin", "queue", "a"))
        answer = client.post("/v1/transaction", json={"operations": [mine, operation]})
        if operation["op"] in {"ack", "fail", "extend"}:
            refused(answer, 410, "StaleReceipt", "not yours")
        else:
            refused(answer, 403, "Denied")
        pose(posing, ("admin", "*", "*"))
        assert snapshot(posing) == before
        pose(posing, ("admin", "journal", "mine"), right)
        good(client.post("/v1/transaction", json={"operations": [mine, operation]}))


@pytest.mark.parametrize("operation", [{"op": "ack", "receipts": []}, {"op": "fail"}, {"op": "extend"}])
def test_a_guessed_receipt_does_not_tell_whose_queue_it_is(posing: HttpServer, operation: dict[str, Any]) -> None:
    for name in ("mine", "secret"):
        good(posing.client.put(f"/v1/queues/{name}", json={}), 201)
    number = good(posing.client.get("/v1/queues/secret"))["number"]
    pose(posing, ("consume", "queue", "mine"))
    said = []
    for receipt in (f"{number}-0-0", "77-0-0"):
        given = {"receipts": [receipt]} if "receipts" in operation else {"receipt": receipt}
        answer = posing.client.post("/v1/transaction", json={"operations": [{**operation, **given}]})
        refused(answer, 410, "StaleReceipt", receipt)
        assert "secret" not in answer.text
        said.append(answer.text.replace(receipt, ""))
    assert said[0] == said[1]


# -- what is counted ------------------------------------------------------------------------------------------------


def test_every_receipt_that_is_refused_as_stale_is_counted() -> None:
    metrics = Metrics()

    def counted() -> float:
        found = metrics.registry.get_sample_value("detent_stale_receipts_refused_total")
        assert found is not None
        return found

    with serve("memory:", lambda store: [Posing(Api(store, stale=metrics.stale_receipt), UNCHECKED)]) as server:
        server.owner.engine.observer = metrics
        for name in ("a", "b"):
            good(server.client.put(f"/v1/queues/{name}", json={}), 201)
        good(server.client.post("/v1/queues/a/messages", json={"body": "x"}))
        receipt = claim(server, "a")[0]["receipt"]
        assert counted() == 0
        refused(server.client.post("/v1/queues/b/ack", json={"receipts": [receipt]}), 410, "StaleReceipt")
        assert counted() == 1
        transaction = {"operations": [{"op": "ack", "receipts": [receipt]}]}
        pose(server, ("consume", "queue", "b"))
        refused(server.client.post("/v1/transaction", json=transaction), 410, "StaleReceipt")
        assert counted() == 2
        pose(server, ("consume", "queue", "a"))
        good(server.client.post("/v1/transaction", json=transaction))
        assert counted() == 2
        refused(server.client.post("/v1/transaction", json=transaction), 410, "StaleReceipt")
        eventually(lambda: counted() == 3)


# -- settings that come later ---------------------------------------------------------------------------------------


def test_every_setting_of_the_library_is_one_of_the_api() -> None:
    assert set(NewQueue.__struct_fields__) == {*QueueSettingNames.__annotations__, "earliest"}
    assert set(QueueSettings.__struct_fields__) == set(QueueSettingNames.__annotations__)
    assert set(JournalSettings.__struct_fields__) == set(JournalSettingNames.__annotations__)
    assert set(QueueDescription.__struct_fields__) == {field.name for field in fields(QueueInfo)}


# -- what the server says when it cannot ----------------------------------------------------------------------------


def test_a_busy_store_is_429_with_a_time_to_come_back(memory: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise Busy("too many transactions are waiting; wait for some answers, then send again")

    monkeypatch.setattr(memory.owner.engine, "submit", busy)
    answer = memory.client.post("/v1/journals/j/messages", json={"body": "a"})
    refused(answer, 429, "Busy")
    assert answer.headers["retry-after"] == "1"


def test_a_body_that_is_no_text_survives_the_way(memory: HttpServer) -> None:
    good(memory.client.put("/v1/queues/q", json={}), 201)
    body = bytes(range(256))
    given = {"base64": base64.b64encode(body).decode()}
    good(memory.client.post("/v1/queues/q/messages", json={"body": given}))
    assert claim(memory)[0]["body"] == given


def test_a_server_that_does_not_own_its_store_asks_the_owner(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as owner, serve(url, lambda store: [Api(store)]) as server:
        good(server.client.put("/v1/queues/q", json={}), 201)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.extend(claim(server, wait=WAIT)))
        waiting.start()
        owner.queue("q").publish(b"from elsewhere")
        waiting.join()
        assert [message["body"] for message in found] == ["from elsewhere"]
        good(server.client.post("/v1/queues/q/ack", json={"receipts": [found[0]["receipt"]]}))
        good(server.client.post("/v1/journals/j/messages", json={"body": "a"}))
        assert [message.body for message in owner.journal("j").read()] == [b"a"]
        assert owner.queue("q").info().done == 1
