"""One journal, five ways: the oracle, the loop, the columns, the sequencer, and the sequencer through crashes.

All must deliver the same messages in the same order, for any journal, any cut into blocks, any size of the ring and
any place of a crash. With DETENT_SOAK=1 there are many more journals.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detent.message import Envelope, ProducerState, SequencedBlock, Sequencer, sequence_block_scalar
from detent.message.vectorised import sequence_block_columns
from oracle import RawMessage, committed, random_journal

SOAK = bool(os.environ.get("DETENT_SOAK"))
SEEDS = 5_000 if SOAK else 150
EXAMPLES = settings(
    max_examples=5_000 if SOAK else 120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
RINGS = (1, 2, 3, 5, 64)
STRIDE = 3

# Few producers and few clocks, so that nearly every message collides with another.
JOURNALS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 9), st.sampled_from([0, 1, 1, 1, 2, 2, 3])), max_size=30
)

Function = Callable[..., SequencedBlock]


def by_blocks(raw: list[RawMessage], sizes: Iterator[int], sequence: Function) -> list[int]:
    """Commit a journal block by block, as an owner does: keep states and pending positions, follow `order`."""
    states: dict[int, ProducerState] = {}
    open_positions: dict[int, list[int]] = {}
    delivered: list[int] = []
    base = 0
    while base < len(raw):
        part = raw[base : base + next(sizes)]
        producers, clocks, flags = zip(*part, strict=True)
        block = sequence(
            np.array(producers, np.uint64), np.array(clocks, np.uint64), np.array(flags, np.uint16), base, states
        )
        rows = block.order.tolist()
        done = 0
        for at, producer, above, through in block.carried:
            delivered += [base + row for row in rows[done:at]]
            delivered += [p for p in open_positions[producer] if above < raw[p][1] <= through]
            done = at
        delivered += [base + row for row in rows[done:]]
        for producer in block.closed:
            del open_positions[producer]
        for producer, pending in block.pending.items():
            open_positions.setdefault(producer, []).extend(base + row for row in pending.tolist())
        states.update(block.states)
        assert set(open_positions) == {producer for producer, state in states.items() if state.is_open}
        assert all(positions[0] == states[producer].begin for producer, positions in open_positions.items())
        base += len(part)
    return delivered


def envelopes(journals: dict[str, list[RawMessage]]) -> dict[str, list[Envelope]]:
    return {
        name: [
            Envelope(name, index * STRIDE, index * STRIDE + 2, producer, clock, flags, index)
            for index, (producer, clock, flags) in enumerate(raw)
        ]
        for name, raw in journals.items()
    }


class Consumer:
    """Reads journals, crashes now and then, and keeps what it committed: checkpoint and messages, always together."""

    def __init__(self, journals: dict[str, list[RawMessage]], ring: int, rng: random.Random, crashes: bool) -> None:
        self.source = envelopes(journals)
        self.ring, self.rng, self.crashes = ring, rng, crashes
        self.committed: dict[str, list[int]] = {name: [] for name in journals}
        self.staged: list[Envelope] = []
        self.sequencer = Sequencer(ring)
        self.checkpoint = self.sequencer.checkpoint()

    def commit(self, handed: Envelope | None = None) -> None:
        """What was consumed becomes durable. A message just handed out belongs to the next transaction."""
        self.checkpoint = self.sequencer.checkpoint()
        for envelope in self.staged:
            if not envelope.is_ack:
                self.committed[envelope.journal].append(envelope.message)
        self.staged = [] if handed is None else [handed]

    def maybe_crash(self) -> bool:
        """True after a crash: everything since the last commit is gone."""
        if not self.crashes or self.rng.random() > 0.05:
            return False
        self.staged = []
        self.sequencer = Sequencer(self.rng.choice(RINGS), self.checkpoint)
        return True

    def deliver(self) -> None:
        again = self.sequencer.replay_range()
        if again is not None:
            name, begin, end = again
            self.sequencer.start_replay(e for e in self.source[name] if begin <= e.begin and e.end <= end)
        while (envelope := self.sequencer.step()) is not None:
            if self.crashes and self.rng.random() < 0.2:
                self.commit(handed=envelope)
                if self.maybe_crash():
                    return
            else:
                self.staged.append(envelope)
            if self.maybe_crash():
                return

    def run(self) -> dict[str, list[int]]:
        while True:
            offsets = self.sequencer.checkpoint().offsets
            ahead = {n: e for n, all_ in self.source.items() if (e := following(all_, offsets.get(n, 0)))}
            if not ahead:
                self.commit()
                return self.committed
            self.sequencer.queue(ahead[self.rng.choice(sorted(ahead))])
            self.deliver()
            if self.crashes and self.rng.random() < 0.2:
                self.commit()
            self.maybe_crash()


def following(source: list[Envelope], offset: int) -> Envelope | None:
    """The first envelope at or after an offset, if there is one."""
    index = -(-offset // STRIDE)
    return source[index] if index < len(source) else None


def check(raw: list[RawMessage], rng: random.Random) -> None:
    expected = committed(raw)
    for sequence in (sequence_block_scalar, sequence_block_columns):
        for largest in (1, 3, 10, 1000):
            assert by_blocks(raw, iter(lambda largest=largest: rng.randint(1, largest), 0), sequence) == expected
    for ring in RINGS:
        for crashes in (False, True):
            assert Consumer({"j": raw}, ring, rng, crashes).run() == {"j": expected}


@EXAMPLES
@given(JOURNALS, st.integers(0, 99))
def test_journals_of_collisions(raw: list[RawMessage], seed: int) -> None:
    check(raw, random.Random(seed))


@pytest.mark.parametrize("chunk", range(10))
def test_journals_of_faulty_producers(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 10):
        rng = random.Random(seed)
        raw = random_journal(rng, messages=rng.choice((10, 40, 120)), producers=rng.choice((1, 2, 5)))
        try:
            check(raw, rng)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(SEEDS // 10))
def test_several_journals_at_once(seed: int) -> None:
    rng = random.Random(seed)
    journals = {name: random_journal(rng, messages=30, producers=3) for name in "ab"}
    expected = {name: committed(raw) for name, raw in journals.items()}
    for ring in RINGS:
        assert Consumer(journals, ring, rng, crashes=True).run() == expected


def test_random_journals_have_everything_that_goes_wrong() -> None:
    outcomes: set[int] = set()
    for seed in range(50):
        raw = random_journal(random.Random(seed))
        producers, clocks, flags = zip(*raw, strict=True)
        columns = np.array(producers, np.uint64), np.array(clocks, np.uint64), np.array(flags, np.uint16)
        outcomes |= set(sequence_block_scalar(*columns, 0, {}).outcomes.tolist())
    assert outcomes == set(range(12))
