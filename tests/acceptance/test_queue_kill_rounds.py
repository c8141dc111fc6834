"""kill -9 under load: eight consumers, a producer and an owner, any of them killed at any moment; then each message is
counted.

A consumer records the effect of a message in a journal and publishes it to a second queue, in the transaction that
acknowledges it. The producer numbers its messages, gives each a dedup key, and after a crash publishes again what was
not answered. All of them say what they are about to do and what they were told, into pipes that outlive them. In the
end every number has exactly one effect, no message had two holders at once, and nothing is left behind.

``DETENT_SOAK=1`` runs 100 rounds, ``DETENT_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import detent
from detent.codec import published as published_records
from detent.codec import queue as queue_records
from detent.errors import StaleReceipt
from detent.kv.ownership import read_owner
from processes import Child, Io, Processes, eventually

pytestmark = [
    pytest.mark.xdist_group("queue-kill-rounds"),
    pytest.mark.timeout(3600),
    # httpcore leaves a socket that was refused to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SOAK = os.environ.get("DETENT_SOAK") == "1"
ROUNDS = 100 if SOAK else 8
CONSUMERS = 8
LEASES_MS = (100, 300, 1000)
BACKLOG_MAX = 200
BATCH = 5


# -- in the children --------------------------------------------------------------------------------------------


def body_of(number: int) -> bytes:
    """A message that shows whether it is whole."""
    text = f"{number}:" + "x" * (number * 37 % 3000)
    return f"{hashlib.sha256(text.encode()).hexdigest()}{text}".encode()


def number_in(body: bytes) -> int | None:
    """The number of a message, if it is whole."""
    text = body[64:]
    whole = hashlib.sha256(text).hexdigest().encode() == body[:64]
    return int(text.partition(b":")[0]) if whole else None


def own(io: Io, url: str) -> None:
    with detent.open(url) as store:
        store.queue("q").create(exist_ok=True, backoff="5ms", max_backoff="20ms", max_attempts=0)
        store.queue("next").create(exist_ok=True)
        io.say("open", owner=store.is_owner)
        io.hear()


def produce(io: Io, url: str, first: int) -> None:
    """Publish numbers from `first` on: those that were published before have their dedup keys."""
    with detent.open(url) as store:
        queue = store.queue("q")
        io.say("open")
        while io._heard.empty():
            numbers = list(range(first, first + random.randint(1, BATCH)))
            io.say("publishing", numbers=numbers)
            messages = [detent.Outgoing(body_of(n), {"n": str(n)}, dedup_key=f"n{n}") for n in numbers]
            found = queue.publish_many(messages)
            io.say("published", numbers=numbers, messages=[one.message for one in found])
            first = numbers[-1] + 1
            while queue.info().available > BACKLOG_MAX and io._heard.empty():
                time.sleep(0.01)


class Consumer:
    """Claims batches, and ends each delivery in one of the ways there are."""

    def __init__(self, io: Any, store: detent.Store, name: str) -> None:
        self._io = io
        self._store = store
        self._queue = store.queue("q")
        self._name = name

    def once(self) -> None:
        lease_ms = random.choice(LEASES_MS)
        count = random.randint(1, BATCH)
        messages = self._queue.claim(count, wait="200ms", lease=f"{lease_ms}ms", consumer=self._name)
        if not messages:
            return
        claims = [
            [m.id, m.fencing_token, m.lease_ms - lease_ms, m.lease_ms, m.attempts, number_in(m.body)] for m in messages
        ]
        self._io.say("claimed", claims=claims)
        how = random.choices(["each", "all", "extend", "fail", "final", "forget", "late"], [40, 30, 8, 8, 4, 5, 5])[0]
        try:
            getattr(self, f"_{how}")(messages)
        except StaleReceipt:
            self._io.say("stale", receipts=receipts(messages))

    def _effect(self, messages: list[detent.Delivery]) -> None:
        """The effect of messages and their acknowledgement, together or not at all."""
        self._io.say("acking", receipts=receipts(messages))
        try:
            with self._store.transaction() as transaction:
                for message in messages:
                    effect = [number_in(message.body), message.id, message.fencing_token, self._name]
                    transaction.publish(json.dumps(effect).encode(), queue="next")
                    transaction.append("effects", json.dumps(effect).encode())
                transaction.ack(*messages)
        except StaleReceipt:
            self._io.say("stale", receipts=receipts(messages))
        else:
            self._io.say("acked", receipts=receipts(messages))

    def _each(self, messages: list[detent.Delivery]) -> None:
        for message in messages:
            self._effect([message])

    def _all(self, messages: list[detent.Delivery]) -> None:
        self._effect(messages)

    def _extend(self, messages: list[detent.Delivery]) -> None:
        for message in messages:
            message.extend("2s")
            self._io.say("extended", receipts=receipts([message]), lease_ms=message.lease_ms)
        self._each(messages)

    def _fail(self, messages: list[detent.Delivery], *, final: bool = False) -> None:
        for message in messages:
            self._io.say("failing", receipts=receipts([message]))
            message.fail("not now", final=final)

    def _final(self, messages: list[detent.Delivery]) -> None:
        self._fail(messages, final=True)

    def _forget(self, messages: list[detent.Delivery]) -> None:
        """Do nothing: the leases end by themselves."""

    def _late(self, messages: list[detent.Delivery]) -> None:
        """Come back when the leases are over, or nearly."""
        time.sleep(max(0.0, messages[0].lease_ms / 1000 - time.time() + random.uniform(-0.02, 0.05)))
        self._each(messages)


def receipts(messages: Iterable[detent.Delivery]) -> list[list[int]]:
    return [[message.id, message.fencing_token] for message in messages]


def consume(io: Io, url: str, name: str) -> None:
    with detent.open(url) as store:
        consumer = Consumer(io, store, name)
        io.say("open")
        while io._heard.empty():
            consumer.once()


# -- the checker ------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """One delivery, as the consumer saw it."""

    message: int
    delivery: int
    claimed_ms: int
    lease_ms: int
    attempts: int
    number: int | None
    consumer: str


@dataclass
class Counts:
    """What the checker found wrong."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    two_holders: list[str] = field(default_factory=list)
    regressed: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    after_the_ack: list[str] = field(default_factory=list)
    refused_and_applied: list[str] = field(default_factory=list)
    renumbered: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wrong(self) -> dict[str, int]:
        return {name: len(found) for name, found in vars(self).items()}


