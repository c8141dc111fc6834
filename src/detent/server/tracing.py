"""Spans for OpenTelemetry, by its conventions for messaging; nothing where it is not installed.

A request's span goes on with the trace that its headers name. What was done to which queue or journal is known only
when a part has looked at the request, so the span gets its name at the end. Parts say what they know by `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from detent.engine import Operation
from detent.errors import Invalid
from detent.journal import operations as journals
from detent.queue import operations as queues
from detent.remote.asgi import REQUESTS
from detent.server.http import HttpRequest

SYSTEM: Final = "detent"

BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
OPERATION_TYPE: Final = "messaging.operation.type"

NOTES: Final = "detent.trace"
"""Where a request's scope has what parts have noted: attributes of its span."""

_TYPES: Final = {
    "publish": "send",
    "publish_anywhere": "send",
    "append": "send",
    "claim": "receive",
    "read": "receive",
    "ack": "settle",
    "fail": "settle",
    "extend": "settle",
    "SendMessage": "send",
    "SendMessageBatch": "send",
    "ReceiveMessage": "receive",
    "DeleteMessage": "settle",
    "DeleteMessageBatch": "settle",
    "ChangeMessageVisibility": "settle",
    "ChangeMessageVisibilityBatch": "settle",
}
"""Our verbs, those of SQS, and the types of operations of the conventions."""

_VERBS: Final[dict[type[Operation], str]] = {
    queues.Publish: "publish",
    queues.Claim: "claim",
    queues.Ack: "ack",
    queues.Fail: "fail",
    queues.Extend: "extend",
    journals.Append: "append",
    journals.AppendPacked: "append",
    journals.AppendStamped: "append",
    journals.AppendBatch: "append",
    journals.AdoptFragments: "append",
}
"""The operations that move messages."""

_NATIVE: Final = {
    ("POST", "/v1/transactions"): "commit",
    ("GET", "/v1/native/wait/queue"): "wait",
    ("GET", "/v1/native/wait/journal"): "wait",
    ("GET", "/v1/native/journals/committed"): "read",
    ("GET", "/v1/native/journals/uncommitted"): "read",
}
"""What the requests of Detent's own clients are about, where that is messages."""


def find_tracing() -> Tracing | None:
    """Tracing, if OpenTelemetry is installed and its environment says where the spans go."""
    try:
        from opentelemetry import propagate, trace
    except ModuleNotFoundError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None  # spans without a receiver still cost a few microseconds each
    # A span's kind is said when it begins, before it is known what is asked; and PRODUCER and CONSUMER are what the
    # programs that send and receive call theirs, of whose requests these are the other end.
    return Tracing(trace.get_tracer("detent.server"), propagate.extract, trace.SpanKind.SERVER)


def note(request: HttpRequest, attribute: str, value: str | int) -> None:
    """Something that a part knows of a request, for its span."""
    request.scope.setdefault(NOTES, {})[attribute] = value


def note_operations(request: HttpRequest, operations: Sequence[Operation]) -> None:
    """What a transaction does: it settles if it settles anything, and sends or receives if that is all."""
    types = {_TYPES[verb] for verb in map(_VERBS.get, map(type, operations)) if verb is not None}
    for kind in ("settle", "send", "receive"):
        if kind in types:
            note(request, OPERATION_TYPE, kind)
            break
    counts = [_count(operation) for operation in operations if type(operation) in _VERBS]
    known = [count for count in counts if count is not None]
    if known and len(known) == len(counts):
        note(request, BATCH_COUNT, sum(known))


class Tracing:
    """Makes the spans."""

    def __init__(self, tracer: Any, extract: Callable[[dict[str, str]], Any], kind: Any) -> None:
        self._tracer = tracer
        self._extract = extract
        self._kind = kind

    @contextmanager
    def span(self, request: HttpRequest) -> Iterator[Callable[[int], None]]:
        """The span of a request; tell it the status at the end."""
        context = self._extract(request.headers)
        with self._tracer.start_as_current_span(request.method, context, self._kind) as span:
            try:
                yield lambda status: _describe(span, request, status)
            except Exception as error:
                span.set_attribute(ERROR_TYPE, type(error).__qualname__)
                raise


def _describe(span: Any, request: HttpRequest, status: int) -> None:
    notes: dict[str, str | int] = {}
    operation, destination = request.operation, request.destination
    if not operation:
        operation, destination = _native(request)
    notes.update(request.scope.get(NOTES, {}))
    span.set_attribute("http.request.method", request.method)
    span.set_attribute("http.response.status_code", status)
    if status >= 400:
        span.set_attribute(ERROR_TYPE, notes.get(ERROR_TYPE, str(status)))
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)  # what a client does wrong is not an error of the server's span
    if not operation:
        return
    span.update_name(f"{operation} {destination}".rstrip())
    span.set_attribute("messaging.system", SYSTEM)
    span.set_attribute("messaging.operation.name", operation)
    if kind := notes.get(OPERATION_TYPE, _TYPES.get(operation)):
        span.set_attribute(OPERATION_TYPE, kind)
    if destination:
        span.set_attribute("messaging.destination.name", destination)
    if notes.get(BATCH_COUNT, 1) != 1:  # by the conventions, one message is not a batch
        span.set_attribute(BATCH_COUNT, notes[BATCH_COUNT])


def _native(request: HttpRequest) -> tuple[str, str]:
    """The verb of a request of Detent's own clients, and the queue or journal, if it names one."""
    verb = _NATIVE.get((request.method, request.path), "")
    if verb == "commit":
        return _transactions(request)
    if not verb:
        return "", ""
    try:
        fields = request.query()
    except Invalid:
        return verb, ""
    return verb, fields.get("queue") or fields.get("journal") or ""


def _transactions(request: HttpRequest) -> tuple[str, str]:
    """Transactions that all do one thing have its verb; those that do it to one queue or journal have its name."""
    requests = request.scope.get(REQUESTS, ())
    operations = [operation for one in requests for operation in getattr(one, "operations", ())]
    note_operations(request, operations)
    verbs = {_VERBS.get(type(operation), "commit") for operation in operations}
    names = {_destination(operation) for operation in operations}
    return verbs.pop() if len(verbs) == 1 else "commit", names.pop() if len(names) == 1 else ""


def _destination(operation: Any) -> str:
    named = operation.to if isinstance(operation, queues.Publish) else None
    for field in ("queue", "journal"):
        named = named or getattr(operation, field, "")
    return named if isinstance(named, str) else ""


def _count(operation: Any) -> int | None:
    """How many messages an operation is about, if it says so itself."""
    if isinstance(operation, queues.Publish):
        return len(operation.bodies)
    if isinstance(operation, queues.Ack | queues.Fail | queues.Extend):
        return len(operation.messages)
    return len(operation.bodies) if isinstance(operation, journals.Append) else None
