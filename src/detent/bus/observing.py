"""Watching what becomes of an app's messages, from outside: to count them, to show them, to record them in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from detent.bus import envelope as wire
from detent.bus.declared import Outcome
from detent.bus.envelope import Incoming

if TYPE_CHECKING:
    from detent.bus.app import Bus


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
