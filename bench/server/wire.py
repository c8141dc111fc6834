"""Clients for measuring servers: as little as possible between clock and socket, the same for HTTP and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

Parse = Callable[[bytearray], tuple[Any, int] | None]
"""Takes one answer off the front of what has arrived: the answer and its length, or None while it is not whole."""


class _Line(asyncio.Protocol):
    """One connection to a server, on which one call follows another."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._arrived = bytearray()
        self._waiting: asyncio.Future[Any] | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            found = self._parse(self._arrived)
        except RuntimeError as error:  # raised here, it would not be seen
            waiting.set_exception(error)
            return
        if found is not None:
            answer, length = found
            if b"connection: close" in bytes(self._arrived[:1000]).lower():
                self.transport.abort()
            del self._arrived[:length]
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server has closed the connection"))

    async def call(self, request: bytes) -> Any:
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiting


class Connection:
    """A way to a server; opened again for one that closes it after each answer."""

    def __init__(self, host: str, port: int, parse: Parse) -> None:
        self._address = host, port
        self._parse = parse
        self._line = _Line(parse)

    @classmethod
    async def open(cls, host: str, port: int, parse: Parse) -> Self:
        connection = cls(host, port, parse)
        await connection._connect()
        return connection

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._line = await loop.create_connection(lambda: _Line(self._parse), *self._address)

    async def call(self, request: bytes) -> Any:
        if self._line.transport.is_closing():
            await self._connect()
        return await self._line.call(request)

    def close(self) -> None:
        self._line.transport.close()


# -- HTTP ---------------------------------------------------------------------------------------------------------


def http_request(method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def http_answer(arrived: bytearray) -> tuple[bytes, int] | None:
    """The body of an answer that went well."""
    head = arrived.find(b"\r\n\r\n")
    if head < 0:
        return None
    lines = bytes(arrived[:head]).lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    end = head + 4 + length
    if len(arrived) < end:
        return None
    body = bytes(arrived[head + 4 : end])
    if not lines[0].split(b" ")[1].startswith(b"2"):
        raise RuntimeError(f"{lines[0].decode()}: {body[:500].decode(errors='replace')}")
    return body, end


# -- Redis --------------------------------------------------------------------------------------------------------


def redis_request(*words: bytes) -> bytes:
    return b"".join((b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)))


def redis_answer(arrived: bytearray) -> tuple[Any, int] | None:
    return _reply(arrived, 0)


def _reply(data: bytearray, at: int) -> tuple[Any, int] | None:
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, line, at = data[at], bytes(data[at + 1 : end]), end + 2
    if kind == ord("-"):
        raise RuntimeError(line.decode())
    if kind in b"+:":
        return line, at
    size = int(line)
    if size < 0:
        return None if kind not in b"$*" else (b"", at)
    if kind == ord("$"):
        return (bytes(data[at : at + size]), at + size + 2) if len(data) >= at + size + 2 else None
    items = []
    for _ in range(size):
        found = _reply(data, at)
        if found is None:
            return None
        item, at = found
        items.append(item)
    return items, at
