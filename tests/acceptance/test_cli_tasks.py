"""`detent run` of every kind that needs no Spark, alone and together, and each verb on each kind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
import zygote
from acceptance.test_cli import PATIENCE_S, environment
from detent.ingest import metastore, ownership
from detent.ingest.config import IngestConfig
from detent.ingest.shared_state import FileShard, QueueSharedState
from eventlines import Events
from processes import eventually

SHOP = """
from dataclasses import dataclass
from detent.bus import Bus
from detent.consumer import Consumer
from detent.processor import Graph


@dataclass
class Placed:
    number: int


words = Consumer("words", store="file:./data", read="lines")

@words.consume
def count(message, state, publish):
    for word in message.body.decode().split():
        state[word] = state.get(word, 0) + 1


graph = Graph("shop", store="file:./data", errors="failed")
graph.source("orders")

@graph.stream(input="orders", output="totals")
def total(order):
    return {"id": order["id"]}


billing = Bus("billing", "file:./data")

@billing.handler
def bill(order: Placed):
    with open("billed", "a") as billed:
        billed.write(f"{order.number}\\n")
"""
WORKER = """
import os
import time

import detent

store = detent.open("file:./mails")
store.queue("mails").create(exist_ok=True)

def deliver(message):
    while os.path.exists("hang"):
        open("began", "w").close()
        time.sleep(0.05)
    with open("delivered", "a") as delivered:
        delivered.write(f"{message.body.decode()}\\n")

worker = detent.Worker(store.queue("mails"), deliver)
"""
ASYNC_WORKER = """
import asyncio

import detent

async def deliver(message):
    await asyncio.sleep(0)
    with open("delivered", "a") as delivered:
        delivered.write(f"{message.body.decode()}\\n")

worker = detent.AsyncWorker(detent.open_async("file:./mails").queue("mails"), deliver, concurrency=4)
"""
PIPELINE = """
from detent.spark import Pipeline
pipeline = Pipeline("chain", store="file:./data")

@pipeline.stream(read="numbers", write="doubled")
def doubled(numbers):
    return numbers
