"""`detent schedule` as a user runs it: real processes, real pipes, real exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from acceptance.test_cli import ok, refused
from processes import eventually

COMMANDS = ["ls", "create", "change", "show", "pause", "resume", "run", "delete"]


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """The store, owned by the test: each command is a client of it."""
    with detent.open(url) as opened:
        opened.queue("q").create()
        yield opened


def document(*arguments: str) -> Any:
    return json.loads(ok("schedule", *arguments, "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str) -> None:
    text = ok("schedule", command, "--help").decode()
    assert f"detent schedule {command} file:./data" in text
    assert "--json" in text


def test_made_shown_changed_steered_and_deleted(url: str, store: detent.Store, tmp_path: Path) -> None:
    made = document("create", url, "report", "--cron", "0 6 * * *", "--tz", "Europe/Paris", "--queue", "q",
                    "--body", "daily", "--header", "a=b", "--missed", "all", "--missed-max", "3")  # fmt: skip
    assert (made["cron"], made["tz"], made["every_ms"], made["queue"], made["journal"]) == (
        "0 6 * * *", "Europe/Paris", None, "q", None,
    )  # fmt: skip
    assert (made["body"], made["headers"], made["missed"], made["missed_max"]) == ("daily", {"a": "b"}, "all", 3)
    assert document("ls", url) == [made]
    shown = document("show", url, "report", "--ticks", "2")
    assert (shown["upcoming_ms"][0], len(shown["upcoming_ms"])) == (made["next_ms"], 2)
    (tmp_path / "body").write_bytes(b"\xff\x00")
    changed = document("change", url, "report", "--every", "2h", "--file", str(tmp_path / "body"))
    assert (changed["every_ms"], changed["cron"], changed["body"]) == (7_200_000, None, {"base64": "/wA="})
    document("pause", url, "report")
    assert document("show", url, "report")["next_ms"] is None
    assert document("resume", url, "report")["next_ms"] is not None
    asked = document("run", url, "report")["id"]
    eventually(lambda: store.queue("q").info().available == 1, what="the message that was asked for")
    (message,) = store.queue("q").claim()
    assert message.headers["detent-id"] == asked
    assert b"would delete the schedule report, every 2h to queue q" in ok(
        "schedule", "delete", url, "report", "--dry-run"
    )
    assert document("delete", url, "report", "--yes")["deleted"]
    assert document("ls", url) == []


def test_tables_and_fields_are_for_people(url: str, store: detent.Store) -> None:
    ok("schedule", "create", url, "beat", "--every", "30s", "--journal", "j", "--key", "k", "--paused")
    listed = ok("schedule", "ls", url).decode()
    assert listed.splitlines()[0].split() == ["NAME", "WHEN", "TO", "STATE", "NEXT", "LAST"]
    assert "every 30s" in listed
    assert "paused" in listed
    shown = ok("schedule", "show", url, "beat").decode()
    assert "JSON that says which tick it is" in shown
    assert "journal j" in shown


def test_refusals_are_one_line_and_teach(url: str, store: detent.Store) -> None:
    assert "five fields" in refused("schedule", "create", url, "s", "--cron", "often", "--queue", "q", code=1)
    assert "create it first" in refused("schedule", "create", url, "s", "--every", "1h", "--queue", "none", code=1)
    assert "there is no schedule 's'" in refused("schedule", "show", url, "s", code=1)


def test_command_that_owns_the_store_publishes_what_it_asks_for(url: str) -> None:
    with detent.open(url) as store:
        store.schedule("s", every="1h", journal="j")
    asked = document("run", url, "s")["id"]
    with detent.open(url, role="reader") as store:
        assert [message.headers["detent-id"] for message in store.journal("j").read()] == [asked]
