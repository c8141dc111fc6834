"""A journal into a topic: messages, and the offset of the next one, in one transaction of Kafka.

In the order in which it happens:

1. raise the fence of the bridge's record in Detent, and read what Detent knows,
2. `init_transactions`: Kafka fences the producer before, and aborts what it has open,
3. read the mark, which only now cannot change any more: the offset of a group of the bridge's own,
4. decide where to go on; a mark that was forgotten is not taken for one that never was,
5. produce messages and the mark in one transaction, and commit it; after that, note it in Detent.

Whatever becomes of a commit without an answer, the next life sees at 3. The other way round, reading the mark before
the fence, an older producer could commit in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from detent import crash
from detent.errors import Conflict, Fenced, Invalid, LimitExceeded, NotFound, Unavailable
from detent.journal.message import Message
from detent.kafka import mapping, place
from detent.kafka.cluster import ANSWER_S, as_ours, translated
from detent.kafka.declaration import BATCH_BYTES, Outflow
from detent.kafka.place import GAP, JOURNAL_PLACE, JournalPlace, Mark
from detent.runtime import thread
from detent.runtime.task import AGAIN, ANEW, DONE, Next
from detent.stream.bell import LOOK_S, Growth
from detent.stream.following import Following
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

    from detent.store import Store

COMMIT_S: Final = 60.0
"""How long a transaction may take to be committed. What has no answer then is looked at by the next life."""

MARK_S: Final = 10.0
"""How long a mark may take to become part of a transaction."""

LEFT_MAX: Final = 8
"""So many calls that do not return are left behind, each with its thread and its connections."""

ABSENT_S: Final = 1.0
"""How often it is looked for a journal that does not exist yet."""

REFRESH_S: Final = 6 * 3600.0
"""How often the mark is written anew when nothing else is: Kafka forgets offsets of a group that stand still, after
seven days unless it is told otherwise."""


class _GrowthBell:
    """What a journal rings that has grown."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def set(self) -> None:
        """Ring."""
        self._ring()


