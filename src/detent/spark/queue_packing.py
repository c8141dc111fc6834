"""Rows for queues on their way from tasks to the transaction that publishes them, and how much goes into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from detent.errors import LimitExceeded
from detent.queue.operations import PUBLISH_MESSAGES_MAX
from detent.queue.reader_operations import ASSIGNED_MAX
from detent.spark.queue_outgoing import SCHEMA, RowsToPublish, outgoing
from detent.transaction import Transaction

PUBLISHED_MAX: Final = ASSIGNED_MAX
"""Messages that one transaction publishes, as many as a queue gives to one batch: other callers wait while the owner
applies them."""

PUBLISHED_BYTES_MAX: Final = 48 << 20
"""Payloads and headers that one transaction publishes: it travels whole, and holds the rest of the batch too."""

GROUPS_MAX: Final = 5_000
"""Messages share an operation when they agree in queue and delay; a transaction has room for so many, and as many
again for the journals of the batch."""

MESSAGE_BYTES: Final = 32
"""About what a message takes in a transaction besides payload and headers."""

BATCH_MESSAGES_MAX: Final = 1_000_000
BATCH_BYTES_MAX: Final = 512 << 20
"""What one batch publishes in as many transactions as it takes: tasks bring it to the driver."""


class Room(NamedTuple):
    """What a transaction has room for."""

    messages: int
    size: int
    groups: int

    def share(self, count: int) -> Room:
        """The room of one of several sinks."""
        return Room(self.messages // count, self.size // count, self.groups // count)


def whole_room() -> Room:
    """The room of a transaction that publishes to queues."""
    return Room(PUBLISHED_MAX, PUBLISHED_BYTES_MAX, GROUPS_MAX)


def pack(columns: RowsToPublish, batches: Iterable[Any]) -> bytes:
    """What a task does: its rows as messages in an Arrow stream."""
    messages = size = 0
    found = []
    for batch in batches:
        if batch.num_rows:
            rows = columns.messages(batch)
            messages, size = messages + rows.num_rows, size + rows.nbytes
            _check_batch(messages, size)
            found.append(rows)
    return packed_of(pa.Table.from_batches(found, schema=SCHEMA))


def packed_of(rows: Any) -> bytes:
    """Messages as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpacked(packed: Iterable[bytes]) -> Any:
    """The messages of all tasks, in the order of these."""
    rows = pa.concat_tables([SCHEMA.empty_table(), *(pa.ipc.open_stream(rows).read_all() for rows in packed)])
    _check_batch(rows.num_rows, rows.nbytes)
    return rows


def _check_batch(messages: int, size: int) -> None:
    if messages > BATCH_MESSAGES_MAX or size > BATCH_BYTES_MAX:
        raise LimitExceeded(
            f"a batch publishes at most {BATCH_MESSAGES_MAX} messages of {BATCH_BYTES_MAX} bytes together, which the "
            "driver holds: let the source give fewer rows a batch, or write them to a journal. A batch that Spark has "
            "planned keeps its rows: for it, let the query publish less of each"
        )


def parts_of(rows: Any, room: Room) -> Iterator[Any]:
    """Messages in order, cut so that each part has room in a transaction; at least one message each. It depends on the
    rows and their order alone."""
    if _fits(rows, room):
        yield rows
        return
    sizes = _sizes(rows)
    shared = zip(*(rows.column(name).to_pylist() for name in _SHARED), strict=True)
    start = size = 0
    groups: set[Any] = set()
    for place, (own, group) in enumerate(zip(sizes, shared, strict=True)):
        size += own
        groups.add(group)
        if place > start and (place - start >= room.messages or size > room.size or len(groups) > room.groups):
            yield rows.slice(start, place - start)
            start, size, groups = place, own, {group}
    yield rows.slice(start)


def _fits(rows: Any, room: Room) -> bool:
    """Whether messages have room without a look at each: most batches do."""
    if rows.num_rows > room.messages or rows.nbytes + MESSAGE_BYTES * rows.num_rows > room.size:
        return False
    return bool(rows.group_by(list(_SHARED)).aggregate([]).num_rows <= room.groups)


_SHARED: Final = ("queue", "is_uri", "delay_ms")
"""What messages of one operation agree in."""


def _sizes(rows: Any) -> list[int]:
    """About how many bytes each message has in a transaction."""
    found = []
    columns = (rows.column(name).to_pylist() for name in ("data", "headers", "queue"))
    for data, headers, queue in zip(*columns, strict=True):
        address = 0 if queue is None else len(f"queue{queue}")  # the header that is the address
        found.append(len(data) + address + sum(len(name) + len(value) + 8 for name, value in headers) + MESSAGE_BYTES)
    return found


def publish(transaction: Transaction, packed: Iterable[bytes]) -> None:
    """Add what tasks have packed to a transaction. Messages of a queue keep the order of the rows, as far as they agree
    in their delay."""
    rows = unpacked(packed)
    _check_room(rows)
    add_messages(transaction, rows)


def add_messages(transaction: Transaction, rows: Any) -> None:
    """Add messages to a transaction that has room for them."""
    for (queue, is_uri, delay_ms), places in _groups(rows).items():
        found = outgoing(rows.take(places), queue, is_uri, delay_ms)
        for first in range(0, len(found), PUBLISH_MESSAGES_MAX):
            transaction.publish_many(found[first : first + PUBLISH_MESSAGES_MAX], queue=queue)


def _check_room(rows: Any) -> None:
    """A write without a ledger cannot be split: a part that was published before would be so again."""
    if len(list(parts_of(rows, whole_room()))) > 1:
        raise LimitExceeded(
            f"a write publishes at most {PUBLISHED_MAX} messages of {PUBLISHED_BYTES_MAX} bytes together, with "
            f"{GROUPS_MAX} different pairs of queue and delay, because all become visible in one transaction: give it "
            "txnAppId and txnVersion, and it is split where it has to be"
        )


def _groups(rows: Any) -> dict[tuple[str | None, bool, int], list[int]]:
    """Where the rows are that one operation can publish."""
    groups: dict[tuple[str | None, bool, int], list[int]] = {}
    for place, shared in enumerate(zip(*(rows.column(name).to_pylist() for name in _SHARED), strict=True)):
        groups.setdefault(shared, []).append(place)
    return groups
