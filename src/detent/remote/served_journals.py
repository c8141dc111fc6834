"""Journals as an owner serves them to clients that have no files: what is known of them in JSON, messages as a stream.

Reading touches the disk, so all of it happens in threads, never on the loop that everybody is answered from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any, Final

from detent.errors import NotFound
from detent.journal import JournalReader
from detent.journal.operations import check_name
from detent.remote import batches
from detent.remote.asgi import OwnerCall, Reply, in_threads, number_of, text_of

PATH: Final = "/v1/native/journals"
NUMBER_HEADER: Final = "detent-journal"
END_HEADER: Final = "detent-end"
"""Which journal of that name is read, and where the read ends: a client whose line breaks goes on with the same one, to
the same end."""


class ServedJournals:
    """Answers reads."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self.routes: dict[tuple[str, str], Callable[[OwnerCall], Awaitable[Reply]]] = {
            ("GET", PATH): self._names,
            ("GET", f"{PATH}/extents"): self._extents,
            ("GET", f"{PATH}/info"): self._info,
            ("GET", f"{PATH}/number"): self._number,
            ("GET", f"{PATH}/extent"): self._extent,
            ("GET", f"{PATH}/offset-at"): self._offset_at,
            ("GET", f"{PATH}/committed"): self._committed,
            ("GET", f"{PATH}/uncommitted"): self._uncommitted,
        }

    async def _names(self, call: OwnerCall) -> Reply:
        call.require_everywhere("read")
        prefix = text_of(call.query(), "prefix")
        return Reply.json(await asyncio.to_thread(self._reader.names, prefix))

    async def _extents(self, call: OwnerCall) -> Reply:
        call.require_everywhere("read")
        prefix = text_of(call.query(), "prefix")
        return Reply.json(await asyncio.to_thread(self._reader.extents, prefix))

    async def _info(self, call: OwnerCall) -> Reply:
        return Reply.json(await asyncio.to_thread(self._reader.info, journal_of(call)))

    async def _number(self, call: OwnerCall) -> Reply:
        return Reply.json(await asyncio.to_thread(self._reader.number, journal_of(call)))

    async def _extent(self, call: OwnerCall) -> Reply:
        return Reply.json(await asyncio.to_thread(self._reader.extent, journal_of(call)))

    async def _offset_at(self, call: OwnerCall) -> Reply:
        name, time_ms = journal_of(call), number_of(call.query(), "time_ms")
        return Reply.json(await asyncio.to_thread(self._reader.offset_at, name, time_ms))

    async def _committed(self, call: OwnerCall) -> Reply:
        name, fields = journal_of(call), call.query()
        start, end = number_of(fields, "start"), number_of(fields, "end")
        journal = await self._required_number(name, fields)
        return await self._stream(call, self._reader.committed(name, start, end, journal=journal), journal, end)

    async def _uncommitted(self, call: OwnerCall) -> Reply:
        name, fields = journal_of(call), call.query()
        start = number_of(fields, "start")
        journal = await self._required_number(name, fields)
        if "end" in fields:
            end = number_of(fields, "end")
        else:
            end = (await asyncio.to_thread(self._reader.info, name)).next_position
        return await self._stream(call, self._reader.uncommitted(name, start, end, journal=journal), journal, end)

    async def _required_number(self, name: str, fields: dict[str, str]) -> int:
        """The journal's number: the one that a client began with, or the one that it has now."""
        if "number" in fields:
            return number_of(fields, "number")
        found = await asyncio.to_thread(self._reader.number, name)
        if found is None:
            raise NotFound(f"there is no journal {name!r}")
        return found

    @staticmethod
    async def _stream(call: OwnerCall, found: Any, journal: int, end: int) -> Reply:
        """The first batch is read before anything is answered, so that what is wrong with the range has its status."""
        first = await asyncio.to_thread(next, found, None)
        parts = batches.encode(chain(() if first is None else (first,), found))
        headers = {NUMBER_HEADER: str(journal), END_HEADER: str(end)}
        return Reply(in_threads(call, parts), batches.STREAM_TYPE, headers=headers)


def journal_of(call: OwnerCall) -> str:
    """The journal that a call reads, which its caller may."""
    name = text_of(call.query(), "journal")
    check_name(name)
    call.require("read", "journal", name)
    return name
