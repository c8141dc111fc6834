"""Several transactions in one HTTP request: each is applied or refused by itself, and answered in its place."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

import detent
from detent import Store
from detent.codec.block import HEADER_BYTES_MAX
from detent.engine import Done
from detent.engine.operation import OPERATIONS_MAX
from detent.errors import Conflict, DetentError, Exists, Invalid, LimitExceeded, NotFound, SessionExpired
from detent.journal import operations as ops
from detent.kv.ownership import read_owner
from detent.remote import RemoteOwner, wire
from processes import eventually

encode = msgspec.msgpack.encode

SENDABLE_BYTES = 1000
"""In place of the limit for what a client sends, so that a transaction over it is soon made."""


@pytest.fixture
def store(store_dir: Path) -> Iterator[Store]:
    with detent.open(f"file:{store_dir}") as opened:
        yield opened


class Caller:
    """A client that sends whatever it is told to."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket_path, verify=False), base_url="http://owner", timeout=30
        )
        self.session = bytes.fromhex(self.http.post("/v1/sessions").json()["session"])
        self._sequence = itertools.count()

    def request(self, *operations: Any) -> list[Any]:
        """A named transaction. `answered` stays 0: all of them may be sent again."""
        return [self.session, next(self._sequence), 0, list(operations)]

    def append(self, body: bytes, journal: str = "j") -> list[Any]:
        return self.request(ops.Append(journal, [body]))

    def post(self, body: bytes) -> httpx.Response:
        return self.http.post("/v1/transactions", content=body)

    def send(self, requests: list[Any]) -> list[list[Any] | DetentError]:
        answer = self.post(encode(requests))
        assert answer.status_code == 200, answer.content
        return wire.decode_answers(answer.content, len(requests))


@pytest.fixture
def caller(store: Store, store_dir: Path) -> Iterator[Caller]:
    known = read_owner(store_dir)
    assert known is not None
    made = Caller(known.socket)
    yield made
    made.http.close()


def bodies(store: Store, journal: str = "j") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()] if journal in store.journals() else []


def offsets(outcomes: list[list[Any] | DetentError]) -> list[int | type[DetentError]]:
    """What became of each append: its offset, or the kind of its error."""
    return [type(one) if isinstance(one, DetentError) else one[0].offset for one in outcomes]


def one_operation(*operation: Any) -> Any:
    return lambda caller: caller.request(list(operation))


def one_operation_too_many(caller: Caller) -> Any:
    return caller.request(*[["DeleteJournal", "bad"]] * (OPERATIONS_MAX + 1))


def too_large(caller: Caller) -> Any:
    return caller.request(ops.Append("bad", [b"x"], None, [{"header": "x" * HEADER_BYTES_MAX}]))


def not_utf8(caller: Caller) -> Any:
    return msgspec.Raw(encode(caller.append(b"x", "?")).replace(b"\xa1?", b"\xa1\xff"))


BAD: dict[str, tuple[Any, type[DetentError]]] = {
    "an operation without its fields": (one_operation("Append", "bad"), Invalid),
    "an operation with one field too many": (one_operation("DeleteJournal", "bad", 1), Invalid),
    "a field of a wrong type": (one_operation("Append", 7, [b"x"]), Invalid),
    "a field that is not text in UTF-8": (not_utf8, Invalid),
    "an operation that is none": (lambda caller: caller.request(7), Invalid),
    "an operation of an unknown kind": (one_operation("Explode", "bad"), Invalid),
    "an operation that only the owner's own process may send": (one_operation("Reap", 1), Invalid),
    "no operation": (lambda caller: caller.request(), Invalid),
    "too many operations": (one_operation_too_many, LimitExceeded),
    "a message that is too large": (too_large, LimitExceeded),
    "a name that is none": (lambda caller: caller.append(b"x", "/"), Invalid),
    "a check that fails at the end": (
        lambda caller: caller.request(ops.Append("bad", [b"x"]), ops.CheckHead("bad", 7)),
        Conflict,
    ),
    "a journal that exists": (
        lambda caller: caller.request(ops.CreateJournal("bad"), ops.CreateJournal("bad")),
        Exists,
    ),
    "a fragment that does not exist": (
        lambda caller: caller.request(ops.AdoptFragments("bad", [ops.FragmentRef(b"f" * 16, 1, 1, 1)])),
        NotFound,
    ),
    "a session that is too short": (lambda caller: [b"s", 0, 0, [ops.Append("bad", [b"x"])]], Invalid),
    "a session from long ago": (lambda caller: [bytes(16), 0, 0, [ops.Append("bad", [b"x"])]], SessionExpired),
    "a number that is text": (lambda caller: [caller.session, "0", 0, [ops.Append("bad", [b"x"])]], Invalid),
    "numbers that do not go together": (lambda caller: [caller.session, 5, 6, [ops.Append("bad", [b"x"])]], Invalid),
    "half an envelope": (lambda caller: [caller.session, 5], Invalid),
    "something else": (lambda caller: {"append": "bad"}, Invalid),
    "nothing": (lambda caller: None, Invalid),
}  # fmt: skip


