"""Detent's HTTP API: JSON for programs in any language, as a part of the server.

A table of routes says what can be asked, who may ask it and what travels; dispatch, rights and the OpenAPI document
(GET /openapi.json) all come from it. Below a name's segment of the path nothing is decoded and nothing is joined: a
name that contains a slash has it as %2F, so no name can lead anywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from detent.durations import Duration, milliseconds
from detent.errors import DetentError, Invalid, NotFound
from detent.names import check_name, check_text_name
from detent.remote.wire import PROBLEM_TYPE, Problem
from detent.server import (
    api_consumers,
    api_journals,
    api_journey,
    api_ledgers,
    api_queues,
    api_schedules,
    api_search,
    api_series,
    api_store,
    api_transaction,
    jsonbody,
    openapi,
    tracing,
)
from detent.server.access import Caller
from detent.server.app import refusal
from detent.server.arrow import STREAM_BYTES_MAX
from detent.server.http import JSON, JSON_BYTES_MAX, HttpRequest, Response
from detent.server.limits import LARGE_BYTES, ClaimSizes
from detent.server.receipts import QueueNumbers
from detent.server.route import ARROW, ApiCall, Route, Service
from detent.server.series import Series

if TYPE_CHECKING:
    from detent.store import AsyncStore

WAIT_MAX: Final = "60s"
"""How long a request may wait for something to come: proxies end connections that stay silent for longer."""

MESSAGE_CHARS_MAX: Final = 2_000
"""What an error may say: many repeat what was wrong, and that may be megabytes."""

DOCUMENT_PATH: Final = "/openapi.json"

_NAME_PLACE: Final = 3
"""Where the name stands between the slashes of a path: /v1/queues/NAME/claim."""

_encode: Final = msgspec.json.Encoder().encode


async def show_document(call: ApiCall[None, None]) -> Response:
    """This document."""
    del call
    return Response(_document)


ROUTES: Final = (
    *api_queues.ROUTES,
    *api_journals.ROUTES,
    *api_transaction.ROUTES,
    *api_schedules.ROUTES,
    *api_consumers.ROUTES,
    *api_ledgers.ROUTES,
    *api_store.ROUTES,
    *api_search.ROUTES,
    *api_journey.ROUTES,
    *api_series.ROUTES,
    Route("GET", DOCUMENT_PATH, show_document, "The API, in OpenAPI 3.1", None, dict[str, Any], errors=()),
)
"""All that can be asked."""

_document: Final = _encode(openapi.document(ROUTES))


def _key(path: str) -> bytes:
    """A path as the table has it: with braces where the name stands."""
    parts = path.split("/")
    if len(parts) > _NAME_PLACE:
        parts[_NAME_PLACE] = "{}"
    return "/".join(parts).encode()


_TABLE: Final[dict[bytes, dict[str, Route]]] = {}
for _route in ROUTES:
    _TABLE.setdefault(_key(_route.path), {})[_route.method] = _route

_OWNED: Final = frozenset(route.path.split("/")[2].encode() for route in ROUTES if route.path != DOCUMENT_PATH)


class Api:
    """The API over a store. `close` ends the requests that wait for something, so that a server can stop; `stale` is
    called for each receipt that is refused as stale before the engine sees it."""

    name = "api"

    def __init__(
        self,
        store: AsyncStore,
        *,
        wait_max: Duration = WAIT_MAX,
        stale: Callable[[], None] | None = None,
        series: Series | None = None,
    ) -> None:
        numbers = QueueNumbers(store, stale)
        self._service = Service(store, numbers, asyncio.Event(), milliseconds(wait_max), ClaimSizes(), series)

    async def close(self) -> None:
        """Answer everybody who waits, with what there is."""
        self._service.closing.set()

    def owns(self, request: HttpRequest) -> bool:
        """Whether this is below one of the routes; or the document."""
        parts = request.raw_path.split(b"/", 3)
        if len(parts) > 2:
            return parts[0] == b"" and parts[1] == b"v1" and parts[2] in _OWNED
        return request.raw_path == DOCUMENT_PATH.encode()

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Find the route, see that the caller may, take the request apart, and have it answered."""
        parts = request.raw_path.split(b"/")
        segment = b""
        if len(parts) > _NAME_PLACE:
            segment, parts[_NAME_PLACE] = parts[_NAME_PLACE], b"{}"
        routes = _TABLE.get(b"/".join(parts))
        if routes is None:
            raise NotFound(f"there is no {request.method} {request.path} here; {DOCUMENT_PATH} says what there is")
        route = routes.get(request.method)
        if route is None:
            return _not_allowed(request, routes)
        name = _decode_name(segment, route)
        request.operation, request.destination = route.handler.__name__, name
        route.authorize(caller, name)
        query = _query(request, route)
        body: Any = None
        handler = route.handler
        if route.body is not None:
            if request.content_type == ARROW and route.bulk is not None:
                handler = route.bulk
                body = await request.body(STREAM_BYTES_MAX)
            elif request.content_type == JSON:
                body = await _json(request, route)
            else:
                return _wrong_type(request, route)
        done = await handler(ApiCall(self._service, route, request, caller, name, body, query))
        return done if isinstance(done, Response) else Response(_encode(done), status=route.status)

    async def ask(
        self,
        request: HttpRequest,
        caller: Caller,
        method: str,
        path: str,
        name: str = "",
        *,
        query: dict[str, str],
        body: Any = None,
    ) -> Any:
        """Have a route answer a part of this server, as a caller would be: with its rights and limits. The answer is
        what the route's answer is made of, or None."""
        route = _TABLE[_key(path)][method]
        _check_name(name, route)
        request.operation, request.destination = route.handler.__name__, name
        route.authorize(caller, name)
        asked = None if route.query is None else jsonbody.convert_query(query, route.query)
        given = None if route.body is None else jsonbody.decode(_encode(body), route.decoder)
        done = await route.handler(ApiCall(self._service, route, request, caller, name, given, asked))
        if not isinstance(done, Response):
            return done
        if route.answer is None or not isinstance(done.body, bytes):
            return None
        return msgspec.json.decode(done.body, type=route.answer)

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """An error as its name and what it says."""
        tracing.note(request, tracing.ERROR_TYPE, type(error).__name__)
        message = str(error)
        if len(message) > MESSAGE_CHARS_MAX:
            error = type(error)(f"{message[: MESSAGE_CHARS_MAX // 2]} … {message[-MESSAGE_CHARS_MAX // 2 :]}")
        return refusal(error)


