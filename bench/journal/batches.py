"""Appends of 1,000 messages of 100 B, against LMDB putting the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import detent
from bench.harness import INFORMATIVE, Opened, Plan, Row, Size, in_turn, ratio_at_least
from bench.journal import data, raw
from bench.journal.suite import SUITE
from bench.journal.timing import rate
from bench.place import Place
from detent.codec import block

DISTINCT = 20
"""Different batches, used in turn."""

SLICE = 20
"""Commits of one side before it is the other's turn."""

NOTE = "other puts blocks that our codec built beforehand, one durable commit each"


def stored_blocks(place: Place, batches: Sequence[list[bytes]]) -> list[bytes]:
    """The bytes that our store keeps for these batches."""
    with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
        journal = store.journal(data.NAME)
        for batch in batches:
            journal.append_many(batch)
        return [block.encode_block(batch, 0, 0) for batch in journal.read_batches()]


@SUITE.measurement("batches")
@contextmanager
def batches(place: Place, size: Size) -> Iterator[Plan]:
    slices = size.of(25, 8)
    lists = [data.bodies() for _ in range(DISTINCT)]
    tables = [data.table() for _ in range(DISTINCT)]
    blocks = stored_blocks(place, lists)

    def slice_of(append: Callable[[Any], object], inputs: Sequence[Any]) -> Callable[[], float]:
        return lambda: rate(lambda: raw.repeat(append, inputs, SLICE), SLICE * data.BATCH_ROWS)

    def ours(method: str, inputs: Sequence[Any]) -> Opened:
        @contextmanager
        def opened() -> Iterator[Callable[[], float]]:
            with place.fresh() as directory, detent.open(data.url(directory / "store")) as store:
                yield slice_of(getattr(store.journal(data.NAME), method), inputs)

        return opened

    @contextmanager
    def lmdb() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, raw.lmdb_log(directory) as append:
            yield slice_of(append, blocks)

    @contextmanager
    def log() -> Iterator[Callable[[], float]]:
        with place.fresh() as directory, raw.synced_log(directory / "log") as append:
            yield slice_of(append, blocks)

    many, table = ours("append_many", lists), ours("append_table", tables)
    bar = ratio_at_least(0.5, "at least 0.5 x raw LMDB putting the same packed blocks")
    yield Plan(
        {"turns": in_turn({"many": many, "lmdb": lmdb, "table": table, "log": log}, slices)},
        [
            Row("batches of 1,000 x 100 B, append_many", "msg/s", "turns.many", bar, "turns.lmdb", NOTE),
            Row("batches of 1,000 x 100 B, append_table", "msg/s", "turns.table", bar, "turns.lmdb", NOTE),
            Row(
                "batches of 1,000 x 100 B, append_many, against the same blocks in a plain file",
                "msg/s",
                "turns.many",
                INFORMATIVE,
                "turns.log",
                "other: raw append + fdatasync",
            ),
        ],
    )
