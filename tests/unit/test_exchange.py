"""HTTP as bytes: whatever parts an answer comes in, it is the same answer; what is none is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.remote import channel as exchange_module
from detent.remote.channel import HEAD_BYTES_MAX, JOINED_BYTES_MAX, PART_BYTES, Exchange, HttpAnswer, NoAnswer

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nLast: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n" + PLAIN
CLOSED = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
UNFRAMED = b"HTTP/1.0 200 OK\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 Nothing\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n"
EXAMPLES = settings(max_examples=200, deadline=None)

ANSWERS = [PLAIN, CHUNKED, INTERIM, CLOSED, EMPTY]


def asked(host: str = "owner") -> Exchange:
    """A connection on which a request was sent."""
    made = Exchange(host)
    made.request("POST", "/x", [], b"question")
    return made


def heard(exchange: Exchange, parts: list[bytes]) -> HttpAnswer | None:
    """What comes of parts that come one after another."""
    found = None
    for part in parts:
        assert found is None, "the answer was whole before its last part"
        found = exchange.receive(part)
    return found


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places) if end > start]


@EXAMPLES
@given(st.sampled_from([*ANSWERS, UNFRAMED]), st.data())
def test_any_split_gives_the_same_answer(answer: bytes, data: st.DataObject) -> None:
    end = [b""] if answer is UNFRAMED else []
    whole, parted = asked(), asked()
    expected = heard(whole, [answer, *end])
    assert expected is not None
    cuts = data.draw(st.lists(st.integers(1, len(answer) - 1)))
    assert heard(parted, [*split(answer, cuts), *end]) == expected
    assert parted.is_reusable == whole.is_reusable == (answer not in {CLOSED, UNFRAMED})


def test_what_an_answer_says() -> None:
    assert asked().receive(PLAIN) == (200, {"content-type": "text/x", "content-length": "5"}, b"hello")
    assert asked().receive(CHUNKED) == (201, {"transfer-encoding": "chunked"}, b"hello")
    assert asked().receive(EMPTY) == (204, {"set-cookie": "a=1, b=2"}, b"")


@EXAMPLES
@given(st.sampled_from(ANSWERS), st.data())
def test_half_an_answer_is_none(answer: bytes, data: st.DataObject) -> None:
    exchange = asked()
    assert exchange.receive(answer[: data.draw(st.integers(1, len(answer) - 1))]) is None
    with pytest.raises(NoAnswer):
        exchange.receive(b"")
    assert not exchange.is_reusable


@EXAMPLES
@given(st.binary(min_size=1, max_size=200))
def test_noise_is_refused_or_waited_for_and_breaks_nothing(noise: bytes) -> None:
    exchange = asked()
    try:
        assert exchange.receive(noise) is None
        exchange.receive(b"")
    except NoAnswer:
        assert not exchange.is_reusable


@EXAMPLES
@given(st.sampled_from(ANSWERS), st.data())
def test_a_damaged_answer_raises_nothing_else(answer: bytes, data: st.DataObject) -> None:
    damaged = bytearray(answer)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    exchange = asked()
    try:
        if exchange.receive(bytes(damaged)) is None:
            exchange.receive(b"")
    except NoAnswer:
        assert not exchange.is_reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01", b"HTTP/x 200 OK\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(answer: bytes) -> None:
    exchange = asked()
    with pytest.raises(NoAnswer) as refused:
        exchange.receive(answer)
    assert len(str(refused.value)) <= 200
    assert not exchange.is_reusable


def head_of(size: int) -> bytes:
    start, end = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


@EXAMPLES
@given(st.integers(-2, 2), st.lists(st.integers(1, HEAD_BYTES_MAX - 10), max_size=5))
def test_a_head_has_a_limit_however_it_comes(over: int, cuts: list[int]) -> None:
    exchange = asked()
    parts = split(head_of(HEAD_BYTES_MAX + over), cuts)
    if over <= 0:
        assert heard(exchange, parts) is not None
    else:
        with pytest.raises(NoAnswer, match="head"):
            heard(exchange, parts)


def test_interim_answers_without_an_end_are_refused() -> None:
    exchange = asked()
    with pytest.raises(NoAnswer, match="head"):
        for _ in range(HEAD_BYTES_MAX):
            assert exchange.receive(b"HTTP/1.1 100 Continue\r\n\r\n") is None


@pytest.mark.parametrize("framing", ["declared", "chunked", "unframed"])
def test_an_answer_has_a_limit(framing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "ANSWER_BYTES_MAX", 1000)
    head = {"declared": b"content-length: 1001\r\n", "chunked": b"transfer-encoding: chunked\r\n", "unframed": b""}
    start = b"HTTP/1.1 200 OK\r\n" + head[framing] + b"\r\n"
    exchange = asked()
    with pytest.raises(NoAnswer, match="1000 bytes"):
        if exchange.receive(start) is None:
            exchange.receive((b"3e9\r\n" if framing == "chunked" else b"") + b"x" * 1001)


def test_a_request() -> None:
    exchange = Exchange("[::1]:7410")
    (data,) = exchange.request("POST", "/v1/x?a=1", [("content-type", "x/y"), ("authorization", "Bearer t")], b"body")
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    assert body == b"body"
    assert head.split(b"\r\n") == [
        b"POST /v1/x?a=1 HTTP/1.1", b"host: [::1]:7410", b"accept-encoding: identity", b"content-length: 4",
        b"content-type: x/y", b"authorization: Bearer t",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, PART_BYTES, 2 * PART_BYTES + 1])
def test_large_requests_are_sent_in_parts_and_not_copied(size: int) -> None:
    content = bytes(size)
    parts = Exchange("h").request("POST", "/", [], content)
    assert b"".join(parts).endswith(b"\r\n\r\n" + content)
    assert len(parts) == (1 if size <= JOINED_BYTES_MAX else 1 + -(-size // PART_BYTES))
    assert all(part.obj is content for part in parts if isinstance(part, memoryview))


def test_one_after_another() -> None:
    exchange = Exchange("h")
    assert not exchange.is_reusable
    for number in range(3):
        exchange.request("POST", "/", [], b"%d" % number)
        assert not exchange.is_reusable
        answer = exchange.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)
        assert answer is not None
        assert answer.content == b"%d" % number
        assert exchange.is_reusable


def test_more_than_was_asked_for_is_noticed() -> None:
    exchange = asked()
    assert exchange.receive(PLAIN + b"H") is not None
    assert not exchange.is_reusable
    exchange = asked()
    assert exchange.receive(PLAIN) is not None
    with pytest.raises(NoAnswer, match="not asked for"):
        exchange.receive(PLAIN)
