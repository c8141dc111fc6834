"""A Spark cluster of two workers, a program started by spark-submit, a store behind `detent serve`: tasks run twice, an
executor is killed, and every message is there once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import detent
import sparkling
from detent.server.keys import add_key, new_key
from eventlines import Events
from processes import eventually
from s3server import S3Server, s3_server
from serveprocess import SERVE, Served
from sparkcluster import SparkCluster, executor_of

pytestmark = [
    *sparkling.PROCESS_MARKS,
    pytest.mark.s3,
    pytest.mark.timeout(900),
    # The rules have cheap tests beside this: of two attempts of a task only one counts in test_spark_sink.py.
    pytest.mark.skipif(not os.environ.get("DETENT_SOAK"), reason="starts seven Javas: `make cluster` runs it"),
]

BATCH = 400
BATCHES = 3
MESSAGES = BATCH * BATCHES
RUN_S = 400.0
"""Seven Javas share the machine with whatever else runs on it."""

PROGRAM = textwrap.dedent(
    """
    import json
    import os
    import sys
    import time
    import urllib.request
    from pathlib import Path

    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    import detent.spark

    server, path, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    marks = folder / "marks"


    def attempts(batch, partition):
        return len(list(marks.glob(f"write-{batch}-{partition}-*")))


    def mark(stage):
        context = TaskContext.get()
        batch, partition = int(context.getLocalProperty("streaming.sql.batchId")), context.partitionId()
        name = f"{stage}-{batch}-{partition}-{context.attemptNumber()}-{context.taskAttemptId()}-{os.getpid()}"
        (marks / name).touch()
        return batch, partition


    def read_task(batches):
        mark("read")
        yield from batches


    def write_task(batches):
        batch, partition = mark("write")
        deadline = time.monotonic() + 300
        if (batch, partition) == (0, 1):  # slow, until Spark has started it a second time elsewhere
            while attempts(0, 1) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
        if batch == 1:  # both, until one of them was lost with its executor and has come back
            while attempts(1, 0) + attempts(1, 1) < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
        yield from pa.Table.from_batches(batches).sort_by("offset").to_batches()  # a shuffle keeps no order


    def uploads():
        headers = {"authorization": "Bearer " + (folder / "token").read_text()}
        with urllib.request.urlopen(urllib.request.Request(server + "/metrics", headers=headers)) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if "http_requests_total{" in line and '"PUT"' in line)


    spark = SparkSession.builder.getOrCreate()
    detent.spark.register(spark)
    began = uploads()

    frame = spark.readStream.format("detent").options(journals="in", maxMessagesPerTrigger=400, minPartitions=4)
    frame = frame.load(server).select("offset", "body").mapInArrow(read_task, "offset LONG, body BINARY")
    frame = frame.repartition(2, "offset").mapInArrow(write_task, "offset LONG, body BINARY")
    writer = frame.select("body").writeStream.format("detent").option("checkpointLocation", str(folder / "checkpoint"))
    writer.option("journal", "out").queryName("copy").trigger(availableNow=True).start(server).awaitTermination()
    copied = uploads()

    for _ in range(2):  # the second one is the first one once more
        frame = spark.read.format("detent").options(journals="out", minPartitions=2, server=server).load(path)
        frame = frame.select("body").write.format("detent").options(journal="direct", server=server)
        frame.options(txnAppId="direct", txnVersion=1).mode("append").save(path)
    found = spark.read.format("detent").options(journals="direct", server=server).load(path).orderBy("offset")
    bodies = [bytes(row.body).rstrip(bytes(1)).decode() for row in found.collect()]
    report = {"uploads": copied - began, "direct_uploads": uploads() - copied, "direct": bodies}
    (folder / "report.json").write_text(json.dumps(report))
    spark.stop()
    """
)

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    # An executor that is gone does not come back under its old address: no need to wait for it.
    "spark.shuffle.io.retryWait": "200ms",
}


def numbered(count: int) -> list[bytes]:
    """Large enough that a task's rows become a fragment."""
    return [b"%08d" % number + bytes(500) for number in range(count)]


@dataclass(frozen=True)
class Mark:
    """What an attempt of a task left behind when it began."""

    stage: str
    batch: int
    partition: int
    attempt: int
    task: int
    pid: int


