"""Spans for OpenTelemetry, from a publish to its effect; nothing where a program has not set it up.

A message carries its trace in the headers `traceparent` and `tracestate`, as W3C's Trace Context says. What publishes
or appends makes a span of the kind PRODUCER and puts its context there; what handles the message makes one of the kind
CONSUMER, as a child of it, and what is published meanwhile goes on with that. Names and attributes are those of
OpenTelemetry's conventions for messaging. A message that has a `traceparent` keeps it.

A program sets OpenTelemetry up by giving it a tracer provider (`opentelemetry.trace.set_tracer_provider`, or its
launcher `opentelemetry-instrument`). Where the package was never imported, all this is one look into a dictionary.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, Literal

PARENT: Final = "traceparent"
STATE: Final = "tracestate"

SYSTEM: Final = "detent"

LINKS_MAX: Final = 128
"""Messages of a batch that its span is linked with: as many as OpenTelemetry keeps unless it is told otherwise."""

STATE_CHARACTERS_MAX: Final = 512
"""Of a `tracestate` that a request brings: what W3C asks every system to pass on."""

BYTES_MAX: Final = 7 << 10
COUNT_MAX: Final = 250
"""Headers of a message that leave room for those of its trace: a queue takes 8 KiB and 255 of them. A message with more
travels without its trace, as it would be refused with it."""

NOTHING: Final[AbstractContextManager[None]] = nullcontext()
"""In the place of a span, where there are none."""

_PARENT_FORM: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_HEADERS: Final[dict[str, str]] = {}

asked: ContextVar[dict[str, str]] = ContextVar("detent_asked_trace", default=_NO_HEADERS)
"""The trace of the request that is being answered, in a server that makes no spans itself."""


_modules: Final = sys.modules
_PACKAGE: Final = "opentelemetry.trace"


def tracer() -> Any:
    """What makes spans; None unless the program has set OpenTelemetry up."""
    return _tracer(_modules[_PACKAGE]) if _PACKAGE in _modules else None


def _tracer(module: Any) -> Any:
    try:
        provider = module.get_tracer_provider()
    except AttributeError:  # another thread is importing it at this moment
        return None
    if isinstance(provider, (module.ProxyTracerProvider, module.NoOpTracerProvider)):
        return None
    return _tracer_of(provider)


@functools.lru_cache(maxsize=4)
def _tracer_of(provider: Any) -> Any:
    return provider.get_tracer("detent")


@functools.cache
def _form() -> Any:
    """How contexts are written into headers and read from them."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


# -- headers --------------------------------------------------------------------------------------------------------


def carried() -> dict[str, str]:
    """The headers by which a message that is sent now carries its trace; none where there is no trace."""
    if _PACKAGE not in _modules or tracer() is None:
        return asked.get()
    headers: dict[str, str] = {}
    _form().inject(headers)
    return headers or asked.get()


def with_trace(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The headers of a message, with its trace. One that has a trace keeps it."""
    carries = asked.get() if _PACKAGE not in _modules else carried()
    if not carries or (headers and not _has_room(headers)):
        return headers
    return {**(headers or {}), **carries}


def _has_room(headers: Mapping[str, str]) -> bool:
    """Whether a trace can be added. What are no headers is refused later, where all headers are checked."""
    if not isinstance(headers, Mapping) or PARENT in headers or len(headers) > COUNT_MAX:
        return False
    texts = [*headers, *headers.values()]
    return set(map(type, texts)) == {str} and sum(len(text.encode(errors="replace")) for text in texts) <= BYTES_MAX


def context_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace that a request's headers name; none if they name none, or not as W3C says."""
    if PARENT not in headers:
        return _NO_HEADERS
    parent, state = headers.get(PARENT, ""), headers.get(STATE, "")
    if not _PARENT_FORM.fullmatch(parent):
        return _NO_HEADERS
    is_plain = state and len(state) <= STATE_CHARACTERS_MAX and state.isascii() and state.isprintable()
    return {PARENT: parent, STATE: state} if is_plain else {PARENT: parent}


# -- spans ----------------------------------------------------------------------------------------------------------


def sending(
    operation: str,
    destination: str,
    count: int = 1,
    *,
    carriers: Iterable[Mapping[str, str]] = (),
    kind: Literal["send", "create"] = "send",
) -> AbstractContextManager[Any]:
    """The span of sending so many messages, or of creating one that is sent later: around building them, too, since
    they carry it. Messages that were built before are the `carriers`: it goes on with their trace."""
    if _PACKAGE not in _modules or (found := tracer()) is None:
        return NOTHING
    producer = sys.modules["opentelemetry.trace"].SpanKind.PRODUCER
    parent, links = _before(carriers, count)
    about = _about(operation, kind, destination, count)
    return _spanned(found, f"{operation} {destination}".rstrip(), producer, about, parent, links)


def processing(
    destination: str,
    carriers: Iterable[Mapping[str, str]],
    *,
    group: str = "",
    message: str = "",
    count: int = 1,
    operation: str = "process",
    more: Mapping[str, str | int] | None = None,
) -> AbstractContextManager[Any]:
    """The span of what becomes of messages, whose headers are the `carriers`: it goes on with the trace of one message,
    and is linked with those of several. `group` is who handles them, `message` which one it is."""
    if _PACKAGE not in _modules or (found := tracer()) is None:
        return NOTHING
    trace = sys.modules["opentelemetry.trace"]
    about = {**_about(operation, "process", destination, count), **(more or {})}
    if group:
        about["messaging.consumer.group.name"] = group
    if message:
        about["messaging.message.id"] = message
    parent, links = _before(carriers, count)
    return _spanned(found, f"{operation} {destination}".rstrip(), trace.SpanKind.CONSUMER, about, parent, links)


def _before(carriers: Iterable[Mapping[str, str]], count: int) -> tuple[Any, Sequence[Any]]:
    """What a span goes on with, or what it is linked with."""
    trace = sys.modules["opentelemetry.trace"]
    contexts = [_form().extract(headers) for headers in islice(carriers, LINKS_MAX) if PARENT in headers]
    if count == 1 and len(contexts) == 1:
        return contexts[0], ()
    spans = (trace.get_current_span(context).get_span_context() for context in contexts)
    return None, tuple(trace.Link(span) for span in spans if span.is_valid)


def _about(operation: str, kind: str, destination: str, count: int) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if destination:
        about["messaging.destination.name"] = destination
    if count != 1:  # by the conventions, one message is not a batch
        about["messaging.batch.message_count"] = count
    return about


@contextmanager
def _spanned(
    tracer: Any, name: str, kind: Any, about: Mapping[str, str | int], parent: Any, links: Sequence[Any]
) -> Iterator[Any]:
    with tracer.start_as_current_span(name, parent, kind, about, links) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def failed(span: Any, error: BaseException) -> None:
    """What a span is about has failed, and the error goes no further."""
    if span is None:
        return
    status = sys.modules["opentelemetry.trace"].StatusCode.ERROR
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(status, f"{type(error).__name__}: {error}")


def traced(function: Callable[..., Any], span_of: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    """A function of the user with a span around each call; `span_of` makes it from the call's arguments. What a
    coroutine function does is in it, too."""
    if inspect.iscoroutinefunction(function):

        async def awaited(*arguments: Any) -> Any:
            with span_of(*arguments):
                return await function(*arguments)

        return awaited

    def plain(*arguments: Any) -> Any:
        with span_of(*arguments):
            return function(*arguments)

    return plain
