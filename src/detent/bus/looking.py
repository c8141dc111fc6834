"""Looking at an app: what is in its queue and in its outbox, what its parts are, and what becomes of its messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from detent.bus import messages as wire
from detent.bus import topics
from detent.bus.declared import Outcome
from detent.bus.handlers import Handler, Wanted
from detent.bus.messages import Incoming, name_of
from detent.bus.outbox import FailedEnvelope, OutboxCounts, OutboxStorage
from detent.bus.transport_queue import QueueTransport
from detent.bus.unit_of_work import UnitOfWork, in_unit
from detent.errors import Invalid, NotFound
from detent.kv import open_reader, parse_url
from detent.remote import server_address
from detent.runtime.loop import loop_in_thread

if TYPE_CHECKING:
    from detent.bus.app import Bus


class NotMade(NotFound):
    """A SQLite database that is not there yet, and that looking is not to make."""


_watched: Final = {"is_looking": False, "has_hook": False}
"""Whether connections are watched now, and whether Python was told once to tell about them: it never stops."""


@contextmanager
def making_nothing() -> Iterator[None]:
    """A block in which no SQLite database comes into being by looking at it: connecting to a file that is not there
    would make an empty one, and raises `NotMade` instead. Connections are the user's functions, of several libraries;
    all of them come to Python's own `sqlite3` in the end."""
    if not _watched["has_hook"]:
        _watched["has_hook"] = True
        sys.addaudithook(_refuse_new_file)
    _watched["is_looking"] = True
    try:
        yield
    finally:
        _watched["is_looking"] = False


def _refuse_new_file(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "sqlite3.connect" or not _watched["is_looking"]:
        return
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
    if path and path != ":memory:" and not path.startswith("file:") and not os.path.exists(path):
        raise NotMade(f"there is no database {path} yet")


@dataclass(frozen=True, slots=True)
class QueueLook:
    """What is in the queue of an app."""

    name: str
    available: int
    delayed: int
    in_flight: int
    failed: int
    topics: tuple[str, ...]
    """What it has subscribed to."""


def url_of(bus: Bus) -> str | None:
    """The store that an app's queue is in; None on other transports."""
    return bus.transport.place.rpartition("#")[0] if isinstance(bus.transport, QueueTransport) else None


def look_at_queue(bus: Bus) -> QueueLook | None:
    """The queue of an app that does not run in this process. None if it is not there yet, or if it is in no store;
    nothing is made by looking."""
    url, transport = url_of(bus), bus.transport
    if url is None or not isinstance(transport, QueueTransport) or not _is_there(url):
        return None
    transport.open(bus.name)
    try:
        found = transport.store.queue(transport.input_name).info()
    except NotFound:
        return None
    finally:
        transport.close()
    rule = topics.parse_filter(found.name, found.filter)
    return QueueLook(
        found.name, found.available, found.delayed, found.in_flight, found.failed, tuple(sorted(rule.topics))
    )


def _is_there(url: str) -> bool:
    """Whether there is a store: opening one would make it."""
    if server_address(url) is not None:
        return True
    if parse_url(url).scheme == "memory":
        return False
    try:
        open_reader(url).close()
    except NotFound:
        return False
    return True


def described(handler: Handler) -> tuple[list[str], list[str]]:
    """The messages that a handler takes, and the parameters that it is given besides."""
    wanted = (*(handler.made_with or ()), *handler.wanted)
    return [name_of(cls) for cls in handler.classes], [_parameter(one) for one in wanted]


def _parameter(wanted: Wanted) -> str:
    kind = f": {wanted.kind.__name__}" if isinstance(wanted.kind, type) else ""
    return f"{wanted.name}{kind}{' = ...' if wanted.is_optional else ''}"


# -- outboxes -------------------------------------------------------------------------------------------------------


class OutboxLook:
    """The outbox of an app, each question in a transaction of its own. The app may run, here or elsewhere."""

    def __init__(self, bus: Bus) -> None:
        if bus.outbox is None or bus.unit_of_work is None:
            raise Invalid(f"{bus.name!r} has no outbox: write Bus(..., outbox=SqlOutbox(), unit_of_work=...) for one")
        self._bus = bus
        self._outbox: OutboxStorage = bus.outbox
        self._unit_of_work: UnitOfWork = bus.unit_of_work

    def prepare(self) -> None:
        """Make its tables, if need be, as the app does when it starts."""
        self._ask(self._outbox.prepare)

    def counts(self) -> OutboxCounts:
        """How much is in it."""
        found: OutboxCounts = self._ask(self._outbox.counts)
        return found

    def set_aside(self, limit: int) -> Sequence[FailedEnvelope]:
        """The oldest messages that cannot be sent as they are."""
        found: Sequence[FailedEnvelope] = self._ask(self._outbox.set_aside, limit)
        return found

    def redrive(self, positions: Sequence[int] | None) -> int:
        """Have messages tried again that were set aside, those at some positions or all; how many there were."""
        found: int = self._ask(self._outbox.redrive, positions)
        return found

    def _ask(self, question: Callable[..., Any], *values: Any) -> Any:
        return self._bus.calling.run(in_unit, self._unit_of_work, lambda unit: question(unit, *values))


@contextmanager
def opened_outbox(bus: Bus) -> Iterator[OutboxLook]:
    """The outbox of an app that does not run in this process."""
    look = OutboxLook(bus)
    with ExitStack() as stack:
        if bus.calling.unit_is_async and bus.calling.loop is None:
            bus.calling.loop = stack.enter_context(loop_in_thread())
            stack.callback(setattr, bus.calling, "loop", None)
        assert bus.unit_of_work is not None
        bus.unit_of_work.check(bus.transport)
        yield look


# -- while it runs --------------------------------------------------------------------------------------------------


@contextmanager
def observed(bus: Bus, see: Callable[[Incoming, Outcome], None]) -> Iterator[None]:
    """Have `see` called with each delivery and what became of it, for the length of a block. Of one that failed,
    ``incoming.error`` says why. Enter the block before the app starts. Calls come from many threads."""
    before = vars(bus).get("handle")
    handle = bus.handle

    def seen(incoming: Incoming) -> Outcome:
        outcome = handle(incoming)
        see(incoming, outcome)
        return outcome

    vars(bus)["handle"] = seen  # of this one app: no other app pays for it
    try:
        yield
    finally:
        if before is None:
            del vars(bus)["handle"]
        else:
            vars(bus)["handle"] = before


def id_of(incoming: Incoming) -> str:
    """What a message is called by people: its id, or the transport's name for one that has none."""
    return incoming.headers.get(wire.ID) or incoming.transport_id
