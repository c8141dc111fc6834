"""`detent consume` and `detent consumer` as a user runs them: real processes, killed and stopped, real exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import detent
import zygote
from acceptance.test_cli import detent_command, environment, ok, refused
from detent.consumer import Consumer, supervisor
from detent.runtime.process import Child
from detent.runtime.supervisor import Supervised
from detent.server.access import Grant
from detent.shard import operations as ops
from eventlines import Events
from processes import PATIENCE_S, eventually, has_ended
from remoteserver import TOKENS, serving

JOURNALS = ["a", "b", "c", "d"]

APP = """
import os, time
from detent.consumer import Consumer

app = Consumer("copies", read=["a", "b", "c", "d"], shards=4, lease="60s", max_transaction="20ms")
FOLDER = os.path.dirname(os.path.abspath(__file__))

@app.consume
def copy(message, state, publish):
    while os.path.exists(f"{FOLDER}/hang"):
        time.sleep(0.05)
    if message.body == b"bad" and not os.path.exists(f"{FOLDER}/fixed"):
        raise KeyError("no such order")
    if os.path.exists(f"{FOLDER}/slow"):
        time.sleep(0.002)
    state[message.journal] = state.get(message.journal, 0) + 1
    publish(f"out/{message.journal}", message.body, headers={"pid": str(os.getpid())})
"""
"""A lease that outlasts every test: what moves, moves because somebody gave it back."""


class World:
    """A folder with a store and an application in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder / 'data'}"
        self.app = str(folder / "copies.py")
        (folder / "copies.py").write_text(APP)

    def flag(self, name: str, *, is_set: bool = True) -> None:
        path = self.folder / name
        path.touch() if is_set else path.unlink()

    def append(self, count: int, journals: list[str] = JOURNALS) -> None:
        """More messages, each the number that it has in its journal."""
        with detent.open(self.url) as store:
            for journal in journals:
                first = store.reader.next_offset(journal)
                store.journal(journal).append_many([b"%d" % number for number in range(first, first + count)])

    def look(self, of: Callable[[detent.Store], Any]) -> Any:
        with detent.open(self.url) as store:
            return of(store)

    def shards(self) -> tuple[detent.ShardInfo, ...]:
        return self.look(lambda store: store.consumer("copies").info().shards)

    def await_all(self, count: int) -> None:
        """Until so many messages of each journal were processed."""
        with detent.open(self.url) as store:
            for journal in JOURNALS:
                store.consumer("copies").await_processed(journal, count - 1, "30s")

    def check(self, count: int) -> set[str]:
        """Each message once, in the order of its journal, in the output and in the state; the processes that did it."""
        pids: set[str] = set()
        with detent.open(self.url) as store:
            for index, journal in enumerate(JOURNALS):
                found = list(store.journal(f"out/{journal}").read())
                assert [int(message.body) for message in found] == list(range(count)), journal
                assert store.consumer("copies").state(index).get(journal) == count
                pids |= {message.headers["pid"] for message in found}
        return pids


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Running(Events):
    """`detent consume`, whose events are read all the time."""

    def __init__(self, world: World, *options: str) -> None:
        run = [sys.executable, "-m", "detent.cli", "consume", world.app, "--store", world.url, "--json", *options]
        super().__init__(run, world.folder, environment())

    def holders(self) -> dict[int, str]:
        """Who took each shard last."""
        return {event["shard"]: event["worker"] for event in self.of("taken")}


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str) -> Running:
        started.append(Running(world, *options))
        return started[-1]

    yield start
    for running in started:
        running.end()


def document(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "--json"))


def details(url: str) -> Any:
    """What only a consumer has, of all that is shown."""
    return document("consumer", "show", url, "copies")["details"]


# -- help -------------------------------------------------------------------------------------------------------------


