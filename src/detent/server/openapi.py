"""The OpenAPI 3.1 document of the HTTP API, made from its table of routes: what is not there is not in it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from detent.names import NAME_MAX, NAME_PATTERN, TEXT_NAME_BYTES_MAX
from detent.remote.wire import PROBLEM_TYPE, Problem
from detent.schedule.operations import NAME_MAX as SCHEDULE_NAME_MAX
from detent.server.http import JSON
from detent.server.models import NUMBER_MAX
from detent.server.route import ARROW, Route

TITLE: Final = "Detent"
VERSION: Final = "1"
DESCRIPTION: Final = """Queues and journals in which each message takes effect exactly once.

Names of queues, journals and schedules stand percent-encoded in the path (`orders/eu` is `orders%2Feu`). Durations are
text such as "30s", or numbers of seconds; times are ISO 8601. An error's body says its name and what to do."""

ALWAYS: Final = (400, 401, 403, 405, 413, 429, 500, 503)
"""What any request may be answered with; 405 if it has another method than the document says."""

ERRORS: Final = {
    400: "The request is malformed; nothing was changed.",
    401: "This server wants to know who asks, and there are no credentials, or they are not known here.",
    403: "The caller may not do this; nothing was changed.",
    404: "What was named does not exist.",
    405: "This path is not asked with this method.",
    409: "It exists already, or a check failed; nothing was changed.",
    410: "A receipt is stale: its lease is over, and another consumer has the message, or will. Or the caller was "
    "replaced by a later one. Nothing was changed.",
    413: "A limit was reached; nothing was changed.",
    415: "The body is of a type that is not taken here.",
    429: "Too much waits already; the same request may succeed in a moment.",
    500: "Stored bytes are damaged, or the server has a fault.",
    503: "The store cannot answer now; whether the request was applied may be unknown.",
}

_NAME_SCHEMA: Final = {"type": "string", "maxLength": NAME_MAX, "pattern": f"^{NAME_PATTERN}$"}
_PARAMETERS: Final = {
    "queue": ("The queue's name.", _NAME_SCHEMA),
    "journal": ("The journal's name.", _NAME_SCHEMA),
    "schedule": ("The schedule's name.", {**_NAME_SCHEMA, "maxLength": SCHEDULE_NAME_MAX}),
    "consumer": ("The consumer's name.", {"type": "string", "minLength": 1, "maxLength": TEXT_NAME_BYTES_MAX}),
    "message": ("The message's number.", {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}),
}
_KEY_PARAMETER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The dedup key of the one message of the request, if it has none itself.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_HEADERS: Final = {
    401: ("WWW-Authenticate", "How to say who asks.", {"type": "string"}),
    405: ("Allow", "The methods that it is asked with.", {"type": "string"}),
    429: ("Retry-After", "Seconds to wait.", {"type": "integer"}),
    503: ("Retry-After", "Seconds to wait.", {"type": "integer"}),
}
"""What the headers of errors say."""

_REF: Final = "#/components/schemas/{name}"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document."""
    listed = list(routes)
    kinds = [kind for route in listed for kind in (route.body, route.answer, route.query) if kind is not None]
    schemas, components = msgspec.json.schema_components([*kinds, Problem], ref_template=_REF)
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=False)}
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    for route in listed:
        if route.query is not None:
            components.pop(route.query.__name__, None)  # its fields are parameters
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _problem(status, text) for status, text in ERRORS.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "description": _description(route),
        "tags": [route.path.split("/")[2] if route.path.startswith("/v1/") else "document"],
        "security": [{}, {"bearer": []}],  # a server without credentials takes any caller
        "responses": _responses(route, schemas),
    }
    parameters = _parameters(route, components)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": schemas[id(route.body)]}}
        if route.bulk is not None:
            content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _description(route: Route) -> str:
    text = " ".join((inspect.getdoc(route.handler) or "").split())
    if route.need is None:
        return text
    right = "any right" if route.need == "any" else f"the right `{route.need}`"
    return f"{text} Needs {right} on the {route.kind or 'whole store'}."


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in (route.status, *route.other_statuses):
        response: dict[str, Any] = {"description": route.summary}
        if route.answer is not None:
            response["content"] = {JSON: {"schema": schemas[id(route.answer)]}}
        if route.arrow:
            response["content"][ARROW] = {"schema": {"type": "string", "format": "binary"}}
        responses[str(status)] = response
    wrong_type = () if route.body is None else (415,)
    for status in sorted({*ALWAYS, *route.errors, *wrong_type}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _problem(status: int, text: str) -> dict[str, Any]:
    problem: dict[str, Any] = {
        "description": text,
        "content": {PROBLEM_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    if status in _HEADERS:
        name, meaning, schema = _HEADERS[status]
        problem["headers"] = {name: {"description": meaning, "schema": schema}}
    return problem


def _parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, (text, schema) in _PARAMETERS.items():
        if f"{{{name}}}" in route.path:
            found.append({"name": name, "in": "path", "required": True, "description": text, "schema": schema})
    if route.query is not None:
        for name, schema in components[route.query.__name__]["properties"].items():
            found.append({"name": name, "in": "query", "schema": _without_null(schema)})
    if route.takes_key:
        found.append(_KEY_PARAMETER)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A field of a query is there or not, and never null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name not in {"anyOf", "default"}}, **kinds[0]}
