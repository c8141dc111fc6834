"""Sequencing a block of a million messages by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from bench.harness import Opened, Plan, Row, Size, in_turn, ours_at_least
from bench.journal.suite import SUITE
from bench.journal.timing import rate
from bench.place import Place
from detent.message.uuids import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN
from detent.message.vectorised import sequence_block, sequence_block_scalar

ROWS = 1_000_000
SPAN = 50
"""Messages of one transaction, without its ACK."""

SCALAR_ROWS = 50_000


def columns(rows: int, producers: int, *, transactions: bool) -> tuple[Any, Any, Any]:
    """Producers at random, clocks that rise, and flags: all outside, or transactions of 50 and their ACK."""
    random = np.random.default_rng(7)
    ids = random.choice(1 << 47, producers, replace=False).astype(np.uint64) | np.uint64(1 << 40)
    chosen = random.integers(0, producers, rows)
    clocks = np.arange(1, rows + 1, dtype=np.uint64) << np.uint64(4)
    flags = np.full(rows, OUTSIDE_TXN, np.uint16)
    if transactions:
        order = np.argsort(chosen, kind="stable")
        starts = np.searchsorted(chosen[order], np.arange(producers))
        place = np.empty(rows, np.int64)
        place[order] = np.arange(rows) - np.repeat(starts, np.bincount(chosen, minlength=producers))
        flags[:] = np.where(place % (SPAN + 1) == SPAN, ACK_TXN, CONTINUE_TXN)
    return ids[chosen], clocks, flags


def side(sequence: Callable[..., object], block: tuple[Any, Any, Any], rows: int) -> Opened:
    part = [column[:rows].copy() for column in block]
    return lambda: nullcontext(lambda: rate(lambda: sequence(*part, 0, {}), rows))


@SUITE.measurement("sequencing")
@contextmanager
def sequencing(_: Place, size: Size) -> Iterator[Plan]:
    sides: dict[str, Opened] = {}
    table: list[Row] = []
    for producers, limit in ((1, 20e6), (10_000, 5e6)):
        for transactions in (False, True):
            shape = f"transactions of {SPAN} + ACK" if transactions else "all outside transactions"
            name = f"{producers}-{'transactions' if transactions else 'outside'}"
            block = columns(ROWS, producers, transactions=transactions)
            sides[name] = side(sequence_block, block, ROWS)
            sides[f"{name}-loop"] = side(sequence_block_scalar, block, SCALAR_ROWS)
            table.append(
                Row(
                    f"vectorised sequencing, {ROWS:,} messages, producers: {producers:,}, {shape}",
                    "msg/s",
                    f"turns.{name}",
                    ours_at_least(limit, f"at least {limit / 1e6:.0f} M msg/s"),
                    f"turns.{name}-loop",
                    f"other: the plain loop over {SCALAR_ROWS:,} of the same rows",
                )
            )
    yield Plan({"turns": in_turn(sides, size.of(5, 3))}, table)
