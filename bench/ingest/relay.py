"""A relay on the loopback address that makes a server farther away: what passes it is late by half a round trip."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = 1 << 16


@contextmanager
def relay(port: int, round_trip_s: float) -> Iterator[int]:
    """A port behind which the server at `port` answers, a round trip later."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    chosen: list[int] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(PIECE):
                await asyncio.sleep(round_trip_s / 2)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the end of a connection, or of all of them
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        chosen.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    try:
        yield chosen[0]
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join()
