"""`detent graph` as a user runs it: real processes, killed and stopped, real exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
import zygote
from acceptance.test_cli import environment
from eventlines import Events
from processes import PATIENCE_S, eventually

COMMANDS = ["show", "trace", "send"]

APP = """
import os, time
from detent.processor import Graph

graph = Graph("shop", store="file:./data", errors="failed", lease="60s")
graph.source("orders")

@graph.stream(input="orders", output="totals")
def total(order):
    while os.path.exists("hang"):
        open("began", "w").close()
        time.sleep(0.01)
    return {"order": order["id"], "total": order["price"] * order["count"]}

@graph.sink(input="totals", errors=False)
def note(total, step):
    if os.path.exists("broken"):
        raise KeyError("no such book")
    if os.path.exists("away"):
        os.unlink("away")
        raise ConnectionError("the book is away")
    with open("noted", "a") as noted:
        noted.write(f"{total['total']}\\n")

if __name__ == "__main__":
    raise SystemExit("a command loads the file, and does not run it")
"""
"""A lease that outlasts every test: what moves, moves because somebody gave it back, or has died."""


def order(number: int) -> str:
    return json.dumps({"id": number, "price": number, "count": 2})


class World:
    """A folder with a graph in it, which is the current one of every command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder / 'data'}"
        (folder / "shop.py").write_text(APP)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "detent.cli", "graph", *arguments]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[Any]:
        return zygote.run(
            self.command(*arguments), timeout=PATIENCE_S, cwd=self.folder, env=environment(), input=stdin.encode()
        )

    def ok(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        text: str = done.stdout.decode()
        return text

    def document(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = self.run(*arguments)
        text: str = done.stderr.decode()
        assert done.returncode == code, (done.returncode, text)
        assert "Traceback" not in text
        assert code != 1 or text.splitlines()[-1].startswith("error: ")
        return text

    def send(self, *numbers: int) -> None:
        self.ok("send", "shop.py", "-", stdin="".join(f"{order(number)}\n" for number in numbers))

    def processors(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.document("status", "shop.py")["details"]["processors"]}

    def noted(self) -> list[int]:
        path = self.folder / "noted"
        return list(map(int, path.read_text().split())) if path.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Running(Events):
    """`detent graph run`, whose events are read all the time."""

    def __init__(self, world: World, *options: str) -> None:
        super().__init__(world.command("run", "shop.py", "--json", *options), world.folder, environment())


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str) -> Running:
        started.append(Running(world, *options))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(world: World, command: str) -> None:
    text = world.ok(command, "--help")
    assert f"detent graph {command} shop.py" in text.partition("Example")[2]
    assert "--json" in text


def test_the_help_has_a_file_to_try(world: World) -> None:
    """What it shows is taken out of it, and tried."""
    text = world.ok("--help").replace("\n  ", "\n")
    lines = text.partition("A file, shop.py:\n")[2].partition("Try it:\n")
    (world.folder / "shop.py").write_text(lines[0].replace("\n  ", "\n").removeprefix("  "))
    assert "graph send shop.py orders '{" in lines[2]
    world.ok("send", "shop.py", "orders", '{"id": 1, "price": 3, "count": 2}')
    assert "{'order': 1, 'total': 6}" in world.ok("run", "shop.py", "--once")


# -- drawing ----------------------------------------------------------------------------------------------------------


def test_a_graph_is_drawn_and_nothing_is_made(world: World) -> None:
    text = world.ok("show", "shop.py")
    assert "total   ○─●┄✗  orders → totals, ✗ failed" in text.splitlines()
    assert ["note", "sink", "totals", "-", "-", "exactly-once", "1", "1", "-"] in [
        line.split() for line in text.splitlines()
    ]
    assert world.ok("show", "shop.py", "--mermaid").startswith("flowchart LR\n")
    shown = world.document("show", "shop.py:graph")
    assert (shown["graph"], shown["errors"], shown["lease_ms"]) == ("shop", "failed", 60_000)
    orders, total, note = shown["processors"]
    assert (orders["kind"], orders["runs"], orders["outputs"]) == ("source", False, {"orders": "orders"})
    assert (total["inputs"], total["outputs"], total["errors"]) == (["orders"], {"totals": "totals"}, "failed")
    assert (note["errors"], note["delivery"], note["batch"]) == (None, "exactly-once", 1)
    assert os.listdir(world.folder) == ["shop.py"]
    world.refused("show", "shop.py", "--json", "--mermaid", code=2)


def test_options_are_listed(world: World) -> None:
    (world.folder / "more.py").write_text(
        APP
        + "from detent.processor import Polled\n"
        + "graph.source('clock', poll=lambda cursor: Polled([], cursor), output='ticks', every='5s')\n"
        + "@graph.stream(join=['ticks', 'totals'], outputs={'a': 'x', 'y': 'y'}, types=['sale'], topics=['eu', 'us'],"
        + " batch=20, whole=True, retries=2, start='latest', delivery='at-most-once', formerly='was')\n"
        + "async def mix(ticks, totals): pass\n"
    )
    lines = world.ok("show", "more.py").splitlines()
    (clock,) = [line for line in lines if line.startswith("clock") and "asked" in line]
    assert clock.endswith("asked every 5s")
    (mix,) = [line for line in lines if line.startswith("mix") and "stream" in line]
    assert "ticks + totals  a=x, y   failed  at-most-once  20     1" in mix
    assert mix.endswith(
        "types sale, topics eu us, whole batches, retries 2, first after 100ms, starts at latest, async, formerly was"
    )


def test_a_graph_that_cannot_run_says_why(world: World) -> None:
    (world.folder / "slip.py").write_text(APP.replace('input="totals"', 'input="total"'))
    for command in (["show"], ["run"], ["status"]):
        text = world.refused(*command, "slip.py")
        expected = "error: 'note' reads 'total', which is neither a source nor an output: did you mean 'totals'?\n"
        assert text == expected


# -- sending ----------------------------------------------------------------------------------------------------------


def test_messages_are_sent(world: World) -> None:
    assert world.ok("send", "shop.py", order(1)) == "orders: offset 0\n"
    text = world.ok(
        "send", "shop.py", "orders", "any text", "--key", "k", "--type", "t", "--topic", "a", "--topic", "b"
    )
    assert text == "orders: offset 1\n"
    assert world.ok("send", "shop.py", "-", "--type", "t", stdin="one\ntwo") == "orders: offsets 2 to 3\n"
    assert world.document("send", "shop.py", "x") == {"journal": "orders", "offset": 4, "count": 1}
    assert world.ok("send", "shop.py", "-") == ""
    with detent.open(world.url) as store:
        found = [(one.body, one.key, one.headers) for one in store.journal("orders").read()]
    assert found == [
        (order(1).encode(), None, {}),
        (b"any text", b"k", {"type": "t", "topics": "a,b"}),
        (b"one", None, {"type": "t"}),
        (b"two", None, {"type": "t"}),
        (b"x", None, {}),
    ]


def test_where_a_message_goes_is_checked(world: World) -> None:
    said = world.refused("send", "shop.py", "ordres", "x")
    assert said == "error: the graph 'shop' has no source 'ordres', and no processor reads it: it has orders\n"
    (world.folder / "shop.py").write_text(APP + "graph.source('prices')\n")
    said = world.refused("send", "shop.py", "x")
    assert said == "error: the graph 'shop' has 2 sources: orders, prices; say to which one\n"
    world.refused("send", "shop.py", "orders", "two", "words", code=2)
    assert os.listdir(world.folder) == ["shop.py"]
    assert world.ok("send", "shop.py", "totals", "{}") == "totals: offset 0\n"


# -- running ----------------------------------------------------------------------------------------------------------


def test_once_does_what_there_is(world: World) -> None:
    world.send(1, 2)
    world.ok("send", "shop.py", "no json")
    lines = [line.split() for line in world.ok("run", "shop.py", "--once").splitlines()]
    assert lines == [
        ["PROCESSOR", "OUTPUTS", "ERRORS", "NILS", "LAG"],
        ["total", "2", "1", "0", "0"],
        ["note", "0", "0", "2", "0"],
    ]
    assert world.noted() == [2, 4]
    summary = world.document("run", "shop.py", "--once")
    nothing = {"outputs": 0, "errors": 0, "nils": 0, "lag": 0}
    assert summary == {
        "event": "summary",
        "graph": "shop",
        "processors": [{"processor": "total", **nothing}, {"processor": "note", **nothing}],
        "problem": None,
    }
    assert world.noted() == [2, 4]


def test_some_processors_only(world: World) -> None:
    world.send(1)
    world.ok("run", "shop.py", "--once", "--only", "total")
    assert world.noted() == []
    (note,) = world.document("run", "shop.py", "--once", "--only", "note")["processors"]
    assert (note["processor"], note["nils"]) == ("note", 1)
    assert world.noted() == [2]
    assert "has no processor 'nobody': it has orders" in world.refused("run", "shop.py", "--only", "nobody")
    assert "'orders' is a journal that others write" in world.refused("run", "shop.py", "--only", "orders")


def test_once_ends_with_what_failed(world: World) -> None:
    world.send(1)
    (world.folder / "broken").touch()
    done = world.run("run", "shop.py", "--once")
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[2].split() == ["note", "0", "0", "0", "1"]
    (said,) = done.stderr.decode().splitlines()
    assert said.startswith(
        "error: the processor 'note' failed: KeyError: 'no such book'; shop/note was at totals#0, under"
    )
    assert "; nothing came of that input" in said
    done = world.run("run", "shop.py", "--once", "--json")
    assert json.loads(done.stdout)["problem"] == done.stderr.decode().removeprefix("error: ").strip()
    (world.folder / "broken").unlink()
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2]


