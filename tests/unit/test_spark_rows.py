"""Rows to messages and back, without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import detent
from detent.codec.block import CONTENT_SCHEMA
from detent.errors import Invalid
from detent.spark.outgoing import RowsToMessages
from detent.spark.pushdown import Pushed
from detent.spark.ranges import Range
from detent.spark.rows import BATCH_BYTES, BATCH_ROWS, Piece, choose, gathered, rows_of, schema_of

TEXTS = MapType(StringType(), StringType())
INNER = StructType([StructField("a", IntegerType()), StructField("b", ArrayType(StringType()))])
KINDS: dict[str, DataType] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "map<string,string>": TEXTS,
    "map<string,int>": MapType(StringType(), IntegerType()),
    "inner": INNER,
}


def schema(ddl: str) -> StructType:
    """Spark's own parser needs a JVM; this one knows what these tests need."""
    pairs = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def messages(ddl: str, rows: list[dict[str, Any]], journal: str | None = "out") -> list[tuple[str, Any]]:
    spark_schema = schema(ddl)
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(spark_schema, timezone="UTC"))
    return list(RowsToMessages.of(spark_schema).messages(batch, journal))


# -- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_rows_have_exactly_the_types_that_spark_expects(headers: bool, raw: bool) -> None:
    with detent.open("memory:") as store:
        journal = store.journal("a")
        journal.append(b"one", key=b"k", headers={"x": "1"})
        journal.append_many([b"two", b"three"])
        read = store.reader.uncommitted if raw else store.reader.committed
        pieces = [Piece("a", first, batch) for first, batch in read("a", 0, 3)]
        names = choose(None, headers=headers, raw=raw)
        batches = [rows_of([piece], names) for piece in pieces]
        together = rows_of([*pieces, Piece("b", 7, pieces[0].batch.slice(0, 1))], names)
    expected = to_arrow_schema(schema_of(names), timezone="UTC")
    assert all(batch.schema.equals(expected) for batch in [*batches, together])
    assert together.column("journal").to_pylist() == ["a", "a", "a", "b"]
    assert together.column("offset").to_pylist() == [0, 1, 2, 7]
    assert together.column("body").to_pylist() == [b"one", b"two", b"three", b"one"]
    table = pa.Table.from_batches(batches).to_pydict()
    assert table["body"] == [b"one", b"two", b"three"]
    assert table["offset"] == [0, 1, 2]
    assert table["key"] == [b"k", None, None]
    assert table["journal"] == ["a"] * 3
    if headers:
        assert table["headers"] == [[("x", "1")], [], []]


def test_small_batches_are_joined_and_large_ones_are_not() -> None:
    def piece(rows: int, size: int = 1) -> Piece:
        return Piece("a", 0, pa.RecordBatch.from_pydict({"body": [bytes(size)] * rows}))

    def counts(*pieces: Piece) -> list[list[int]]:
        return [[one.batch.num_rows for one in group] for group in gathered(pieces)]

    assert counts() == []
    assert counts(piece(1), piece(2), piece(3)) == [[1, 2, 3]]
    assert counts(piece(BATCH_ROWS), piece(1), piece(BATCH_ROWS - 1), piece(5)) == [
        [BATCH_ROWS],
        [1, BATCH_ROWS - 1],
        [5],
    ]
    assert counts(piece(1), piece(1, BATCH_BYTES), piece(1)) == [[1, 1], [1]]


# -- writing ----------------------------------------------------------------------------------------------------


def test_bodies_keys_and_headers() -> None:
    rows = [
        {"body": b"1", "key": b"k", "headers": {"a": "b"}},
        {"body": b"2", "key": None, "headers": None},
        {"body": b"", "key": b"", "headers": {}},
    ]
    [(journal, content)] = messages("body binary, key binary, headers map<string,string>", rows)
    assert journal == "out"
    assert content.schema.equals(CONTENT_SCHEMA)
    assert content.to_pydict() == {
        "key": [b"k", None, b""],
        "headers": [[("a", "b")], [], []],
        "body": [b"1", b"2", b""],
    }


