"""Ingests into Delta and Iceberg tables that share no transaction with the shards, without a queue and without Spark:
the database, the committers and the tables are the real ones, and what tasks do is done here.

    lake = lakeworld.lake(tmp_path, "delta", "s3")   # or "iceberg"; "local"
    pipeline = lake.pipeline()                       # a run of its own; any number of them
    pipeline.publish("a", 1, 2)                      # a file with two rows, committed
    lake.ids(), lake.rows(), lake.states()           # what a reader finds, and what the database says
"""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DateType, IntegerType, LongType, StructField, StructType
from sqlalchemy import select

import s3server
from detent.ingest import metastore, ownership
from detent.ingest.commit_lake import LakeCommitter
from detent.ingest.committer import BatchOutput
from detent.ingest.committers import committer_of
from detent.ingest.config import IngestConfig
from detent.ingest.shard_sql import SHARDS
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.files import write_files
from detent.tables.iceberg_table import IcebergTable

SCHEMA = StructType([StructField("id", LongType()), StructField("day", DateType())])
NARROW = StructType([StructField("id", IntegerType()), StructField("day", DateType())])
UPDATES = StructType([StructField("id", LongType()), StructField("at", LongType()), StructField("what", LongType())])
"""Rows that replace those with the same `id`, unless these are newer by `at`."""

MERGING: dict[str, Any] = {"merge_on": ["id"], "newest_by": "at"}
NUMBERS = itertools.count(1)

KINDS = [
    pytest.param(("delta", "local"), id="delta"),
    pytest.param(("delta", "s3"), id="delta-s3", marks=pytest.mark.s3),
    pytest.param(("iceberg", "local"), id="iceberg"),
    pytest.param(("iceberg", "s3"), id="iceberg-s3", marks=pytest.mark.s3),
]
"""The formats, each on a disk and in a bucket."""


class Lake:
    """A table, and a database of shards. Each pipeline is a run of its own."""

    def __init__(self, config: IngestConfig) -> None:
        self.config = config
        self.engine = metastore.connect(config.state_url)

    def pipeline(self, schema: StructType | None = None) -> Pipeline:
        ownership.register(self.engine, self.config)
        return Pipeline(self, schema or (UPDATES if self.config.merge_on else SCHEMA))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        storage = self.config.table_storage
        if self.config.committer == "delta":
            found = DeltaTable(self.config.location, storage_options=storage).to_pyarrow_table()
        else:
            found = (
                IcebergTable("detent.t", self.config.catalog or self.config.state_url, self.config.location, storage)
                .open()
                .table.scan()
                .to_arrow()
            )
        listed: list[dict[str, Any]] = found.sort_by("id").to_pylist()
        return listed

    def states(self) -> dict[str, str]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(SHARDS.c.shard, SHARDS.c.state)).all()
        return {bytes(row.shard).decode(): row.state for row in rows}


class Pipeline:
    """A run of a pipeline, without a queue and without Spark: tasks' work is done here."""

    def __init__(self, lake: Lake, schema: StructType) -> None:
        self.schema = schema
        self.state = QueueSharedState(lake.engine, "t", uuid.uuid4().hex, grace_ms=60_000)
        found = committer_of(lake.config, self.state)
        assert isinstance(found, LakeCommitter)
        self.committer = found
        self.committer.prepare(schema)

    def take(self, *names: str) -> list[FileShard]:
        shards = [FileShard(name.encode(), f"s3://b/{name}", "", 7) for name in names]
        assert len(self.state.open(shards).granted) == len(shards)
        return shards

    def write(self, *ids: int) -> BatchOutput:
        days = pa.array([number % 3 for number in ids], pa.int32()).cast(pa.date32())
        return self.write_rows(pa.table({"id": pa.array(ids, pa.int64()), "day": days}))

    def write_updates(self, *rows: tuple[int | None, int | None, int]) -> BatchOutput:
        """Rows of `UPDATES`."""
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        arrays = [pa.array(list(column), pa.int64()) for column in columns]
        return self.write_rows(pa.table(dict(zip(("id", "at", "what"), arrays, strict=True))))

    def write_rows(self, rows: Any) -> BatchOutput:
        """What tasks make of rows."""
        batch = f"{self.state.token}-{next(NUMBERS):06d}"
        plan = self.committer.plan(batch, self.schema)
        files = tuple(write_files(plan, rows.to_batches()))
        self.committer.check_written(files)
        folder, rule = self.committer.folder_of(batch), self.committer.rule
        return BatchOutput(batch, folder, files, self.schema, plan.schema, rule)

    def update(self, name: str, *rows: tuple[int | None, int | None, int]) -> BatchOutput:
        """A file with rows of `UPDATES`, committed."""
        shards, output = self.take(name), self.write_updates(*rows)
        self.committer.publish(shards, output)
        return output

    def publish(self, name: str, *ids: int) -> BatchOutput:
        shards, output = self.take(name), self.write(*ids)
        self.committer.publish(shards, output)
        return output


def place(where: str) -> dict[str, Any]:
    """What a configuration says of a new table in a folder, or in a bucket of the loopback server."""
    if where == "local":
        return {"table": "t"}
    s3 = {"region": "us-east-1", "endpoint": s3server.shared_server().endpoint}
    return {"table": f"{s3server.s3_store_url()}/t", "s3": s3}


def lake(folder: Path, kind: str, where: str = "local", **options: Any) -> Lake:
    """A lake whose table is in a new place, unless the options say where it is."""
    at = {} if "table" in options else place(where)
    plain: dict[str, Any] = {"committer": kind, "folder": str(folder), **at}
    if "merge_on" not in options:
        plain["partition_by"] = ["day"]
    return Lake(IngestConfig(name="t", queue="sqs:q", **{**plain, **options}))