def test_once_goes_on_behind_a_failure_that_passes(world: World) -> None:
    world.send(1)
    (world.folder / "away").touch()
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2]


def test_other_inputs_need_to_be_meant(world: World) -> None:
    world.send(1)
    world.ok("run", "shop.py", "--once")
    more = "graph.source('more')\n"
    changed = APP.replace('@graph.stream(input="orders"', '@graph.stream(any_of=["orders", "more"]')
    (world.folder / "shop.py").write_text(changed.replace("@graph.stream", f"{more}\n@graph.stream"))
    assert "total" in world.refused("run", "shop.py", "--once")
    world.ok("run", "shop.py", "--once", "--migrate", "total")
    world.ok("send", "shop.py", "more", order(2))
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2, 4]


def test_it_runs_until_it_is_told_to_stop(world: World, start: Callable[..., Running]) -> None:
    running = start()
    (started,) = running.until("started")
    assert (started["graph"], started["store"], started["processors"]) == ("shop", "file:./data", ["total", "note"])
    assert {event["processor"] for event in running.until("running", 2)} == {"total", "note"}
    world.send(1)
    eventually(lambda: world.noted() == [2], what="the sink")
    (world.folder / "hang").touch()
    world.send(2)
    eventually((world.folder / "began").exists, what="the function")
    running.process.send_signal(signal.SIGTERM)
    running.until("stopping")
    (world.folder / "hang").unlink()
    assert running.wait() == 0, running.said()
    stopped = {event["processor"]: event for event in running.until("stopped", 2)}
    assert stopped["total"] == {"event": "stopped", "processor": "total", "outputs": 2, "errors": 0, "nils": 0}
    assert running.said() == ""
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2, 4]


