"""Reading a queue with Spark: planning assigns messages to a reader by number, and that number is Spark's offset.

Whatever Spark replays reads the same assignment. Planning on from a number proves that all up to it is committed, so
that is when its messages are done; Spark's own notice comes late, and on a clean stop not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from detent.errors import NotFound
from detent.queue import AssignedMessage, AssignmentReader, Queue
from detent.queue.operations import check_name
from detent.queue.reader_operations import ASSIGNED_MAX, check_reader
from detent.remote import server_address
from detent.spark.advice import completing, release_command
from detent.spark.idle import IdleStream
from detent.spark.opened import opened
from detent.spark.options import FormatOptions
from detent.spark.ranges import Range, cut

OPTIONS: Final = ("queue", "server", "readerName", "maxMessagesPerTrigger", "maxBytesPerTrigger", "minPartitions")

ASSIGNED_BYTES_DEFAULT: Final = 32 << 20
"""Bodies of a batch, unless told: with their headers they have room in one transaction that publishes them again
(`queue_outgoing.PUBLISHED_BYTES_MAX`). Once a batch is planned, no option makes it smaller."""

PARTITION_MESSAGES_MAX: Final = 25_000
"""Messages of a queue cost a task about ten times what those of a journal do, so partitions are smaller."""

SLICE_BYTES: Final = 8 << 20
"""About what a task holds of its messages at once."""

SLICE_MESSAGES_FIRST: Final = 128
SLICE_MESSAGES_MAX: Final = 5_000
"""How many messages a task reads at once: few at first, then by the size of those that it has seen."""

COLUMNS: Final = StructType(
    [
        StructField("queue", StringType()),
        StructField("message", LongType()),
        StructField("delivery", LongType()),
        StructField("attempts", IntegerType()),
        StructField("priority", IntegerType()),
        StructField("created_at", TimestampType()),
        StructField("received_at", TimestampType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("uri", StringType()),
    ]
)
"""What a read gives. `message` is the same at each delivery, `delivery` is the fencing token."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("message", pa.int64()),
        ("delivery", pa.int64()),
        ("attempts", pa.int32()),
        ("priority", pa.int32()),
        ("created_at", _TIME),
        ("received_at", _TIME),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("uri", pa.string()),
    ]
)

Offset = dict[str, Any]
"""Queue, generation and assignment, in this order: Spark compares offsets by their text."""


@dataclass(frozen=True)
class QueueReadSettings:
    """The options of a read, checked."""

    owner_url: str
    queue: str
    reader: str
    messages_max: int | None
    bytes_max: int
    partitions_min: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> QueueReadSettings:
        options = FormatOptions(given, OPTIONS, "the format detent.queue")
        queue = options.required("queue", '.option("queue", "orders")')
        check_name(queue)
        reader = options.required(
            "readerName",
            '.option("readerName", "nightly"): the queue keeps what it gave to this stream under that name',
        )
        check_reader(reader)
        return cls(
            owner_url=options.owner_url(),
            queue=queue,
            reader=reader,
            messages_max=options.number("maxMessagesPerTrigger"),
            bytes_max=options.size("maxBytesPerTrigger") or ASSIGNED_BYTES_DEFAULT,
            partitions_min=options.number("minPartitions", 1) or 1,
        )

    def handle(self) -> Queue:
        """The queue. To be assigned messages changes it, so there must be an owner."""
        return opened(self.owner_url, "client").queue(self.queue)


