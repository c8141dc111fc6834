"""`detent queue readers` and `detent queue release` as a user runs them: real processes, real exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from acceptance.test_cli import ok, refused


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """The store, owned by the test: each command is a client of it. A query has done one of
    four messages, and holds two."""
    with detent.open(url) as opened:
        queue = opened.queue("q")
        queue.create()
        queue.publish_many([b"a", b"b", b"c", b"d"])
        reader = queue.reader("my query")
        reader.open()
        reader.assign(0, 1)
        reader.assign(1, 2)
        yield opened


def document(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "--json"))


def test_readers_are_listed(store: detent.Store, url: str) -> None:
    store.queue("q").reader("idle").open()
    heads, idle, busy = ok("queue", "readers", url, "q").decode().splitlines()
    assert heads.split() == ["READER", "DONE", "UP", "TO", "ASSIGNED", "SINCE"]
    assert idle.split() == ["idle", "0", "0", "-"]
    assert busy.split()[:4] == ["my", "query", "1", "2"]
    found = document("queue", "readers", url, "q")
    assert found["queue"] == "q"
    idle, busy = found["readers"]
    assert (idle["name"], idle["acked"], idle["assigned"], idle["assigned_ms"]) == ("idle", 0, 0, None)
    (about,) = [reader for reader in store.queue("q").readers() if reader.name == "my query"]
    assert about.assigned_since is not None
    assert busy == {
        "name": "my query",
        "generation": about.generation,
        "opened_ms": round(about.opened.timestamp() * 1000),
        "acked": 1,
        "assigned": 2,
        "assigned_ms": round(about.assigned_since.timestamp() * 1000),
    }


def test_a_queue_without_readers(store: detent.Store, url: str) -> None:
    store.queue("empty").create()
    assert document("queue", "readers", url, "empty") == {"queue": "empty", "readers": []}
    assert "no queue 'nobody'" in refused("queue", "readers", url, "nobody", code=1)


def test_a_reader_is_released_by_somebody_who_means_it(store: detent.Store, url: str) -> None:
    queue = store.queue("q")
    assert "say --yes" in refused("queue", "release", url, "q", "my query", code=2)
    assert queue.info().in_flight == 2
    text = ok("queue", "release", url, "q", "my query", "--yes").decode()
    assert text == "released reader my query: 2 messages can be claimed again from q\n"
    assert (queue.info().in_flight, queue.info().available) == (0, 3)
    assert document("queue", "release", url, "q", "my query", "--yes", "--delete") == {
        "queue": "q",
        "reader": "my query",
        "messages": 0,
        "deleted": True,
    }
    assert queue.readers() == []
    assert "has no reader 'my query'" in refused("queue", "release", url, "q", "my query", "--yes", code=1)
    assert "READER is missing" in refused("queue", "release", url, "q", "--yes", code=2)


def test_the_command_that_an_error_names(store: detent.Store, url: str) -> None:
    reader = store.queue("q").reader("my query")
    reader.open()
    with pytest.raises(detent.Conflict) as caught:
        reader.assign(0, 1)
    command = str(caught.value).split("`")[1]
    assert command == "detent queue release q 'my query'"
    ok("queue", "release", "--url", url, "q", "my query", "--yes")
    with pytest.raises(detent.Fenced):
        reader.assign(1, 1)
    assert reader.open().acked == 0
    assert reader.assign(0, 9).count == 3
    assert b"no problem found" in ok("store", "verify", url)
