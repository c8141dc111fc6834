"""Ingest from S3, SQS and Redis, what is synced when, and listings that break off."""

from __future__ import annotations

import json
import os
import threading
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import boto3
import pytest
import redis

import detent
import redisserver
import s3server
import sparkling
from detent.errors import Unavailable
from detent.ingest import Ingest, IngestConfig, job, pipeline, read_table
from detent.ingest.objects import FileObjects, S3Options
from detent.tables.files import write_files
from detent.transports.queue_detent import DetentQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = sparkling.MARKS
SCHEMA = "id BIGINT"


def lines(*ids: int) -> bytes:
    return "".join(json.dumps({"id": number}) + "\n" for number in ids).encode()


class Bucket:
    """A bucket of its own on the loopback server, with versions if asked for."""

    def __init__(self, *, versions: bool = False) -> None:
        self.endpoint = s3server.shared_server().endpoint
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
        self.s3 = boto3.client("s3", endpoint_url=self.endpoint, **keys)
        self.sqs = boto3.client("sqs", endpoint_url=self.endpoint, **keys)
        self.name = f"b{uuid.uuid4().hex}"
        self.s3.create_bucket(Bucket=self.name)
        if versions:
            self.s3.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": "Enabled"})
        self.queue = self.sqs.create_queue(QueueName=self.name)["QueueUrl"]

    def put(self, key: str, *ids: int, announced: bool = True) -> None:
        body = zlib.compress(lines(*ids)) if key.endswith(".deflate") else lines(*ids)
        answer = self.s3.put_object(Bucket=self.name, Key=key, Body=body)
        if announced:
            about = {"key": quote_plus(key, safe="/"), "size": len(body), "eTag": answer["ETag"].strip('"')}
            about |= {"versionId": answer["VersionId"]} if "VersionId" in answer else {}
            s3 = {"bucket": {"name": self.name}, "object": about}
            record = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": s3}
            self.sqs.send_message(QueueUrl=self.queue, MessageBody=json.dumps({"Records": [record]}))

    def config(self, folder: Path, **options: Any) -> IngestConfig:
        plain = {
            "name": "t",
            "queue": f"sqs:{self.name}?endpoint={self.endpoint}&region=us-east-1",
            "table": "table",
            "folder": str(folder),
            "schema": SCHEMA,
            "s3": {"endpoint": self.endpoint, "region": "us-east-1"},
        }
        return IngestConfig(**{**plain, **options})


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setattr(pipeline, "POLL_S", 0.05)


def ids_of(spark: SparkSession, config: IngestConfig) -> list[int]:
    return sorted(row["id"] for row in read_table(spark, config).collect())


