"""Spans of a process of a test, in memory: `recorded()` sets OpenTelemetry up for the process, so it belongs into a
child; what it answers is a list of spans as JSON can hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def recorded() -> Callable[[], list[dict[str, Any]]]:
    """Begin to record; the function that answers what was recorded so far."""
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    trace.set_tracer_provider(provider)
    return lambda: [shown(span) for span in exported.get_finished_spans()]


def shown(span: ReadableSpan) -> dict[str, Any]:
    """One span; its ids as `traceparent` writes them."""
    assert span.context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "flags": f"{span.context.trace_flags:02x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "about": dict(span.attributes or {}),
        "status": span.status.status_code.name,
    }
