"""The client's half of the wire protocol: a connection to an owner, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from detent.engine import Request, Ticket
from detent.engine.lead import GROUP_BYTES_MAX, Lead
from detent.engine.request import finish, refusal
from detent.errors import DetentError, Unavailable
from detent.remote import wire

CONNECT_S: Final = 2.0
ANSWER_S: Final = 30.0
"""How long an owner may take to answer before it counts as hung."""

ANSWER_S_MIN: Final = 0.05
CONNECTIONS_MAX: Final = 16
WAITS_MAX: Final = 12
"""Connections on which calls wait for a journal to grow. Transactions must not wait for these to come back."""

WAIT_SLACK_S: Final = 5.0
LOOK_S: Final = 0.02
"""How often those look who find no room to wait at the owner."""


class Disconnected(Unavailable):
    """The connection broke: whether the request was applied is unknown until it is sent again under its name."""


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)


def _timeout(answer_s: float) -> httpx.Timeout:
    answer_s = max(answer_s, ANSWER_S_MIN)
    return httpx.Timeout(answer_s, connect=min(CONNECT_S, answer_s), pool=answer_s)


_HEADERS: Final = {"content-type": wire.TRANSACTION_TYPE}

NO_TLS: Final = False
"""Nothing is encrypted on a Unix socket; certificates for it would take 25 ms to load."""

GIVEN_UP: Final = "this connection to the store's owner was given up"


def _wait_path(journal: str, offset: int, timeout_ms: int) -> str:
    return f"/v1/journals/{quote(journal, safe='')}/wait?offset={offset}&timeout_ms={timeout_ms}"


def _claimable_path(queue: str, timeout_ms: int) -> str:
    return f"/v1/queues/{quote(queue, safe='')}/wait?timeout_ms={min(timeout_ms, wire.WAIT_MS_MAX)}"


def _content(response: httpx.Response) -> bytes:
    if response.is_success:
        return response.content
    if response.headers.get("content-type") != wire.PROBLEM_TYPE:
        # Not the owner's own words: its server is going down, or something else answers in its place.
        raise Disconnected(f"the store's owner answered with status {response.status_code}")
    raise wire.decode_problem(response.content)


def _session(content: bytes) -> bytes:
    return bytes.fromhex(msgspec.json.decode(content, type=dict[str, str])["session"])


def _grown(content: bytes, offset: int) -> bool:
    return msgspec.json.decode(content, type=dict[str, int])["next_offset"] > offset


class RemoteOwner:
    """An owner in another process."""

    def __init__(self, socket: str, *, answer_s: float = ANSWER_S) -> None:
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket, limits=_limits(), verify=NO_TLS),
            base_url="http://owner",
            timeout=_timeout(answer_s),
        )
        self._lead = Lead(self._send_group)
        self._waits = threading.Semaphore(WAITS_MAX)
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def _call(self, method: str, path: str, **options: Any) -> bytes:
        with self._lock:
            if self._retired:  # the last user closes the connections: nobody comes after the last
                raise Disconnected(GIVEN_UP)
            self._users += 1
        try:
            return _content(self._http.request(method, path, **options))
        except httpx.TransportError as error:
            raise Disconnected(f"the store's owner does not answer: {type(error).__name__} {error}") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Disconnected(GIVEN_UP) from error
        finally:
            with self._lock:
                self._users -= 1
                last = self._retired and not self._users
            if last:
                self._http.close()

    def retire(self) -> None:
        """Close the connections when the last call that uses them has returned: closed under a call, they might be
        taken for others that have got the same descriptor."""
        with self._lock:
            self._retired = True
            unused = not self._users
        if unused:
            self._http.close()

    def status(self) -> dict[str, int]:
        """Who answers: epoch and process number."""
        return msgspec.json.decode(self._call("GET", "/v1/status"), type=dict[str, int])

    def new_session(self) -> bytes:
        """A session for this client."""
        return _session(self._call("POST", "/v1/sessions"))

    def commit(self, request: Request, timeout_s: float) -> list[Any]:
        """Have a transaction applied. Those of other threads that wait meanwhile travel in one request."""
        ticket = Ticket(request, waiter=(wire.encode_request(request), time.monotonic() + timeout_s))
        self._lead.commit(ticket)
        return ticket.outcome()

    def _send_group(self, group: list[Ticket]) -> None:
        """One leader sends for all who wait, as in the engine; see :mod:`detent.engine.lead`."""
        try:
            left = [ticket for ticket in group if not ticket.decided]
            if left:
                encoded, deadlines = zip(*(ticket.waiter for ticket in left), strict=True)
                data = wire.encode_requests(encoded)
                timeout = _timeout(max(deadlines) - time.monotonic())
                answer = self._call("POST", "/v1/transactions", content=data, headers=_HEADERS, timeout=timeout)
                for ticket, outcome in zip(left, wire.decode_answers(answer, len(left)), strict=True):
                    ticket.decide(outcome)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for ticket in group:
                ticket.refuse_undecided(error)
        finally:
            finish(group)  # an interrupted leader leaves the undecided ones to be sent again, under their names

    def wait(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """Wait until the journal's next offset is above `offset`. False after the time."""
        timeout_ms = min(timeout_ms, wire.WAIT_MS_MAX)
        answer = self._wait(_wait_path(journal, offset, timeout_ms), timeout_ms)
        return answer is not None and _grown(answer, offset)

    def wait_claimable(self, queue: str, timeout_ms: int) -> None:
        """Wait until a queue has something to claim, or for the time."""
        self._wait(_claimable_path(queue, timeout_ms), timeout_ms)

    def _wait(self, path: str, timeout_ms: int) -> bytes | None:
        """What the owner answers to a wait; None, a little later, when too many calls wait already."""
        if not self._waits.acquire(blocking=False):
            time.sleep(min(LOOK_S, timeout_ms / 1000))
            return None
        try:
            return self._call("GET", path, timeout=_timeout(timeout_ms / 1000 + WAIT_SLACK_S))
        finally:
            self._waits.release()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


