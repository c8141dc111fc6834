"""Spark's rows as messages for queues: the columns body, uri, headers, delay, dedup_key and queue, or all others as
one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    NumericType,
    StringType,
    StructType,
)

from detent.errors import Invalid, LimitExceeded
from detent.queue import Outgoing
from detent.queue.operations import PUBLISH_MESSAGES_MAX, check_name
from detent.queue.reader_operations import ASSIGNED_MAX
from detent.spark.outgoing import as_json
from detent.transaction import Transaction

BODY, URI, HEADERS = "body", "uri", "headers"
DELAY, DEDUP_KEY, QUEUE = "delay", "dedup_key", "queue"
_CONTENT: Final = (BODY, URI)
_KINDS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    BODY: ((BinaryType, StringType), "binary or string"),
    URI: ((StringType,), "string"),
    DELAY: ((NumericType, DayTimeIntervalType), "a number of seconds or an interval"),
    DEDUP_KEY: ((StringType,), "string"),
    QUEUE: ((StringType,), "string"),
}
_MAP: Final = pa.map_(pa.string(), pa.string())
_NO_TEXT: Final = pa.array([], pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("queue", pa.string()),
        pa.field("is_uri", pa.bool_()),
        pa.field("delay_ms", pa.int64()),
        pa.field("dedup_key", pa.string()),
        pa.field("headers", _MAP),
        pa.field("data", pa.binary()),
    ]
)
"""A message between the task that has its row and the commit that publishes it."""


@dataclass(frozen=True)
class RowsToPublish:
    """How the rows of one write become messages."""

    queue: str | None
    json_columns: tuple[str, ...]
    columns: frozenset[str]

    @classmethod
    def of(cls, schema: StructType, queue: str | None) -> RowsToPublish:
        """Check the columns of a write. They go to `queue`, or where each says itself."""
        if queue is not None:
            check_name(queue)
        kinds: dict[str, DataType] = {field.name: field.dataType for field in schema}
        for name, (allowed, words) in _KINDS.items():
            if name in kinds and not isinstance(kinds[name], allowed):
                raise Invalid(f"the column {name} is {words}, not {kinds[name].simpleString()}")
        headers = kinds.get(HEADERS)
        if headers is not None and headers.simpleString() != "map<string,string>":
            raise Invalid(f"the column headers is a map<string,string>, not {headers.simpleString()}")
        others = tuple(name for name in kinds if name not in (*_KINDS, HEADERS))
        content = not kinds.keys().isdisjoint(_CONTENT)
        if content and others:
            raise Invalid(
                f"the columns {', '.join(others)} have no place in a message: a message is body or uri, headers, "
                'delay, dedup_key and queue. Put them into the body, .withColumn("body", to_json(struct("*"))), '
                "or into the headers; or leave body and uri out and all columns become a JSON object"
            )
        if not content and not others:
            raise Invalid("there is no column body, and nothing to make one of")
        return cls(queue, () if content else others, frozenset(kinds))

    def messages(self, batch: Any) -> Any:
        """The batch's messages, in the order of the rows, as `SCHEMA` has them."""
        data, is_uri = self._data(batch)
        arrays = [
            self._queue(batch),
            is_uri,
            self._delay(batch),
            self._text(batch, DEDUP_KEY),
            self._headers(batch),
            data,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _queue(self, batch: Any) -> Any:
        if self.queue is not None:
            return pa.repeat(pa.scalar(self.queue, pa.string()), batch.num_rows)
        names = self._text(batch, QUEUE)
        for name in names.unique().to_pylist():
            if name is not None:
                check_name(name)
        return names

    def _text(self, batch: Any, name: str) -> Any:
        if name not in self.columns:
            return pa.nulls(batch.num_rows, pa.string())
        return batch.column(name).cast(pa.string())

    def _data(self, batch: Any) -> tuple[Any, Any]:
        """Bodies, or URIs where a row has no body."""
        nothing = pa.nulls(batch.num_rows, pa.binary())
        if self.json_columns:
            data = as_json(batch.select(list(self.json_columns)))
        else:
            data = batch.column(BODY).cast(pa.binary()) if BODY in self.columns else nothing
        uris = self._text(batch, URI).cast(pa.binary())
        is_uri = uris.is_valid()
        if pc.any(pc.and_(is_uri, data.is_valid())).as_py():
            raise Invalid("a row has a body and a uri: a message is one or the other, so leave one of them null")
        data = pc.coalesce(data, uris)
        if data.null_count:
            raise Invalid(f"a row has no content: give it {' or '.join(n for n in _CONTENT if n in self.columns)}")
        return data, is_uri

    def _delay(self, batch: Any) -> Any:
        if DELAY not in self.columns:
            return pa.array(np.zeros(batch.num_rows, np.int64))
        delays = batch.column(DELAY)
        if pa.types.is_duration(delays.type):
            ms = pc.divide(delays.cast(pa.duration("us")).cast(pa.int64()), 1000)
        else:
            seconds = delays.cast(pa.float64())
            if pc.any(pc.invert(pc.is_finite(seconds))).as_py():
                raise Invalid("a delay is a number of seconds, and one of them is not finite")
            ms = pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())
        if pc.any(pc.less(ms, 0)).as_py():
            raise Invalid("a delay is negative: a message becomes visible when it is published, or later")
        return pc.fill_null(ms, 0)

    def _headers(self, batch: Any) -> Any:
        rows = batch.num_rows
        if HEADERS not in self.columns:
            return pa.MapArray.from_arrays(np.zeros(rows + 1, np.int32), _NO_TEXT, _NO_TEXT)
        headers = batch.column(HEADERS)
        if headers.null_count:
            headers = pc.if_else(headers.is_valid(), headers, pa.scalar([], headers.type))
        if headers.items.null_count:
            raise Invalid("a header's value is null: leave the header out, or give it a text")
        return headers.cast(_MAP)