def test_a_second_interrupt_does_not_wait(world: World, start: Callable[..., Running]) -> None:
    running = start()
    running.until("started")
    (world.folder / "hang").touch()
    world.send(1)
    eventually((world.folder / "began").exists, what="the function")
    running.process.send_signal(signal.SIGINT)
    running.until("stopping")
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 130
    (world.folder / "hang").unlink()
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2]


def test_failures_are_told_and_end_by_themselves(world: World, start: Callable[..., Running]) -> None:
    (world.folder / "broken").touch()
    world.send(1)
    running = start()
    failed = running.until("failed")[0]
    assert (failed["event"], failed["processor"]) == ("failed", "note")
    assert failed["text"].startswith("KeyError: 'no such book'; shop/note was at totals#0, under the key ")
    seen = eventually(lambda: (found := world.processors())["note"]["status"] == "failed" and found, what="the report")
    assert seen["note"]["error"] == failed["text"]
    assert "KeyError: 'no such book'" in world.ok("status", "shop.py")
    status = running.until("status")[-1]["processors"]
    assert [one["processor"] for one in status] == ["total", "note"]
    assert status[1]["lag"] == 1
    assert status[1]["restarts"] >= 1
    (world.folder / "broken").unlink()
    eventually(lambda: world.noted() == [2], what="the sink")


def test_once_waits_for_who_runs_it_and_takes_over(world: World, start: Callable[..., Running]) -> None:
    running = start()
    running.until("started")
    (world.folder / "hang").touch()
    world.send(1)
    eventually((world.folder / "began").exists, what="the function")
    once = start("--once")
    assert {event["processor"] for event in once.until("standby", 2)} == {"total", "note"}
    running.process.kill()
    running.wait()
    (world.folder / "hang").unlink()
    assert once.wait() == 0, once.said()
    (summary,) = once.until("summary")
    assert [(one["outputs"], one["nils"]) for one in summary["processors"]] == [(1, 0), (0, 1)]
    assert world.noted() == [2]


def test_it_ends_when_nobody_reads_it_any_more(world: World) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    process = zygote.Forked(
        world.command("run", "shop.py", "--json"),
        stdin=subprocess.DEVNULL,
        stdout=ours,
        stderr=subprocess.PIPE,
        cwd=world.folder,
        env=environment(),
    )
    os.close(ours)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (128 + signal.SIGPIPE, b"")


