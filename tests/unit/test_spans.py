"""Headers of traces: what a request may bring, and what a message keeps."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from detent import spans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, {}),
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": PARENT, "tracestate": "a" * 513}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a\nb"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "é"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT.upper()}, {}),
        ({"traceparent": PARENT + "\n"}, {}),
        ({"traceparent": PARENT + "0"}, {}),
        ({"traceparent": "nonsense", "tracestate": "a=1"}, {}),
        ({"tracestate": "a=1"}, {}),
    ],
)
def test_trace_of_a_request_is_taken_only_as_w3c_writes_it(headers: dict[str, str], found: dict[str, str]) -> None:
    assert spans.context_of(headers) == found


def test_message_keeps_the_trace_that_it_has() -> None:
    token = spans.asked.set({"traceparent": PARENT, "tracestate": "a=1"})
    try:
        assert spans.with_trace(None) == {"traceparent": PARENT, "tracestate": "a=1"}
        assert spans.with_trace({"x": "y"}) == {"x": "y", "traceparent": PARENT, "tracestate": "a=1"}
        own = {"traceparent": PARENT.replace("b7", "00")}
        assert spans.with_trace(own) is own
    finally:
        spans.asked.reset(token)


@pytest.mark.parametrize(
    "headers",
    [{"x": "y" * spans.BYTES_MAX}, {str(number): "" for number in range(spans.COUNT_MAX + 1)}, {"x": 1}, ["x"], "x"],
)
def test_message_whose_headers_leave_no_room_travels_without_its_trace(headers: Any) -> None:
    token = spans.asked.set({"traceparent": PARENT})
    try:
        assert spans.with_trace(headers) is headers
    finally:
        spans.asked.reset(token)


def test_nothing_is_made_where_there_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"x": "y"}
    for has_package in (True, False):
        if not has_package:
            monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
        assert spans.tracer() is None
        assert spans.with_trace(headers) is headers
        assert spans.carried() == {}
        assert spans.sending("publish", "q") is spans.NOTHING
        assert spans.processing("q", [headers]) is spans.NOTHING
