"""Handing an answer over: to a client that is still there, or else what the answer gave away is taken back.

A client has an answer that was written to its connection, as far as the owner can know. What was not written, because
the client had hung up, it cannot have got. On a Unix socket the kernel tells more: a client that closes it, or dies,
with something unread resets the connection, and an answer of which something was unread is no answer.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from typing import Any, Final

from detent.remote.asgi import Receive, Scope, Send

Undo = Callable[[], None]

UNDO: Final = "detent.undo"
"""Where the scope of a request has what takes its answer back, once that is written."""

_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
"""The first one, that the client has closed its half, is Linux's alone."""


async def hand_over(
    write: Callable[[Send], Awaitable[object]], scope: Scope, receive: Receive, send: Send, undo: Undo | None
) -> None:
    """Write an answer. If it gives something away that the client cannot get any more, take that back."""
    if undo is None:
        await write(send)
        return
    transport = _transport_of(receive)
    if _has_ended(transport):
        _take_back(transport, undo)
        await write(send)  # nothing leaves any more, but the server wants an answer
        return
    last: dict[str, Any] | None = None

    async def hold_last(message: dict[str, Any]) -> None:
        nonlocal last
        if last is not None:
            await send(last)
        last = message

    try:
        await write(hold_last)
        ended = last is None or last.get("more_body", False) or _has_ended(transport)
        if last is not None and not ended:
            scope[UNDO] = undo
            await send(last)
    except BaseException:
        scope.pop(UNDO, None)
        undo()
        raise
    if ended:
        _take_back(transport, undo)
        if last is not None and not last.get("more_body", False):
            await send(last)


def _take_back(transport: Any, undo: Undo) -> None:
    """The client has hung up: it must not get the rest of the answer, not even if it only closed its own half."""
    undo()
    if transport is not None:
        transport.abort()


def was_read(scope: Scope) -> None:
    """The client has gone on, so it has the answer."""
    scope.pop(UNDO, None)


def not_read(scope: Scope) -> None:
    """The last answer on a connection was not read: take back what it gave away."""
    undo: Undo | None = scope.pop(UNDO, None)
    if undo is not None:
        undo()


def _transport_of(receive: Receive) -> Any:
    """The connection below: ASGI does not name it, and whether it has ended only says when it has read that."""
    return getattr(getattr(receive, "__self__", None), "transport", None)


def _has_ended(transport: Any) -> bool:
    """Whether the client has closed its end, as far as the kernel has heard."""
    if transport is None:
        return False
    line = transport.get_extra_info("socket")
    if transport.is_closing() or line is None or line.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(line.fileno(), _ENDED)
    return bool(poll.poll(0))
