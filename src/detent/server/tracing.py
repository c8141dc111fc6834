"""Spans for OpenTelemetry, by its conventions for messaging; nothing where it is not installed.

A request's span goes on with the trace that its headers name. What was done to which queue or journal is known only
when a part has looked at the request, so the span gets its name at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from detent.server.http import Request

SYSTEM: Final = "detent"

_TYPES: Final = {
    "publish": "send",
    "append": "send",
    "claim": "receive",
    "read": "receive",
    "ack": "settle",
    "fail": "settle",
    "extend": "settle",
}
"""Our verbs, and the types of operations of the conventions."""


def find_tracing() -> Tracing | None:
    """Tracing, if OpenTelemetry is installed and somebody has said where the spans go."""
    try:
        from opentelemetry import propagate, trace
    except ModuleNotFoundError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None  # spans that nobody sees still cost a few microseconds each
    return Tracing(trace.get_tracer("detent.server"), propagate.extract, trace.SpanKind.SERVER)


class Tracing:
    """Makes the spans."""

    def __init__(self, tracer: Any, extract: Callable[[dict[str, str]], Any], kind: Any) -> None:
        self._tracer = tracer
        self._extract = extract
        self._kind = kind

    @contextmanager
    def span(self, request: Request) -> Iterator[Callable[[int], None]]:
        """The span of a request; tell it the status at the end."""
        context = self._extract(request.headers)
        with self._tracer.start_as_current_span(request.method, context, self._kind) as span:
            yield lambda status: _describe(span, request, status)


def _describe(span: Any, request: Request, status: int) -> None:
    span.set_attribute("http.request.method", request.method)
    span.set_attribute("http.response.status_code", status)
    if not request.operation:
        return
    span.update_name(f"{request.operation} {request.destination}".rstrip())
    span.set_attribute("messaging.system", SYSTEM)
    span.set_attribute("messaging.operation.name", request.operation)
    if request.operation in _TYPES:
        span.set_attribute("messaging.operation.type", _TYPES[request.operation])
    if request.destination:
        span.set_attribute("messaging.destination.name", request.destination)
