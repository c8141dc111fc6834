"""The content of messages, put into the answers for clients that have no files to read it from.

An answer carries at most `ANSWER_CONTENT_BYTES_MAX` of it, whatever was claimed: the owner must not hold 10,000
messages of 16 MiB for one client. A claim takes effect whole, because it is committed before it is known how large it
is; what finds no room is fetched by the client in further calls, which give out only what is still held (`ReadHeld`). A
list of messages is cut short instead, and so is a page of an assignment; a search is asked again. The first
message of an answer always has room, so each call brings its client on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from detent.engine import Request
from detent.errors import DetentError
from detent.queue import QueueReader, calls
from detent.queue import operations as ops
from detent.queue.listing import ListedMessages
from detent.queue.peeking import PeekedMessages, read_page
from detent.queue.reader_operations import AssignedMessages

ANSWER_CONTENT_BYTES_MAX: Final = 32 << 20
"""Two of the largest messages; a hundred clients at once then take some gigabytes, not all there is."""

READ_AT_ONCE_MAX: Final = 128
"""Messages whose content an event loop reads itself from a local file: that takes less than asking a thread to."""

WITH_CONTENT: Final = (
    ops.ClaimedMessages,
    ops.HeldMessages,
    ops.FailedMessages,
    ops.MessageFound,
    AssignedMessages,
    ListedMessages,
    PeekedMessages,
)

Outcome = list[Any] | DetentError


class AnswerRoom:
    """What one answer may still carry."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._used = False

    def fits(self, size: int) -> bool:
        """Take so much, if it is there, or if nothing was taken before."""
        if size > self._left and self._used:
            return False
        self._used = True
        self._left -= size
        return True


def wanted(outcomes: Sequence[Outcome]) -> int:
    """How many messages there are in these answers whose content a client would read."""
    return sum(
        1 if isinstance(result, ops.MessageFound) else len(result.messages)
        for outcome in outcomes
        if isinstance(outcome, list)
        for result in outcome
        if isinstance(result, WITH_CONTENT)
    )


def attach(requests: Sequence[Any], outcomes: Sequence[Outcome], reader: QueueReader) -> list[Outcome]:
    """The same answers with content. It reads the store, so much of it belongs in a thread."""
    room = AnswerRoom(ANSWER_CONTENT_BYTES_MAX)
    return [_attach_all(*pair, reader, room) for pair in zip(requests, outcomes, strict=True)]


def _attach_all(request: Request, outcome: Outcome, reader: QueueReader, room: AnswerRoom) -> Outcome:
    if isinstance(outcome, DetentError):
        return outcome
    try:
        pairs = zip(request.operations, outcome, strict=True)
        return [_attach(operation, result, reader, room) for operation, result in pairs]
    except DetentError as error:
        return error


def _attach(operation: Any, result: Any, reader: QueueReader, room: AnswerRoom) -> Any:
    rows: ops.Attached
    if isinstance(result, (ops.ClaimedMessages, ops.HeldMessages)):
        if result.earlier:
            queue = result.queue if isinstance(result, ops.ClaimedMessages) else operation.queue
            named = frozenset(calls.named_origins(result))
            letters, origins = reader.leading_letters(queue, result.messages, result.records, named, room.fits)
            result, rows = msgspec.structs.replace(result, origins=origins), [*letters]
        else:
            rows = [*reader.leading(result.messages, result.records, room.fits)]
        rows += [None] * (len(result.messages) - len(rows))
        return msgspec.structs.replace(result, contents=rows)
    if isinstance(result, (ops.FailedMessages, ListedMessages)):
        entries = result.messages
        found = reader.leading([entry.message for entry in entries], [entry.record for entry in entries], room.fits)
        count = len(found)
        more = result.more or count < len(entries)
        return msgspec.structs.replace(result, messages=entries[:count], more=more, contents=[*found])
    if isinstance(result, PeekedMessages):
        return read_page(reader, operation, result)
    if isinstance(result, AssignedMessages):
        rows = [*reader.leading(result.messages, result.records, room.fits)]
        count = len(rows)
        return msgspec.structs.replace(
            result,
            messages=result.messages[:count],
            records=result.records[:count],
            attempts=result.attempts[:count],
            priorities=result.priorities[:count],
            more=result.more or count < len(result.messages),
            contents=rows,
        )
    if isinstance(result, ops.MessageFound):
        rows = []
        if result.record >= 0:
            rows = [*reader.leading([operation.message], [result.record], room.fits)] or [None]
        return msgspec.structs.replace(result, contents=rows)
    return result
