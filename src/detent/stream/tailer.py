"""Tailers: reading a journal message by message, forward and back, waiting for what is to come."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from detent import names
from detent.durations import Duration, milliseconds, since_1970_ms
from detent.errors import Invalid, NotFound
from detent.journal.message import Message
from detent.stream.bell import LOOK_S, Growth
from detent.stream.following import Following
from detent.stream.kept_place import KeptPlace, consumer_name

if TYPE_CHECKING:
    from detent.store import Store
    from detent.transaction import AsyncTransaction, Transaction

Start = Literal["start", "end"] | int | datetime
"""Where a tailer begins: at the first message that is kept, behind the last one, at an offset, at a time."""

_turns: Final = itertools.count(1)
"""Numbers what `any_of` has read, in all of the process: so it knows which tailer has waited longest for its turn."""


class _TailersBell:
    """Rings for the thread that waits at the moment, on one tailer or on several."""

    event: threading.Event | None = None

    def set(self) -> None:
        event = self.event
        if event is not None:
            event.set()


class Tailer:
    """Reads a journal from some place on. Use it in a ``with`` block, or call `close`.

    >>> with Tailer(store, "orders", "billing") as tailer:
    ...     while (message := tailer.read(timeout=None)) is not None:
    ...         bill(message)

    A tailer with a `name` keeps its place in the store, and goes on from there when it is opened again; `start` is
    where it begins the first time. One without a name keeps nothing, and begins at `start` each time.

    With `autosave`, a message counts as done when the next one is read: a process that is killed reads at most the one
    that it had in hand again (or those, with `read_many`, which also saves less often and so is much quicker). `close`
    and the end of the ``with`` block save too; when the block ends with an exception, what was in hand is not done, and
    comes again. Without `autosave` nothing is saved but by `save`, or by `save_in`, with which the place commits
    together with what was made of the messages: exactly once.

    Opened twice, the newest has it: the older one gets `Fenced` when it saves. Deleted and made anew, a journal is
    another one; it is `NotFound` until the tailer is moved, and so are messages that were forgotten before they were
    read.

    A tailer is for one thread at a time, and says `Invalid` to a second one. Any thread may call `unblock` and `close`,
    and ask where it is.
    """

    def __init__(
        self, store: Store, journal: str, name: str | None = None, *, start: Start = "start", autosave: bool = True
    ) -> None:
        names.check_name(journal, "journal")
        _check_start(start)
        self.store = store
        self.journal = journal
        self.name = name
        self.last_read: int | None = None
        """The offset of the message that was read last."""
        self._autosave = autosave
        self._following = Following(store.reader, journal, 0)
        self._bell = _TailersBell()
        self._growth: Growth | None = None
        self._is_backward = False
        self._is_unblocked = False
        self._closed = False
        self._turn = 0
        self._in_use = threading.Lock()
        self._kept = None if name is None else KeptPlace(store, "tailer", journal, name)
        if self._kept is not None and self._kept.start is not None:
            self._following.begin(self._kept.start.at, self._kept.start.journal)
            return
        self._to(start)
        # Where the end was must be durable: a restart before the first message would skip what came meanwhile.
        self._save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(save=self._autosave and error is None)

    def __repr__(self) -> str:
        called = "" if self.name is None else f", {self.name!r}"
        return f"Tailer({self.journal!r}{called}, position={self.position})"

    def close(self) -> None:
        """Let go of it. With `autosave`, what was read is done. A read that waits returns first."""
        self._end(save=self._autosave)

    def _end(self, *, save: bool) -> None:
        self.unblock()
        with self._in_use:
            if self._closed:
                return
            self._closed = True
            try:
                if save:
                    self._save()
            finally:
                if self._growth is not None:
                    self._growth.close()
                self._following.close()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """While one thread uses it."""
        if not self._in_use.acquire(blocking=False):
            raise Invalid(f"another thread uses the tailer of {self.journal!r}: each thread needs one of its own")
        try:
            if self._closed:
                raise Invalid(f"the tailer of {self.journal!r} is closed: open it again")
            yield
        finally:
            self._in_use.release()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset of the message that comes next, read forward; read backward, the one before it comes next. In a
        journal that has no message yet it is 0."""
        return self._following.at

    def read(self, timeout: Duration | None = "0s") -> Message | None:
        """The next message, or None if there is none within the time; with None as `timeout` it waits for ever. Read
        backward it does not wait: nothing comes before the first message."""
        found = self.read_many(1, timeout)
        return found[0] if found else None

    def read_many(self, limit: int, timeout: Duration | None = "0s") -> list[Message]:
        """Up to so many messages, as soon as there is one: all that are there, and none after the time."""
        if type(limit) is not int or limit < 1:
            raise Invalid(f"read 1 message or more, not {limit!r}")
        deadline = _deadline(timeout)
        with self._used():
            if self._autosave:
                self._save()
            return [] if _await_one([self], deadline) is None else self._take(limit)

    def peek(self) -> Message | None:
        """The message that a read would give now, or None. Nothing moves, and nothing is saved."""
        with self._used():
            return self._following.peek_back() if self._is_backward else self._following.peek()

    def __iter__(self) -> Iterator[Message]:
        """The messages that are there, one after the other; it ends where none is."""
        while (message := self.read()) is not None:
            yield message

    def _has_one(self) -> bool:
        following = self._following
        return (following.look_back() if self._is_backward else following.look()) > 0

    def _take(self, limit: int) -> list[Message]:
        following = self._following
        taken = following.take_back(limit) if self._is_backward else following.take_all(limit)
        self.last_read = taken[-1].offset
        return taken

    # -- moving -------------------------------------------------------------------------------------------------

    def to_start(self) -> Self:
        """Go to the first message that is kept."""
        return self._moved("start")

    def to_end(self) -> Self:
        """Go behind the last message."""
        return self._moved("end")

    def to(self, offset: int) -> Self:
        """Go to an offset: that of a message, or the one that the next message gets. `NotFound` if it is neither."""
        if type(offset) is not int or offset < 0:
            raise Invalid(f"an offset is a number from 0 on, not {offset!r}")
        return self._moved(offset)

    def to_time(self, time: datetime) -> Self:
        """Go to the first message that was published at this time or later; behind the last one if none was."""
        _check_start(time)
        return self._moved(time)

    def _moved(self, start: Start) -> Self:
        with self._used():
            self._to(start)
        return self

    def _to(self, start: Start) -> None:
        """Whatever journal of that name there is now, is the one that is read."""
        number, first, end, _ = self.store.reader.whereabouts(self.journal) or (None, 0, 0, 0)
        at = first if start == "start" else end
        if isinstance(start, datetime) and number is not None:
            at = min(max(first, self.store.reader.offset_at(self.journal, since_1970_ms(start))), end)
        if isinstance(start, int):
            at = start
        if not first <= at <= end:
            raise NotFound(
                f"{self.journal!r} has no offset {at}: the first that is kept is {first}, and the next message gets "
                f"{end}"
            )
        self._following.begin(at, number)

    def forward(self) -> Self:
        """Read towards the end, as a new tailer does."""
        return self._turned(False)

    def backward(self) -> Self:
        """Read towards the beginning. After a turn the same message is read again."""
        return self._turned(True)

    def _turned(self, is_backward: bool) -> Self:
        with self._used():
            self._is_backward = is_backward
        return self

    # -- waiting ------------------------------------------------------------------------------------------------

    def unblock(self) -> None:
        """Wait no more. A read that waits answers None now, and so do all later ones that would wait, until
        `blockable`; those that find a message answer it. For any thread: this is how to stop one that reads."""
        self._is_unblocked = True
        self._bell.set()

    def blockable(self) -> Self:
        """Let reads wait again, as those of a new tailer do."""
        self._is_unblocked = False
        return self

    def _expect(self) -> bool:
        """Whether there is a message by now; else the bell will ring."""
        if self._growth is None:
            self._growth = Growth(self.store, self.journal, self._bell)
        return self._growth.expect(self.position)

    def _expect_nothing(self) -> None:
        self._bell.event = None
        if self._growth is not None:
            self._growth.stop()

    # -- the place that is kept ---------------------------------------------------------------------------------

    def save(self) -> None:
        """Make the position durable: what was read is done. `Fenced` if this tailer was opened again since."""
        with self._used():
            self._kept_place()
            self._save()

    def save_in(self, transaction: Transaction | AsyncTransaction) -> None:
        """Make the position durable with a transaction of the same store: both are, or neither is.

        >>> with Tailer(store, "orders", "billing", autosave=False) as tailer:
        ...     while messages := tailer.read_many(100, timeout=None):
        ...         with store.transaction() as transaction:
        ...             transaction.append_many("bills", map(bill, messages))
        ...             tailer.save_in(transaction)

        When the transaction fails, its messages are not done, although they were read: open the tailer again, or move
        it back.
        """
        with self._used():
            kept = self._kept_place()
            if self._autosave:  # the next read would save what a transaction that failed has not done
                raise Invalid("open the tailer with autosave=False to save its position with transactions")
            kept.save_in(transaction, self.position, self._following.number)

    def _kept_place(self) -> KeptPlace:
        if self._kept is None:
            raise Invalid(f"this tailer of {self.journal!r} keeps nothing: open it with a name to save its position")
        return self._kept

    def _save(self) -> None:
        if self._kept is not None:
            self._kept.save(self.position, self._following.number)


