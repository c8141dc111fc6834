"""Requests that wait for their replies; and the journals in which a store has these.

An app has a journal for replies, which each waiting process reads from where it ended when the first request was sent.
A reply that is appended twice does no harm: the waiting caller takes the first one.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from detent.bus import messages as wire
from detent.bus.messages import SHOWN_MAX
from detent.bus.transport import Transport
from detent.durations import milliseconds
from detent.errors import Conflict, Denied, Invalid, LimitExceeded, NotFound, OutcomeUnknown, Unavailable
from detent.journal.operations import check_name
from detent.patterns import REPLIES
from detent.runtime.backoff import Backoff
from detent.runtime.supervisor import Supervised
from detent.runtime.task import AGAIN, Next, Restart, Task

if TYPE_CHECKING:
    from detent.journal import Journal
    from detent.store import Store

WAIT_S: Final = 1.0
BACK_OFF_S: Final = 1.0
STOP_S: Final = 5.0
"""How long a stop waits for an answer of the transport that is under way."""

REQUESTS_MAX: Final = 10_000
"""Requests of one app that wait at the same time."""

JOURNAL: Final = REPLIES
"""The journal of an app is called so, and then like the app."""

RETENTION: Final = "1h"
"""No request waits for a reply that long; a reader that is stuck for less misses nothing."""

REPLIES_MAX: Final = 1_000
"""Replies in one answer, so that a journal that was written fast does not fill the memory."""

FOUND_MAX: Final = 10_000
"""Journals that are known to be there. Their names come from others, and are not remembered without end."""

OPEN: Final = {"detent.replies": "open"}
"""The register that an app sets in its journal before it asks. The app that replies sees by it that there is one,
also where readers are a little behind, and with no more than the right to append."""

logger = logging.getLogger("detent.bus")

Reply = tuple[dict[str, str], bytes]


class Replies(Task):
    """Gives each reply to the request that waits for it. One thread listens, from the first request on."""

    kind = "replies"
    restart = Restart(Backoff(BACK_OFF_S, BACK_OFF_S))

    def __init__(self, name: str, transport: Transport) -> None:
        super().__init__(f"detent-replies-{name}")
        self._app = name
        self._transport = transport
        self._waiting: dict[str, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._is_told = self._is_open = False
        self._supervised = Supervised(self)

    def expect(self, request_id: str) -> Future[Reply]:
        """What the reply to a request will be put into. Called before the request is sent."""
        with self._lock:
            if self._is_told:
                raise Unavailable(f"{self._app!r} is stopping: ask when it has started again")
            if not self._is_open:
                self._transport.open_replies()
                self._is_open = True
                self._supervised.start()
            if len(self._waiting) >= REQUESTS_MAX:
                raise LimitExceeded(f"{REQUESTS_MAX} requests wait for replies already: ask fewer at the same time")
            future: Future[Any] = Future()
            self._waiting[request_id] = future
            return future

    def forget(self, request_id: str) -> None:
        """No reply to it is waited for any more."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def stop(self) -> None:
        """Listen no more. Those that wait are told that the outcome is not known."""
        with self._lock:
            self._is_told = True
            waiting, self._waiting = self._waiting, {}
        for request_id, future in waiting.items():
            if future.set_running_or_notify_cancel():
                future.set_exception(OutcomeUnknown(f"the app stopped before a reply to {request_id} came"))
        self._supervised.stop(STOP_S)

    def step(self) -> Next:
        """Take what has come."""
        for headers, body in self._transport.next_replies(WAIT_S):
            with self._lock:
                future = self._waiting.pop(headers.get(wire.IN_REPLY_TO, ""), None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result((headers, body))
        return AGAIN

    def failed(self, error: Exception, pause_s: float) -> None:
        """Requests run into their timeouts, or the replies come later."""
        del pause_s
        logger.warning("%r cannot read its replies, trying again: %s", self._app, error)


# -- through a store ------------------------------------------------------------------------------------------------


class ReplyJournals:
    """The journals that replies go to. The apps that ask make them, and no other: the name in a message is whatever its
    sender has written there, and a journal for each such name would stay for ever."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: set[str] = set()

    def make(self, name: str) -> Journal:
        """The journal of an app that is going to ask."""
        journal = self._store.journal(JOURNAL + name)
        try:
            journal.create(exist_ok=True, retention=RETENTION)
            if not journal.info().retention_ms:  # an append has made it
                journal.configure(retention=RETENTION)
        except Denied as error:
            logger.info("replies in %r are kept for as long as another caller says: %s", journal.name, error)
        except NotFound as error:
            logger.info("a reader that is a little behind does not see %r yet: %s", journal.name, error)
        try:
            journal.set_registers(OPEN)
        except Denied as error:
            logger.info("an app that replies in %r has to see by itself that it is there: %s", journal.name, error)
        return journal

    def find(self, name: str) -> str | None:
        """The name of an app's journal; None if there is none, so that no caller waits."""
        journal = JOURNAL + name
        if journal not in self._found:
            if not self._is_there(journal):
                return None
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found.add(journal)
        return journal

    def _is_there(self, journal: str) -> bool:
        """The owner knows. Where the asking app may set no register, it is enough that the journal is there."""
        try:
            check_name(journal)
            with self._store.transaction() as transaction:
                transaction.check_registers(journal, OPEN)
        except Conflict:
            return self._is_seen(journal)
        except (Invalid, Denied) as error:  # it cannot be a name, or this app may not write there
            logger.debug("%r takes no replies: %s", journal[:SHOWN_MAX], error)
            return False
        return True

    def _is_seen(self, journal: str) -> bool:
        try:
            return self._store.reader.number(journal) is not None
        except Denied as error:
            logger.debug("whether there is %r cannot be seen: %s", journal[:SHOWN_MAX], error)
            return False


class ReplyReader:
    """Reads the replies to an app, from now on."""

    def __init__(self, store: Store, journals: ReplyJournals, name: str) -> None:
        self._store = store
        self._journals = journals
        self._app = name
        self._journal = journals.make(name)
        self._number = store.reader.number(self._journal.name)
        self._at = self._journal.next_offset()

    def next(self, wait_s: float) -> list[tuple[dict[str, str], bytes]]:
        """Replies that have come since the last call, or none after a time."""
        name = self._journal.name
        grown = self._store.wait(name, self._at, milliseconds(f"{max(0.0, wait_s):.3f}s"))
        number = self._store.reader.number(name)
        if number != self._number:  # it was deleted, and perhaps made anew
            if number is None:  # an app that replies makes none
                self._journals.make(self._app)
            self._number, self._at = number, 0
            grown = number is not None
        return self._read() if grown else []

    def _read(self) -> list[tuple[dict[str, str], bytes]]:
        try:
            first, end = self._store.reader.extent(self._journal.name)
            start = max(self._at, first)  # what was forgotten meanwhile, no caller waits for
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
        raise Invalid("a reply is not delayed: its caller waits for it")
