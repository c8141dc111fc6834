"""Deliveries as HTTP requests with an idempotency key, which a server takes for the same one when they come again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from detent import forks
from detent.durations import Duration, milliseconds
from detent.errors import Denied, DetentError, Invalid, NotFound, OutcomeUnknown, Unavailable
from detent.journal import Message
from detent.processor.sink_base import Delivered, DeliverySink, bytes_of, chosen
from detent.processor.step import Step
from detent.runtime.backoff import Backoff

RETRIES: Final = 4
RETRIES_MAX: Final = 100

PAUSE: Final = Backoff(0.2, 10.0, jitter=0.5)
"""Between two tries: doubled each time, and cut at random, so that many who failed together do not come together."""

_NO_COOKIES: Final = DefaultCookiePolicy(allowed_domains=[])
"""What a server sets is not sent back: one that sets many would get them all, with each delivery."""

RETRY_AFTER_S_MAX: Final = 60.0
"""The longest that a server's Retry-After is waited for: the processor does nothing else meanwhile."""

TOLD_CHARACTERS: Final = 500
"""What is shown of a server's refusal."""

ANSWER_BYTES_MAX: Final = 1 << 16
"""What is read of an answer, so that the connection can be used again; the rest is dropped."""

RETRIED: Final = frozenset({408, 409, 425, 429})
"""Refusals that pass. 409 is what servers say while the same key is still at work."""