@pytest.mark.s3
@pytest.mark.usefixtures("keys")
def test_objects_that_sqs_announces_and_objects_that_nobody_did(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.put("orders/a b+c\x01.json", 1, 2)
    bucket.put("orders/silent\t\x7f.json", 3, announced=False)
    bucket.put("elsewhere/silent.json", 9, announced=False)
    config = bucket.config(tmp_path)
    Ingest(config, spark=spark).run(once=True)
    assert ids_of(spark, config) == [1, 2]
    counters = Ingest(config, spark=spark).run(once=True, backfill=f"s3://{bucket.name}/orders/")
    assert ids_of(spark, config) == [1, 2, 3]
    assert (counters.files, counters.duplicates) == (1, 1)
    bucket.put("orders/silent\t\x7f.json", 3)  # announced late, with the same bytes: the same file
    bucket.put("orders/packed.json.deflate", 4)  # as only Spark unpacks it
    Ingest(config, spark=spark).run(once=True)
    assert ids_of(spark, config) == [1, 2, 3, 4]
    attributes = bucket.sqs.get_queue_attributes(QueueUrl=bucket.queue, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesNotVisible"] == "0"


@pytest.mark.s3
@pytest.mark.usefixtures("keys")
def test_versions_that_were_written_over_are_all_ingested(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(versions=True)
    bucket.put("a.json", 1)
    bucket.put("a.json", 2)
    bucket.put("a.json", 3, announced=False)
    config = bucket.config(tmp_path, identity="version")
    Ingest(config, spark=spark).run(once=True)
    assert ids_of(spark, config) == [1, 2]
    Ingest(config, spark=spark).run(once=True, backfill=f"s3://{bucket.name}/")
    assert ids_of(spark, config) == [1, 2, 3]


@pytest.mark.s3
@pytest.mark.usefixtures("keys")
def test_objects_into_a_partitioned_table_in_the_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks read and write; the driver has names. One object is announced twice, one was written over, one is bad."""
    from deltalake import DeltaTable

    bucket = Bucket()
    for number in range(6):
        bucket.put(f"in/{number}.json", number, number + 100)
    bucket.put("in/0.json", 0, 100)
    bucket.put("in/1.json", 1, 201)
    bucket.put("in/bad.json.gz", 9)
    table = f"s3://{bucket.name}/lake/t"
    options: dict[str, Any] = {"committer": "delta", "table": table, "attempts": 1, "sort_by": ["id"]}
    config = bucket.config(tmp_path, **options, partition_by=["date_add(DATE'2026-01-01', int(id % 2)) AS day"])
    counters = Ingest(config, spark=spark).run(once=True)
    assert (counters.files, counters.rows, counters.quarantined) == (6, 12, 1)
    assert counters.superseded >= 1
    found = DeltaTable(table, storage_options=config.table_storage)
    rows = found.to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == sorted([0, 1, 2, 3, 4, 5, 100, 201, 102, 103, 104, 105])
    assert {uri.split("/")[-2] for uri in found.file_uris()} == {"day=2026-01-01", "day=2026-01-02"}
    assert {str(day) for day in rows["day"].to_pylist()} == {"2026-01-01", "2026-01-02"}
    assert not Path(f"{config.staging_folder}").exists()
    assert Ingest(config, spark=spark).run(once=True, backfill=f"s3://{bucket.name}/in/").files == 0


def test_files_that_a_stream_of_redis_announces(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "POLL_S", 0.05)
    url = redisserver.shared_server().url
    stream = f"s{uuid.uuid4().hex}"
    with redis.Redis.from_url(url) as client:
        for number in range(3):
            path = tmp_path / f"{number}.json"
            path.write_bytes(lines(number))
            for _ in range(2):
                client.xadd(stream, {"body": str(path)})
        config = IngestConfig(name="t", queue=f"{url}#{stream}", table="table", folder=str(tmp_path), schema=SCHEMA)
        Ingest(config, spark=spark).run(once=True)
        assert ids_of(spark, config) == [0, 1, 2]
        assert client.xlen(stream) == 0


# -- what survives a power failure ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["manifest", "delta", "iceberg"])
def test_all_that_a_commit_names_is_synced_before_it_and_it_before_the_acknowledgement(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    events: list[tuple[str, str]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    # What tasks do, in this process, where it can be watched.
    monkeypatch.setattr(job, "write", lambda rows, plan: tuple(write_files(plan, rows.toArrow().to_batches())))
    monkeypatch.setattr(pipeline, "POLL_S", 0.05)
    config = IngestConfig(name="t", queue="none:", table="table", folder=str(tmp_path), committer=kind, schema=SCHEMA)
    (tmp_path / "a.json").write_bytes(lines(1, 2))
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        store.queue("files").create()
        store.queue("files").publish(str(tmp_path / "a.json").encode())
        queue = DetentQueue(store, "files")
        acknowledge = queue.acknowledge
        monkeypatch.setattr(queue, "acknowledge", lambda some: events.append(("ack", "")) or acknowledge(some))
        committed = pipeline.committer_of

        def watched(*arguments: Any) -> Any:
            committer = committed(*arguments)
            publish = committer.publish
            monkeypatch.setattr(committer, "publish", lambda *a: events.append(("publish", "")) or publish(*a))
            return committer

        monkeypatch.setattr(pipeline, "committer_of", watched)
        Ingest(config, spark=spark, queue=queue).run(once=True)
    kinds = [event for event, _ in events]
    publish, ack = kinds.index("publish"), kinds.index("ack")
    before = {path for event, path in events[:publish] if event == "sync"}
    [data] = (tmp_path / "table" / "data").glob("*/*.parquet")
    assert any(Path(path).parent == data.parent and data.name in path for path in before), "the file, before its name"
    assert {str(data.parent), str(data.parent.parent), str(tmp_path / "table")} <= before
    until = {path for event, path in events[:ack] if event == "sync"}
    if kind == "delta":
        log = tmp_path / "table" / "_delta_log"
        assert {str(log), *map(str, log.glob("*.json"))} <= until
    if kind == "iceberg":
        folder = tmp_path / "table" / "metadata"
        newest = max(folder.glob("*.metadata.json"))
        assert {str(folder), str(newest), *map(str, folder.glob("*.avro"))} <= until


# -- listings -------------------------------------------------------------------------------------------------------


class Flaky:
    """Pages of a listing, of which one cannot be had the first time."""

    def __init__(self) -> None:
        self.listings = 0

    def get_paginator(self, _kind: str) -> Flaky:
        return self

    def paginate(self, **_where: str) -> Iterator[dict[str, Any]]:
        from datetime import UTC, datetime

        import botocore.exceptions

        self.listings += 1
        for page in range(3):
            if page == 1 and self.listings == 1:
                raise botocore.exceptions.EndpointConnectionError(endpoint_url="http://there")
            names = [f"{page}-{number}" for number in range(2)]
            stamp = datetime.now(UTC)
            yield {"Contents": [{"Key": key, "Size": 1, "ETag": f'"{key}"', "LastModified": stamp} for key in names]}

    def close(self) -> None:
        """Nothing to close."""


def test_a_listing_that_breaks_off_is_begun_again_and_nothing_is_left_out() -> None:
    objects = FileObjects("etag", S3Options())
    flaky = Flaky()
    objects._client = flaky
    seen: list[str] = []

    class Worker:
        counters = pipeline.Counters()

        def __init__(self) -> None:
            self.objects = objects

        def announce(self, files: list[Any], _horizon: Any) -> None:
            seen.extend(file.uri for file in files)

    run = object.__new__(pipeline._ReceivingFiles)
    run._worker = Worker()  # type: ignore[assignment]
    run._until = pipeline._Until(threading.Event(), False, "s3://bucket/", None)
    run._listing = run._list()
    run._config = IngestConfig(name="t", queue="none:", table="t")
    run._engine = None  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.forgetting, "forgotten_to", lambda *_: 0)
        with pytest.raises(Unavailable):
            run._backfill(run._listing)
        while run._listing is not None:
            run._backfill(run._listing)
    assert sorted(set(seen)) == [f"s3://bucket/{page}-{number}" for page in range(3) for number in range(2)]
