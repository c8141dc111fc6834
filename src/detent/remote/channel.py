"""Connections for a client's small requests, its transactions and its waits: blocking, and for asyncio.

httpx serves everything else; for small requests, one at a time, it takes a client two to four times the processor time.
A caller takes a connection out, and brings it back only after a whole answer: what was cut short, by a deadline, a
cancelled task or Ctrl-C, is closed, so that a late answer never meets a later request. A caller that finds none there
opens another; as many are kept as the channel is told to. `Exchange` is HTTP/1.1 as bytes, without I/O.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

import h11

from detent import forks
from detent.forks import refuse_in_child
from detent.remote.address import Address
from detent.remote.answers import Disconnected, broken
from detent.remote.dialing import Tls, dial, dial_async, left_of

HEAD_BYTES_MAX: Final = 64 << 10
"""Status line and headers, with all interim answers before them. Owners send some hundred bytes; proxies add to it."""

ANSWER_BYTES_MAX: Final = 512 << 20
"""Above all that an owner answers; an endless answer of another program must not fill the memory."""

JOINED_BYTES_MAX: Final = 64 << 10
"""A request up to here leaves in one piece, which is one system call; above, copying would cost more than that."""

PART_BYTES: Final = 1 << 20
"""A larger request leaves in parts of this size, between which an event loop does something else."""

ERROR_CHARS_MAX: Final = 200
"""How much of what a stranger sent gets into an error."""


class NoAnswer(Exception):
    """What came on the connection is no whole answer to the request."""


class HttpAnswer(NamedTuple):
    """An answer: status, headers by their names in lower case, and the whole content."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Exchange:
    """What is said on one connection."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._waits = False
        self._head: tuple[int, dict[str, str]] | None = None
        self._head_bytes = 0
        self._content: list[bytes] = []
        self._content_bytes = 0

    def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], content: bytes
    ) -> list[bytes | memoryview]:
        """The bytes of a request, in the parts in which they are best sent."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._waits, self._head, self._head_bytes = True, None, 0
        self._content, self._content_bytes = [], 0
        # Without the word on encodings a proxy might compress the answer.
        own = [("host", self._host), ("accept-encoding", "identity"), ("content-length", str(len(content)))]
        head = self._http.send(h11.Request(method=method, target=target, headers=[*own, *headers]))
        if content:
            self._http.send_with_data_passthrough(h11.Data(data=content))
        self._http.send(h11.EndOfMessage())
        if len(content) <= JOINED_BYTES_MAX:
            return [head + content]
        view = memoryview(content)
        return [head, *(view[at : at + PART_BYTES] for at in range(0, len(view), PART_BYTES))]

    def receive(self, data: bytes) -> HttpAnswer | None:
        """Take what came; no bytes are the connection's end. The answer, once it is whole."""
        if not self._waits:
            raise NoAnswer("something came that was not asked for")
        if not data and self._head is None:
            raise NoAnswer("the connection ended before an answer came")
        if self._head is not None:
            self._http.receive_data(data)
            return self._advance()
        # h11 is shown no more than a head may have before there is one: so it does not matter in which parts it came.
        room = HEAD_BYTES_MAX - self._head_bytes
        self._head_bytes += len(data)
        self._http.receive_data(data[:room])
        answer = self._advance()
        if self._head is None and self._head_bytes >= HEAD_BYTES_MAX:
            raise NoAnswer(f"an answer's head has at most {HEAD_BYTES_MAX} bytes")
        if len(data) > room:
            self._http.receive_data(data[room:])
            answer = answer or self._advance()
        return answer

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow: all was said, nothing more came, and neither side wants to hang up."""
        http = self._http
        return http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]

    def _advance(self) -> HttpAnswer | None:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise NoAnswer(str(error)[:ERROR_CHARS_MAX]) from error
            if isinstance(event, h11.Data):
                self._content_bytes += len(event.data)
                _check_size(self._content_bytes)
                self._content.append(event.data)
            elif isinstance(event, h11.Response):
                self._head = event.status_code, _headers(event)
                _check_size(int(self._head[1].get("content-length", 0)))
            elif isinstance(event, h11.EndOfMessage):
                return self._end()
            elif not isinstance(event, h11.InformationalResponse):
                return None

    def _end(self) -> HttpAnswer:
        assert self._head is not None
        self._waits = False
        content, self._content = b"".join(self._content), []
        return HttpAnswer(*self._head, content)


def _headers(response: h11.Response) -> dict[str, str]:
    """Headers by name; those that come several times are joined, as HTTP says."""
    found: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _check_size(size: int) -> None:
    if size > ANSWER_BYTES_MAX:
        raise NoAnswer(f"an answer has at most {ANSWER_BYTES_MAX} bytes")


RECEIVE_BYTES: Final = 64 << 10

GIVEN_UP: Final = "this connection to the store's owner was given up"

Headers = list[tuple[str, str]]


class _Asking:
    """What both twins are told, and how they say it."""

    def __init__(self, address: Address, tls: Tls, keep: int = 1) -> None:
        self._address = address
        self._tls = tls
        self._keep = keep
        self._host = address.host_header
        self._generation = forks.generation
        self._closed = False

    def _headers(self, kind: str | None) -> Headers:
        """The headers of a request, if one may be made at all."""
        refuse_in_child(self._generation)  # a child would mix up its answers with its parent's
        if self._closed:
            raise Disconnected(GIVEN_UP)
        token = self._address.token()
        headers = [] if kind is None else [("content-type", kind)]
        return headers if token is None else [*headers, ("authorization", f"Bearer {token}")]


class _Quiet:
    """Says whether nothing has come on a descriptor: between two exchanges, anything that does is its end."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def __bool__(self) -> bool:
        return not self._poll.poll(0)


