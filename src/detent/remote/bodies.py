"""The body of a request, as it comes: bounded in size, and in the time that it may take."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from detent.errors import Invalid, LimitExceeded

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]


async def body_parts(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """The body in parts, up to `limit` bytes."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Invalid("the client went away before it had sent its request")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise LimitExceeded(f"this request may have at most {limit} bytes")
        yield part
        if not message.get("more_body"):
            return


async def read_body(receive: Receive, limit: int, wait_s: float) -> bytes:
    """The whole body, if it has at most `limit` bytes and comes in time."""
    reading = _read(receive, limit)
    try:
        waits_for = reading.send(None)
    except StopIteration as done:  # most bodies have come with their head: no timer has to be set for them
        found: bytes = done.value
        return found
    try:
        async with asyncio.timeout(wait_s):
            return await _go_on(reading, waits_for)
    except TimeoutError as error:
        raise Invalid(f"the request was not sent within {wait_s:.0f} s") from error


async def _read(receive: Receive, limit: int) -> bytes:
    parts = [part async for part in body_parts(receive, limit)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


@types.coroutine
def _go_on(begun: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Await a coroutine that was begun by hand, and waits for something."""
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - whatever strikes here is meant for the coroutine
            step = partial(begun.throw, error)
        else:
            step = partial(begun.send, value)
        try:
            waits_for = step()
        except StopIteration as done:
            result: T = done.value
            return result
