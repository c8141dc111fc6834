"""`detent bus` as a user runs it: real processes, stopped and interrupted, real exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import sqlite3
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
from detent.bus import Envelope, SqlOutbox, schema
from detent.sql.port import port_of
from eventlines import Events
from processes import PATIENCE_S, eventually

COMMANDS = ["show", "outbox", "schema"]

APP = """
import os, time
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

from detent.bus import Bus, Context, IdempotencyConfig, Retries, SqlAlchemyUnitOfWork, SqlOutbox, SqlTracker

@dataclass
class Placed:
    number: int

@dataclass
class Billed:
    number: int

engine = sqlalchemy.create_engine("sqlite:///shop.db", connect_args={"timeout": 30})
billing = Bus(
    "billing",
    "file:./data",
    unit_of_work=SqlAlchemyUnitOfWork(sessionmaker(engine)),
    idempotency=IdempotencyConfig(SqlTracker()),
    outbox=SqlOutbox(),
    retries=Retries(immediate=1, delayed=()),
)
mail = Bus("mail", "file:./data", concurrency=2)

@billing.handler
def bill(order: Placed, session: Session, context: Context):
    if order.number < 0:
        raise KeyError("no such order")
    context.publish(Billed(order.number))

@mail.handler
async def send_mail(billed: Billed, greeting: str = "hello"):
    with open("mails", "a") as mails:
        mails.write(f"{billed.number}\\n")
    while os.path.exists("hang"):
        time.sleep(0.01)
    with open("mailed", "a") as mailed:
        mailed.write(f"{billed.number}\\n")

if __name__ == "__main__":
    raise SystemExit("a command loads the file, and does not run it")
"""

BROKEN = """
from shop import Placed
from detent.bus import Bus, IdempotencyConfig, SqlTracker

broken = Bus("broken", "file:./data", idempotency=IdempotencyConfig(SqlTracker()))

@broken.handler
def handle(order: Placed):
    pass
"""

CARELESS = """
from sqlalchemy.orm import sessionmaker
from shop import engine
from detent.bus import Bus, SqlAlchemyUnitOfWork

careless = Bus("careless", "file:./data", unit_of_work=SqlAlchemyUnitOfWork(sessionmaker(engine)))
"""

STUCK = """
import os, time
from dataclasses import dataclass
from detent.bus import Bus

@dataclass
class Placed:
    number: int

stuck = Bus("stuck", "file:./data", grace="50ms")

@stuck.handler
def handle(order: Placed):
    open("began", "w").close()
    time.sleep(600)
"""


class World:
    """A folder with an application in it, which is the current one of every command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder / 'data'}"
        (folder / "shop.py").write_text(APP)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "detent.cli", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[Any]:
        return zygote.run(self.command(*arguments), timeout=PATIENCE_S, cwd=self.folder, env=environment(), input=b"")

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr.decode()
        text: str = done.stdout.decode()
        return text

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = self.run(*arguments)
        text: str = done.stderr.decode()
        assert done.returncode == code, (done.returncode, text)
        assert "Traceback" not in text
        return text

    def publish(self, *numbers: int) -> None:
        """Orders, as another program would publish them, in whatever language."""
        with detent.open(self.url) as store:
            for number in numbers:
                headers = {"detent-id": f"order-{number}", "detent-type": "Placed", "detent-topics": "|Placed|"}
                store.publish(json.dumps({"number": number}).encode(), headers=headers)

    def numbers(self, name: str) -> list[int]:
        path = self.folder / name
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Running(Events):
    """`detent bus run`, whose events are read all the time."""

    def __init__(self, world: World, target: str, *options: str) -> None:
        super().__init__(world.command("bus", "run", target, "--json", *options), world.folder, environment())


@pytest.fixture
def start(world: World) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*options: str, target: str = "shop.py") -> Running:
        started.append(Running(world, target, *options))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(world: World, command: str) -> None:
    text = world.ok("bus", command, "--help")
    assert f"detent bus {command} " in text.partition("Example")[2]
    assert "--json" in text
    assert "detent queue redrive file:./data billing" in " ".join(world.ok("bus", "--help").split())


# -- running ----------------------------------------------------------------------------------------------------------


def test_once_handles_what_there_is(world: World) -> None:
    world.ok("bus", "run", "shop.py", "--once")  # which makes the queues, and subscribes
    world.publish(1, 2, -1)
    done = world.run("bus", "run", "shop.py", "--once")
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert lines == [
        ["APP", "HANDLED", "REPEATED", "RETRIED", "GIVEN", "UP", "LEFT", "OUTBOX"],
        ["billing", "2", "0", "1", "1", "0", "0"],
        ["mail", "2", "0", "0", "0", "0", "-"],
    ]
    retried, given_up = done.stderr.decode().splitlines()
    assert retried.startswith("billing: attempt 1 at Placed order--1 failed, and it is tried again: KeyError")
    assert given_up.startswith("billing: gave up Placed order--1 after attempt 2: KeyError: 'no such order'")
    assert world.numbers("mailed") == [1, 2]
    (summary,) = map(json.loads, world.ok("bus", "run", "shop.py:billing", "--once", "--json").splitlines())
    counts = {"handled": 0, "repeated": 0, "retried": 0, "given_up": 0, "left": 0, "outbox": 0}
    assert summary == {"event": "summary", "apps": [{"app": "billing", **counts}]}
    assert "KeyError: 'no such order'" in world.ok("queue", "failed", world.url, "billing")