def outgoing(rows: Any, queue: str | None, is_uri: bool, delay_ms: int) -> list[bytes] | list[Outgoing]:
    """Rows of `SCHEMA` that agree in these as what a store publishes."""
    data = rows.column("data").to_pylist()
    keys = rows.column("dedup_key").to_pylist()
    headers = [_headers_of(pairs, queue) for pairs in rows.column("headers").to_pylist()]
    if not is_uri and not delay_ms and not any(headers) and all(key is None for key in keys):
        return data  # type: ignore[no-any-return]
    delay = timedelta(milliseconds=delay_ms) if delay_ms else None
    if is_uri:
        found = zip(data, headers, keys, strict=True)
        return [Outgoing(headers=about, uri=uri.decode(), delay=delay, dedup_key=key) for uri, about, key in found]
    return [
        Outgoing(body, about, delay=delay, dedup_key=key) for body, about, key in zip(data, headers, keys, strict=True)
    ]


def _headers_of(pairs: list[tuple[str, str]], queue: str | None) -> dict[str, str]:
    """The headers of a message. The one called queue is the address that it came by, if it came out of a queue."""
    headers = dict(pairs)
    if queue is not None:
        headers.pop(QUEUE, None)
    return headers


PUBLISHED_MAX: Final = ASSIGNED_MAX
"""Messages that one transaction publishes, as many as a queue gives to one batch: other callers wait while the owner
applies them."""

PUBLISHED_BYTES_MAX: Final = 48 << 20
"""Bodies and headers that one transaction publishes: it travels whole, and holds the rest of the batch too."""

GROUPS_MAX: Final = 5_000
"""Messages share an operation when they agree in queue and delay; a transaction has room for so many, and as many
again for the journals of the batch."""

MESSAGE_BYTES: Final = 32
"""About what a message takes in a transaction besides body and headers."""

BATCH_MESSAGES_MAX: Final = 1_000_000
BATCH_BYTES_MAX: Final = 512 << 20
"""What one batch publishes in as many transactions as it takes: tasks bring it to the driver."""


class PublishRoom(NamedTuple):
    """What a transaction has room for."""

    messages: int
    size: int
    groups: int

    def share(self, count: int) -> PublishRoom:
        """The room of one of several sinks."""
        return PublishRoom(self.messages // count, self.size // count, self.groups // count)


def whole_room() -> PublishRoom:
    """The room of a transaction that publishes to queues."""
    return PublishRoom(PUBLISHED_MAX, PUBLISHED_BYTES_MAX, GROUPS_MAX)


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


def parts_of(rows: Any, room: PublishRoom) -> Iterator[Any]:
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


def _fits(rows: Any, room: PublishRoom) -> bool:
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
