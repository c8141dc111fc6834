"""A pipeline whose checkpoints are on the bucket, by hadoop-aws as Maven Central has it: no disk of the driver's is
needed to go on after `kill -9`.

`make cluster` runs it: it fetches jars, and takes minutes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import detent
import hadoopaws
import sparkling
from eventlines import Events
from processes import eventually
from s3server import S3Server, s3_server

pytestmark = [
    *sparkling.PROCESS_MARKS,
    pytest.mark.s3,
    pytest.mark.timeout(1800),
    hadoopaws.needs_s3a,
    pytest.mark.skipif(not os.environ.get("DETENT_SOAK"), reason="takes minutes: `make cluster` runs it"),
]

PIPELINE = """
import os
from detent.spark import Pipeline

pipeline = Pipeline("shop")


@pipeline.stream(read="numbers", write="doubled", json="n BIGINT NOT NULL", max_messages=100)
def doubled(numbers):
    return numbers.selectExpr("n * 2 AS n")


@pipeline.stream(read="doubled", write="sums", json="n BIGINT", mode="update", max_messages=300)
def sums(doubled):
    return doubled.groupBy((doubled.n % 3).alias("part")).count()


@pipeline.table(read="doubled", path=os.environ["TABLE"], json="n BIGINT", max_messages=100)
def table(doubled):
    return doubled
"""

NUMBERS = 900
RUN_S = 600.0


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_pipeline_with_checkpoints_on_the_bucket_goes_on_in_another_folder_after_a_kill(
    tmp_path: Path, bucket: S3Server
) -> None:
    import deltalake

    url, checkpoints = bucket.store_url(), f"{bucket.store_url()}-checkpoints"
    table = f"{url}-table"
    options = [
        part for key, value in hadoopaws.conf(bucket.environment).items() for part in ("--conf", f"{key}={value}")
    ]
    options += ["--checkpoints", checkpoints, "--store", url, "--json", "--quick", "--cores", "1"]
    with detent.open(url) as store:
        store.journal("numbers").append_many([b'{"n": %d}' % number for number in range(NUMBERS)])

    def drive(name: str, *more: str) -> Events:
        folder = tmp_path / name  # nothing of the first driver's is there for the second
        folder.mkdir()
        (folder / "shop.py").write_text(PIPELINE)
        command = [sys.executable, "-m", "detent.cli", "run", "shop.py", *options, *more]
        return Events(command, folder, {**os.environ, "TABLE": table})

    first = drive("first")
    eventually(
        lambda: first.process.poll() is not None or len(first.of("progress")) >= 4, seconds=RUN_S, what="batches"
    )
    assert first.process.poll() is None, first.said()[-8000:]
    os.killpg(first.process.pid, signal.SIGKILL)
    first.end()
    written = [path for method, path in bucket.requests() if method == "PUT" and "-checkpoints/" in path]
    assert any("/offsets/" in path for path in written), "Spark's log is on the bucket"
    assert any("/state/" in path for path in written), "and so is its state"

    last = drive("second", "--once")
    assert last.process.wait(RUN_S) == 0, last.said()[-8000:]
    summary = last.until("summary")[-1]
    last.end()
    assert (summary["ok"], [stream["lag"] for stream in summary["streams"]]) == (True, [0, 0, 0])
    with detent.open(url) as store:
        doubled = sorted(json.loads(message.body)["n"] for message in store.journal("doubled").read())
        sums = {one["part"]: one["count"] for one in (json.loads(m.body) for m in store.journal("sums").read())}
    assert doubled == [2 * number for number in range(NUMBERS)]
    assert sorted(deltalake.DeltaTable(table).to_pyarrow_table().column("n").to_pylist()) == doubled
    assert sums == {part: sum(n % 3 == part for n in doubled) for part in range(3)}