_Waiting = tuple[msgspec.Raw, float, "asyncio.Future[list[Any]]"]
"""A transaction, its deadline, and who waits for its answer."""


class AsyncRemoteOwner:
    """The same for asyncio."""

    def __init__(self, socket: str, *, answer_s: float = ANSWER_S) -> None:
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=_limits(), verify=NO_TLS),
            base_url="http://owner",
            timeout=_timeout(answer_s),
        )
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._waits = 0
        self._users = 0
        self._retired = False

    async def _call(self, method: str, path: str, **options: Any) -> bytes:
        if self._retired:
            raise Disconnected(GIVEN_UP)
        self._users += 1
        try:
            return _content(await self._http.request(method, path, **options))
        except httpx.TransportError as error:
            raise Disconnected(f"the store's owner does not answer: {type(error).__name__} {error}") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Disconnected(GIVEN_UP) from error
        finally:
            self._users -= 1
            if self._retired and not self._users:
                await self._http.aclose()

    async def retire(self) -> None:
        """Close the connections when the last call that uses them has returned."""
        self._retired = True
        if not self._users:
            await self._http.aclose()

    async def new_session(self) -> bytes:
        """A session for this client."""
        return _session(await self._call("POST", "/v1/sessions"))

    async def commit(self, request: Request, timeout_s: float) -> list[Any]:
        """Have a transaction applied. Those that wait meanwhile travel in one request."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((wire.encode_request(request), time.monotonic() + timeout_s, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_waiting())
        return await future

    async def _send_waiting(self) -> None:
        """Send what waits, one request after another, until nothing does."""
        try:
            while self._waiting:
                group = [self._waiting.popleft()]
                size = len(memoryview(group[0][0]))
                while self._waiting and len(group) < wire.REQUESTS_MAX and size < GROUP_BYTES_MAX:
                    group.append(self._waiting.popleft())
                    size += len(memoryview(group[-1][0]))
                await self._send_group(group)
        finally:
            self._sender = None

    async def _send_group(self, group: list[_Waiting]) -> None:
        outcomes: list[list[Any] | DetentError]
        try:
            data = wire.encode_requests([encoded for encoded, _, _ in group])
            timeout = _timeout(max(deadline for _, deadline, _ in group) - time.monotonic())
            answer = await self._call("POST", "/v1/transactions", content=data, headers=_HEADERS, timeout=timeout)
            outcomes = wire.decode_answers(answer, len(group))
        except Exception as error:  # noqa: BLE001 - each caller gets it
            outcomes = [refusal(error) for _ in group]
        except BaseException:
            for _, _, future in group:
                future.cancel()
            raise
        for (_, _, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, DetentError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def wait(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """Wait until the journal's next offset is above `offset`. False after the time."""
        timeout_ms = min(timeout_ms, wire.WAIT_MS_MAX)
        answer = await self._wait(_wait_path(journal, offset, timeout_ms), timeout_ms)
        return answer is not None and _grown(answer, offset)

    async def wait_claimable(self, queue: str, timeout_ms: int) -> None:
        """Wait until a queue has something to claim, or for the time."""
        await self._wait(_claimable_path(queue, timeout_ms), timeout_ms)

    async def _wait(self, path: str, timeout_ms: int) -> bytes | None:
        """What the owner answers to a wait; None, a little later, when too many calls wait already."""
        if self._waits >= WAITS_MAX:
            await asyncio.sleep(min(LOOK_S, timeout_ms / 1000))
            return None
        self._waits += 1
        try:
            return await self._call("GET", path, timeout=_timeout(timeout_ms / 1000 + WAIT_SLACK_S))
        finally:
            self._waits -= 1

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