def test_consumers_are_explained_once() -> None:
    """With a file to try; what a supervisor starts its processes with is not shown."""
    text = ok("consumer", "--help").decode()
    for part in ("detent run words.py --once", "@app.consume", "detent wait words --input lines=latest"):
        assert part in text
    text = ok("consume", "--help").decode()
    assert "--standbys" in text
    assert "--worker " not in text


# -- once -------------------------------------------------------------------------------------------------------------


def test_once_processes_what_there_is(world: World) -> None:
    world.append(250)
    lines = ok("consume", world.app, "--store", world.url, "--once").decode().splitlines()
    assert lines[0].split() == ["SHARD", "JOURNALS", "MESSAGES", "PROCESSED", "LAG"]
    assert [line.split() for line in lines[1:]] == [[str(n), name, "250", "250", "0"] for n, name in enumerate("abcd")]
    world.check(250)
    world.append(10, ["b"])
    (summary,) = map(json.loads, ok("consume", world.app, "--store", world.url, "--once", "--json").splitlines())
    assert (summary["event"], summary["messages"], summary["lag"]) == ("summary", 10, 0)
    assert [shard["messages"] for shard in summary["shards"]] == [0, 10, 0, 0]
    assert [shard["processed"] for shard in summary["shards"]] == [{"a": 250}, {"b": 260}, {"c": 250}, {"d": 250}]


