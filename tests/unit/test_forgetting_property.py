"""What a journal forgets is never seen: with producers pruned and transactions aborted, its index, a reader of its raw
rows and an oracle that forgets nothing agree; no transaction is half there, and what a call confirmed is there."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.consumer.sources import RawSource, ReadJournal
from detent.errors import ClockAhead, Conflict, DetentError, Fenced
from detent.journal import Message, Publisher
from detent.journal import operations as ops
from detent.message import CONTINUE_TXN, Envelope, Sequencer, clock_of_ns
from detent.state.checkpoint import RawPosition
from oracle import AHEAD, TICKS_A_SECOND, Gate, RawMessage, committed
from world import World

EXAMPLES = 2000 if os.environ.get("DETENT_SOAK") else 25
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SKEWS_MS = (0, 0, 0, 5 * MINUTE_MS, 20 * HOUR_MS, -2 * HOUR_MS, -30 * HOUR_MS, -50 * HOUR_MS)

RAW_SKEWS_MS = (0, 0, 0, 14 * MINUTE_MS, 16 * MINUTE_MS, -HOUR_MS, -4 * HOUR_MS, -100 * HOUR_MS)


class Author:
    """A publisher with a wall clock of its own, in the middle of a transaction or not."""

    def __init__(self, world: World, skew_ms: int) -> None:
        self.publisher = Publisher(
            lambda operations: world.commit(*operations),
            now_ns=lambda: (world.now_ms + skew_ms) * 1_000_000,
            random=world.random.randbytes,
        )
        self.open: list[bytes] = []


class Play:
    """Random authors and a reader of raw rows, while time passes, owners die and the journal forgets."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed)
        deadline = self.rng.choice((HOUR_MS, 0))
        horizon = self.rng.choice((MINUTE_MS, HOUR_MS, 24 * HOUR_MS))
        self.world.commit(ops.CreateJournal("j", span_deadline_ms=deadline, producer_horizon_ms=horizon))
        self.authors = [self.author() for _ in range(3)]
        self.whole: list[set[bytes]] = []
        self.confirmed: set[bytes] = set()
        self.count = 0
        self.seen: list[bytes] = []
        self.source = self.reader(None)
        self.rows: list[Message] = []  # also those that are gone: an aborted transaction leaves the journal's front

    def author(self) -> Author:
        return Author(self.world, self.rng.choice(SKEWS_MS))

    def reader(self, position: RawPosition | None) -> RawSource:
        store: Any = SimpleNamespace(reader=self.world.reader)
        return RawSource(store, "j", position, ReadJournal(None, None), None)

    def bodies(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % number for number in range(self.count - count, self.count)]

    def note_rows(self) -> None:
        at = self.rows[-1].position + 1 if self.rows else 0
        self.rows += [row for row in self.world.raw("j") if row.position >= at]

    def step(self) -> None:
        rng, world = self.rng, self.world
        self.note_rows()
        draw = rng.random()
        if draw < 0.55:
            at = rng.randrange(len(self.authors))
            try:
                self.publish(self.authors[at])
            except DetentError:
                self.authors[at] = self.author()
        elif draw < 0.65:
            world.append("j", *(own := self.bodies(rng.randint(1, 2))))
            self.confirmed.update(own)
        elif draw < 0.75:
            world.pass_time(rng.choice((1000, 61_000, 2 * HOUR_MS, 26 * HOUR_MS)))
        elif draw < 0.8:
            world.now_ms += rng.choice((0, 3 * HOUR_MS))
            world.reopen()
            world.session = world.engine.new_session()
            self.source = self.reader(self.source.position())  # of the world's new reader
        elif draw < 0.83:
            self.authors[rng.randrange(len(self.authors))] = self.author()
        else:
            self.read(rng.randint(1, 6))

    def publish(self, author: Author) -> None:
        rng = self.rng
        bodies = self.bodies(rng.randint(1, 3))
        if not author.open and rng.random() < 0.4:
            author.publisher.publish("j", bodies)
            self.confirmed.update(bodies)
        elif not author.open or rng.random() < 0.5:
            author.publisher.publish_uncommitted("j", bodies)
            author.open += bodies
        else:
            self.whole.append(set(author.open))
            author.publisher.acknowledge(author.publisher.build_ack_intents())
            self.confirmed.update(author.open)
            author.open = []

    def read(self, count: int) -> None:
        for _ in range(count):
            messages = self.source.take()
            if not messages:
                return
            self.seen += [message.body for message in messages]
            self.source.drained()
            if self.rng.random() < 0.2:
                kept, following = self.source.position(), self.source._next
                self.source = self.reader(kept)
                assert following is None or self.source.take()[0].body == following.body
                if following is not None:
                    self.source.put_back([following])


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_forgotten_is_never_seen(seed: int) -> None:
    play = Play(seed)
    for _ in range(80):
        play.step()
    play.note_rows()
    play.read(play.world.reader.next_offset("j"))
    rows = play.rows
    stored = [(int.from_bytes(row.producer, "big"), row.clock, row.flags) for row in rows]
    expected = [rows[at].body for at in committed(stored)]
    assert play.world.bodies("j") == expected
    assert play.seen == expected
    assert play.confirmed <= set(expected)
    assert len(set(expected)) == len(expected)
    for transaction in play.whole:
        assert not transaction & set(expected) or transaction <= set(expected)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_owner_takes_what_the_oracle_lets_in(seed: int) -> None:
    rng, world = random.Random(seed), World(seed)
    deadline_ms, horizon_ms = rng.choice((HOUR_MS, 5 * HOUR_MS)), rng.choice((MINUTE_MS, 3 * HOUR_MS))
    world.commit(ops.CreateJournal("j", span_deadline_ms=deadline_ms, producer_horizon_ms=horizon_ms))
    gate = Gate(ticks_of(deadline_ms), ticks_of(horizon_ms))
    accepted: list[RawMessage] = []
    sent: list[RawMessage] = []
    highest = [(0, number) for number in range(1, 6)]
    skews_ms = [rng.choice(RAW_SKEWS_MS) for _ in highest]
    for _ in range(60):
        if rng.random() < 0.2:
            world.pass_time(rng.choice((61_000, 2 * HOUR_MS, 2 * HOUR_MS, 90 * HOUR_MS)))
            gate.tick(now_of(world))
            continue
        if rng.random() < 0.1:
            skews_ms[rng.randrange(5)] = rng.choice(RAW_SKEWS_MS)
        at = rng.randrange(5)
        if rng.random() < 0.05:
            highest[at] = 0, 10 + len(sent) * 5 + at  # its process starts over
        clock, producer = highest[at]
        clock = max(clock, now_of(world) + ticks_of(skews_ms[at])) + rng.randint(1, 5) * 160
        row = producer, clock, rng.choice((0, 1, 1, 2, 2))
        if accepted and rng.random() < 0.3:
            # A retried append, or a late one. (Pending rows that were rolled back are never sent again.)
            row = rng.choice([accepted[-1], *(one for one in accepted if one[2] != CONTINUE_TXN)])
        elif row[1] <= now_of(world) + AHEAD:
            highest[at] = clock, producer
        sent.append(row)
        try:
            world.stamped("j", [row])
        except (Fenced, Conflict, ClockAhead):
            assert not gate.admits(row, now_of(world)), row
        else:
            assert gate.admits(row, now_of(world)), row
            accepted.append(row)
        if rng.random() < 0.1:
            world.reopen()
            world.machine.state("j")  # read, as by an append: housekeeping is for journals in memory
    assert world.bodies("j") == ["{}:{}:{}".format(*accepted[at]).encode() for at in committed(accepted)]
    assert world.reader.info("j").clock_floor == gate.floor


