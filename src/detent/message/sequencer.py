"""From read-uncommitted to read-committed: the sequencer for raw streams.

Feed it every message of one or more journals in journal order; it gives back the committed ones, each exactly once:

    outcome = sequencer.queue(envelope)
    if (again := sequencer.replay_range()) is not None:
        sequencer.start_replay(read(*again))      # the ring was too small for this span
    while (message := sequencer.step()) is not None:
        if not message.is_ack:
            process(message)

Nothing waits behind an open span: an ACK releases its own span at once, however many others are open.

It remembers every producer until it is told to forget some. For a journal of Detent that is what its owner has
forgotten, which the journal says of itself; then this gives back exactly what the journal has committed:

    info = journal.info()
    ...                                   # read and queue all rows below info.next_position, then:
    sequencer.forget(journal.name, info.clock_floor, info.open_from)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from detent.errors import Corrupt, Invalid
from detent.message.ring import Chain, Envelope, Ring
from detent.message.sequence import Outcome, ProducerState, decide, first_sight, idle_below, is_forgotten
from detent.message.uuids import CONTINUE_TXN

RING_SIZE: Final = 8192
"""Pending envelopes kept in memory by default; spans beyond that are read twice."""

HORIZON_NS: Final = 24 * 3600 * 1_000_000_000
"""A usual age, relative to the newest producer of a stream, at which an idle producer is forgotten."""

logger = logging.getLogger("detent.message")


class ProducerCheckpoint(NamedTuple):
    """One producer of one journal, in a checkpoint."""

    journal: str
    producer: int
    last_ack: int
    begin: int
    max_clock: int = 0
    """Newest clock of the open span. Where it is missing, repeats of the open span are found only at delivery."""


class Checkpoint(NamedTuple):
    """Where reading resumes. Commit it together with the effects of the messages consumed so far."""

    offsets: dict[str, int]
    """For each journal, the position to read on from."""
    producers: list[ProducerCheckpoint]
    floors: dict[str, int]
    """For each journal, the highest clock of the producers that were forgotten."""


class _TrackedProducer:
    """What the sequencer keeps for a pair of journal and producer."""

    __slots__ = ("chain", "state")

    def __init__(self, state: ProducerState) -> None:
        self.state = state
        self.chain = Chain()


class _Sequenced:
    """A committed run on its way to the application, ending with the message that committed it."""

    __slots__ = (
        "after",
        "found",
        "handed",
        "highest",
        "last",
        "last_done",
        "outcome",
        "position",
        "replay",
        "stop",
        "track",
    )

    def __init__(self, outcome: Outcome, last: Envelope, track: _TrackedProducer, after: ProducerState | None) -> None:
        self.outcome = outcome
        self.last = last
        self.track = track
        self.after = after
        self.last_done = False
        self.handed: int | None = None
        """Clock of the message that was handed out and not yet consumed."""
        self.highest = track.state.last_ack
        """Highest clock of the span met so far; the span's messages are those that raise it."""
        self.stop: int | None = None
        """End of the range to read again, or None when nothing has to be."""
        self.replay: Iterator[Envelope] | None = None
        self.position = 0
        self.found = False


