"""Uploads of fragments: they end when their client is too slow, and when the owner closes."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

import pytest

from arrowfuzz import file_of, stamped
from detent.errors import Busy, Invalid, Unavailable
from detent.journal.fragments import new_fragment_id, object_name
from detent.remote import served_objects
from detent.remote.asgi import OwnerCall, Reply
from detent.remote.served_objects import PATH, UPLOADS_MAX, ServedObjects

SOON_S = 5.0
"""Far more than anything here should take, and less than a client may take by itself."""


class Kept:
    """Objects that are only counted; storing takes its time."""

    local = True

    def __init__(self, part_s: float = 0.0) -> None:
        self.sizes: dict[str, int] = {}
        self._part_s = part_s

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        size = 0
        for chunk in chunks:
            time.sleep(self._part_s)
            size += len(chunk)
        self.sizes[name] = size
        return size


def upload(objects: ServedObjects, number: int, parts: Callable[[], AsyncIterator[bytes]]) -> Any:
    """The answer to a PUT whose body comes in these parts."""
    body = parts()

    async def receive() -> dict[str, Any]:
        part = await anext(body, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    name = object_name(new_fragment_id(number, b"0123456789"))
    return objects.answer(OwnerCall({"method": "PUT", "path": PATH + name, "headers": []}, receive, None))


async def trickle() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await asyncio.sleep(0.01)


async def never() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.sleep(600)


async def in_parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def at_once() -> AsyncIterator[bytes]:
    for _ in range(10):
        yield b"x" * 10_000


def test_a_fragment_on_its_way_to_an_object_store_is_checked_before_it_is_kept() -> None:
    right = file_of(stamped(3))
    at = right.index(struct.pack("<4i", 0, 6, 12, 18))
    wrong = right[:at] + struct.pack("<4i", 0, 6, 12, 8 << 20) + right[at + 16 :]

    async def main() -> None:
        kept: Any = Kept()
        kept.local = False
        objects = ServedObjects(kept)
        for number, data in enumerate((wrong, right[:-1], b"x" * 100, b"")):
            with pytest.raises(Invalid):
                await upload(objects, number, partial(in_parts, data))
        assert kept.sizes == {}
        reply: Reply = await upload(objects, 9, partial(in_parts, right))
        assert reply.status == 201
        assert list(kept.sizes.values()) == [len(right)]
        objects.close()

    asyncio.run(main())


def test_an_upload_that_trickles_is_ended_and_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_objects, "GRACE_S", 0.3)

    async def main() -> None:
        kept: Any = Kept()
        objects = ServedObjects(kept)
        slow = [asyncio.ensure_future(upload(objects, number, trickle)) for number in range(UPLOADS_MAX)]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await upload(objects, 100, at_once)
        async with asyncio.timeout(SOON_S):
            ended = await asyncio.gather(*slow, return_exceptions=True)
        assert [type(one) for one in ended] == [Invalid] * UPLOADS_MAX
        assert "too slowly" in str(ended[0])
        reply: Reply = await upload(objects, 101, at_once)
        assert reply.status == 201
        assert list(kept.sizes.values()) == [100_000]
        objects.close()

    asyncio.run(main())


def test_a_client_is_not_blamed_for_the_time_that_storing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_objects, "GRACE_S", 0.3)

    async def little() -> AsyncIterator[bytes]:
        for _ in range(10):
            await asyncio.sleep(0.001)
            yield b"x"

    async def main() -> None:
        kept: Any = Kept(part_s=0.1)
        objects = ServedObjects(kept)
        reply: Reply = await upload(objects, 0, little)
        assert reply.status == 201
        objects.close()

    asyncio.run(main())


def test_an_upload_may_take_as_long_as_its_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_objects, "GRACE_S", 0.3)

    async def steady() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 16_384
            await asyncio.sleep(0.1)

    async def main() -> None:
        kept: Any = Kept()
        objects = ServedObjects(kept)
        reply: Reply = await upload(objects, 0, steady)
        assert reply.status == 201
        objects.close()

    asyncio.run(main())


@pytest.mark.parametrize("parts", [never, trickle])
def test_an_upload_ends_at_once_when_the_owner_closes(parts: Callable[[], AsyncIterator[bytes]]) -> None:
    async def main() -> None:
        kept: Any = Kept()
        objects = ServedObjects(kept)
        waiting = [asyncio.ensure_future(upload(objects, number, parts)) for number in range(3)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await asyncio.to_thread(objects.close)
        async with asyncio.timeout(SOON_S):
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - began < SOON_S
        assert [type(one) for one in ended] == [Unavailable] * 3
        assert kept.sizes == {}
        with pytest.raises(Unavailable):
            await upload(objects, 9, at_once)

    asyncio.run(main())