def check(events: list[dict[str, Any]], effects: list[list[Any]], followed: list[list[Any]] | None = None) -> Counts:
    """Compare the effects with what everybody said. `events` of one process stand in the order in which it spoke;
    `followed` is what was published with the effects."""
    counts = Counts()
    if followed is not None:
        there = Counter(map(tuple, effects))
        there.subtract(Counter(map(tuple, followed)))
        counts.torn += [f"{effect}: {times:+}" for effect, times in there.items() if times]
    claims = [
        Claim(*claim, event["who"]) for event in events if event["event"] == "claimed" for claim in event["claims"]
    ]
    _check_published(events, effects, claims, counts)
    _check_effects(events, effects, claims, counts)
    _check_deliveries(events, effects, claims, counts)
    return counts


def _check_published(
    events: list[dict[str, Any]], effects: list[list[Any]], claims: list[Claim], counts: Counts
) -> None:
    """Each number is one message, whole, with one effect."""
    messages: dict[int, int] = {}
    tried: set[int] = set()
    for event in events:
        if event["event"] == "publishing":
            tried |= set(event["numbers"])
        if event["event"] == "published":
            for number, message in zip(event["numbers"], event["messages"], strict=True):
                if messages.setdefault(number, message) != message:
                    counts.renumbered.append(f"{number} is message {messages[number]} and {message}")
    done = Counter(number for number, *_ in effects)
    counts.lost += [f"{number}" for number in messages if not done[number]]
    counts.twice += [f"{number} has {times} effects" for number, times in done.items() if times > 1]
    counts.unknown += [f"{number} was never published" for number in done if number not in tried]
    for claim in claims:
        if claim.number is None:
            counts.damaged.append(f"{claim}")
        elif messages.get(claim.number, claim.message) != claim.message:
            counts.renumbered.append(f"{claim}, published as {messages[claim.number]}")


