"""The HTTP API's routes for journals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from detent.errors import Conflict, Invalid, NotFound
from detent.journal import JournalInfo, JournalReader, calls
from detent.journal import operations as ops
from detent.journal.message import messages_of
from detent.server import arrow
from detent.server.http import Response
from detent.server.limits import (
    ANSWER_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    READ_MESSAGES_MAX,
    READ_PAGE,
    ListQuery,
    check_count,
    page_of,
)
from detent.server.models import JournalSettings, Number, RequestModel, given_settings
from detent.server.models_journals import (
    AppendedEntries,
    JournalDescription,
    JournalEntry,
    JournalList,
    JournalMessage,
    JournalMessages,
    Registers,
    RegistersRequest,
    Trimmed,
    TrimRequest,
    appended,
    describe_journal,
    journal_message,
)
from detent.server.route import ARROW, ApiCall, Route, may_see

FIRST_HEADER: Final = "detent-first"
NEXT_HEADER: Final = "detent-next"
"""Where an Arrow stream begins and ends: its rows are numbered without gaps, so they are not a column."""


class ReadQuery(RequestModel, kw_only=True, rename={"start": "from", "end": "to"}):
    """Which messages to read: [from, to), from the first one on unless told otherwise, at most `limit`. With `wait` a
    committed read waits so long for what is not there yet. An uncommitted read numbers stored rows by position."""

    start: Number | None = None
    end: Number | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    wait: str | None = None
    isolation: Literal["committed", "uncommitted"] = "committed"


# -- journals -------------------------------------------------------------------------------------------------------


async def list_journals(call: ApiCall[None, ListQuery]) -> JournalList:
    """The journals that the caller has any right on, by name, with their extents and settings."""
    visible = [name for name in await call.store.journals(call.query.prefix) if may_see(call.caller, "journal", name)]
    page, following = page_of(visible, call.query)
    found = await asyncio.to_thread(_infos, call.store.reader, page)
    return JournalList(journals=[_described(call, info) for info in found], next=following)


def _described(call: ApiCall[Any, Any], info: JournalInfo) -> JournalDescription:
    """A journal, with what the caller may read of it."""
    return describe_journal(info, with_registers=call.caller.may("read", "journal", info.name))


def _infos(reader: JournalReader, names: Any) -> list[JournalInfo]:
    found = []
    for name in names:
        try:
            found.append(reader.info(name))
        except NotFound:
            continue  # deleted since the names were read
    return found


async def create_journal(call: ApiCall[Any, None]) -> Response:
    """Create a journal: 201. One that exists is left as it is: 200 if the settings that were given are its own, else
    409; `PATCH` changes them. (The first append to a journal creates it as well.)"""
    given = given_settings(call.body)
    done: ops.Created = (await call.store.commit([calls.create(call.name, True, given)]))[0]
    info = await call.store.journal(call.name).info()
    if not done.new:
        wanted = calls.configure(call.name, given)
        for name in wanted.__struct_fields__:
            value = getattr(wanted, name)
            if value is not None and name != "journal" and value != getattr(info, name):
                raise Conflict(
                    f"the journal {call.name!r} exists, and its {name} is {getattr(info, name)!r}, not {value!r}"
                )
    return Response.json(_described(call, info), 201 if done.new else 200)


async def configure_journal(call: ApiCall[Any, None]) -> JournalDescription:
    """Change settings; what is not named stays."""
    given = given_settings(call.body)
    if not given:
        raise Invalid("there is nothing to change: name a setting")
    journal = call.store.journal(call.name)
    await journal.configure(**given)
    return _described(call, await journal.info())


async def show_journal(call: ApiCall[None, None]) -> JournalDescription:
    """Extent, settings and, for a caller that may `read`, registers."""
    return _described(call, await call.store.journal(call.name).info())


async def delete_journal(call: ApiCall[None, None]) -> Response:
    """Delete the journal and all its messages."""
    await call.store.journal(call.name).delete()
    return Response(status=204)


async def trim(call: ApiCall[TrimRequest, None]) -> Trimmed:
    """Forget the committed messages below an offset."""
    journal = call.store.journal(call.name)
    await journal.trim(call.body.before)
    return Trimmed(journal=call.name, first_offset=(await journal.info()).first_offset)


# -- registers ------------------------------------------------------------------------------------------------------


async def show_registers(call: ApiCall[None, None]) -> Registers:
    """The journal's registers; none for a journal that does not exist yet."""
    return Registers(registers=await call.store.journal(call.name).registers())