class TestABadOneAmongGoodOnes:
    @pytest.mark.parametrize("name", BAD)
    def test_is_refused_alone(self, store: Store, caller: Caller, name: str) -> None:
        make, error = BAD[name]
        requests = [make(caller), caller.append(b"a"), make(caller), caller.append(b"b"), make(caller)]
        assert offsets(caller.send(requests)) == [error, 0, error, 1, error]
        assert bodies(store) == [b"a", b"b"]
        assert store.journals() == ["j"], "something of a refused transaction was applied"
        # Sent again under their names, as after a broken connection: the same answers, and no other effect.
        assert offsets(caller.send(requests)) == [error, 0, error, 1, error]
        assert bodies(store) == [b"a", b"b"]

    def test_each_says_what_is_wrong_with_it(self, store: Store, caller: Caller) -> None:
        requests, expected = [], []
        for number, (make, error) in enumerate(BAD.values()):
            requests += [caller.append(b"%d" % number), make(caller)]
            expected += [number, error]
        outcomes = caller.send(requests)
        assert offsets(outcomes) == expected
        messages = dict(zip(BAD, map(str, outcomes[1::2]), strict=True))
        assert "Explode" in messages["an operation of an unknown kind"]
        assert str(OPERATIONS_MAX) in messages["too many operations"]
        assert "'bad'" in messages["a check that fails at the end"]
        assert bodies(store) == [b"%d" % number for number in range(len(BAD))]