def test_it_ends_when_nobody_reads_its_log_any_more(world: World) -> None:
    """At the next thing that it has to say, whichever thread that is in; it does not stay, and do nothing."""
    world.send(1)
    process = zygote.Forked(
        world.command("run", "shop.py"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=world.folder,
        env=environment(),
    )
    while b"started shop" not in process.stderr.readline():
        pass
    process.stderr.close()
    (world.folder / "broken").touch()
    world.send(2)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_the_log_says_where_a_function_failed(world: World) -> None:
    world.send(1)
    (world.folder / "broken").touch()
    done = world.run("run", "shop.py", "--once", "--verbose")
    assert done.returncode == 1
    assert 'raise KeyError("no such book")' in done.stderr.decode()


@pytest.mark.parametrize("once", [False, True])
def test_a_terminal_shows_how_it_stands(world: World, once: bool) -> None:
    world.send(*range(1, 6))
    ours, theirs = pty.openpty()
    process = zygote.Forked(
        world.command("run", "shop.py", *(["--once"] if once else [])),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=world.folder,
        env=environment(TERM="xterm", COLUMNS="120"),
    )
    os.close(theirs)
    seen = b""

    def read() -> None:
        nonlocal seen
        with contextlib.suppress(OSError):  # how a terminal says that its last process has ended
            while part := os.read(ours, 4096):
                seen += part

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    expected = b"running shop" if once else b"graph shop: lag 0"
    try:
        eventually(lambda: expected in seen and len(world.noted()) == 5, what="the picture")
        if not once:
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        reading.join(PATIENCE_S)
        os.close(ours)
    assert (b"stopping: steps under way are waited for" in seen) is not once
    assert b"outputs" in seen


# -- looking ----------------------------------------------------------------------------------------------------------


def test_the_status_of_a_graph_that_another_process_runs(world: World, start: Callable[..., Running]) -> None:
    running = start()
    running.until("started")
    world.send(1, 2)
    eventually(lambda: len(world.noted()) == 2, what="the sink")
    found = world.processors()
    assert found["total"]["status"] == "running"
    assert str(running.process.pid) in found["total"]["holder"]
    assert (found["total"]["outputs"], found["total"]["lag"]) == (2, 0)
    assert found["total"]["inputs"] == [{"journal": "orders", "position": 2, "lag": 0, "gone": ""}]
    assert found["total"]["latency"]["totals"]["messages"] == 2
    lines = [line.split() for line in world.ok("status", "shop.py").splitlines()]
    assert ["PROCESSOR", "STATE", "DONE", "LAG", "HOLDER", "OWED", "ERROR"] in lines
    (total,) = [line for line in lines if line[:2] == ["total", "running"]]
    assert (total[2:5], total[-2:]) == (["2", "outputs", "0"], ["0", "-"])
    assert lines[-2] == ["JOURNAL", "WRITTEN", "BY", "MESSAGES", "MEDIAN", "P99", "MAX"]
    assert lines[-1][:3] == ["totals", "total", "2"]
    running.process.terminate()
    assert running.wait() == 0
    assert world.processors()["total"]["status"] == "stopped"


def test_looking_makes_no_store(world: World) -> None:
    hint = "run the graph once, or say where its store is with --store URL"
    for command in (["status", "shop.py"], ["trace", "shop.py", "totals", "0"], ["reset", "shop.py", "total"]):
        assert hint in world.refused(*command)
    assert os.listdir(world.folder) == ["shop.py"]
    (world.folder / "shop.py").write_text(APP.replace(', store="file:./data"', ""))
    assert "has no store: give --store URL" in world.refused("status", "shop.py")
    assert "lives and ends with its process" in world.refused("run", "shop.py", "--store", "memory:")
    world.ok("send", "shop.py", order(1), "--store", "./elsewhere")
    world.ok("run", "shop.py", "--once", "--store", "file:./elsewhere")
    assert "total" in world.ok("status", "shop.py", "--url", "elsewhere")
    assert world.noted() == [2]


def test_where_a_message_comes_from(world: World) -> None:
    world.send(1, 2)
    world.ok("send", "shop.py", "no json")
    world.ok("run", "shop.py", "--once")
    head, total, source = [line.split() for line in world.ok("trace", "shop.py", "totals", "1").splitlines()]
    assert head == ["MESSAGE", "WRITTEN", "BY", "HOP", "IN", "ALL", "KEY"]
    assert total[:2] == ["totals", "1"]
    assert total[3] == "shop/total"
    assert total[-1].endswith("-1")
    assert source[:3] == ["└─", "orders", "1"]
    assert source[4] == "(outside)"
    hop = world.document("trace", "shop.py", "failed", "0")
    assert (hop["processor"], hop["inputs"][0]["journal"], hop["inputs"][0]["offset"]) == ("shop/total", "orders", 2)
    assert hop["total_ms"] >= hop["hop_ms"] >= 0
    assert world.refused("trace", "shop.py", "totals", "2") == "error: there is no message 2 in the journal 'totals'\n"


# -- steering ---------------------------------------------------------------------------------------------------------


def test_a_processor_reads_again(world: World) -> None:
    world.send(1, 2, 3)
    world.ok("run", "shop.py", "--once")
    done = world.run("reset", "shop.py", "note")
    assert done.returncode == 2
    assert "totals goes from offset 3 to 0: 3 messages processed again" in done.stderr.decode()
    assert "Deliveries have new keys from there on; say --yes if that is meant" in done.stderr.decode()
    assert "moved note, where totals goes from offset 3 to 2: 1 message processed again" in world.ok(
        "reset", "shop.py", "note", "--to", "2", "--yes"
    )
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2, 4, 6, 6]
    reset = ("reset", "shop.py", "note", "--yes")
    assert world.document(*reset, "--input", "totals=1") == [{"task": "graph/shop", "to": {"note": {"totals": 1}}}]
    assert world.document(*reset, "--time", "2020-01-01")[0]["to"] == {"note": {"totals": 0}}
    assert world.document(*reset, "--time", "2100-01-01T00:00:00Z")[0]["to"] == {"note": {"totals": 3}}
    assert "totals stays at offset 3." in world.ok(*reset, "--to", "latest")
    assert world.document(*reset, "--to", "earliest")[0]["to"] == {"note": {"totals": 0}}
    assert "totals goes from offset 0 to 3: 3 messages skipped for ever" in world.ok(*reset, "--to", "latest")
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2, 4, 6, 6]