def test_it_runs_until_it_is_told_to_stop(world: World, start: Callable[..., Running]) -> None:
    running = start("--concurrency", "3")
    billing, mail = running.until("started", 2)
    assert (billing["app"], billing["queue"], billing["handlers"]) == ("billing", "billing", ["bill"])
    assert (mail["messages"], mail["transport"]) == (["Billed"], "file:./data#mail")
    (world.folder / "hang").touch()
    world.publish(1, -1)
    (given_up,) = running.until("given_up")
    assert (given_up["message"], given_up["type"], given_up["attempts"]) == ("order--1", "Placed", 2)
    eventually(lambda: world.numbers("mails") == [1], what="the handler")
    running.process.send_signal(signal.SIGTERM)
    running.until("stopping")
    assert world.numbers("mailed") == []
    (world.folder / "hang").unlink()
    assert running.wait() == 0, running.said()
    assert world.numbers("mailed") == [1]
    stopped = {event["app"]: event for event in running.until("stopped", 2)}
    assert (stopped["billing"]["handled"], stopped["billing"]["given_up"], stopped["mail"]["handled"]) == (1, 1, 1)


def test_a_second_interrupt_does_not_wait(world: World, start: Callable[..., Running]) -> None:
    running = start()
    running.until("started", 2)
    (world.folder / "hang").touch()
    world.publish(1)
    eventually(lambda: world.numbers("mails") == [1], what="the handler")
    running.process.send_signal(signal.SIGINT)
    running.until("stopping")
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 130
    assert world.numbers("mailed") == []


def test_a_handler_that_does_not_end_is_left_behind(world: World, start: Callable[..., Running]) -> None:
    (world.folder / "stuck.py").write_text(STUCK)
    running = start(target="stuck.py")
    running.until("started")
    world.publish(1)
    eventually((world.folder / "began").exists, what="the handler")
    running.process.terminate()
    assert running.wait() == 1
    assert running.said() == "error: 1 handlers did not end in time; their messages come again\n"
    (warning,) = running.until("warning")
    assert "did not end within" in warning["text"]


