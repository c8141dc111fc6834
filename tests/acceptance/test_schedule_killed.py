"""Owners that are killed around the commit of a tick: the next one publishes what is due, and nothing twice."""

from __future__ import annotations

import os
import random
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import detent
from acceptance.test_crash_points import COMMITTING, DURABLE, open_quietly
from detent.schedule import ID_HEADER, TICK_HEADER, Firing
from processes import Child, Io, Processes, arm

pytestmark = pytest.mark.xdist_group("crash-points")

ROUNDS = 60 if os.environ.get("DETENT_SOAK") else 4
"""Owners that are killed one after another."""

ANSWER = "engine.group.before_answer"
SECOND_ANSWER = f"{ANSWER}:2"
"""The first one is to the question what is due."""

OWN = ("schedule.before_commit", "schedule.after_commit")
POINTS = (*OWN, *(point for point in COMMITTING if point != ANSWER), SECOND_ANSWER)
PUBLISHED = {"schedule.after_commit", SECOND_ANSWER, *DURABLE}


def publishes(io: Io, url: str, point: str, wait_s: float) -> None:
    """An owner that is killed while it publishes what is due: a tick, once it has waited, or what it has asked for."""
    with open_quietly(url) as store:
        if wait_s:
            time.sleep(wait_s)
        else:
            io.say("asked", id=store.run_schedule("s"))
        arm(point)
        fire(store)
        io.say("published")


def fire(store: detent.Store) -> None:
    """What the owner's housekeeper does when something is due."""
    owner: Any = store._connection.current
    Firing(owner.engine).run()


def ids(store: detent.Store) -> list[str]:
    if "j" not in store.journals():
        return []
    return [message.headers[ID_HEADER] for message in store.journal("j").read()]


@pytest.mark.parametrize("point", POINTS)
def test_message_that_was_asked_for_is_published_once(store_dir: Path, processes: Processes, point: str) -> None:
    url = f"file:{store_dir}"
    with open_quietly(url) as store:
        store.schedule("s", every="1h", journal="j")
    asked = kill(processes, url, point).expect("asked")["id"]
    with open_quietly(url) as store:
        assert ids(store) == ([asked] if point in PUBLISHED else [])
        fire(store)
        assert ids(store) == [asked]
        info = store.find_schedule("s")
        assert (info.published, info.waiting) == (1, 0)


@pytest.mark.parametrize("point", OWN)
def test_tick_is_published_once(store_dir: Path, processes: Processes, point: str) -> None:
    url = f"file:{store_dir}"
    with open_quietly(url) as store:
        store.queue("q").create()
        due = store.schedule("s", every="1s", queue="q", missed="all").upcoming(1)[0]
    kill(processes, url, point, wait_s=1.1)
    with open_quietly(url) as store:
        assert (store.queue("q").info().available > 0) is (point in PUBLISHED)
        fire(store)
        store.pause_schedule("s")
        found = [message.headers[TICK_HEADER] for message in store.queue("q").claim(100)]
        ticks = [datetime.fromisoformat(tick) for tick in found]
        assert ticks == [due + timedelta(seconds=number) for number in range(len(ticks))], "each tick once, in order"
        assert store.find_schedule("s").published == len(ticks) > 0


def owns(io: Io, url: str) -> None:
    """An owner like any other, until it is killed."""
    with detent.open(url):
        io.say("open")
        time.sleep(60)


def test_ticks_of_owners_that_are_killed_at_any_moment_are_there_once_each(
    store_dir: Path, processes: Processes
) -> None:
    url = f"file:{store_dir}"
    with detent.open(url) as store:
        begun = store.schedule("s", every="1s", journal="j", missed="all").upcoming(1)[0]
    chance = random.Random(7)
    for _ in range(ROUNDS):
        child = processes.start(owns, url=url)
        child.expect("open")
        time.sleep(chance.uniform(0.5, 1.6))
        child.kill()
    with detent.open(url) as store:
        store.pause_schedule("s")
        found = [message.headers[TICK_HEADER] for message in store.journal("j").read()]
    ticks = [datetime.fromisoformat(tick) for tick in found]
    assert ticks == [begun + timedelta(seconds=number) for number in range(len(ticks))], "each tick once, in order"
    assert len(ticks) >= ROUNDS // 2


def kill(processes: Processes, url: str, point: str, wait_s: float = 0.0) -> Child:
    child = processes.start(publishes, url=url, point=point, wait_s=wait_s)
    assert child.was_killed(), f"{point} was never reached"
    return child