@dataclass(frozen=True)
class Ran:
    """What came of the program."""

    marks: list[Mark]
    out: list[bytes]
    uploads: float
    direct_uploads: float
    direct: list[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One for all tests of this module. Its workers know nothing of the store, nor of the bucket."""
    for module in ("pyspark", "slatedb", "obstore"):
        pytest.importorskip(module)
    with SparkCluster(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="module")
def ran(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The program, run once for all tests of this module."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "marks").mkdir()
    (folder / "program.py").write_text(PROGRAM)
    key = new_key("spark", ["publish:*:*", "consume:*:*"], now=datetime.now(UTC))
    add_key(folder / "keys.json", key)
    (folder / "token").write_text(f"{key.id}.{key.secret}")
    with s3_server() as bucket, pytest.MonkeyPatch.context() as patch:
        # The workers were started without these: executors have them from the program's settings alone.
        environment = {**bucket.environment, "DETENT_TOKEN_FILE": str(folder / "token")}
        for name, value in environment.items():
            patch.setenv(name, value)
        path = bucket.store_url()
        served = Served([*SERVE, path, "--keys", str(folder / "keys.json")])
        try:
            return run(folder, cluster, path, served.url, environment)
        finally:
            served.kill()


def run(folder: Path, cluster: SparkCluster, path: str, server: str, environment: dict[str, str]) -> Ran:
    """Run the program, and kill an executor in the middle of its second batch."""
    conf = {**CONF, **{f"spark.executorEnv.{name}": value for name, value in environment.items()}}
    with detent.open(server) as store:
        store.journal("in").append_many(numbered(MESSAGES))
        program = cluster.submit(folder / "program.py", server, path, str(folder), conf=conf)
        eventually(
            lambda: program.poll() is not None or {1, 0} <= {mark.partition for mark in marks(folder, "write", 1)},
            seconds=RUN_S,
            what="the second batch",
        )
        assert program.poll() is None, cluster.log("submit")[-8000:]
        os.kill(executor_with_results(folder, cluster), signal.SIGKILL)
        assert program.wait(RUN_S) == 0, cluster.log("submit")[-8000:]
        out = [message.body for message in store.journal("out").read()]
    return Ran(marks=marks(folder), out=out, **json.loads((folder / "report.json").read_text()))


def marks(folder: Path, stage: str = "", batch: int | None = None) -> list[Mark]:
    found = [path.name.split("-") for path in (folder / "marks").iterdir()]
    parsed = [Mark(name[0], *map(int, name[1:])) for name in found]
    return [mark for mark in parsed if mark.stage.startswith(stage) and batch in (None, mark.batch)]


def executor_with_results(folder: Path, cluster: SparkCluster) -> int:
    """One that runs a task of the second batch, and alone has what some task of the batch's first stage has read: with
    it both are lost, and Spark has to run tasks of both stages again."""
    running = cluster.executors()
    assert len(running) == 2
    reads = marks(folder, "read", 1)
    tried = Counter(mark.partition for mark in reads)
    found = {executor_of(mark.pid, running) for mark in reads if tried[mark.partition] == 1} - {None}
    assert found, reads
    return min(pid for pid in found if pid is not None)


def begun(ran: Ran, stage: str, batch: int) -> Counter[tuple[int, int]]:
    """How often a task began with this partition and this number of attempt."""
    return Counter((mark.partition, mark.attempt) for mark in ran.marks if (mark.stage, mark.batch) == (stage, batch))


def test_a_task_that_ran_twice_at_once_counts_once(ran: Ran) -> None:
    assert {(1, 0), (1, 1)} <= set(begun(ran, "write", 0))
    assert sorted(ran.out[:BATCH]) == numbered(BATCH)


def test_tasks_and_stages_that_were_repeated_for_a_lost_executor_count_once(ran: Ran) -> None:
    assert begun(ran, "write", 1).total() >= 3
    assert max(begun(ran, "read", 1).values()) >= 2, "a stage that is run again counts its attempts anew"
    assert sorted(ran.out[BATCH : 2 * BATCH]) == numbered(2 * BATCH)[BATCH:]


def test_every_message_is_there_once_and_each_task_kept_its_order(ran: Ran) -> None:
    assert sorted(ran.out) == numbered(MESSAGES)
    for number in range(BATCHES):
        batch = ran.out[number * BATCH : (number + 1) * BATCH]
        falls = sum(later < earlier for earlier, later in itertools.pairwise(batch))
        assert falls == 1, "two tasks, each in order"


def test_tasks_reach_the_object_store_themselves_and_the_server_commits(ran: Ran) -> None:
    assert ran.uploads >= 2 * BATCHES  # with the server's address alone, fragments go through it
    assert ran.direct_uploads == 0
    assert ran.direct == [body.rstrip(b"\0").decode() for body in ran.out]


# -- a pipeline on the cluster --------------------------------------------------------------------------------------

PIPELINE = """
import os
from detent.spark import Pipeline, queue

pipeline = Pipeline("shop")


@pipeline.stream(read="numbers", write="doubled", json="n BIGINT NOT NULL", max_messages=150)
def doubled(numbers):
    return numbers.repartition(2).selectExpr("n * 2 AS n")


@pipeline.table(read="doubled", path=os.environ["TABLE"], partition_by=["part"], json="n BIGINT", max_messages=150)
def table(doubled):
    return doubled.repartition(2).selectExpr("n", "n % 3 AS part")


@pipeline.stream(read=queue("jobs"), write="jobs-done", max_messages=50)
def jobs(jobs):
    return jobs.select("body")
"""

NUMBERS = 6_000
JOBS = NUMBERS // 5


class ClusterPipeline:
    """`detent run` with the cluster as its master, a bucket, and a server that owns the store."""

    def __init__(self, folder: Path, cluster: SparkCluster, bucket: S3Server) -> None:
        self.folder = folder
        self.environment = {**os.environ, **bucket.environment, "TABLE": f"{bucket.store_url()}/table"}
        self.url = bucket.store_url()
        self.served = Served([*SERVE, self.url])
        (folder / "shop.py").write_text(PIPELINE)
        executors = {f"spark.executorEnv.{name}": value for name, value in bucket.environment.items()}
        conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", **executors}
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        self.command = [
            *(sys.executable, "-m", "detent.cli", "run", "shop.py", "--store", self.url, "--server", self.served.url),
            *("--master", cluster.master, "--checkpoints", str(folder / "checkpoints"), "--json", "--quick", *options),
        ]
        self.drivers: list[Events] = []

    def start(self, *more: str) -> Events:
        """A driver."""
        self.drivers.append(Events([*self.command, *more], self.folder, self.environment))
        return self.drivers[-1]

    def restart_server(self) -> None:
        """Kill the owner, and start the next one at the same address."""
        self.served.kill()
        port = ["--port", str(self.served.port)]
        self.served = Served([sys.executable, "-m", "detent.cli", "serve", self.url, *port])

    def numbers(self, journal: str) -> list[int]:
        with detent.open(self.served.url) as store:
            return sorted(json.loads(message.body)["n"] for message in store.journal(journal).read())

    def table(self) -> dict[str, list[Any]]:
        import deltalake

        found: dict[str, list[Any]] = deltalake.DeltaTable(self.environment["TABLE"]).to_pyarrow_table().to_pydict()
        return found

    def end(self) -> None:
        for driver in self.drivers:
            driver.end()
        self.served.kill()


@pytest.fixture
def pipeline(
    tmp_path: Path, cluster: SparkCluster, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterPipeline]:
    del ran  # first: the pipeline's test kills a worker
    with s3_server() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        made = ClusterPipeline(tmp_path, cluster, bucket)
        yield made
        made.end()


def batches_of(driver: Events, count: int) -> None:
    """Wait for so many more batches of the driver."""
    before = len(driver.of("progress"))
    eventually(
        lambda: len(driver.of("progress")) >= before + count or driver.process.poll() is not None,
        seconds=RUN_S,
        what="batches",
    )
    assert driver.process.poll() is None, driver.said()[-8000:]


def test_pipeline_on_a_cluster_loses_and_doubles_nothing_whatever_is_killed(
    pipeline: ClusterPipeline, cluster: SparkCluster
) -> None:
    with detent.open(pipeline.served.url) as store:
        store.queue("jobs").create()
        store.journal("numbers").append_many([b'{"n": %d}' % number for number in range(NUMBERS)])
        store.queue("jobs").publish_many([b'{"n": %d}' % number for number in range(JOBS)])
    driver = pipeline.start()
    batches_of(driver, 2)
    os.kill(cluster.executors()[0], signal.SIGKILL)
    batches_of(driver, 1)
    pipeline.restart_server()
    batches_of(driver, 1)
    done = len(pipeline.numbers("doubled"))
    os.killpg(driver.process.pid, signal.SIGKILL)
    assert done < NUMBERS, "it was killed in the middle"

    last = pipeline.start("--once")
    batches_of(last, 1)
    cluster.kill_worker(1)
    assert last.process.wait(RUN_S) == 0, last.said()[-8000:]
    summary = last.until("summary")[-1]
    assert (summary["ok"], [stream["lag"] for stream in summary["streams"]]) == (True, [0, 0, 0])
    assert pipeline.numbers("doubled") == [2 * number for number in range(NUMBERS)]
    assert pipeline.numbers("jobs-done") == list(range(JOBS))
    found = pipeline.table()
    assert sorted(found["n"]) == [2 * number for number in range(NUMBERS)]
    assert found["part"] == [n % 3 for n in found["n"]]