async def set_registers(call: ApiCall[RegistersRequest, None]) -> Registers:
    """Set registers (null removes one), if those named in `expect` are as expected (null: absent); else 409, and
    nothing is changed. Answers all registers, or to a caller that may not `read` those that it has set."""
    journal = call.store.journal(call.name)
    if not call.body.set:
        raise Invalid("there is nothing to set: name a register")
    await journal.set_registers(call.body.set, expect=call.body.expect)
    if not call.caller.may("read", "journal", call.name):
        return Registers(registers={name: value for name, value in call.body.set.items() if value is not None})
    return Registers(registers=await journal.registers())


# -- appending ------------------------------------------------------------------------------------------------------


async def append(call: ApiCall[JournalEntry | list[JournalEntry], None]) -> AppendedEntries:
    """Append one message, or an array of them, all or none. When the answer comes they are committed, and survive a
    power cut. As an Arrow IPC stream: the column `body` and, if wanted, `key` and `headers` (a map of text to text),
    not compressed. Each append is a new message: what makes a repeated one harmless is a check in a transaction."""
    call.refuse_idempotency_key("an append")
    entries = [call.body] if isinstance(call.body, JournalEntry) else call.body
    check_count(len(entries), BATCH_MESSAGES_MAX, "messages")
    call.traced(len(entries))
    journal = call.store.journal(call.name)
    return appended(await journal.append_many([entry.parts() for entry in entries]))


async def append_stream(call: ApiCall[bytes, None]) -> AppendedEntries:
    """Append the rows of an Arrow IPC stream, all or none."""
    call.refuse_idempotency_key("an append")
    table = await asyncio.to_thread(arrow.read_table, call.body)
    call.traced(table.num_rows)
    return appended(await call.store.journal(call.name).append_table(table))


# -- reading --------------------------------------------------------------------------------------------------------


async def read(call: ApiCall[None, ReadQuery]) -> Response:
    """Messages in order. `to` has to be there: a read never gives fewer than asked for, but pages them by `limit`, and
    when they are large; `next` says where to go on. With `Accept: application/vnd.apache.arrow.stream` an Arrow stream
    of the whole range, whose headers Detent-First and Detent-Next say which."""
    wants_arrow = ARROW in call.request.headers.get("accept", "").lower()
    limit = call.query.limit
    if not wants_arrow:
        limit = READ_PAGE if limit is None else limit
        check_count(limit, READ_MESSAGES_MAX, "messages in an answer")
    await _wait(call)
    start, end = await _range(call)
    stop = end if limit is None else min(end, start + limit)
    if wants_arrow:
        return await _stream(call, start, stop)
    return await asyncio.to_thread(_page, call, start, stop)


async def _wait(call: ApiCall[None, ReadQuery]) -> None:
    """Wait for the last message that was asked for, or for the first one if it was not said how many."""
    query = call.query
    wait_ms = call.wait_ms(query.wait)
    if not wait_ms:
        return
    if query.isolation != "committed":
        raise Invalid("only a committed read can wait")
    first, next_offset = await asyncio.to_thread(call.store.reader.extent, call.name)
    start = first if query.start is None else query.start
    offset = start if query.end is None else query.end - 1
    if offset < next_offset:
        return
    async with call.poll(wait_ms) as poll:
        await poll.race(call.store.wait(call.name, offset, wait_ms))
    await call.still_allowed()