def _check_effects(events: list[dict[str, Any]], effects: list[list[Any]], claims: list[Claim], counts: Counts) -> None:
    """An effect is there if and only if its transaction was not refused, and belongs to a delivery."""
    given = {(claim.message, claim.delivery): claim.consumer for claim in claims}
    applied = {(message, delivery) for _, message, delivery, _ in effects}
    for number, message, delivery, consumer in effects:
        if given.get((message, delivery)) != consumer:
            counts.unknown.append(f"{consumer} was never given delivery {delivery} of message {message} ({number})")
    last_words: dict[tuple[int, int], str] = {}
    for event in events:
        if event["event"] in ("acking", "acked", "stale"):
            last_words |= dict.fromkeys(map(tuple, event["receipts"]), event["event"])
    for receipt, word in last_words.items():
        if word == "acked" and receipt not in applied:
            counts.lost.append(f"the effect of {receipt}")
        if word == "stale" and receipt in applied:
            counts.refused_and_applied.append(f"{receipt}")


def _check_deliveries(
    events: list[dict[str, Any]], effects: list[list[Any]], claims: list[Claim], counts: Counts
) -> None:
    """One holder at a time, numbers that only grow, first deliveries in the order of the messages."""
    leases = {(claim.message, claim.delivery): claim.lease_ms for claim in claims}
    failing: set[tuple[int, int]] = set()
    for event in events:
        if event["event"] == "extended":
            for message, delivery in event["receipts"]:
                leases[message, delivery] = max(leases[message, delivery], event["lease_ms"])
        if event["event"] == "failing":
            failing |= {(message, delivery) for message, delivery in event["receipts"]}
    claims = sorted(claims, key=lambda claim: claim.delivery)
    counts.two_holders += [
        f"{one} and {two}" for one, two in pairwise(claims) if one.delivery == two.delivery and one != two
    ]
    counts.regressed += [f"{one} before {two}" for one, two in pairwise(claims) if one.claimed_ms > two.claimed_ms]
    counts.reordered += _late_first_deliveries(claims)
    previous: dict[int, Claim] = {}
    for claim in claims:
        before = previous.get(claim.message)
        if before is not None and (before.message, before.delivery) not in failing:
            until = leases[before.message, before.delivery]
            if claim.claimed_ms < until:
                counts.two_holders.append(f"{before} until {until}, and {claim}")
        previous[claim.message] = claim
    done = {message: delivery for _, message, delivery, _ in effects}
    counts.after_the_ack += [f"{c}" for c in claims if c.delivery > done.get(c.message, c.delivery)]


def _late_first_deliveries(claims: list[Claim]) -> Iterator[str]:
    """First attempts that come after one at a newer message, although no claim before that could have been undone.

    A claim that could not be handed over, because its consumer was killed, gives its messages back as if it had never
    been; it has used up a delivery number for each, which no consumer has seen.
    """
    unseen = sorted({*range(1, claims[-1].delivery if claims else 1)} - {claim.delivery for claim in claims})
    seen: set[int] = set()
    newer: list[Claim] = []
    for claim in claims:
        if claim.message not in seen and claim.attempts == 1 and claim.consumer != "drain":
            overtook = next((one for one in newer if one.message > claim.message), None)
            if overtook is not None:
                if unseen and unseen[0] < overtook.delivery:
                    del unseen[0]
                else:
                    yield f"{claim} after message {overtook.message}"
            newer.append(claim)
        seen.add(claim.message)


# -- the rounds -------------------------------------------------------------------------------------------------


