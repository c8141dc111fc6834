"""Which topics a queue of a store has subscribed to, changed by several processes at once.

They are in the queue's filter. Two who read it, add a name and write it back would lose one of the names, so a filter
is written only in place of the one that was read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from detent.bus.topics import Rule, check_topic, make_filter, parse_filter
from detent.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from detent.store import Store

TRIES_MAX: Final = 100
"""How often others may come between: each time one of them gets on."""

logger = logging.getLogger("detent.bus")


def change(store: Store, queue: str, wanted: Mapping[str, bool]) -> None:
    """Subscribe to the names that are True, and no longer to those that are False. Nothing is written if all is so."""
    for topic in wanted:
        check_topic(topic)
    handle = store.queue(queue)
    for _ in range(TRIES_MAX if wanted else 0):
        found = handle.info().filter
        rule = parse_filter(queue, found)
        kept = {topic for topic in rule.topics if wanted.get(topic, True)}
        new = Rule(rule.own, frozenset(kept | {topic for topic, on in wanted.items() if on}))
        if new.topics == rule.topics:
            return
        try:
            handle.configure(filter=make_filter(queue, new), expect_filter=found)
        except Conflict:
            continue
        logger.info("%r takes messages published as %s", queue, ", ".join(sorted(new.topics)) or "nothing")
        return
    if wanted:
        raise Unavailable(f"others change the subscriptions of {queue!r} all the time: try again")
