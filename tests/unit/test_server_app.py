"""The application around the server's parts: who gets in, what is refused, what is noted."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from prometheus_client.parser import text_string_to_metric_families

import detent
from detent.engine import Request as Engaged
from detent.errors import Busy, Denied, DetentError, Invalid, Unavailable
from detent.journal.operations import Append
from detent.remote import LocalOwner, wire
from detent.server import http
from detent.server.access import Caller
from detent.server.app import ServerApplication, refusal
from detent.server.http import HttpRequest, Response
from detent.server.keys import Key, KeyRing, add_key, new_key
from detent.server.metrics import Metrics
from detent.server.native import NativePart
from detent.server.operators import PROBES, PUBLIC, Operators
from detent.server.serving import own_hosts
from detent.server.tracing import Tracing, find_tracing


class Echo:
    """A part that says who asked, and fails on demand."""

    name = "echo"

    def owns(self, request: HttpRequest) -> bool:
        return request.path.startswith("/echo")

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        if request.path == "/echo/busy":
            raise Busy("later")
        if request.path == "/echo/parts":

            async def parts() -> Any:
                yield b"one "
                yield b"two"

            return Response(parts(), type="text/plain")
        if request.path == "/echo/broken":
            raise RuntimeError("a detail that is nobody's business")
        if request.path == "/echo/breaks":

            async def breaking() -> Any:
                yield b"one "
                raise RuntimeError("in the middle")

            return Response(breaking(), type="text/plain")
        if request.path == "/echo/header":
            return Response(headers={"x": "\u2603"})
        if request.path == "/echo/nothing":
            return Response(status=204)
        if request.path == "/echo/much":
            return Response(b"x" * (http.SEND_BYTES * 2 + 1))
        if request.path == "/echo/cancelled":
            raise asyncio.CancelledError
        body = await request.body(1000)
        return Response.json({"caller": caller.name, "query": request.query(), "body": body.decode()})

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
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
    app: ServerApplication,
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
LOCKED = ServerApplication([Echo()], keys=KeyRing([KEY]))
OPEN = ServerApplication([Echo()])


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
        asyncio.run(HttpRequest(scope, never).body())


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
        asyncio.run(HttpRequest(scope, gone).body())


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


def test_the_log_says_who_asked_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "detent.server"):
        run(LOCKED, "GET", "/echo", headers=TOKEN)
        run(LOCKED, "GET", "/echo", headers=[("Authorization", f"Bearer {KEY.id}.wrong")])
        run(OPEN, "GET", "/echo")
    assert [getattr(record, "caller", None) for record in caplog.records] == ["somebody", None, "anybody"]


# -- what goes wrong ----------------------------------------------------------------------------------------------


class Counted:
    """Who counts the requests."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, int]] = []

    def request(self, part: str, method: str, status: int, seconds: float) -> None:
        self.counted.append((part, status))


@pytest.mark.parametrize("path", ["/echo/broken", "/echo/header"])
def test_what_nobody_thought_of_is_answered_counted_and_logged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    counting = Counted()
    with caplog.at_level(logging.INFO, "detent.server"):
        answer = run(ServerApplication([Echo()], counting=counting), "GET", path)
    assert (answer.status, answer.headers["content-type"]) == (500, wire.PROBLEM_TYPE)
    assert "detail" not in answer.body.decode()
    assert counting.counted == [("echo", 500)]
    failed, noted = caplog.records
    assert failed.exc_info is not None
    assert vars(noted)["status"] == 500


def test_a_part_that_cannot_say_what_is_its_own_is_answered_for() -> None:
    class Broken(Echo):
        def owns(self, request: HttpRequest) -> bool:
            raise RuntimeError("cannot say")

    assert run(ServerApplication([Broken()]), "GET", "/echo").status == 500


def test_an_answer_that_breaks_off_is_not_answered_twice() -> None:
    counting = Counted()
    with pytest.raises(RuntimeError, match="in the middle"):
        run(ServerApplication([Echo()], counting=counting), "GET", "/echo/breaks")
    assert counting.counted == [("echo", 200)]