class Rounds:
    """All processes of one store, some of which are killed in each round."""

    def __init__(self, processes: Processes, directory: Path, environment: dict[str, str] | None = None) -> None:
        self._processes = processes
        self._directory = directory / "store"
        self._environment = environment
        self.url = f"file:{self._directory}"
        self._children: dict[str, Child] = {}
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.deaths: Counter[str] = Counter()
        self._start("owner")
        self._children["owner"].expect("open")
        for name in ["producer", *(f"c{number}" for number in range(CONSUMERS))]:
            self._start(name)

    def _start(self, name: str) -> None:
        old = self._children.get(name)
        if old is not None:
            self._ended(name, old)
        how: dict[str, Any] = {"environment": self._environment, "url": self.url}
        if name == "owner":
            child = self._processes.start(own, **how)
        elif name == "producer":
            answered = [event["numbers"][-1] for event in self.events if event["event"] == "published"]
            child = self._processes.start(produce, first=max(answered, default=-1) + 1, **how)
        else:
            child = self._processes.start(consume, name=name, **how)
        self._children[name] = child

    def _ended(self, name: str, child: Child) -> None:
        """Keep what a process said. It was killed or ended well; anything else is an error of its own."""
        status = child.wait(seconds=120)
        child.end()
        self.events += [{"who": name, **event} for event in child.events]
        if status not in (0, -signal.SIGKILL):
            self.errors.append(f"{name} ended with {status}: {child.last_errors[-2000:]}")

    def _owner(self) -> str | None:
        known = read_owner(self._directory)
        return next((name for name, child in self._children.items() if known and child.pid == known.pid), None)

    def _acks(self) -> int:
        """How often somebody was told that messages are done. Whoever ends by itself meanwhile ends the test."""
        for name, child in self._children.items():
            assert child.running, f"{name} ended by itself: {child.errors()[-2000:]}"
        return sum(event["event"] == "acked" for child in self._children.values() for event in list(child.events))

    def run_one(self) -> None:
        """Wait for some load, then let some of them die, and replace them."""
        before = self._acks()
        eventually(lambda: self._acks() >= before + 20, seconds=120, what="some load")
        time.sleep(random.random() * 0.2)
        owner = eventually(self._owner, seconds=120, what="an owner")
        consumers = [name for name in self._children if name.startswith("c") and name != owner]
        how = random.choices(
            ["consumers", "producer", "owner", "owner and consumers", "all but one", "stop", "close"],
            [30, 15, 25, 10, 5, 10, 5],
        )[0]
        self.deaths[how] += 1
        victims = {
            "consumers": random.sample(consumers, 3),
            "producer": ["producer"],
            "owner": [owner],
            "owner and consumers": [owner, *random.sample(consumers, 2)],
            "all but one": [name for name in self._children if name != consumers[0]],
            "stop": random.sample(consumers, 2),
            "close": [owner],
        }[how]
        for name in victims:
            child = self._children[name]
            if how == "stop":
                child.stop()
            elif how == "close":
                child.tell()
            else:
                os.kill(child.pid, signal.SIGKILL)
        if how == "stop":
            time.sleep(2 * LEASES_MS[1] / 1000)  # past most leases
            for name in victims:
                self._children[name].resume()
            return
        for name in victims:
            self._start(name)

    def finish(self) -> None:
        """Everybody ends in peace."""
        for child in self._children.values():
            eventually(lambda child=child: any(e["event"] == "open" for e in list(child.events)), seconds=120)
        for child in self._children.values():
            child.tell()
        for name, child in self._children.items():
            self._ended(name, child)

    def drain(self) -> tuple[list[list[Any]], list[list[Any]], list[str], detent.QueueInfo]:
        """Publish what was not answered, do what is left to do, and look at what is there then: effects, what was
        published with them, leftovers."""
        said = Said("drain", self.events)
        with detent.open(self.url) as store:
            queue = store.queue("q")
            tried = [n for event in self.events if event["event"] == "publishing" for n in event["numbers"]]
            for number in sorted(set(tried)):
                answer = queue.publish(body_of(number), headers={"n": str(number)}, dedup_key=f"n{number}")
                said.say("published", numbers=[number], messages=[answer.message])
            queue.redrive()
            consumer = Consumer(said, store, "drain")
            while (info := queue.info()).available + info.delayed + info.in_flight:
                lease_ms = 60_000
                messages = queue.claim(100, wait="1s", lease=f"{lease_ms}ms", consumer="drain")
                claims = [[*r, m.lease_ms - lease_ms, m.lease_ms, m.attempts, number_in(m.body)]
                          for m, r in zip(messages, receipts(messages), strict=True)]  # fmt: skip
                said.say("claimed", claims=claims)
                if messages:
                    consumer._all(messages)
            info = queue.info()
            followed: list[list[Any]] = []
            while messages := store.queue("next").claim(1000):
                followed += [json.loads(message.body) for message in messages]
                store.queue("next").ack(messages)
        with detent.open(self.url) as store:  # closing has left nothing to replay, and nothing that nobody needs
            again = store.queue("q").info()
            left = [] if again == info else [f"closed with {info}, opened with {again}"]
            with store._kv.view() as view:
                for prefix in (published_records.PAYLOAD, queue_records.STATE_LOG, queue_records.ATTEMPTS):
                    left += [f"{key.hex()}" for key, _ in view.scan(*prefix.range())]
            if info.failed or store.unmatched():
                left.append(f"{info}, unmatched {store.unmatched()}")
            effects = [json.loads(message.body) for message in store.journal("effects").read()]
        if info.total_acked != len(effects):
            left.append(f"{info.total_acked} acknowledgements and {len(effects)} effects")
        return effects, followed, left, info


