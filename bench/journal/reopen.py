"""Opening a store that holds 10 M messages, in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import INFORMATIVE, Plan, Row, Size, Skipped, ours_at_most
from bench.journal import child, data
from bench.journal.suite import SUITE
from bench.place import Place

MESSAGES, QUICK_MESSAGES = 10_000_000, 1_000_000
SMALL = 10_000


def big_store(place: Place, size: Size) -> tuple[Path, int]:
    """A store with 10 M messages, and how many it really is in a quick run."""
    messages = size.of(MESSAGES, QUICK_MESSAGES)
    if place.free_bytes() < 2 * messages * data.STORE_BYTES_PER_MESSAGE:
        raise Skipped(f"not enough disk for {messages:,} messages")
    return place.shared("big", lambda path: data.fill(path / "store", messages, data.LARGE_ROWS)) / "store", messages


@SUITE.measurement("reopen")
@contextmanager
def reopen(place: Place, size: Size) -> Iterator[Plan]:
    directory, messages = big_store(place, size)
    with place.fresh() as other:
        data.fill(other / "store", SMALL, data.BATCH_ROWS)

        def side(store: Path) -> Callable[[], dict[str, float]]:
            return lambda: child.ask("reopen", data.url(store))

        what = f"reopen with {messages:,} messages"
        against = f"other: a store with {SMALL:,}"
        yield Plan(
            {"big": side(directory), "small": side(other / "store")},
            [
                Row(
                    f"{what}: open, first info, first append",
                    "s",
                    "big.total_s",
                    ours_at_most(1, "under 1 s"),
                    "small.total_s",
                    f"in a fresh process, without starting Python and importing; {against}",
                ),
                Row(f"{what}: detent.open alone", "s", "big.open_s", INFORMATIVE, "small.open_s", against),
                Row("importing detent before that", "s", "big.import_s", INFORMATIVE, "small.import_s", against),
                Row(
                    f"{what}: memory of the process",
                    "MB",
                    "big.resident_peak",
                    ours_at_most(200, "under 200 MB"),
                    "small.resident_peak",
                    "peak of all resident memory (VmHWM): Python, imported modules and the pages of the mapped file "
                    f"too, which are page cache; {against}",
                ),
                Row(
                    f"{what}: anonymous memory (RssAnon), modules included",
                    "MB",
                    "big.anonymous_peak",
                    INFORMATIVE,
                    "small.anonymous_peak",
                    against,
                ),
                Row(
                    f"{what}: anonymous memory after importing detent, before opening",
                    "MB",
                    "big.anonymous_base",
                    INFORMATIVE,
                    "small.anonymous_base",
                    against,
                ),
            ],
        )