def test_who_is_cancelled_ends() -> None:
    with pytest.raises(asyncio.CancelledError):
        run(OPEN, "GET", "/echo/cancelled")


def test_nothing_is_said_about_a_body_that_cannot_be() -> None:
    answer = run(OPEN, "GET", "/echo/nothing")
    assert (answer.status, answer.headers, answer.body) == (204, {}, b"")


def test_a_large_answer_leaves_in_parts() -> None:
    """So that no more of it is on its way than the client has room for."""
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    whole = b"xyz" * http.SEND_BYTES
    asyncio.run(Response(whole).send(send))
    assert b"".join(sent) == whole
    assert max(map(len, sent)) == http.SEND_BYTES
    assert run(OPEN, "GET", "/echo/much").headers["content-length"] == str(http.SEND_BYTES * 2 + 1)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_WAIT_S", 0.01)

    async def send(message: dict[str, Any]) -> None:
        if message.get("more_body"):
            await asyncio.sleep(60)

    asyncio.run(asyncio.wait_for(Response(b"x" * (http.SEND_BYTES + 1)).send(send), 30))


def test_a_body_that_is_not_there_when_the_server_stops_is_not_waited_for() -> None:
    incoming = [{"type": "http.request", "body": b"half", "more_body": True}]

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": [], http.STOPPING: True}
    with pytest.raises(Unavailable, match="shutting down"):
        asyncio.run(HttpRequest(scope, receive).body())
    incoming = [{"type": "http.request", "body": b"whole", "more_body": False}]
    assert asyncio.run(HttpRequest(scope, receive).body()) == b"whole"


# -- browsers -----------------------------------------------------------------------------------------------------

HOST = ("Host", "localhost:7410")
FOREIGN = [
    [("Origin", "https://evil.example")],
    [("Origin", "http://localhost:3000")],
    [("Origin", "http://localhost")],
    [("Origin", "null")],
    [("Origin", "")],
    [("Sec-Fetch-Site", "cross-site")],
    [("Sec-Fetch-Site", "same-site")],
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_origin_is_refused(headers: list[tuple[str, str]]) -> None:
    answer = run(OPEN, "POST", "/echo", headers=[HOST, *headers])
    assert (answer.status, answer.json["error"]) == (403, "Denied")
    assert "--keys" in answer.json["message"]
    assert run(OPEN, "POST", "/echo", headers=headers).status == 403, "also without a host"
    public = ServerApplication([Echo()], keys=KeyRing([KEY]), public=frozenset({"/echo"}))
    assert run(public, "GET", "/echo", headers=[HOST, *headers]).status == 403
    assert run(LOCKED, "POST", "/echo", headers=[HOST, *headers]).status == 401
    assert run(LOCKED, "POST", "/echo", headers=[HOST, *headers, *TOKEN]).status == 200, "no other page has the token"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Origin", "http://localhost:7410")],
        [("Origin", "https://LOCALHOST:7410"), ("Sec-Fetch-Site", "same-origin")],
        [("Sec-Fetch-Site", "none")],
    ],
)
def test_other_clients_and_own_pages_are_let_in(headers: list[tuple[str, str]]) -> None:
    assert run(OPEN, "POST", "/echo", headers=[HOST, *headers]).status == 200


def test_an_origin_that_is_there_twice_is_refused() -> None:
    headers = [HOST, ("Origin", "https://evil.example"), ("Origin", "http://localhost:7410")]
    assert run(OPEN, "POST", "/echo", headers=headers).status == 400


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True), ("LOCALHOST:7410", True), ("127.0.0.1", True), ("127.8.0.1:80", True), ("[::1]:74", True),
        ("detent.local:1", True), ("[::1]", True), ("evil.example:7410", False), ("", False), ("localhost.evil", False),
        ("127.0.0.1.evil.example", False), ("10.0.0.1", False), ("[::2]", False), ("::1", False),
        ("localhost:x", False), ("localhost@evil", False), ("user@localhost:74", False), ("0.0.0.0", False),
        ("[localhost]", False),
    ],
)  # fmt: skip
def test_without_keys_a_server_knows_its_own_names_only(host: str, is_own: bool) -> None:
    """A page can have its own name lead to this machine, and is then of the origin that it asks."""
    app = ServerApplication([Echo()], hosts=own_hosts("detent.local"))
    answer = run(app, "GET", "/echo", headers=[("Host", host), ("Origin", f"http://{host}")] if host else [])
    assert answer.status == (200 if is_own else 403)
    assert is_own or "localhost" in answer.json["message"]


