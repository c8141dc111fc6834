"""`store.journal(name)`: a journal as a user holds it, sync and async.

Both halves build their operations in :mod:`detent.journal.calls`, and share what takes several steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, Unpack

from detent import spans
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.engine import Operation
from detent.engine.twins import Awaited, Plain, Twin, both, drive_each
from detent.errors import Invalid, NotFound, Unavailable
from detent.journal import calls, fragments
from detent.journal import operations as ops
from detent.journal.calls import Entry
from detent.journal.message import Message, messages_of
from detent.journal.reader import JournalInfo, JournalReader
from detent.kv import Objects
from detent.settings.journal import JournalSettings

Isolation = Literal["committed", "uncommitted"]


TAIL_LOOK_MS: Final = 5_000
"""How often one who follows a journal looks whether it is still there."""


class _TailPatience:
    """How long a tail goes on waiting, in slices."""

    def __init__(self, timeout: Duration | None) -> None:
        self._whole_ms = None if timeout is None else milliseconds(timeout)
        self.restore()

    def restore(self) -> None:
        """Something came."""
        self._left_ms = self._whole_ms
        self.left = True

    @property
    def slice_ms(self) -> int:
        """How long to wait now."""
        return TAIL_LOOK_MS if self._left_ms is None else min(self._left_ms, TAIL_LOOK_MS)

    def spend(self) -> None:
        """Nothing came."""
        if self._left_ms is not None:
            self._left_ms -= self.slice_ms
            self.left = self._left_ms > 0


def _same(name: str, before: int | None, now: int | None) -> int | None:
    """The journal's number, if it is still the journal that was followed."""
    if before is not None and now != before:
        raise NotFound(f"the journal {name!r} was deleted while it was followed")
    return now


class JournalStore(Protocol):
    """What a journal needs of its store."""

    reader: JournalReader
    objects: Objects

    def commit(self, operations: list[Operation]) -> list[Any]: ...

    def wait(self, journal: str, offset: int, timeout_ms: int | None) -> bool: ...


class AsyncJournalStore(Protocol):
    """The same, for asyncio."""

    reader: JournalReader
    objects: Objects

    async def commit(self, operations: list[Operation]) -> list[Any]: ...

    async def wait(self, journal: str, offset: int, timeout_ms: int | None) -> bool: ...


