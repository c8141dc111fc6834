"""A world for tests of ingestion: files whose rows are known, a queue that announces them, pipelines in processes of
their own, and a look at the table that does not trust the pipelines.

    world = World(tmp_path, processes, DetentInbox(tmp_path / "store"), committer="delta")
    world.announce(world.make(4))
    world.run("--once")
    world.check()
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

import detent
import zygote
from detent.ingest.ownership import OWNER_FILE
from processes import Child, Io, Processes, eventually

MARKS = [pytest.mark.xdist_group("ingest-processes")]
"""``pytestmark = ingestworld.MARKS``: each pipeline has a Java of its own, and a small machine has room for few."""

ROWS = 5
"""Rows of a file."""

COPIES = 2
"""How often a file is announced."""

PATIENCE_S = 300.0
LOOK_S = 0.1

TIMES = {
    "visibility": "3s",
    "commit_timeout": "1s",
    "retry_delay": "200ms",
    "orphan_age": "0s",
}
"""Short ones: what a dead pipeline had is to be had again after two seconds, and its messages after four."""


# -- queues ----------------------------------------------------------------------------------------------------------


class Inbox(Protocol):
    """A queue as whoever announces files sees it."""

    url: str

    def send(self, bodies: Sequence[str]) -> None: ...

    def left(self) -> int:
        """Messages that nobody has acknowledged."""
        ...


class DetentInbox:
    """A queue of a store in a folder. The store is open only for as long as a call takes: a pipeline owns it."""

    def __init__(self, store: Path) -> None:
        self._store = f"file:{store}"
        self.url = f"detent:{self._store}#files"
        with detent.open(self._store) as opened:
            # Who is killed again and again uses up deliveries, and that is not what is tested here.
            opened.queue("files").create(max_attempts=0, backoff="100ms", max_backoff="200ms")

    def send(self, bodies: Sequence[str]) -> None:
        with detent.open(self._store) as opened:
            opened.queue("files").publish_many([body.encode() for body in bodies])

    def left(self) -> int:
        with detent.open(self._store) as opened:
            info = opened.queue("files").info()
            return info.available + info.delayed + info.in_flight + info.failed


class SqsInbox:
    """A queue of a server that speaks as SQS does."""

    def __init__(self, client: Any, endpoint: str, name: str = "files") -> None:
        self._client = client
        self._queue = client.create_queue(QueueName=name)["QueueUrl"]
        self.url = f"sqs:{name}?region=us-east-1&endpoint={endpoint}"

    def send(self, bodies: Sequence[str]) -> None:
        for first in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies[first : first + 10])
            ]
            answer = self._client.send_message_batch(QueueUrl=self._queue, Entries=entries)
            assert len(answer["Successful"]) == len(entries), answer

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self._client.get_queue_attributes(QueueUrl=self._queue, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)


def s3_notification(bucket: str, key: str, etag: str, size: int) -> str:
    """What S3 writes into a queue when an object comes. The key has to be one that needs no encoding."""
    entry = {"key": key, "size": size, "eTag": etag.strip('"'), "sequencer": "0055AED6DCD90281E5"}
    record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}}}
    record["s3"]["object"] = entry  # type: ignore[index]
    return json.dumps({"Records": [record]})


# -- the world -------------------------------------------------------------------------------------------------------


class World:
    """One ingest: its input, its configuration, its pipelines and its table."""

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        inbox: Inbox,
        *,
        committer: str,
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.inbox = inbox
        self.committer = committer
        self.input = folder / "in"
        self.input.mkdir(parents=True, exist_ok=True)
        self.table = folder / "table"
        self.state = settings.get("state", f"sqlite:///{folder / 'orders.ingest.db'}")
        self.config = folder / "orders.toml"
        self.environment = environment or {}
        self.expected: dict[int, str] = {}
        """The rows of all files that are to be in the table: the value by the id."""

        self._processes = processes
        self._random = random.Random(1)
        self._files = 0
        self._ids = 0
        self.configure(**settings)

    def configure(self, *, batch_files: int = 100, **settings: Any) -> None:
        """Write the configuration."""
        document = {
            "name": "orders",
            "queue": self.inbox.url,
            "table": "table",
            "committer": self.committer,
            "schema": "id BIGINT, value STRING",
            **TIMES,
            **settings,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in document.items()]
        self.config.write_text("\n".join([*lines, "[batch]", 'age = "100ms"', f"files = {batch_files}", ""]))

    # -- input -------------------------------------------------------------------------------------------------------

    def rows(self, *, value: str = "") -> list[dict[str, Any]]:
        """New rows, with ids that no other has."""
        first, self._ids = self._ids, self._ids + ROWS
        return [{"id": number, "value": value or f"value of {number}"} for number in range(first, self._ids)]

    def expect(self, rows: Iterable[dict[str, Any]]) -> None:
        """These rows are to be in the table, each once."""
        self.expected |= {row["id"]: row["value"] for row in rows}

    def make(self, count: int = 1, *, value: str = "", folder: Path | None = None) -> list[str]:
        """New files whose rows are to be in the table; their names."""
        names = []
        for _ in range(count):
            rows = self.rows(value=value)
            self.expect(rows)
            names.append(self.write(lines_of(rows), folder=folder))
        return names

    def write(self, content: bytes, *, ending: str = ".json", folder: Path | None = None) -> str:
        """A new file with this content; its name."""
        self._files += 1
        path = (folder or self.input) / f"file-{self._files:04d}{ending}"
        path.write_bytes(content)
        return str(path)

    def announce(self, names: Iterable[str], *, copies: int = COPIES) -> None:
        """Announce files more than once, in no order."""
        bodies = [name for name in names for _ in range(copies)]
        self._random.shuffle(bodies)
        self.inbox.send(bodies)

    # -- pipelines ---------------------------------------------------------------------------------------------------

    def start(self, *options: str, crash_at: str = "", pause_at: str = "", name: str = "pipeline") -> Pipeline:
        """A pipeline in a process of its own. It dies at the point `crash_at`, or waits at the point `pause_at` until
        it is told to go on."""
        marker = self.folder / name
        if pause_at:
            marker.with_suffix(".hold").touch()
        child = self._processes.start(
            pipeline_process,
            environment={**self.environment, "DETENT_CRASH_AT": crash_at},
            arguments=["ingest", "run", str(self.config), "--quick", "--cores", "1", "--json", *options],
            with_spark=True,
            pause_at=pause_at,
            marker=str(marker),
        )
        return Pipeline(child, marker)

    def run(self, *options: str) -> dict[str, Any]:
        """A pipeline that ends by itself, and well; its summary."""
        pipeline = self.start(*options)
        try:
            return pipeline.summary()
        finally:
            pipeline.child.end()

    def killed_at(self, point: str) -> None:
        """Run a pipeline until it dies at a point."""
        pipeline = self.start("--once", crash_at=point)
        try:
            status = pipeline.child.wait(seconds=PATIENCE_S)
            assert status == -signal.SIGKILL, f"nobody came to {point}: {status}\n{pipeline.child.errors()}"
        finally:
            pipeline.child.end()  # its Java too

    def command(self, verb: str, *options: str) -> Any:
        """What ``detent ingest VERB CONFIG --json`` prints."""
        ended = self.failing(verb, *options)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def failing(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """How ``detent ingest VERB CONFIG --json`` ends."""
        return zygote.run(
            [sys.executable, "-m", "detent", "ingest", verb, str(self.config), "--json", *options],
            timeout=PATIENCE_S,
            text=True,
            env={**os.environ, **self.environment},
        )

    # -- the table, as a stranger sees it ----------------------------------------------------------------------------

    def data_files(self) -> list[str]:
        """The files that the table has now."""
        return {"delta": self._delta_files, "manifest": self._manifest_files, "iceberg": self._iceberg_files}[
            self.committer
        ]()

    def _delta_files(self) -> list[str]:
        from deltalake import DeltaTable

        # The library's own answer, and not the log: it is the one that readers of the table get.
        found = DeltaTable.is_deltatable(str(self.table))
        return [uri.removeprefix("file://") for uri in DeltaTable(self.table).file_uris()] if found else []

    def _manifest_files(self) -> list[str]:
        query = "SELECT path FROM detent_ingest_manifest WHERE ingest = 'orders'"
        if self.state.startswith("sqlite:"):
            with closing(sqlite3.connect(self.state.removeprefix("sqlite:///"))) as connection:
                return [row[0] for row in connection.execute(query)]
        import psycopg

        with psycopg.connect(self.state.replace("postgresql+psycopg", "postgresql")) as server:
            return [row[0] for row in server.execute(query)]

    def _iceberg_files(self) -> list[str]:
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import NoSuchTableError

        catalog = SqlCatalog("detent", uri=self.state, warehouse=str(self.table))
        try:
            scan = catalog.load_table("detent.orders").scan()
            return [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
        except NoSuchTableError:
            return []
        finally:
            catalog.engine.dispose()

    def found(self) -> list[tuple[int, str]]:
        """The rows of the table, read by DuckDB, which has written none of it."""
        import duckdb

        files = self.data_files()
        if not files:
            return []
        with duckdb.connect() as connection:
            return connection.execute("SELECT id, value FROM read_parquet(?) ORDER BY id", [files]).fetchall()

    def has_all(self) -> bool:
        """Whether no row is missing. Says nothing about rows that are there twice."""
        return self.expected.keys() <= {row[0] for row in self.found()}

    def check(self) -> None:
        """The table has the rows that were put into files: none is lost, none is there twice, none is another's."""
        rows = self.found()
        times = Counter(row[0] for row in rows)
        lost = sorted(self.expected.keys() - times.keys())
        duplicated = sorted(number for number, count in times.items() if count > 1)
        strange = sorted({number for number, value in rows if self.expected.get(number) != value})
        wrong = f"lost {lost}, duplicated {duplicated}, strange {strange}"
        assert (lost, duplicated, strange) == ([], [], []), wrong
        assert len(rows) == len(self.expected)

    def check_not_twice(self) -> None:
        """What is in the table already is there once, and from the input."""
        times = Counter(self.found())
        assert [row for row, count in times.items() if count > 1] == []
        assert times.keys() <= self.expected.items()

    def check_nothing_left_over(self) -> None:
        """On the disk there is nothing but what the table has: no data of batches that died, and no copies of files
        that were read."""
        on_disk = {str(path) for path in (self.table / "data").rglob("*") if path.is_file()}
        mark = str(self.table / "data" / OWNER_FILE)
        assert on_disk == {*self.data_files(), mark}
        batches = {str(path.parent) for path in map(Path, on_disk - {mark})}
        assert {str(path) for path in (self.table / "data").iterdir()} == {*batches, mark}
        staging = Path(f"{self.table}.staging")
        assert not staging.exists() or list(staging.iterdir()) == []


