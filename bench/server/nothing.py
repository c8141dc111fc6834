"""Servers that do nothing: what is left of a bar when the server's own work takes no time at all.

``python -m bench.server.nothing PORT raw BODY`` reads requests without looking at them and answers each with the
same bytes, on uvloop: no server in Python is faster. ``asgi`` is an application for uvicorn that does as little.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

# What SendMessage answers: boto3 checks the digest of the body that it has sent, so this is of the bench's body.
ANSWER_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: %d\r\n\r\n"


def answer_to(body: str) -> bytes:
    """The body of an answer to SendMessage."""
    from hashlib import md5

    digest = md5(body.encode(), usedforsecurity=False).hexdigest()
    return b'{"MessageId":"00000000-0000-0000-0000-000000000000","MD5OfMessageBody":"%b"}' % digest.encode()


class Raw(asyncio.Protocol):
    """Counts bytes until a request is whole, and answers."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._arrived = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        while (head := self._arrived.find(b"\r\n\r\n")) >= 0:
            at = self._arrived.lower().find(b"content-length:", 0, head)
            length = int(self._arrived[at + 15 : self._arrived.find(b"\r\n", at)]) if at >= 0 else 0
            if len(self._arrived) < head + 4 + length:
                return
            self._arrived = self._arrived[head + 4 + length :]
            self._transport.write(self._answer)


async def serve_raw(port: int, body: bytes) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Raw(ANSWER_HEAD % len(body) + body), "127.0.0.1", port)
    await server.serve_forever()


def asgi(body: bytes) -> Any:
    headers = [(b"content-type", b"application/x-amz-json-1.0"), (b"content-length", b"%d" % len(body))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def main() -> None:
    port, kind, body = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    body = answer_to(body)
    if kind == "raw":
        import uvloop

        uvloop.run(serve_raw(port, body))
    else:
        import uvicorn

        uvicorn.run(asgi(body), port=port, log_level="warning", access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