_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors after which it is certain that the server has not seen the request."""

_CONNECT_S_MAX: Final = 10.0


class HttpSink(DeliverySink):
    """A request for each delivery, with the delivery key in a header: exactly once, if the server honours it.

    >>> graph.sink(input="payments", name="pay")(
    ...     HttpSink("https://pay.example/v1/charges", headers={"Authorization": f"Bearer {token}"})
    ... )

    The body is that of the message, or what `content` answers: bytes, text, or anything that becomes JSON. It gets the
    step, too, if it has a parameter of that name. Every try of a delivery has the same key in the header `key_header`;
    the server has to do only once what comes several times under one key, and has to remember keys for as long as a
    process may stand still, or be down, in the middle of a delivery. Many forget them after a day.

    An answer from 200 to 299 is the end of it. No answer, 408, 409, 425, 429 and 500 to 599 are tried again, up to
    `retries` times, later each time, or when the server's Retry-After says, though after a minute at the latest, and a
    graph that is stopped meanwhile waits for that; then the error is `Unavailable`, or `OutcomeUnknown` if the server
    may have done it. Any other answer is a refusal, and the error tells what the server said.
    Redirections are refusals: name the right URL.

    `client` is an `httpx.Client` of yours, for certificates, proxies or authentication; you close it. `timeout` is how
    long the server may be silent.
    """

    def __init__(
        self,
        url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        content: Callable[..., Any] | None = None,
        timeout: Duration = "30s",
        key_header: str = "Idempotency-Key",
        retries: int = RETRIES,
        client: httpx.Client | None = None,
    ) -> None:
        super().__init__()
        self._url = _url(url)
        self._method = method
        self._key_header = key_header
        self._headers = _headers(headers or {})
        if key_header in self._headers:
            raise Invalid(f"the header {key_header} is the delivery key's: leave it out of headers, or name key_header")
        self._content = chosen(content, "content")
        self._timeout_s = milliseconds(timeout) / 1000
        if not isinstance(retries, int) or not 0 <= retries <= RETRIES_MAX:
            raise Invalid(f"retries is a number from 0 to {RETRIES_MAX}, not {retries!r}")
        self._retries = retries
        self._given = client
        self._clients: dict[int, httpx.Client] = {}
        self._closing = threading.Event()

    def __call__(self, value: Delivered, step: Step) -> None:
        what = value if self._content is None else self._content(value, step)
        body = bytes_of(what, "content")
        headers = self._headers.copy()
        headers.setdefault("Content-Type", _type_of(what))
        headers[self._key_header] = step.key
        is_certain, why = True, ""
        for attempt in range(self._retries + 1):
            again = self._try(body, headers)
            if again is None:
                return
            is_certain, why = is_certain and again.is_certain, again.why
            if attempt < self._retries:
                self._pause(again.after_s if again.after_s is not None else PAUSE.pause_s(attempt + 1))
        kind = Unavailable if is_certain else OutcomeUnknown
        raise kind(f"{self._shown} did not take delivery {step.key} in {self._retries + 1} tries: {why}")

    def close(self) -> None:
        """Close the connections, unless the client is yours. A delivery that waits for its next try fails."""
        self._closing.set()
        with self._lock:
            super().close()
            client = self._clients.pop(forks.generation, None)
        if client is not None:
            client.close()

    # -- a try --------------------------------------------------------------------------------------------------

    def _try(self, body: bytes, headers: httpx.Headers) -> _Again | None:
        """None if the server has taken it; raises if it never will."""
        client = self._client()
        timeout = httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_S_MAX))
        try:
            with client.stream(
                self._method, self._url, content=body, headers=headers, timeout=timeout, follow_redirects=False
            ) as response:
                return self._judged(response)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
            raise Invalid(f"no such request can be sent to {self._shown}: {error}") from error
        except httpx.RequestError as error:
            return _Again(f"{type(error).__name__} {error}".strip(), None, isinstance(error, _UNSENT))

    def _judged(self, response: httpx.Response) -> _Again | None:
        status = response.status_code
        said = _read(response, self._timeout_s)
        if 200 <= status < 300:
            return None
        why = f"status {status} {said}".strip()
        if status in RETRIED or status >= 500:
            return _Again(why, _retry_after_s(response.headers.get("Retry-After")), status < 500)
        raise _refusal(status)(f"{self._shown} refused a delivery with {why}")

    def _client(self) -> httpx.Client:
        if self._given is None:
            return self._of_this_process(self._clients, lambda: httpx.Client(cookies=CookieJar(_NO_COOKIES)))
        with self._lock:
            self._require_open()
        return self._given

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            self._require_open()

    @property
    def _shown(self) -> str:
        """The URL without anything that may be secret."""
        return str(self._url.copy_with(userinfo=b"", query=None, fragment=None))


class _Again:
    """A try that may be repeated: why, when, and whether it is certain that the server has done nothing."""

    def __init__(self, why: str, after_s: float | None, is_certain: bool) -> None:
        self.why = why
        self.after_s = after_s
        self.is_certain = is_certain


def _url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise Invalid(f"a HttpSink needs a URL such as https://HOST/PATH: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise Invalid("a HttpSink needs a whole URL: https://HOST/PATH, or http://...")
    return parsed


def _headers(headers: Mapping[str, str]) -> httpx.Headers:
    try:
        found = httpx.Headers(dict(headers))
    except (TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"headers are names and values in ASCII: {error}") from error
    found.setdefault("Accept-Encoding", "identity")  # a little of it is read, and shown to people
    return found


def _type_of(value: Any) -> str:
    """What the server is told about the body, unless the user says it."""
    if isinstance(value, Message | bytes | bytearray | memoryview):
        return "application/octet-stream"
    return "text/plain; charset=utf-8" if isinstance(value, str) else "application/json"


def _read(response: httpx.Response, timeout_s: float) -> str:
    """The beginning of an answer, as text. Its status has come, so that nothing that goes wrong now changes what was
    done; a server that says its words one by one is not listened to for ever."""
    found = b""
    deadline = time.monotonic() + timeout_s
    try:
        for chunk in response.iter_bytes():
            found += chunk
            if len(found) > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                break
    except httpx.RequestError as error:
        found += f" ({type(error).__name__})".encode()
    return found[: 4 * TOLD_CHARACTERS].decode(errors="replace")[:TOLD_CHARACTERS]


def _refusal(status: int) -> type[DetentError]:
    if status in {401, 403, 407}:
        return Denied
    return NotFound if status in {404, 410} else Invalid


def _retry_after_s(text: str | None) -> float | None:
    """What a Retry-After header says, in seconds or as a date; None for what is neither."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), RETRY_AFTER_S_MAX)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError):
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return min(max(0.0, (when - datetime.now(UTC)).total_seconds()), RETRY_AFTER_S_MAX)
