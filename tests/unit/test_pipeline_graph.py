"""A pipeline as a graph: order, circles, and how it is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Invalid, NotFound
from detent.spark.pipeline import (
    Pipeline,
    as_json,
    as_mermaid,
    as_text,
    chosen,
    circles,
    feeds,
    journals_read,
    journals_written,
    ordered,
    queue,
    queues_used,
)


def pipeline_of(*edges: tuple[str, Any, Any], **options: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    for name, read, write in edges:
        pipeline.stream(read=read, write=write, name=name, **options)(lambda frame: frame)
    return pipeline


def order(pipeline: Pipeline) -> list[str]:
    return [stream.name for stream in ordered(pipeline.streams)]


def test_what_is_upstream_comes_first() -> None:
    assert order(pipeline_of(("c", "b", "c"), ("b", "a", ["b", queue("q")]), ("d", queue("q"), "d"))) == ["b", "c", "d"]
    assert order(pipeline_of(("all", "shop/*", "out"), ("one", "in", "shop/1"))) == ["one", "all"]


def test_a_circle_runs_in_the_order_of_its_declaration() -> None:
    pipeline = pipeline_of(("after", "b", "end"), ("y", "a", "b"), ("x", "b", "a"), ("before", "start", "a"))
    assert order(pipeline) == ["before", "y", "after", "x"]
    assert circles(pipeline) == ["y", "x"]
    assert "note: messages of y, x can come back to them" in as_text(pipeline)


names = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(names, names), max_size=8))
def test_every_stream_runs_once_and_after_all_that_feed_it(pairs: list[tuple[str, str]]) -> None:
    pipeline = pipeline_of(*((f"s{i}", read, write) for i, (read, write) in enumerate(pairs) if read != write))
    found = ordered(pipeline.streams)
    assert sorted(stream.name for stream in found) == sorted(stream.name for stream in pipeline.streams)
    if not circles(pipeline):
        for place, stream in enumerate(found):
            assert not any(feeds(later, stream) for later in found[place + 1 :])


def test_some_streams_can_be_chosen() -> None:
    pipeline = pipeline_of(("c", "b", "c"), ("b", "a", "b"))
    assert [stream.name for stream in chosen(pipeline, ["c", "b"])] == ["b", "c"]
    with pytest.raises(NotFound, match="there are b, c"):
        chosen(pipeline, ["d"])
    with pytest.raises(Invalid, match="has no streams"):
        chosen(Pipeline("empty"), None)


def test_what_has_to_be_there_is_listed() -> None:
    streams = pipeline_of(("x", ["a", "p*"], ["b", queue("q")]), ("y", "b", "c"), json="id BIGINT").streams
    assert journals_read(streams) == ["a", "b"], "a pattern waits for what comes"
    assert journals_written(streams) == ["b", "shop/x.quarantine", "c", "shop/y.quarantine"]
    assert queues_used(streams) == ["q"]


def test_it_is_shown_as_text_mermaid_and_json() -> None:
    pipeline = pipeline_of(("x", "a", "b"), json="id BIGINT")
    pipeline.table(read=queue("q"), path='/t/"1"#', name="t")(lambda frame: frame)
    assert as_text(pipeline).splitlines() == [
        "pipeline shop",
        "  x  a -> b  (what does not match: shop/x.quarantine)",
        '  t  queue q -> table /t/"1"#',
    ]
    assert as_mermaid(pipeline).splitlines() == [
        "flowchart LR",
        '    s0{{"x"}}',
        '    n0["a"]',
        "    n0 --> s0",
        '    n1["b"]',
        "    s0 --> n1",
        '    n2["shop/x.quarantine"]',
        "    s0 -.-> n2",
        '    s1{{"t"}}',
        '    n3[/"q"/]',
        "    n3 --> s1",
        '    n4[("/t/#quot;1#quot;#35;")]',
        "    s1 --> n4",
    ]
    found = as_json(pipeline)
    assert found["streams"][1] == {
        "name": "t",
        "read": [{"kind": "queue", "name": "q"}],
        "write": [{"kind": "delta", "path": '/t/"1"#'}],
        "quarantine": None,
    }
