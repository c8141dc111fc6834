"""Whose a producer is: an owner gives it to one publisher, together with what proves that.

A producer's id stands in every message that is published under it, so all readers know it. Were it enough to name it,
another client could publish under it with later clocks, and the messages of its publisher would be taken for
duplicates; or acknowledge, and so commit or roll back, what is pending. So an owner draws the id, and gives two keyed
digests with it, which only an owner of the store can make:

* the *proof*, of the id and of the server's key to which it was given. It goes with every append.
* the *sealing key*, of the id. With it a publisher seals each acknowledgement intent: journal, clock and beginning of
  the transaction. A seal proves that one acknowledgement and nothing else, for any client that may publish to the
  journal: a checkpoint is often recovered by another process, on another machine, with another key.

A server asks each client for these. The owner's own process, and what comes through its socket, are trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from detent.codec import journal as records
from detent.codec.journal import JournalHead, Listing, ProducerRecord
from detent.codec.keys import u64
from detent.engine import Operation
from detent.errors import ProducerTaken
from detent.journal import operations as ops
from detent.kv import Reader
from detent.message import ACK_TXN, NO_SPAN, ProducerId, new_producer_id
from detent.message.uuids import PRODUCER_BYTES

PROOF_BYTES: Final = 16

_PROOF: Final = b"producer proof"
_SEALING: Final = b"producer sealing"


class Given(NamedTuple):
    """A producer, and what shows that it was given to its publisher."""

    producer: ProducerId
    proof: bytes
    sealing: bytes


class Digests(Protocol):
    """What an owner's engine brings: digests that only an owner can make."""

    @property
    def proved_since_ms(self) -> int: ...

    def digest(self, purpose: bytes, content: bytes) -> bytes: ...


class Producers:
    """Gives producers to publishers, and admits what those may append."""

    def __init__(self, engine: Digests, reader: Reader, random: Callable[[int], bytes] = os.urandom) -> None:
        self._engine = engine
        self._reader = reader
        self._random = random

    def give(self, holder: str = "") -> Given:
        """A new producer, for a client that is known by this key."""
        producer = new_producer_id(self._random(6))
        return Given(producer, self._proof(producer, holder), self._sealing(producer))

    def admit(self, operations: Sequence[Operation], holder: str) -> None:
        """`ProducerTaken` unless a server's client with this key may append all of this."""
        for operation in operations:
            if isinstance(operation, ops.AppendStamped):
                self._admit(operation, holder)
            elif isinstance(operation, ops.HoldSpan):
                self._admit_hold(operation)
            elif isinstance(operation, ops.AppendBatch) and operation.stamped:
                raise ProducerTaken("rows with producers of their own are appended by the owner's own process")

    def _admit(self, op: ops.AppendStamped, holder: str) -> None:
        producer = op.producers[:PRODUCER_BYTES]
        if op.producers != producer * len(op.bodies):
            raise ProducerTaken("one append has messages of one producer")
        if not any(op.clocks):
            return  # not sequenced: the producer says nothing
        if hmac.compare_digest(op.proof, self._proof(producer, holder)):
            return
        if len(op.clocks) == 1 and op.flags == [ACK_TXN]:
            expected = seal(self._sealing(producer), op.journal, op.clocks[0], op.begun)
            if hmac.compare_digest(op.proof, expected) or (not op.proof and self._is_older(op, producer)):
                return
        raise ProducerTaken(
            f"the producer {producer.hex()} was not given to this client, or was given to another one; a publisher is "
            "made with store.publisher(), and an acknowledgement intent is written as it was built"
        )

    def _admit_hold(self, op: ops.HoldSpan) -> None:
        """A hold is of a promise, and has its seal: the transaction of another publisher cannot be kept open."""
        expected = seal(self._sealing(op.producer), op.journal, op.clock, op.begun)
        if not hmac.compare_digest(op.proof, expected):
            raise ProducerTaken(
                f"what the producer {op.producer.hex()} has pending is held with the seal of its acknowledgement intent"
            )

    def _is_older(self, op: ops.AppendStamped, producer: bytes) -> bool:
        """Whether an acknowledgement without a seal may be one that an earlier release has promised: its transaction is
        older than seals are, or it changes nothing."""
        with self._reader.view() as view:
            listing = view.get(records.LISTING.key(op.journal.encode()))
            if listing is None:
                return True  # there is nothing to acknowledge, which its sender is told
            journal = Listing.decode(listing).journal
            stored = view.get(records.part(journal, records.PRODUCER, producer))
            head = view.get(records.part(journal, records.HEAD)) if stored is None else None
        if stored is None:  # below the floor it was written, and its producer was forgotten since
            return head is not None and op.clocks[0] <= JournalHead.decode(head).clock_floor
        known = ProducerRecord.decode(stored)
        if known.begin == NO_SPAN:
            return known.aborted or op.clocks[0] <= known.last_ack
        return known.opened_ms < self._engine.proved_since_ms

    def _proof(self, producer: bytes, holder: str) -> bytes:
        return self._engine.digest(_PROOF, producer + holder.encode())

    def _sealing(self, producer: bytes) -> bytes:
        return self._engine.digest(_SEALING, producer)


def seal(sealing: bytes, journal: str, clock: int, begun: int) -> bytes:
    """What proves one acknowledgement, made with a producer's sealing key."""
    content = u64(clock) + u64(begun) + journal.encode()
    return hashlib.blake2b(content, digest_size=PROOF_BYTES, key=sealing).digest()
