"""What a raw journal commits, by the plainest means: the reference that sequencing is checked against.

A raw journal is a list of (producer, clock, flags). `committed` replays all of it with lists and a few sentences of
rules; it shares no code with `detent.message`. `random_journal` makes journals with everything that goes wrong.
`Gate` says which rows an owner lets into a journal while time passes. What it lets in is committed as if nothing were
ever forgotten.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

OUTSIDE, CONTINUE, ACK = 0, 1, 2

RawMessage = tuple[int, int, int]


def committed(raw: list[RawMessage]) -> list[int]:
    """Indexes of the messages that a read-committed reader gets, in the order it gets them; ACKs are not among them.

    The rules, for each producer by itself:

    * Clock zero is not sequenced: the message is delivered where it stands.
    * Whatever the producer acknowledged is over: messages at or below its highest acknowledged clock are repeats.
      An unknown producer has acknowledged everything below its first message.
    * A pending message waits, if it is newer than all that wait already.
    * An ACK ends the wait. If it is new, those that wait up to its clock are delivered. The others are gone.
    * A message outside of transactions, if it is new, is delivered, is acknowledged by itself, and ends the wait.
    """
    delivered: list[int] = []
    acknowledged: dict[int, int] = {}
    waiting: dict[int, list[tuple[int, int]]] = {}
    for index, (producer, clock, flags) in enumerate(raw):
        if clock == 0:
            delivered.append(index)
            continue
        acknowledged.setdefault(producer, clock - 1)
        line = waiting.setdefault(producer, [])
        is_new = clock > acknowledged[producer]
        if flags == CONTINUE:
            if is_new and all(clock > other for other, _ in line):
                line.append((clock, index))
            continue
        if flags == ACK:
            if is_new:
                delivered += [at for other, at in line if other <= clock]
            line.clear()
        elif is_new:
            delivered.append(index)
            line.clear()
        acknowledged[producer] = max(acknowledged[producer], clock)
    return delivered


TICKS_A_SECOND = 160_000_000
AHEAD = 15 * 60 * TICKS_A_SECOND
REMEMBERED = 30
"""How many horizons the full record of an aborted producer is kept."""


@dataclass
class Gate:
    """An owner's memory of one journal's producers. All times are clocks, the deadline and the horizon too.

    * A clock more than a quarter of an hour ahead of the owner's is refused.
    * A transaction that is open for longer than the deadline is aborted. Its producer is refused for ever.
    * A producer further behind the newest clock than the horizon is forgotten, unless its transaction is open. The
      newest clock is no later than the owner's. An aborted one is remembered as any other, but longer.
    * The floor is the highest clock of all that were forgotten. An unknown producer at or below it is refused.
    * A message outside of transactions is refused while its producer's transaction is open.
    """

    deadline: int
    horizon: int
    floor: int = 0
    newest: int = 0
    clocks: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    def admits(self, row: RawMessage, now: int) -> bool:
        """Whether the owner takes a row, and what it remembers then."""
        producer, clock, flags = row
        if clock > now + AHEAD or producer in self.aborted:
            return False
        known = producer in self.clocks and (producer in self.opened or self.clocks[producer] > self.floor)
        if not known:
            if clock <= self.floor:
                return False
            self.clocks[producer] = self.acknowledged[producer] = clock - 1
        is_new = clock > self.acknowledged[producer]
        if flags not in (CONTINUE, ACK) and is_new and producer in self.opened:
            return False
        if flags == CONTINUE and is_new and clock > self.clocks[producer]:
            self.opened.setdefault(producer, now)
            self.clocks[producer] = clock
        elif flags == ACK or (flags != CONTINUE and is_new):
            self.opened.pop(producer, None)
            self.acknowledged[producer] = max(self.acknowledged[producer], clock)
            self.clocks[producer] = self.acknowledged[producer]
        self.newest = max(self.newest, self.clocks[producer])
        return True

    def tick(self, now: int) -> None:
        """The owner keeps house."""
        for producer, since in list(self.opened.items()):
            if now - since > self.deadline:
                del self.opened[producer]
                self.acknowledged[producer] = self.clocks[producer]
                self.aborted.add(producer)
        for producer, clock in list(self.clocks.items()):
            horizon = self.horizon * (REMEMBERED if producer in self.aborted else 1)
            if producer not in self.opened and clock < min(self.newest, now) - horizon:
                del self.clocks[producer], self.acknowledged[producer]
                self.floor = max(self.floor, clock)


@dataclass
class _Producer:
    """One publisher in the making of a random journal."""

    number: int
    clock: int
    sent: list[RawMessage] = field(default_factory=list)
    last_ack: int = 0
    first_pending: int = 0

    def send(self, rng: random.Random, flags: int) -> RawMessage:
        self.clock += rng.choice((1, 1, 2, 160))
        if flags != CONTINUE:
            self.last_ack, self.first_pending = self.clock, 0
        elif not self.first_pending:
            self.first_pending = self.clock
        message = (self.number, self.clock, flags)
        self.sent.append(message)
        return message


def random_journal(
    rng: random.Random,
    *,
    messages: int = 60,
    producers: int = 4,
    faults: float = 0.25,
    outside: float = 0.2,
    ack: float = 0.25,
) -> list[RawMessage]:
    """A raw journal of about `messages` messages by `producers` interleaved producers.

    With the probability `faults` the next step is one of: a retried tail, a repeated ACK, a partial ACK, a late older
    message, a clean or a deep rollback, a message without a clock or with unknown flags, or a crash (the span stays
    open, and a new producer takes over).
    """
    live = [_Producer(100 + number, rng.randrange(5) * 40) for number in range(producers)]
    next_number = 100 + producers
    raw: list[RawMessage] = []
    while len(raw) < messages:
        at = rng.randrange(len(live))
        producer = live[at]
        if rng.random() >= faults:
            draw = rng.random()
            flags = ACK if draw < ack else OUTSIDE if draw < ack + outside else CONTINUE
            raw.append(producer.send(rng, flags))
        elif rng.random() < 0.1:
            live[at] = _Producer(next_number, producer.clock if rng.random() < 0.5 else rng.randrange(200))
            next_number += 1
        else:
            raw += _fault(rng, producer)
    return raw


def _fault(rng: random.Random, producer: _Producer) -> list[RawMessage]:
    number, acks = producer.number, [m for m in producer.sent if m[2] == ACK]
    kind = rng.choice(("tail", "tail", "ack", "partial", "older", "clean", "deep", "zero", "unknown", "any"))
    if kind == "tail":
        # A retried append: the last few messages once more, sometimes only the beginning of them.
        tail = producer.sent[-rng.randint(1, 6) :]
        return tail[: rng.randint(1, len(tail))] if tail else []
    if kind == "ack" and acks:
        return [rng.choice(acks[-3:])]
    if kind == "partial" and producer.first_pending:
        clock = rng.randint(producer.first_pending, producer.clock)
        producer.last_ack, producer.first_pending = max(producer.last_ack, clock), 0
        return [(number, clock, ACK)]
    if kind == "older" and producer.first_pending:
        # An older message in the open span, and an ACK that covers it but not all that came before it.
        older, clock = sorted(rng.randint(producer.first_pending, producer.clock) for _ in range(2))
        producer.last_ack, producer.first_pending = max(producer.last_ack, clock), 0
        return [(number, older, CONTINUE), (number, clock, ACK)]
    if kind == "clean" and producer.last_ack:
        producer.first_pending = 0
        return [(number, producer.last_ack, ACK)]
    if kind == "deep" and producer.last_ack > 1:
        producer.first_pending = 0
        return [(number, rng.randrange(1, producer.last_ack), ACK)]
    if kind == "zero":
        return [(number, 0, rng.choice((OUTSIDE, CONTINUE, ACK)))]
    if kind == "unknown":
        return [producer.send(rng, rng.choice((3, 4, 682)))]
    if kind == "any" and producer.clock > 1:
        return [(number, rng.randrange(1, producer.clock + 1), rng.choice((OUTSIDE, CONTINUE, ACK)))]
    return []
