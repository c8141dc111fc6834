"""Appenders: writing to a journal so that a program which writes again, after a crash too, writes nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detent import names
from detent.engine import Operation
from detent.errors import Invalid, NotFound
from detent.journal import Appended, calls
from detent.journal.calls import Entry
from detent.stream.kept_place import AT_MAX, KeptPlace, consumer_name

if TYPE_CHECKING:
    from detent.store import Store


class Appender:
    """Appends messages to a journal.

    One with a `name` remembers how far its caller is, by the caller's own number of each message: the id of a row, the
    line of a file. A message whose number is above the last one is appended, and its number is kept with it in one
    transaction; any other is there already, and is not appended again. So a caller that was killed begins again a
    little earlier, or at the beginning, and each message is in the journal once:

    >>> appender = Appender(store, "lines", "import")
    >>> for number, line in enumerate(open("lines.txt", "rb")):
    ...     appender.append(line, number=number)

    Numbers grow from call to call, and may have gaps: one that comes late counts as there already. Opened twice, the
    newest has it, and the older one gets `Fenced`. Any number of threads may share an appender, if they agree on the
    order.

    One without a name takes no numbers, and appends all that it is given.
    """

    def __init__(self, store: Store, journal: str, name: str | None = None) -> None:
        names.check_name(journal, "journal")
        self.store = store
        self.journal = journal
        self.name = name
        self.last_offset: int | None = None
        """The offset of the last message that was appended through this object; None before the first."""
        self._lock = threading.Lock()
        self._kept = None if name is None else KeptPlace(store, "appender", journal, name)
        self._next = 0
        self._number: int | None = None
        if self._kept is not None and self._kept.start is not None:
            self._next, self._number = self._kept.start.at, self._kept.start.journal
            if self._next:
                self._check_journal()

    def __repr__(self) -> str:
        called = "" if self.name is None else f", {self.name!r}"
        return f"Appender({self.journal!r}{called})"

    @property
    def last_number(self) -> int | None:
        """The highest number that was appended, in this process or an earlier one; None before the first."""
        return self._next - 1 if self._next else None

    def append(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        number: int | None = None,
    ) -> Appended | None:
        """Append a message; None if it is there already, by its number."""
        return self._append([(body, key, headers)], number)

    def append_many(self, entries: Iterable[Entry], *, first_number: int | None = None) -> Appended | None:
        """Append bodies, (body, key) or (body, key, headers), all or none. With `first_number` they are numbered from
        there on; those that are there already are left out, and if all are, the answer is None."""
        if isinstance(entries, bytes | bytearray | str):
            raise Invalid("append_many takes a list of bodies; for one message use append")
        return self._append(list(entries), first_number)

    def _append(self, entries: list[Entry], number: int | None) -> Appended | None:
        if self._kept is None:
            if number is not None:
                raise Invalid("an appender without a name remembers no numbers: give it a name, or leave them out")
            return self._note(self.store.commit([self._operation(entries)]))
        self._check_number(number, len(entries))
        assert number is not None
        with self._lock:
            self._settle(self._kept)
            left = entries[max(0, self._next - number) :]
            if entries and not left:
                return None
            after = number + len(entries)
            answer = self._note(self._kept.save(after, self._number, self._operation(left)))
            self._next = after
            if self._number is None:  # the first append has made the journal, or found it
                self._number = self.store.reader.number(self.journal)
                self._kept.save(after, self._number)
            return answer

    def _check_number(self, number: int | None, count: int) -> None:
        if number is None:
            raise Invalid(f"the appender {self.name!r} tells messages apart by their numbers: say which this one has")
        if type(number) is not int or number < 0 or number + count > AT_MAX:
            raise Invalid(f"messages are numbered from 0 on, by whole numbers below {AT_MAX}, not {number!r}")

    def _settle(self, kept: KeptPlace) -> None:
        """An append without an answer may have happened or not."""
        before = kept.saved
        kept.settle()
        if kept.saved is not None and kept.saved != before:
            self._next = kept.saved.at

    def _operation(self, entries: list[Entry]) -> Operation:
        return calls.append_many(self.journal, entries)

    def _note(self, results: list[Any]) -> Appended:
        answer: Appended = results[0]
        self.last_offset = answer.offset + answer.committed - 1
        return answer

    def _check_journal(self) -> None:
        """Messages that are there already must be there."""
        found = self.store.reader.number(self.journal)
        if found is None or self._number not in {None, found}:
            raise NotFound(
                f"the appender {self.name!r} has written to a journal {self.journal!r} that was deleted, or is another "
                "one of that name: delete the appender too, to begin with the first number again"
            )


def delete_appender(store: Store, journal: str, name: str) -> None:
    """Forget an appender and its last number. `NotFound` if there is none of that name."""
    store.consumer(consumer_name("appender", journal, name)).delete()
