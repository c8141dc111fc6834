"""Reading all committed messages as Arrow, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import detent
from bench.harness import INFORMATIVE, Opened, Plan, Row, Size, in_turn, ours_at_least, ratio_at_least
from bench.journal import data
from bench.journal.suite import SUITE
from bench.journal.timing import rate
from bench.place import Place

BODY = 6
"""The body's column."""


def consume(batches: Iterable[Any]) -> tuple[int, int]:
    """Rows and body bytes: the least that a reader can do with a batch."""
    rows = size = 0
    for batch in batches:
        column = batch.column(BODY)
        start, count = column.offset, len(column)
        ends = np.frombuffer(column.buffers()[1], np.int32, count + 1, start * 4)
        rows += count
        size += int(ends[-1]) - int(ends[0])
    return rows, size


def ordinary(path: Path) -> Iterator[Any]:
    with pa.OSFile(str(path)) as file:
        yield from pa.ipc.open_stream(file)


def mapped(path: Path) -> Iterator[Any]:
    with pa.memory_map(str(path)) as file:
        yield from pa.ipc.open_stream(file)


def write_stream(batches: Iterator[Any], path: Path) -> None:
    first = next(batches)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as stream:
        stream.write_batch(first)
        for batch in batches:
            stream.write_batch(batch)


@SUITE.measurement("scan")
@contextmanager
def scan(place: Place, size: Size) -> Iterator[Plan]:
    messages = size.of(3_000_000, 500_000)
    with place.fresh() as directory:
        data.fill(directory / "store", messages, data.BATCH_ROWS)
        with detent.open(data.url(directory / "store"), role="reader") as store:
            journal, stream = store.journal(data.NAME), directory / "stream.arrow"
            write_stream(journal.read_batches(), stream)

            def side(batches: Callable[[], Iterable[Any]]) -> Opened:
                def all_of_it() -> None:
                    found = consume(batches())
                    assert found == (messages, messages * data.BODY_BYTES), found

                return lambda: nullcontext(lambda: rate(all_of_it, messages))

            sides = {
                "ours": side(journal.read_batches),
                "file": side(lambda: ordinary(stream)),
                "map": side(lambda: mapped(stream)),
            }
            what = f"committed scan as Arrow, {messages:,} messages of 100 B in blocks of 1,000, one process"
            yield Plan(
                {"turns": in_turn(sides, slices=3)},
                [
                    Row(
                        what,
                        "msg/s",
                        "turns.ours",
                        ours_at_least(10e6, "at least 10 M msg/s")
                        & ratio_at_least(0.5, "at least 0.5 x a plain Arrow stream file"),
                        "turns.file",
                        "other: the same batches with pyarrow.ipc.open_stream over pyarrow.OSFile (ordinary reads, "
                        "page cache warm); neither side's rows are touched, ours are checked against their checksums",
                    ),
                    Row(
                        "the same against a memory-mapped stream file",
                        "msg/s",
                        "turns.ours",
                        INFORMATIVE,
                        "turns.map",
                        "other: open_stream over pyarrow.memory_map, which copies nothing and reads only the offsets",
                    ),
                ],
            )
