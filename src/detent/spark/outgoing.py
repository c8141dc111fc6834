"""Spark's rows as messages: the columns body, key, headers and journal, or all of them as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from detent.codec.block import CONTENT_SCHEMA, HEADERS, no_headers
from detent.errors import Invalid
from detent.finite import encode_json
from detent.names import check_name

BODY, KEY, HEADERS_COLUMN, JOURNAL = "body", "key", "headers", "journal"
_RESERVED: Final = (KEY, HEADERS_COLUMN, JOURNAL)


@dataclass(frozen=True)
class RowsToMessages:
    """How the rows of one write become messages."""

    json_columns: tuple[str, ...]
    has_key: bool
    has_headers: bool

    @classmethod
    def of(cls, schema: StructType) -> RowsToMessages:
        """Check the columns of a write."""
        kinds: dict[str, DataType] = {field.name: field.dataType for field in schema}
        _check(kinds, BODY, (BinaryType, StringType), "binary or string")
        _check(kinds, KEY, (BinaryType, StringType), "binary or string")
        _check(kinds, JOURNAL, (StringType,), "string")
        headers = kinds.get(HEADERS_COLUMN)
        if headers is not None and not _is_texts(headers):
            raise Invalid(f"the column headers is a map<string,string>, not {headers.simpleString()}")
        others = tuple(name for name in kinds if name not in (BODY, *_RESERVED))
        if BODY in kinds and others:
            raise Invalid(
                f"the columns {', '.join(others)} have no place in a message: a message is body, key, headers and "
                'journal. Put them into the body, .withColumn("body", to_json(struct("*"))), or leave the column body '
                "out, and all columns become a JSON object"
            )
        if BODY not in kinds and not others:
            raise Invalid("there is no column body, and nothing to make one of")
        return cls(others if BODY not in kinds else (), KEY in kinds, headers is not None)

    def messages(self, batch: Any, journal: str | None) -> Iterator[tuple[str, Any]]:
        """The batch's messages by journal, each journal's in the order of the rows."""
        content = self._content(batch)
        if journal is not None:
            yield journal, content
            return
        names = batch.column(JOURNAL)
        if names.null_count:
            raise Invalid("a row has no journal: the column journal is null")
        groups = names.dictionary_encode()
        for number, name in enumerate(groups.dictionary.to_pylist()):
            check_name(name, "journal")
            if len(groups.dictionary) == 1:
                yield name, content
            else:
                yield name, content.filter(pc.equal(groups.indices, number))

    def _content(self, batch: Any) -> Any:
        rows = batch.num_rows
        body = as_json(batch.select(list(self.json_columns))) if self.json_columns else _bytes(batch.column(BODY))
        if body.null_count:
            raise Invalid("a row has no body: the column body is null")
        key = _bytes(batch.column(KEY)) if self.has_key else pa.nulls(rows, pa.binary())
        return pa.RecordBatch.from_arrays([key, self._headers(batch, rows), body], schema=CONTENT_SCHEMA)

    def _headers(self, batch: Any, rows: int) -> Any:
        if not self.has_headers:
            return no_headers(rows)
        headers = batch.column(HEADERS_COLUMN)
        if headers.null_count:
            headers = pc.if_else(headers.is_valid(), headers, pa.scalar([], headers.type))
        if headers.items.null_count:
            raise Invalid("a header's value is null: leave the header out, or give it a text")
        return headers.cast(HEADERS)


def _is_texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and (kind.keyType, kind.valueType) == (StringType(), StringType())


def _check(kinds: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], words: str) -> None:
    kind = kinds.get(name)
    if kind is not None and not isinstance(kind, allowed):
        raise Invalid(f"the column {name} is {words}, not {kind.simpleString()}")


def _bytes(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def as_json(batch: Any) -> Any:
    """Each row as a JSON object. Spark's own to_json is faster; this saves a line where speed is no matter."""
    names = batch.schema.names
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
    return pa.array(
        [encode_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)], pa.binary()
    )
