"""Objects of S3 that the tasks read which parse them: the same rows as of local files, one writing of each object, and
what fails fails alone."""

from __future__ import annotations

import bz2
import gzip
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import s3server
import sparkling
from detent.ingest import IngestConfig, executor_reading, metastore, object_rows, pinned
from detent.ingest.announcements import Announced
from detent.ingest.executor_reading import ExecutorSource, reads_in_tasks
from detent.ingest.identity import shard_of
from detent.ingest.local_state import HeldFile
from detent.ingest.objects import FileObjects, S3Options, Superseded
from detent.ingest.pinned import ObjectAccess, PinnedObject, failure_in
from detent.ingest.reading import BatchReader
from detent.ingest.staged_reading import StagedSource
from detent.ingest.staging import FilesFailed, StagedFile, Staging, staged_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*sparkling.MARKS, pytest.mark.s3]


class Objects:
    """Files, each of them on a disk and in a bucket, and what readers make of the two."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.options = S3Options("us-east-1", s3server.shared_server().endpoint)
        self.s3 = boto3.client("s3", endpoint_url=self.options.endpoint, region_name="us-east-1")
        self.bucket = f"b{uuid.uuid4().hex}"
        self.s3.create_bucket(Bucket=self.bucket)
        self.held: list[HeldFile] = []
        (folder / "in").mkdir()

    def beside(self, name: str) -> Objects:
        """Other files, in a folder and a bucket of their own."""
        folder = self.folder / name
        folder.mkdir()
        return Objects(self.spark, folder)

    def put(self, name: str, content: bytes) -> None:
        number = len(self.held)
        etag = self.s3.put_object(Bucket=self.bucket, Key=name, Body=content)["ETag"].strip('"')
        file = Announced(f"s3://{self.bucket}/{name}", len(content), etag)
        self.held.append(HeldFile(shard_of(file, "etag"), file, 0.0))
        (self.folder / "in" / staged_name(number, file.uri)).write_bytes(content)

    @property
    def staged(self) -> list[StagedFile]:
        return [StagedFile(staged_name(number, one.shard.uri), one) for number, one in enumerate(self.held)]

    @contextmanager
    def frame(self, config: IngestConfig, *, in_tasks: bool) -> Iterator[DataFrame]:
        """What one of the readers makes of the files."""
        engine = metastore.connect(f"sqlite:///{self.folder}/{uuid.uuid4().hex}.db")
        kind = config.format
        source: Any = StagedSource(self.spark, self.folder / "in", self.staged, kind)
        if in_tasks:
            pins = [PinnedObject(number, one.name, one.file.announced) for number, one in enumerate(self.staged)]
            options = {"header": "true", **config.options} if kind == "csv" else config.options
            access = ObjectAccess("etag", self.options)
            source = ExecutorSource(self.spark, access, pins, self.held, kind, options)
        try:
            frame = BatchReader(self.spark, config, engine).read(source, self.staged)
            assert frame is not None
            yield frame
        finally:
            source.close()
            engine.dispose()

    def read(self, config: IngestConfig) -> list[Any]:
        """The rows by tasks that read objects."""
        with self.frame(config, in_tasks=True) as frame:
            return list(frame.collect())


_EXACT: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def _told(name: str, frame: DataFrame) -> DataFrame:
    """The rows as texts, so that those of several readers come of one job."""
    return frame.select(F.lit(name).alias("name"), F.to_json(F.struct("*"), _EXACT).alias("row"))


def _shown(row: str) -> dict[str, Any]:
    """A row without what differs between a copy and its original: times of change, and how it was divided."""
    found: dict[str, Any] = json.loads(row)
    for name in ("file_modification_time", "file_block_start", "file_block_length"):
        found.get("_metadata", {}).pop(name, None)
    found.pop("modificationTime", None)
    return found


@pytest.fixture
def objects(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
        monkeypatch.setitem(spark.sparkContext.environment, name, "testing")
    return Objects(spark, tmp_path)


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data


LINES = b'{"id": 1, "n": 2.5, "at": "2026-01-02T03:04:05Z"}\r\n\n  \n{"id": 2, "more": {"a": [1]}}\nno json\n'
LINES += b'[{"id": 7}, {"id": 8}]\n'
CSV = b'# remark\n\nid,name,n\n1,"Ann, B",5\n2,  x  ,five\n3,"q ""r""",6,extra\n# mid\n4\n'
NUMBERS = b"".join(b'{"id": %d, "text": "%s"}\n' % (number, b"x" * (number % 97)) for number in range(5_000))
RICH = pa.table(
    {
        "id": pa.array([1, None, 3], pa.int32()),
        "Small": pa.array([1, 2, 3], pa.uint8()),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6)] * 3, pa.timestamp("ms")),
        "day": pa.array([date(2026, 1, 2)] * 3, pa.date32()),
        "price": pa.array([Decimal("1.25")] * 3, pa.decimal128(9, 2)),
        "tags": pa.array([["a", None], None, []], pa.list_(pa.string())),
        "who": pa.array([{"name": "Ann", "age": 7}, None, {"name": None, "age": 1}]),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "blob": pa.array([b"x", None, b""], pa.binary()),
    }
)
PLAIN: dict[str, Any] = {"name": "t", "queue": "sqs:q", "table": "t"}

