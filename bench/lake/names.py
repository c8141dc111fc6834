"""What an ingest holds of objects in the driver: their names. A pipeline as it is, in a process of its own, whose queue
announces objects and whose job does nothing with them.

    python -m bench.lake.names 10000        # prints how many bytes of memory that many objects added
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_most
from bench.lake.bucket import TESTS
from bench.lake.ingest import notification
from bench.lake.suite import SUITE
from bench.place import Place

COUNTS = (1_000, 10_000, 100_000)
QUICK_COUNTS = (1_000, 10_000, 20_000)
ROOT = Path(__file__).parents[2]


class Announcing:
    """A queue that makes each message when it is asked for it, and forgets it when it is acknowledged."""

    name = "landing"
    visibility_max_s = 43_200.0

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0
        self.acknowledged = 0

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Any]:
        """The next messages, each with one object."""
        from detent.transports.contract import Delivery

        first, self._next = self._next, min(self._count, self._next + limit)
        found = []
        for number in range(first, self._next):
            etag = hashlib.md5(b"%d" % number).hexdigest()
            body = notification("landing", f"orders/2026/11/17/part-{number:012d}.json.gz", etag, 1_000)
            found.append(Delivery(f"m{number}", f"r{number}", body, 1))
        return found

    def extend(self, deliveries: Sequence[Any], visibility_s: float) -> Sequence[Any]:
        """All of them."""
        return []

    def give_back(self, deliveries: Sequence[Any]) -> None:
        """Nothing is given back here."""

    def acknowledge(self, deliveries: Sequence[Any]) -> Sequence[Any]:
        """Count them."""
        self.acknowledged += len(deliveries)
        return []

    def retention_s(self) -> float:
        """As long as queues of SQS keep a message."""
        return 4 * 86_400.0

    def close(self) -> None:
        """Nothing to let go of."""


def grown(count: int) -> int:
    """How many bytes the memory of this process has grown by at most, while `count` objects went through a pipeline."""
    sys.path.append(str(TESTS))
    from pyspark.sql.types import StructType

    import ingestfakes
    from detent.ingest.committer import BatchOutput
    from detent.ingest.staging import Staging

    with tempfile.TemporaryDirectory() as folder:
        world = ingestfakes.World(Path(folder))
        world.queue = queue = Announcing(count)  # type: ignore[assignment]
        pipeline = world.pipeline()

        def run(batch: str, files: Sequence[Any]) -> BatchOutput:
            with Staging(Path(folder) / "staging" / batch, files, pipeline.job._objects, lambda _: True) as staging:
                staging.fetch()
            return BatchOutput(batch, str(Path(folder) / batch), (), StructType([]))

        pipeline.job.run = run  # type: ignore[method-assign]
        before = peak_kib()
        while queue.acknowledged < count:
            pipeline.work()
        return (peak_kib() - before) << 10


def peak_kib(process: Path = Path("/proc/self")) -> int:
    """The most memory that a process had at once. (What `getrusage` says counts that of the parent, too.)"""
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def in_a_process(count: int) -> float:
    """The same in a new process, in MiB."""
    command = [sys.executable, "-m", "bench.lake.names", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout) / (1 << 20)


@SUITE.measurement("names")
@contextmanager
def names(place: Place, size: Size) -> Iterator[Plan]:
    """The memory that a driver takes for the names of the objects that it ingests, as there are more of them."""
    del place
    counts = QUICK_COUNTS if size.quick else COUNTS
    last = str(counts[-1])
    yield Plan(
        {str(count): (lambda count=count: in_a_process(count)) for count in counts},
        [
            Row(f"driver's memory for {counts[0]:,} objects", "MiB", str(counts[0]), INFORMATIVE),
            Row(f"driver's memory for {counts[1]:,} objects", "MiB", str(counts[1]), INFORMATIVE),
            Row(f"driver's memory for {counts[2]:,} objects", "MiB", last,
                ratio_at_most(2.0, "<= 2 x, for ten times as many"), str(counts[1]),
                note="a batch has 10,000 names at most, and the last 20,000 that are finished are kept"),
        ],
        warm_up=False,
    )  # fmt: skip


if __name__ == "__main__":
    print(grown(int(sys.argv[1])))
