"""The result of sequencing a block of messages, and the plain loop that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detent.message.sequence import Outcome, ProducerState, decide

Clocks = NDArray[np.uint64]
Rows = NDArray[np.int64]
Codes = NDArray[np.uint8]


class Carried(NamedTuple):
    """Messages from before the block, committed by an ACK in it.

    At index `at` of `SequencedBlock.order`, insert the producer's pending messages with above < clock <= through.
    """

    at: int
    producer: int
    above: int
    through: int


@dataclass(frozen=True, slots=True)
class SequencedBlock:
    """What a block of messages did."""

    outcomes: Codes
    """One `Outcome` for each row."""
    states: dict[int, ProducerState]
    """New state of every tracked producer in the block."""
    order: Rows
    """Rows that became committed, in commit order. ACKs are never among them."""
    carried: list[Carried]
    """Where messages of earlier blocks come in, in commit order."""
    closed: set[int]
    """Producers whose span from before the block ended here, committed or rolled back."""
    pending: dict[int, Rows]
    """Rows of this block in a span that is still open, by producer."""


def sequence_block_scalar(
    producers: Clocks,
    clocks: Clocks,
    flags: NDArray[np.uint16],
    base: int,
    states: Mapping[int, ProducerState],
    *,
    floor: int = 0,
) -> SequencedBlock:
    """The same as `sequence_block`, row by row: the reference, and the faster way for a few rows."""
    outcomes: list[int] = []
    after: dict[int, ProducerState] = {}
    order: list[int] = []
    carried: list[Carried] = []
    closed: set[int] = set()
    open_rows: dict[int, list[tuple[int, int]]] = {}
    from_before: set[int] = set()
    columns = zip(producers.tolist(), clocks.tolist(), flags.tolist(), strict=True)
    for row, (producer, clock, flag) in enumerate(columns):
        state = after.get(producer)
        if state is None and (state := states.get(producer)) is not None and state.is_open and clock:
            from_before.add(producer)
        outcome, new = decide(flag, clock, state, base + row, floor)
        outcomes.append(outcome)
        if outcome is Outcome.OUTSIDE_COMMIT or outcome is Outcome.OUTSIDE_OVER_SPAN:
            order.append(row)
        elif outcome is Outcome.ACK_COMMIT and state is not None:
            if producer in from_before:
                carried.append(Carried(len(order), producer, state.last_ack, clock))
            order += [pending for pending, at in open_rows.get(producer, ()) if at <= clock]
        elif outcome is Outcome.CONTINUE_BEGIN or outcome is Outcome.CONTINUE_EXTEND:
            open_rows.setdefault(producer, []).append((row, clock))
        if outcome.closes:
            open_rows.pop(producer, None)
            if producer in from_before:
                from_before.remove(producer)
                closed.add(producer)
        if clock and new is not None:
            after[producer] = new
    pending = {producer: np.array([row for row, _ in rows], np.int64) for producer, rows in open_rows.items()}
    codes = np.array(outcomes, np.uint8)
    return SequencedBlock(codes, after, np.array(order, np.int64), carried, closed, pending)
