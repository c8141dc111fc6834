"""Connections: how many there may be, and how long each may keep the server waiting.

Uvicorn's protocol waits for a request's head as long as the client likes, takes heads of any size, and keeps an answer
for as long as the client does not read it. Here a sweep looks at all connections about once a second and lets go of
such ones; a timer for each request would cost more than many a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from detent.errors import Invalid, Unavailable
from detent.remote import wire
from detent.remote.handing import not_read, was_read
from detent.server import http
from detent.server.app import refusal
from detent.server.http import Receive, Response, Scope, Send

HEAD_WAIT_S: Final = 20.0
"""How long a client may take for the head of a request, from its connection or its first byte on."""

HEAD_BYTES_MAX: Final = http.HEADER_BYTES_MAX + http.PATH_BYTES_MAX + http.QUERY_BYTES_MAX + 8 * http.HEADERS_MAX
"""All that the application allows, and what stands between it. So much of a head is kept before it is whole."""

SEND_BYTES_MIN: Final = 64 << 10
"""What a client has to read of an answer within `SEND_WAIT_S` while its buffer is full: one that takes a byte a minute
holds as much memory as one that takes none."""

REFUSED_WAIT_S: Final = 2.0
"""The same for a connection that will only be told that there are too many: it makes room for the next to be told."""

SWEEP_S: Final = 1.0

BEYOND_MAX: Final = 64
"""Connections over the limit that are told so. Those beyond are cut off without a word: words need a descriptor."""

LOG_S: Final = 10.0
"""How often the log says that connections were refused: a client that floods the server must not flood the log."""

logger = logging.getLogger("detent.server")


class Door:
    """How many connections there may be, and how many were refused."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.beyond = limit + min(BEYOND_MAX, limit // 4)
        self.refused = 0
        self._logged = -LOG_S

    def sweep(self, connections: Iterable[HttpConnection]) -> None:
        """Look at every connection; the server's runner calls this every `SWEEP_S`."""
        for connection in list(connections):
            connection.look()
        now = time.monotonic()
        if self.refused and now - self._logged >= LOG_S:
            logger.warning("connections refused", extra={"refused": self.refused, "limit": self.limit})
            self.refused, self._logged = 0, now


class HttpConnection(HttpToolsProtocol):
    """One connection. Its waits are counted in sweeps, so that requests pay nothing for them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limit_concurrency = None  # uvicorn would refuse everybody at the limit, also who was there before
        self._door = door
        self._head_wait_s = HEAD_WAIT_S
        self._head_bytes = 0
        self._head_sweeps = 0
        self._unread = 0
        self._unread_sweeps = 0
        self._is_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Let it in; over the limit, to hear so at its first request."""
        super().connection_made(transport)
        door, count = self._door, len(self.connections)
        if count <= door.limit and len(self.tasks) <= door.limit:
            return
        door.refused += 1
        if count > door.beyond:
            transport.abort()
        else:
            self.app = cast(Any, full)
            self._head_wait_s = REFUSED_WAIT_S

    # -- heads --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is too much of a head (or of a trailer, which is the same)."""
        if self._is_over:
            return
        self._head_bytes += len(data)
        if self.cycle is not None:
            was_read(cast(Scope, self.cycle.scope))
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """The head is whole. What comes in a trailer looks like a header to the parser, and never is one here."""
        self._head_bytes = self._head_sweeps = 0
        flaw = self._flaw()
        if flaw is None:
            super().on_headers_complete()
        else:
            application, self.app = self.app, cast(Any, _refusing(flaw))
            super().on_headers_complete()
            self.app = application
        self.headers = []  # the request has the list that was there until now

    def _flaw(self) -> str | None:
        """Why two readers of this head could differ in where its body ends, or in whom it is for."""
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings[0].lower() != b"chunked" or len(codings) > 1):
            return "a body is sent with a content-length, or chunked, and coded in no other way"
        if codings and self.parser.get_http_version() == "1.0":
            return "HTTP/1.0 has no chunked bodies"
        if self.parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self.headers):
            return "this server speaks HTTP/1.1 alone: send no Upgrade with a body"
        if (
            not self.url.startswith((b"/", b"*"))
            and _authority(self.url) != dict(self.headers).get(b"host", b"").lower()
        ):
            return "the address of this request names another host than its header Host does"
        return None

    def _unsupported_upgrade_warning(self) -> None:
        """The client would speak something else from here on. Its request is answered, and what follows not read."""
        self._is_over = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """What comes is not a head."""
        self._head_bytes = 0
        super().on_body(body)

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else it would get into the answer before it
            body = msgspec.json.encode(wire.Problem("LimitExceeded", f"a head has at most {HEAD_BYTES_MAX} bytes"))
            lines = f"content-type: {wire.PROBLEM_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[431] + lines.encode() + body)
        self.transport.close()

    # -- waits --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One sweep: let go of the connection if it has kept the server waiting for too long."""
        self._look_for_unread()
        if not self._awaits_head():
            self._head_sweeps = 0
            return
        self._head_sweeps += 1
        if self._head_sweeps * SWEEP_S > self._head_wait_s:
            self.transport.close()

    def _awaits_head(self) -> bool:
        """Whether the next step is the client's: no answer is under way, and uvicorn's timer for connections that rest
        is not set."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def _look_for_unread(self) -> None:
        size = self.transport.get_write_buffer_size()
        # While the buffer is full nothing is added to it, so its size says how much was read; else any change will do.
        enough = SEND_BYTES_MIN if self.flow.write_paused else 1
        if size == 0 or size > self._unread or size <= self._unread - enough:
            self._unread, self._unread_sweeps = size, 0
            return
        self._unread_sweeps += 1
        if self._unread_sweeps * SWEEP_S > http.SEND_WAIT_S:
            logger.info("an answer was not read", extra={"client": _name(self.client), "left": size})
            if self.cycle is not None:
                not_read(cast(Scope, self.cycle.scope))
            self.transport.abort()

    def resume_writing(self) -> None:
        """The client has read what was in the way of more."""
        self._unread = self._unread_sweeps = 0
        super().resume_writing()

    # -- the end ------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended. A pipe that broke is an answer that could not be written; a reset may come from anything in
        between, also when the client has its answer."""
        if self.cycle is not None and isinstance(exc, BrokenPipeError):
            not_read(cast(Scope, self.cycle.scope))
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: a body that is still being sent is not waited for."""
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            cast(Scope, cycle.scope)[http.STOPPING] = True
            cycle.message_event.set()
        super().shutdown()


_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})


def _authority(url: bytes) -> bytes:
    """The host and port of an absolute address."""
    return url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].lower()


def _refusing(flaw: str) -> Any:
    """The application of a request that is not read at all."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await _last(refusal(Invalid(flaw))).send(send)

    return refuse


def _last(said: Response) -> Response:
    """An answer behind which the connection ends."""
    return Response(said.body, status=said.status, type=said.type, headers={**said.headers, "connection": "close"})


async def full(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of connections over the limit."""
    del scope, receive
    await _last(refusal(Unavailable("the server has too many connections; come again in a moment"))).send(send)


def _name(client: tuple[str, int] | None) -> str:
    return f"{client[0]}:{client[1]}" if client else "?"
