"""The HTTP API's route for a message's journey: what it was made from, and what was made from it.

Backwards a message says itself what it came from. Forwards nothing is kept, because that would cost a record for each
message: the journals are looked through from the message's time on, for so long and so many messages, and the answer
says how far that came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from detent.errors import Corrupt, NotFound
from detent.journal import Message
from detent.journal.message import messages_of
from detent.processor.declaration import JournalPlace
from detent.processor.provenance import provenance_of
from detent.processor.tracing import Hop, trace
from detent.server.models import AnswerModel, Number, RequestModel, TimeText, time_text
from detent.server.route import ApiCall, Route

LOOKED_MAX: Final = 100_000
"""Messages that are looked through for what came of one."""

LOOK_S: Final = 2.0
STEP: Final = 5_000
FOUND_MAX: Final = 100
HOPS_MAX: Final = 1_000


class JourneyQuery(RequestModel, kw_only=True):
    """Which message of the journal."""

    offset: Number


class JourneyHop(AnswerModel, kw_only=True):
    """A message on the way. `depth` says how many steps it is before the one that was asked for (0), or with a minus
    after it. `published` is null for one that is gone, and `processor` for one that no graph has made."""

    journal: str
    offset: int
    published: TimeText | None
    processor: str | None
    depth: int


class Journey(AnswerModel, kw_only=True):
    """The hops by their time. `looked` messages were looked through for what came of it, and `complete` says whether
    these were all; `hidden` hops are in journals that the caller may not read."""

    hops: list[JourneyHop]
    looked: int
    complete: bool
    hidden: int


async def show_journey(call: ApiCall[None, JourneyQuery]) -> Journey:
    """What a message of a journal was made from by graphs, all the way back, and what graphs have made from it in one
    step. What came of those is their own journey."""
    return await asyncio.to_thread(_journey, call)


def _journey(call: ApiCall[None, JourneyQuery]) -> Journey:
    place = JournalPlace(call.name)
    hop = trace({"": call.store._store}, place, call.query.offset)
    found = list(_flat(hop, 0))[:HOPS_MAX]
    made, looked, complete = _made_from(call, place, hop.published_ms or 0)
    found += made
    seen = [one for one in found if call.caller.may("read", "journal", one.journal)]
    seen.sort(key=lambda one: (one.published or "", -one.depth))
    return Journey(hops=seen, looked=looked, complete=complete, hidden=len(found) - len(seen))


def _flat(hop: Hop, depth: int) -> Iterator[JourneyHop]:
    published = None if hop.published_ms is None else time_text(hop.published_ms)
    yield JourneyHop(journal=hop.journal, offset=hop.offset, published=published, processor=hop.processor, depth=depth)
    for one in hop.inputs:
        yield from _flat(one, depth + 1)


def _made_from(
    call: ApiCall[None, JourneyQuery], place: JournalPlace, since_ms: int
) -> tuple[list[JourneyHop], int, bool]:
    """The messages of all journals that name this one as an input."""
    reader, offset = call.store.reader, call.query.offset
    deadline, looked = time.monotonic() + LOOK_S, 0
    found: list[JourneyHop] = []
    for name in reader.names():
        try:
            at, end = reader.offset_at(name, since_ms), reader.extent(name)[1]
            while at < end:
                if looked >= LOOKED_MAX or time.monotonic() > deadline or len(found) >= FOUND_MAX:
                    return found, looked, False
                for number, batch in reader.committed(name, at, min(end, at + STEP)):
                    for message in messages_of(batch, journal=name, offset=number):
                        at, looked = message.offset + 1, looked + 1
                        processor = _maker(message, place, offset)
                        if processor is not None:
                            published = time_text(message.published_ms)
                            found.append(
                                JourneyHop(
                                    journal=name, offset=message.offset, published=published, processor=processor,
                                    depth=-1,
                                )
                            )  # fmt: skip
        except NotFound:
            continue  # deleted or trimmed meanwhile
    return found, looked, True


def _maker(message: Message, place: JournalPlace, offset: int) -> str | None:
    """The processor that made a message from this one; None if it was made from others."""
    try:
        said = provenance_of(message)
    except Corrupt:
        return None
    if said is None or not any(one.place == place and one.first <= offset <= one.last for one in said.inputs):
        return None
    return said.processor


ROUTES: Final = (
    Route(
        "GET", "/v1/journals/{journal}/journey", show_journey, "Show where a message came from and went", "read",
        Journey, query=JourneyQuery,
    ),
)  # fmt: skip
"""What can be asked of journeys."""
