"""The client's half of the wire protocol: a connection to an owner, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from detent.engine import Request, Ticket
from detent.engine.lead import GROUP_BYTES_MAX, Lead
from detent.engine.operation import finish, refusal
from detent.errors import Corrupt, DetentError
from detent.journal.producers import Given
from detent.message import ProducerId
from detent.remote import wire
from detent.remote.address import Address
from detent.remote.answers import Disconnected, broken, check, check_response, content_of, decoded, outcomes_of
from detent.remote.channel import GIVEN_UP, AsyncChannel, Channel
from detent.remote.dialing import CONNECT_S

ANSWER_S: Final = 30.0
"""How long an owner may take to answer before it counts as hung."""

ANSWER_S_MIN: Final = 0.05
CONNECTIONS_MAX: Final = 16
WAITS_MAX: Final = 12
"""Connections on which calls wait for a journal to grow. Transactions must not wait for these to come back."""

WAIT_SLACK_S: Final = 5.0
LOOK_S: Final = 0.02
"""How often those look who find no room to wait at the owner."""


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)


_STREAM_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS_MAX)
"""A stream holds its connection for as long as its reader takes; calls must not wait for that."""


def timeout_of(answer_s: float) -> httpx.Timeout:
    """How long the parts of one call may take."""
    answer_s = max(answer_s, ANSWER_S_MIN)
    return httpx.Timeout(answer_s, connect=min(CONNECT_S, answer_s), pool=answer_s)


def _transactions_path(address: Address) -> str:
    """A client that has the files reads contents there, which costs the owner nothing."""
    return "/v1/transactions" if address.has_files else "/v1/transactions?contents=1"


def _wait_path(journal: str, offset: int, timeout_ms: int) -> str:
    return f"/v1/native/wait/journal?journal={quote(journal, safe='')}&offset={offset}&timeout_ms={timeout_ms}"


def _claimable_path(queue: str, timeout_ms: int) -> str:
    return f"/v1/native/wait/queue?queue={quote(queue, safe='')}&timeout_ms={min(timeout_ms, wire.WAIT_MS_MAX)}"


def _session(content: bytes) -> bytes:
    try:
        return bytes.fromhex(decoded(content, dict[str, str])["session"])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"the owner gave no session: {error}") from error


def _given(content: bytes) -> Given:
    try:
        found = decoded(content, dict[str, str])
        producer, proof, sealing = (bytes.fromhex(found[name]) for name in Given._fields)
        return Given(ProducerId(producer), proof, sealing)
    except (KeyError, ValueError) as error:
        raise Corrupt(f"the owner gave no producer: {error}") from error


def _grown(content: bytes, offset: int) -> bool:
    return bool(decoded(content, dict[str, int]).get("next_offset", 0) > offset)


class RemoteOwner:
    """An owner in another process."""

    def __init__(self, address: Address, slack_s: float = WAIT_SLACK_S) -> None:
        """`slack_s` is how late the answer to a wait may be."""
        self.address = address
        self._slack_s = slack_s
        self._tls = address.tls()
        self._http = self._client(_limits())
        self._channel = Channel(address, self._tls)
        self._waits_channel = Channel(address, self._tls, keep=WAITS_MAX)
        self._streams: httpx.Client | None = None
        self._lead = Lead(self._send_group)
        self._waits = threading.Semaphore(WAITS_MAX)
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def _client(self, limits: httpx.Limits) -> httpx.Client:
        address = self.address
        return httpx.Client(
            transport=address.transport(limits, self._tls),
            base_url=address.url,
            auth=address.auth(),
            timeout=timeout_of(ANSWER_S),
        )

    def call(self, method: str, path: str, **options: Any) -> bytes:
        """What the owner answers to one request."""
        return content_of(self.ask(method, path, **options))

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to one request, whatever it is."""
        with self._using():
            return self._http.request(method, path, **options)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """An answer that is read as it comes."""
        with self._using():
            with self._lock:
                if self._streams is None:
                    self._streams = self._client(_STREAM_LIMITS)
            with self._streams.stream(method, path, **options) as response:
                if not response.is_success:
                    response.read()
                    check_response(response)
                yield response

    @contextmanager
    def _using(self) -> Iterator[None]:
        """While the connections are used they are not closed."""
        with self._lock:
            if self._retired:  # the last user closes the connections: none comes after the last
                raise Disconnected(GIVEN_UP)
            self._users += 1
        try:
            yield
        except httpx.RequestError as error:
            raise broken(error) from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Disconnected(GIVEN_UP) from error
        finally:
            with self._lock:
                self._users -= 1
                last = self._retired and not self._users
            if last:
                self.close()

    def retire(self) -> None:
        """Close the connections when the last call that uses them has returned: closed under a call, they might be
        taken for others that have got the same descriptor."""
        with self._lock:
            self._retired = True
            unused = not self._users
        if unused:
            self.close()

    def status(self, timeout_s: float = ANSWER_S) -> dict[str, int]:
        """Who answers: epoch and process number."""
        answer = self._ask_small(self._channel, "GET", "/v1/status", timeout_s)
        found: dict[str, int] = decoded(answer, dict[str, int])
        return found

    def new_session(self) -> bytes:
        """A session for this client."""
        return _session(self._ask_small(self._channel, "POST", "/v1/sessions", ANSWER_S))

    def new_producer(self) -> Given:
        """A producer for a publisher of this client."""
        return _given(self._ask_small(self._channel, "POST", "/v1/producers", ANSWER_S))

    def _ask_small(
        self, channel: Channel, method: str, path: str, timeout_s: float, content: bytes = b"", kind: str | None = None
    ) -> bytes:
        """What the owner answers to a small request; `kind` is the type of its content, if it has any."""
        with self._using():
            answer = channel.ask(method, path, content, kind, max(timeout_s, ANSWER_S_MIN))
        check(*answer)
        return answer.content

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
                answer = self._post(wire.encode_requests(encoded), max(deadlines))
                for ticket, outcome in zip(left, outcomes_of(answer, len(left), self.address), strict=True):
                    ticket.decide(outcome)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for ticket in group:
                ticket.refuse_undecided(error)
        finally:
            finish(group)  # an interrupted leader leaves the undecided ones to be sent again, under their names

    def _post(self, data: bytes, deadline: float) -> bytes:
        """What the owner answers to transactions."""
        path, kind = _transactions_path(self.address), wire.TRANSACTION_TYPE
        return self._ask_small(self._channel, "POST", path, deadline - time.monotonic(), data, kind)

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
            return self._ask_small(self._waits_channel, "GET", path, timeout_ms / 1000 + self._slack_s)
        finally:
            self._waits.release()

    def close(self) -> None:
        """Close the connections."""
        self._channel.close()
        self._waits_channel.close()
        self._http.close()
        if self._streams is not None:
            self._streams.close()