def any_of(
    tailers: Sequence[Tailer], timeout: Duration | None = None, *, fair: bool = True
) -> tuple[Tailer, Message] | None:
    """Read one message of one of these tailers, whichever has one first; None if none has within the time. With None as
    `timeout` it waits for ever; when one of them is unblocked, not at all.

    The others stay where they are. They may read different journals or the same one, of any stores. Where several have
    a message, the one whose turn was longest ago comes first, so that a busy journal does not keep the others waiting;
    unless `fair` is False: then their order says who comes first.

    >>> tailer, message = any_of([orders, returns])
    """
    deadline, used = _deadline(timeout), list(tailers)
    if not used or len({id(tailer) for tailer in used}) < len(used):
        raise Invalid("any_of reads one tailer or several, each of them named once")
    with ExitStack() as stack:
        for tailer in used:
            stack.enter_context(tailer._used())
        for tailer in used:
            if tailer._autosave:
                tailer._save()
        if fair:
            used.sort(key=lambda tailer: tailer._turn)
        found = _await_one(used, deadline)
        if found is None:
            return None
        found._turn = next(_turns)
        return found, found._take(1)[0]


def delete_tailer(store: Store, journal: str, name: str) -> None:
    """Forget a tailer and its place. `NotFound` if there is none of that name; one that is open saves nothing more."""
    store.consumer(consumer_name("tailer", journal, name)).delete()


