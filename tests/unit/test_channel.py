"""The connections for small requests, blocking and for asyncio, against servers that do what servers should not."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import gc
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detent import forks
from detent.errors import Unavailable
from detent.remote import RemoteOwner
from detent.remote.address import Address
from detent.remote.answers import Disconnected
from detent.remote.channel import AsyncChannel, Channel, Exchange, HttpAnswer
from processes import eventually

KIND = "x/test"
PATIENCE_S = 20.0

Script = Callable[["Line"], None]


class Line:
    """A server's end of one connection."""

    def __init__(self, line: socket.socket, stop: threading.Event) -> None:
        self.socket = line
        self.stop = stop
        self._seen = b""

    def read(self) -> tuple[bytes, bytes]:
        """One request: its head and its body. `EOFError` when the client has hung up."""
        while b"\r\n\r\n" not in self._seen:
            self._more()
        head, _, self._seen = self._seen.partition(b"\r\n\r\n")
        sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        parts, size = [self._seen], int(sizes[0])
        missing = size - len(self._seen)
        while missing > 0:
            parts.append(self.socket.recv(min(missing, 1 << 20)))
            missing -= len(parts[-1])
            if not parts[-1]:
                raise EOFError
        body = b"".join(parts)
        self._seen = body[size:]
        return head, body[:size]

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._seen += data

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hangs_up(self) -> None:
        """Wait until the client does."""
        while self.socket.recv(1 << 16):
            pass


class Server:
    """Runs a script for each connection: the first for the first, the last for all later ones."""

    def __init__(self, listener: socket.socket, address: Address, scripts: list[Script], tls: Any = None) -> None:
        self.address = address
        self.accepted = 0
        self.failures: list[BaseException] = []
        self._listener = listener
        self._scripts = scripts
        self._tls = tls
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError as error:
                if error.errno != errno.EINVAL:  # what `close` does to it
                    raise
                return
            script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
            self.accepted += 1
            self._threads.append(threading.Thread(target=self._run, args=(script, line), daemon=True))
            self._threads[-1].start()

    def _run(self, script: Script, line: socket.socket) -> None:
        line.settimeout(PATIENCE_S)
        with line, contextlib.suppress(EOFError, ConnectionError, ssl.SSLError):
            if self._tls is not None:
                line = self._tls.wrap_socket(line, server_side=True)
            try:
                with line:
                    script(Line(line, self._stop))
            except AssertionError as error:
                self.failures.append(error)

    def close(self) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a connection was never closed"
        self._listener.close()
        assert not self.failures


class Twin:
    """Either channel, asked from here. The event loop of the asynchronous one stands still between two calls."""

    def __init__(self, kind: str, address: Address, keep: int = 1) -> None:
        self.runner = None if kind == "sync" else asyncio.Runner(loop_factory=loop_factory(kind))
        self.channel: Any
        if self.runner is None:
            self.channel = Channel(address, address.tls(), keep)
        else:
            self.channel = AsyncChannel(address, address.tls(), keep)

    def ask(self, content: bytes = b"?", timeout_s: float = PATIENCE_S) -> HttpAnswer:
        called = self.channel.ask("POST", "/x", content, KIND, timeout_s)
        found: HttpAnswer = called if self.runner is None else self.runner.run(called)
        return found

    def close(self) -> None:
        closing = self.channel.close()
        if self.runner is not None:
            self.runner.run(closing)
            self.runner.close()


def loop_factory(kind: str) -> Any:
    return pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else asyncio.new_event_loop


class Place:
    """Where servers are started and asked."""

    def __init__(self, kind: str, family: str, folder: Path) -> None:
        self._kind = kind
        self._family = family
        self._folder = folder
        self._ends: list[Callable[[], None]] = []

    def serve(self, *scripts: Script, tls: Any = None) -> Server:
        if self._family == "unix":
            listener = socket.socket(socket.AF_UNIX)
            path = str(self._folder / f"s{len(self._ends)}")
            listener.bind(path)
            address = Address(path)
        else:
            host = {"ipv4": "127.0.0.1", "ipv6": "::1"}[self._family]
            listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            listener.bind((host, 0))
            shown = f"[{host}]" if ":" in host else host
            address = Address(url=f"http{'' if tls is None else 's'}://{shown}:{listener.getsockname()[1]}")
        listener.listen(16)
        server = Server(listener, address, list(scripts), tls)
        self._ends.append(server.close)
        return server

    def twin(self, server: Server, keep: int = 1) -> Twin:
        twin = Twin(self._kind, server.address, keep)
        self._ends.append(twin.close)
        return twin

    def both(self, *scripts: Script) -> tuple[Server, Twin]:
        server = self.serve(*scripts)
        return server, self.twin(server)

    def close(self) -> None:
        for end in reversed(self._ends):
            end()


