"""`detent top`: tables and JSON of what moves, and the live screen in a terminal of the test's own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import detent
import zygote
from detent.cli import cli
from detent.cli._samples import COLUMNS, SPARE, Sampler, cells_of
from detent.cli.top import _shared, _Wanted
from detent.shard import operations as shards
from processes import PATIENCE_S

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[detent.Store]:
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.queue("orders").create()
        store.queue("orders").publish_many([b"x"] * 3)
        store.queue("mails").create(paused=True)
        store.journal("events").append_many([b"1", b"2"])
        store.commit([shards.RegisterConsumer("totals", 1, ["events"])])
        yield store


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["top", *arguments], prog_name="detent")
    assert done.exit_code == 0, done.output
    return done.output


# -- samples ----------------------------------------------------------------------------------------------------------


def test_rates_are_of_what_came_between_two_samples(store: detent.Store) -> None:
    clock = iter([10.0, 12.0, 13.0])
    sampler = Sampler(store, lambda: next(clock))
    first = {row.name: row for row in sampler.sample().rows}
    assert first["orders"].rates == {}
    store.queue("orders").publish_many([b"x"] * 10)
    for message in store.queue("orders").claim(4):
        message.ack()
    store.journal("events").append_many([b"x"] * 6)
    sample = sampler.sample()
    second = {row.name: row for row in sample.rows}
    assert second["orders"].rates == {"in": 5.0, "out": 2.0}
    assert second["events"].rates == {"in": 3.0}
    assert (second["orders"].depth, second["mails"].state, sample.seconds) == (9, "paused", 2.0)
    assert (sample.queues, sample.available) == (2, 9)
    assert [row.name for row in sample.of("task")] == ["consumer/totals"]
    store.journal("events").delete()
    store.journal("events").append(b"another one of this name")
    assert {row.name: row for row in sampler.sample().rows}["events"].rates == {}


def test_samples_are_in_the_order_that_is_asked_for(store: detent.Store) -> None:
    sampler = Sampler(store)
    assert [row.name for row in sampler.sample(key="name").of("queue")] == ["mails", "orders"]
    assert [row.name for row in sampler.sample(key="depth").of("queue")] == ["orders", "mails"]
    assert [row.name for row in sampler.sample("ma").rows] == ["mails"]


def test_rows_have_a_cell_for_each_column(store: detent.Store) -> None:
    rows = Sampler(store).sample().rows
    assert {row.section for row in rows} == set(COLUMNS)
    assert all(len(cells_of(row)) == len(COLUMNS[row.section]) for row in rows)
    assert all(set(SPARE[section]) < set(columns) for section, columns in COLUMNS.items())


# -- printed ----------------------------------------------------------------------------------------------------------


def test_once_prints_tables_or_a_document(store: detent.Store) -> None:
    shown = run(store.url, "--once", "--interval", "0.2")
    assert re.search(r"^orders +running +0 +0 +3 +0 +0 ", shown, re.MULTILINE)
    assert re.search(r"^events +0 +2 ", shown, re.MULTILINE)
    assert re.search(r"^consumer/totals ", shown, re.MULTILINE)
    found = json.loads(run(store.url, "--once", "--json", "--interval", "0.2", "--sort", "name"))
    assert [one["queue"] for one in found["queues"]] == ["mails", "orders"]
    assert found["queues"][1]["rates"] == {"in": 0.0, "out": 0.0}
    assert (found["journals"][0]["journal"], found["tasks"][0]["task"]) == ("events", "consumer/totals")
    assert found["seconds"] >= 0.2


def test_top_looks_at_a_server(store: detent.Store) -> None:
    from detent.server.native import NativePart
    from httpserver import serve

    with serve("memory:", lambda own: [NativePart(own)]) as server:
        server.run(server.store.queue("far").create())
        server.run(server.store.journal("away").append(b"1"))
        found = json.loads(run(server.url, "--once", "--json", "--interval", "0.2"))
    assert ([one["queue"] for one in found["queues"]], found["journals"][0]["journal"]) == (["far"], "away")


# -- keys -------------------------------------------------------------------------------------------------------------


def test_keys_change_what_is_shown() -> None:
    wanted = _Wanted("", "rate")
    assert (wanted.press("s"), wanted.key) == (True, "depth")
    assert (wanted.press("p"), wanted.paused) == (False, True)
    assert (wanted.press("p"), wanted.paused) == (True, False)
    assert not wanted.press("2")
    assert wanted.section == "journal"
    wanted.press("2")
    assert wanted.section == ""
    for key in "/ab\x7fq":
        assert not wanted.press(key)
    assert (wanted.typing, wanted.is_over) == ("aq", False)
    assert wanted.press("\r")
    assert (wanted.prefix, wanted.typing) == ("aq", None)
    for key in "/x\x1b":
        wanted.press(key)
    assert (wanted.prefix, wanted.typing) == ("aq", None)
    for key in "kjj":
        wanted.press(key)
    assert wanted.scrolled == 2
    wanted.press("q")
    assert wanted.is_over


def test_room_on_a_screen_is_shared() -> None:
    assert _shared(20, [5, 5, 5]) == [5, 5, 5]
    assert _shared(12, [50, 2, 50]) == [5, 2, 5]
    assert _shared(0, [50, 2]) == [3, 2]
    assert _shared(10, []) == []


# -- in a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """A terminal of so many columns, with a command in it."""

    def __init__(self, descriptor: int, process: Any) -> None:
        self.descriptor = descriptor
        self.process = process
        self.raw = ""

    def until(self, text: str, *, since: int = 0) -> str:
        """All that was written, once a text is in it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in ESCAPE.sub("", self.raw[since:]):
            assert time.monotonic() < deadline, (text, ESCAPE.sub("", self.raw[since:])[-2000:])
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.raw += os.read(self.descriptor, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        found = ESCAPE.sub("", self.raw[since:])
        assert text in found
        return found

    def exit_code(self) -> int:
        """How the command ended; what it still writes is read, or it would wait for that."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, ESCAPE.sub("", self.raw)[-2000:]
            with contextlib.suppress(OSError):  # the other end is closed
                if select.select([self.descriptor], [], [], 0.05)[0]:
                    os.read(self.descriptor, 65536)
        return int(self.process.wait(PATIENCE_S))

    def press(self, keys: str) -> int:
        """Press keys; where what comes of them begins."""
        os.write(self.descriptor, keys.encode())
        return len(self.raw)


@contextmanager
def terminal(*command: str, columns: int = 80, lines: int = 24, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    process = zygote.Forked(
        [sys.executable, "-m", "detent.cli", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        os.close(ours)


def test_screen_shows_sorts_filters_pauses_and_ends(store: detent.Store) -> None:
    with terminal("top", store.url, "--interval", "0.2") as shown:
        first = shown.until("q quit")
        assert "orders" in first
        assert "consumer/totals" in first
        assert max(map(len, first.replace("\r", "").split("\n"))) <= 80
        store.queue("orders").publish_many([b"x"] * 4)
        shown.until("by depth", since=shown.press("s"))
        shown.until("PAUSED", since=shown.press("p"))
        shown.press("p")
        shown.until("names that begin with: ma_", since=shown.press("/ma"))
        shown.until("names ma*", since=shown.press("\r"))
        shown.press("q")
        assert shown.exit_code() == 0


def test_screen_has_colours_unless_they_are_not_wanted(store: detent.Store) -> None:
    with terminal("top", store.url, columns=120) as shown:
        shown.until("q quit")
        assert "\x1b[33mpaused" in shown.raw
    with terminal("top", store.url, columns=120, NO_COLOR="1") as shown:
        shown.until("q quit")
        assert "\x1b[33m" not in shown.raw


@pytest.mark.parametrize("columns", [80, 60])
def test_narrow_screen_leaves_columns_out(store: detent.Store, columns: int) -> None:
    name = "orders/europe/incoming-from-all-partners"
    store.queue(name).create()
    with terminal("top", store.url, columns=columns) as shown:
        found = shown.until("q quit")
        assert name in found
        assert "waiting" in found
        assert "in flight" not in found
        assert max(map(len, found.replace("\r", "").split("\n"))) <= columns