def _await_one(tailers: Sequence[Tailer], deadline: float | None) -> Tailer | None:
    """The first of these that has a message, once one has; None after the time, or when one is unblocked."""
    found = _first(tailers)
    waiting = [tailer for tailer in tailers if not tailer._is_backward]
    if found is not None or not waiting or (deadline is not None and time.monotonic() >= deadline):
        return found
    bell = threading.Event()
    try:
        for tailer in tailers:  # those that read backward have nothing to wait for, but may be unblocked all the same
            tailer._bell.event = bell
        while True:
            bell.clear()
            if any(tailer._is_unblocked for tailer in tailers):
                return None
            grown = [tailer._expect() for tailer in waiting]  # all are asked, so that each one rings
            found = _first(waiting) if any(grown) else None
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if found is not None or left_s <= 0:
                return found
            if not bell.wait(left_s) and (found := _first(waiting)) is not None:  # a journal that is gone rings no bell
                return found
    finally:
        for tailer in tailers:
            tailer._expect_nothing()


def _first(tailers: Sequence[Tailer]) -> Tailer | None:
    return next((tailer for tailer in tailers if tailer._has_one()), None)


def _deadline(timeout: Duration | None) -> float | None:
    return None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000


def _check_start(start: Start) -> None:
    if isinstance(start, datetime):
        since_1970_ms(start)
    elif start not in ("start", "end") and (type(start) is not int or start < 0):
        raise Invalid(f"a tailer starts at 'start', at 'end', at an offset or at a datetime, not at {start!r}")
