"""Reading the body of a request: at once where it is there, in parts, in time, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent.errors import Invalid, LimitExceeded
from detent.remote.bodies import Receive, read_body


def coming(*messages: dict[str, Any], waits: bool) -> Receive:
    """What a server's `receive` gives, after a turn of the loop for each if it `waits`."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if waits:
            await asyncio.sleep(0)
        return left.pop(0)

    return receive


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("parts", [[b""], [b"whole"], [b"in ", b"", b"parts"]])
def test_a_body_is_its_parts_together(parts: list[bytes], waits: bool) -> None:
    messages = [part(data, more=True) for data in parts[:-1]] + [part(parts[-1])]
    assert asyncio.run(read_body(coming(*messages, waits=waits), 100, 10)) == b"".join(parts)


@pytest.mark.parametrize("waits", [False, True])
def test_too_much_is_refused_before_the_rest_is_read(waits: bool) -> None:
    endless = [part(b"x" * 60, more=True)] * 5
    with pytest.raises(LimitExceeded, match="at most 100 bytes"):
        asyncio.run(read_body(coming(*endless, waits=waits), 100, 10))


@pytest.mark.parametrize("waits", [False, True])
def test_a_client_that_goes_away_has_sent_nothing(waits: bool) -> None:
    with pytest.raises(Invalid, match="went away"):
        asyncio.run(read_body(coming(part(b"x", more=True), {"type": "http.disconnect"}, waits=waits), 100, 10))


def test_a_client_that_stops_half_way_is_not_waited_for() -> None:
    messages = [part(b"half", more=True)]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    with pytest.raises(Invalid, match="not sent within"):
        asyncio.run(read_body(receive, 100, 0.01))


def test_a_reader_that_is_cancelled_lets_go_of_what_it_waited_for() -> None:
    ended: list[str] = []

    async def receive() -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("let go")
        raise AssertionError("nobody waits that long")

    async def run() -> None:
        reading = asyncio.create_task(read_body(receive, 100, 60))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(run())
    assert ended == ["let go"]
