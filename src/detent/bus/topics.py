"""Names under which messages are published, and how a queue's filter says which of them it takes.

A message carries its names in one header, as ``|OrderPlaced|Event|``. A queue that has subscribed has a filter such as

    headers.queue == "billing" || headers["detent-topics"].contains("|OrderPlaced|")

The tail of it is the bus's, the rest whatever the queue had before, in brackets unless it is the filter that a queue
has by itself. So the tail can be found again and changed, and nothing else is touched.

Other systems do not know which queue has subscribed to what: their transports have lists (`ListedTopics`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from detent.bus.messages import REPLY, SHOWN_MAX, TOPIC, TOPICS, parts_of
from detent.errors import Conflict, Invalid, LimitExceeded, Unavailable
from detent.queue.filters import FILTER_BYTES_MAX, Filter, default_filter

if TYPE_CHECKING:
    from detent.store import Store

TOPIC_MAX: Final = 200
"""Characters of a name: as many as a queue's or a journal's."""

TRIES_MAX: Final = 100
"""How often other processes may come between: each time one of them gets on."""

_MARK: Final = "|"
"""What stands around each name in the header. No name has it, so none is found within another."""

_NAME_PATTERN: Final = rf"[A-Za-z0-9_.:-]{{1,{TOPIC_MAX}}}"
_NAME: Final = re.compile(_NAME_PATTERN)
_TERM: Final = rf'headers\["{TOPICS}"\]\.contains\("\|({_NAME_PATTERN})\|"\)'
_TERMS: Final = re.compile(_TERM)
_TAIL: Final = re.compile(rf"(?: \|\| {_TERM})+\Z")


logger = logging.getLogger("detent.bus")


class Rule(NamedTuple):
    """A queue's filter, taken apart."""

    own: str
    """What the queue takes besides: the filter that it would have without any topic."""
    topics: frozenset[str]


def check_topic(name: str) -> None:
    """`Invalid` unless messages can be published under this name. (Names become a part of filters, as text.)"""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is not a name to publish under: use 1 to {TOPIC_MAX} ASCII letters, digits and any of _ . : -"
        )


def joined(names: Iterable[str]) -> str:
    """Names as a header, and an address, has them."""
    listed = list(names)
    for name in listed:
        check_topic(name)
    if not listed:
        raise Invalid("a message is published under one name at least")
    return _MARK + _MARK.join(listed) + _MARK


def names_in(header: str) -> list[str]:
    """The names in what `joined` made, each once."""
    if len(header) < 3 or not (header.startswith(_MARK) and header.endswith(_MARK)):
        raise Invalid(f"{header[:200]!r} is not a list of names, which is written |OrderPlaced| or |OrderPlaced|Event|")
    names = list(dict.fromkeys(header[1:-1].split(_MARK)))
    for name in names:
        check_topic(name)
    return names


def parse_filter(queue: str, text: str) -> Rule:
    """Take a queue's filter apart. What only looks as if it ended with topics, such as ``a ? b : c || ...``, is left
    alone as a whole."""
    tail = _TAIL.search(text)
    if tail is None:
        return Rule(text, frozenset())
    head, topics = text[: tail.start()], frozenset(_TERMS.findall(tail[0]))
    if head == default_filter(queue):
        return Rule(head, topics)
    own = head[1:-1]
    if head == _bracketed(own.removesuffix("\n")):
        own = own.removesuffix("\n")
    if head == _bracketed(own) and _compiles(own):
        return Rule(own, topics)
    return Rule(text, frozenset())


def make_filter(queue: str, rule: Rule) -> str:
    """The filter for a rule: what `parse_filter` takes apart again. `LimitExceeded` if it would be too long."""
    if not rule.topics:
        return rule.own
    for topic in rule.topics:
        check_topic(topic)
    head = rule.own if rule.own == default_filter(queue) else _bracketed(rule.own)
    terms = [f'headers["{TOPICS}"].contains("|{topic}|")' for topic in sorted(rule.topics)]
    text = " || ".join([head, *terms])
    if len(text.encode()) > FILTER_BYTES_MAX:
        raise LimitExceeded(
            f"{queue!r} cannot subscribe to {len(rule.topics)} names: a filter of {len(text.encode())} bytes would be "
            f"over the limit of {FILTER_BYTES_MAX}; subscribe to a class that several messages are derived from, give "
            "them shorter names, or split the app"
        )
    return text