@pytest.fixture(params=["sync", "async", "uvloop"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["unix", "ipv4"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("DETENT_TOKEN", "DETENT_TOKEN_FILE", "DETENT_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody listens there, and nobody should ask there
    made = Place(kind, family, tmp_path)
    try:
        yield made
    finally:
        made.close()


def answer(content: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(content), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


def echo(line: Line) -> None:
    """What a good server does."""
    while True:
        line.send(answer(line.read()[1]))


def is_echoed(twin: Twin, count: int = 3) -> None:
    for number in range(count):
        content = b"own %d" % number
        assert twin.ask(content) == (200, {"content-length": str(len(content))}, content)


# -- as it should be ----------------------------------------------------------------------------------------------


def test_all_requests_travel_on_one_connection(place: Place) -> None:
    server, twin = place.both(echo)
    is_echoed(twin, 20)
    assert server.accepted == 1


@pytest.mark.parametrize("family", ["unix", "ipv4", "ipv6"], indirect=True)
def test_a_request_says_where_it_goes_and_who_sends_it(
    place: Place, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(line: Line) -> None:
        while True:
            line.send(answer(line.read()[0]))

    server, twin = place.both(show)
    monkeypatch.setenv("DETENT_TOKEN", "old")
    seen = [twin.ask().content]
    monkeypatch.setenv("DETENT_TOKEN", "new")
    seen.append(twin.ask().content)
    host = b"owner" if family == "unix" else server.address.url.removeprefix("http://").encode()
    for head, token in zip(seen, (b"old", b"new"), strict=True):
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /x HTTP/1.1"
        assert b"host: " + host in lines
        assert b"content-type: x/test" in lines
        assert (b"authorization: Bearer " + token in lines) == (family != "unix")
        assert (b"authorization" in head) == (family != "unix")


def test_large_bodies_go_both_ways(place: Place) -> None:
    _, twin = place.both(echo)
    content = bytes(range(256)) * (128 << 12)
    started = time.process_time()
    assert twin.ask(content, 120).content == content
    assert time.process_time() - started < 30, "128 MiB should take a second"
    is_echoed(twin)


def test_interim_chunked_and_unframed_answers(place: Place) -> None:
    def script(line: Line) -> None:
        line.read()
        line.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + answer(b"first"))
        line.read()
        line.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nsec\r\n3\r\nond\r\n0\r\n\r\n")
        line.read()
        line.send(b"HTTP/1.1 200 OK\r\n\r\nthi")
        line.send(b"rd")

    server, twin = place.both(script, echo)
    assert [twin.ask().content for _ in range(3)] == [b"first", b"second", b"third"]
    assert server.accepted == 1
    is_echoed(twin)
    assert server.accepted == 2


def test_whoever_wants_to_hang_up_is_let(place: Place) -> None:
    def once(line: Line) -> None:
        line.send(answer(line.read()[1], b"connection: close"))
        line.hangs_up()

    server, twin = place.both(once)
    for number in range(3):
        assert twin.ask(b"%d" % number).content == b"%d" % number
    assert server.accepted == 3


# -- as it should not be ------------------------------------------------------------------------------------------


def test_a_connection_that_died_while_idle_is_replaced_unseen(place: Place) -> None:
    gone = threading.Semaphore(0)

    def once(line: Line) -> None:
        line.send(answer(line.read()[1]))
        line.socket.close()
        gone.release()

    server, twin = place.both(once)
    for number in range(5):
        assert twin.ask(b"%d" % number).content == b"%d" % number
        gone.acquire()
    assert server.accepted == 5


CUT = {
    "at once": b"",
    "in the head": b"HTTP/1.1 200 OK\r\ncont",
    "after the head": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
    "in the content": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
    "in a chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
    "before the last chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "after a huge header": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 300_000,
    "after nonsense": b"SSH-2.0-OpenSSH\r\n\r\n",
}


@pytest.mark.parametrize("where", CUT)
def test_half_an_answer_is_a_broken_connection(place: Place, where: str) -> None:
    def half(line: Line) -> None:
        line.read()
        line.send(CUT[where])

    server, twin = place.both(half, echo)
    with pytest.raises(Disconnected, match="does not answer"):
        twin.ask()
    is_echoed(twin)
    assert server.accepted == 2


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n"])
def test_who_trickles_does_not_outlive_the_deadline(place: Place, start: bytes) -> None:
    def trickle(line: Line) -> None:
        line.read()
        line.send(start)
        while not line.stop.wait(0.01):
            line.send(b"x" if start else b"HTTP/1.1 100 C\r\n\r\n")

    _, twin = place.both(trickle, echo)
    started = time.monotonic()
    with pytest.raises(Disconnected, match="TimeoutError"):
        twin.ask(timeout_s=0.3)
    assert 0.25 < time.monotonic() - started < 5
    is_echoed(twin)


def test_who_reads_slowly_does_not_outlive_the_deadline(place: Place) -> None:
    def sip(line: Line) -> None:
        while not line.stop.wait(0.01) and line.socket.recv(1000):
            pass

    _, twin = place.both(sip, echo)
    started = time.monotonic()
    with pytest.raises(Disconnected, match="TimeoutError"):
        twin.ask(bytes(64 << 20), timeout_s=0.3)
    assert time.monotonic() - started < 10
    is_echoed(twin)


def test_a_late_answer_never_meets_a_later_request(place: Place) -> None:
    given_up = threading.Event()

    def late(line: Line) -> None:
        body = line.read()[1]
        given_up.wait()
        line.send(answer(body))
        line.hangs_up()

    _, twin = place.both(late, echo)
    with pytest.raises(Disconnected):
        twin.ask(b"too late", timeout_s=0.1)
    given_up.set()
    is_echoed(twin)


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_who_answers_twice_is_not_heard_twice(place: Place, pause_s: float) -> None:
    said = threading.Event()

    def twice(line: Line) -> None:
        body = line.read()[1]
        if pause_s:
            line.send(answer(body))
            time.sleep(pause_s)
            line.send(answer(b"again"))
        else:
            line.send(answer(body) + answer(b"again"))
        said.set()
        line.hangs_up()

    _, twin = place.both(twice, echo)
    assert twin.ask(b"first").content == b"first"
    said.wait()
    is_echoed(twin)


def test_more_content_than_was_announced_is_nobodys(place: Place) -> None:
    def too_much(line: Line) -> None:
        line.read()
        line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n")
        line.hangs_up()

    _, twin = place.both(too_much, echo)
    assert twin.ask().content == b"abc"
    is_echoed(twin)


def test_a_refusal_that_comes_before_all_is_sent(place: Place) -> None:
    def refuse(line: Line) -> None:
        line.socket.recv(1000)
        line.send(answer(b"too large", b"connection: close", status=b"413 No"))
        line.hangs_up()

    _, twin = place.both(refuse, echo)
    refused = twin.ask(bytes(32 << 20))
    assert (refused.status, refused.content) == (413, b"too large")
    is_echoed(twin)


@pytest.mark.parametrize("kind", ["sync"], indirect=True)  # a loop's transport drops what it has not read
@pytest.mark.parametrize("family", ["unix"], indirect=True)  # and so may TCP
def test_a_refusal_is_heard_of_whoever_hangs_up_then(place: Place) -> None:
    def refuse(line: Line) -> None:
        line.socket.recv(1000)
        line.send(answer(b"too large", status=b"413 No"))

    server, twin = place.both(refuse, echo)
    refused = twin.ask(bytes(32 << 20))
    assert (refused.status, refused.content) == (413, b"too large")
    is_echoed(twin)
    assert server.accepted == 2


# -- nobody there ---------------------------------------------------------------------------------------------------


def test_nobody_there(place: Place) -> None:
    server, twin = place.both(echo)
    server.close()
    place._ends.remove(server.close)
    if server.address.socket is not None:
        Path(server.address.socket).unlink()
    with pytest.raises(Disconnected, match=r"ConnectionRefusedError|FileNotFoundError"):
        twin.ask()


@pytest.mark.parametrize("family", ["unix"], indirect=True)
@pytest.mark.parametrize("kind", ["sync"], indirect=True)
def test_an_owner_that_is_gone_leaves_no_socket_to_the_garbage_collector(place: Place) -> None:
    """Its socket's file is still there when it was killed. What is not closed is a warning, and fails the test."""
    server = place.serve(echo)
    server.close()
    place._ends.remove(server.close)
    owner = RemoteOwner(server.address)
    for call in (
        owner.status,
        owner.new_session,
        lambda: owner.wait("j", 0, 10),
        lambda: owner.wait_claimable("q", 10),
    ):
        with contextlib.suppress(Disconnected):
            call()
            pytest.fail("nobody is there")
    owner.close()
    gc.collect()


@pytest.mark.parametrize("family", ["unix"], indirect=True)
def test_a_full_queue_of_callers_is_waited_for_until_the_deadline(place: Place, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        path = str(tmp_path / "full")
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                line = stack.enter_context(socket.socket(socket.AF_UNIX))
                line.setblocking(False)
                line.connect(path)
        twin = Twin(place._kind, Address(path))
        stack.callback(twin.close)
        with pytest.raises(Disconnected, match="TimeoutError"):
            twin.ask(timeout_s=0.1)
        threading.Timer(0.2, lambda: stack.enter_context(listener.accept()[0])).start()
        with pytest.raises(Disconnected, match="TimeoutError"):  # let in, but not answered
            twin.ask(timeout_s=0.5)


# -- closing --------------------------------------------------------------------------------------------------------


def test_what_was_closed_answers_no_more(place: Place) -> None:
    server, twin = place.both(echo)
    is_echoed(twin)
    closing = twin.channel.close()
    if twin.runner is not None:
        twin.runner.run(closing)
    with pytest.raises(Disconnected, match="given up"):
        twin.ask()
    eventually(lambda: not server._threads[1].is_alive(), what="the end of the connection")
    assert server.accepted == 1


@pytest.mark.parametrize("kind", ["sync"], indirect=True)
def test_closed_under_a_call_the_call_is_answered_and_closes(place: Place) -> None:
    asked, closed = threading.Event(), threading.Event()

    def slow(line: Line) -> None:
        line.read()
        asked.set()
        closed.wait()
        line.send(answer(b"at last"))
        line.hangs_up()

    server, twin = place.both(slow)
    found: list[HttpAnswer] = []
    thread = threading.Thread(target=lambda: found.append(twin.ask()))
    thread.start()
    asked.wait()
    twin.channel.close()
    closed.set()
    thread.join()
    assert [one.content for one in found] == [b"at last"]
    eventually(lambda: not server._threads[1].is_alive(), what="the end of the connection")


@pytest.mark.parametrize("kind", ["async", "uvloop"], indirect=True)
def test_closed_under_a_call_the_call_ends_at_once(place: Place) -> None:
    asked = threading.Event()

    def never(line: Line) -> None:
        line.read()
        asked.set()
        line.hangs_up()

    _, twin = place.both(never)

    async def scenario() -> None:
        call = asyncio.create_task(twin.channel.ask("POST", "/x", b"", KIND, PATIENCE_S))
        await asyncio.to_thread(asked.wait)
        await twin.channel.close()
        with pytest.raises(Disconnected, match="given up"):
            await call

    assert twin.runner is not None
    twin.runner.run(scenario())


def test_a_forked_child_may_not_ask(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _, twin = place.both(echo)
    is_echoed(twin)
    monkeypatch.setattr(forks, "generation", forks.generation + 1)
    with pytest.raises(Unavailable, match="fork"):
        twin.ask()
    monkeypatch.undo()
    is_echoed(twin)


# -- interrupted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "uvloop"], indirect=True)
@pytest.mark.parametrize("size", [10, 32 << 20])
def test_after_a_cancelled_call_the_next_gets_its_own_answer(place: Place, size: int) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def late(line: Line) -> None:
        if size > 10:
            line.socket.recv(1000)  # and leaves the rest where it is
        else:
            line.read()
        asked.set()
        cancelled.wait()
        line.send(answer(b"of the cancelled one"))
        line.hangs_up()

    _, twin = place.both(late, echo)

    async def scenario() -> None:
        call = asyncio.create_task(twin.channel.ask("POST", "/x", bytes(size), KIND, PATIENCE_S))
        await asyncio.to_thread(asked.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not twin.channel._idle
        assert not twin.channel._used
        cancelled.set()
        assert (await twin.channel.ask("POST", "/x", b"own", KIND, PATIENCE_S)).content == b"own"

    assert twin.runner is not None
    twin.runner.run(scenario())
    is_echoed(twin)


@pytest.mark.parametrize("kind", ["sync"], indirect=True)
@pytest.mark.parametrize("step", ["request", "receive"])
@pytest.mark.parametrize("asked_before", [False, True])
def test_after_an_interrupt_the_next_gets_its_own_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str, asked_before: bool
) -> None:
    server, twin = place.both(echo)
    if asked_before:
        is_echoed(twin)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Exchange, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            twin.ask(b"of the interrupted one")
    is_echoed(twin)
    assert server.accepted == 2


def test_many_at_once_each_get_their_own(place: Place) -> None:
    """Nobody does that to a channel for transactions, but nobody would get another's answer."""
    _, twin = place.both(echo)
    wanted = [b"%d" % number for number in range(8)]
    assert sorted(asked_at_once(twin, wanted)) == wanted
    assert len(twin.channel._idle) <= 1 or twin.runner is None
    is_echoed(twin)


def test_as_many_connections_are_kept_as_it_is_told(place: Place) -> None:
    all_there = threading.Barrier(4)

    def meet(line: Line) -> None:
        """Nobody is answered before all have asked."""
        while True:
            body = line.read()[1]
            all_there.wait(PATIENCE_S)
            line.send(answer(body))

    server = place.serve(meet)
    twin = place.twin(server, keep=3)
    wanted = [b"%d" % number for number in range(4)]
    for _ in range(3):
        assert sorted(asked_at_once(twin, wanted)) == wanted
        kept = len(twin.channel._idle)
        assert kept == 3 or (twin.runner is None and kept == 4), "threads that come back in one moment do not count"
    assert server.accepted <= 4 + 1 + 1, "three of the first four were used again, each time"


def asked_at_once(twin: Twin, wanted: list[bytes]) -> list[bytes]:
    """What is answered to these, asked at the same time."""
    found: list[bytes] = []
    if twin.runner is None:
        threads = [threading.Thread(target=lambda body=body: found.append(twin.ask(body).content)) for body in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def scenario() -> None:
            calls = [twin.channel.ask("POST", "/x", body, KIND, PATIENCE_S) for body in wanted]
            found.extend([one.content for one in await asyncio.gather(*calls)])

        twin.runner.run(scenario())
    return found


# -- encrypted ------------------------------------------------------------------------------------------------------


def certificate(folder: Path, host: str) -> Path:
    """A certificate for an address that vouches for itself, with its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "detent test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{host}.pem"
    private = serialization.PrivateFormat.PKCS8
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )
    return path


def server_side(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize("family", ["ipv4"], indirect=True)
def test_encrypted(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path, "127.0.0.1")
    monkeypatch.setenv("DETENT_CA_FILE", str(path))
    gone = threading.Event()

    def few(line: Line) -> None:
        for _ in range(4):
            line.send(answer(line.read()[1]))
        line.socket.close()
        gone.set()

    server = place.serve(few, echo, tls=server_side(path))
    twin = place.twin(server)
    is_echoed(twin)
    content = bytes(range(256)) * (8 << 12)
    assert twin.ask(content).content == content
    assert server.accepted == 1
    gone.wait()
    is_echoed(twin)
    assert server.accepted == 2


@pytest.mark.parametrize("family", ["ipv4"], indirect=True)
@pytest.mark.parametrize("wrong", ["nobody vouches for it", "it is another's"])
def test_a_certificate_that_is_not_trusted(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    path = certificate(tmp_path, "127.0.0.1" if wrong == "nobody vouches for it" else "127.0.0.2")
    if wrong == "it is another's":
        monkeypatch.setenv("DETENT_CA_FILE", str(path))
    server = place.serve(echo, tls=server_side(path))
    with pytest.raises(Unavailable, match="not trusted") as refused:
        place.twin(server).ask()
    assert type(refused.value) is Unavailable, "trying again would not help"


@pytest.mark.parametrize("family", ["ipv4"], indirect=True)
def test_who_never_begins_to_encrypt_does_not_outlive_the_deadline(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETENT_CA_FILE", str(certificate(tmp_path, "127.0.0.1")))
    server = place.serve(lambda line: line.hangs_up())
    twin = Twin(place._kind, Address(url=server.address.url.replace("http:", "https:")))
    place._ends.append(twin.close)
    started = time.monotonic()
    with pytest.raises(Disconnected):
        twin.ask(timeout_s=0.3)
    assert time.monotonic() - started < 5
