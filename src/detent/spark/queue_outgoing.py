"""Spark's rows as messages for queues: the columns payload, uri, headers, delay, dedup_key and queue, or all others as
one JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

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

from detent.errors import Invalid
from detent.queue import Outgoing
from detent.queue.operations import check_name
from detent.spark.outgoing import as_json

PAYLOAD, BODY, URI, HEADERS = "payload", "body", "uri", "headers"
DELAY, DEDUP_KEY, QUEUE = "delay", "dedup_key", "queue"
_CONTENT: Final = (PAYLOAD, BODY, URI)
_KINDS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    PAYLOAD: ((BinaryType, StringType), "binary or string"),
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
        if PAYLOAD in kinds and BODY in kinds:
            raise Invalid("payload and body are two names of the same: leave one of the two columns out")
        others = tuple(name for name in kinds if name not in (*_KINDS, HEADERS))
        content = not kinds.keys().isdisjoint(_CONTENT)
        if content and others:
            raise Invalid(
                f"the columns {', '.join(others)} have no place in a message: a message is payload or uri, headers, "
                'delay, dedup_key and queue. Put them into the payload, .withColumn("payload", to_json(struct("*"))), '
                "or into the headers; or leave payload and uri out and all columns become a JSON object"
            )
        if not content and not others:
            raise Invalid("there is no column payload, and nothing to make one of")
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
        """Payloads, or URIs where a row has no payload."""
        nothing = pa.nulls(batch.num_rows, pa.binary())
        if self.json_columns:
            data = as_json(batch.select(list(self.json_columns)))
        else:
            name = PAYLOAD if PAYLOAD in self.columns else BODY
            data = batch.column(name).cast(pa.binary()) if name in self.columns else nothing
        uris = self._text(batch, URI).cast(pa.binary())
        is_uri = uris.is_valid()
        if pc.any(pc.and_(is_uri, data.is_valid())).as_py():
            raise Invalid("a row has a payload and a uri: a message is one or the other, so leave one of them null")
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
        Outgoing(payload, about, delay=delay, dedup_key=key)
        for payload, about, key in zip(data, headers, keys, strict=True)
    ]


def _headers_of(pairs: list[tuple[str, str]], queue: str | None) -> dict[str, str]:
    """The headers of a message. The one called queue is the address that it came by, if it came out of a queue."""
    headers = dict(pairs)
    if queue is not None:
        headers.pop(QUEUE, None)
    return headers
