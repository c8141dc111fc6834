"""kill -9 under load: writers in several processes, the owner killed again and again, and then every message counted.

Each writer numbers its messages and says what it is about to send and what was acknowledged, into a pipe that outlives
it. A killed writer is replaced by a new process that goes on with the next number; a publisher's promises are kept in
a file and kept after the restart. Zero lost, duplicated, reordered, torn and misplaced messages is the only pass.

``DETENT_SOAK=1`` runs 100 rounds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.journal.publisher import decode_intents, encode_intents
from detent.kv.ownership import read_owner
from processes import Child, Io, Processes, eventually

pytestmark = [pytest.mark.xdist_group("kill-rounds"), pytest.mark.timeout(1200)]

SOAK = os.environ.get("DETENT_SOAK") == "1"
ROUNDS = 100 if SOAK else 20
WRITERS = 4
JOURNALS = ("a", "b")


# -- a writer (in the child) ------------------------------------------------------------------------------------


class Writer:
    """Sends numbered messages in all ways there are. A body is writer:number:kind."""

    def __init__(self, io: Io, store: detent.Store, name: str, first: int, promises: Path) -> None:
        self._io = io
        self._store = store
        self._name = name
        self._next = first
        self._promises = promises
        self._publisher = store.publisher()

    def keep_promises(self) -> None:
        """What was promised before this process started."""
        if not self._promises.exists():
            return
        kept = json.loads(self._promises.read_text())
        self._io.say("recovering", group=kept["group"])
        self._store.publisher().acknowledge(decode_intents(bytes.fromhex(kept["intents"])))
        self._io.say("ack", group=kept["group"], offsets=None, at=time.monotonic())
        self._promises.unlink()

    def once(self, kind: str) -> None:
        group = self._new_group(kind)
        self._io.say("try", kind=kind, group=group)
        offsets = getattr(self, f"_{kind}")(group)
        self._io.say("ack", group=group, offsets=offsets, at=time.monotonic())
        self._promises.unlink(missing_ok=True)

    def _new_group(self, kind: str) -> list[tuple[str, str]]:
        """The messages of one operation: (journal, body)."""
        where = {
            "append": [random.choice(JOURNALS)],
            "many": [random.choice(JOURNALS)] * random.randint(2, 6),
            "transaction": random.choice([["a", "b"], ["b", "a", "b"]]),
            "publish": random.choice([["a", "b"], ["a", "a", "b"]]),
        }[kind]
        group = [(journal, f"{self._name}:{self._next + index}:{kind}") for index, journal in enumerate(where)]
        self._next += len(group)
        return group

    def _append(self, group: list[tuple[str, str]]) -> list[int]:
        ((journal, body),) = group
        return [self._store.journal(journal).append(body.encode()).offset]

    def _many(self, group: list[tuple[str, str]]) -> list[int]:
        result = self._store.journal(group[0][0]).append_many([body.encode() for _, body in group])
        return list(range(result.offset, result.offset + len(group)))

    def _transaction(self, group: list[tuple[str, str]]) -> list[int]:
        with self._store.transaction() as transaction:
            for journal, body in group:
                transaction.append(journal, body.encode())
        return [result.offset for result in transaction.results]

    def _publish(self, group: list[tuple[str, str]]) -> None:
        for journal, body in group:
            self._publisher.publish_uncommitted(journal, [body.encode()])
        intents = self._publisher.build_ack_intents()
        self._promise({"group": group, "intents": encode_intents(intents).hex()})
        self._publisher.acknowledge(intents)

    def _promise(self, content: dict[str, Any]) -> None:
        temporary = self._promises.with_suffix(".new")
        with temporary.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._promises)


def write(io: Io, url: str, name: str, first: int, promises: str) -> None:
    with detent.open(url) as store:
        writer = Writer(io, store, name, first, Path(promises))
        writer.keep_promises()
        io.say("open", owner=store.is_owner)
        while io._heard.empty():
            writer.once(random.choice(["append", "append", "many", "transaction", "publish"]))


# -- the rounds -------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """What the checker found wrong, and how much it looked at."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    premature: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wrong(self) -> dict[str, int]:
        return {name: len(found) for name, found in vars(self).items()}


