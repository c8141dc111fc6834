"""One HTTP/1.1 connection as bytes, without any I/O: a request goes out, its answer comes in, then the next.

    exchange = Exchange("host:7410")
    parts = exchange.request("POST", "/v1/transactions", [], b"...")    # bytes to send
    answer = exchange.receive(data)                                     # None until it is whole; b"" is the end

h11 knows the grammar; here are the limits, and when a connection may be used again. Both twins of
:mod:`detent.remote.channel` are thin because of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import h11

HEAD_BYTES_MAX: Final = 64 << 10
"""Status line and headers, with all interim answers before them. Owners send some hundred bytes; proxies add to it."""

ANSWER_BYTES_MAX: Final = 512 << 20
"""Above all that an owner answers; an endless answer of somebody else must not fill the memory."""

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
            raise NoAnswer("something came that nobody had asked for")
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
        """Whether another request may follow: all was said, nothing more came, and nobody wants to hang up."""
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