async def _range(call: ApiCall[None, ReadQuery]) -> tuple[int, int]:
    """What to read, if it is there."""
    query, name = call.query, call.name
    info = await call.store.journal(name).info()
    if query.isolation == "committed":
        what, first, following = "offset", info.first_offset, info.next_offset
    else:
        what, first, following = "position", info.first_position, info.next_position
    start = first if query.start is None else query.start
    end = max(start, following) if query.end is None else query.end
    if end < start:
        raise Invalid(f"[{start}, {end}) is not a range")
    if start < first:
        raise NotFound(f"{what} {start} of {name!r} is gone: it now begins at {first}")
    if max(start, end) > following:
        raise NotFound(f"{what} {max(start, end - 1)} of {name!r} does not exist yet: the next one is {following}")
    return start, end


def _page(call: ApiCall[None, ReadQuery], start: int, stop: int) -> Response:
    """A page, read and put into words in a thread: thousands of messages take their time."""
    found = _page_messages(call, start, stop)
    call.traced(len(found))
    return Response.json(JournalMessages(messages=found, next=start + len(found)))


def _page_messages(call: ApiCall[None, ReadQuery], start: int, stop: int) -> list[JournalMessage]:
    committed = call.query.isolation == "committed"
    reader = call.store.reader
    batches = reader.committed(call.name, start, stop) if committed else reader.uncommitted(call.name, start, stop)
    found: list[JournalMessage] = []
    size = 0
    for number, batch in batches:
        places = {"offset" if committed else "position": number}
        for message in messages_of(batch, journal=call.name, **places):
            found.append(journal_message(message))
            size += len(message.body) + len(message.key or b"")
            if size > ANSWER_BYTES_MAX:
                return found
    return found


async def _stream(call: ApiCall[None, ReadQuery], start: int, stop: int) -> Response:
    """An Arrow stream. Its first part is read before it is promised; if a later one fails, the connection ends without
    the end of the stream, so that no reader takes it for whole."""
    call.traced(stop - start)
    parts = arrow.stream(_batches(call, start, stop))
    first = await anext(parts)

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return Response(body(), type=ARROW, headers={FIRST_HEADER: str(start), NEXT_HEADER: str(stop)})


async def _batches(call: ApiCall[None, ReadQuery], start: int, stop: int) -> AsyncIterator[Any]:
    """Record batches, for as long as the client takes them."""
    if start >= stop:
        return
    gone = asyncio.create_task(call.request.disconnected())
    try:
        async for batch in call.store.journal(call.name).read_batches(start, stop, isolation=call.query.isolation):
            if gone.done():
                return
            await call.still_allowed()
            yield batch
    finally:
        gone.cancel()


JOURNAL: Final = "/v1/journals/{journal}"

ROUTES: Final = (
    Route("GET", "/v1/journals", list_journals, "List journals", None, JournalList, query=ListQuery, errors=()),
    Route(
        "PUT", JOURNAL, create_journal, "Create a journal", "admin", JournalDescription,
        body=JournalSettings, status=201, other_statuses=(200,), errors=(404, 409),
    ),
    Route(
        "PATCH", JOURNAL, configure_journal, "Change a journal's settings", "admin", JournalDescription,
        body=JournalSettings,
    ),
    Route("GET", JOURNAL, show_journal, "Show a journal", "any", JournalDescription),
    Route("DELETE", JOURNAL, delete_journal, "Delete a journal", "admin", None, status=204),
    Route(
        "POST", f"{JOURNAL}/messages", append, "Append messages", "publish", AppendedEntries,
        body=JournalEntry | list[JournalEntry], bulk=append_stream, errors=(),
    ),
    Route(
        "GET", f"{JOURNAL}/messages", read, "Read messages", "read", JournalMessages, query=ReadQuery, arrow=True,
    ),
    Route("GET", f"{JOURNAL}/registers", show_registers, "Show registers", "read", Registers, errors=()),
    Route(
        "PATCH", f"{JOURNAL}/registers", set_registers, "Set registers", "publish", Registers,
        body=RegistersRequest, errors=(409,),
    ),
    Route("POST", f"{JOURNAL}/trim", trim, "Forget old messages", "admin", Trimmed, body=TrimRequest),
)  # fmt: skip
"""What can be asked of journals."""