CASES: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "json by a schema": ({"a.json": LINES, "b.json.gz": gzip.compress(LINES)}, {"schema": "id BIGINT, n INT"}),
    "json inferred": ({"a.json": b"\xef\xbb\xbf" + LINES, "b.json": b'{"id": 1, "city": "Rome"}'}, {}),
    "json rescued": ({"a.json": LINES}, {"schema": "id BIGINT", "new_columns": "rescue"}),
    "json with origins": (
        {"a b%20{1}.json": b'{"id": 1}\nno\n', "b.json.bz2": bz2.compress(b'{"id": 2}\n')},
        {"schema": "id BIGINT", "metadata": True},
    ),
    "json documents": (
        {"a.json": b'{"id":\n 1}', "b.json": b'[{"id": 2},\n {"id": 3}]'},
        {"options": {"multiLine": "true"}},
    ),
    "json in Latin-1": (
        {"a.json": '{"id": "é"}\n'.encode("latin-1")},
        {"options": {"encoding": "ISO-8859-1", "lineSep": "\n"}},
    ),
    "csv by header": (
        {"a.csv": CSV, "b.csv.gz": gzip.compress(b"name,id\nDan,9\n"), "e.csv": b""},
        {"format": "csv", "schema": "id BIGINT, name STRING, n INT", "options": {"comment": "#"}},
    ),
    "csv inferred": ({"a.csv": b"id,d\n1,2026-01-02\n2,\n", "b.csv": b"d,id,x\n2026-01-02,3,1.5\n"}, {"format": "csv"}),
    "csv rescued": (
        {"a.csv": CSV},
        {"format": "csv", "schema": "id BIGINT", "new_columns": "rescue", "options": {"comment": "#"}},
    ),
    "csv by place": (
        {"a.csv": b"1;'a;b'\n2;x\n"},
        {
            "format": "csv",
            "schema": "id BIGINT, name STRING",
            "metadata": True,
            "options": {"header": "false", "sep": ";", "quote": "'"},
        },
    ),
    "text": (
        {"a.txt": b"one\r\ntwo\rthree\n\nfive", "b.txt.gz": gzip.compress(b"four\n")},
        {"format": "text", "metadata": True},
    ),
    "text by a separator": ({"a.txt": b"one||two||\n"}, {"format": "text", "options": {"lineSep": "||"}}),
    "whole texts": ({"a.txt": b"one\ntwo\n"}, {"format": "text", "options": {"wholetext": "true"}}),
    "binary": ({"a.bin": b"\x00\x01", "b.gz": b"\x1f\x8b"}, {"format": "binary"}),
    "parquet inferred": (
        {"a.parquet": parquet(RICH), "b.parquet": parquet(RICH.select(["id"]))},
        {"format": "parquet"},
    ),
    "parquet of old times": (
        {"a.parquet": parquet(RICH.select(["at"]), use_deprecated_int96_timestamps=True)}, {"format": "parquet"}
    ),
    "parquet by a schema": (
        {"a.parquet": parquet(RICH, row_group_size=1)},
        {
            "format": "parquet",
            "schema": "ID BIGINT, day DATE, price DECIMAL(12,3), who STRUCT<age: BIGINT, x: INT>, lost STRING",
            "metadata": True,
        },
    ),
    "parquet rescued": (
        {"a.parquet": parquet(RICH)},
        {"format": "parquet", "schema": "id INT", "new_columns": "rescue"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kinds", [("json",), ("csv",), ("text", "binary"), ("parquet",)], ids="+".join)
def test_tasks_that_read_objects_give_the_rows_that_sparks_readers_give(
    objects: Objects, kinds: tuple[str, ...]
) -> None:
    cases = {case: found for case, found in CASES.items() if found[1].get("format", "json") in kinds}
    frames: list[DataFrame] = []
    with ExitStack() as closing:
        for case, (files, settings) in cases.items():
            config = IngestConfig(**PLAIN, **settings)
            assert reads_in_tasks("s3://b/k", config.format, config.options)
            given = objects.beside(case)
            for name, content in files.items():
                given.put(name, content)
            both = [closing.enter_context(given.frame(config, in_tasks=in_tasks)) for in_tasks in (True, False)]
            assert both[0].schema.simpleString() == both[1].schema.simpleString(), case
            frames += [_told(f"{case}{place}", frame) for place, frame in enumerate(both)]
        found: dict[str, list[str]] = {}
        for row in reduce(DataFrame.union, frames).collect():
            found.setdefault(row["name"], []).append(row["row"])
    for case in cases:
        by_tasks, by_spark = (sorted(map(_shown, found[f"{case}{place}"]), key=repr) for place in (0, 1))
        assert by_tasks == by_spark, case


def test_large_object_is_divided_between_tasks_and_no_line_is_lost(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_rows, "SPLIT_BYTES", 10_007)
    monkeypatch.setattr(executor_reading, "SPLIT_BYTES", 10_007)
    objects.put("a.json", NUMBERS)
    rows = objects.read(IngestConfig(**PLAIN, schema="id BIGINT", metadata=True))
    assert sorted(row["id"] for row in rows) == list(range(5_000))


def test_object_that_was_written_over_is_superseded_and_so_are_all_that_were(objects: Objects) -> None:
    for number in range(4):
        objects.put(f"{number}.json", b'{"id": 1}\n')
    objects.s3.put_object(Bucket=objects.bucket, Key="1.json", Body=b'{"id": 2}\n')
    objects.s3.delete_object(Bucket=objects.bucket, Key="3.json")
    with pytest.raises(Exception, match="detent-object") as failed:
        objects.read(IngestConfig(**PLAIN, schema="id BIGINT"))
    failure = failure_in(str(failed.value))
    assert failure is not None
    reader = FileObjects("etag", objects.options)
    with Staging(objects.folder / "staging", objects.held, reader, lambda _: True) as staging:
        staging.fetch()
        found: FilesFailed = staging.failed(*failure)
    assert {key: type(reason).__name__ for key, reason in found.reasons.items()} == {
        objects.held[1].shard.key: "Superseded",
        objects.held[3].shard.key: "NotFound",
    }


def test_object_that_is_written_over_between_two_requests_is_not_torn(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "PIECE_BYTES", 1_000)
    objects.put("a.json", NUMBERS)
    one = PinnedObject(0, "a.json", objects.held[0].announced)
    reading = pinned.open_splits(ObjectAccess("etag", objects.options), [pinned.ObjectSplit(one)])
    pieces = iter(next(reading).pieces)
    next(pieces)
    objects.s3.put_object(Bucket=objects.bucket, Key="a.json", Body=NUMBERS.upper())
    with pytest.raises(pinned.ObjectFailed, match="superseded"):
        list(pieces)
    file = pinned.PinnedFile(
        FileObjects("etag", objects.options),
        one._replace(
            file=objects.held[0].announced._replace(
                etag=objects.s3.head_object(Bucket=objects.bucket, Key="a.json")["ETag"].strip('"')
            )
        ),
    )
    objects.s3.put_object(Bucket=objects.bucket, Key="a.json", Body=NUMBERS)
    with pytest.raises(Superseded):
        file.read(10)


def test_objects_that_cannot_be_read_are_named(objects: Objects) -> None:
    objects.put("good.json", b'{"id": 1}\n')
    objects.put("torn.json.gz", gzip.compress(NUMBERS)[:-20])
    with pytest.raises(Exception, match="detent-object") as failed:
        objects.read(IngestConfig(**PLAIN, schema="id BIGINT"))
    number, reason = failure_in(str(failed.value)) or (None, None)
    assert (number, type(reason).__name__) == (1, "Invalid")
    objects.put("old.parquet", b"no parquet")
    objects.held = objects.held[2:]
    with pytest.raises(Exception, match="not a Parquet file"):
        objects.read(IngestConfig(**PLAIN, format="parquet", schema="id BIGINT"))


def test_lines_that_cannot_be_told_apart_are_left_to_a_copy() -> None:
    assert not reads_in_tasks("s3://b/k", "csv", {"multiLine": "true"})
    assert not reads_in_tasks("s3://b/k", "json", {"encoding": "UTF-16"})
    assert not reads_in_tasks("s3://b/k", "parquet", {"datetimeRebaseMode": "LEGACY"})
    assert not reads_in_tasks("file:///k", "json", {})
    for packed in ("zst", "lz4", "snappy", "deflate"):
        assert not reads_in_tasks(f"s3://b/k.{packed}", "json", {})
        assert reads_in_tasks(f"s3://b/k.{packed}", "binary", {})
