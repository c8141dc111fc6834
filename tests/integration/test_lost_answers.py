"""A client that hangs up takes no message along, and uses no attempt, in each protocol of the server and on the socket.

In some tests the client hangs up while the claim is being committed, in others at random moments. A client that only
ends its own half of the connection can say afterwards whether it got the whole answer: either it has, or the claim was
undone, and there is nothing in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

import detent
from detent import Store
from detent.engine import Request
from detent.errors import OutcomeUnknown
from detent.kv.ownership import read_owner
from detent.queue import operations as ops
from detent.remote import wire
from detent.remote.dispatch import caller_on
from detent.server.api import Api
from detent.server.native import NativePart
from detent.server.sqs import SqsPart
from httpserver import HttpServer, serve
from processes import PATIENCE_S, eventually
from serveprocess import SERVE, Served

pytestmark = pytest.mark.xdist_group("lost-answers")

COUNT = 6
ACCOUNT = "000000000000"


def http(path: str, kind: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def api_claim(wait_s: int = 0) -> bytes:
    body = {"count": 2, "lease": "10m", **({"wait": f"{wait_s}s"} if wait_s else {})}
    return http("/v1/queues/q/claim", "application/json", json.dumps(body).encode())


def sqs_json_claim(wait_s: int = 0) -> bytes:
    body = {"QueueUrl": f"http://localhost/{ACCOUNT}/q", "MaxNumberOfMessages": 2, "WaitTimeSeconds": wait_s}
    target = "X-Amz-Target: AmazonSQS.ReceiveMessage"
    return http("/", "application/x-amz-json-1.0", json.dumps({**body, "VisibilityTimeout": 600}).encode(), target)


def sqs_query_claim(wait_s: int = 0) -> bytes:
    fields = {"Action": "ReceiveMessage", "MaxNumberOfMessages": 2, "WaitTimeSeconds": wait_s, "VisibilityTimeout": 600}
    return http(f"/{ACCOUNT}/q", "application/x-www-form-urlencoded", urlencode(fields).encode())


CLAIMS = {"api": api_claim, "sqs json": sqs_json_claim, "sqs query": sqs_query_claim}
RECEIPTS = {"api": rb'"receipt":"', "sqs json": rb'"ReceiptHandle":"', "sqs query": rb"<ReceiptHandle>"}


def native(session: bytes, sequence: int, *operations: Any) -> bytes:
    requests = wire.encode_requests([wire.encode_request(Request(session, sequence, 0, list(operations)))])
    return http("/v1/transactions?contents=1", wire.TRANSACTION_TYPE, requests)


def native_results(answer: bytes) -> list[Any]:
    (outcome,) = wire.decode_answers(answer.partition(b"\r\n\r\n")[2], 1)
    assert isinstance(outcome, list), outcome
    return outcome


def read_answer(line: socket.socket) -> bytes:
    """One whole answer with a length, or what came of it."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while not is_whole(data) and (part := line.recv(65536)):
            data += part
    return data


def is_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return bool(found) and length is not None and len(body) >= int(length[1])


# -- hung up while the claim is being committed ---------------------------------------------------------------------


