"""The OpenAPI document: it is valid, it has every route, and the server does what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from openapi_spec_validator import OpenAPIV31SpecValidator

from detent.server.api import ROUTES, Api
from detent.server.app import refusal
from detent.server.keys import Unauthenticated
from detent.server.route import Route
from detent.shard import operations as shards
from httpserver import HttpServer, serve

EXAMPLES = 100 if os.environ.get("DETENT_SOAK") else 8
"""Requests of each kind for each operation, of which the first ones have every field."""

NAMES = {"queue": "name", "journal": "name", "consumer": "name", "schedule": "name", "message": 0}
ASKED = [route for route in ROUTES if "{" in route.path or route.body is not None or route.query is not None]
"""Routes that can be asked in more than one way."""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    """A server with something in it. Nobody waits there: a request that wants to is refused."""
    with serve("memory:", lambda store: [Api(store, wait_max="0s")]) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: HttpServer) -> dict[str, Any]:
    answer = server.client.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_every_route_is_in_the_document_and_nothing_else(document: dict[str, Any]) -> None:
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_operation_says_what_it_does_takes_and_answers(route: Route, document: dict[str, Any]) -> None:
    operation = document["paths"][route.path][route.method.lower()]
    assert operation["summary"]
    assert operation["description"]
    assert {"bearer": []} in operation["security"]
    assert ("requestBody" in operation) == (route.body is not None)
    assert str(route.status) in operation["responses"]
    assert {"400", "401", "403", "405", "413", "429", "503"} <= set(operation["responses"])
    named = set(re.findall(r"{(\w+)}", route.path))
    assert named == {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
    if route.need is not None:
        assert "right" in operation["description"]


def test_every_schema_and_operation_has_a_name_of_its_own_and_a_description(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), name


def test_what_an_error_says_in_its_headers_is_in_the_document(server: HttpServer, document: dict[str, Any]) -> None:
    errors = document["components"]["responses"]
    answer = server.client.post("/v1/queues/q")
    assert (answer.status_code, set(errors["405"]["headers"])) == (405, {"Allow"})
    assert answer.headers["allow"]
    unknown = refusal(Unauthenticated("who are you?"))
    assert (unknown.status, set(errors["401"]["headers"])) == (401, {"WWW-Authenticate"})
    assert unknown.headers["www-authenticate"]


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("route", ASKED, ids=lambda route: f"{route.method} {route.path}")
def test_the_server_does_what_the_document_says(
    route: Route, mode: str, server: HttpServer, document: dict[str, Any]
) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install schemathesis")
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    operation = schema[route.path][route.method]

    @seed(0)
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        if mode == "POSITIVE":
            _fill(server)
            case.path_parameters.update({name: NAMES[name] for name in case.path_parameters})
        case.call_and_validate(checks=checks)

    ask()


def _fill(server: HttpServer) -> None:
    """What is named in the requests is there."""
    server.run(server.store.commit([shards.RegisterConsumer("name", 1, ["name"])]))
    server.client.put("/v1/queues/name", json={})
    server.client.post("/v1/queues/name/messages", json={"body": "a"})
    server.client.post("/v1/journals/name/messages", json={"body": "a"})