def _decode_name(segment: bytes, route: Route) -> str:
    """The name in a path, decoded once."""
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the name in this path is not UTF-8: {error}") from error
    _check_name(name, route)
    return name


def _check_name(name: str, route: Route) -> None:
    """`Invalid` unless what a path names can be a name of its kind."""
    if route.kind == "consumer":
        check_text_name(name, route.kind)
    elif route.kind is not None:
        check_name(name, route.kind)


def _query(request: HttpRequest, route: Route) -> Any:
    if route.query is not None:
        return jsonbody.convert_query(request.query(), route.query)
    if request.raw_query:
        raise Invalid(f"{route.method} {route.path} takes no query")
    return None


async def _json(request: HttpRequest, route: Route) -> Any:
    body = await request.body(JSON_BYTES_MAX)
    if len(body) < LARGE_BYTES:
        return jsonbody.decode(body, route.decoder)
    return await asyncio.to_thread(jsonbody.decode, body, route.decoder)


def _not_allowed(request: HttpRequest, routes: dict[str, Route]) -> Response:
    allowed = ", ".join(sorted(routes))
    problem = Problem("NotAllowed", f"{request.path} takes {allowed}, not {request.method}")
    return Response(_encode(problem), status=405, type=PROBLEM_TYPE, headers={"allow": allowed})


def _wrong_type(request: HttpRequest, route: Route) -> Response:
    taken = f"{JSON} or {ARROW}" if route.bulk is not None else JSON
    problem = Problem("WrongType", f"the body has to be {taken}, not {request.content_type or 'of no type'}")
    return Response(_encode(problem), status=415, type=PROBLEM_TYPE)
