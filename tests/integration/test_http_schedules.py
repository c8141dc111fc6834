"""Schedules over the HTTP API: made, changed, steered, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from detent.server.access import Caller, Grant
from detent.server.api import Api
from httpserver import HttpServer, Posing, serve
from processes import eventually

HOURLY = {"every": "1h", "journal": "j"}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serve("memory:", lambda store: [Api(store)]) as opened:
        yield opened


def ask(server: HttpServer, method: str, path: str, **given: Any) -> Any:
    return server.client.request(method, f"/v1/schedules{path}", **given)


def test_made_changed_steered_and_deleted(server: HttpServer) -> None:
    made = ask(server, "PUT", "/a%2Fb", json={"cron": "0 6 * * *", "journal": "j", "body": {"base64": "AAE="}})
    assert made.status_code == 201
    shown = made.json()
    assert (shown["name"], shown["tz"], shown["body"], shown["upcoming"]) == ("a/b", "UTC", "\0\1", [])
    again = ask(server, "PUT", "/a%2Fb", json={"cron": "0 6 * * *", "journal": "j", "body": {"base64": "AAE="}})
    assert (again.status_code, again.json()) == (200, shown)
    changed = ask(server, "PATCH", "/a%2Fb", json={"every": "90m", "body": None, "key": "k"}).json()
    assert (changed["every"], changed["cron"], changed["body"], changed["key"]) == ("90m", None, None, "k")
    assert len(ask(server, "GET", "/a%2Fb?ticks=3").json()["upcoming"]) == 3
    assert ask(server, "POST", "/a%2Fb/pause").json()["next"] is None
    assert ask(server, "POST", "/a%2Fb/resume").json()["next"] is not None
    asked = ask(server, "POST", "/a%2Fb/run").json()["id"]
    eventually(lambda: ask(server, "GET", "/a%2Fb").json()["published"] == 1, what="what was asked for")
    (message,) = server.client.get("/v1/journals/j/messages").json()["messages"]
    assert message["headers"]["detent-id"] == asked
    assert [one["name"] for one in ask(server, "GET", "").json()["schedules"]] == ["a/b"]
    assert ask(server, "DELETE", "/a%2Fb").status_code == 204
    for method, path in (("GET", "/a%2Fb"), ("DELETE", "/a%2Fb"), ("POST", "/a%2Fb/run")):
        assert ask(server, method, path).status_code == 404
    assert ask(server, "PATCH", "/a%2Fb", json={"missed": "none"}).status_code == 404


def test_lists_in_pages(server: HttpServer) -> None:
    for name in ("p1", "p2", "p3"):
        assert ask(server, "PUT", f"/{name}", json=HOURLY).status_code == 201
    page = ask(server, "GET", "?prefix=p&limit=2").json()
    assert ([one["name"] for one in page["schedules"]], page["next"]) == (["p1", "p2"], "p2")
    page = ask(server, "GET", "?prefix=p&limit=2&after=p2").json()
    assert ([one["name"] for one in page["schedules"]], page["next"]) == (["p3"], None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"every": "1h"}, 400),
        ({**HOURLY, "queue": "q"}, 400),
        ({"every": "1h", "queue": "none"}, 404),
        ({"cron": "often", "journal": "j"}, 400),
        ({"cron": "0 6 * * *", "tz": "Mars", "journal": "j"}, 400),
        ({**HOURLY, "missed": "some"}, 400),
        ({**HOURLY, "headers": {"detent-id": "x"}}, 400),
        ({**HOURLY, "more": 1}, 400),
        ({**HOURLY, "every": "1ms"}, 400),
        ({**HOURLY, "missed": "all", "missed_max": 1 << 40}, 400),
        ({**HOURLY, "body": "x" * 70_000}, 413),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refuses_what_is_not_a_schedule(server: HttpServer, body: dict[str, Any], status: int) -> None:
    answer = ask(server, "PUT", "/refused", json=body)
    assert answer.status_code == status, answer.text
    assert ask(server, "GET", "/refused").status_code == 404


ALL = ("admin", "schedule", "*")


@pytest.mark.parametrize(
    ("grants", "statuses"),
    [
        ([ALL, ("publish", "journal", "*")], {"PUT": 201, "PATCH": 200, "GET": 200, "run": 200, "pause": 200}),
        ([ALL], {"PUT": 403, "PATCH": 403, "GET": 200, "run": 200, "pause": 200}),
        ([("publish", "*", "*")], {"PUT": 403, "PATCH": 403, "GET": 403, "run": 200, "pause": 403}),
        ([("read", "schedule", "s")], {"PUT": 403, "PATCH": 403, "GET": 200, "run": 403, "pause": 403}),
        ([("admin", "queue", "*")], {"PUT": 403, "PATCH": 403, "GET": 403, "run": 403, "pause": 403}),
    ],
    ids=["all", "not where it goes", "publish", "read", "other kinds"],
)
def test_each_call_needs_its_right(grants: list[tuple[str, str, str]], statuses: dict[str, int]) -> None:
    caller = Caller("somebody", tuple(Grant(*grant) for grant in grants))
    with serve("memory:", lambda store: [Posing(Api(store), caller)]) as server:
        assert server.store is not None
        server.run(server.store.schedule("s", **HOURLY))  # type: ignore[arg-type]
        found = {
            "PUT": ask(server, "PUT", "/new", json=HOURLY).status_code,
            "PATCH": ask(server, "PATCH", "/s", json={"missed": "none"}).status_code,
            "GET": ask(server, "GET", "/s").status_code,
            "run": ask(server, "POST", "/s/run").status_code,
            "pause": ask(server, "POST", "/s/pause").status_code,
        }
        assert found == statuses
        listed = ask(server, "GET", "").json()["schedules"]
        assert bool(listed) is any(kind in {"schedule", "*"} for _, kind, _ in grants)