class AssignedPartition(InputPartition):
    """What one task reads: the messages [start, end) of an assignment."""

    def __init__(self, generation: int, assignment: int, start: int, end: int) -> None:
        super().__init__(None)
        self.generation = generation
        self.assignment = assignment
        self.start = start
        self.end = end


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of a queue's messages. On the driver it plans; a copy of it in each task only reads."""

    def __init__(self, settings: QueueReadSettings) -> None:
        self._settings = settings
        self._left: int | None = None
        self._planned: dict[int, int] = {}

    @cached_property
    def _idle(self) -> IdleStream | None:
        """What is known of new messages without a look at the server; None where there is none."""
        url, queue = self._settings.owner_url, self._settings.queue
        if server_address(url) is None:
            return None
        store = opened(url, "client")
        return IdleStream(lambda _, timeout_ms: store.wait_claimable(queue, timeout_ms))

    def _reader(self, generation: int) -> AssignmentReader:
        return self._settings.handle().reader(self._settings.reader, generation=generation)

    def _offset(self, generation: int, assignment: int) -> Offset:
        return {"queue": self._settings.queue, "generation": generation, "assignment": assignment}

    def initialOffset(self) -> Offset:
        """Where a new checkpoint begins: before the reader's first assignment. If the reader is past that, planning
        refuses it: the checkpoint of the query that came that far was deleted, or it still runs."""
        generation = self._settings.handle().reader(self._settings.reader).open().generation
        return self._offset(generation, 0)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now. What is assigned counts too: it may have been planned by a run that ended then."""
        queue = self._settings.handle()
        assigned = sum(reader.assigned for reader in queue.readers() if reader.name == self._settings.reader)
        self._left = queue.info().available + assigned

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._settings.messages_max is not None:
            return ReadMaxRows(self._settings.messages_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._idle is None:
            return self._latest(start, limit)
        return self._idle.end_after(start, lambda: self._latest(start, limit))

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        generation, done = _of(start, self._settings)
        reader = self._reader(generation)
        count = min(ASSIGNED_MAX, limit.max_rows if isinstance(limit, ReadMaxRows) else ASSIGNED_MAX)
        if self._left is not None:
            count = min(count, self._left)
        if not count:
            reader.ack(done)  # nothing is planned any more, and all that was is committed
            return start
        with completing(self._settings.owner_url):
            assignment = reader.assign(done, count, max_bytes=self._settings.bytes_max)
        if self._left is not None:
            self._left = max(0, self._left - assignment.count)
        self._planned = {assignment.number: assignment.count}
        return self._offset(generation, assignment.number)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        generation, done = _of(start, self._settings)
        _, last = _of(end, self._settings)
        found: list[InputPartition] = []
        for number in range(done + 1, last + 1):
            whole = [Range(self._settings.queue, 0, self._count(generation, number))]
            for pieces in cut(whole, self._settings.partitions_min, PARTITION_MESSAGES_MAX):
                found += [AssignedPartition(generation, number, piece.start, piece.end) for piece in pieces]
        return found

    def _count(self, generation: int, number: int) -> int:
        """How many messages an assignment has. After a restart the queue is asked."""
        if number not in self._planned:
            self._check(generation, number)
            readers = {reader.name: reader.assigned for reader in self._settings.handle().readers()}
            self._planned = {number: readers[self._settings.reader]}
        return self._planned[number]

    def _check(self, generation: int, number: int) -> None:
        """`Fenced` if the reader was released, `NotFound` if the assignment is done: the checkpoint says it is not."""
        try:
            next(self._reader(generation).read(number, 0, 1))
        except NotFound as error:
            command = release_command(self._settings.owner_url, self._settings.queue, self._settings.reader)
            with completing(self._settings.owner_url):
                raise NotFound(
                    f"{error}. The checkpoint is older than the store's: release the reader with `{command}`, and "
                    "start with a new checkpoint"
                ) from error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, AssignedPartition)
        reader = self._reader(partition.generation)
        at, count = partition.start, SLICE_MESSAGES_FIRST
        while at < partition.end:
            upto = min(partition.end, at + count)
            rows = rows_of(list(reader.read(partition.assignment, at, upto)))
            yield rows
            at = upto
            count = max(1, min(SLICE_MESSAGES_MAX, SLICE_BYTES * rows.num_rows // max(1, rows.nbytes)))


def _of(offset: Offset, settings: QueueReadSettings) -> tuple[int, int]:
    """Generation and assignment of an offset, if it is one of this queue."""
    if offset["queue"] != settings.queue:
        raise NotFound(
            f"the checkpoint is of the queue {offset['queue']!r}, and this stream reads {settings.queue!r}: start "
            "it with a checkpoint of its own"
        )
    return offset["generation"], offset["assignment"]


def rows_of(messages: list[AssignedMessage]) -> Any:
    """Messages as a batch of Spark's rows."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.queue for message in messages], pa.string()),
            pa.array([message.id for message in messages], pa.int64()),
            pa.array([message.fencing_token for message in messages], pa.int64()),
            pa.array([message.attempts for message in messages], pa.int32()),
            pa.array([message.priority for message in messages], pa.int32()),
            pa.array([message.created for message in messages], _TIME),
            pa.array([message.received for message in messages], _TIME),
            pa.array([list(message.headers.items()) for message in messages], _SCHEMA.field("headers").type),
            pa.array([None if message.uri is not None else message.body for message in messages], pa.binary()),
            pa.array([message.uri for message in messages], pa.string()),
        ],
        schema=_SCHEMA,
    )
