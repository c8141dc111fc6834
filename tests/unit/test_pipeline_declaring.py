"""Declaring a pipeline: what is read and written, and what is refused before Spark is even imported."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from detent.errors import Exists, Invalid
from detent.spark import to_delta
from detent.spark.pipeline import Pipeline, as_json, as_mermaid, queue
from detent.spark.pipeline_stream import (
    MESSAGES_MAX,
    PUBLISHED_MAX,
    Custom,
    JournalEnd,
    QueueEnd,
    Stream,
    StreamInput,
    TableEnd,
)
from detent.tables.options import TableOptions


def one(frame: Any) -> Any:
    return frame


def two(orders: Any, refunds: Any) -> Any:
    return orders.unionByName(refunds)


def declared(function: Any = one, **options: Any) -> Stream:
    pipeline = Pipeline("shop")
    pipeline.stream(**{"read": "orders", "write": "paid", **options})(function)
    (stream,) = pipeline.streams
    return stream


def test_a_stream_reads_and_writes_journals_by_name() -> None:
    stream = declared()
    assert stream.inputs == (StreamInput("frame", (JournalEnd("orders"),)),)
    assert stream.outputs == (JournalEnd("paid"),)
    assert (stream.name, stream.full_name, stream.quarantine) == ("one", "shop/one", None)
    assert stream.messages_max == MESSAGES_MAX


def test_the_decorator_gives_the_function_back() -> None:
    assert Pipeline("shop").stream(read="orders", write="paid")(one) is one


def test_queues_tables_and_sinks_are_written_too() -> None:
    class ToSql:
        def write(self, batch: Any, key: Any) -> None: ...

    stream = declared(read=queue("orders"), write=["paid", queue("mails"), ToSql()])
    assert stream.sources == [QueueEnd("orders")]
    assert stream.outputs[:2] == (JournalEnd("paid"), QueueEnd("mails"))
    assert isinstance(stream.outputs[2], Custom)
    assert str(stream.outputs[2]) == "to_sql"
    assert stream.messages_max == PUBLISHED_MAX, "what is published passes through the owner"
    assert declared(write=queue("mails"), max_messages=5).messages_max == 5


def test_a_table_is_a_stream_into_delta() -> None:
    pipeline = Pipeline("shop")
    pipeline.table(read="paid", path="./tables/paid", partition_by=["day"], name="paid-table")(one)
    (stream,) = pipeline.streams
    paid = TableEnd("./tables/paid", TableOptions(partition_by=("day",)))
    assert (stream.name, stream.outputs) == ("paid-table", (paid,))


def test_a_table_with_a_catalog_is_a_stream_into_iceberg() -> None:
    pipeline = Pipeline("shop")
    how: dict[str, Any] = {"merge_on": ["id"], "sort_by": ["id"], "file_bytes": 9, "compact_after": 5, "evolve": True}
    pipeline.table(read="paid", path="lake.paid", catalog="https://user:secret@catalog", location="s3://b/p", **how)(
        one
    )
    (stream,) = pipeline.streams
    (table,) = stream.outputs
    assert isinstance(table, TableEnd)
    assert (table.kind, table.path, table.location) == ("iceberg", "lake.paid", "s3://b/p")
    assert table.options == TableOptions.checked(**how)
    assert "secret" not in f"{table!r} {as_json(pipeline)} {as_mermaid(pipeline)}"
    assert as_json(pipeline)["streams"][0]["write"] == [{"kind": "iceberg", "name": "lake.paid"}]


def test_options_of_tables_that_do_not_go_together_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"location": "s3://b/p"}, "location is for Iceberg"),
        ({"catalog": "sqlite:///c.db"}, "with its namespace"),
        ({"file_bytes": -1}, "file_bytes"),
        ({"compact_after": -1}, "compact_after"),
        ({"sort_by": [1]}, "sort_by is a list"),
        ({"storage_options": {"aws_allow_http": True}}, "names and texts"),
    ]
    for options, says in wrong:
        with pytest.raises(Invalid, match=says):
            Pipeline("shop").table(read="paid", path="t", **options)


def test_a_schema_brings_a_quarantine() -> None:
    stream = declared(json="id BIGINT")
    assert stream.quarantine == JournalEnd("shop/one.quarantine")
    assert stream.targets == [JournalEnd("paid"), JournalEnd("shop/one.quarantine")]
    assert stream.inputs[0].schema == "id BIGINT"


def test_one_parameter_gets_all_journals_together() -> None:
    stream = declared(read=["orders", "refunds"])
    assert stream.inputs == (StreamInput("frame", (JournalEnd("orders"), JournalEnd("refunds"))),)


def test_several_parameters_get_their_sources_by_name() -> None:
    stream = declared(two, read=["shop/refunds", "shop/orders"], json={"refunds": "id BIGINT"})
    assert stream.inputs == (
        StreamInput("orders", (JournalEnd("shop/orders"),)),
        StreamInput("refunds", (JournalEnd("shop/refunds"),), "id BIGINT"),
    )
    named = declared(two, read={"refunds": queue("q"), "orders": ["a", "b"]})
    assert named.inputs == (
        StreamInput("orders", (JournalEnd("a"), JournalEnd("b"))),
        StreamInput("refunds", (QueueEnd("q"),)),
    )


def test_parameters_with_defaults_are_the_functions_own() -> None:
    def limited(orders: Any, limit: int = 10, **more: Any) -> Any:
        return orders.limit(limit)

    assert [one.parameter for one in declared(limited).inputs] == ["orders"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"read": []}, "a journal such as"),
        ({"read": 7}, "a journal such as"),
        ({"read": [7]}, "cannot read 7"),
        ({"read": "bad name"}, "no journal name"),
        ({"read": "a*,b"}, "as a list"),
        ({"read": ["orders", queue("orders")]}, "only journals can be read together"),
        ({"read": ["orders", "orders"]}, "twice"),
        ({"read": {"other": "orders"}}, "same names"),
        ({"write": []}, "it is empty"),
        ({"write": None}, "cannot write to None"),
        ({"write": "bad name"}, "no journal name"),
        ({"write": ["paid", "paid"]}, "twice"),
        ({"json": ""}, "DDL"),
        ({"json": 7}, "not int"),
        ({"json": {"other": "id BIGINT"}}, "no parameter"),
        ({"start": "yesterday"}, "earliest, latest"),
        ({"start": 7}, "earliest"),
        ({"read": queue("q"), "start": "latest"}, "reads no journal"),
        ({"mode": "all"}, "append, update, complete"),
        ({"mode": "complete"}, "writes to paid in complete mode"),
        ({"every": "soon"}, "no duration"),
        ({"max_messages": 0}, "from 1 on"),
        ({"max_messages": True}, "from 1 on"),
        ({"name": "a/b"}, "no name for a stream"),
        ({"read": "orders", "write": "orders"}, "reads orders and writes orders"),
        ({"read": "o*", "write": "out"}, "reads o* and writes out"),
        ({"read": queue("q"), "write": queue("q")}, "reads queue q and writes queue q"),
        ({"read": "shop/*", "write": "paid", "json": "id BIGINT"}, "shop/one.quarantine"),
    ],
)
def test_what_is_wrong_is_refused_and_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as refused:
        declared(**options)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("function", "read", "says"),
    [
        (lambda: None, "orders", "takes no DataFrame"),
        (two, "orders", "one parameter for each, or one for all"),
        (two, ["orders", "others"], 'read={"orders": …, "refunds": …}'),
        (lambda a, *, b: a, "orders", "needs b="),
        ("text", "orders", "is a function"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(function: Any, read: Any, says: str) -> None:
    pipeline = Pipeline("shop")
    with pytest.raises(Invalid) as refused:
        pipeline.stream(read=read, write="paid", name="s")(function)
    assert says in str(refused.value)
    assert pipeline.streams == []


def test_names_are_used_once() -> None:
    pipeline = Pipeline("shop")
    pipeline.stream(read="orders", write="paid")(one)
    with pytest.raises(Exists, match="name="):
        pipeline.table(read="paid", path="/tables/paid")(one)
    with pytest.raises(Invalid, match="no name for a pipeline"):
        Pipeline("my shop")


@pytest.mark.parametrize(("path", "partition_by"), [(" ", None), ("/t", [1])])
def test_tables_have_a_path_and_columns(path: str, partition_by: Any) -> None:
    with pytest.raises(Invalid):
        Pipeline("shop").table(read="paid", path=path, partition_by=partition_by)


@pytest.mark.parametrize(
    ("start", "fixed"), [(None, True), ("earliest", True), ("latest", False), ("2026-01-31", False)]
)
def test_a_start_that_moves_is_known(start: str | None, fixed: bool) -> None:
    assert declared(start=start).settings.start_is_fixed is fixed


def test_declaring_imports_no_spark() -> None:
    code = """
import sys
from detent.spark import Pipeline, queue
pipeline = Pipeline("shop")
@pipeline.stream(read=queue("orders"), write="paid", json="id BIGINT")
def paid(orders): return orders
print(sorted(name for name in ("pyspark", "pandas", "pyarrow") if name in sys.modules))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_update_mode_into_a_table_names_the_key() -> None:
    pipeline = Pipeline("p")
    with pytest.raises(Invalid, match="merge_on"):
        pipeline.table(read="a", path="t", mode="update")(one)
    with pytest.raises(Invalid, match="merge_on"):
        pipeline.stream(read="a", write=to_delta("t"), mode="update")(one)
    for bad in ("id", [1]):
        with pytest.raises(Invalid, match="merge_on is a list"):
            pipeline.table(read="a", path="t", merge_on=bad)  # type: ignore[arg-type]
    pipeline.table(read="a", path="t", mode="update", merge_on=["id"], name="one")(one)
    pipeline.stream(read="a", write=to_delta("u", merge_on=["id"]), mode="update", name="two")(one)
    pipeline.table(read="a", path="v", mode="complete", name="three")(one)
    pipeline.stream(read="a", write="b", mode="update", name="four")(one)
    assert len(pipeline.streams) == 4