class TestAnswers:
    def test_stand_in_the_order_of_the_requests(self, store: Store, caller: Caller) -> None:
        # A fragment is looked at in a thread of its own and is ready later than what follows it.
        fragments = [store.journal("f").write_fragment(pa.table({"body": [b"f%d" % n]})) for n in range(5)]
        requests: list[Any] = []
        for number in range(40):
            requests.append(caller.append(b"%d" % number, f"j{number % 3}"))
            if number % 8 == 0:
                requests.append(caller.request(ops.AdoptFragments("f", [fragments[number // 8]])))
            if number % 5 == 0:
                requests.append(caller.request(ops.UpdateRegisters("r", {"n": str(number)})))
        for request, outcome in zip(requests, caller.send(requests), strict=True):
            (operation,) = request[3]
            assert isinstance(outcome, list)
            if isinstance(operation, ops.UpdateRegisters):
                assert outcome == [Done()]
            else:
                expected = (
                    operation.bodies[0]
                    if isinstance(operation, ops.Append)
                    else b"f%d" % fragments.index(operation.fragments[0])
                )
                assert bodies(store, operation.journal)[outcome[0].offset] == expected
        assert store.journal("r").registers() == {"n": "35"}, "the last one came last"

    def test_one_that_travels_twice_is_applied_once(self, store: Store, caller: Caller) -> None:
        twice = caller.append(b"a")
        first, other, second = caller.send([twice, caller.append(b"b"), twice])
        assert first == second != other
        assert bodies(store) == [b"a", b"b"]

    def test_the_later_one_sees_what_the_earlier_one_did(self, store: Store, caller: Caller) -> None:
        step = [caller.request(ops.CheckHead("j", n), ops.Append("j", [b"%d" % n])) for n in (0, 1, 1, 2)]
        results = [type(one) if isinstance(one, DetentError) else one[1].offset for one in caller.send(step)]
        assert results == [0, 1, Conflict, 2]
        assert bodies(store) == [b"0", b"1", b"2"]


class TestABodyThatIsRefusedWhole:
    def check(self, store: Store, caller: Caller, body: bytes, error: type[DetentError]) -> None:
        answer = caller.post(body)
        assert answer.headers["content-type"] == wire.PROBLEM_TYPE
        assert answer.status_code == wire.STATUS[error.__name__]
        assert type(wire.decode_problem(answer.content)) is error
        assert store.journals() == []
        assert offsets(caller.send([caller.append(b"next", "next")])) == [0], "the owner goes on"

    @pytest.mark.parametrize(
        "body", [b"", encode(None), encode(7), encode({}), encode(b"x"), b'[{"json": 1}]', b"\xc1"]
    )
    def test_no_list(self, store: Store, caller: Caller, body: bytes) -> None:
        self.check(store, caller, body, Invalid)

    def test_one_transaction_without_its_list(self, store: Store, caller: Caller) -> None:
        # Its four fields are taken for four transactions, none of which is one.
        assert offsets(caller.send(caller.append(b"x"))) == [Invalid] * 4
        assert store.journals() == []

    @pytest.mark.parametrize("count", [0, wire.REQUESTS_MAX + 1])
    def test_none_and_too_many(self, store: Store, caller: Caller, count: int) -> None:
        self.check(store, caller, encode([caller.append(b"x") for _ in range(count)]), LimitExceeded)

    def test_as_many_as_allowed_are_not_too_many(self, store: Store, caller: Caller) -> None:
        count = wire.REQUESTS_MAX
        assert offsets(caller.send([caller.append(b"x") for _ in range(count)])) == list(range(count))

    def test_far_too_many(self, store: Store, caller: Caller) -> None:
        # The length alone is enough to refuse it: nobody makes a million objects first.
        self.check(store, caller, b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\xc0" * 1_000_000, Invalid)

    def test_cut_off_anywhere(self, store: Store, caller: Caller) -> None:
        whole = encode([caller.append(b"a"), caller.append(b"b")])
        for end in range(len(whole)):
            answer = caller.post(whole[:end])
            assert (answer.status_code, type(wire.decode_problem(answer.content))) == (400, Invalid), end
        assert store.journals() == []
        assert offsets(caller.send(msgspec.msgpack.decode(whole))) == [0, 1], "uncut, they are fine"

    def test_something_behind_the_list(self, store: Store, caller: Caller) -> None:
        self.check(store, caller, encode([caller.append(b"a")]) + b"\xc0", Invalid)

    def test_more_bytes_than_allowed(self, store: Store, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wire, "BODY_BYTES_MAX", 1 << 20)
        body = encode([caller.append(b"a"), caller.append(bytes(1 << 20))])
        self.check(store, caller, body, LimitExceeded)

    def test_a_client_that_goes_away_in_the_middle(self, store: Store, caller: Caller) -> None:
        body = encode([caller.append(b"a"), caller.append(b"b")])
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30)
            line.connect(caller.socket_path)
            head = f"POST /v1/transactions HTTP/1.1\r\nhost: owner\r\ncontent-length: {len(body) + 1}\r\n\r\n"
            line.sendall(head.encode() + body)  # every transaction is there, and the body is not
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass  # until the owner has hung up
        assert store.journals() == []
        assert offsets(caller.send([caller.append(b"next")])) == [0]


# -- the same, through the API: what one caller does wrong is not another one's affair ---------------------------


@pytest.fixture
def travelled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many transactions each HTTP request has brought."""
    counts: list[int] = []
    decode = wire.decode_requests

    def counting(data: bytes) -> Any:
        found = decode(data)
        counts.append(len(found))
        return found

    monkeypatch.setattr(wire, "decode_requests", counting)
    return counts


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "REQUEST_BYTES_MAX", SENDABLE_BYTES)


def not_sendable(transaction: Any) -> None:
    transaction.set_registers("bad", {"a": "\ud800"})


def not_sendable_at_all(transaction: Any) -> None:
    transaction.append(object(), b"x")


def too_large_to_send(transaction: Any) -> None:
    transaction.append("bad", bytes(SENDABLE_BYTES))


def not_readable(transaction: Any) -> None:
    transaction.append(7, b"x")


def refused(transaction: Any) -> None:
    transaction.check_next_offset("bad", 7)


WRONG = [
    (not_sendable, Invalid),
    (not_sendable_at_all, Invalid),
    (too_large_to_send, LimitExceeded),
    (not_readable, Invalid),
    (refused, Conflict),
]


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_tasks_beside_one_that_does_wrong(
    store: Store, travelled: list[int], wrong: Any, error: type[DetentError]
) -> None:
    async def scenario() -> list[Any]:
        async with detent.open_async(store.url, role="client") as client:
            await client.journal("j").append(b"first")  # from now on there is a session, and nobody waits for one

            async def do_wrong() -> None:
                async with client.transaction() as transaction:
                    wrong(transaction)

            appends = [client.journal("j").append(b"%d" % number) for number in range(10)]
            return await asyncio.gather(*appends[:5], do_wrong(), *appends[5:], return_exceptions=True)

    outcomes = asyncio.run(scenario())
    assert type(outcomes.pop(5)) is error
    assert [one.offset for one in outcomes] == list(range(1, 11))
    assert max(travelled) >= 10, "they were to travel together"


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("wrong", "error"), WRONG)
def test_threads_beside_one_that_does_wrong(
    store: Store, travelled: list[int], monkeypatch: pytest.MonkeyPatch, wrong: Any, error: type[DetentError]
) -> None:
    appended: list[int] = []
    errors: list[BaseException] = []
    held = threading.Event()
    with detent.open(store.url, role="client") as client:
        client.journal("j").append(b"first")
        owner = client._connection.current
        assert isinstance(owner, RemoteOwner)
        post = owner._post

        def first_call_is_slow(*args: Any, **options: Any) -> bytes:
            held.wait()
            return post(*args, **options)

        monkeypatch.setattr(owner, "_post", first_call_is_slow)

        def append() -> None:
            appended.append(client.journal("j").append(b"x").offset)

        def do_wrong() -> None:
            try:
                with client.transaction() as transaction:
                    wrong(transaction)
            except DetentError as caught:
                errors.append(caught)

        leader = threading.Thread(target=append)
        leader.start()
        eventually(lambda: owner._lead._leader is not None)
        others = [threading.Thread(target=append if number != 5 else do_wrong) for number in range(11)]
        for thread in others:
            thread.start()
        eventually(lambda: len(owner._lead.waiting) + len(errors) == len(others), what="everybody behind the leader")
        held.set()
        for thread in [leader, *others]:
            thread.join()
    assert [type(one) for one in errors] == [error]
    assert sorted(appended) == list(range(1, 12))
    assert max(travelled) >= 10, "they were to travel together"
