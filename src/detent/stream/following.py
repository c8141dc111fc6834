"""A journal that is read from an offset on, or back from it, some messages at a time, and loudly when they are gone."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, Literal

from detent.errors import NotFound
from detent.journal.columns import Columns, Rows
from detent.journal.message import Message, messages_of
from detent.journal.reader import JournalReader, Whereabouts

Start = Literal["earliest", "latest"] | int
"""Where reading begins the first time: at the first message that is kept, behind the last one, or at an offset."""

PLAN_ROWS: Final = 65_536
"""Messages that one look at a journal plans for."""

BACK_ROWS: Final = 1_024
BACK_ROWS_FIRST: Final = 16
"""Messages that are read at once where a journal is read backward: few at first, for many who turn round want only
one, and then twice as many each time."""

BACK_BYTES: Final = 4 << 20
"""When so many bytes were read at once, half as many messages are read the next time: all of them are in memory."""


class Following:
    """A place in a journal, before or after any message, and which journal of that name it is.

    What was read and not taken yet is kept, so that few messages at a time cost little. Nothing is skipped: a journal
    that was trimmed past the place, deleted, or made anew, is `NotFound`, and the error says what the user can do:
    the `remedy`.
    """

    def __init__(
        self,
        reader: JournalReader,
        journal: str,
        at: int,
        number: int | None = None,
        *,
        created_ms: int | None = None,
        label: str | None = None,
        remedy: str = "Move",
    ) -> None:
        self._reader = reader
        self._remedy = remedy
        self.journal = journal
        self.label = journal if label is None else label
        """What its messages say that they are from: the journal, for those who read several stores with its store."""
        self.at = at
        """Offset of the message that comes next; the one before it comes next on the way back."""
        self.number = number
        """The journal's number, which another one of the same name does not have; None until it exists."""
        self.created_ms = created_ms
        """When it was made, which tells it from one with the same number in a store that was made anew; None until that
        is known, 0 where the place was written down without it."""
        self._batches: Iterator[tuple[int, Any]] = iter(())
        self._columns: Columns | None = None
        self._made: list[Message] | None = []
        self._next = 0
        self._back_rows = BACK_ROWS_FIRST

    # -- forward ------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Message]:
        """Up to so many messages that are there; none if there are none. They may be fewer although there are more."""
        if not self.ready:
            self._fill()
        taken = self._ready[self._next : self._next + limit]
        self._next += len(taken)
        self.at += len(taken)
        return taken

    def take_rows(self, limit: int) -> Rows | None:
        """What `take` takes, by column: for those who hardly ever need a whole message. None if there are none."""
        if self._columns is None:
            self._drop()  # what was read on the way back is read again
        if not self.ready:
            self._fill()
        taken = min(limit, self.ready)
        if not taken or self._columns is None:
            return None
        self._next += taken
        self.at += taken
        return Rows(self._columns, self._next - taken, self._next)

    def take_all(self, limit: int) -> list[Message]:
        """Up to so many messages, and fewer only if there are no more by now."""
        taken = self.take(limit)
        while taken and len(taken) < limit:
            more = self.take(limit - len(taken))
            if not more:
                break
            taken += more
        return taken

    def look(self) -> int:
        """How many messages are at hand, by a fresh look at the journal where none is. There may be more."""
        if not self.ready:
            self._fill()
        return self.ready

    def peek(self) -> Message | None:
        """The message that comes next, if it is there."""
        return self._ready[self._next] if self.look() else None

    @property
    def ready(self) -> int:
        """How many messages are read and not taken."""
        return self._rows - self._next

    @property
    def _ready(self) -> list[Message]:
        """What was read last, as messages: made when one is asked for."""
        if self._made is None:
            assert self._columns is not None
            self._made = self._columns.messages
        return self._made

    @property
    def _rows(self) -> int:
        return len(self._columns) if self._columns is not None else len(self._ready)

    # -- backward -----------------------------------------------------------------------------------------------

    def take_back(self, limit: int) -> list[Message]:
        """Up to so many of the messages before the place, the nearest first; fewer only where the journal begins."""
        taken: list[Message] = []
        while len(taken) < limit and self.look_back():
            self._next -= 1
            self.at -= 1
            taken.append(self._ready[self._next])
        return taken

    def look_back(self) -> int:
        """How many messages before the place are at hand, by a fresh look at the journal where none is. There may be
        more."""
        if not self._next:
            self._fill_back()
        return self._next

    def peek_back(self) -> Message | None:
        """The message before the place, if there is one."""
        return self._ready[self._next - 1] if self.look_back() else None

    # -- moving -------------------------------------------------------------------------------------------------

    def move(self, at: int) -> None:
        """Go on from another offset of the same journal."""
        back = self.at - self._next
        if back <= at <= back + self._rows:  # it is among what was read last
            self._next, self.at = at - back, at
            return
        self._drop()
        self.at = at

    def begin(self, at: int, number: int | None) -> None:
        """Go on in the journal that has this number, or with None in whichever there will be."""
        if number != self.number:
            self._drop()
            self.number, self.created_ms = number, None
        self.move(at)

    def close(self) -> None:
        """Let go of a read that is under way."""
        self._drop()

    def _drop(self) -> None:
        self._stop()
        self._columns, self._made, self._next = None, [], 0

    def _stop(self) -> None:
        """End the read that is under way. Through a server, it holds a connection."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        self._batches = iter(())

    # -- reading ------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        found = next(self._batches, None)
        if found is None:
            self._batches = self._plan()
            found = next(self._batches, None)
        if found is None:
            return
        offset, batch = found
        assert offset == self.at, f"read {offset} of {self.label!r} instead of {self.at}"
        self._columns, self._made, self._next = Columns(batch, offset, self.label), None, 0

    def _fill_back(self) -> None:
        found = self.find()
        if found is None or self.at == found[1]:
            return
        number, first = found[:2]
        start = max(first, self.at - self._back_rows)
        batches = list(self._reader.committed(self.journal, start, self.at, journal=number))
        self._stop()
        self._columns = None
        self._made = [
            message for offset, batch in batches for message in messages_of(batch, offset=offset, journal=self.label)
        ]
        self._next = len(self._made)
        is_much = sum(batch.nbytes for _, batch in batches) > BACK_BYTES
        self._back_rows = max(1, self._back_rows // 2) if is_much else min(BACK_ROWS, self._back_rows * 2)

    def _plan(self) -> Iterator[tuple[int, Any]]:
        """What the journal has by now."""
        found, batches = self._reader.ahead(self.journal, self.at, PLAN_ROWS, journal=self.number)
        self._check(found)
        return batches

    def find(self) -> Whereabouts | None:
        """Where the journal is; None if it does not exist yet. `NotFound` if it is not the one that was read, or if the
        place is not there."""
        found = self._reader.whereabouts(self.journal)
        self._check(found)
        return found

    def _check(self, found: Whereabouts | None) -> None:
        if found is None:
            if self.number is not None or self.at:
                raise self._vanished()
            return
        number, first, end, created_ms = found
        self.number = number if self.number is None else self.number
        self.created_ms = created_ms if self.created_ms is None else self.created_ms
        if number == self.number and created_ms != self.created_ms and self._goes_on(self.created_ms):
            self.created_ms = created_ms
        if (number, created_ms) != (self.number, self.created_ms) or self.at > end:
            raise self._vanished()
        if self.at < first:
            raise NotFound(
                f"the journal {self.label!r} begins at {first} now, and was read to {self.at}: messages were "
                f"forgotten before they were read. {self._remedy} to {first} to go on without them"
            )

    def _goes_on(self, created_ms: int) -> bool:
        """Whether the place is one in the journal that is there now, although it was read at another time."""
        return self._reader.info(self.journal).goes_on(created_ms, self.at)

    def _vanished(self) -> NotFound:
        return NotFound(
            f"{self.label!r} was read to {self.at}, which is not there: the journal was deleted, or is another one of "
            f"that name. {self._remedy} to an offset that exists to go on"
        )


def start_of(reader: JournalReader, journal: str, start: Start) -> tuple[int, int | None]:
    """Where a journal begins that was never read, and its number. One that does not exist yet begins at 0."""
    if isinstance(start, int):
        return start, None
    found = reader.whereabouts(journal)
    if found is None:
        return 0, None
    return found.next_offset if start == "latest" else found.first_offset, found.number
