"""A topic into a store: records, and the offsets of the next ones, in one transaction of Detent.

In the order in which it happens:

1. raise the fence of the shard's record, and read how far it is; an older process commits nothing any more,
2. ask the topic for its id and its extents, and decide whether that place is certainly a place of it,
3. read committed records from there; which partitions a process reads is said by the shard, and not by a group,
4. ask for the topic's id once more: what was read between two answers that agree is of that topic,
5. commit messages and place together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from detent import crash
from detent.errors import Busy, Conflict, DetentError, Invalid, LimitExceeded, NotFound, Unavailable
from detent.kafka import mapping, place
from detent.kafka.cluster import as_ours, translated
from detent.kafka.declaration import BATCH_BYTES, Inflow
from detent.kafka.letters import letter_of, why_not
from detent.kafka.mapping import Entry, Record
from detent.kafka.place import TOPIC_PLACE, TopicPlace
from detent.queue import Outgoing
from detent.runtime.task import AGAIN, ANEW, DONE, Next
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from detent.store import Store

POLL_S: Final = 0.5
"""How long a read waits for a first record: a bridge that is told to stop ends after it."""

GATHER_S: Final = 0.02
"""How long it waits for more of them: a commit of many costs little more than one of one."""

LOOK_S: Final = 5.0
"""How often a topic that is silent is looked at: it may have more partitions, or be another one."""

logger = logging.getLogger("detent.kafka")


class Inward:
    """One life of a shard of a bridge from a topic."""

    def __init__(self, bridge: Inflow, store: Store, index: int, *, once: bool) -> None:
        self._bridge = bridge
        self._store = store
        self._index = index
        self._once = once
        self._cluster = bridge.cluster()
        self.record = FencedRecord(store, bridge.consumer, index)
        self._consumer: Consumer | None = None
        self._place: TopicPlace | None = None
        self._partitions: list[int] = []
        self._waiting: list[Record] = []
        self._ended: set[int] = set()
        """Partitions that were read to their end."""
        self._looked_at = 0.0

    # -- its life -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Raise the fence, decide where to go on, and begin to read."""
        from confluent_kafka import TopicPartition

        self._check_queue()
        opened = self.record.open()
        crash.point("kafka.in.after_fence")
        stored = None if opened.checkpoint is None else TOPIC_PLACE.decode(opened.checkpoint)
        name = self._bridge.topic
        identity, self._partitions = self._cluster.describe(name)
        if self._cluster.is_compacted(name):
            place.refuse_compaction(name, self._bridge.accept)
        consumer = self._consumer = self._cluster.consumer(self._bridge.group)
        mine = [number for number in self._partitions if number % self._bridge.shards == self._index]
        topic = self._cluster.extents(consumer, name, identity, mine)
        found = self._place = place.resumed(stored, topic, self._bridge.start, self._bridge.accept)
        if found != stored:
            self._say_skipped(stored, found)
            self._store.commit([self.record.replacing(TOPIC_PLACE.encode(found))])
        crash.point("kafka.in.after_place")
        with translated(self._cluster.brokers):
            consumer.assign([TopicPartition(name, number, at) for number, at in found.offsets.items()])
        self._looked_at = time.monotonic()

    def _check_queue(self) -> None:
        """A journal is made by its first message, and a queue by hand."""
        queue = self._bridge.queue
        if queue is None:
            return
        try:
            self._store.queue(queue).info()
        except NotFound as error:
            raise Conflict(
                f"there is no queue {queue!r} for the records of {self._bridge.topic!r}: create it with `detent queue "
                f"create {self._store.url} {queue}`"
            ) from error

    def _say_skipped(self, stored: TopicPlace | None, found: TopicPlace) -> None:
        if stored is not None and found.skipped > stored.skipped:
            logger.warning(
                "%s goes on without %d offsets of %r that were deleted before they were read, as it was told to accept",
                self._bridge.name,
                found.skipped - stored.skipped,
                found.topic,
            )

    def step(self) -> Next:
        """One transaction, or a wait for records."""
        records = self._gather()
        if records:
            return self._commit(records)
        if self._once and self._ended >= self._at.offsets.keys():
            return DONE
        if time.monotonic() - self._looked_at >= LOOK_S and self._has_changed():
            return ANEW
        return AGAIN if self._at.places else POLL_S

    def close(self) -> None:
        """Let go of the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def _at(self) -> TopicPlace:
        assert self._place is not None, "it was opened"
        return self._place

    def _gather(self) -> list[Record]:
        """The records of the next transaction; none if none come."""
        if not self._waiting and self._at.places:
            self._read()
        size = count = 0
        for record in self._waiting:
            size += _size(record)
            if count and size > BATCH_BYTES:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _read(self) -> None:
        assert self._consumer is not None, "it was opened"
        with translated(self._cluster.brokers):
            first = self._consumer.poll(POLL_S)
            if first is None:
                return
            rest = self._consumer.consume(self._bridge.batch - 1, GATHER_S) if self._bridge.batch > 1 else []
        for message in (first, *rest):
            if message.error() is None:
                self._waiting.append(_record(message))
                self._ended.discard(self._waiting[-1].partition)
            else:
                self._note(message)

    def _note(self, message: Message) -> None:
        """What the client library says instead of a record."""
        from confluent_kafka import KafkaError

        error, partition = message.error(), message.partition()
        assert error is not None, "it is not a record"
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended.add(-1 if partition is None else partition)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Unavailable(
                f"partition {partition} of {self._bridge.topic!r} does not have the offset that comes next: "
                f"{error.str()}. It is looked at anew"
            )
        else:
            raise as_ours(error, self._cluster.brokers)

    def _has_changed(self) -> bool:
        """Whether the topic has other partitions than when this life began, or is another one."""
        self._looked_at = time.monotonic()
        identity, partitions = self._cluster.describe(self._bridge.topic)
        return identity != self._at.id or partitions != self._partitions

    # -- committing ---------------------------------------------------------------------------------------------

    def _commit(self, records: list[Record]) -> Next:
        """Messages and place, together."""
        identity, partitions = self._cluster.describe(self._bridge.topic)
        if identity != self._at.id:  # what was read may be of the other topic
            return ANEW
        self._looked_at = time.monotonic()
        crash.point("kafka.in.before_commit")
        try:
            after = self._stored(records, {})
        except Busy:
            raise
        except (LimitExceeded, Invalid) as error:
            letters = self._letters(records)
            if not letters or self._bridge.dead_letters is None:
                raise self._unstorable(error, records, letters) from error
            after = self._stored(records, letters)
        crash.point("kafka.in.after_commit")
        self._place = after
        return AGAIN if partitions == self._partitions else ANEW

    def _stored(self, records: list[Record], letters: Mapping[int, str]) -> TopicPlace:
        """The place after these records, which are in the store now. Those that `letters` has a reason for are dead
        letters."""
        after = self._after(records, len(letters))
        good = [record for number, record in enumerate(records) if number not in letters]
        with self._store.transaction() as transaction:
            if good:
                self._add(transaction, good, [mapping.entry_of(record, origin=self._bridge.origin) for record in good])
            if letters:
                assert self._bridge.dead_letters is not None, "there are letters where there is a journal for them"
                made = [letter_of(records[number], why) for number, why in letters.items()]
                transaction.append_table(self._bridge.dead_letters, mapping.table_of(made))
            transaction.add(self.record.replacing(TOPIC_PLACE.encode(after)))
        for number, why in letters.items():
            logger.warning("%s is a dead letter in %r: %s", _range([records[number]]), self._bridge.dead_letters, why)
        return after

    def _letters(self, records: list[Record]) -> dict[int, str]:
        """Which records a message cannot hold, by their place in the batch."""
        origin, for_queue = self._bridge.origin, self._bridge.queue is not None
        asked = ((number, why_not(one, origin=origin, for_queue=for_queue)) for number, one in enumerate(records))
        return {number: why for number, why in asked if why is not None}

    def _unstorable(self, error: DetentError, records: list[Record], letters: Mapping[int, str]) -> DetentError:
        """The refusal of a batch, with what lets the bridge go on."""
        if not letters:
            return type(error)(f"{_range(records)} of {self._bridge.topic!r} cannot be stored: {error}")
        number, why = next(iter(letters.items()))
        return type(error)(
            f"{_range([records[number]])} of {self._bridge.topic!r} cannot be stored: {why}. With --dead-letters "
            "JOURNAL (dead_letters=...) the bridge goes on, and that journal says what it could not store"
        )

    def _add(self, transaction: Any, records: list[Record], entries: list[Entry]) -> None:
        if self._bridge.queue is not None:
            messages = [Outgoing(entry.body, mapping.with_key(entry)) for entry in entries]
            transaction.publish_many(messages, queue=self._bridge.queue)
            return
        by_journal: dict[str, list[Entry]] = {}
        for record, entry in zip(records, entries, strict=True):
            by_journal.setdefault(self._bridge.journal_of(record.partition), []).append(entry)
        for journal, some in by_journal.items():
            transaction.append_table(journal, mapping.table_of(some))

    def _after(self, records: list[Record], letters: int) -> TopicPlace:
        """The place behind these records, of which some are dead letters. `Conflict` if one comes twice."""
        before, offsets = self._at.offsets, dict[int, int]()
        for record in records:
            at = offsets.get(record.partition, before.get(record.partition, 0))
            if record.offset < at:
                raise Conflict(f"partition {record.partition} gave offset {record.offset} after {at - 1}: it went back")
            offsets[record.partition] = record.offset + 1
        return place.taken(self._at, offsets, len(records), letters)

    # -- looking ------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """What it has done, over all lives."""
        return {} if self._place is None else progress_of(self._place)

    def lag(self) -> int | None:
        """Offsets that are before it, as far as the client library knows without asking."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer, found, total = self._consumer, self._place, 0
        if consumer is None or found is None:
            return None
        for number, at in found.offsets.items():
            if number in self._ended:
                continue
            try:
                answer = consumer.get_watermark_offsets(TopicPartition(found.topic, number), cached=True)
            except (KafkaException, RuntimeError):  # it is being closed
                return None
            if answer is None or answer[1] < 0:
                return None
            total += max(0, answer[1] - at)
        return total


def progress_of(found: TopicPlace) -> dict[str, int]:
    """What a place says of what was done."""
    return {key: getattr(found, key) for key in ("taken", "absent", "skipped", "letters")}


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record is in a topic"
    assert partition is not None, "a record is in a partition"
    assert offset is not None, "a record has an offset"
    kind, at = message.timestamp()
    key: Any = message.key()
    value: Any = message.value()
    headers: Any = ()
    fault = ""
    try:
        headers = message.headers() or ()
    except UnicodeDecodeError as error:
        fault = f"a header's name is not text: {error}"
    return Record(topic, partition, offset, key, value, headers, at if kind else None, fault)


def _size(record: Record) -> int:
    """About how many bytes a record has."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def _range(records: list[Record]) -> str:
    """Some records in words."""
    first, last = records[0], records[-1]
    if first is last:
        return f"the record of partition {first.partition}, offset {first.offset},"
    begin, end = (
        f"partition {first.partition}, offset {first.offset}",
        f"partition {last.partition}, offset {last.offset}",
    )
    return f"one of the records from {begin}, to {end},"
