"""Fragments as an owner takes them from clients that have no disk in common with it: written, read, measured.

Whoever writes a fragment does not say to which journal it will belong, and whoever reads one could read any journal's:
both need their right on the whole store. Listing and deleting are the sweeper's, and not to be had from outside.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from detent.errors import Busy, Invalid, LimitExceeded, NotFound, Unavailable
from detent.journal.fragments import FRAGMENT_BYTES_MAX, fragment_of
from detent.kv import Objects
from detent.remote import wire
from detent.remote.asgi import Call, Reply, in_threads, number_of

PATH: Final = "/v1/native/objects/"
SIZE_HEADER: Final = "detent-size"
BYTES_TYPE: Final = "application/octet-stream"

OBJECT_BYTES_MAX: Final = 2 * FRAGMENT_BYTES_MAX
"""The largest fragment that a journal adopts."""

PART_BYTES: Final = 1 << 20
LOOP_SLACK_S: Final = 5.0
"""When a loop says nothing for so much longer than a client may, it has ended."""

UPLOADS_MAX: Final = 8
"""Each one holds a thread for as long as its client takes; more are told to come again."""


class ServedObjects:
    """Answers for the objects of one store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads = threading.BoundedSemaphore(UPLOADS_MAX)
        self._threads = ThreadPoolExecutor(UPLOADS_MAX, "detent-upload")
        self._closing = False

    async def answer(self, call: Call) -> Reply:
        """Answer one request."""
        name = call.path.removeprefix(PATH)
        if fragment_of(name) is None:
            raise Invalid(f"{name[:300]!r} is no fragment's name, and nothing else is kept here")
        if call.method == "PUT":
            call.require_everywhere("publish")
            return await self._put(call, name)
        call.require_everywhere("consume")
        if call.method == "HEAD":
            return await self._size(name)
        if call.method == "GET":
            return await self._get(call, name)
        raise NotFound(f"fragments are written and read here, not {call.method[:20]!r}")

    async def _put(self, call: Call, name: str) -> Reply:
        declared = dict(call.scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and len(declared) < 20 and int(declared) > OBJECT_BYTES_MAX:
            raise LimitExceeded(f"a fragment has at most {OBJECT_BYTES_MAX} bytes, not {int(declared)}")
        if self._closing:
            raise Unavailable("this store is closing")
        if not self._uploads.acquire(blocking=False):
            raise Busy(f"{UPLOADS_MAX} fragments are being written already; write this one in a moment")
        loop = asyncio.get_running_loop()
        try:
            parts = _in_thread(call.parts(OBJECT_BYTES_MAX), loop)
            size = await loop.run_in_executor(self._threads, self._objects.put, name, parts)
        finally:
            self._uploads.release()
        return Reply.json({"size": size}, status=201)

    async def _size(self, name: str) -> Reply:
        size = await asyncio.to_thread(self._objects.size, name)
        if size is None:
            raise NotFound(f"there is no object {name!r}")
        return Reply(headers={SIZE_HEADER: str(size)})

    async def _get(self, call: Call, name: str) -> Reply:
        fields = call.query()
        start = number_of(fields, "start") if "start" in fields else 0
        length = number_of(fields, "length") if "length" in fields else None
        data = await asyncio.to_thread(self._objects.get, name, start, length)
        return Reply(in_threads(call, _parts(data)), BYTES_TYPE, headers={SIZE_HEADER: str(len(data))})

    def close(self) -> None:
        """End the threads, once what they do is done."""
        self._closing = True
        self._threads.shutdown(wait=False)


def _in_thread(parts: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """What comes in on a loop, for a thread that takes it part by part."""
    while True:
        coming: Future[bytes | None] = asyncio.run_coroutine_threadsafe(_next(parts), loop)
        part = coming.result(wire.BODY_WAIT_S + LOOP_SLACK_S)
        if part is None:
            return
        yield part


async def _next(parts: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await asyncio.wait_for(anext(parts), wire.BODY_WAIT_S)
    except StopAsyncIteration:
        return None
    except TimeoutError as error:
        raise Invalid(f"nothing more of the fragment came within {wire.BODY_WAIT_S:.0f} s") from error


def _parts(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield bytes(data[start : start + PART_BYTES])