class _Wire:
    """A connected socket, and what is said on it."""

    def __init__(self, line: socket.socket, host: str) -> None:
        self._socket = line
        self._exchange = Exchange(host)
        self._quiet = _Quiet(line.fileno())
        self._lost = False

    def ask(self, method: str, target: str, headers: Headers, content: bytes, until: float) -> HttpAnswer:
        """Send a request, and read its answer."""
        try:
            for part in self._exchange.request(method, target, headers, content):
                self._send(part, until)
        except ConnectionError:
            # A server that refuses a request may answer before it has read it all, and hang up. If nothing was said,
            # the error of reading has this one as its context.
            self._lost = True
            return self._receive(until)
        return self._receive(until)

    def _send(self, part: bytes | memoryview, until: float) -> None:
        rest = memoryview(part)
        while rest:  # `sendall` would begin its time anew with each piece, when it encrypts
            self._socket.settimeout(left_of(until))
            rest = rest[self._socket.send(rest) :]

    def _receive(self, until: float) -> HttpAnswer:
        while True:
            self._socket.settimeout(left_of(until))
            answer = self._exchange.receive(self._socket.recv(RECEIVE_BYTES))
            if answer is not None:
                return answer

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        return not self._lost and self._exchange.is_reusable and bool(self._quiet)

    def close(self) -> None:
        self._socket.close()


class Channel(_Asking):
    """Requests to an owner, for threads."""

    def __init__(self, address: Address, tls: Tls, keep: int = 1) -> None:
        super().__init__(address, tls, keep)
        self._idle: list[_Wire] = []  # taken from and put back by single steps of the interpreter, in any thread

    def ask(self, method: str, target: str, content: bytes, kind: str | None, timeout_s: float) -> HttpAnswer:
        """The answer to a request, whatever it says. `Disconnected` if none came within the time. `kind` is the type of
        what is sent, if anything is."""
        headers = self._headers(kind)
        until = time.monotonic() + timeout_s
        try:
            wire = self._take() or _Wire(dial(self._address, self._tls, until), self._host)
            try:
                answer = wire.ask(method, target, headers, content, until)
            except BaseException:
                wire.close()
                raise
        except (OSError, NoAnswer) as error:
            raise broken(error) from error
        self._bring_back(wire)
        return answer

    def _take(self) -> _Wire | None:
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if wire.is_usable:
                return wire
            wire.close()
        return None

    def _bring_back(self, wire: _Wire) -> None:
        if len(self._idle) >= self._keep or not wire.is_usable:
            wire.close()
            return
        self._idle.append(wire)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the connections. One that is in use is closed by its user: its descriptor must not change hands."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # another thread was faster
                return


class _AsyncWire(asyncio.Protocol):
    """The same on a transport."""

    def __init__(self, host: str) -> None:
        self._exchange = Exchange(host)
        self._transport: asyncio.Transport
        self._quiet: _Quiet
        self._outcome: asyncio.Future[HttpAnswer | Exception] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._lost = False

    async def ask(self, method: str, target: str, headers: Headers, content: bytes) -> HttpAnswer:
        """Send a request, and read its answer."""
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            for part in self._exchange.request(method, target, headers, content):
                if self._outcome.done():  # refused before all was sent
                    self._lost = True
                    break
                self._transport.write(part)
                if self._writable is not None:
                    await self._writable
            outcome = await self._outcome
        finally:
            self._outcome = None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        if self._lost or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        return self._exchange.is_reusable and bool(self._quiet)

    def close(self) -> None:
        self._lost = True
        self._transport.abort()

    # -- what the transport reports -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._quiet = _Quiet(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._exchange.receive(data)
        except NoAnswer as error:
            self._decide(error)
            self.close()
        else:
            if answer is not None:
                self._decide(answer)

    def eof_received(self) -> None:
        self._lost = True
        if self._outcome is not None and not self._outcome.done():
            self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._decide(error or NoAnswer("the connection was closed"))

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _decide(self, outcome: HttpAnswer | Exception) -> None:
        """Tell the caller that waits for an answer, if one does, also if it still waits to send."""
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)
        self.resume_writing()


class AsyncChannel(_Asking):
    """The same for the tasks of one event loop."""

    def __init__(self, address: Address, tls: Tls, keep: int = 1) -> None:
        super().__init__(address, tls, keep)
        self._idle: list[_AsyncWire] = []
        self._used: set[_AsyncWire] = set()

    async def ask(self, method: str, target: str, content: bytes, kind: str | None, timeout_s: float) -> HttpAnswer:
        """The answer to a request, whatever it says. `Disconnected` if none came within the time. `kind` is the type of
        what is sent, if anything is."""
        headers = self._headers(kind)
        try:
            async with asyncio.timeout(timeout_s):
                wire = self._take() or await dial_async(self._address, self._tls, lambda: _AsyncWire(self._host))
                self._used.add(wire)
                try:
                    if self._closed:  # while it was dialled
                        raise NoAnswer(GIVEN_UP)
                    answer = await wire.ask(method, target, headers, content)
                except BaseException:
                    wire.close()
                    raise
                finally:
                    self._used.discard(wire)
                self._bring_back(wire)
        except (OSError, NoAnswer) as error:
            raise (Disconnected(GIVEN_UP) if self._closed else broken(error)) from error
        return answer

    def _take(self) -> _AsyncWire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_usable:
                return wire
            wire.close()
        return None

    def _bring_back(self, wire: _AsyncWire) -> None:
        if len(self._idle) >= self._keep or self._closed or not wire.is_usable:
            wire.close()
        else:
            self._idle.append(wire)

    async def close(self) -> None:
        """Close the connections, also under a call: that one ends at once."""
        self._closed = True
        for wire in [*self._idle, *self._used]:
            wire.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn
