"""The HTTP API's routes that look for messages in a journal: by time, and by what they say.

A search reads at most so many messages, for at most so long, and says how far it came: nothing found is worth nothing
without that.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Final

from msgspec import Meta

from detent.journal import Message
from detent.journal.message import messages_of
from detent.queue.filters import Filter
from detent.server.models import AnswerModel, Number, RequestModel, Time
from detent.server.models_journals import JournalMessage, journal_message
from detent.server.route import ApiCall, Route

SEARCHED_MAX: Final = 100_000
"""Messages that one search reads."""

SEARCH_S: Final = 2.0
"""How long one search reads: a page waits for it."""

STEP: Final = 5_000
"""Messages that are read before the time is looked at."""

FOUND_MAX: Final = 100
TEXT_MAX: Final = 1_000
FILTER_MAX: Final = 8 << 10


class SearchQuery(RequestModel, kw_only=True, rename={"start": "from"}):
    """What to look for, from an offset on: a text in key, headers or body, in capitals or not; headers that match a
    filter; or both."""

    text: Annotated[str, Meta(max_length=TEXT_MAX)] = ""
    filter: Annotated[str, Meta(max_length=FILTER_MAX)] = ""
    start: Number | None = None
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX)] = FOUND_MAX


class SearchAnswer(AnswerModel, kw_only=True):
    """What was found among the `searched` messages from `start` on. `next` is the offset to go on from, null at the
    journal's end."""

    messages: list[JournalMessage]
    start: int
    searched: int
    next: int | None


class OffsetQuery(RequestModel, kw_only=True):
    """A time."""

    at: Time


class OffsetAnswer(AnswerModel, kw_only=True):
    """The offset of the first message that was published at the time or later; the next offset, if there is none."""

    offset: int


async def search(call: ApiCall[None, SearchQuery]) -> SearchAnswer:
    """Look for committed messages, from `from` on, or from the first one. A search ends after 100,000 messages or two
    seconds; go on from `next`."""
    wanted = Filter(call.query.filter) if call.query.filter else None
    return await asyncio.to_thread(_search, call, wanted)


def _search(call: ApiCall[None, SearchQuery], wanted: Filter | None) -> SearchAnswer:
    reader, query = call.store.reader, call.query
    first, end = reader.extent(call.name)
    start = first if query.start is None else max(first, query.start)
    text = query.text.casefold()
    found: list[JournalMessage] = []
    at, deadline = start, time.monotonic() + SEARCH_S
    while at < end and at - start < SEARCHED_MAX and time.monotonic() < deadline:
        for number, batch in reader.committed(call.name, at, min(end, at + STEP)):
            for message in messages_of(batch, journal=call.name, offset=number):
                at = message.offset + 1
                if (wanted is None or wanted.matches(message.headers)) and _says(message, text):
                    found.append(journal_message(message))
                    if len(found) == query.limit:
                        return SearchAnswer(
                            messages=found, start=start, searched=at - start, next=at if at < end else None
                        )
    return SearchAnswer(messages=found, start=start, searched=max(0, at - start), next=at if at < end else None)


def _says(message: Message, text: str) -> bool:
    """Whether a text is in a message. Bytes that are not UTF-8 are compared as far as they are."""
    if not text:
        return True
    parts: list[Any] = [message.body, message.key or b""]
    words = [part.decode("utf-8", "replace") for part in parts]
    words += [word for pair in message.headers.items() for word in pair]
    return any(text in word.casefold() for word in words)


async def find_offset(call: ApiCall[None, OffsetQuery]) -> OffsetAnswer:
    """Where a journal was at a time."""
    at_ms = int(call.query.at.timestamp() * 1000)
    return OffsetAnswer(offset=await asyncio.to_thread(call.store.reader.offset_at, call.name, at_ms))


ROUTES: Final = (
    Route(
        "GET", "/v1/journals/{journal}/search", search, "Look for messages", "read", SearchAnswer, query=SearchQuery,
    ),
    Route(
        "GET", "/v1/journals/{journal}/offset", find_offset, "Find the offset of a time", "read", OffsetAnswer,
        query=OffsetQuery,
    ),
)  # fmt: skip
"""What can be looked for in journals."""