# -- signatures and keys ------------------------------------------------------------------------------------------


def signed(body: bytes, path: str = "/echo", kind: str = "", key: Key = KEY) -> list[tuple[str, str]]:
    """The headers of a request that botocore has signed."""
    request = AWSRequest("POST", f"http://localhost:7410{path}", data=body, headers={"Content-Type": kind or "x/y"})
    SigV4Auth(Credentials(key.id, key.secret), "sqs", "eu-central-1").add_auth(request)
    return [HOST, *((name, value) for name, value in request.headers.items())]


def test_a_signed_request_is_let_in_with_its_body() -> None:
    assert run(LOCKED, "POST", "/echo", headers=signed(b"mine"), body=b"mine").json["body"] == "mine"
    assert run(LOCKED, "POST", "/echo", headers=signed(b"mine"), body=b"theirs").status == 401


def test_the_body_of_a_stranger_is_not_read() -> None:
    """Nor of anybody whose signature cannot be right, whatever the body."""
    unknown = new_key("stranger", ["publish:queue:a"], now=datetime.now(UTC))
    fine = dict(signed(b"x"))
    wrong = [
        dict(signed(b"x", key=unknown)),
        {**fine, "X-Amz-Date": "20200101T000000Z"},
        {name: value for name, value in fine.items() if name != "Content-Type"} | {"Authorization": fine[
            "Authorization"].replace("SignedHeaders=", "SignedHeaders=accept;")},
        {**fine, "Authorization": fine["Authorization"].replace("/sqs/", "/s3/")},
    ]  # fmt: skip

    async def never() -> dict[str, Any]:
        raise AssertionError("the body was asked for")

    for headers in wrong:
        arrived = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/echo", "query_string": b"", "headers": arrived}
        answered: list[dict[str, Any]] = []

        async def send(message: dict[str, Any], answered: list[dict[str, Any]] = answered) -> None:
            answered.append(message)

        asyncio.run(LOCKED(scope, never, send))
        assert answered[0]["status"] == 401


def test_a_key_that_is_revoked_while_the_body_comes_counts_no_more() -> None:
    ring = KeyRing([KEY])
    app = ServerApplication([Echo()], keys=ring)

    class Revoking(list[dict[str, Any]]):
        def pop(self, *_: Any) -> dict[str, Any]:
            ring._take([])
            return {"type": "http.request", "body": b"x", "more_body": False}

    async def main() -> int:
        incoming, statuses = Revoking(), []

        async def receive() -> dict[str, Any]:
            return incoming.pop(0)

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        arrived = [(name.lower().encode(), value.encode()) for name, value in signed(b"x")]
        scope = {"type": "http", "method": "POST", "path": "/echo", "query_string": b"", "headers": arrived}
        await app(scope, receive, send)
        return statuses[0]

    assert asyncio.run(main()) == 401


def test_keys_that_cannot_be_read_are_the_operators_affair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.json"
    add_key(path, KEY)
    ring = KeyRing(path=path)
    app = ServerApplication([Echo()], keys=ring)
    assert run(app, "GET", "/echo", headers=TOKEN).status == 200
    for headers, body in ((TOKEN, b""), (signed(b"x"), b"x")):
        for spoil in (path.unlink, lambda: path.write_text("no keys")):
            add_key(path, new_key("another", ["publish:queue:a"], now=datetime.now(UTC)))
            spoil()
            ring._looked = 0.0
            answer = run(app, "POST", "/echo", headers=headers, body=body)
            assert answer.status == 503
            assert str(tmp_path) not in answer.body.decode()
            assert str(path) in caplog.text
            path.unlink(missing_ok=True)