class Sequencer:
    """Sequences envelopes of any number of journals.

    `ring_size` bounds the pending envelopes held in memory. `checkpoint` resumes where an earlier sequencer stopped:
    read each journal from its offset on.
    """

    def __init__(self, ring_size: int = RING_SIZE, checkpoint: Checkpoint | None = None) -> None:
        self._ring = Ring(ring_size)
        self._offsets: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        self._producers: dict[tuple[str, int], _TrackedProducer] = {}
        self._pending: set[tuple[str, int]] = set()
        self._delivery: _Sequenced | None = None
        if checkpoint is not None:
            self._offsets.update(checkpoint.offsets)
            self._floors.update(checkpoint.floors)
            for entry in checkpoint.producers:
                state = ProducerState(entry.last_ack, max(entry.last_ack, entry.max_clock), entry.begin)
                self._producers[entry.journal, entry.producer] = _TrackedProducer(state)

    @property
    def has_pending(self) -> bool:
        """Whether a span was begun since the last checkpoint and is still open.

        A consumer may wait a little with its checkpoint while this is true, and so have the span in one transaction.
        """
        return bool(self._pending)

    def offset(self, journal: str) -> int:
        """Up to where a journal is consumed: a run that is being delivered is not, until its last message is."""
        return self._offsets.get(journal, 0)

    @property
    def is_delivering(self) -> bool:
        """Whether `step` must be called until it returns None before the next `queue`."""
        return self._delivery is not None

    def queue(self, envelope: Envelope) -> Outcome:
        """Take the next message of its journal. When the outcome delivers, drain with `step` before the next call."""
        journal, begin, end, producer, clock, flags, _ = envelope
        if self._delivery is not None:
            raise Invalid("committed messages are waiting: call step() until it returns None, then queue()")
        if not self._offsets.get(journal, 0) <= begin < end:
            raise Invalid(f"{journal} was read to {self._offsets.get(journal, 0)}: [{begin}, {end}) is not next")
        key = (journal, producer)
        track = self._producers.get(key)
        outcome, after = decide(flags, clock, track.state if track else None, begin, self._floors.get(journal, 0))
        if clock == 0:
            # Not sequenced: delivered by way of a record that is not kept.
            self._delivery = _Sequenced(outcome, envelope, _TrackedProducer(first_sight(0)), None)
            return outcome
        if track is None and after is not None:
            track = self._producers[key] = _TrackedProducer(first_sight(clock))
        if track is None or after is None:
            self._offsets[journal] = end
            return outcome
        if outcome.delivers:
            self._delivery = self._deliver(outcome, envelope, track, after)
            return outcome
        # Either a delivery is set up or the offset moves, never both: a reader that restarts in the middle of a
        # delivery must meet the committing message again.
        self._offsets[journal] = end
        if outcome in (Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND):
            self._ring.add(track.chain, envelope)
            if outcome is Outcome.CONTINUE_BEGIN:
                self._pending.add(key)
        elif outcome.closes:
            self._ring.clear(track.chain)
            self._pending.discard(key)
        track.state = after
        return outcome

    def _deliver(self, outcome: Outcome, last: Envelope, track: _TrackedProducer, after: ProducerState) -> _Sequenced:
        delivery = _Sequenced(outcome, last, track, after)
        if outcome is Outcome.ACK_COMMIT:
            oldest = self._ring.first(track.chain) or last
            if track.state.begin < oldest.begin:
                delivery.stop = oldest.begin
        return delivery

    def replay_range(self) -> tuple[str, int, int] | None:
        """The range (journal, begin, end) to read again and hand to `start_replay`, or None when none is needed now."""
        delivery = self._delivery
        if delivery is None or delivery.stop is None or delivery.replay is not None:
            return None
        return delivery.last.journal, delivery.track.state.begin, delivery.stop

    def start_replay(self, envelopes: Iterable[Envelope]) -> None:
        """Hand in all messages of `replay_range()`, of every producer, in journal order.

        When the iterable fails halfway, `step` passes its error on; call this again with a new one to go on.
        """
        delivery = self._delivery
        if delivery is None or self.replay_range() is None:
            raise Invalid("there is nothing to replay: replay_range() is None")
        delivery.replay = iter(envelopes)
        delivery.position = delivery.track.state.begin
        delivery.highest = delivery.track.state.last_ack
        delivery.found = False

    def step(self) -> Envelope | None:
        """The next committed message, or None when all were delivered.

        A message counts as consumed when `step` is called again: a checkpoint taken before that delivers it once more.
        """
        delivery = self._delivery
        if delivery is None:
            return None
        if delivery.stop is not None and delivery.replay is None:
            raise Invalid("part of the span left the ring: pass replay_range() to start_replay() before step()")
        track = delivery.track
        if delivery.handed is not None:
            track.state = ProducerState(delivery.handed, track.state.max_clock, track.state.begin)
            delivery.handed = None
        envelope = self._next_of_span(delivery) if delivery.outcome is Outcome.ACK_COMMIT else None
        if envelope is None and not delivery.last_done:
            delivery.last_done = True
            if delivery.last.clock == 0 or delivery.last.clock > track.state.last_ack:
                envelope = delivery.last
        if envelope is None:
            self._finish(delivery)
            return None
        delivery.handed = envelope.clock
        if delivery.outcome is Outcome.ACK_COMMIT:
            track.state = ProducerState(track.state.last_ack, track.state.max_clock, envelope.begin)
        return envelope

    def _next_of_span(self, delivery: _Sequenced) -> Envelope | None:
        while not delivery.last_done:
            envelope = self._read_again(delivery) if delivery.stop is not None else None
            if envelope is None:
                envelope = self._ring.take(delivery.track.chain)
            if envelope is None:
                return None
            # A re-read meets repeats too, and messages that were dropped as older: only those count that were new.
            if envelope.flags != CONTINUE_TXN or envelope.clock <= delivery.highest:
                continue
            delivery.highest = envelope.clock
            if envelope.clock <= delivery.last.clock:
                return envelope
        return None

    def _read_again(self, delivery: _Sequenced) -> Envelope | None:
        """The next message of the producer in the replay, or None at its end."""
        source, stop, journal = delivery.replay, delivery.stop, delivery.last.journal
        if source is None or stop is None:
            return None
        begin = delivery.track.state.begin
        # A generator that failed looks finished when it is asked again, so it is let go before anything is raised.
        delivery.replay = None
        for envelope in source:
            if envelope.journal != journal or envelope.begin < delivery.position or envelope.end > stop:
                raise Invalid(
                    f"the replay has {envelope.journal} [{envelope.begin}, {envelope.end}), "
                    f"but {journal} [{delivery.position}, {stop}) was asked for"
                )
            delivery.position = envelope.end
            if envelope.producer != delivery.last.producer:
                continue
            if not delivery.found and envelope.begin != begin:
                break
            delivery.found = True
            delivery.replay = source
            return envelope
        if not delivery.found:
            raise Corrupt(f"{journal} has a hole: the pending message at {begin} is gone, and its ACK is here")
        delivery.stop = None
        return None

    def _finish(self, delivery: _Sequenced) -> None:
        last, track = delivery.last, delivery.track
        if delivery.after is not None:
            self._ring.clear(track.chain)
            self._pending.discard((last.journal, last.producer))
            track.state = delivery.after
        self._offsets[last.journal] = last.end
        self._delivery = None

    def forget(self, journal: str, floor: int, open_from: int) -> None:
        """Forget the producers that the owner of a journal had forgotten when it had the floor `floor`, and the open
        spans that it had rolled back: all that begin before `open_from`.

        Call it when all rows that the journal had then are queued, and not before: earlier rows may be of producers
        that are forgotten only now.
        """
        for key, track in list(self._producers.items()):
            if key[0] != journal or self._is_busy(track):
                continue
            if track.state.is_open and track.state.begin < open_from:
                self._drop(key, track)
            elif is_forgotten(track.state, floor):
                del self._producers[key]
        if floor > self._floors.get(journal, 0):
            self._floors[journal] = floor

    def _is_busy(self, track: _TrackedProducer) -> bool:
        return self._delivery is not None and self._delivery.track is track

    def _drop(self, key: tuple[str, int], track: _TrackedProducer) -> None:
        """Forget a producer with what it has begun."""
        logger.warning(
            "producer %012x in %r never acknowledged what it began at position %d: it is dropped",
            key[1], key[0], track.state.begin,
        )  # fmt: skip
        self._ring.clear(track.chain)
        self._pending.discard(key)
        del self._producers[key]

    def checkpoint(self, horizon_ns: int = 0, *, open_horizon_ns: int = 0, now_ns: int | None = None) -> Checkpoint:
        """Where to resume. May be taken at any time, also in the middle of a delivery.

        A horizon is for streams that have no owner to ask (see `forget`). Producers that lie further than that behind
        the newest of their journal are then forgotten, unless they have an open span; their clocks stay behind as the
        journal's floor. A clock above the time `now_ns` (this machine's, unless it is given) counts as no newer than
        that. Messages of a producer that is slow by more than the horizon may be lost. 0 forgets none.

        Open spans are forgotten only with an `open_horizon_ns`, and with a warning: give it where something else
        refuses acknowledgements that come so late.
        """
        if horizon_ns < 0 or open_horizon_ns < 0:
            raise Invalid(f"a horizon of {min(horizon_ns, open_horizon_ns)} ns is negative")
        if horizon_ns:
            self._prune(horizon_ns, open_horizon_ns, time.time_ns() if now_ns is None else now_ns)
        self._pending.clear()
        producers = [
            ProducerCheckpoint(journal, producer, track.state.last_ack, track.state.begin, track.state.max_clock)
            for (journal, producer), track in self._producers.items()
        ]
        return Checkpoint(dict(self._offsets), producers, dict(self._floors))

    def _prune(self, horizon_ns: int, open_horizon_ns: int, now_ns: int) -> None:
        newest: dict[str, int] = {}
        for (journal, _), track in self._producers.items():
            newest[journal] = max(newest.get(journal, 0), track.state.last_ack)
        for key, track in list(self._producers.items()):
            journal, state = key[0], track.state
            idle = state.max_clock < idle_below(newest[journal], now_ns, horizon_ns)
            if self._is_busy(track) or not idle:
                continue
            if state.is_open:
                if not open_horizon_ns or state.max_clock >= idle_below(newest[journal], now_ns, open_horizon_ns):
                    continue
                self._drop(key, track)
            else:
                del self._producers[key]
            self._floors[journal] = max(self._floors.get(journal, 0), state.max_clock)
