"""A graph of twelve processors is killed again and again while messages come in; in the end each has taken effect once.

It dies at random steps of processors and of the store, in random functions, and at random moments. The seed is printed;
``DETENT_STORM_SEED`` sets it. `DETENT_SOAK=1` makes it ten times as long.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from graphprogram import FAILING, GRAPHS, NOISE
from graphworld import Seen, World, check_trail, check_values
from processes import Child, Processes

IS_LONG = bool(os.environ.get("DETENT_SOAK"))
MESSAGES = 100_000 if IS_LONG else 10_000
LIVES = 160 if IS_LONG else 16
KILLS_MIN = 100 if IS_LONG else 10

STEPS = {
    "processor.after_fence": 12, "processor.after_mark": 2, "processor.after_read": 60, "processor.after_function": 60,
    "processor.before_commit": 60, "processor.after_commit": 60, "processor.before_output": 8,
    "processor.after_output": 8, "processor.after_choice": 1, "engine.group.before_commit": 60,
    "engine.group.after_commit": 60, "kv.log.after_sync": 60,
}  # fmt: skip
"""Where it dies, and at the latest at which time that this is reached: so often it is, in most lives."""

SECONDS_MAX = 0.5
"""By then it dies, if it was to die at any moment: most lives are longer."""


def test_storm(tmp_path: Path, processes: Processes) -> None:
    seed = os.environ.get("DETENT_STORM_SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"DETENT_STORM_SEED={seed}")
    chance = random.Random(seed)
    world = World(tmp_path, processes, "storming", far=True)
    functions = [one.name for one in GRAPHS["storming"](tmp_path).processors if one.runs]
    assert len(functions) == 12
    kills, sent = 0, 0
    for life in range(1, LIVES + 1):
        until = MESSAGES // 2 * life // LIVES
        send(world, sent, until)
        sent = until
        kills += is_killed(world, chance, functions)
    assert sent == MESSAGES // 2
    print(f"killed {kills} times in {LIVES} lives")
    while kills < KILLS_MIN:  # it was too fast for the others
        kills += ended(world.start(crash=f"processor.after_fence:{chance.randint(1, 12)}"))
    for order in tmp_path.glob("die-*"):
        order.unlink()
    world.finish()
    seen = world.look()
    check_orders(seen, sent)
    check_events(world, seen, sent)
    check_processors(world, seen)
    world.check_rests(seen)


def send(world: World, start: int, end: int) -> None:
    """Some more orders, with some noise among them, and as many events."""
    orders = [
        (json.dumps({"id": n}).encode(), b"%d" % (n % 16), {"type": "noise" if n % NOISE == 1 else "order"})
        for n in range(start, end)
    ]
    with world.store() as store, store.transaction() as transaction:
        transaction.append_many("orders", orders)
        transaction.append_many("events", [b"%d" % n for n in range(start, end)])


def is_killed(world: World, chance: random.Random, functions: list[str]) -> bool:
    """One life, and whether it ended too early."""
    how = chance.choice(["step", "step", "function", "moment"])
    if how == "step":
        point, most = chance.choice(list(STEPS.items()))
        return ended(world.start(crash=f"{point}:{chance.randint(1, most)}"))
    if how == "function":
        world.die_at(chance.choice(functions))
        return ended(world.start())
    child = world.start()
    time.sleep(chance.uniform(0, SECONDS_MAX))
    if child.running:
        child.kill()
    return ended(child)


def ended(child: Child) -> bool:
    status = child.wait()
    assert status in {0, -9}, child.errors()
    child.end()
    return status != 0


# -- what must be -------------------------------------------------------------------------------------------------


def ids(seen: Seen, journal: str) -> list[int]:
    return [value["id"] for value in seen.values(journal)]


def check_orders(seen: Seen, count: int) -> None:
    """Each order is in each journal that it belongs to, once, in order."""
    kept = [n for n in range(count) if n % NOISE != 1]
    valid = [n for n in kept if n % FAILING != 5]
    check_values(ids(seen, "kept"), kept, "kept")
    check_values(ids(seen, "valid"), valid, "valid")
    failed = [value[0]["id"] for value in seen.values("failed")]
    check_values(failed, [n for n in kept if n % FAILING == 5], "failed")
    small, big = [n for n in valid if n % 2 == 0], [n for n in valid if n % 2]
    for names, wanted in ((("small", "priced"), small), (("big", "weighed"), big)):
        for name in names:
            check_values(ids(seen, name), wanted, name)
    check_values(seen.values("audit@b"), [n for n in valid if n % 3 == 0], "audit")
    merged = seen.values("merged")
    for how, wanted in (("priced", small), ("weighed", big)):
        check_values([value["id"] for value in merged if value["how"] == how], wanted, how)
    check_values([n for batch in seen.values("totals") for n in batch], ids(seen, "merged"), "totals")


def check_events(world: World, seen: Seen, count: int) -> None:
    """Each event is everywhere, once, in order, and in the book under one key."""
    events = list(range(count))
    check_values(seen.values("labelled"), [["label", n] for n in events], "labelled")
    check_values(seen.values("paired"), [[n, n] for n in events], "paired")
    for journal in ("left", "right", "archived@b"):
        check_values(seen.values(journal), events, journal)
    check_trail(world.effects())
    check_values([int(effect) for effect in dict(world.effects()).values()], events, "book")


def check_processors(world: World, seen: Seen) -> None:
    """No input was left, none was in two sets, each had one key; and all that was owed was given."""
    records = seen.records()
    assert len(records) == 12
    for name, record in records.items():
        totals = record.totals
        assert totals.outputs + totals.errors + totals.nils == record.snapshot.number
        ends = {journal: len(seen.messages[journal]) for journal in record.snapshot.positions}
        assert record.snapshot.positions == ends, name
        keys = check_trail(world.trail(name))
        taken = [one for inputs in keys.values() for one in inputs.split(",")]
        assert len(taken) == len(set(taken)), f"{name} had inputs in two sets"
        wanted: Any = sum(ends.values()) - (totals.nils if name == "keep" else 0)
        assert len(taken) == wanted, name