class Outward:
    """One life of a bridge to a topic."""

    left: ClassVar[list[thread.Thread]] = []
    """Calls of this process that have not returned, of any bridge."""

    def __init__(self, bridge: Outflow, store: Store, index: int, *, once: bool, wake: Callable[[], None]) -> None:
        self._bridge = bridge
        self._store = store
        self._once = once
        self._wake = wake
        self._cluster = bridge.cluster()
        self.record = FencedRecord(store, bridge.consumer, index)
        self._producer: Producer | None = None
        self._marks: Consumer | None = None
        self._following: Following | None = None
        self._growth: Growth | None = None
        self._place: JournalPlace | None = None
        self._failed: tuple[int, KafkaError] | None = None
        """The first message of a transaction that a broker refused, and why."""
        self._marked_at = 0.0

    # -- its life -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fence the one before, on both sides, and decide where to go on."""
        journal = self._bridge.journal
        if self._store.reader.whereabouts(journal) is None:
            return
        opened = self.record.open()
        crash.point("kafka.out.after_fence")
        stored = None if opened.checkpoint is None else JOURNAL_PLACE.decode(opened.checkpoint)
        identity, _ = self._cluster.describe(self._bridge.topic)
        topic = place.Topic(self._bridge.topic, identity, {})
        self._marks = self._cluster.consumer(self._bridge.group)
        self._producer = self._cluster.producer(self._bridge.group, self._bridge.transaction_timeout_ms)
        if self.record.is_replaced():  # it stood still since it took the lease: its successor is not to be fenced
            raise Fenced(f"the bridge {self._bridge.name!r} was opened by another process")
        with translated(self._cluster.brokers):
            self._producer.init_transactions(ANSWER_S * 2)
        crash.point("kafka.out.after_init")
        known = self._new(identity) if stored is None else stored
        found = place.decided(known, self._mark(), topic, self._bridge.accept)
        self._begin(self._within(found), stored)

    def _new(self, identity: str) -> JournalPlace:
        """The place of a bridge that never ran."""
        found = self._store.reader.whereabouts(self._bridge.journal)
        if found is None:
            raise NotFound(f"there is no journal {self._bridge.journal!r} any more")
        number, first, end, created_ms = found
        at = first if self._bridge.start == "earliest" else end
        bridge = self._bridge
        return JournalPlace(bridge.journal, number, created_ms, bridge.topic, identity, bridge.group, at)

    def _within(self, found: JournalPlace) -> JournalPlace:
        """The place in the journal. `Conflict` if it is not there."""
        now = self._store.reader.whereabouts(self._bridge.journal)
        if now is None or (now.number, now.created_ms) != (found.number, found.created_ms):
            raise Conflict(
                f"the journal {self._bridge.journal!r} is not the one of which messages up to {found.next} are in the "
                f"topic {found.topic!r}: it was deleted and made anew, its store was restored from a backup, or the "
                "bridge has another journal now. Give the bridge another name, or reset it to write the journal that "
                "is there"
            )
        if found.next > now.next_offset:
            raise Conflict(
                f"the journal {found.journal!r} ends at {now.next_offset}, and messages up to {found.next} are in the "
                "topic: the store was set back, as by a copy of it. Reset the bridge to write what is there"
            )
        if found.next < now.first_offset:
            if GAP not in self._bridge.accept:
                raise Conflict(
                    f"the journal {found.journal!r} begins at {now.first_offset}, and was read up to {found.next}: "
                    f"messages were forgotten before they were written to the topic. Run it with --accept {GAP} "
                    f"(accept=[{GAP!r}]) to go on without them"
                )
            found = msgspec.structs.replace(found, next=now.first_offset)
        return found

    def _begin(self, found: JournalPlace, stored: JournalPlace | None) -> None:
        """Note the place on both sides, so that one without a mark is known to be new, and read on from it. After a
        reset the mark is first: until it is there, the one in Kafka must go on saying nothing."""
        if found != stored and (stored is None or stored.id):
            self._note(found)
        crash.point("kafka.out.after_place")
        if not found.begun:
            with self._in_transaction():
                self._add_mark(found)
            crash.point("kafka.out.after_mark")
            found = msgspec.structs.replace(found, begun=True)
            self._note(found)
        self._place = found
        self._marked_at = time.monotonic()
        self._following = Following(
            self._store.reader, found.journal, found.next, found.number, created_ms=found.created_ms
        )
        self._growth = Growth(self._store, found.journal, _GrowthBell(self._wake))

    def step(self) -> Next:
        """One transaction, or a wait for messages."""
        if self._following is None:
            return self._look_for_journal()
        try:
            messages = self._following.take_all(self._bridge.batch)
        except NotFound:  # trimmed, or made anew: what to do is decided when a life begins
            return ANEW
        if messages:
            if self._cluster.describe(self._bridge.topic)[0] != self._at.id:
                return ANEW
            for some in _pieces(messages):
                self._send(some)
            return AGAIN
        if self._once:
            return DONE
        assert self._growth is not None, "it was opened"
        if time.monotonic() - self._marked_at >= REFRESH_S:
            self._refresh()
        return AGAIN if self._growth.expect(self._following.at) else LOOK_S

    @property
    def _at(self) -> JournalPlace:
        assert self._place is not None, "it was opened"
        return self._place

    def _look_for_journal(self) -> Next:
        if self._store.reader.whereabouts(self._bridge.journal) is not None:
            return ANEW
        return DONE if self._once else ABSENT_S

    def close(self) -> None:
        """Let go of the connections, and of what is not committed: the next producer aborts it."""
        if self._growth is not None:
            self._growth.stop()
        if self._following is not None:
            self._following.close()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.close()
        self._following = self._growth = None

    # -- a transaction ------------------------------------------------------------------------------------------

    def _send(self, messages: list[Message]) -> None:
        """Messages and mark together; then the note in Detent."""
        written = self._at.written + len(messages)
        after = msgspec.structs.replace(self._at, next=messages[-1].offset + 1, written=written)
        with self._in_transaction():
            for message in messages:
                self._produce(message)
            crash.point("kafka.out.before_mark")
            self._add_mark(after)
            crash.point("kafka.out.before_commit")
        crash.point("kafka.out.after_commit")
        self._marked_at = time.monotonic()
        self._note(after)
        crash.point("kafka.out.after_note")
        self._place = after

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        """A transaction that is committed at the end. After an error this producer is not used any more."""
        from confluent_kafka import KafkaException

        assert self._producer is not None, "it was opened"
        self._failed = None
        try:
            self._producer.begin_transaction()
            yield
            self._producer.commit_transaction(COMMIT_S)
        except KafkaException as error:
            raise self._reason(error.args[0]) from error

    def _reason(self, error: KafkaError) -> Exception:
        """Why a transaction failed: what became of its first message that was refused, if that is why."""
        if self._failed is None:
            return as_ours(error, self._cluster.brokers)
        offset, refused = self._failed
        ours = as_ours(refused, self._cluster.brokers)
        if not isinstance(ours, LimitExceeded | Invalid):
            return as_ours(error, self._cluster.brokers)
        return type(ours)(f"message {offset} of {self._bridge.journal!r} cannot be written to the topic: {ours}")

    def _produce(self, message: Message) -> None:
        from confluent_kafka import KafkaException

        producer: Any = self._producer
        try:
            record = mapping.record_of(message, origin=self._bridge.origin)
        except Invalid as error:
            raise Invalid(f"message {message.offset} of {self._bridge.journal!r}: {error}") from error
        offset = message.offset

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None and self._failed is None:
                self._failed = (offset, error)

        while True:
            try:
                producer.produce(
                    self._bridge.topic,
                    record.value,
                    record.key,
                    headers=record.headers,
                    timestamp=record.timestamp_ms,
                    on_delivery=delivered,
                )
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                self._failed = self._failed or (offset, error.args[0])
                raise

    # -- the mark -----------------------------------------------------------------------------------------------

    def _mark(self) -> Mark | None:
        """What Kafka knows. An answer that is not certain yet, as of a transaction that is being ended, is none."""
        from confluent_kafka import TopicPartition

        assert self._marks is not None, "it was opened"
        with translated(self._cluster.brokers):
            (found,) = self._marks.committed([TopicPartition(self._bridge.topic, 0)], ANSWER_S)
        if found.error is not None:
            raise as_ours(found.error, self._cluster.brokers)
        if found.offset < 0:
            return None
        return Mark(found.offset, found.metadata or "")

    def _add_mark(self, found: JournalPlace) -> None:
        from confluent_kafka import TopicPartition

        assert self._producer is not None, "it was opened"
        assert self._marks is not None, "it was opened"
        mark = TopicPartition(found.topic, 0, found.next, place.mark_text(found))
        self._send_mark(self._producer, mark, self._marks.consumer_group_metadata())

    def _send_mark(self, producer: Producer, mark: TopicPartition, group: Any) -> None:
        """In a thread that can be left behind: the library does not heed its timeout here, and may wait for a broker
        that it has dropped. The next life's producer fences this one, so that a late answer changes nothing."""
        failed: list[Exception] = []

        def send() -> None:
            try:
                producer.send_offsets_to_transaction([mark], group, MARK_S)
            except Exception as error:  # noqa: BLE001 - a transaction without its mark must not be committed
                failed.append(error)

        self._check_left()
        worker = thread.start("detent-kafka-mark", send)
        if not worker.join(MARK_S):
            Outward.left.append(worker)
            self._producer = None  # the thread has it
            raise Unavailable(f"Kafka at {self._cluster.brokers} did not take the mark within {MARK_S:.0f} s")
        if failed:
            raise failed[0]

    def _check_left(self) -> None:
        """Leave no more calls behind than some."""
        Outward.left = [one for one in Outward.left if one.is_alive]
        if len(Outward.left) >= LEFT_MAX:
            raise Unavailable(
                f"{LEFT_MAX} calls of the client library to {self._cluster.brokers} have not returned: start this "
                "process anew"
            )

    def _refresh(self) -> None:
        """Write the mark as it is."""
        with self._in_transaction():
            self._add_mark(self._at)
        self._marked_at = time.monotonic()

    def _note(self, found: JournalPlace) -> None:
        """Say in Detent how far it is, behind the fence."""
        operation = self.record.replacing(JOURNAL_PLACE.encode(found), processed={found.journal: found.next})
        self._store.commit([operation])

    # -- looking ------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """What it has done, over all lives."""
        return {} if self._place is None else {"written": self._place.written}

    def lag(self) -> int | None:
        """Messages that wait for it."""
        found = self._place
        if found is None:
            return None
        try:
            return max(0, self._store.reader.next_offset(found.journal) - found.next)
        except Unavailable:
            return None


def _pieces(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages of one transaction each."""
    piece: list[Message] = []
    size = 0
    for message in messages:
        size += len(message.body) + len(message.key or b"")
        if piece and size > BATCH_BYTES:
            yield piece
            piece, size = [], len(message.body) + len(message.key or b"")
        piece.append(message)
    yield piece