def _bracketed(own: str) -> str:
    """A comment at the end would swallow the bracket."""
    return f"({own}\n)" if "//" in own else f"({own})"


def _compiles(text: str) -> bool:
    """Whether a text is a filter by itself, so that brackets around it belong together."""
    try:
        Filter(text)
    except Invalid:
        return False
    return True


def is_taken(store: Store, headers: Mapping[str, str]) -> bool:
    """Whether any queue of a store takes a message with these headers."""
    return any(Filter(queue.filter).matches(headers) for queue in store.queues())


def change_topics(store: Store, queue: str, wanted: Mapping[str, bool]) -> None:
    """Subscribe a queue to the names that are True, and no longer to those that are False; nothing is written if all is
    so. Two that read its filter, add a name and write it back would lose one of the names, so a filter is written only
    in place of the one that was read."""
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


# -- lists ---------------------------------------------------------------------------------------------------------


class ListedTopics:
    """Which queues get what is published under a name: the same lists in all apps, as the queues do not know it."""

    def __init__(self, topics: Mapping[str, Sequence[str]], check_queue: Callable[[str], None]) -> None:
        for topic, queues in topics.items():
            check_topic(topic)
            if isinstance(queues, str):
                raise Invalid(f'topics list queues: write {{"{topic}": ["{queues}"]}}')
            for queue in queues:
                check_queue(queue)
        self._topics = {topic: list(queues) for topic, queues in topics.items()}
        self._check_name = check_queue

    @property
    def queues(self) -> set[str]:
        """All that are listed."""
        return {queue for queues in self._topics.values() for queue in queues}

    def check_listed(self, queue: str, topics: Sequence[str]) -> None:
        """`Invalid` unless a queue is listed under all of these names."""
        for topic in topics:
            check_topic(topic)
            if queue not in self._topics.get(topic, ()):
                listed = [*self._topics.get(topic, ()), queue]
                raise Invalid(
                    f"{queue!r} would not get what is published as {topic!r}: say so in every app, "
                    f'topics={{"{topic}": {listed}}}, or topic.{topic}={",".join(listed)} in a URL; or make the app '
                    "with subscribe=False"
                )

    def check_not_listed(self, queue: str, topics: Sequence[str]) -> None:
        """`Invalid` if it is listed under one of them."""
        for topic in topics:
            if queue in self._topics.get(topic, ()):
                raise Invalid(
                    f"{queue!r} gets what is published as {topic!r} for as long as the topics of an app list it there: "
                    "take it out, in every app"
                )

    def targets(self, to: str) -> list[str]:
        """The queues that an address means; none for a reply to what cannot be a queue."""
        kind, name = parts_of(to)
        if kind != TOPIC:
            try:
                self._check_name(name)
            except Invalid as error:
                if kind != REPLY:
                    raise
                drop_reply(to, error)
                return []
            return [name]
        listed = names_in(name)
        if not any(topic in self._topics for topic in listed):
            raise Invalid(
                f"no queue is listed for what is published as {listed[0]!r}: the transport does not know which "
                f'queues have subscribed, so list them, topics={{"{listed[0]}": ["billing"]}}, or '
                f"topic.{listed[0]}=billing in a URL; an empty list sends it to none"
            )
        return list(dict.fromkeys(queue for topic in listed for queue in self._topics.get(topic, ())))


def drop_reply(to: str, why: object) -> None:
    """A reply goes nowhere: its lane is not to wait for ever."""
    logger.info("a reply to %r is dropped: %s", to[:SHOWN_MAX], why)
