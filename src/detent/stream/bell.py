"""Waiting for several journals at once, of any stores: each rings the same bell when it has grown.

Where the store's owner is in this process, its commits ring the bell themselves. Elsewhere a thread a journal asks the
owner, and does so only from the first wait on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from detent.errors import Unavailable
from detent.runtime import thread
from detent.runtime.backoff import Backoff, Failures

if TYPE_CHECKING:
    from detent.store import Store

LOOK_S: Final = 5.0
"""How often one who waits should look for itself, rung or not: the journal may have been deleted, the store closed, its
owner replaced by one that rings no bell here."""

ASK: Final = Backoff(0.02, 1.0)
"""How long a thread asks before it looks whether it is still needed: at first, so that a wait that ends soon leaves
nothing behind for long, and, twice as long each time, when nothing happens."""

RETRY_S: Final = 0.1

CLOSE_S: Final = 2.0
"""How long one who closes waits for such a thread. One whose server does not answer ends later, by itself."""

logger = logging.getLogger("detent.growth")


class Bell(Protocol):
    """What is rung: a `threading.Event`, or whatever else can be `set` from any thread."""

    def set(self) -> None: ...


class Growth:
    """Rings a bell when a journal has a message at the offset that is expected. For one waiting thread.

    Clear the bell, `expect`, and only then wait. It may ring for nothing, so look, and expect again; and look now and
    then although it does not ring (`LOOK_S`).
    """

    def __init__(self, store: Store, journal: str, bell: Bell) -> None:
        self._store = store
        self._journal = journal
        self._bell = bell
        self._forget: Callable[[], None] | None = None
        self._asker: _Asker | None = None

    def expect(self, offset: int) -> bool:
        """Whether the journal has a message at this offset. If not, the bell rings when it has; the one before is not
        expected any more."""
        self.stop()
        if self._has(offset):
            return True
        self._forget = self._store.on_growth(self._journal, offset, self._bell.set)
        if self._forget is None:
            if self._asker is None:
                self._asker = _Asker(self._store, self._journal, self._bell)
            self._asker.ask(offset)
            return False
        if self._has(offset):  # it has grown just before
            self.stop()
            return True
        return False

    def is_still(self, offset: int) -> bool:
        """Whether this offset is known to be the next one, without a look: the owner is in this process, and has
        announced just that. A look costs more than all else that a reader does which waits for each message.

        A journal that was deleted since is still, too: look now and then.
        """
        return self._store.announced(self._journal) == offset

    def _has(self, offset: int) -> bool:
        return not self.is_still(offset) and self._store.reader.next_offset(self._journal) > offset

    def stop(self) -> None:
        """Expect nothing."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget()
        if self._asker is not None:
            self._asker.ask(None)

    def close(self) -> None:
        """Let go of everything. Stop all that wait together before the first is closed: a thread that asks takes up to
        a second to see it, and so they do in the same second."""
        self.stop()
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.close()


def wait_for_any(expected: Iterable[tuple[Growth, int]], bell: threading.Event, seconds: float) -> None:
    """Return when one of these journals has a message at the offset that is expected of it, when their bell rings, or
    after some seconds. Nothing is expected afterwards."""
    pairs = list(expected)
    try:
        grown = [growth.expect(offset) for growth, offset in pairs]
        if not any(grown):
            bell.wait(seconds)
    finally:
        for growth, _ in pairs:
            growth.stop()


def close_all(growths: Collection[Growth]) -> None:
    """Let go of everything."""
    for growth in growths:
        growth.stop()  # all of them first: where a server is asked, they end at the same time
    for growth in growths:
        growth.close()


class _Asker:
    """A thread that asks another process whether a journal has grown."""

    def __init__(self, store: Store, journal: str, bell: Bell) -> None:
        self._store = store
        self._journal = journal
        self._bell = bell
        self._offset: int | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = thread.start(f"detent-growth-{journal}", self._run)

    def ask(self, offset: int | None) -> None:
        with self._changed:
            self._offset = offset
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        asked, last = Failures(ASK), -1
        while (offset := self._wanted()) is not None:
            if offset != last:
                asked.worked()
            last = offset
            try:
                if not self._store.wait(self._journal, offset, round(asked.failed() * 1000)):
                    continue
            except Exception as error:  # noqa: BLE001 - who waits looks for itself, and gets it too
                level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
                logger.log(level, "watching %r: %s", self._journal, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_S)
            last = -1
            with self._changed:
                if self._offset == offset:
                    self._offset = None
                    self._bell.set()

    def _wanted(self) -> int | None:
        with self._changed:
            while self._offset is None and not self._closed:
                self._changed.wait()
            return None if self._closed else self._offset
