"""Real drivers, killed in the middle of anything, and at each durable step of the sink: every message once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import detent
import sparkling
from detent import crash
from processes import eventually
from zygote import Forked

pytestmark = sparkling.PROCESS_MARKS

DRIVER = textwrap.dedent(
    """
    import sys
    import detent.spark

    url, checkpoint, trigger = sys.argv[1:]
    spark = detent.spark.session(store=url, cores=2, quick=True)
    frame = spark.readStream.format("detent").options(journals="in", maxMessagesPerTrigger=300).load(url)
    writer = frame.select("body").repartition(2).writeStream.format("detent")
    writer = writer.options(journal="out", checkpointLocation=checkpoint).queryName("copy")
    query = (writer.trigger(availableNow=True) if trigger == "once" else writer).start(url)
    query.awaitTermination()
    """
)


BATCH = 300
POINTS = sorted(point for point in crash.POINTS if point.startswith("spark.sink."))


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Large enough that a task's rows become a fragment."""
    return [b"%08d" % number + bytes(500) for number in range(start, start + count)]


class Driver:
    """A Spark application of its own: the driver, Java and its Python processes, in one process group."""

    def __init__(self, folder: Path, url: str, trigger: str, crash_at: str = "") -> None:
        program = folder / "driver.py"
        program.write_text(DRIVER)
        self._log = folder / "driver.log"
        with self._log.open("ab") as log:
            self._process = Forked(
                [sys.executable, str(program), url, str(folder / "checkpoint"), trigger],
                stdout=log,
                stderr=log,
                env={**os.environ, "DETENT_CRASH_AT": crash_at},
                start_new_session=True,
                with_spark=True,
            )

    def wait_for_more_than(self, messages: int, url: str) -> None:
        """Until it has written some, or has died."""
        eventually(
            lambda: self._process.poll() is not None or len(written(url)) > messages, seconds=200, what="a batch"
        )
        assert self._process.poll() is None, self.log()

    def wait(self) -> int:
        return self._process.wait(180)

    def log(self) -> str:
        return self._log.read_text()[-4000:]

    def kill(self) -> None:
        """The whole group at once: nobody is left to clean up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def written(url: str) -> list[bytes]:
    with detent.open(url, role="reader") as store:
        return [message.body for message in store.journal("out").read()] if "out" in store.journals() else []


def test_a_driver_killed_again_and_again_writes_every_message_once(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.journal("in").append_many(numbered(3_000))
    driver = Driver(tmp_path, url, "always")
    driver.wait_for_more_than(0, url)
    driver.kill()  # wherever it was
    for point in POINTS:
        driver = Driver(tmp_path, url, "once", crash_at=point)
        assert driver.wait() != 0, f"nobody came to {point}"
        driver.kill()
        found = written(url)
        assert len(found) % BATCH == 0  # a batch is there or it is not
        assert len(set(found)) == len(found)
    driver = Driver(tmp_path, url, "once")
    assert driver.wait() == 0, driver.log()
    assert sorted(written(url)) == numbered(3_000)