class Held:
    """A server whose commits a test holds back."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.queue = server.store._store.queue("q")
        self.queue.create(max_attempts=1, lease="10m")
        for number in range(COUNT):
            self.queue.publish(str(number).encode())
        self._commit = server.owner.engine._writer.commit
        self.committing, self.may_commit = threading.Event(), threading.Event()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S)

    def lead_on_the_loop(self) -> None:
        async def lead() -> None:
            self.server.owner.engine.lead_on(caller_on(asyncio.get_running_loop()))

        self.server.run(lead())

    @contextlib.contextmanager
    def commits(self) -> Iterator[None]:
        """Until the block ends, a commit waits before it is made."""

        def commit(batch: Any) -> None:
            self.committing.set()
            assert self.may_commit.wait(PATIENCE_S)
            self._commit(batch)

        self.server.owner.engine._writer.commit = commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.may_commit.set()
            self.server.owner.engine._writer.commit = self._commit  # type: ignore[method-assign]

    def whole(self, wanted: int = COUNT) -> None:
        """All messages are there as if they had not been claimed."""
        eventually(lambda: self.queue.info().available == wanted)
        info = self.queue.info()
        assert (info.in_flight, info.failed, info.total_failed) == (COUNT - wanted, 0, 0)
        claimed = self.queue.claim(COUNT)
        assert [int(message.body) for message in claimed] == list(range(COUNT - wanted, COUNT))
        assert {message.attempts for message in claimed} == {1}


@pytest.fixture
def held() -> Iterator[Held]:
    with serve("memory:", lambda store: [Api(store), NativePart(store), SqsPart(store)]) as server:
        yield Held(server)
        server.owner.engine.lead_on(None)


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("leader", ["thread", "loop"])
def test_client_that_hangs_up_during_the_commit_takes_no_message(held: Held, kind: str, how: str, leader: str) -> None:
    if leader == "loop":  # as in `detent serve`: it cannot hear of the end while it commits
        held.lead_on_the_loop()
    line = held.connect()
    with held.commits():
        line.sendall(CLAIMS[kind]())
        assert held.committing.wait(PATIENCE_S)
        if how == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        line.close()
    held.whole()


@pytest.mark.parametrize("kind", CLAIMS)
def test_long_poll_that_is_hung_up_as_a_message_comes_takes_none(held: Held, kind: str) -> None:
    held.queue.purge()
    line = held.connect()
    line.sendall(CLAIMS[kind](20))
    eventually(lambda: held.server.waiters() > 0)
    with held.commits():
        publishing = threading.Thread(target=held.queue.publish, args=(b"0",))
        publishing.start()
        assert held.committing.wait(PATIENCE_S)
        line.close()
    publishing.join()
    eventually(lambda: held.server.waiters() == 0)
    (message,) = held.queue.claim(2, wait="30s")
    assert (message.body, message.attempts) == (b"0", 1)


@pytest.mark.parametrize("kind", ["api", "sqs json"])
def test_answer_that_cannot_be_put_into_words_undoes_its_claim(
    held: Held, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise MemoryError("no room for the answer")

    name = "api_queues.claimed_message" if kind == "api" else "sqs.jsonwire._encode"
    with monkeypatch.context() as patched:
        patched.setattr(f"detent.server.{name}", fail)
        with held.connect() as line:
            line.sendall(CLAIMS[kind]())
            line.settimeout(PATIENCE_S)
            with contextlib.suppress(MemoryError):
                assert b" 500 " in read_answer(line).split(b"\r\n")[0]
    held.whole()


def test_large_answer_that_is_not_read_to_its_end_undoes_its_claim(held: Held) -> None:
    held.queue.purge()
    body = bytes(4 << 20)
    for _ in range(3):
        held.queue.publish(body)
    body = json.dumps({"count": 3, "lease": "10m"}).encode()
    with held.connect() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(http("/v1/queues/q/claim", "application/json", body))
        assert line.recv(1000).startswith(b"HTTP/1.1 200")
    eventually(lambda: held.queue.info().available == 3)
    assert [message.attempts for message in held.queue.claim(3)] == [1, 1, 1]


def test_native_claim_that_was_undone_is_made_anew_when_it_is_asked_for_again(held: Held) -> None:
    """The client library asks again when its connection breaks: what it gets then has to be its own."""
    session = held.server.owner.new_session()
    ask = native(session, 0, ops.Claim("q", 2, 600_000))
    line = held.connect()
    with held.commits():
        line.sendall(ask)
        assert held.committing.wait(PATIENCE_S)
        line.close()
    eventually(lambda: held.queue.info().available == COUNT)
    with held.connect() as line:
        line.sendall(ask)
        (claimed,) = native_results(read_answer(line))
        assert (claimed.messages, claimed.attempts) == ([0, 1], [1, 1])
        line.sendall(ask)
        assert native_results(read_answer(line)) == [claimed]
    assert held.queue.info().in_flight == 2
    deliveries = [claimed.first_delivery, claimed.first_delivery + 1]
    held.server.store._store.commit([ops.Ack(claimed.queue, claimed.messages, deliveries)])


def test_native_claim_that_was_asked_for_again_in_time_is_not_undone(held: Held) -> None:
    session = held.server.owner.new_session()
    ask = native(session, 0, ops.Claim("q", 2, 600_000))
    lost, other = held.connect(), held.connect()
    with held.commits():
        lost.sendall(ask)
        assert held.committing.wait(PATIENCE_S)
        other.sendall(ask)
        time.sleep(0.05)  # it is in the engine, or comes a little later: both have to be right
        lost.close()
    (claimed,) = native_results(read_answer(other))
    other.close()
    deliveries = [claimed.first_delivery, claimed.first_delivery + 1]
    held.server.store._store.commit([ops.Ack(claimed.queue, claimed.messages, deliveries)])
    assert held.queue.info().total_acked == 2


def test_transaction_that_does_more_than_claim_is_answered_as_it_was(held: Held) -> None:
    session = held.server.owner.new_session()
    ask = native(session, 0, ops.Publish([b"more"], to="q", headers=[{"queue": "q"}]), ops.Claim("q", 1, 600_000))
    line = held.connect()
    with held.commits():
        line.sendall(ask)
        assert held.committing.wait(PATIENCE_S)
        line.close()
    with held.connect() as line:
        line.sendall(ask)
        published, claimed = native_results(read_answer(line))
    assert (published.count, claimed.messages) == (1, [0])
    assert held.queue.info().total_routed == COUNT + 1


# -- hung up at random ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served([*SERVE, f"file:{tmp_path_factory.mktemp('served') / 'store'}"])
    yield server
    server.stop()
    assert server.process.stderr is not None
    server.process.stderr.close()


@pytest.mark.parametrize("kind", CLAIMS)
def test_claim_is_either_in_its_clients_hands_or_undone(served: Served, kind: str) -> None:
    rng = random.Random(kind)
    with detent.open(served.url) as store:
        queue = store.queue("q")
        queue.create(max_attempts=1, lease="10m")
        for number in range(20):
            queue.publish(str(number).encode())
        received = 0
        for _ in range(80):
            with served.connect() as line:
                line.sendall(CLAIMS[kind](rng.choice((0, 0, 1))))
                time.sleep(rng.random() * rng.choice((0.0005, 0.003)))
                line.shutdown(socket.SHUT_WR)
                answer = read_answer(line)
            if is_whole(answer):
                assert b" 200 " in answer.split(b"\r\n")[0]
                received += len(re.findall(RECEIPTS[kind], answer))
        info = eventually(lambda: (found := queue.info()).in_flight == received and found)
        assert (info.available, info.failed, info.total_failed) == (20 - received, 0, 0)
        assert [message.attempts for message in queue.claim(20)] == [1] * (20 - received)
        queue.delete()


# -- the owner's socket ---------------------------------------------------------------------------------------------


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.queue("q").create(max_attempts=1, lease="10m")
        store.queue("q").publish_many([str(number).encode() for number in range(COUNT)])
        yield store


def connect(store: Store) -> socket.socket:
    known = read_owner(Path(store.url.removeprefix("file:")))
    assert known is not None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(PATIENCE_S)
    line.connect(known.socket)
    return line


def new_session(line: socket.socket) -> bytes:
    line.sendall(http("/v1/sessions", "application/json", b""))
    found: dict[str, str] = msgspec.json.decode(read_answer(line).partition(b"\r\n\r\n")[2])
    return bytes.fromhex(found["session"])


@pytest.mark.parametrize("part", [0, 1, 60])
def test_answer_left_unread_on_the_socket_is_undone(owned: Store, part: int) -> None:
    """As by a client that is killed between the commit and its reading of the answer."""
    line = connect(owned)
    line.sendall(native(new_session(line), 0, ops.Claim("q", 3, 600_000)))
    eventually(lambda: is_whole(line.recv(65536, socket.MSG_PEEK)))
    if part:
        line.recv(part)
    line.close()
    eventually(lambda: owned.queue("q").info().available == COUNT)
    assert [message.attempts for message in owned.queue("q").claim(COUNT)] == [1] * COUNT


def test_answer_that_was_read_stays_its_clients(owned: Store) -> None:
    """A consumer that dies with messages in hand has used their attempts, or a message could end its consumers for
    ever."""
    line = connect(owned)
    session = new_session(line)
    line.sendall(native(session, 0, ops.Claim("q", 2, 600_000)))
    read_answer(line)
    line.close()
    line = connect(owned)
    line.sendall(native(session, 1, ops.Claim("q", 2, 600_000)))
    read_answer(line)
    line.sendall(native(session, 2, ops.DescribeQueues("q")))
    assert select.select([line], [], [], PATIENCE_S)[0]
    line.close()  # with another answer unread than the claim's
    time.sleep(0.1)
    assert owned.queue("q").info().in_flight == 4


@pytest.mark.parametrize("stage", ["before", "after"])
def test_interrupted_claim_is_undone_before_the_interrupt_is_seen(
    owned: Store, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in (owned, detent.open(owned.url, role="client")):
        target: Any = store._connection.current
        target = getattr(target, "_channel", None) or target.engine._writer
        name = "ask" if hasattr(target, "ask") else "commit"
        original: Callable[..., Any] = getattr(target, name)
        struck: list[int] = []

        def strike(*arguments: Any, original: Callable[..., Any] = original, struck: list[int] = struck) -> Any:
            if not struck and stage == "before":
                struck.append(1)
                raise KeyboardInterrupt
            found = original(*arguments)
            if not struck:
                struck.append(1)
                raise KeyboardInterrupt
            return found

        store.queue("q").info()
        with monkeypatch.context() as patched:
            patched.setattr(target, name, strike)
            with pytest.raises(KeyboardInterrupt):
                store.queue("q").claim(3)
        assert struck
        eventually(lambda: owned.queue("q").info().available == COUNT)
        if store is not owned:
            store.close()
    assert [message.attempts for message in owned.queue("q").claim(COUNT)] == [1] * COUNT


def test_claim_that_its_client_did_not_wait_for_is_undone(owned: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gave up after its timeout, and says so; the owner finds that out when it has an answer."""
    owner: Any = owned._connection.current
    writer, may_commit = owner.engine._writer, threading.Event()
    commit = writer.commit

    def late(batch: Any) -> None:
        assert may_commit.wait(PATIENCE_S)
        commit(batch)

    with detent.open(owned.url, role="client", timeout="300ms") as client:
        client.queue("q").info()
        with monkeypatch.context() as patched:
            patched.setattr(writer, "commit", late)
            with pytest.raises(OutcomeUnknown):
                client.queue("q").claim(3)
            may_commit.set()
            eventually(lambda: owned.queue("q").info().available == COUNT)
    assert [message.attempts for message in owned.queue("q").claim(COUNT)] == [1] * COUNT