def test_text_becomes_utf_8() -> None:
    [(_, content)] = messages("body string, key string", [{"body": "ä", "key": "ö"}])
    assert content.to_pydict() == {"key": ["ö".encode()], "headers": [[]], "body": ["ä".encode()]}


def test_without_a_body_all_columns_become_json() -> None:
    ddl = "id bigint, at timestamp, tags map<string,int>, inner inner, key binary"
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = [{"id": 7, "at": when, "tags": {"x": 1}, "inner": {"a": None, "b": ["c"]}, "key": b"k"}]
    [(_, content)] = messages(ddl, rows)
    assert msgspec.json.decode(content.column("body")[0].as_py()) == {
        "id": 7,
        "at": "2026-01-02T03:04:05Z",
        "tags": {"x": 1},
        "inner": {"a": None, "b": ["c"]},
    }
    assert content.column("key")[0].as_py() == b"k"


def test_rows_go_to_their_journals_in_their_order() -> None:
    rows = [{"body": b"%d" % number, "journal": "ab"[number % 2]} for number in range(6)]
    found = {
        name: content.column("body").to_pylist()
        for name, content in messages("body binary, journal string", rows, None)
    }
    assert found == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("body int", "body is binary or string, not int"),
        ("body binary, key int", "key is binary or string"),
        ("body binary, headers map<string,int>", "headers is a map<string,string>"),
        ("body binary, headers string", "headers is a map<string,string>"),
        ("body binary, journal int", "journal is string"),
        ("body binary, id int", "to_json"),
        ("key binary", "no column body"),
    ],
)
def test_columns_that_are_no_message(ddl: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        RowsToMessages.of(schema(ddl))


@pytest.mark.parametrize(
    ("ddl", "row", "says"),
    [
        ("body binary", {"body": None}, "no body"),
        ("body binary, journal string", {"body": b"", "journal": None}, "no journal"),
        ("body binary, journal string", {"body": b"", "journal": "../x"}, "no journal name"),
        ("body binary, headers map<string,string>", {"body": b"", "headers": {"a": None}}, "header's value is null"),
    ],
)
def test_rows_that_are_no_message(ddl: str, row: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        messages(ddl, [row], None if "journal" in row else "out")


# -- filters ----------------------------------------------------------------------------------------------------


def test_filters_on_journal_and_offset_narrow_the_ranges() -> None:
    pushed = Pushed()
    for one in (In(("journal",), ("a", "b")), EqualTo(("journal",), "a"), IsNotNull(("offset",))):
        assert pushed.take(one)
    assert pushed.take(GreaterThan(("offset",), 4))
    assert pushed.take(LessThanOrEqual(("offset",), 8))
    assert pushed.narrow([Range("a", 0, 6), Range("a", 6, 20), Range("b", 0, 20)]) == [
        Range("a", 5, 6),
        Range("a", 6, 9),
    ]


def test_filters_that_spark_keeps_for_itself() -> None:
    pushed = Pushed()
    for one in (
        EqualTo(("body",), b"x"),
        EqualTo(("headers", "a"), "x"),
        GreaterThan(("journal",), "a"),
        IsNotNull(("key",)),
    ):
        assert not pushed.take(one)
    assert pushed.narrow([Range("a", 0, 6)]) == [Range("a", 0, 6)]


def test_filters_on_the_time_look_at_every_row() -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 1, 2)]  # times need not rise with offsets
    rows = pa.record_batch({"published_at": pa.array(times, pa.timestamp("us", "UTC")), "offset": pa.array([0, 1, 2])})
    pushed = Pushed()
    assert pushed.take(GreaterThanOrEqual(("published_at",), times[2]))
    assert pushed.keep(rows).column("offset").to_pylist() == [0, 2]
    assert pushed.take(LessThan(("published_at",), times[0]))
    assert pushed.keep(rows).column("offset").to_pylist() == [2]
