"""Tables on a Spark cluster: ingests of three formats and a stream through `once`, into Delta and Iceberg on a bucket,
while executors, the server, the driver and a worker are killed with -9. Every row is there once.

`make cluster` runs it: it takes minutes.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import detent
import sparkling
from detent.errors import NotFound
from detent.ingest import metastore, steering
from eventlines import Events
from ingestworld import s3_notification
from processes import eventually
from s3server import BUCKET, S3Server, s3_server
from serveprocess import SERVE, Served
from sparkcluster import SparkCluster

pytestmark = [
    *sparkling.PROCESS_MARKS,
    pytest.mark.s3,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not os.environ.get("DETENT_SOAK"), reason="takes minutes: `make cluster` runs it"),
]

OBJECTS = {"json": 400, "csv": 300, "parquet": 300}
BAD = {"json": 4, "csv": 0, "parquet": 4}
"""Beside those: objects that cannot be read. A line of CSV cannot be wrong where all its columns are text."""
OVERWRITTEN = 10
"""Of each format: written over after they were announced."""
ROWS = 10
COPIES = 2
"""Announcements of each object, on the average."""
NUMBERS = 2_400
BATCH = 150
RUN_S = 900.0

PROGRAM = textwrap.dedent(
    """
    import json
    import os
    import signal
    import sys
    import threading
    import time
    from pathlib import Path

    import detent.spark
    from detent.ingest import Ingest, IngestConfig
    from detent.spark import once, to_delta, to_iceberg

    told = json.loads(Path(sys.argv[1]).read_text())
    is_last = "--once" in sys.argv
    printing = threading.Lock()


    def say(event, **fields):
        with printing:
            print(json.dumps({"event": event, **fields}), flush=True)


    def ingested(name, settings):
        config = IngestConfig(**settings)
        try:
            ingest = Ingest(config, spark=spark, watch=lambda seen: say("files", of=name, files=seen.counters.files))
            counters = ingest.run(once=is_last)
            say("ended", of=name, **counters.as_json())
        except BaseException as error:
            say("failed", of=name, why=repr(error))


    def streamed():
        write = once(
            told["store"], "numbers",
            to_delta(told["delta"], partition_by=["part"]),
            to_iceberg("lake.numbers", catalog=told["catalog"], location=told["iceberg"], partition_by=["part"]),
            server=told["server"],
        )
        deadline = time.monotonic() + 600
        while True:
            frame = spark.readStream.format("detent").option("journals", "numbers")
            frame = frame.option("maxMessagesPerTrigger", told["batch"]).option("server", told["server"])
            rows = frame.load(told["store"]).selectExpr("CAST(CAST(body AS STRING) AS BIGINT) AS id").repartition(2)
            writer = rows.selectExpr("id", "id % 3 AS part").writeStream.foreachBatch(write)
            writer = writer.option("checkpointLocation", told["checkpoint"]).queryName("numbers")
            try:
                query = (writer.trigger(availableNow=True) if is_last else writer).start()
                query.awaitTermination()
                return say("ended", of="numbers")
            except Exception as error:  # as a supervisor would start it again
                say("stream failed", why=str(error)[:300])
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)


    spark = detent.spark.session(app="lake", master=told["master"], conf=told["conf"], quick=True)
    works = [threading.Thread(target=ingested, args=item, daemon=True) for item in told["ingests"].items()]
    works.append(threading.Thread(target=streamed, daemon=True))
    for work in works:
        work.start()
    say("started")
    for work in works:
        work.join()
    say("done")
    spark.stop()
    """
)


def content(kind: str, rows: list[tuple[int, str]]) -> bytes:
    """An object of a format with these rows."""
    if kind == "json":
        return b"".join(json.dumps({"id": number, "value": value}).encode() + b"\n" for number, value in rows)
    if kind == "csv":
        return ("id,value\n" + "".join(f"{number},{value}\n" for number, value in rows)).encode()
    import pyarrow as pa
    import pyarrow.parquet as parquet

    out = io.BytesIO()
    columns = {"id": pa.array([row[0] for row in rows], pa.int64()), "value": [row[1] for row in rows]}
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


class Lake:
    """A bucket, a server, a cluster, and a driver that fills four tables."""

    def __init__(self, folder: Path, cluster: SparkCluster, bucket: S3Server) -> None:
        self.folder, self.cluster, self.bucket = folder, cluster, bucket
        self.url = bucket.store_url()
        self.prefix = self.url.removeprefix(f"s3://{BUCKET}/")
        self.served = Served([*SERVE, self.url])
        self.random = random.Random(1)
        self.drivers: list[Events] = []
        self.expected: dict[str, Counter[tuple[int, str]]] = {kind: Counter() for kind in OBJECTS}
        self.replaced: dict[str, Counter[tuple[int, str]]] = {kind: Counter() for kind in OBJECTS}
        """Rows of objects that were written over: in the table once, or not at all."""
        self._ids = 0
        self._of: dict[tuple[str, int], list[tuple[int, str]]] = {}
        """The rows of an object as it was first written."""
        (folder / "lake.py").write_text(PROGRAM)
        (folder / "lake.json").write_text(json.dumps(self._told()))
        with detent.open(self.served.url) as store:
            for kind in OBJECTS:
                store.queue(kind).create()

    def _told(self) -> dict[str, Any]:
        environment = self.bucket.environment
        conf = {
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.scheduler.mode": "FAIR",
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }
        return {
            "master": self.cluster.master,
            "conf": conf,
            "store": self.url,
            "server": self.served.url,
            "batch": str(BATCH),
            "checkpoint": str(self.folder / "checkpoint"),
            "catalog": f"sqlite:///{self.folder / 'catalog.db'}",
            "delta": f"{self.url}-numbers-delta",
            "iceberg": f"{self.url}-numbers-iceberg",
            "ingests": {kind: self._ingest(kind) for kind in OBJECTS},
        }

    def table(self, kind: str) -> str:
        """Where the rows of a format go."""
        return f"{self.url}-table-{kind}"

    def _ingest(self, kind: str) -> dict[str, Any]:
        return {
            "name": kind,
            "queue": f"detent:{self.served.url}#{kind}",
            "table": self.table(kind),
            "committer": "iceberg" if kind == "csv" else "delta",
            **({"catalog": f"sqlite:///{self.folder / 'catalog.db'}"} if kind == "csv" else {}),
            "format": kind,
            "schema": "id BIGINT, value STRING",
            "rescued_column": "",
            "partition_by": ["id % 2 AS part"],
            "state": f"sqlite:///{self.folder / f'{kind}.db'}",
            "batch_files": 40,
            "batch_age": "1s",
            "visibility": "20s",
            "commit_timeout": "10s",
            "retry_delay": "1s",
            "attempts": 2,
            "folder": str(self.folder),
        }

    # -- input -------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[int, str]]:
        first, self._ids = self._ids, self._ids + ROWS
        return [(number, f"value {number}") for number in range(first, self._ids)]

    def feed(self, share: tuple[int, int]) -> None:
        """A share of the objects, announced more than once; some written over, and announced again."""
        part, parts = share
        with detent.open(self.served.url) as store, ThreadPoolExecutor(8) as threads:
            for kind, count in OBJECTS.items():
                numbers = range(count * part // parts, count * (part + 1) // parts)
                written = list(threads.map(self._put, *zip(*self._contents(kind, numbers), strict=True)))
                bad = range(BAD[kind] * part // parts, BAD[kind] * (part + 1) // parts)
                written += [self._put(f"{kind}/bad-{number}.{kind}", b'{"id": "torn') for number in bad]
                bodies = [one for one in written for _ in range(self.random.randint(1, 2 * COPIES - 1))]
                self.random.shuffle(bodies)
                store.queue(kind).publish_many(bodies)
                again = [n for n in numbers if n < OVERWRITTEN * parts and n % parts == part]
                bodies = [self._overwritten(kind, number) for number in again]
                if bodies:
                    store.queue(kind).publish_many(bodies)
            numbers = range(NUMBERS * part // parts, NUMBERS * (part + 1) // parts)
            store.journal("numbers").append_many([b"%d" % number for number in numbers])

    def _contents(self, kind: str, numbers: range) -> list[tuple[str, bytes]]:
        made = []
        for number in numbers:
            rows = self._rows()
            self.expected[kind].update(rows)
            self._of[kind, number] = rows
            made.append((f"{kind}/{number:04d}.{kind}", content(kind, rows)))
        return made

    def _overwritten(self, kind: str, number: int) -> bytes:
        """Write an object over: the rows that it had are there once or never, the new ones once."""
        old, new = self._of[kind, number], self._rows()
        self.expected[kind].subtract(old)
        self.expected[kind].update(new)
        self.replaced[kind].update(old)
        return self._put(f"{kind}/{number:04d}.{kind}", content(kind, new))

    def _put(self, key: str, body: bytes) -> bytes:
        import obstore
        from obstore.store import from_url

        where = f"{self.prefix}-in/{key}"
        found = obstore.put(from_url(f"s3://{BUCKET}"), where, body, use_multipart=False)
        return s3_notification(BUCKET, where, str(found["e_tag"]), len(body)).encode()

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, *more: str) -> Events:
        """A driver."""
        environment = {**os.environ, **self.bucket.environment}
        command = [sys.executable, "lake.py", "lake.json", *more]
        self.drivers.append(Events(command, self.folder, environment))
        return self.drivers[-1]

    def restart_server(self) -> None:
        """Kill the owner, and start the next one at the same address."""
        self.served.kill()
        port = ["--port", str(self.served.port)]
        self.served = Served([sys.executable, "-m", "detent.cli", "serve", self.url, *port])

    def done(self) -> int:
        """Files that are finished, of all formats."""
        return sum(status.done for kind in OBJECTS if (status := self.status(kind)) is not None)

    def status(self, kind: str) -> Any:
        """How far an ingest is; None before it has begun."""
        if not (self.folder / f"{kind}.db").exists():
            return None
        engine = metastore.connect(f"sqlite:///{self.folder / f'{kind}.db'}")
        try:
            return steering.status(engine, kind)
        except NotFound:
            return None
        finally:
            engine.dispose()

    def until(self, driver: Events, files: int) -> None:
        """Until so many files are finished."""
        eventually(
            lambda: driver.process.poll() is not None or self.done() >= files, seconds=RUN_S, what=f"{files} files"
        )
        assert driver.process.poll() is None, driver.said()[-8000:]

    # -- what came of it ---------------------------------------------------------------------------------------------

    def rows(self, kind: str) -> Counter[tuple[int, str]]:
        """What the table of a format has."""
        if kind == "csv":
            found = self._iceberg("detent.csv")
        else:
            found = self._delta(self.table(kind))
        return Counter(zip(found["id"], found["value"], strict=True))

    def numbers(self) -> tuple[list[int], list[int]]:
        """What the tables of the stream have: Delta, Iceberg."""
        delta, iceberg = self._delta(f"{self.url}-numbers-delta"), self._iceberg("lake.numbers")
        return sorted(delta["id"]), sorted(iceberg["id"])

    def _delta(self, url: str) -> dict[str, list[Any]]:
        import deltalake

        return dict(deltalake.DeltaTable(url).to_pyarrow_table().to_pydict())

    def _iceberg(self, name: str) -> dict[str, list[Any]]:
        from pyiceberg.catalog.sql import SqlCatalog

        environment = self.bucket.environment
        properties = {
            "uri": f"sqlite:///{self.folder / 'catalog.db'}",
            "s3.endpoint": environment["AWS_ENDPOINT_URL"],
            "s3.access-key-id": environment["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": environment["AWS_SECRET_ACCESS_KEY"],
            "s3.region": environment["AWS_REGION"],
        }
        catalog = SqlCatalog("detent", **properties)
        try:
            return dict(catalog.load_table(name).scan().to_arrow().to_pydict())
        finally:
            catalog.engine.dispose()

    def end(self) -> None:
        for driver in self.drivers:
            driver.end()
        self.served.kill()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    for module in ("pyspark", "slatedb", "obstore", "deltalake", "pyiceberg"):
        pytest.importorskip(module)
    folder = tmp_path / "driver"
    folder.mkdir()
    (tmp_path / "spark").mkdir()
    with SparkCluster(tmp_path / "spark") as cluster, s3_server() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        made = Lake(folder, cluster, bucket)
        yield made
        made.end()


def test_tables_on_a_cluster_lose_and_double_nothing_whatever_is_killed(lake: Lake) -> None:
    total = sum(OBJECTS.values())
    lake.feed((0, 3))
    driver = lake.start()
    lake.until(driver, total // 8)
    os.kill(lake.cluster.executors()[0], signal.SIGKILL)
    lake.feed((1, 3))
    lake.until(driver, total // 3)
    lake.restart_server()
    lake.until(driver, total // 2)
    lake.feed((2, 3))
    os.killpg(driver.process.pid, signal.SIGKILL)
    assert lake.done() < total, "it was killed in the middle"

    last = lake.start("--once")
    before = lake.done()
    lake.until(last, before + total // 10)
    lake.cluster.kill_worker(1)
    assert last.process.wait(RUN_S) == 0, last.said()[-8000:]
    assert not last.of("failed"), last.events
    assert last.of("done")

    figures: dict[str, tuple[int, int, int]] = {}
    for kind in OBJECTS:
        found, expected = lake.rows(kind), +lake.expected[kind]
        allowed = expected | lake.replaced[kind]
        lost, doubled, strange = expected - found, found - allowed, found.keys() - allowed.keys()
        figures[kind] = (expected.total(), lost.total(), doubled.total())
        assert (lost, doubled, strange) == (Counter(), Counter(), set()), kind
        status = lake.status(kind)
        assert (status.open, status.quarantined) == (0, BAD[kind]), (kind, status)
    delta, iceberg = lake.numbers()
    assert delta == list(range(NUMBERS))
    assert iceberg == list(range(NUMBERS))
    print(f"rows expected, lost, doubled: {figures}; stream: {len(delta)} in Delta, {len(iceberg)} in Iceberg")