class Said:
    """The test itself, speaking as one of the processes."""

    def __init__(self, name: str, events: list[dict[str, Any]]) -> None:
        self._name = name
        self._events = events

    def say(self, event: str, **fields: Any) -> None:
        self._events.append({"who": self._name, "event": event, **fields})


def test_each_message_has_one_effect_whoever_is_killed(tmp_path: Path) -> None:
    """Nothing lost, done twice, held by two at once, reordered or left behind, in any round."""
    seed = int(os.environ.get("DETENT_SEED", time.time_ns() % 1_000_000))
    random.seed(seed)
    began = time.monotonic()
    with Processes() as processes:
        rounds = Rounds(processes, tmp_path)
        for _ in range(ROUNDS):
            rounds.run_one()
        rounds.finish()
        effects, followed, left, info = rounds.drain()
    counts = check(rounds.events, effects, followed)
    counts.left, counts.errors = left, rounds.errors
    said = Counter(event["event"] for event in rounds.events)
    print(
        f"\nseed {seed}: {ROUNDS} rounds {dict(rounds.deaths)} in {time.monotonic() - began:.0f} s, "
        f"{len(effects)} messages, {info.total_routed} routed, {dict(said)}\nwrong: {counts.wrong()}"
    )
    assert not any(counts.wrong().values()), {name: found[:5] for name, found in vars(counts).items() if found}
    assert len(effects) > 20 * ROUNDS


# -- the checker can fail ---------------------------------------------------------------------------------------


def said(who: str, event: str, **fields: Any) -> dict[str, Any]:
    return {"who": who, "event": event, **fields}


RIGHT = [
    said("producer", "publishing", numbers=[0, 1]),
    said("producer", "published", numbers=[0, 1], messages=[10, 11]),
    said("producer", "publishing", numbers=[2]),
    said("c0", "claimed", claims=[[10, 1, 1000, 1100, 1, 0], [11, 2, 1000, 1100, 1, 1]]),
    said("c0", "acking", receipts=[[10, 1]]),
    said("c0", "acked", receipts=[[10, 1]]),
    said("c1", "claimed", claims=[[11, 3, 1100, 1200, 2, 1]]),
    said("c1", "extended", receipts=[[11, 3]], lease_ms=3000),
    said("c0", "acking", receipts=[[11, 2]]),
    said("c0", "stale", receipts=[[11, 2]]),
    said("c1", "failing", receipts=[[11, 3]]),
    said("c0", "claimed", claims=[[11, 4, 1150, 1250, 3, 1], [12, 5, 1150, 1250, 1, 2]]),
    said("c0", "acking", receipts=[[11, 4], [12, 5]]),
]
EFFECTS: list[list[Any]] = [[0, 10, 1, "c0"], [1, 11, 4, "c0"], [2, 12, 5, "c0"]]


