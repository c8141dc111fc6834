"""Replies through a store: a journal for each app, which everybody who waits for a reply reads from where it ended when
the first request was sent.

A reply that is appended twice does no harm: whoever waits takes the first one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from detent.durations import milliseconds
from detent.errors import Denied, Invalid, NotFound

if TYPE_CHECKING:
    from detent.journal import Journal
    from detent.store import Store

JOURNAL: Final = "detent.replies/"
"""The journal of an app is called so, and then like the app."""

RETENTION: Final = "1h"
"""Nobody waits for a reply that long; a reader that is stuck for less misses nothing."""

REPLIES_MAX: Final = 1_000
"""Replies in one answer, so that a journal that was written fast does not fill the memory."""

PREPARED_MAX: Final = 10_000
"""Journals that are known to be there. Their names come from others, and are not remembered without end."""

logger = logging.getLogger("detent.bus")


class ReplyJournals:
    """The journals that replies go to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prepared: set[str] = set()

    def journal(self, name: str) -> str:
        """The name of an app's journal, which is there, and forgets."""
        journal = JOURNAL + name
        if journal not in self._prepared:
            self._prepare(self._store.journal(journal))
            if len(self._prepared) >= PREPARED_MAX:
                self._prepared.clear()
            self._prepared.add(journal)
        return journal

    def _prepare(self, journal: Journal) -> None:
        try:
            journal.create(exist_ok=True, retention=RETENTION)
            if not journal.info().retention_ms:  # somebody's append has made it
                journal.configure(retention=RETENTION)
        except Denied as error:
            logger.info("replies in %r are kept for as long as somebody else says: %s", journal.name, error)
        except NotFound as error:
            logger.info("a reader that is a little behind does not see %r yet: %s", journal.name, error)


class ReplyReader:
    """Reads the replies to an app, from now on."""

    def __init__(self, store: Store, journals: ReplyJournals, name: str) -> None:
        self._store = store
        self._journal = store.journal(journals.journal(name))
        self._number = store.reader.number(self._journal.name)
        self._at = self._journal.next_offset()

    def next(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Replies that have come since the last call, or none after a time."""
        name = self._journal.name
        grown = self._store.wait(name, self._at, milliseconds(f"{max(0.0, wait_s):.3f}s"))
        number = self._store.reader.number(name)
        if number != self._number:  # it was deleted, and perhaps made anew
            self._number, self._at = number, 0
            grown = number is not None
        return self._read() if grown else []

    def _read(self) -> list[tuple[dict[str, str], bytes]]:
        try:
            first, end = self._store.reader.extent(self._journal.name)
            start = max(self._at, first)  # what was forgotten meanwhile, nobody waits for
            end = min(end, start + REPLIES_MAX)
            found = [(dict(message.headers), message.body) for message in self._journal.read(start, end)]
        except NotFound as error:
            logger.info("replies were forgotten while they were read: %s", error)
            return []
        self._at = end
        return found


def check_reply(visible_ms: int | None) -> None:
    """`Invalid` for what a journal cannot do."""
    if visible_ms is not None:
        raise Invalid("a reply is not delayed: whoever asked waits for it")