def lines_of(rows: Iterable[dict[str, Any]]) -> bytes:
    """Rows as a file of JSON has them."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# -- processes -------------------------------------------------------------------------------------------------------


class Pipeline:
    """A running pipeline."""

    def __init__(self, child: Child, marker: Path) -> None:
        self.child = child
        self._paused = marker.with_suffix(".paused")
        self._hold = marker.with_suffix(".hold")

    @property
    def is_paused(self) -> bool:
        """Whether it has come to the point where it waits."""
        return self._paused.exists()

    def wait_until_paused(self) -> None:
        """Until it is at the point where it waits."""
        self.until(lambda: self.is_paused, "the pause")

    def hold(self) -> None:
        """Wait at the point when it comes there again."""
        self._hold.touch()

    def go_on(self) -> None:
        """Leave the point."""
        self._hold.unlink()

    def wait_until_running(self) -> None:
        """Until it has said something, which it does when Spark has started."""
        self.until(lambda: self.child.events, "the first progress")

    def until(self, check: Callable[[], Any], what: str) -> Any:
        """Wait for something that a running pipeline brings about. Looked for seldom: to read a table takes time from
        those who write it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := check()):
            assert self.child.running, f"it ended before {what}: {self.child.errors()}"
            assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S} s: {self.progress()}"
            time.sleep(LOOK_S)
        return found

    def progress(self) -> dict[str, Any]:
        """The last that it said."""
        return self.child.events[-1] if self.child.events else {}

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end."""
        os.kill(self.child.pid, number)

    def summary(self) -> dict[str, Any]:
        """What it says at its end, which is a good one."""
        status = self.child.wait(seconds=PATIENCE_S)
        assert status == 0, f"{status}\n{self.child.errors()}"
        # The pipe is read by a thread, which may be behind.
        return eventually(self._summary, what="the summary")

    def _summary(self) -> dict[str, Any] | None:
        last = self.progress()
        return last if last.get("event") == "summary" else None


def pipeline_process(io: Io, arguments: list[str], pause_at: str, marker: str) -> None:
    """The process of a pipeline: the command itself, which may be told to wait at one of the points where others are
    killed. `io` is there to end it when the test goes away."""
    del io
    from detent import cli, crash

    if pause_at:
        crash.point = _pausing(pause_at, Path(marker))  # type: ignore[assignment]
    code = cli.run(arguments)
    if code:
        sys.exit(code)


def _pausing(name: str, marker: Path) -> Callable[[str], None]:
    from detent import crash

    assert name in crash.POINTS
    paused, hold = marker.with_suffix(".paused"), marker.with_suffix(".hold")

    def point(reached: str) -> None:
        if reached == name and hold.exists():
            paused.touch()
            while hold.exists():
                time.sleep(0.01)
            paused.unlink()

    return point


@contextlib.contextmanager
def frozen(pipeline: Pipeline) -> Iterator[None]:
    """A pipeline that stands still for the block, as on a machine that hangs. Its Java does not, and has nothing to do
    at the points where this is used."""
    pipeline.child.stop()
    try:
        yield
    finally:
        pipeline.child.resume()