def ticks_of(milliseconds: int) -> int:
    return milliseconds * TICKS_A_SECOND // 1000


def now_of(world: World) -> int:
    return clock_of_ns(world.now_ms * 1_000_000)


# -- the same rules, one by one ---------------------------------------------------------------------------------------


DAY_TICKS = clock_of_ns(24 * HOUR_MS * 1_000_000) - clock_of_ns(0)


def drain(sequencer: Sequencer) -> list[Any]:
    found = []
    while (step := sequencer.step()) is not None:
        found.append(step.message)
    return found


def test_a_sequencer_forgets_what_the_owner_has_forgotten_and_nothing_else() -> None:
    sequencer = Sequencer()
    for at, (producer, clock, flags) in enumerate([(1, 100, 0), (2, 200, 0), (3, 150, CONTINUE_TXN), (4, 300, 0)]):
        sequencer.queue(Envelope("j", at, at + 1, producer, clock, flags, producer))
        drain(sequencer)
    sequencer.forget("j", floor=200, open_from=2)
    kept = sequencer.checkpoint()
    assert [one.producer for one in kept.producers] == [3, 4], "not the one that has an open transaction"
    assert kept.floors == {"j": 200}
    sequencer.forget("j", floor=200, open_from=3)
    assert [one.producer for one in sequencer.checkpoint().producers] == [4], "the owner has rolled it back"


def test_a_sequencer_that_is_told_a_horizon_is_not_led_astray_by_a_clock_that_runs_ahead() -> None:
    now_ns = 1_700_000_000 * 1_000_000_000
    now = clock_of_ns(now_ns)
    sequencer, seen = Sequencer(), []
    rows = [(1, now), (2, now + 1000 * DAY_TICKS), (3, now - 100), (1, now + 160), (3, now)]
    for at, (producer, clock) in enumerate(rows):
        sequencer.queue(Envelope("j", at, at + 1, producer, clock, 0, at))
        seen += drain(sequencer)
        sequencer.checkpoint(24 * HOUR_MS * 1_000_000, now_ns=now_ns)
    assert seen == [0, 1, 2, 3, 4]


def test_a_raw_source_reads_what_a_publisher_with_a_slow_clock_was_told_is_committed() -> None:
    """The journal forgets nothing, so the reader must not forget it either, after whatever time."""
    world = World()
    world.commit(ops.CreateJournal("j", producer_horizon_ms=0))
    store: Any = SimpleNamespace(reader=world.reader)
    source = RawSource(store, "j", None, ReadJournal(None, None), None)
    authors = [Author(world, -hours * HOUR_MS) for hours in (72, 71, 0)]
    seen = []
    for number in range(9):
        authors[number % 3].publisher.publish("j", [b"%d" % number])
        world.pass_time(61_000)
        seen += [message.body for message in source.take()]
        source.drained()
        source = RawSource(store, "j", source.position(), ReadJournal(None, None), None)
    assert seen == world.bodies("j") == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("flags", [0, CONTINUE_TXN])
def test_a_checkpoint_of_raw_positions_shrinks_with_the_journals_memory(flags: int) -> None:
    world = World()
    world.commit(ops.CreateJournal("j", producer_horizon_ms=HOUR_MS, span_deadline_ms=HOUR_MS))
    clock = clock_of_ns(world.now_ms * 1_000_000)
    world.stamped("j", [(producer, clock, flags) for producer in range(1, 51)])
    store: Any = SimpleNamespace(reader=world.reader)
    source = RawSource(store, "j", None, ReadJournal(None, None), None)
    while source.take():
        source.drained()
    assert len(source.position().producers) == 50
    world.pass_time(3 * HOUR_MS)
    world.append("j", b"new")
    world.pass_time(61_000)
    for _ in range(2):
        source.take()
        source.drained()
    assert len(source.position().producers) == 1
