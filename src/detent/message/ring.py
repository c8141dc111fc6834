"""The sequencer's memory: a ring of pending envelopes, each linked to the next one of the same span.

Adding to a full ring evicts the oldest envelope, of whatever span. A span whose oldest part was evicted is read again
from the journal when its ACK arrives.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from detent.errors import Invalid
from detent.message.uuids import ACK_TXN

_NONE: Final = -1


class Envelope(NamedTuple):
    """One message as it was read from a journal, with what its id says.

    Producer, clock and flags are copies. An application may well stamp a new id into `message`, to publish it again,
    and that must not change what the sequencer remembers.
    """

    journal: str
    begin: int
    """Position of the message in its journal."""
    end: int
    """Position after the message."""
    producer: int
    clock: int
    flags: int
    message: Any = None

    @property
    def is_ack(self) -> bool:
        """Whether this is an acknowledgement, which applications do not want to see."""
        return self.flags == ACK_TXN and self.clock != 0


class Chain:
    """The ring's slots of one span, oldest to newest."""

    __slots__ = ("start", "stop")

    def __init__(self) -> None:
        self.start = _NONE
        self.stop = _NONE


class Ring:
    """A fixed number of envelopes."""

    __slots__ = ("_envelopes", "_head", "_next", "_owners")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise Invalid(f"a ring holds at least one envelope, not {size}")
        self._envelopes: list[Envelope | None] = [None] * size
        self._owners: list[Chain | None] = [None] * size
        self._next = [_NONE] * size
        self._head = 0

    def add(self, chain: Chain, envelope: Envelope) -> None:
        """Append an envelope to its span, in place of the ring's oldest."""
        slot = self._head
        owner = self._owners[slot]
        if owner is not None:
            # Slots are filled in order, so the oldest slot of the ring is also the oldest of its own chain.
            self.take(owner)
        self._head = (slot + 1) % len(self._envelopes)
        self._envelopes[slot] = envelope
        self._owners[slot] = chain
        self._next[slot] = _NONE
        if chain.stop == _NONE:
            chain.start = slot
        else:
            self._next[chain.stop] = slot
        chain.stop = slot

    def first(self, chain: Chain) -> Envelope | None:
        """The oldest envelope of the span that is still here."""
        return self._envelopes[chain.start] if chain.start != _NONE else None

    def take(self, chain: Chain) -> Envelope | None:
        """Remove and return the oldest envelope of the span; the ring keeps no reference to it."""
        slot = chain.start
        if slot == _NONE:
            return None
        envelope = self._envelopes[slot]
        self._envelopes[slot] = self._owners[slot] = None
        chain.start = self._next[slot]
        if chain.start == _NONE:
            chain.stop = _NONE
        return envelope

    def clear(self, chain: Chain) -> None:
        """Drop all envelopes of the span."""
        while self.take(chain) is not None:
            pass

    def __len__(self) -> int:
        return sum(envelope is not None for envelope in self._envelopes)
