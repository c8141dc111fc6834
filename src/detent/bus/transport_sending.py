"""Sending to queues: which of them an address means, by lists of topics, and how much goes to each in one call."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from detent.bus.envelope import ID, KINDS, REPLY, TOPIC, TOPICS, Envelope
from detent.bus.topics import check_topic, names_in
from detent.errors import DetentError, Invalid, LimitExceeded
from detent.transports.contract import NewMessage

SEND_MAX: Final = 100
"""Messages that a queue is given in one call."""

SHOWN_MAX: Final = 200
"""Characters of a sender's text in a message of ours."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+%:-]{0,254}")

logger = logging.getLogger("detent.bus")


def check_name(name: str) -> None:
    """`Invalid` for what cannot be the name of a queue."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r:.200} is no name of a queue: use 1 to 255 ASCII letters, digits and any of . _ ~ + % : -, and "
            "begin with a letter or digit"
        )


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
        kind, _, name = to.partition(":")
        if kind not in KINDS or not name:
            raise Invalid(f"{to[:SHOWN_MAX]!r} is no address: it begins with one of {', '.join(KINDS)}, and a colon")
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
                f"no queue is listed for what is published as {listed[0]!r}: the transport does not know who has "
                f'subscribed, so list the queues, topics={{"{listed[0]}": ["billing"]}}, or topic.{listed[0]}=billing '
                "in a URL; an empty list sends it to none"
            )
        return list(dict.fromkeys(queue for topic in listed for queue in self._topics.get(topic, ())))


class Targets(Protocol):
    """The queues of a transport, for one call of `send`."""

    @property
    def dropped(self) -> tuple[type[DetentError], ...]:
        """What it means that no queue takes a reply."""
        ...

    def targets(self, to: str) -> list[str]:
        """The queues that an address means."""
        ...

    def check_due(self, envelope: Envelope, targets: Sequence[str]) -> None:
        """Raise for a message that is due later than its queues keep it back for."""

    def send_to(self, target: str, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages to one queue; by index, what became of those that were not sent."""
        ...


class Dispatch:
    """One call of `send`: what is to go to each queue, and what became of it."""

    def __init__(self, transport: Targets) -> None:
        self._transport = transport
        self._waiting: dict[str, list[tuple[int, NewMessage]]] = {}
        self._held: dict[str, DetentError] = {}
        self._errors: dict[int, DetentError] = {}

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send all; by index, what became of those that were not sent."""
        for index, envelope in enumerate(envelopes):
            try:
                self._add(index, envelope)
            except DetentError as error:  # it holds up no others, nor does one not yet due
                self._errors[index] = error
        for target in list(self._waiting):
            self._flush(target)
        for index, said in list(self._errors.items()):
            if envelopes[index].to.startswith(REPLY + ":") and isinstance(said, self._transport.dropped):
                drop_reply(envelopes[index].to, self._errors.pop(index))
        return self._errors

    def _add(self, index: int, envelope: Envelope) -> None:
        targets = self._transport.targets(envelope.to)
        self._transport.check_due(envelope, targets)
        for target in targets:
            if len(self._waiting.get(target, ())) >= SEND_MAX:
                self._flush(target)
        for error in (self._held[target] for target in targets if target in self._held):
            self._errors[index] = error  # it would overtake one before it
            return
        for target in targets:
            self._waiting.setdefault(target, []).append((index, _message(envelope)))

    def _flush(self, target: str) -> None:
        numbered = self._waiting.pop(target)
        for place, error in self._transport.send_to(target, [message for _, message in numbered]).items():
            index = numbered[place][0]
            if isinstance(self._errors.get(index, error), Invalid | LimitExceeded):
                self._errors[index] = error  # of a message for several queues, the error counts that may pass
            else:
                self._errors.setdefault(index, error)
            if not isinstance(error, Invalid | LimitExceeded):
                self._held[target] = error


def drop_reply(to: str, why: object) -> None:
    """A reply goes nowhere: its lane is not to wait for ever."""
    logger.info("a reply to %r is dropped: %s", to[:SHOWN_MAX], why)


def _message(envelope: Envelope) -> NewMessage:
    """A message as a queue takes it."""
    headers = {**envelope.headers, ID: envelope.id}
    if envelope.to.startswith(TOPIC + ":"):
        headers[TOPICS] = envelope.to.partition(":")[2]
    return NewMessage(envelope.id, envelope.body, headers, envelope.visible_ms)
