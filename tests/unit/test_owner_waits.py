"""Waits at an owner, through the wire protocol: they end with their client."""

from __future__ import annotations

import asyncio
from typing import Any

from detent.queue import QueueMachine
from detent.remote.app import OwnerApp
from world import World


def test_a_wait_ends_when_its_client_goes_away() -> None:
    world = World()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def run() -> None:
        app = OwnerApp(world.engine, world.machine, QueueMachine(world.writer), world.writer)
        for path, query in (
            ("queue", b"queue=q&timeout_ms=60000"),
            ("journal", b"journal=j&offset=0&timeout_ms=60000"),
        ):
            scope = {"method": "GET", "path": f"/v1/native/wait/{path}", "query_string": query, "headers": []}
            await asyncio.wait_for(app.answer(scope, receive, None), 10)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
