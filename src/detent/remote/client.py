"""The client's half of the wire protocol: a connection to an owner, sync and async."""

from __future__ import annotations

import threading
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from detent.engine import Request
from detent.errors import Unavailable
from detent.remote import wire

CONNECT_S: Final = 2.0
ANSWER_S: Final = 30.0
"""How long an owner may take to answer before it counts as hung."""

ANSWER_S_MIN: Final = 0.05
CONNECTIONS_MAX: Final = 64
WAIT_SLACK_S: Final = 5.0


class Disconnected(Unavailable):
    """The connection broke: whether the request was applied is unknown until it is sent again under its name."""


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)


def _timeout(answer_s: float) -> httpx.Timeout:
    answer_s = max(answer_s, ANSWER_S_MIN)
    return httpx.Timeout(answer_s, connect=min(CONNECT_S, answer_s), pool=answer_s)


_HEADERS: Final = {"content-type": wire.TRANSACTION_TYPE}


def _wait_path(journal: str, offset: int, timeout_ms: int) -> str:
    return f"/v1/journals/{quote(journal, safe='')}/wait?offset={offset}&timeout_ms={timeout_ms}"


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
            transport=httpx.HTTPTransport(uds=socket, limits=_limits()),
            base_url="http://owner",
            timeout=_timeout(answer_s),
        )
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def _call(self, method: str, path: str, **options: Any) -> bytes:
        with self._lock:
            self._users += 1
        try:
            return _content(self._http.request(method, path, **options))
        except httpx.TransportError as error:
            raise Disconnected(f"the store's owner does not answer: {type(error).__name__} {error}") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Disconnected("this connection to the store's owner was given up") from error
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
        """Send a transaction and wait for its answer."""
        options = {"content": wire.encode_request(request), "headers": _HEADERS, "timeout": _timeout(timeout_s)}
        return wire.decode_results(self._call("POST", "/v1/transactions", **options))

    def wait(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """Wait until the journal's next offset is above `offset`. False after the time."""
        timeout_ms = min(timeout_ms, wire.WAIT_MS_MAX)
        timeout = _timeout(timeout_ms / 1000 + WAIT_SLACK_S)
        return _grown(self._call("GET", _wait_path(journal, offset, timeout_ms), timeout=timeout), offset)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncRemoteOwner:
    """The same for asyncio."""

    def __init__(self, socket: str, *, answer_s: float = ANSWER_S) -> None:
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=_limits()),
            base_url="http://owner",
            timeout=_timeout(answer_s),
        )
        self._users = 0
        self._retired = False

    async def _call(self, method: str, path: str, **options: Any) -> bytes:
        self._users += 1
        try:
            return _content(await self._http.request(method, path, **options))
        except httpx.TransportError as error:
            raise Disconnected(f"the store's owner does not answer: {type(error).__name__} {error}") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Disconnected("this connection to the store's owner was given up") from error
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
        """Send a transaction and wait for its answer."""
        options = {"content": wire.encode_request(request), "headers": _HEADERS, "timeout": _timeout(timeout_s)}
        return wire.decode_results(await self._call("POST", "/v1/transactions", **options))

    async def wait(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """Wait until the journal's next offset is above `offset`. False after the time."""
        timeout_ms = min(timeout_ms, wire.WAIT_MS_MAX)
        timeout = _timeout(timeout_ms / 1000 + WAIT_SLACK_S)
        return _grown(await self._call("GET", _wait_path(journal, offset, timeout_ms), timeout=timeout), offset)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