class Rounds:
    """Writers on one store, whose owner is killed once a round."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._processes = processes
        self._directory = directory / "store"
        self._promises = directory
        self.url = f"file:{self._directory}"
        self._writers: dict[str, Child] = {}
        self._spoken: dict[str, list[dict[str, Any]]] = {}
        self._first: dict[str, int] = {}
        self._errors: list[str] = []
        self.deaths: Counter[str] = Counter()
        self.pauses_ms: list[float] = []
        for number in range(WRITERS):
            self._start(f"w{number}")

    def _start(self, name: str) -> None:
        old = self._writers.get(name)
        if old is not None:
            self._ended(name, old)
        sent = [event["group"][-1][1] for event in self._spoken.get(name, []) if event["event"] == "try"]
        first = int(sent[-1].split(":")[1]) + 1 if sent else 0
        promises = str(self._promises / f"{name}.promises")
        self._writers[name] = self._processes.start(write, url=self.url, name=name, first=first, promises=promises)

    def _ended(self, name: str, child: Child) -> None:
        """Keep what a process said. It was killed or ended well; anything else is an error of its own."""
        status = child.wait(seconds=60)
        child.end()
        self._spoken.setdefault(name, []).extend(child.events)
        if status not in (0, -signal.SIGKILL):
            self._errors.append(f"{name} ended with {status}: {child.last_errors[-2000:]}")

    def _owner(self) -> str | None:
        known = read_owner(self._directory)
        return next((name for name, child in self._writers.items() if known and child.pid == known.pid), None)

    def _acknowledged(self) -> int:
        return sum(event["event"] == "ack" for child in self._writers.values() for event in list(child.events)[-50:])

    def run_one(self) -> None:
        owner = eventually(self._owner, seconds=60, what="an owner")
        eventually(lambda: self._acknowledged() >= 10 * WRITERS, seconds=60, what="some load")
        time.sleep(random.random() * 0.5)
        owner = self._owner() or owner
        victims = [owner]
        how = random.choices(["kill", "two", "stop", "close"], [75, 10, 10, 5])[0]
        self.deaths[how] += 1
        if how == "two":
            victims.append(random.choice([name for name in self._writers if name != owner]))
        if how == "stop":
            self._writers[owner].stop()
            time.sleep(random.random() * 0.3)
        if how == "close":
            self._writers[owner].tell()
            self._writers[owner].wait(seconds=60)
        died = time.monotonic()
        for victim in victims:
            if how != "close":
                self._writers[victim].kill()
        survivor = eventually(lambda: self._first_after(died, victims), seconds=60, what="an answer after the kill")
        self.pauses_ms.append((survivor - died) * 1000)
        for victim in victims:
            self._start(victim)

    def _first_after(self, moment: float, victims: list[str]) -> float | None:
        times = [
            event["at"]
            for name, child in self._writers.items()
            if name not in victims
            for event in list(child.events)[-50:]
            if event["event"] == "ack" and event["at"] > moment
        ]
        return min(times, default=None)

    def finish(self) -> None:
        """Everybody ends in peace; every promise is kept."""
        for name in list(self._writers):
            child = self._writers[name]
            eventually(lambda child=child: any(e["event"] == "open" for e in child.events), seconds=60, what="a start")
        for child in self._writers.values():
            child.tell()
        for name, child in self._writers.items():
            self._ended(name, child)

    def check(self) -> tuple[Counts, int]:
        with detent.open(self.url, role="reader") as store:
            stored = {name: [message.body.decode() for message in store.journal(name).read()] for name in JOURNALS}
        events = [event for said in self._spoken.values() for event in said]
        counts = check(stored, events)
        counts.errors = self._errors
        return counts, sum(map(len, stored.values()))


def check(stored: dict[str, list[str]], events: list[dict[str, Any]]) -> Counts:
    """Compare what the journals hold with what the writers said."""
    counts = Counts()
    places = {(name, body): at for name, bodies in stored.items() for at, body in enumerate(bodies)}
    tried = {tuple(message) for event in events if event["event"] == "try" for message in event["group"]}
    for name, bodies in stored.items():
        counts.duplicated += [f"{name} {body}" for body, times in Counter(bodies).items() if times > 1]
        counts.unknown += [f"{name} {body}" for body in bodies if (name, body) not in tried]
        highest: dict[str, int] = {}
        for body in bodies:
            writer, number, _ = body.split(":")
            if int(number) <= highest.get(writer, -1):
                counts.reordered.append(f"{name} {body} after {highest[writer]}")
            highest[writer] = int(number)
    promised = set()
    for event in events:
        group = [tuple(message) for message in event.get("group", ())]
        if event["event"] in ("ack", "recovering"):
            promised |= set(group)
        if event["event"] == "ack":
            counts.lost += [f"{message}" for message in group if message not in places]
            for message, offset in zip(group, event["offsets"] or (), strict=False):
                if message in places and places[message] != offset:
                    counts.misplaced.append(f"{message} at {places[message]}, acknowledged at {offset}")
        if event["event"] == "try":
            present = [message in places for message in group]
            if any(present) != all(present):
                counts.torn.append(f"{group}: {present}")
            elif all(present) and event["kind"] == "many":
                at = [places[message] for message in group]
                if at != list(range(at[0], at[0] + len(at))):
                    counts.torn.append(f"{group}: at {at}")
    for event in events:
        if event["event"] == "try" and event["kind"] == "publish":
            messages = [tuple(message) for message in event["group"]]
            counts.premature += [str(m) for m in messages if m in places and m not in promised]
    return counts


def test_nothing_is_lost_or_doubled_when_owners_are_killed_under_load(tmp_path: Path) -> None:
    seed = int(os.environ.get("DETENT_SEED", time.time_ns() % 1_000_000))
    random.seed(seed)
    began = time.monotonic()
    with Processes() as processes:
        rounds = Rounds(processes, tmp_path)
        for _ in range(ROUNDS):
            rounds.run_one()
        rounds.finish()
        counts, messages = rounds.check()
        with detent.open(rounds.url) as store:
            epoch, spans = store.epoch, [store.journal(name).info().open_spans for name in JOURNALS]
    pauses = rounds.pauses_ms
    print(
        f"\nseed {seed}: {ROUNDS} rounds {dict(rounds.deaths)} in {time.monotonic() - began:.0f} s, "
        f"{messages} messages, epoch {epoch}, open spans of killed publishers {spans}; from kill to the next answer "
        f"median {statistics.median(pauses):.0f} ms, worst {max(pauses):.0f} ms\nwrong: {counts.wrong()}"
    )
    assert not any(counts.wrong().values()), {name: found[:5] for name, found in vars(counts).items() if found}
    assert messages > 50 * ROUNDS


# -- the checker can fail ---------------------------------------------------------------------------------------


def said(event: str, kind: str, group: list[tuple[str, str]], offsets: list[int] | None = None) -> dict[str, Any]:
    return {"event": event, "kind": kind, "group": [list(message) for message in group], "offsets": offsets}


MANY = [("a", "w0:0:many"), ("a", "w0:1:many")]
BOTH = [("a", "w0:2:transaction"), ("b", "w0:3:transaction")]
PROMISE = [("a", "w0:4:publish"), ("b", "w0:5:publish")]
SAID = [
    said("try", "many", MANY), said("ack", "many", MANY, [0, 1]), said("try", "transaction", BOTH),
    said("ack", "transaction", BOTH, [2, 0]), said("try", "publish", PROMISE), said("ack", "publish", PROMISE),
]  # fmt: skip
STORED = {
    "a": ["w0:0:many", "w0:1:many", "w0:2:transaction", "w0:4:publish"],
    "b": ["w0:3:transaction", "w0:5:publish"],
}


def test_the_checker_passes_what_is_right() -> None:
    assert not any(check(STORED, SAID).wrong().values())


@pytest.mark.parametrize(
    ("wrong", "a", "b", "events"),
    [
        ("lost", STORED["a"][:3], STORED["b"][:1], SAID),
        ("duplicated", [*STORED["a"], "w0:4:publish"], STORED["b"], SAID),
        ("reordered", ["w0:2:transaction", "w0:0:many", "w0:1:many", "w0:4:publish"], STORED["b"], SAID),
        ("torn", STORED["a"], ["w0:3:transaction"], SAID[:-1]),
        ("torn", ["w0:0:many", "w0:2:transaction", "w0:1:many", "w0:4:publish"], STORED["b"], SAID),
        ("misplaced", ["w1:0:append", *STORED["a"]], STORED["b"], SAID),
        ("unknown", STORED["a"], [*STORED["b"], "w9:0:append"], SAID),
        ("premature", STORED["a"], STORED["b"], SAID[:-1]),
    ],
)
def test_the_checker_counts_what_is_wrong(wrong: str, a: list[str], b: list[str], events: list[dict[str, Any]]) -> None:
    assert check({"a": a, "b": b}, events).wrong()[wrong] > 0
