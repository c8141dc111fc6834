"""Consumers after one another, in processes that are killed while they work; stores in different servers; a database
that is killed in the middle of a commit. The last reader counts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import detent
import postgresserver
from consumerworld import bodies, check, check_output, consumes, place_of, total_of
from postgresserver import PostgresServer
from processes import Child, Processes, eventually
from serveprocess import SERVE, Served

FIRST = [b"m%d" % number for number in range(30)]
MORE = [b"n%d" % number for number in range(150)]
CHAIN = [("one", "engine", "in", "mid"), ("two", "recorded", "mid", "mid2"), ("three", "sqlite", "mid2", "out")]
SLOW = {"max_transaction": "10ms", "sleep": 0.001, "lease_ms": 200}


class Stage:
    """One consumer of a chain, whatever process runs it."""

    def __init__(
        self, processes: Processes, url: str, folder: Path, name: str, kind: str, read: str, write: str
    ) -> None:
        self._processes = processes
        self.kind, self.place = kind, place_of(kind, folder / name)
        (folder / name).mkdir()
        self._given = {
            "url": url, "name": name, "kind": kind, "place": self.place, "role": "client",
            "options": {**SLOW, "read": read, "write": write},
        }  # fmt: skip
        self.child: Child | None = None

    def start(self, **environment: str) -> None:
        self.child = self._processes.start(consumes, environment=environment, **self._given)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()


def test_three_consumers_after_one_another_under_kill_9(store_dir: Path, tmp_path: Path, processes: Processes) -> None:
    rng = random.Random(7)
    with detent.open(f"file:{store_dir}") as store:
        stages = [Stage(processes, store.url, tmp_path, *link) for link in CHAIN]
        for stage in stages:
            stage.start()
        store.journal("in").append_many(FIRST)
        for body in MORE:
            store.journal("in").append(body)
            if rng.random() < 0.06:
                stage = rng.choice(stages)
                stage.kill()
                stage.start()
            time.sleep(0.002)
        sent = [*FIRST, *MORE]
        reached = store.consumer("one").await_processed("in", len(sent) - 1, timeout="60s")
        reached = store.consumer("two").await_processed("mid", reached["mid"] - 1, timeout="60s")
        reached = store.consumer("three").await_processed("mid2", reached["mid2"] - 1, timeout="60s")
        assert store.journal("out").next_offset() >= reached["out"] == len(sent), (
            "what was sent can be read, at the end"
        )
        check(store, "one", "engine", stages[0].place, sent, write="mid")
        check(store, "two", "recorded", stages[1].place, bodies(store, "mid"), write="mid2")
        check(store, "three", "sqlite", stages[2].place, bodies(store, "mid2"), write="out")
        expected = [b"%s %d %d %d" % (body, number, number, number) for number, body in enumerate(sent, 1)]
        assert bodies(store, "out") == expected
        for stage in stages:
            assert stage.child is not None
            stage.child.finish()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Served]]:
    made = [Served([*SERVE, f"file:{tmp_path / name}"]) for name in ("near", "far")]
    yield made
    for server in made:
        server.kill()


@pytest.mark.parametrize("kind", ["engine", "recorded", "sqlite"])
@pytest.mark.parametrize("point", ["consumer.after_append", "consumer.after_commit", "consumer.before_ack"])
def test_stores_of_two_servers(
    servers: list[Served], tmp_path: Path, processes: Processes, kind: str, point: str
) -> None:
    """Read from one server, publish to both; killed between the steps."""
    near, far = servers
    place = place_of(kind, tmp_path)
    with detent.open(near.url) as here, detent.open(far.url) as there:
        here.journal("in").append_many(FIRST)
        given = {
            "url": near.url, "name": "c", "kind": kind, "place": place, "once": True,
            "options": {**SLOW, "outputs": {"far": far.url}},
        }  # fmt: skip
        child = processes.start(consumes, environment={"DETENT_CRASH_AT": f"{point}:2"}, **given)
        assert child.was_killed(), child.errors()
        again = processes.start(consumes, **given)
        assert again.wait() == 0, again.errors()
        check(here, "c", kind, place, FIRST)
        check_output(bodies(there, "out"), FIRST)


def test_a_server_that_is_killed_and_comes_back(tmp_path: Path, processes: Processes) -> None:
    """The consumer waits for it, or starts over; it need not be told."""
    near = Served([*SERVE, f"file:{tmp_path / 'near'}"])
    child: Child
    with detent.open(near.url) as here:
        here.journal("in").append_many(FIRST)
        child = processes.start(consumes, url=near.url, name="c", kind="engine", place="", options=SLOW)
        eventually(here.consumers, what="its registration")
        here.consumer("c").await_processed("in", 0, timeout="30s")
    near.kill()
    port = str(near.port)
    again = Served([*SERVE[:-1], port, f"file:{tmp_path / 'near'}"])
    with detent.open(again.url) as here:
        here.journal("in").append_many(MORE)
        here.consumer("c").await_processed("in", len(FIRST) + len(MORE) - 1, timeout="60s")
        check(here, "c", "engine", "", [*FIRST, *MORE])
        child.finish()
    again.kill()


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgresserver.postgres_server() as server:
        yield server


@pytest.mark.parametrize("point", ["state.sql.before_commit", "state.sql.after_commit"])
def test_postgres_killed_in_the_middle_of_a_commit(
    postgres: PostgresServer, store_dir: Path, processes: Processes, point: str
) -> None:
    """The consumer stands still right before or after its COMMIT while the server dies and comes back. It learns that
    the outcome is unknown, starts over by itself, and the checkpoint says what happened."""
    place = postgres.new_database()
    with detent.open(f"file:{store_dir}") as store:
        store.journal("in").append_many(FIRST)
        child = processes.start(
            consumes,
            environment={"DETENT_STOP_AT": f"{point}:2"},
            url=store.url,
            name="c",
            kind="postgres",
            place=place,
            role="client",
            options={**SLOW, "lease_ms": 60_000},
        )
        eventually(child.stands_still, what=point)
        postgres.kill()
        postgres.start()
        child.resume()
        store.consumer("c").await_processed("in", len(FIRST) - 1, timeout="60s")
        store.journal("in").append_many(MORE)
        store.consumer("c").await_processed("in", len(FIRST) + len(MORE) - 1, timeout="60s")
        child.finish()
        check(store, "c", "postgres", place, [*FIRST, *MORE])
        assert total_of(store, "c", "postgres", place) == len(FIRST) + len(MORE)
