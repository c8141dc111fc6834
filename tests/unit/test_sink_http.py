"""Deliveries as requests: what is tried again, how often, and what the user is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from detent.errors import Denied, Invalid, NotFound, OutcomeUnknown, Unavailable
from detent.journal import Message
from detent.processor import sink_http
from detent.processor.sink_http import HttpSink
from detent.processor.step import Step

URL = "https://user:secret@pay.example/charges?token=hidden"
STEP = Step("shop", "pay", "s1", 7, 0, ())
MESSAGE = Message(body=b"body", producer=b"p", clock=1)

Answer = httpx.Response | Exception


class Server:
    """Answers as it is told, and notes what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.client = httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sink(self, **options: Any) -> HttpSink:
        return HttpSink(URL, client=self.client, **options)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited."""
    found: list[float] = []
    monkeypatch.setattr(HttpSink, "_pause", lambda self, seconds: found.append(seconds))
    return found


def test_a_request_as_it_is_sent() -> None:
    server = Server(httpx.Response(201))
    server.sink(method="PUT", headers={"X-Shop": "1"})(MESSAGE, STEP)
    (request,) = server.requests
    assert (request.method, str(request.url), request.content) == ("PUT", URL, b"body")
    assert request.headers["Idempotency-Key"] == "s1-7"
    assert (request.headers["X-Shop"], request.headers["Content-Type"]) == ("1", "application/octet-stream")


CONTENTS: list[tuple[Callable[..., Any], bytes, str]] = [
    (lambda value: {"a": value.body.decode()}, b'{"a":"body"}', "application/json"),
    (lambda value, step: step.key, b"s1-7", "text/plain; charset=utf-8"),
    (lambda value: b"\x00", b"\x00", "application/octet-stream"),
]


@pytest.mark.parametrize(("content", "body", "kind"), CONTENTS)
def test_a_body_of_the_user_s_own(content: Callable[..., Any], body: bytes, kind: str) -> None:
    server = Server(httpx.Response(200), httpx.Response(200))
    server.sink(content=content, key_header="X-Key")(MESSAGE, STEP)
    server.sink(content=content, headers={"content-type": "text/x"})(MESSAGE, STEP)
    first, second = server.requests
    assert (first.content, first.headers["Content-Type"], first.headers["X-Key"]) == (body, kind, "s1-7")
    assert second.headers.get_list("Content-Type") == ["text/x"]


PASSING: list[Answer] = [
    *(httpx.Response(status) for status in (408, 409, 425, 429, 500, 502, 503, 599)),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("silence"),
    httpx.RemoteProtocolError("cut off"),
]


@pytest.mark.parametrize("failure", PASSING, ids=str)
def test_what_passes_is_tried_again_under_the_same_key(failure: Answer, pauses: list[float]) -> None:
    server = Server(failure, failure, httpx.Response(204))
    server.sink()(MESSAGE, STEP)
    assert [request.headers["Idempotency-Key"] for request in server.requests] == ["s1-7"] * 3
    assert [request.content for request in server.requests] == [b"body"] * 3
    assert 0 < pauses[0] <= sink_http.PAUSE.first_s < 2 * pauses[1] <= 4 * sink_http.PAUSE.first_s


def test_it_gives_up(pauses: list[float]) -> None:
    for failures, error in (
        ([httpx.Response(429)] * 3, Unavailable),
        ([httpx.ConnectError("refused")] * 3, Unavailable),
        ([httpx.Response(500, text="boom")] * 3, OutcomeUnknown),
        ([httpx.ReadTimeout("silence"), httpx.Response(429), httpx.Response(429)], OutcomeUnknown),
    ):
        server = Server(*failures)
        with pytest.raises(Unavailable, match="3 tries") as raised:
            server.sink(retries=2)(MESSAGE, STEP)
        assert type(raised.value) is error
        assert "secret" not in str(raised.value)
        assert "hidden" not in str(raised.value)
        assert len(server.requests) == 3
    with pytest.raises(OutcomeUnknown, match="status 500 boom"):
        Server(httpx.Response(500, text="boom")).sink(retries=0)(MESSAGE, STEP)


def test_the_server_says_when(pauses: list[float]) -> None:
    now = datetime.now(UTC)
    for said, low, high in (
        ("7", 7, 7),
        ("0", 0, 0),
        ("100000", 60, 60),
        ("9" * 500, 60, 60),
        (format_datetime(now + timedelta(days=1), usegmt=True), 60, 60),
        (format_datetime(now - timedelta(days=1), usegmt=True), 0, 0),
        ("soon", 0.0001, sink_http.PAUSE.first_s),
        ("²", 0.0001, sink_http.PAUSE.first_s),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0001, sink_http.PAUSE.first_s),
        ("Mon, 01 Jan 2026 00:00:00 +99999999999999999999", 0.0001, sink_http.PAUSE.first_s),
    ):
        pauses.clear()
        answer = httpx.Response(503, headers=[(b"Retry-After", said.encode())])
        Server(answer, httpx.Response(200)).sink()(MESSAGE, STEP)
        assert low <= pauses[0] <= high, said


@pytest.mark.parametrize(
    ("status", "error"), [(400, Invalid), (401, Denied), (403, Denied), (404, NotFound), (422, Invalid), (302, Invalid)]
)
def test_refusals_are_told_and_not_tried_again(status: int, error: type[Exception]) -> None:
    server = Server(httpx.Response(status, text="no " + "x" * 10_000))
    with pytest.raises(error, match=f"https://pay.example/charges refused a delivery with status {status} no xxx") as e:
        server.sink()(MESSAGE, STEP)
    assert sink_http.TOLD_CHARACTERS < len(str(e.value)) < sink_http.TOLD_CHARACTERS + 100
    assert len(server.requests) == 1


class Breaking(httpx.SyncByteStream):
    """An answer that ends in the middle."""

    def __iter__(self) -> Any:
        yield b"do"
        raise httpx.ReadError("cut off")


def test_an_answer_that_breaks_off_after_its_status_is_one() -> None:
    server = Server(httpx.Response(200, stream=Breaking()))
    server.sink()(MESSAGE, STEP)
    with pytest.raises(Invalid, match=r"status 400 do \(ReadError\)"):
        Server(httpx.Response(400, stream=Breaking())).sink()(MESSAGE, STEP)


class Endless(httpx.SyncByteStream):
    """An answer that never ends."""

    def __iter__(self) -> Any:
        while True:
            yield b"x" * 4_096


def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    Server(httpx.Response(200, stream=Endless())).sink()(MESSAGE, STEP)
    with pytest.raises(Invalid):
        Server(httpx.Response(400, stream=Endless())).sink()(MESSAGE, STEP)


def test_closing_ends_the_wait_for_the_next_try() -> None:
    server = Server(httpx.Response(503, headers={"Retry-After": "60"}))
    sink = server.sink()
    failed: list[Exception] = []

    def deliver() -> None:
        try:
            sink(MESSAGE, STEP)
        except Unavailable as error:
            failed.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    while not server.requests:
        thread.join(0.005)
    sink.close()
    thread.join(30)
    assert "closed" in str(failed[0])
    assert not server.client.is_closed, "it is the user's"


def test_what_cannot_be_a_sink_is_refused() -> None:
    for url in ("", "ftp://x/y", "/path", "http://", "http://x:abc/", 7):
        with pytest.raises(Invalid):
            HttpSink(url)  # type: ignore[arg-type]
    for options in (
        {"headers": {"idempotency-key": "x"}},
        {"headers": {"X": "é"}},
        {"headers": {"X": 7}},
        {"retries": -1},
        {"retries": "many"},
        {"timeout": -30},
        {"content": "body"},
    ):
        with pytest.raises(Invalid):
            HttpSink(URL, **options)  # type: ignore[arg-type]
