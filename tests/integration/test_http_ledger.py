"""Ledgers behind a server: entered through the HTTP API, and by whom they may not be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import detent
from detent import AlreadyEntered, Denied
from detent.server.access import UNCHECKED, Caller, Grant
from detent.server.api import Api
from detent.server.keys import parse_grant
from httpserver import HttpServer, Posing, serve


@pytest.fixture(params=["memory", "file"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpServer]:
    url = "memory:" if request.param == "memory" else f"file:{tmp_path / 'store'}"
    with serve(url, lambda store: [Api(store)]) as running:
        yield running


def commit(server: HttpServer, *operations: dict[str, Any]) -> httpx.Response:
    answer: httpx.Response = server.client.post("/v1/transaction", json={"operations": list(operations)})
    return answer


def enter(batch: Any, **more: Any) -> dict[str, Any]:
    return {"op": "enter_ledger", "ledger": "to audit", "batch": batch, **more}


APPEND = {"op": "append", "journal": "audit", "body": "x"}


def messages(server: HttpServer) -> int:
    answer = server.client.get("/v1/journals/audit")
    return 0 if answer.status_code == 404 else answer.json()["next_offset"]


def test_a_batch_is_entered_with_what_it_appends(server: HttpServer) -> None:
    answer = commit(server, APPEND, enter(3, query="q", run="r"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"][1] == {"op": "enter_ledger", "previous_batch": None}
    again = commit(server, APPEND, enter(3, query="q", run="r"))
    assert again.status_code == 409
    problem = again.json()
    assert (problem["error"], problem["details"]) == ("AlreadyEntered", {"name": "to audit", "batch": 3})
    assert messages(server) == 1
    assert commit(server, APPEND, enter(4, query="q", run="s")).json()["results"][1]["previous_batch"] == 3
    for step in (enter(5, query="q", run="r"), enter(5, query="other")):
        refused = commit(server, APPEND, step)
        assert (refused.status_code, refused.json()["error"]) == (410, "Fenced")
        assert "details" not in refused.json()
    assert messages(server) == 2


@pytest.mark.parametrize(
    "step",
    [
        enter(-1), enter(1 << 63), enter("0"), enter(None), enter(0.5), enter(True), enter(0, query=None),
        enter(0, query="\0"), enter(0, run="x" * 129), enter(0, more=1), enter(0, ledger=""), enter(0, ledger="a\nb"),
        enter(0, ledger="x" * 501), {"op": "enter_ledger", "batch": 0}, {"op": "enter_ledger", "ledger": "l"},
    ],
)  # fmt: skip
def test_what_cannot_be_entered_is_malformed(server: HttpServer, step: dict[str, Any]) -> None:
    answer = commit(server, APPEND, step)
    assert (answer.status_code, answer.json()["error"]) == (400, "Invalid")
    assert messages(server) == 0


def test_the_document_has_it(server: HttpServer) -> None:
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["EnterLedgerOperation"]["required"]) == {"op", "ledger", "batch"}
    assert schemas["EnterLedgerOperation"]["properties"]["batch"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": (1 << 63) - 1,
    }
    assert "previous_batch" in schemas["LedgerEntered"]["properties"]
    assert "details" in schemas["Problem"]["properties"]
    assert "details" not in schemas["Problem"]["required"]


@pytest.mark.parametrize(
    ("grants", "status"),
    [
        ((Grant("publish", "journal", "*"), Grant("publish", "ledger", "to *")), 200),
        ((Grant("publish", "journal", "*"), Grant("admin", "ledger", "to audit")), 200),
        ((Grant("publish", "*", "*"),), 200),
        ((Grant("publish", "journal", "*"), Grant("consume", "ledger", "*")), 403),
        ((Grant("publish", "journal", "*"), Grant("publish", "ledger", "other")), 403),
        ((Grant("publish", "journal", "*"), Grant("publish", "queue", "*")), 403),
        ((Grant("publish", "ledger", "*"),), 403),
    ],
)
def test_who_may_enter(grants: tuple[Grant, ...], status: int) -> None:
    with serve("memory:", lambda store: [Posing(Api(store), Caller("somebody", grants))]) as server:
        assert commit(server, APPEND, enter(0)).status_code == status


def test_grants_on_ledgers_can_be_written() -> None:
    assert parse_grant("publish:ledger:to *") == Grant("publish", "ledger", "to *")
    assert UNCHECKED.may("admin", "ledger", "any")
    with pytest.raises(detent.Invalid, match="queue, journal, ledger, consumer, schedule, metrics or"):
        parse_grant("publish:pin:x")
    with pytest.raises(Denied):
        Caller("somebody", (Grant("admin", "queue", "*"), Grant("admin", "journal", "*"))).require(
            "consume", "ledger", "l"
        )


def test_an_error_keeps_what_it_carries_on_its_way() -> None:
    """Also when it is copied for one caller, as a group's error is."""
    from detent.engine.operation import refusal

    copied = refusal(AlreadyEntered("done before", "l", 7))
    assert isinstance(copied, AlreadyEntered)
    assert (str(copied), copied.name, copied.batch) == ("done before", "l", 7)