def test_once_waits_for_whoever_works(world: World, start: Callable[..., Running]) -> None:
    world.append(1)
    running = start("--workers", "1")
    running.until("taken", 4)
    world.await_all(1)
    waiting = zygote.Forked(
        [sys.executable, "-m", "detent.cli", "consume", world.app, "--store", world.url, "--once"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with waiting:
        said = waiting.stderr.readline().decode()
        assert said.startswith("shard 0 is waited for: the member ")
        running.stop()
        shown, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0
    assert [line.split()[4] for line in shown.decode().splitlines()[1:]] == ["0"] * 4
    world.check(1)


def test_the_store_is_the_option_s_then_the_consumer_s_then_the_environment_s(world: World) -> None:
    world.append(1)
    target = f"{world.app}:app"
    env = environment(DETENT_URL=world.url)
    assert b"a " in ok("consume", target, "--once", env=env)
    Path(world.app).write_text(APP.replace('"copies",', f'"copies", store="file:{world.folder}/own",'))
    ok("consume", target, "--once", env=env)
    assert world.look(lambda store: store.reader.extent("out/a")) == (0, 1)
    assert (world.folder / "own").is_dir()
    said = ok("consume", target, "--once", "--url", str(world.folder / "data")).decode()
    assert said.splitlines()[1].split() == ["0", "a", "0", "1", "0"]


def test_what_is_wrong_is_said_in_a_line(world: World) -> None:
    store = ["--store", world.url]
    assert "has no store: give --store URL" in refused("consume", world.app, "--once", code=1)
    assert "lives and ends with its process" in refused("consume", world.app, "--store", "memory:", code=1)
    assert "there is no file" in refused("consume", "nothing.py", *store, code=1)
    assert f"there is {world.app}:app" in refused("consume", f"{world.app}:other", *store, code=1)
    assert "a lease lasts at least 500 ms" in refused("consume", world.app, *store, "--lease", "1ms", code=1)
    assert "is no duration" in refused("consume", world.app, *store, "--lease", "soon", code=1)
    assert "leave --workers out" in refused("consume", world.app, *store, "--once", "--workers", "2", code=2)
    assert "shards: a number from 1 to 1024" in refused("consume", world.app, *store, "--shards", "2000", code=1)
    assert not (world.folder / "data").exists()


def test_an_exception_is_told_with_its_line(world: World) -> None:
    world.append(3)
    world.look(lambda store: store.journal("b").append(b"bad"))
    said = refused("consume", world.app, "--store", world.url, "--once", code=1)
    line = APP[: APP.index("raise KeyError")].count("\n") + 1
    assert f"the consumer 'copies' failed: {world.app}:{line}: KeyError: 'no such order'" in said
    assert "the next run begins with it" in said
    world.flag("fixed")
    ok("consume", world.app, "--store", world.url, "--once")
    bodies = world.look(lambda store: [message.body for message in store.journal("out/b").read()])
    assert bodies == [b"0", b"1", b"2", b"bad"]


def test_another_number_of_shards_is_refused(world: World) -> None:
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    for more in (["--once"], ["--json"], []):
        said = refused("consume", world.app, "--store", world.url, "--shards", "2", *more, code=1)
        assert "the consumer 'copies' has 4 shards, not 2, and their number stays" in said


# -- several processes ------------------------------------------------------------------------------------------------


def test_two_workers_share_the_work_and_end_well(world: World, start: Callable[..., Running]) -> None:
    world.append(200)
    running = start("--workers", "2")
    running.until("taken", 4)
    world.append(200)
    world.await_all(400)
    holders = running.holders()
    assert sorted(holders) == [0, 1, 2, 3]
    assert len(set(holders.values())) == 2
    status = running.until("status")[0]
    assert [shard["journals"] for shard in status["shards"]] == [["a"], ["b"], ["c"], ["d"]]
    shown = details(world.url)
    assert {shard["shard"]: shard["holder"] for shard in shown["shards"]} == holders
    assert {member["member"] for member in shown["members"]} == set(holders.values())
    running.stop()
    assert running.of("stopping")
    assert sorted(event["shard"] for event in running.of("released")) == [0, 1, 2, 3]
    assert [shard.holder for shard in world.shards()] == [""] * 4
    assert world.check(400) == {str(event["pid"]) for event in running.of("started")}


def test_a_worker_that_is_killed_loses_nothing(world: World, start: Callable[..., Running]) -> None:
    count = 400
    world.flag("slow")
    world.append(count)
    running = start("--workers", "2")
    running.until("taken", 4)
    victim, survivor = running.of("started")
    lost = [shard for shard, worker in running.holders().items() if worker == victim["worker"]]
    eventually(lambda: all(is_at_work(world, shard) for shard in lost), what="some work of the victim's")
    os.kill(victim["pid"], signal.SIGKILL)
    (died,) = running.until("died", pid=victim["pid"])
    assert died["text"] == "SIGKILL ended it"
    for shard in lost:
        eventually(lambda shard=shard: running.holders()[shard] != victim["worker"], what="another holder")
    again = running.until("started", 3)[2]
    assert again["worker"] not in {victim["worker"], survivor["worker"]}
    world.await_all(count)
    running.stop()
    pids = world.check(count)
    assert {str(victim["pid"]), str(survivor["pid"])} <= pids


def is_at_work(world: World, shard: int) -> bool:
    """Whether a shard has done something, and not everything."""
    info = world.shards()[shard]
    return any(0 < offset < 400 for offset in info.processed.values())


def test_workers_end_with_their_supervisor(world: World, start: Callable[..., Running]) -> None:
    world.flag("slow")
    world.append(300)
    running = start("--workers", "2")
    running.until("taken", 4)
    running.process.kill()
    running.process.wait(PATIENCE_S)
    for event in running.of("started"):
        eventually(lambda pid=event["pid"]: has_ended(pid), what="the end of a worker")
    assert [shard.holder for shard in world.shards()] == [""] * 4, "they gave back what they held"
    world.flag("slow", is_set=False)
    ok("consume", world.app, "--store", world.url, "--once")
    world.check(300)


def test_ctrl_c_reaches_everybody_and_ends_well(world: World, start: Callable[..., Running]) -> None:
    world.append(10)
    running = start("--workers", "2")
    running.until("taken", 4)
    world.await_all(10)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.wait() == 0, running.said()
    assert [shard.holder for shard in world.shards()] == [""] * 4
    world.check(10)


def test_a_second_signal_does_not_wait(world: World, start: Callable[..., Running]) -> None:
    world.append(10)
    world.flag("hang")
    running = start("--workers", "2")
    running.until("taken", 4)
    running.process.terminate()
    running.until("stopping")
    running.process.terminate()
    assert running.wait() == 130
    for event in running.of("started"):
        assert has_ended(event["pid"])
    assert [shard.holder for shard in world.shards()] == [""] * 4
    world.flag("hang", is_set=False)
    ok("consume", world.app, "--store", world.url, "--once")
    world.check(10)


def test_a_deleted_consumer_ends_and_does_not_begin_anew(world: World, start: Callable[..., Running]) -> None:
    world.append(10)
    running = start("--workers", "2")
    running.until("taken", 4)
    said = refused("consumer", "delete", world.url, "copies", "--yes", code=1)
    assert "holds shard 0 of the consumer 'copies': stop it first" in said
    done = document("consumer", "delete", world.url, "copies", "--yes", "--force")
    assert done == [{"task": "consumer/copies", "deleted": True, "logs": []}]
    assert running.wait() == 1
    assert "there is no consumer 'copies'" in running.said()
    assert document("consumer", "ls", world.url) == []


def test_a_shard_that_fails_is_shown_and_goes_on_once_it_can(world: World, start: Callable[..., Running]) -> None:
    world.append(3)
    world.look(lambda store: store.journal("b").append(b"bad"))
    running = start("--workers", "1")
    line = APP[: APP.index("raise KeyError")].count("\n") + 1
    error = f"{world.app}:{line}: KeyError: 'no such order'"
    assert running.until("failed")[0]["text"] == error

    def failed() -> Any:
        shard = details(world.url)["shards"][1]
        return shard if shard["status"] == "failed" else None

    shown = eventually(failed, what="a failed shard")
    assert (shown["error"], shown["lag"]) == (error, {"b": 4})
    assert "KeyError: 'no such order'" in ok("consumer", "show", world.url, "copies").decode()
    said = refused("consumer", "wait", world.url, "copies", "b", "--end", "--timeout", "100ms", code=1)
    assert f"its last error: {error}" in said
    world.flag("fixed")
    (done,) = document("consumer", "wait", world.url, "copies", "b", "--end")
    assert (done["parts"][1]["progress"], done["written"]["out/b"]) == ({"processed": 4}, 4)
    running.stop()


def test_lines_for_a_log(world: World) -> None:
    world.append(5)
    process = zygote.Forked(
        [sys.executable, "-m", "detent.cli", "consume", world.app, "--store", world.url, "--workers", "1"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        eventually(lambda: has_consumed(world), what="the work")
        process.terminate()
        said = process.communicate(timeout=PATIENCE_S)[1].decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, said
    for part in (" started (process ", "shard 3 taken by ", "stopping: ", "shard 0 released by "):
        assert part in said


def has_consumed(world: World) -> bool:
    with detent.open(world.url, role="reader") as store:
        return all(store.reader.next_offset(f"out/{name}") == 5 for name in JOURNALS)


def test_a_table_on_a_terminal(world: World) -> None:
    world.append(5)
    world.look(lambda store: store.journal("b").append(b"bad"))
    Path(world.app).write_text(APP.replace("state[message", "print('[b]hello[/b]')\n    state[message", 1))
    ours, theirs = pty.openpty()
    process = zygote.Forked(
        [sys.executable, "-m", "detent.cli", "consume", world.app, "--store", world.url, "--workers", "1"],
        stdin=subprocess.DEVNULL,
        stderr=theirs,
        env=environment(COLUMNS="160", LINES="50", TERM="xterm"),
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not all(part in shown for part in (b"msgs/s", b"failed", b"[b]hello[/b]", b"running", b"lag 6")):
            assert time.monotonic() < deadline, shown.decode()
            shown += os.read(ours, 1 << 16)
        process.terminate()
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while some := os.read(ours, 1 << 16):
                shown += some
        assert process.wait(PATIENCE_S) == 0, shown.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


# -- looking and steering ---------------------------------------------------------------------------------------------


def test_consumers_are_listed_and_shown(world: World) -> None:
    world.append(2)
    assert document("consumer", "ls", world.url) == []
    assert "knows no task 'consumer/copies'" in refused("consumer", "show", world.url, "copies", code=1)
    ok("consume", world.app, "--store", world.url, "--once")
    world.append(1, ["c"])
    (listed,) = document("consumer", "ls", world.url, "--prefix", "cop")
    shown = document("consumer", "show", world.url, "copies")
    found = shown.pop("details")
    assert listed == shown
    assert (listed["name"], listed["lag"], found["paused"], found["members"]) == ("copies", 1, False, [])
    assert found["shards"][2] == {
        "shard": 2, "journals": ["c"], "holder": None, "lease_ms": 0, "status": "free", "error": None,
        "generation": 0, "processed": {"c": 2}, "published": {"out/c": 2}, "lag": {"c": 1}, "gone": {},
    }  # fmt: skip
    assert document("consumer", "ls", world.url, "--prefix", "x") == []
    lines = ok("consumer", "ls", world.url).decode().splitlines()
    assert lines[0].split() == ["TASK", "STATE", "DONE", "LAG", "ERROR"]
    assert lines[1].split() == ["consumer/copies", "stopped", "8", "processed", "1", "-"]
    env = environment(DETENT_URL=world.url)
    text = ok("consumer", "show", "copies", env=env).decode()
    assert "divided by: journal\n" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["SHARD", "STATE", "DONE", "LAG", "HOLDER", "JOURNALS", "ERROR"] in rows
    assert ["2", "stopped", "2", "processed", "1", "-", "c", "-"] in rows


def test_waiting_for_what_was_written(world: World, start: Callable[..., Running]) -> None:
    world.append(2)
    running = start("--workers", "1")
    running.until("taken", 4)
    world.append(20)
    (done,) = document("consumer", "wait", world.url, "copies", "a", "--end")
    assert (done["parts"][0]["progress"], done["written"]) == ({"processed": 22}, {"out/a": 22})
    said = ok("consumer", "wait", world.url, "copies", "b", "--offset", "21").decode()
    assert said == "consumer/copies has done what there was\n  out/b is written up to offset 22\n"
    assert ok("wait", world.url, "copies", "--input", "b=21").decode() == said
    refusal = refused("consumer", "wait", world.url, "copies", "b", "--offset", "22", "--timeout", "50ms", code=1)
    assert "has not processed offset 22 of 'b' in time" in refusal
    world.look(lambda store: store.journal("x").append(b""))
    assert "does not read the journal 'x'" in refused("consumer", "wait", world.url, "copies", "x", "--end", code=1)
    assert "say which message" in refused("consumer", "wait", world.url, "copies", "a", code=2)
    assert "say which message" in refused(
        "consumer", "wait", world.url, "copies", "a", "--end", "--offset", "1", code=2
    )
    running.stop()
    (done,) = document("consumer", "wait", world.url, "copies", "a", "--end", "--timeout", "50ms")
    assert (done["state"], done["written"]) == ("stopped", {"out/a": 22})


def test_nothing_to_wait_for(world: World) -> None:
    world.look(lambda store: [store.journal(journal).create() for journal in [*JOURNALS, "x"]])
    ok("consume", world.app, "--store", world.url, "--once")
    (done,) = document("consumer", "wait", world.url, "copies", "a", "--end", "--timeout", "50ms")
    assert (done["progress"], done["written"]) == ({"processed": 0}, {})
    assert "does not read the journal 'x'" in refused("consumer", "wait", world.url, "copies", "x", "--end", code=1)
    assert "knows no task 'consumer/y': there is consumer/copies" in refused(
        "consumer", "wait", world.url, "y", "a", "--end", code=1
    )


def test_paused_and_resumed(world: World, start: Callable[..., Running]) -> None:
    world.append(2)
    running = start("--workers", "1")
    running.until("taken", 4)
    world.await_all(2)
    assert document("consumer", "pause", world.url, "copies") == [{"task": "consumer/copies", "paused": True}]

    def rests() -> bool:
        return [shard.status for shard in world.shards()] == ["paused"] * 4

    eventually(rests, what="a rest")
    world.append(2)
    assert "the consumer is paused" in refused(
        "consumer", "wait", world.url, "copies", "a", "--end", "--timeout", "50ms", code=1
    )
    assert ok("consumer", "pause", world.url, "copies") == b"consumer/copies rests\n"
    assert ok("consumer", "ls", world.url).decode().splitlines()[1].split()[1] == "paused"
    assert document("consumer", "resume", world.url, "copies") == [{"task": "consumer/copies", "paused": False}]
    world.await_all(4)
    assert ok("consumer", "resume", world.url, "copies") == b"consumer/copies goes on\n"
    running.stop()
    world.check(4)
    assert "knows no task 'consumer/x'" in refused("consumer", "pause", world.url, "x", code=1)


def outputs(world: World, journal: str) -> list[int]:
    return world.look(lambda store: [int(message.body) for message in store.journal(f"out/{journal}").read()])


def test_reset_while_it_runs(world: World, start: Callable[..., Running]) -> None:
    world.append(4)
    running = start("--workers", "1")
    running.until("taken", 4)
    world.await_all(4)
    said = refused("consumer", "reset", world.url, "copies", "--journal", "a", "--offset", "1", code=2)
    assert "resets copies to offset 1 of a: its state stays, and up to 3 messages take effect again; say --yes" in said
    done = document("consumer", "reset", world.url, "copies", "--journal", "a", "--offset", "1", "--yes")
    assert done == [{"task": "consumer/copies", "to": {"a": 1}}]
    assert document("consumer", "wait", world.url, "copies", "a", "--end")[0]["written"]["out/a"] == 7
    assert outputs(world, "a") == [0, 1, 2, 3, 1, 2, 3]
    running.stop()
    assert outputs(world, "b") == [0, 1, 2, 3]


def test_reset_to_a_time_and_to_the_ends(world: World) -> None:
    world.append(2)
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    world.append(2)
    run = ["consume", world.app, "--store", world.url, "--once"]
    reset = ["consumer", "reset", world.url, "copies", "--yes", "--journal"]
    ok(*run)
    assert document(*reset, "b", "--time", between.isoformat())[0]["to"] == {"b": 2}
    assert b"reset copies to offset 0 of c: its state stays" in ok(*reset, "c", "--earliest")
    assert details(world.url)["lag"] == 6, "a reset counts before anybody has read on"
    world.append(3, ["d"])
    said = refused("consumer", "reset", world.url, "copies", "--journal", "d", "--latest", code=2)
    assert "to offset 7 of d: its state stays, and up to 3 messages are skipped for ever" in said
    assert document(*reset, "d", "--latest")[0]["to"] == {"d": 7}
    ok(*run)
    assert outputs(world, "a") == [0, 1, 2, 3]
    assert outputs(world, "b") == [0, 1, 2, 3, 2, 3]
    assert outputs(world, "c") == [0, 1, 2, 3, 0, 1, 2, 3]
    assert outputs(world, "d") == [0, 1, 2, 3]
    assert details(world.url)["lag"] == 0


def test_a_reset_says_where_to(world: World) -> None:
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    reset = ["consumer", "reset", world.url, "copies", "--yes"]
    assert "Missing option '--journal'" in refused(*reset, code=2)
    assert "say where to go on, once" in refused(*reset, "--journal", "a", code=2)
    assert "say where to go on, once" in refused(*reset, "--journal", "a", "--earliest", "--latest", code=2)
    assert "'soon' is not a place in a journal" in refused(*reset, "--journal", "a", "--time", "soon", code=2)
    assert "does not read the journal 'x'" in refused(*reset, "--journal", "x", "--offset", "0", code=1)


def test_recreated_journal_is_shown_with_what_to_do(world: World) -> None:
    world.append(3)
    ok("consume", world.app, "--store", world.url, "--once")
    world.look(lambda store: store.journal("a").delete())
    (shown,) = [one for one in details(world.url)["shards"] if one["gone"]]
    assert (shown["gone"], shown["lag"]) == ({"a": "deleted"}, {"a": 0})
    world.append(2, ["a"])
    (shown,) = [one for one in details(world.url)["shards"] if one["gone"]]
    assert (shown["gone"], shown["lag"]) == ({"a": "recreated"}, {"a": 2})
    command = "detent reset consumer/copies --input a=earliest"
    assert command in shown["error"]
    assert command in ok("consumer", "show", world.url, "copies").decode()
    assert "another one of that name" in refused("consume", world.app, "--store", world.url, "--once", code=1)
    ok("consumer", "reset", world.url, "copies", "--journal", "a", "--earliest", "--yes")
    assert "made anew" not in ok("consumer", "show", world.url, "copies").decode()
    ok("consume", world.app, "--store", world.url, "--once")
    assert outputs(world, "a") == [0, 1, 2, 0, 1]


def test_state_is_shown(world: World) -> None:
    world.append(3)
    ok("consume", world.app, "--store", world.url, "--once")
    assert ok("consumer", "state", world.url, "copies").decode() == '"a": 3\n"b": 3\n"c": 3\n"d": 3\n'
    lines = ok("consumer", "state", world.url, "copies", "--shard", "1", "--json").splitlines()
    assert list(map(json.loads, lines)) == [{"shard": 1, "key": "b", "value": 3}]
    assert ok("consumer", "state", world.url, "copies", "--prefix", "d") == b'"d": 3\n'
    assert "has no shard 9: it has 4" in refused("consumer", "state", world.url, "copies", "--shard", "9", code=1)
    assert "there is no consumer 'x'" in refused("consumer", "state", world.url, "x", code=1)


ROWS_STAY = "rows of a database (table detent_shards) are not touched"


def test_delete_asks(world: World) -> None:
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    said = refused("consumer", "delete", world.url, "copies", code=2)
    what = f"the consumer copies, with the progress and state of 4 shards; {ROWS_STAY}"
    assert f"this deletes {what}; say --yes" in said
    assert ok("consumer", "delete", world.url, "copies", "--yes").decode() == f"deleted {what}\n"
    assert "no task 'consumer/copies'" in refused("consumer", "delete", world.url, "copies", "--yes", code=1)
    ok("consume", world.app, "--store", world.url, "--once", "--shards", "2")
    assert outputs(world, "a") == [0, 0]


def test_delete_takes_the_recovery_logs_along(world: World) -> None:
    recorded = APP.replace("shards=4,", "shards=2, state=RecordedState(os.path.dirname(__file__)),")
    Path(world.app).write_text(f"from detent.state import RecordedState\n{recorded}")
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    logs = ["copies/recovery/0", "copies/recovery/1"]
    others = ["copies/recovery", "copies/recovery/0/x", "copies/recovery/x", "copies2/recovery/0"]
    world.look(lambda store: [store.journal(journal).create() for journal in ["copies/recovery/10", *others]])
    logs.append("copies/recovery/10")
    shown = "with the progress and state of 2 shards and the recovery logs " + ", ".join(logs)
    said = refused("consumer", "delete", world.url, "copies", code=2)
    assert f"this deletes the consumer copies, {shown}; {ROWS_STAY}; say --yes" in said
    done = document("consumer", "delete", world.url, "copies", "--yes")
    assert done == [{"task": "consumer/copies", "deleted": True, "logs": logs}]
    assert world.look(lambda store: store.journals("copies")) == sorted(others)
    ok("consume", world.app, "--store", world.url, "--once")
    assert outputs(world, "a") == [0, 0], "it began at the beginning"


def test_logs_of_a_consumer_that_is_not_deleted_stay(world: World) -> None:
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    world.look(lambda store: store.journal("copies/recovery/0").create())
    world.look(lambda store: store.commit([ops.LeaseShard("copies", 0, "m", 60_000)]))
    assert "'m' holds shard 0" in refused("consumer", "delete", world.url, "copies", "--yes", code=1)
    assert world.look(lambda store: store.journals("copies/")) == ["copies/recovery/0"]


@pytest.mark.parametrize("has_logs", [True, False])
def test_delete_with_a_token_for_one_consumer(world: World, monkeypatch: pytest.MonkeyPatch, has_logs: bool) -> None:
    """It may not list journals, and finds the logs that it has a right to."""
    world.append(1)
    ok("consume", world.app, "--store", world.url, "--once")
    world.look(lambda store: store.journal("copies/recovery/1").create())
    grants = [Grant("admin", "consumer", "copies"), Grant("admin", "journal", "copies/recovery/*")]
    monkeypatch.setitem(TOKENS, "mine", tuple(grants if has_logs else grants[:1]))
    with serving(world.url, guarded=True) as server:
        env = environment(DETENT_TOKEN="mine")
        (done,) = json.loads(ok("consumer", "delete", server.url, "copies", "--yes", "--json", env=env))
    assert done["logs"] == ["copies/recovery/1"] * has_logs
    assert world.look(lambda store: store.journals("copies/")) == ["copies/recovery/1"] * (not has_logs)


def test_behind_a_server(world: World) -> None:
    world.append(20)
    with serving(world.url) as server:
        summary = json.loads(ok("consume", world.app, "--store", server.url, "--once", "--json"))
        assert (summary["messages"], summary["lag"]) == (80, 0)
        assert details(server.url)["lag"] == 0
        assert document("consumer", "wait", server.url, "copies", "a", "--end")[0]["written"] == {"out/a": 20}
    world.check(20)


# -- parts ------------------------------------------------------------------------------------------------------------


def test_how_many_processes() -> None:
    app = Consumer("c", read="a", shards=1_000)
    processors = os.cpu_count() or 1
    assert supervisor.worker_count(app, "file:./data", None) == processors
    assert supervisor.worker_count(app, "http://localhost:1", 7) == 7
    app.shards, app.standbys = 1, 3
    assert supervisor.worker_count(app, "file:./data", None) == 4
    assert supervisor.worker_count(app, "s3://bucket/data", None) == 0
    with pytest.raises(detent.Invalid, match="detent serve"):
        supervisor.worker_count(app, "s3://bucket/data", 2)


def test_deaths_are_waited_out_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lived_s = [0.0], [1.0]

    def begin(member: str) -> Child:
        now[0] += lived_s[0]
        return Child([sys.executable, "-c", ""])

    def die() -> float:
        one.turn()
        lives = len(ended)
        now[0] += rests[-1] - 0.01
        one.turn()
        assert len(ended) == lives, "it is not started again before"
        now[0] += 0.02
        return rests[-1]

    ended: list[str] = []
    rests: list[float] = []
    process = supervisor.WorkerProcess("w", begin, lambda member, child, status: ended.append(member))
    monkeypatch.setattr(process, "failed", lambda error, pause_s: rests.append(pause_s))
    one = Supervised(process, clock=lambda: now[0]).start_turns()
    waits = [die() for _ in range(10)]
    assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(waits) == supervisor.RESTART.max_s
    assert len(set(ended)) == 10, "each is a member of its own"
    lived_s[0] = supervisor.STEADY_S
    assert die() == pytest.approx(supervisor.RESTART.first_s)


def test_a_worker_without_a_supervisor_ends(world: World) -> None:
    world.append(1)
    done = detent_command("consume", world.app, "--store", world.url, "--worker", "alone")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