def test_a_processor_that_runs_is_reset(world: World, start: Callable[..., Running]) -> None:
    running = start()
    running.until("started")
    world.send(1)
    eventually(lambda: world.noted() == [2], what="the sink")
    world.ok("reset", "shop.py", "note", "--yes")
    eventually(lambda: world.noted() == [2, 2], what="the sink")
    world.send(2)
    eventually(lambda: world.noted() == [2, 2, 4], what="the sink")
    assert "is run by" in world.refused("reset", "shop.py", "note", "--forget", "--yes")


def test_a_processor_is_forgotten(world: World) -> None:
    world.send(1)
    world.ok("run", "shop.py", "--once")
    assert "say --yes if that is meant" in world.refused("reset", "shop.py", "note", "--forget", code=2)
    (world.folder / "shop.py").write_text(APP.replace("def note", "def book"))
    assert "say formerly='note'" in world.refused("run", "shop.py", "--once")
    assert [one["declared"] for one in world.processors().values()] == [True, True, False]
    done = world.ok("reset", "shop.py", "note", "--forget", "--yes")
    assert done.startswith("deleted the progress of shop (note): if it runs again it begins anew")
    said = world.refused("reset", "shop.py", "note", "--forget", "--yes")
    assert said == "error: there is no progress of 'note' to forget: there is that of total\n"
    world.ok("run", "shop.py", "--once")
    assert world.noted() == [2, 2], "it is another one now"


def test_where_to_go_on_is_said_once_and_right(world: World) -> None:
    world.send(1)
    world.ok("run", "shop.py", "--once")
    reset = ("reset", "shop.py", "note", "--yes")
    world.refused(*reset, "--to", "earliest", "--forget", code=2)
    world.refused(*reset, "--to", "yesterday", code=2)
    world.refused(*reset, "--input", "totals", code=2)
    world.refused(*reset, "--time", "soon", code=2)
    assert "'note' does not read 'orders': it reads totals" in world.refused(*reset, "--input", "orders=0")
    assert "'totals' has the offsets from 0 to 1, and not 2" in world.refused(*reset, "--to", "2")
    assert "the source 'orders' reads nothing" in world.refused("reset", "shop.py", "orders", "--yes")
    assert "has no processor 'nobody'" in world.refused("reset", "shop.py", "nobody", "--yes")
    (world.folder / "shop.py").write_text(APP + "graph.sink(input='totals', name='new')(lambda total: None)\n")
    assert "the processor 'new' never ran" in world.refused("reset", "shop.py", "new", "--yes")
