"""How a connection to an owner begins: the socket of an address, connected and, where it shall be, encrypted.

No proxy is ever asked: what the environment says about proxies is for other programs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from detent.remote.address import Address

CONNECT_S: Final = 2.0
"""How long one attempt to connect may take, and how long the start of encryption."""

FULL_PAUSE_S: Final = 0.005
"""A Unix socket whose queue of callers is full refuses at once, where TCP would wait; this long, then again."""

Tls = ssl.SSLContext | None
AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.Protocol)


def left_of(deadline: float) -> float:
    """The seconds that are left. `TimeoutError` if none are."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for this call is over")
    return left


def _step_s(deadline: float) -> float:
    return min(CONNECT_S, left_of(deadline))


def dial(address: Address, tls: Tls, deadline: float) -> socket.socket:
    """A connected socket."""
    if address.socket is not None:
        return _dial_unix(address.socket, time.monotonic() + _step_s(deadline))
    host, port = address.endpoint
    line = _dial_any(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), deadline)
    if tls is None:
        return line
    try:
        line.settimeout(_step_s(deadline))
        return tls.wrap_socket(line, server_hostname=host)
    except BaseException:
        line.close()
        raise


def _dial_any(places: list[Any], deadline: float) -> socket.socket:
    """A connection to the first of a host's addresses that takes one."""
    failure: OSError | None = None
    for family, kind, protocol, _, where in places:
        line = socket.socket(family, kind, protocol)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(_step_s(deadline))
            line.connect(where)
            return line
        except OSError as error:
            line.close()
            failure = error
        except BaseException:
            line.close()
            raise
    raise failure or OSError("the host has no address")


def _dial_unix(path: str, deadline: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            line.settimeout(left_of(deadline))
            try:
                line.connect(path)
                return line
            except BlockingIOError:
                time.sleep(FULL_PAUSE_S)
    except BaseException:
        line.close()
        raise


async def dial_async(address: Address, tls: Tls, make: Callable[[], AnyProtocol]) -> AnyProtocol:
    """The same for asyncio: a protocol on a connected transport. The caller bounds the time of the whole."""
    loop = asyncio.get_running_loop()
    host, port = address.endpoint
    if address.socket is not None:
        async with asyncio.timeout(CONNECT_S):
            line = await _dial_unix_async(address.socket)
    else:
        line = await _dial_any_async(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    async with asyncio.timeout(CONNECT_S):  # from here on the transport closes the socket, whatever happens
        name = None if tls is None else host
        return (await loop.create_connection(make, sock=line, ssl=tls, server_hostname=name))[1]


async def _dial_any_async(places: list[Any]) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, where in places:
        line = socket.socket(family, kind, protocol)
        try:
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(line, where)
            return line
        except OSError as error:
            line.close()
            failure = error
        except BaseException:
            line.close()
            raise
    raise failure or OSError("the host has no address")


async def _dial_unix_async(path: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.setblocking(False)
        while True:
            try:
                line.connect(path)
                return line
            except BlockingIOError:
                await asyncio.sleep(FULL_PAUSE_S)
    except BaseException:
        line.close()
        raise