class _JournalBase(Twin):
    """What both halves share: reading needs no owner, and never waits for one."""

    _store: Any

    def __init__(self, store: Any, name: str) -> None:
        ops.check_name(name)
        self._store = store
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _batches(self, start: int | None, end: int | None, isolation: Isolation) -> Iterator[tuple[int, Any]]:
        reader: JournalReader = self._store.reader
        for number in (start, end):
            if number is not None and (not isinstance(number, int) or number < 0):
                raise Invalid(f"an offset is a number from 0 on, not {number!r}")
        if isolation not in {"committed", "uncommitted"}:
            raise Invalid(f"isolation is 'committed' or 'uncommitted', not {isolation!r}")
        if isolation == "uncommitted":
            start = reader.info(self.name).first_position if start is None else start
            return reader.uncommitted(self.name, start, end)
        first, next_offset = reader.extent(self.name)
        start = first if start is None else start
        end = max(start, next_offset) if end is None else end
        if start < first:
            raise NotFound(f"offset {start} of {self.name!r} is gone: it now begins at {first}")
        if start > next_offset:
            raise NotFound(f"offset {start} of {self.name!r} does not exist yet: the next one is {next_offset}")
        return reader.committed(self.name, start, end)

    def _messages(self, batches: Iterable[tuple[int, Any]], isolation: Isolation) -> Iterator[Message]:
        for number, batch in batches:
            if isolation == "committed":
                yield from messages_of(batch, offset=number, journal=self.name)
            else:
                yield from messages_of(batch, position=number, journal=self.name)

    # -- what takes several steps -------------------------------------------------------------------------------

    async def _growth(self, start: int | None, timeout: Duration | None) -> AsyncGenerator[tuple[int, int], None]:
        """The offsets between which the journal has grown, from `start` on, as it grows."""
        reader: JournalReader = self._store.reader
        patience = _TailPatience(timeout)
        at = await self._aside(reader.next_offset, self.name) if start is None else start
        number = await self._aside(reader.number, self.name)
        while patience.left:
            grown = await self._answered(self._store.wait(self.name, at, patience.slice_ms))
            number = _same(self.name, number, await self._aside(reader.number, self.name))
            if not grown:
                patience.spend()
                continue
            _, end = await self._aside(reader.extent, self.name)
            yield at, end
            at = end
            patience.restore()

    # -- calls --------------------------------------------------------------------------------------------------

    @both
    async def create(self, *, exist_ok: bool = False, **settings: Unpack[JournalSettings]) -> None:
        """Create the journal with its settings; `Exists` if it is there, unless `exist_ok`.

        Its settings are those of :class:`detent.JournalSettings`.
        """
        await self._do(calls.create(self.name, exist_ok, settings))

    @both
    async def configure(self, **settings: Unpack[JournalSettings]) -> None:
        """Change settings; what is not named stays. A retention of "0s", or of 0 bytes, means: no limit."""
        await self._do(calls.configure(self.name, settings))

    @both
    async def delete(self) -> None:
        """Delete the journal and all its messages."""
        await self._do(ops.DeleteJournal(self.name))

    @both
    async def append(
        self, body: bytes, *, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ops.Appended:
        """Append one message. When this returns, the message is committed and survives a power cut."""
        with spans.sending("append", self.name):
            result: ops.Appended = await self._do(calls.append(self.name, body, key, headers))
        return result

    @both
    async def append_many(self, entries: Iterable[Entry]) -> ops.Appended:
        """Append bodies, (body, key) or (body, key, headers), all or none."""
        listed = entries if isinstance(entries, bytes | bytearray | str) else list(entries)  # the text is refused below
        with spans.sending("append", self.name, len(listed)):
            result: ops.Appended = await self._do(calls.append_many(self.name, listed))
        return result

    @both
    async def append_table(self, table: Any) -> ops.Appended:
        """Append the rows of an Arrow table: column `body`, if wanted `key` and `headers` (a map of text to text).
        All or none."""
        result: ops.Appended = await self._do(calls.append_table(self.name, table))
        return result

    @both
    async def write_fragment(self, table: Any) -> ops.FragmentRef:
        """Write a table of messages (column body, if wanted key and headers) beside the store, durably.

        Its messages become part of the journal when the reference is adopted; no reader sees them before.
        """
        written: ops.FragmentRef = await self._aside(fragments.write_fragment, self._store.objects, table)
        return written

    @both
    async def adopt(self, references: Sequence[ops.FragmentRef]) -> ops.Appended:
        """Make the messages of written fragments part of the journal, in this order, all or none.

        They take offsets (`committed` in the answer) but no positions (its `count` is 0).
        """
        result: ops.Appended = await self._do(calls.adopt(self.name, references))
        return result

    @both
    async def wait(self, offset: int, *, timeout: Duration | None = None) -> None:
        """Return once the journal holds a committed message at `offset`; `Unavailable` after the timeout."""
        timeout_ms = None if timeout is None else milliseconds(timeout)
        if not await self._answered(self._store.wait(self.name, offset, timeout_ms)):
            raise Unavailable(f"offset {offset} of {self.name!r} was not written within {timeout}")

    @both
    async def info(self) -> JournalInfo:
        """Settings, extent, registers."""
        return await self._info()

    async def _info(self) -> JournalInfo:
        found: JournalInfo = await self._aside(self._store.reader.info, self.name)
        return found

    @both
    async def next_offset(self) -> int:
        """The offset that the next committed message will get; 0 for a journal that does not exist yet."""
        found: int = await self._aside(self._store.reader.next_offset, self.name)
        return found

    @both
    async def offset_at(self, time: datetime) -> int:
        """The first committed offset published at or after a time."""
        found: int = await self._aside(self._store.reader.offset_at, self.name, since_1970_ms(time))
        return found

    @both
    async def trim(self, before: int) -> None:
        """Forget the committed messages below an offset."""
        await self._do(calls.trim(self.name, before))

    @both
    async def registers(self) -> dict[str, str]:
        """The journal's registers; none for a journal that does not exist yet."""
        try:
            return (await self._info()).registers
        except NotFound:
            return {}

    @both
    async def set_registers(
        self, values: Mapping[str, str | None], *, expect: Mapping[str, str | None] | None = None
    ) -> None:
        """Set registers (None removes one), if those named in `expect` are as expected; else `Conflict`."""
        operations = [calls.set_registers(self.name, values)]
        if expect is not None:
            operations.insert(0, calls.check_registers(self.name, expect))
        await self._ask(operations)


class Journal(_JournalBase, Plain):
    """A named log of messages. The first append creates it.

    >>> orders = store.journal("orders")
    >>> orders.append(b"one").offset
    0
    >>> [message.body for message in orders.read()]
    [b'one']
    """

    _store: JournalStore

    def read(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Message]:
        """The messages of [start, end): all that there are, unless told otherwise.

        Committed messages are numbered by offset, uncommitted rows by position. A range that is not all there is
        `NotFound`: a read never yields fewer messages than asked for.
        """
        return self._messages(self._batches(start, end, isolation), isolation)

    def read_batches(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Any]:
        """The same as Arrow record batches, with the columns producer, clock, flags, published_at, key, headers, body.

        Offsets are not a column: the first row has offset `start`, and they go on without gaps.
        """
        return (batch for _, batch in self._batches(start, end, isolation))

    def tail(self, start: int | None = None, *, timeout: Duration | None = None) -> Iterator[Message]:
        """Committed messages from `start` on (default: from now), for ever, waiting for new ones.

        With a timeout the iteration ends once nothing has come for that long. `NotFound` once the journal was deleted,
        also if there is another one of that name now.
        """
        for at, end in drive_each(self._growth(start, timeout)):
            yield from self.read(at, end)


class AsyncJournal(_JournalBase, Awaited):
    """`Journal` for asyncio: the same calls, awaited."""

    _store: AsyncJournalStore

    async def read(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Message]:
        """The messages of [start, end), as :meth:`Journal.read` gives them."""
        async for number, batch in self._in_thread(start, end, isolation):
            for message in self._messages([(number, batch)], isolation):
                yield message

    async def read_batches(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Any]:
        """The same as Arrow record batches."""
        async for _, batch in self._in_thread(start, end, isolation):
            yield batch

    async def _in_thread(self, start: int | None, end: int | None, isolation: Isolation) -> AsyncIterator[Any]:
        """Reading may touch the disk, so the loop lets a thread do it."""
        batches = await asyncio.to_thread(self._batches, start, end, isolation)
        while (item := await asyncio.to_thread(next, batches, None)) is not None:
            yield item

    async def tail(self, start: int | None = None, *, timeout: Duration | None = None) -> AsyncIterator[Message]:
        """Committed messages from `start` on (default: from now), for ever, waiting for new ones."""
        async for at, end in self._growth(start, timeout):
            async for message in self.read(at, end):
                yield message