_Waiting = tuple[msgspec.Raw, float, "asyncio.Future[list[Any]]", Request]
"""A transaction, its deadline, who waits for its answer, and the request as it was given."""


class AsyncRemoteOwner:
    """The same for asyncio."""

    def __init__(self, address: Address, slack_s: float = WAIT_SLACK_S) -> None:
        self.address = address
        self._slack_s = slack_s
        tls = address.tls()
        self._channel = AsyncChannel(address, tls)
        self._waits_channel = AsyncChannel(address, tls, keep=WAITS_MAX)
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._waits = 0
        self._users = 0
        self._retired = False

    async def _ask_small(
        self,
        channel: AsyncChannel,
        method: str,
        path: str,
        timeout_s: float,
        content: bytes = b"",
        kind: str | None = None,
    ) -> bytes:
        """What the owner answers to a small request; `kind` is the type of its content, if it has any."""
        async with self._using():
            answer = await channel.ask(method, path, content, kind, max(timeout_s, ANSWER_S_MIN))
        check(*answer)
        return answer.content

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """While the connections are used they are not retired."""
        if self._retired:
            raise Disconnected(GIVEN_UP)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired and not self._users:
                await self.close()

    async def retire(self) -> None:
        """Close the connections when the last call that uses them has returned."""
        self._retired = True
        if not self._users:
            await self.close()

    async def new_session(self) -> bytes:
        """A session for this client."""
        return _session(await self._ask_small(self._channel, "POST", "/v1/sessions", ANSWER_S))

    async def commit(self, request: Request, timeout_s: float) -> list[Any]:
        """Have a transaction applied. Those that wait meanwhile travel in one request."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((wire.encode_request(request), time.monotonic() + timeout_s, future, request))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_waiting())
        return await future

    def take_back(self, request: Request) -> bool:
        """Do not send a transaction whose caller was cancelled; False if that has begun already."""
        for index, (*_, waiting) in enumerate(self._waiting):
            if waiting is request:
                del self._waiting[index]
                return True
        return False

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
            data = wire.encode_requests([encoded for encoded, *_ in group])
            answer = await self._post(data, max(deadline for _, deadline, *_ in group))
            outcomes = outcomes_of(answer, len(group), self.address)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            outcomes = [refusal(error) for _ in group]
        except BaseException:
            for _, _, future, _ in group:
                future.cancel()
            raise
        for (_, _, future, _), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, DetentError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _post(self, data: bytes, deadline: float) -> bytes:
        """What the owner answers to transactions."""
        path, kind = _transactions_path(self.address), wire.TRANSACTION_TYPE
        return await self._ask_small(self._channel, "POST", path, deadline - time.monotonic(), data, kind)

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
            return await self._ask_small(self._waits_channel, "GET", path, timeout_ms / 1000 + self._slack_s)
        finally:
            self._waits -= 1

    async def close(self) -> None:
        """Close the connections."""
        await self._channel.close()
        await self._waits_channel.close()
