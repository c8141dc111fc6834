"""Sending to queues of SQS: ten messages a call, and each failure with the message whose it is."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from detent.bus import topics as names
from detent.bus.envelope import KINDS, REPLY, TOPIC, TOPICS, Envelope
from detent.transports.sqs_message import FIFO, MESSAGE_BYTES_MAX, Letter, order_of, write
from detent.bus.sqs_queues import SENDING, SqsQueues, is_name
from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, Unavailable
from detent.transports.sqs_client import BATCH_MAX, MISSING, codes_of

DELAY_S_MAX: Final = 900
"""SQS keeps a message back for a quarter of an hour at most."""

SKEW_S: Final = 5.0
"""What a delay may be over that: a clock may have been set back a little. The message comes so much too early then."""

SHOWN_MAX: Final = 200
"""Characters of somebody else's text in a message of ours."""

logger = logging.getLogger("detent.bus")

_PASSING: Final = ("Kms", "Internal", "Service", "Throttl", "RequestThrottled", "OverLimit")
"""How codes begin of what may pass, whoever is said to be at fault."""


class _Entry(NamedTuple):
    """A message for one queue, with its place among those that are sent."""

    place: int
    request: dict[str, Any]
    size: int


def targets_of(to: str, topics: Mapping[str, Sequence[str]]) -> list[str]:
    """The queues that an address means."""
    kind, _, name = to.partition(":")
    if kind not in KINDS or not name:
        raise Invalid(f"{to[:SHOWN_MAX]!r} is no address: it begins with one of {', '.join(KINDS)}, and a colon")
    if kind != TOPIC:
        return [name]
    listed = names.names_in(name)
    if not any(topic in topics for topic in listed):
        raise Invalid(
            f"nobody has said who gets what is published as {listed[0]!r}: SQS does not know who has subscribed, so "
            f'list the queues, SqsTransport(topics={{"{listed[0]}": ["billing"]}}), or an empty list for nobody'
        )
    return list(dict.fromkeys(queue for topic in listed for queue in topics.get(topic, ())))


def delay_s(visible_ms: int | None, now_s: float) -> int:
    """How long a message is kept back, in whole seconds: rather longer than too short."""
    if visible_ms is None:
        return 0
    delay = visible_ms / 1000 - now_s
    if delay > DELAY_S_MAX + SKEW_S:
        raise Invalid(
            f"SQS keeps a message back for {DELAY_S_MAX} s at most, not for {math.ceil(delay)} s: use an outbox, which "
            "keeps it until then"
        )
    return min(max(math.ceil(delay), 0), DELAY_S_MAX)


def request_of(queue: str, letter: Letter, headers: Mapping[str, str], message_id: str, delay: int) -> dict[str, Any]:
    """What is sent to a queue."""
    found: dict[str, Any] = {"MessageBody": letter.text, "MessageAttributes": letter.attributes}
    if queue.endswith(FIFO):
        if delay:
            raise Unavailable(
                f"{queue!r} is a FIFO queue, which delays no single message, and this one is due in {delay} s: use an "
                "outbox, which keeps it until then, or another queue"
            )
        return found | order_of(queue, headers, message_id)
    return found | ({"DelaySeconds": delay} if delay else {})


