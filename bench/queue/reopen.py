"""Opening a store whose queue holds a million messages, in a fresh process: after a close, and after kill -9."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import INFORMATIVE, Plan, Row, Size, ours_at_most
from bench.place import Place
from bench.queue import child, data
from bench.queue.backlog import MESSAGES, QUICK_MESSAGES, SMALL
from bench.queue.suite import SUITE

BEFORE_KILL = 600
"""Messages that are published, claimed and acknowledged one by one before the process kills itself: 1,800 groups, of
which a checkpoint comes after 2,048 or 5 s."""


def out_of_the_page_cache(directory: Path) -> None:
    """Have the kernel forget the pages of these files, as far as it can."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@SUITE.measurement("reopen")
@contextmanager
def reopen(place: Place, size: Size) -> Iterator[Plan]:
    messages = size.of(MESSAGES, QUICK_MESSAGES)
    directory = data.big_store(place, messages)
    with place.fresh() as other:
        data.fill(other / "store", SMALL)

        def closed() -> dict[str, float]:
            return child.ask("reopen", data.url(directory))

        def killed() -> dict[str, float]:
            child.kill_itself("work_and_die", data.url(directory), BEFORE_KILL)
            return child.ask("reopen", data.url(directory))

        def cold() -> dict[str, float]:
            out_of_the_page_cache(directory)
            return child.ask("reopen", data.url(directory))

        def small() -> dict[str, float]:
            return child.ask("reopen", data.url(other / "store"))

        what = f"reopen with {messages:,} waiting"
        against = f"other: a store with {SMALL}, closed"
        since = "from before detent.open, with the imports it makes, until a first claim has answered, in a new process"
        memory = f"a fresh process that has opened the store and claimed {child.FEW + 1}"
        under = ours_at_most(3, "under 3 s")
        yield Plan(
            {"closed": closed, "killed": killed, "cold": cold, "small": small},
            [
                Row(f"{what}, after a close", "s", "closed.total_s", under, "small.total_s", f"{since}; {against}"),
                Row(
                    f"{what}, after kill -9",
                    "s",
                    "killed.total_s",
                    under,
                    "small.total_s",
                    f"{since}; {BEFORE_KILL} publishes, claims and acknowledgements before the kill; {against}",
                ),
                Row(
                    f"{what}, after a close, files out of the page cache",
                    "s",
                    "cold.total_s",
                    INFORMATIVE,
                    "small.total_s",
                    f"posix_fadvise(DONTNEED) before; {against}, cached",
                ),
                Row(
                    f"{what}: memory of the process",
                    "MB",
                    "closed.resident_peak",
                    ours_at_most(400, "under 400 MB"),
                    "small.resident_peak",
                    f"{memory}: peak of all resident memory (VmHWM): Python, imported modules and the pages of the "
                    f"mapped file too, which are page cache; {against}",
                ),
                Row(
                    f"{what}: memory of the process after kill -9",
                    "MB",
                    "killed.resident_peak",
                    INFORMATIVE,
                    "small.resident_peak",
                    f"{memory}: the same; {against}",
                ),
                Row(
                    f"{what}: anonymous memory (RssAnon), modules included",
                    "MB",
                    "closed.anonymous",
                    INFORMATIVE,
                    "small.anonymous",
                    f"{memory}; {against}",
                ),
                Row(
                    f"{what}: anonymous memory after importing detent, before opening",
                    "MB",
                    "closed.anonymous_base",
                    INFORMATIVE,
                    "small.anonymous_base",
                    against,
                ),
            ],
            warm_up=False,
        )
