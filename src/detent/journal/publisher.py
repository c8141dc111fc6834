"""A publisher: messages with UUIDs of one producer, outside of transactions or pending until acknowledged.

The order of clocks in a journal must be the order of appends, or a late low clock would be dropped as a duplicate. So a
publisher stamps inside its own lock and keeps the lock until the append is durable: one append at a time, in order.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from detent import spans
from detent.engine import MALFORMED, Operation
from detent.engine.operation import OPERATIONS_MAX
from detent.errors import (
    ClockAhead,
    ClockBehind,
    Corrupt,
    DetentError,
    Invalid,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from detent.journal import operations as ops
from detent.journal.calls import Entry, plain_append
from detent.journal.producers import PROOF_BYTES, Given, seal
from detent.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, TICK, Clock, ProducerId, as_unix_ns, new_producer_id
from detent.message.uuids import PRODUCER_BYTES

JOURNALS_PER_TRANSACTION_MAX: Final = OPERATIONS_MAX
"""Journals with pending messages of one publisher: acknowledging each is an operation of one transaction."""


class AckIntent(msgspec.Struct, frozen=True, array_like=True):
    """The promise to acknowledge what was published to one journal: store it durably, then append it until it is in.

    `begun` is the clock of the first message that it covers. `seal` proves to a server that its publisher has made it,
    also when another client sends it: keep an intent where only those read it who may acknowledge. Intents of earlier
    releases have neither.
    """

    journal: str
    producer: bytes
    clock: int
    begun: int = 0
    seal: bytes = b""

    def to_bytes(self) -> bytes:
        """For your own checkpoint; `from_bytes` brings it back."""
        return encode_intents([self])

    @classmethod
    def from_bytes(cls, data: bytes) -> AckIntent:
        """An intent from a checkpoint; `Corrupt` when the bytes are none."""
        intents = decode_intents(data)
        if len(intents) != 1:
            raise Corrupt(f"expected one acknowledgement intent, found {len(intents)}")
        return intents[0]

    def operation(self) -> Operation:
        """The append that keeps the promise. Repeating it does no harm as long as its producer sends nothing else."""
        return ops.AppendStamped(
            self.journal, [b""], None, None, self.producer, [self.clock], [ACK_TXN], begun=self.begun, proof=self.seal
        )

    def hold(self, holder: str) -> Operation:
        """What keeps the messages from being rolled back before the promise is kept: for the transaction that appends
        the checkpoint to the journal `holder` of the same store."""
        return ops.HoldSpan(self.journal, self.producer, self.clock, self.begun, holder, self.seal)


def encode_intents(intents: Iterable[AckIntent]) -> bytes:
    """Intents as bytes, for a checkpoint."""
    return msgspec.msgpack.encode(list(intents))


def decode_intents(data: bytes) -> list[AckIntent]:
    """Intents from a checkpoint; `Corrupt` when these are none."""
    try:
        intents = msgspec.msgpack.decode(data, type=list[AckIntent])
    except MALFORMED as error:
        raise Corrupt(f"these bytes are no acknowledgement intents: {error}") from error
    if len(intents) > JOURNALS_PER_TRANSACTION_MAX or not all(is_possible(intent) for intent in intents):
        raise Corrupt("acknowledgement intents with impossible fields")
    return intents


def is_possible(intent: AckIntent) -> bool:
    """Whether a publisher can have built this."""
    return (
        len(intent.producer) == PRODUCER_BYTES
        and 0 < intent.clock < 1 << 64
        and 0 <= intent.begun < intent.clock
        and len(intent.seal) in {0, PROOF_BYTES}
    )


class Publisher:
    """Publishes under one producer, which an owner gives to each publisher anew; no other client can use it.

    >>> publisher = store.publisher()
    >>> publisher.publish("orders", [b"visible at once"])
    >>> publisher.publish_uncommitted("orders", [b"pending"])
    >>> intents = publisher.build_ack_intents()   # keep these durably with your own progress, then:
    >>> publisher.acknowledge(intents)

    Made by hand, without `give`, it draws its producer itself. That is enough in the process of the owner.
    `deadline_ms` is how long its pending messages may wait for their acknowledgement, where that is longer than the
    journal's own deadline.
    """

    def __init__(
        self,
        commit: Callable[[list[Operation]], list[Any]],
        *,
        give: Callable[[], Given] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        random: Callable[[int], bytes] = os.urandom,
        deadline_ms: int = 0,
    ) -> None:
        self._commit = commit
        self._deadline_ms = deadline_ms
        self._give = give or (lambda: Given(new_producer_id(random(6)), b"", b""))
        self._given: Given | None = None
        self._giving = threading.Lock()
        self._now_ns = now_ns
        self._clock = Clock()
        self._lock = threading.Lock()
        self._pending: dict[str, int] = {}  # with the clock of the first message, once that is there; else 0
        self._promised: dict[str, AckIntent] = {}
        self._unsettled: dict[str, ops.AppendStamped] = {}

    @property
    def producer(self) -> ProducerId:
        """The producer that this publisher was given. The first use of it asks the owner."""
        return self._give_once().producer

    def _give_once(self) -> Given:
        with self._giving:  # not the other lock: that one is held while messages are on their way
            if self._given is None:
                self._given = self._give()
            return self._given

    def publish(self, journal: str, entries: Iterable[Entry]) -> ops.Appended:
        """Publish messages that are committed at once. Not while this publisher has pending ones in that journal.

        All of them are committed, or none: `ProducerTaken` if some would be taken for duplicates.
        """
        entries = list(entries)
        with spans.sending("append", journal, len(entries)), self._lock:
            if journal in self._pending:
                raise Invalid(
                    f"this publisher has pending messages in {journal!r}: acknowledge them first, or use another one"
                )
            return self._append(journal, entries, OUTSIDE_TXN)

    def publish_uncommitted(self, journal: str, entries: Iterable[Entry]) -> ops.Appended:
        """Publish messages that no reader sees until they are acknowledged."""
        return self.publish_uncommitted_many({journal: entries})[journal]

    def publish_uncommitted_many(self, entries: Mapping[str, Iterable[Entry]]) -> dict[str, ops.Appended]:
        """The same to several journals, in one transaction."""
        with self._lock:
            self._give_once()  # before anything is pending
            new = [journal for journal in entries if journal not in self._pending]
            if len(self._pending) + len(new) > JOURNALS_PER_TRANSACTION_MAX:
                raise LimitExceeded(
                    f"a publisher has pending messages in at most {JOURNALS_PER_TRANSACTION_MAX} journals: acknowledge "
                    "them first, or use another one"
                )
            self._pending.update(dict.fromkeys(new, 0))
            try:
                return self._append_all(entries, CONTINUE_TXN)
            except OutcomeUnknown:
                raise  # it may be there, so the next intents must cover it
            except DetentError:
                for journal in new:
                    del self._pending[journal]
                raise

    def _append(self, journal: str, entries: Iterable[Entry], flags: int) -> ops.Appended:
        return self._append_all({journal: entries}, flags)[journal]

    def _append_all(self, entries: Mapping[str, Iterable[Entry]], flags: int) -> dict[str, ops.Appended]:
        for journal in entries:
            if journal in self._promised:
                # It would land before that acknowledgement with a higher clock, and be rolled back by it.
                raise Invalid(f"intents for {journal!r} were built and not yet acknowledged; acknowledge them first")
        plain = {journal: plain_append(journal, some) for journal, some in entries.items()}
        unsettled = {journal: self._unsettled[journal] for journal in plain if journal in self._unsettled}
        if unsettled:
            self._send(unsettled)
        return self._stamp_and_send(plain, flags)

    def _stamp_and_send(self, plain: Mapping[str, ops.Append], flags: int) -> dict[str, ops.Appended]:
        """Where the wall clock is wrong, the owner says what it takes. Nothing of a refused call is in the store, and
        its messages are new: so they are stamped again."""
        time_ns, before = self._now_ns(), self._clock.value
        while True:
            self._clock.update(time_ns)
            try:
                return self._send({journal: self._stamped(one, flags) for journal, one in plain.items()})
            except ClockBehind as error:
                if not self._clock.raise_to(error.floor):
                    raise
            except ClockAhead as error:
                # Back to what was taken last: or the clock would stay out of reach, also when the wall clock is right.
                self._clock = Clock(before)
                if time_ns <= as_unix_ns(error.owner):
                    raise
                time_ns = as_unix_ns(error.owner)

    def _stamped(self, plain: ops.Append, flags: int) -> ops.AppendStamped:
        """With ids of this producer. Its clock ticks here, under the lock that the append keeps until it is durable."""
        given, rows = self._give_once(), len(plain.bodies)
        first = self._clock.reserve(rows)
        return ops.AppendStamped(
            plain.journal,
            plain.bodies,
            plain.keys,
            plain.headers,
            bytes(given.producer) * rows,
            list(range(first, first + rows * TICK, TICK)),
            [flags] * rows,
            begun=self._pending.get(plain.journal, 0) if flags == CONTINUE_TXN else 0,
            fresh=True,
            proof=given.proof,
            deadline_ms=self._deadline_ms if flags == CONTINUE_TXN else 0,
        )

    def _send(self, operations: Mapping[str, ops.AppendStamped]) -> dict[str, ops.Appended]:
        try:
            results = self._commit(list(operations.values()))
        except OutcomeUnknown as error:
            # What is sent again may be there already.
            self._unsettled.update(
                (journal, msgspec.structs.replace(one, fresh=False)) for journal, one in operations.items()
            )
            raise OutcomeUnknown(
                f"{error}. This publisher keeps the messages, and sends them again, recognisably the same, before "
                "anything else for that journal: do not publish them anew. settle() sends them now"
            ) from error
        for journal, operation in operations.items():
            self._unsettled.pop(journal, None)
            if self._pending.get(journal) == 0 and operation.flags[0] == CONTINUE_TXN:
                self._pending[journal] = operation.clocks[0]
        return dict(zip(operations, results, strict=True))

    def settle(self) -> None:
        """Send again what was not answered for. What had arrived is recognised and not committed twice."""
        with self._lock:
            if self._unsettled:
                self._send(dict(self._unsettled))

    def build_ack_intents(self) -> list[AckIntent]:
        """Acknowledgements for everything that is pending, journal by journal, in the order of first use.

        Nothing is written. Messages published after this belong to the next intents.
        """
        with self._lock:
            if self._unsettled:
                raise Invalid("some messages were not answered for; call settle() before you acknowledge anything")
            # Without a look at the wall clock: what is promised must be a clock that the owner takes.
            intents = [self._intent(journal, begun, self._clock.tick()) for journal, begun in self._pending.items()]
            self._pending.clear()
            self._promised.update((intent.journal, intent) for intent in intents)
            return intents

    def _intent(self, journal: str, begun: int, clock: int) -> AckIntent:
        given = self._given
        assert given is not None  # something is pending
        sealed = seal(given.sealing, journal, clock, begun) if given.sealing else b""
        return AckIntent(journal, bytes(given.producer), clock, begun, sealed)

    def acknowledge(self, intents: Sequence[AckIntent]) -> None:
        """Commit what the intents cover. In one transaction when they all belong to this store.

        Intents of this publisher that were acknowledged before are passed over: sent again behind newer pending
        messages they would roll those back. Intents of an earlier life, from a checkpoint, are always sent.
        """
        with self._lock:
            due = [one for one in intents if not self._is_own(one) or self._is_promised(one)]
            if due:
                self._commit([intent.operation() for intent in due])
            for intent in due:
                if self._is_promised(intent):
                    del self._promised[intent.journal]

    def roll_back(self) -> None:
        """Give up what is pending, promised or not: no acknowledgement commits it any more. In one transaction if all
        journals take it, and otherwise each journal by itself; what is in a journal that was deleted is gone anyway.

        Only when nothing can have been kept durably that promises it. `RollBackHeld` if a checkpoint in the store has.
        What could not be given up stays pending, and the next call tries it again. An append whose outcome is unknown
        stays, until it is settled or its deadline has passed.
        """
        with self._lock:
            promised = {journal: intent.begun for journal, intent in self._promised.items()}
            begun = {journal: clock for journal, clock in {**promised, **self._pending}.items() if clock}
            if not begun:
                return
            try:
                self._roll_back(begun)
            except Unavailable:
                raise  # so it would be for each journal
            except DetentError:
                self._roll_back_one_by_one(begun)

    def _roll_back(self, begun: Mapping[str, int]) -> None:
        given = self._give_once()
        self._commit([_roll_back(journal, given, clock) for journal, clock in begun.items()])
        self._forget(begun)

    def _roll_back_one_by_one(self, begun: Mapping[str, int]) -> None:
        """What can be given up, when not all can. Raises the first refusal, after all of them."""
        refused: list[DetentError] = []
        for journal, clock in begun.items():
            try:
                self._roll_back({journal: clock})
            except NotFound:
                self._forget([journal])
            except Unavailable:
                raise
            except DetentError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _forget(self, journals: Iterable[str]) -> None:
        for journal in journals:
            self._pending.pop(journal, None)
            self._promised.pop(journal, None)

    def last_promised(self) -> list[AckIntent]:
        """The intents that were built last and not acknowledged through this publisher."""
        with self._lock:
            return list(self._promised.values())

    def _is_own(self, intent: AckIntent) -> bool:
        return self._given is not None and intent.producer == self._given.producer

    def _is_promised(self, intent: AckIntent) -> bool:
        promised = self._promised.get(intent.journal)
        return self._is_own(intent) and promised is not None and promised.clock == intent.clock


def _roll_back(journal: str, given: Given, begun: int) -> Operation:
    """An acknowledgement of what came before the transaction: all of the transaction is above it."""
    return ops.AppendStamped(
        journal, [b""], None, None, bytes(given.producer), [begun - 1], [ACK_TXN], proof=given.proof
    )


class AsyncPublisher:
    """`Publisher` for asyncio: the same calls, awaited, one after another in a thread."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @property
    def producer(self) -> ProducerId:
        """The producer that this publisher was given. The first use of it asks the owner, and the first publish is one:
        read it after that, and nothing waits."""
        return self._publisher.producer

    async def publish(self, journal: str, entries: Iterable[Entry]) -> ops.Appended:
        """Publish messages that are committed at once."""
        return await asyncio.to_thread(self._publisher.publish, journal, entries)

    async def publish_uncommitted(self, journal: str, entries: Iterable[Entry]) -> ops.Appended:
        """Publish messages that no reader sees until they are acknowledged."""
        return await asyncio.to_thread(self._publisher.publish_uncommitted, journal, entries)

    async def publish_uncommitted_many(self, entries: Mapping[str, Iterable[Entry]]) -> dict[str, ops.Appended]:
        """The same to several journals, in one transaction."""
        return await asyncio.to_thread(self._publisher.publish_uncommitted_many, entries)

    def build_ack_intents(self) -> list[AckIntent]:
        """Acknowledgements for everything that is pending. Nothing is written."""
        return self._publisher.build_ack_intents()

    async def acknowledge(self, intents: Sequence[AckIntent]) -> None:
        """Commit what the intents cover."""
        await asyncio.to_thread(self._publisher.acknowledge, intents)

    async def roll_back(self) -> None:
        """Give up what is pending, promised or not."""
        await asyncio.to_thread(self._publisher.roll_back)

    async def settle(self) -> None:
        """Send again what was not answered for."""
        await asyncio.to_thread(self._publisher.settle)