# -- stopped and killed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLAIMS)
def test_server_that_stops_undoes_what_it_could_not_hand_over(tmp_path: Path, kind: str) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("q").create(max_attempts=1, lease="10m")
        store.queue("q").publish_many([str(number).encode() for number in range(400)])
    server = Served([*SERVE, url])
    received = [0] * 4

    def consume(index: int) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                with server.connect() as line:
                    line.sendall(CLAIMS[kind]())
                    answer = read_answer(line)
                if not is_whole(answer):
                    continue
                received[index] += len(re.findall(RECEIPTS[kind], answer))

    consumers = [threading.Thread(target=consume, args=(index,)) for index in range(len(received))]
    for consumer in consumers:
        consumer.start()
    eventually(lambda: sum(received) > 40)
    assert server.stop() == 0
    for consumer in consumers:
        consumer.join()
    assert server.process.stderr is not None
    server.process.stderr.close()
    with detent.open(url) as store:
        info = store.queue("q").info()
        assert (info.in_flight, info.available, info.failed) == (sum(received), 400 - sum(received), 0)
        left = store.queue("q").claim(400)
        assert {message.attempts for message in left} <= {1}


CANCELLING = """
import asyncio, sys, detent
from unittest import mock

async def main():
    async with detent.open_async(sys.argv[1]) as store:
        await store.queue("q").info()
        claiming = asyncio.create_task(store.queue("q").claim(3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        claiming.cancel()
        await asyncio.sleep(30)

with mock.patch("detent.remote.owner.TICK_S", 3600.0):
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("point", "undone"),
    [
        ("engine.group.after_commit", False),
        ("engine.group.before_commit:2", False),
        ("engine.group.after_commit:2", True),
    ],
)
def test_owner_killed_around_the_return_of_a_claim(tmp_path: Path, point: str, undone: bool) -> None:
    """The claim and what undoes it are two commits: between them a crash leaves the claim to its lease."""
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("q").create(max_attempts=1, lease="10m")
        store.queue("q").publish_many([str(number).encode() for number in range(COUNT)])
    environment = {**os.environ, "DETENT_CRASH_AT": point}
    ended = subprocess.run([sys.executable, "-c", CANCELLING, url], env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    with detent.open(url) as store:
        info = store.queue("q").info()
        assert (info.available, info.in_flight) == ((COUNT, 0) if undone else (COUNT - 3, 3))
        claimed = store.queue("q").claim(COUNT)
        assert [int(message.body) for message in claimed] == list(range(0 if undone else 3, COUNT))
        assert {message.attempts for message in claimed} == {1}