"""
INGEST = 'name = "orders"\nqueue = "detent:./queue#files"\ntable = "lake/orders"\n'


class World:
    """A folder with files that declare tasks, which is the current one of every command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder / 'data'}"
        for name, text in (("shop.py", SHOP), ("mails.py", WORKER), ("chain.py", PIPELINE), ("orders.toml", INGEST)):
            (folder / name).write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "detent.cli", *arguments]

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
        return text

    def fill(self) -> None:
        """A message for each task of the shop."""
        self.ok("graph", "send", "shop.py", '{"id": 1}')
        with detent.open(self.url) as store:
            store.journal("lines").append(b"to be or not to be")
        self.ok("run", "shop.py:billing", "--once")
        self.publish(7)

    def publish(self, number: int) -> None:
        text = f"from shop import Placed, billing; billing.publish(Placed({number})); billing.stop()"
        done = zygote.run(
            [sys.executable, "-c", text], timeout=PATIENCE_S, cwd=self.folder, env=environment(PYTHONPATH=".")
        )
        assert done.returncode == 0, done.stderr

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def report(self, task: str) -> Any:
        return self.document("show", task, "--url", self.url)

    def ingested(self) -> None:
        """A file of an ingest that is open, and one that is done."""
        settings = IngestConfig.read(self.folder / "orders.toml")
        engine = metastore.connect(settings.state_url)
        try:
            ownership.register(engine, settings)
            shared = QueueSharedState(engine, settings.name, "pipeline", 1_000)
            shards = [FileShard(name.encode() * 16, f"file:///landing/{name}.json", "etag:1", 2_048) for name in "ab"]
            shared.open(shards)
            shared.finish(shards[1:])
        finally:
            engine.dispose()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world whose tasks run in one process, for tests that leave them as they were."""
    world = World(tmp_path_factory.mktemp("shop"))
    world.fill()
    running = Events(world.command("run", "shop.py", "--json", "--workers", "1"), world.folder, environment())
    try:
        running.until("started", 3)
        eventually(lambda: world.lines("billed") == ["7"], what="the app")
        yield world
        running.stop()
        assert [event["task"] for event in running.of("stopping")] == ["app/billing", "graph/shop", "consumer/words"]
        assert running.of("stopped", task="app/billing")[0]["handled"] == 1
        assert running.said() == ""
    finally:
        running.end()


# -- run --------------------------------------------------------------------------------------------------------------


def test_each_kind_runs_by_its_name_and_all_without_one(world: World) -> None:
    world.fill()
    (words,) = map(json.loads, world.ok("run", "shop.py:words", "--once", "--json").splitlines())
    assert (words["event"], words["name"], words["messages"]) == ("summary", "words", 1)
    (graph,) = map(json.loads, world.ok("run", "shop.py:graph", "--once", "--json").splitlines())
    assert graph["processors"] == [{"processor": "total", "outputs": 1, "errors": 0, "nils": 0, "lag": 0}]
    (app,) = map(json.loads, world.ok("run", "shop:billing", "--once", "--json").splitlines())
    assert app["apps"][0]["handled"] == 1
    assert world.lines("billed") == ["7"]
    summaries = [json.loads(line) for line in world.ok("run", "shop.py", "--once", "--json").splitlines()]
    assert [one["task"] for one in summaries] == ["consumer/words", "graph/shop", "app/billing"]


@pytest.mark.parametrize("text", [WORKER, ASYNC_WORKER], ids=["threads", "asyncio"])
def test_worker_runs_until_queue_is_empty(world: World, text: str) -> None:
    (world.folder / "mails.py").write_text(text)
    with detent.open(f"file:{world.folder / 'mails'}") as store:
        store.queue("mails").create()
        for name in ("a", "b"):
            store.queue("mails").publish(name.encode())
    (summary,) = [json.loads(line) for line in world.ok("run", "mails.py", "--once", "--json").splitlines()][-1:]
    assert summary == {"event": "summary", "queue": "mails", "handled": 2, "failed": 0}
    assert sorted(world.lines("delivered")) == ["a", "b"]
    running = Events(world.command("run", "mails.py:worker", "--json"), world.folder, environment())
    try:
        running.until("started")
        with detent.open(f"file:{world.folder / 'mails'}") as store:
            store.queue("mails").publish(b"c")
        eventually(lambda: "c" in world.lines("delivered"), what="the worker")
        running.stop()
        assert running.of("stopped")[0]["handled"] == 1
    finally:
        running.end()


def test_worker_does_not_wait_after_second_interrupt(world: World) -> None:
    (world.folder / "hang").touch()
    running = Events(world.command("run", "mails.py", "--json"), world.folder, environment())
    try:
        running.until("started")
        with detent.open(f"file:{world.folder / 'mails'}") as store:
            store.queue("mails").publish(b"a")
        eventually((world.folder / "began").exists, what="the handler")
        running.process.send_signal(signal.SIGINT)
        running.until("stopping")
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130
        assert world.lines("delivered") == []
    finally:
        running.end()


def test_worker_leaves_what_queue_does_not_hand_out(world: World) -> None:
    with detent.open(f"file:{world.folder / 'mails'}") as store:
        queue = store.queue("mails")
        queue.create()
        queue.publish(b"a")
        queue.pause()
    (summary,) = [json.loads(line) for line in world.ok("run", "mails.py", "--once", "--json").splitlines()][-1:]
    assert summary == {"event": "summary", "queue": "mails", "handled": 0, "failed": 0}


def test_one_that_cannot_run_ends_all(world: World) -> None:
    world.ok("run", "shop.py:words", "--once")
    done = world.refused("run", "shop.py", "--shards", "2")
    assert "the consumer 'words' has 1 shards, not 2, and their number stays" in done


def test_check_shows_all_and_starts_nothing(world: World) -> None:
    text = world.ok("run", "shop.py", "chain.py", "orders.toml", "--check")
    for part in ("consumer: words", "orders → totals", "name:          billing", "doubled", "ingest: orders"):
        assert part in text
    assert not (world.folder / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nothing.py"], 1, "there is no file nothing.py"),
        (["empty.py"], 1, "empty.py declares no task; it needs lines such as"),
        (["shop.py:other"], 1, "shop.py has no 'other'; there is shop.py:billing, shop.py:graph, shop.py:words"),
        (["shop.py:count"], 1, "shop.py:count is no task but a function"),
        (["shop.py:graph", "--shards", "2"], 2, "--shards is an option of consumer: this is graph"),
        (["shop.py:words", "--only", "total"], 2, "--only is an option of graph and pipeline: this is consumer"),
        (["shop.py:words", "--once", "--workers", "2"], 2, "leave --workers out, or --once"),
        (["shop.py:billing", "--once", "--metrics-port", "9100"], 2, "give one of them"),
        (
            ["shop.py:billing", "--store", "file:./x"],
            2,
            "--store is an option of bridge and consumer and graph and pipeline",
        ),
        (["orders.toml", "--match", "*.json"], 2, "say --backfill PREFIX too"),
        (["none.toml"], 1, "there is no file"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_said(world: World, arguments: list[str], code: int, says: str) -> None:
    (world.folder / "empty.py").write_text("x = 1\n")
    assert says in world.refused("run", *arguments, code=code)
    assert not (world.folder / "data").exists()


# -- look -------------------------------------------------------------------------------------------------------------


def test_tasks_of_store_and_of_file_are_listed(shop: World) -> None:
    eventually(lambda: shop.report("words")["state"] == "running", what="the consumer")
    listed = {f"{one['kind']}/{one['name']}": one for one in shop.document("ls", shop.url)}
    declared = {f"{one['kind']}/{one['name']}": one for one in shop.document("ls", "shop.py")}
    assert list(listed) == list(declared) == ["consumer/words", "graph/shop", "app/billing"]
    for one in (listed, declared):
        assert (one["consumer/words"]["state"], one["consumer/words"]["progress"]) == ("running", {"processed": 1})
        assert (one["graph/shop"]["state"], one["graph/shop"]["lag"]) == ("running", 0)
        assert one["app/billing"]["progress"] == {"handled": 1, "given up": 0}
    assert declared["graph/shop"]["progress"] == {"outputs": 1, "errors": 0, "nils": 0}
    lines = [line.split() for line in shop.ok("ls", "--url", shop.url).splitlines()]
    assert lines[0] == ["TASK", "STATE", "DONE", "LAG", "ERROR"]
    assert lines[1] == ["consumer/words", "running", "1", "processed", "0", "-"]


def test_task_is_shown_with_its_parts(shop: World) -> None:
    eventually(lambda: shop.report("words")["state"] == "running", what="the consumer")
    shown = shop.document("show", shop.url, "consumer/words")
    assert [(part["kind"], part["state"]) for part in shown["parts"]] == [("shard", "running")]
    assert shown["parts"][0]["about"]["journals"] == "lines"
    assert shop.report("graph/shop")["parts"][0]["name"] == "total"
    assert "task:       consumer/words" in shop.ok("show", shop.url, "words")
    assert "queue:     billing" in shop.ok("show", "shop.py:billing")
    assert shop.document("show", "shop.py:graph")["parts"][0]["progress"]["outputs"] == 1


def test_wait_returns_when_nothing_is_left(shop: World) -> None:
    with detent.open(shop.url) as store:
        before = store.journal("lines").append(b"that is the question").offset
    assert shop.ok("wait", shop.url, "words") == "consumer/words has done what there was\n"
    assert shop.report("words")["progress"] == {"processed": before + 1}
    shop.ok("graph", "send", "shop.py", '{"id": 2}')
    assert [one["lag"] for one in shop.document("wait", "shop.py")] == [0, 0, 0]


# -- steer ------------------------------------------------------------------------------------------------------------


def test_all_tasks_of_file_rest_and_go_on(shop: World) -> None:
    assert shop.ok("pause", "shop.py") == "consumer/words rests\ngraph/shop rests\napp/billing rests\n"
    for task in ("words", "shop", "app/billing"):
        eventually(lambda task=task: shop.report(task)["state"] == "paused", what=task)
    assert [one["state"] for one in shop.document("ls", "shop.py")] == ["paused"] * 3
    assert shop.document("resume", shop.url, "consumer/words") == [{"task": "consumer/words", "paused": False}]
    assert shop.ok("resume", "shop.py") == "consumer/words goes on\ngraph/shop goes on\napp/billing goes on\n"
    for task in ("words", "shop"):
        eventually(lambda task=task: shop.report(task)["state"] == "running", what=task)


def test_consumer_and_graph_begin_again_and_are_removed(world: World) -> None:
    world.fill()
    world.ok("run", "shop.py", "--once")
    assert "say --yes if that is meant" in world.refused("reset", world.url, "words", code=2)
    assert world.ok("reset", world.url, "words", "--yes").startswith(
        "reset words to offset 0 of lines: its state stays"
    )
    assert world.document("reset", "shop.py:graph", "--yes")[0]["to"] == {"total": {"orders": 0}}
    assert [world.report(task)["lag"] for task in ("words", "shop")] == [1, 1]
    assert "still has" in world.refused("wait", world.url, "graph/shop", "--timeout", "50ms")
    assert world.document("reset", world.url, "words", "--to", "latest", "--yes")[0]["to"] == {"lines": 1}
    assert "give FILE:NAME" in world.refused("reset", world.url, "graph/shop", "--yes")
    assert "'app/billing'" not in world.ok("rm", world.url, "words", "--yes")
    assert world.document("rm", "shop.py:graph", "--yes") == [{"task": "graph/shop", "deleted": True}]
    assert world.ok("rm", world.url, "app/billing", "--yes") == "deleted the queue billing with 0 messages\n"
    assert world.document("ls", world.url) == []
    assert [one["state"] for one in world.document("ls", "shop.py")] == ["stopped", "stopped", "unknown"]


def test_worker_is_steered_by_its_queue(world: World) -> None:
    url = f"file:{world.folder / 'mails'}"
    with detent.open(url) as store:
        store.queue("mails").create()
        store.queue("mails").publish(b"a")
    assert world.ok("pause", url, "mails") == "worker/mails rests\n"
    assert (world.document("show", url, "worker/mails")["state"], world.document("ls", url)[0]["lag"]) == ("paused", 1)
    assert world.ok("resume", "mails.py") == "worker/mails goes on\n"
    assert "still has 1 message to do" in world.refused("wait", url, "mails", "--timeout", "50ms")
    assert "detent queue redrive" in world.refused("reset", "mails.py", "--yes")
    assert world.ok("rm", url, "mails", "--yes") == "deleted the queue mails with 1 message\n"


def test_pipeline_says_what_to_do_instead(world: World) -> None:
    with detent.open(world.url) as store:
        store.declare_stream("chain/doubled", {"journal numbers": 1}, {"journal doubled": 2})
    (listed,) = world.document("ls", "chain.py")
    assert (listed["kind"], listed["name"], listed["state"]) == ("pipeline", "chain", "unknown")
    assert [part["name"] for part in world.report("pipeline/chain")["parts"]] == ["doubled"]
    for verb, says in (("pause", "Ctrl-C or SIGTERM"), ("resume", "detent run"), ("wait", "detent run FILE --once")):
        assert says in world.refused(verb, "chain.py")
    assert "checkpoint" in world.refused("reset", "chain.py", "--yes")
    assert "forgot which batches" in world.ok("rm", world.url, "chain", "--yes")
    assert world.document("ls", world.url) == []


def test_ingest_is_known_by_its_file(world: World) -> None:
    (listed,) = world.document("ls", "orders.toml")
    assert (listed["name"], listed["state"]) == ("orders", "stopped")
    assert "no ingest ever ran" in world.refused("show", "orders.toml")
    world.ingested()
    shown = world.document("show", "orders.toml")
    assert (shown["progress"]["done"], shown["lag"], shown["kind"]) == (1, 1, "ingest")
    assert "still has 1 open file to do" in world.refused("wait", "orders.toml", "--timeout", "50ms")
    assert "announcements wait in the queue" in world.refused("pause", "orders.toml")
    assert "detent reset" in world.refused("rm", "orders.toml", "--yes")
    assert "leave --to out" in world.refused("reset", "orders.toml", "--to", "latest", "--yes", code=2)
    assert "move the table away or delete it first" in world.refused("reset", "orders.toml", "--yes")
    shutil.rmtree(world.folder / "lake")
    assert world.document("reset", "orders.toml", "--yes")[0]["to"]["files"] == 2
    assert world.document("show", "orders.toml")["lag"] == 0


def test_owner_that_does_not_answer_is_ended_for_tasks_of_file(world: World) -> None:
    text = f"import detent, os, signal; store = detent.open({world.url!r}); store.journal('lines').create()"
    stuck = subprocess.Popen([sys.executable, "-c", f"{text}; os.kill(os.getpid(), signal.SIGSTOP)"])
    try:
        eventually(lambda: stopped(stuck.pid), what="the owner")
        listed = world.document("ls", "shop.py", "--force")
        assert [one["name"] for one in listed] == ["words", "shop", "billing"]
        assert stuck.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        stuck.kill()
        stuck.wait()


def stopped(pid: int) -> bool:
    return ") T " in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "words"], 2, "say which tasks: give a file that declares them"),
        (["show", "a", "b", "c"], 2, "give [URL] TASK"),
        (["ls"], 2, "say which tasks"),
        (["ls", "file:./none"], 1, "there is no store"),
        (["pause", "file:./data"], 2, "which task of file:./data?"),
        (["show", "file:./data", "other"], 1, "knows no task 'other': there is consumer/words"),
        (["show", "file:./data", "words", "--url", "file:./data"], 2, "give one of them"),
        (["pause", "shop.py:other"], 1, "shop.py has no 'other'"),
    ],
)
def test_task_that_is_not_there_is_said(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str], code: int, says: str
) -> None:
    world = World(tmp_path_factory.mktemp("none"))
    if "other" in arguments:
        world.fill()
        world.ok("run", "shop.py:words", "--once")
    assert says in world.refused(*arguments, code=code)