def test_a_terminal_shows_how_it_stands(world: World) -> None:
    world.ok("bus", "run", "shop.py", "--once")
    world.publish(1, 2)
    ours, theirs = pty.openpty()
    process = zygote.Forked(
        world.command("bus", "run", "shop.py"),
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
    try:
        eventually(lambda: b"mail: 2 handled" in seen and b"billing: 2 handled, 0 in the outbox" in seen, what="counts")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        reading.join(PATIENCE_S)
        os.close(ours)
    assert b"billing: started on file:./data#billing: bill of Placed" in seen
    assert b"mail: stopped: 2 handled" in seen


def test_nothing_runs_if_one_cannot_start(world: World) -> None:
    (world.folder / "broken.py").write_text(BROKEN)
    text = world.refused("bus", "run", "shop.py", "broken.py")
    assert "'broken' tracks messages in the transaction of its handlers, and has no unit of work" in text
    assert world.refused("bus", "run", "nothing.py").startswith("error: there is no file nothing.py")
    assert world.refused("bus", "run", "shop.py:engine").startswith("error: shop.py:engine is no Bus but a Engine")
    world.refused("bus", "run", code=2)
    world.refused("bus", "run", "shop.py", "--concurrency", "0", code=2)


# -- looking ----------------------------------------------------------------------------------------------------------


def test_an_app_is_shown_and_nothing_is_made(world: World) -> None:
    text = world.ok("bus", "show", "shop.py:billing")
    assert "not made yet" in text
    assert not (world.folder / "data").exists()
    world.ok("bus", "run", "shop.py", "--once")
    world.publish(1, 2)
    text = world.ok("bus", "show", "shop.py:billing")
    for part in ("2 available", "Placed", "session: Session", "SqlAlchemyUnitOfWork", "SqlTracker", "0 pending"):
        assert part in text
    shown = json.loads(world.ok("bus", "show", "shop.py:mail", "--json"))
    assert shown["queue"] == {"name": "mail", "available": 0, "delayed": 0, "in_flight": 0, "failed": 0}
    assert shown["subscriptions"] == ["Billed"]
    (handler,) = shown["handlers"]
    assert (handler["messages"], handler["is_async"]) == (["Billed"], True)
    assert handler["parameters"] == ["greeting: str = ..."]
    assert (shown["concurrency"], shown["problem"], shown["outbox"]) == (2, None, None)
    assert "declares 2 apps: say which one" in world.refused("bus", "show", "shop.py")


def test_looking_makes_no_database(world: World) -> None:
    shown = json.loads(world.ok("bus", "show", "shop.py:billing", "--json"))
    (warning,) = shown["warnings"]
    assert "there is no database" in warning
    assert "there is no database" in shown["outbox"]["error"]
    (world.folder / "careless.py").write_text(CARELESS)
    assert "has no handlers" in world.refused("bus", "show", "careless.py")  # what needs no database is checked
    assert not (world.folder / "shop.db").exists()
    world.ok("bus", "run", "shop.py:billing", "--once")
    assert json.loads(world.ok("bus", "show", "shop.py:billing", "--json"))["warnings"] == []


def test_a_file_that_ends_the_program_is_no_success(world: World) -> None:
    (world.folder / "ends.py").write_text("import sys\nsys.exit(0)\n")
    for command in (["bus", "show"], ["bus", "run", "--once"], ["consume"]):
        assert "ends.py:2: the file ends the program" in world.refused(*command, "ends.py")


def test_what_is_wrong_with_an_app_is_said(world: World) -> None:
    (world.folder / "broken.py").write_text(BROKEN)
    done = world.run("bus", "show", "broken.py", "--json")
    assert done.returncode == 1
    shown = json.loads(done.stdout)
    assert "has no unit of work" in shown["problem"]
    assert done.stderr.decode() == f"error: {shown['problem']}\n"


# -- outboxes ---------------------------------------------------------------------------------------------------------


def test_failed_messages_of_an_outbox_are_listed_and_tried_again(world: World) -> None:
    world.ok("bus", "run", "shop.py", "--once")
    database = sqlite3.connect(world.folder / "shop.db", isolation_level=None)

    class Unit:
        sql = port_of(database)

    with contextlib.closing(database):
        to_nobody = [Envelope(f"m{number}", "nowhere:x", {}, b"body") for number in range(3)]
        SqlOutbox().save(Unit, to_nobody)  # type: ignore[arg-type]
    assert "3 pending" in world.ok("bus", "outbox", "shop.py:billing")
    world.run("bus", "run", "shop.py:billing", "--once")
    counts = json.loads(world.ok("bus", "outbox", "shop.py:billing", "--json"))
    assert (counts["app"], counts["pending"], counts["failed"]) == ("billing", 0, 3)
    head, *rows = world.ok("bus", "outbox", "shop.py:billing", "--failed").splitlines()
    assert head.split() == ["POSITION", "ID", "TO", "BYTES", "ERROR"]
    assert [row.split()[1:4] for row in rows] == [[f"m{number}", "nowhere:x", "4"] for number in range(3)]
    assert all("is not an address" in row for row in rows)
    first = rows[0].split()[0]
    assert world.ok("bus", "outbox", "shop.py:billing", "--redrive", first) == "1 message will be tried again\n"
    done = world.run("bus", "outbox", "shop.py:billing", "--redrive", "999999")
    assert done.stderr.decode() == "1 of these positions are of no failed message\n"
    assert json.loads(world.ok("bus", "outbox", "shop.py:billing", "--redrive", "--json")) == {"redriven": 2}
    assert "3 pending" in world.ok("bus", "outbox", "shop.py:billing")
    assert "has no outbox" in world.refused("bus", "outbox", "shop.py:mail")
    world.refused("bus", "outbox", "shop.py:billing", "17", code=2)
    world.refused("bus", "outbox", "shop.py:billing", "--failed", "--redrive", code=2)


def test_halves_of_characters_are_printed(world: World) -> None:
    world.ok("bus", "run", "shop.py", "--once")
    with contextlib.closing(sqlite3.connect(world.folder / "shop.db", isolation_level=None)) as database:

        class Unit:
            sql = port_of(database)

        sent = Envelope("m", "nowhere:x", {"odd": "\ud800\x00"}, b"body")
        SqlOutbox().save(Unit, [sent])  # type: ignore[arg-type]
        database.execute("UPDATE detent_outbox SET failed_at = 1, error = 'why'")
    (listed,) = json.loads(world.ok("bus", "outbox", "shop.py:billing", "--failed", "--json"))["messages"]
    assert listed["headers"] == {"odd": "\ud800\x00"}
    assert "why" in world.ok("bus", "outbox", "shop.py:billing", "--failed")


def test_the_schema_can_be_made_by_others(world: World) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(world.ok("bus", "schema", "--dialect", "sqlite", "--outbox", "shop_outbox"))
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"detent_handled", "shop_outbox"} <= tables
    assert world.ok("bus", "schema") == schema("postgresql")
    assert json.loads(world.ok("bus", "schema", "--json")) == {"dialect": "postgresql", "sql": schema("postgresql")}