def test_a_signed_request_in_detents_own_protocol_is_answered() -> None:
    everything = new_key("all", ["admin:*:*"], now=datetime.now(UTC))

    async def main() -> None:
        store = await detent.open_async("memory:")
        app = ServerApplication([NativePart(store)], keys=KeyRing([everything]))
        opened = await ask(app, "POST", "/v1/sessions", headers=signed(b"", "/v1/sessions", key=everything))
        session = bytes.fromhex(opened.json["session"])
        body = wire.encode_requests([Engaged(session, 0, 0, (Append("j", [b"x"]),))])
        headers = signed(body, "/v1/transactions", wire.TRANSACTION_TYPE, everything)
        answer = await asyncio.wait_for(ask(app, "POST", "/v1/transactions", headers=headers, body=body), 30)
        assert answer.status == 200
        (outcome,) = wire.decode_answers(answer.body, 1)
        assert isinstance(outcome, list), outcome
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_transactions_come_under_their_own_type(kind: str) -> None:
    """The types that a page may send without asking first are others."""

    async def main() -> None:
        store = await detent.open_async("memory:")
        app = ServerApplication([NativePart(store)])
        body = wire.encode_requests([Engaged(b"s" * 16, 0, 0, (Append("j", [b"x"]),))])
        headers = [("Content-Type", kind)] if kind else []
        answer = await ask(app, "POST", "/v1/transactions", headers=headers, body=body)
        assert (answer.status, answer.json["error"]) == (415, "WrongType")
        typed = [("Content-Type", wire.TRANSACTION_TYPE)]
        assert (await ask(app, "POST", "/v1/transactions", headers=typed, body=body)).status == 200
        await store.close()

    asyncio.run(main())


# -- health, readiness, metrics -----------------------------------------------------------------------------------


async def with_store(keys: KeyRing | None = None) -> Any:
    store = await detent.open_async("memory:")
    owner = store._store._connection.current
    assert isinstance(owner, LocalOwner)
    metrics = Metrics(owner.engine.time)
    owner.engine.observer = metrics
    operators = Operators(store, metrics, owner.engine)
    app = ServerApplication([operators], keys=keys, public=PUBLIC, probes=PROBES, counting=metrics)
    return store, operators, app


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


def test_probes_are_logged_when_their_answer_changes(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> list[tuple[str, int]]:
        found = [(one.path, one.status) for one in caplog.records if one.message == "request"]  # type: ignore[attr-defined]
        caplog.clear()
        return found

    async def main() -> None:
        store, operators, app = await with_store()
        with caplog.at_level("INFO", logger="detent.server"):
            for path in ("/healthz", "/readyz", "/metrics"):
                await ask(app, "GET", path)
            assert logged() == []
            await ask(app, "GET", "/nothing")
            operators.draining = True
            for _ in range(3):
                await ask(app, "GET", "/readyz")
            assert logged() == [("/nothing", 404), ("/readyz", 503)]
            operators.draining = False
            await ask(app, "GET", "/readyz")
            assert logged() == [("/readyz", 200)]
        with caplog.at_level("DEBUG", logger="detent.server"):
            await ask(app, "GET", "/readyz")
            assert logged() == [("/readyz", 200)]
        await store.close()

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
        assert found[("detent_clock_jumps_total",)] == 0
        assert abs(found[("detent_clock_difference_seconds",)]) < 60
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
        async def answer(self, request: HttpRequest, caller: Caller) -> Response:
            request.operation, request.destination = "publish", "orders"
            return await super().answer(request, caller)

    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(provider.get_tracer("test"), propagate.extract, trace.SpanKind.SERVER)
    app = ServerApplication([Publishing()], tracing=tracing)
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