class Sending:
    """One call of `send`: what is to go to each queue, and what became of it."""

    def __init__(self, queues: SqsQueues, topics: Mapping[str, Sequence[str]]) -> None:
        self._queues = queues
        self._topics = topics
        self._waiting: dict[str, list[_Entry]] = {}
        self._held: dict[str, DetentError] = {}
        self.answer: dict[int, DetentError] = {}

    def send(self, envelopes: Sequence[Envelope]) -> dict[int, DetentError]:
        """Send all; by index, what became of those that were not sent."""
        now_s = time.time()
        for index, envelope in enumerate(envelopes):
            try:
                self._add(index, envelope, now_s)
            except (Invalid, LimitExceeded, Unavailable) as error:  # it holds up no others, nor does one not yet due
                self._note(index, error)
        for queue in list(self._waiting):
            self._flush(queue)
        for index, said in list(self.answer.items()):
            if _is_reply(envelopes[index]) and isinstance(said, NotFound | Denied):
                del self.answer[index]
                _drop(envelopes[index], said)
        return self.answer

    def _add(self, index: int, envelope: Envelope, now_s: float) -> None:
        targets = targets_of(envelope.to, self._topics)
        if _is_reply(envelope) and not is_name(targets[0]):
            _drop(envelope, "no queue can be called so")
            return
        headers = dict(envelope.headers)
        if envelope.to.startswith(TOPIC + ":"):
            headers[TOPICS] = envelope.to.partition(":")[2]
        letter = write(headers, envelope.body)
        size = letter.size
        if size > MESSAGE_BYTES_MAX:
            raise LimitExceeded(
                f"a message of {size} bytes with its headers is over SQS's limit of {MESSAGE_BYTES_MAX}: keep what is "
                "large elsewhere, and send where it is"
            )
        delay = delay_s(envelope.visible_ms, now_s)
        entries = [
            (queue, _Entry(index, request_of(queue, letter, headers, envelope.id, delay), size)) for queue in targets
        ]
        for queue, entry in entries:
            self._make_room(queue, entry.size)
        for error in (self._held[queue] for queue in targets if queue in self._held):
            self.answer[index] = error  # it would overtake one before it
            return
        for queue, entry in entries:
            self._waiting.setdefault(queue, []).append(entry)

    def _make_room(self, queue: str, size: int) -> None:
        """One call takes ten messages, and as many bytes as one of them. A FIFO queue gets one after another: if one
        of ten failed, those behind it would have overtaken it."""
        waiting = self._waiting.get(queue, [])
        most = 1 if queue.endswith(FIFO) else BATCH_MAX
        if len(waiting) >= most or sum(entry.size for entry in waiting) + size > MESSAGE_BYTES_MAX:
            self._flush(queue)

    def _flush(self, queue: str) -> None:
        entries = self._waiting.pop(queue, [])
        if entries:
            self._send(queue, entries)

    def _send(self, queue: str, entries: Sequence[_Entry]) -> None:
        requests = [{"Id": str(at), **entry.request} for at, entry in enumerate(entries)]
        try:
            answer = self._queues.call("send_message_batch", queue, SENDING, Entries=requests)
        except (Invalid, LimitExceeded) as error:
            if len(entries) == 1:
                self._note(entries[0].place, error)
                return
            for entry in entries:  # to learn which of them it was
                self._send(queue, [entry])
        except DetentError as error:
            self._held[queue] = error
            for entry in entries:
                self._note(entry.place, error)
        else:
            failed = {said["Id"]: said for said in answer.get("Failed") or ()}
            done = {said["Id"] for said in answer.get("Successful") or ()}
            for at, entry in enumerate(entries):
                if str(at) not in done:
                    self._refused(queue, entry, failed.get(str(at), {}))

    def _refused(self, queue: str, entry: _Entry, said: Mapping[str, Any]) -> None:
        error = _meaning(queue, said)
        self._note(entry.place, error)
        if not isinstance(error, Invalid):
            self._held[queue] = error

    def _note(self, index: int, error: DetentError) -> None:
        """A message for several queues is sent again if that may help with one of them."""
        if isinstance(self.answer.get(index, error), Invalid | LimitExceeded):
            self.answer[index] = error
        else:
            self.answer.setdefault(index, error)


def _is_reply(envelope: Envelope) -> bool:
    return envelope.to.startswith(REPLY + ":")


def _drop(envelope: Envelope, why: object) -> None:
    """Nobody waits: a message is not to fail, nor a lane to wait for ever, because of whom its sender names."""
    logger.info("a reply to %r is dropped: %s", envelope.to[:SHOWN_MAX], why)


def _meaning(queue: str, said: Mapping[str, Any]) -> DetentError:
    """What SQS says of one message of a call."""
    codes = codes_of(said)
    text = f"SQS did not take a message for {queue!r}: {said.get('Message') or ', '.join(sorted(codes)) or 'no reason'}"
    if codes & MISSING:
        return NotFound(text)
    if said.get("SenderFault") and not any(code.startswith(_PASSING) for code in codes):
        return Invalid(text)
    return Unavailable(text)
