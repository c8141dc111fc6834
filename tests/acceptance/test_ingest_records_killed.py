"""A pipeline killed between the outcomes of a notification's records: each of them has its own once.

The queue and the database are real ones. Spark is left out, as in the world of `ingestfakes`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.ingest import steering
from detent.transports.queue_detent import DetentQueue
from ingestfakes import World
from processes import Io, Processes, eventually

POINTS = [
    "ingest.after_receive",
    "ingest.after_refusal",
    "ingest.after_publish",
    "ingest.before_ack",
    "ingest.after_ack",
]


def record(name: str) -> dict[str, Any]:
    about = {"key": name, "size": len(name), "eTag": hashlib.md5(name.encode()).hexdigest()}
    where = {"bucket": {"name": "landing"}, "object": about}
    return {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": where}


class SharedWorld(World):
    """The world of one process, on a folder that the next one goes on with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, visibility="1s", commit_timeout="100ms")
        for name in "ab":
            self.bucket.put(name, name)
        self.queue = DetentQueue(f"file:{folder}/store", "files")  # type: ignore[assignment]

    def close(self) -> None:
        self.queue.close()
        self.engine.dispose()


def ingests(io: Io, folder: str, token: str) -> None:
    """A pipeline with a real queue and a real database, which ends when nothing is left."""
    world = SharedWorld(Path(folder))
    pipeline = world.pipeline(token)

    def is_over() -> bool:
        pipeline.adopt(10)
        pipeline.work()
        info = world.queue._queue.info()  # type: ignore[attr-defined]
        return not info.available + info.delayed + info.in_flight

    eventually(is_over, what="the end of the queue")
    io.say(
        "landed",
        names=world.landed(),
        quarantined=[one.reason for one in steering.files(world.engine, "orders", state="quarantined")],
    )
    world.close()


@pytest.mark.parametrize("point", POINTS)
def test_records_have_their_outcomes_once_wherever_the_pipeline_dies(tmp_path: Path, point: str) -> None:
    with detent.open(f"file:{tmp_path}/store") as store:
        files = store.queue("files")
        files.create(max_attempts=0, max_lease="1s", backoff="1ms", max_backoff="1ms")
        files.publish(json.dumps({"Records": [record("a"), None, record("b")]}).encode())
    with Processes() as processes:
        dying = processes.start(ingests, folder=str(tmp_path), token="p1", environment={"DETENT_CRASH_AT": point})
        assert dying.was_killed(), f"{point} was never reached: {dying.errors()}"
        living = processes.start(ingests, folder=str(tmp_path), token="p2")
        found = living.expect("landed")
        assert found["names"] == ["a", "b"]
        (reason,) = found["quarantined"]
        assert "the record: null" in reason