def test_checker_knows_that_a_claim_of_a_killed_consumer_was_undone() -> None:
    """Its delivery number, 6, was never seen; but number 5 was, so nothing can excuse a second message that is late."""
    overtaken = [*RIGHT, said("c2", "claimed", claims=[[14, 7, 1300, 1400, 1, 4], [13, 8, 1310, 1410, 1, 3]])]
    assert check(overtaken, EFFECTS).reordered == []
    twice = [*overtaken, said("c2", "claimed", claims=[[9, 9, 1320, 1420, 1, 2]])]
    assert len(check(twice, EFFECTS).reordered) == 1


def test_the_checker_passes_what_is_right() -> None:
    assert not any(check(RIGHT, EFFECTS, EFFECTS[::-1]).wrong().values())
    assert not any(check(RIGHT, EFFECTS[:2]).wrong().values()), "nobody was told that the last one is done"


def claimed(*claim: Any) -> list[dict[str, Any]]:
    return [*RIGHT, said("c2", "claimed", claims=[list(claim)])]


def without(event: str) -> list[dict[str, Any]]:
    return [one for one in RIGHT if one["event"] != event]


@pytest.mark.parametrize(
    ("wrong", "events", "effects"),
    [
        ("lost", RIGHT, EFFECTS[1:]),
        ("lost", [*RIGHT, said("c0", "acked", receipts=[[12, 5]])], EFFECTS[:2]),
        ("lost", [*RIGHT, said("producer", "published", numbers=[2], messages=[12])], EFFECTS[:2]),
        ("twice", RIGHT, [*EFFECTS, [2, 12, 5, "c0"]]),
        ("twice", claimed(10, 6, 1300, 1400, 2, 0), [*EFFECTS, [0, 10, 6, "c2"]]),
        ("two_holders", claimed(12, 6, 1249, 1400, 2, 2), EFFECTS),
        ("two_holders", claimed(12, 5, 1150, 1250, 1, 2), EFFECTS),
        ("two_holders", without("failing"), EFFECTS),
        ("regressed", claimed(13, 6, 1149, 1400, 1, 2), EFFECTS),
        ("reordered", claimed(9, 6, 1300, 1400, 1, 2), EFFECTS),
        ("after_the_ack", claimed(10, 6, 1300, 1400, 2, 0), EFFECTS),
        ("refused_and_applied", RIGHT, [*EFFECTS, [1, 11, 2, "c0"]]),
        ("renumbered", [*RIGHT, said("producer", "published", numbers=[0], messages=[13])], EFFECTS),
        ("renumbered", claimed(13, 6, 1300, 1400, 1, 0), EFFECTS),
        ("unknown", RIGHT, [*EFFECTS, [3, 13, 6, "c0"]]),
        ("unknown", RIGHT, [*EFFECTS[:2], [2, 12, 5, "c1"]]),
        ("damaged", claimed(13, 6, 1300, 1400, 1, None), EFFECTS),
    ],
)
def test_the_checker_counts_what_is_wrong(wrong: str, events: list[dict[str, Any]], effects: list[list[Any]]) -> None:
    assert check(events, effects).wrong()[wrong] > 0


@pytest.mark.parametrize("followed", [EFFECTS[1:], [*EFFECTS, EFFECTS[0]], [*EFFECTS, [3, 13, 6, "c0"]]])
def test_the_checker_counts_what_was_done_by_half(followed: list[list[Any]]) -> None:
    assert check(RIGHT, EFFECTS, followed).wrong()["torn"] > 0


def test_a_body_shows_what_happened_to_it() -> None:
    for number in (0, 1, 77):
        whole = body_of(number)
        assert number_in(whole) == number
        assert number_in(whole[:-1]) is None
        assert number_in(whole[:64] + b"1" + whole[65:]) is None or number == 1
    assert number_in(b"") is None
