"""Fragments as an owner takes them from clients that have no disk in common with it: written, read, measured.

The writer of a fragment does not say to which journal it will belong, and its reader could read any journal's:
both need their right on the whole store. Listing and deleting are the sweeper's, and not to be had from outside.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Final

from detent.codec.foreign import StreamedFile
from detent.errors import Busy, Invalid, LimitExceeded, NotFound, Unavailable
from detent.journal.fragments import FRAGMENT_BYTES_MAX, PASSING_BATCH_BYTES_MAX, fragment_of
from detent.kv import Objects
from detent.remote import wire
from detent.remote.asgi import OwnerCall, Reply, in_threads, number_of
from detent.runtime import thread

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

GRACE_S: Final = 30.0
BYTES_A_SECOND_MIN: Final = 64 << 10
"""How long a client may keep its upload waiting: so long, and longer by what it has sent at this rate. One that sends a
byte now and then would hold its thread, and a place that others want, for ever."""


class ServedObjects:
    """Answers for the objects of one store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._uploads = threading.BoundedSemaphore(UPLOADS_MAX)
        self._threads = thread.pool("detent-upload", UPLOADS_MAX)
        self._under_way: set[_Upload] = set()
        self._closing = False

    async def answer(self, call: OwnerCall) -> Reply:
        """Answer one request."""
        name = call.path.removeprefix(PATH)
        if fragment_of(name) is None:
            raise Invalid(f"{name[:300]!r} is no fragment's name, and nothing else is kept here")
        if call.method == "PUT":
            call.require_everywhere("publish")
            return await self._put(call, name)
        call.require_everywhere("read")
        if call.method == "HEAD":
            return await self._size(name)
        if call.method == "GET":
            return await self._get(call, name)
        raise NotFound(f"fragments are written and read here, not {call.method[:20]!r}")

    async def _put(self, call: OwnerCall, name: str) -> Reply:
        declared = dict(call.scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and len(declared) < 20 and int(declared) > OBJECT_BYTES_MAX:
            raise LimitExceeded(f"a fragment has at most {OBJECT_BYTES_MAX} bytes, not {int(declared)}")
        if self._closing:
            raise Unavailable("this store is closing")
        if not self._uploads.acquire(blocking=False):
            raise Busy(f"{UPLOADS_MAX} fragments are being written already; write this one in a moment")
        loop = asyncio.get_running_loop()
        upload = _Upload(call.parts(OBJECT_BYTES_MAX), loop)
        self._under_way.add(upload)
        try:
            size = await loop.run_in_executor(self._threads, self._store, name, upload.in_thread())
        finally:
            self._under_way.discard(upload)
            self._uploads.release()
        return Reply.json({"size": size}, status=201)

    def _store(self, name: str, parts: Iterator[bytes]) -> int:
        """Keep a fragment. On a local disk it is read and checked when a journal adopts it; from an object store that
        would bring all of it back here, so there it is checked while it passes."""
        if self._objects.local:
            return self._objects.put(name, parts)
        return self._objects.put(name, StreamedFile(parts, PASSING_BATCH_BYTES_MAX))

    async def _size(self, name: str) -> Reply:
        size = await asyncio.to_thread(self._objects.size, name)
        if size is None:
            raise NotFound(f"there is no object {name!r}")
        return Reply(headers={SIZE_HEADER: str(size)})

    async def _get(self, call: OwnerCall, name: str) -> Reply:
        fields = call.query()
        start = number_of(fields, "start") if "start" in fields else 0
        length = number_of(fields, "length") if "length" in fields else None
        data = await asyncio.to_thread(self._objects.get, name, start, length)
        return Reply(in_threads(call, _parts(data)), BYTES_TYPE, headers={SIZE_HEADER: str(len(data))})

    def close(self) -> None:
        """End the uploads under way, and with them the threads."""
        self._closing = True
        for upload in list(self._under_way):
            upload.end()
        self._threads.shutdown(wait=False)


class _Upload:
    """What comes in on a loop, for a thread that takes it part by part; until the client is too slow, or the end."""

    def __init__(self, parts: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._loop = loop
        self._size = 0
        self._waited_s = 0.0
        self._wait: asyncio.Timeout | None = None
        self._ended = False

    def in_thread(self) -> Iterator[bytes]:
        """The parts, for a thread."""
        while True:
            coming: Future[bytes | None] = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            part = coming.result(wire.BODY_WAIT_S + LOOP_SLACK_S)
            if part is None:
                return
            yield part

    def end(self) -> None:
        """Wait no longer for the client; from any thread."""
        self._ended = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(self._loop.time())

    async def _next(self) -> bytes | None:
        """The next part. Only waiting for the client is counted against it, not the time that storing takes."""
        patience_s = GRACE_S + self._size / BYTES_A_SECOND_MIN - self._waited_s
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(patience_s, wire.BODY_WAIT_S)) as self._wait:
                if self._ended:
                    raise Unavailable("this store is closing")
                part = await anext(self._parts)
        except StopAsyncIteration:
            return None
        except TimeoutError as error:
            if self._ended:
                raise Unavailable("this store is closing") from error
            raise Invalid(
                f"the fragment comes too slowly: {self._size} bytes in {self._waited_s + time.monotonic() - began:.0f} "
                f"s; after {GRACE_S:.0f} s it has to be {BYTES_A_SECOND_MIN} bytes a second"
            ) from error
        finally:
            self._wait = None
            self._waited_s += time.monotonic() - began
        self._size += len(part)
        return part


def _parts(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield bytes(data[start : start + PART_BYTES])
