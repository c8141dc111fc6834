"""The plainest table: Parquet files, and a list of them in the database of the shards.

Files and shards change in one transaction of that database. The list is the view ``detent_ingest_manifest`` (ingest,
path, rows, bytes, committed_at), for readers of Parquet, and :func:`read_table` gives the rows as a DataFrame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, insert, select, text

from detent.errors import NotFound, ShardsLost
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.config import IngestConfig
from detent.ingest.metastore import connect_existing
from detent.ingest.ownership import owner_of
from detent.ingest.schemas import check_fits, kept_schema
from detent.ingest.shard_sql import BY_DIALECT, FILES
from detent.ingest.shared_state import FileShard, in_portions
from detent.sql.transactions import transact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

INSERT_ROWS: Final = 1_000
"""Files of one insert."""


class ManifestCommitter(TableCommitter):
    """Publishes into the database of the shards."""

    kind = "manifest"

    def identity(self) -> str | None:
        return owner_of(self.location, self.storage)

    def prepare(self, schema: StructType) -> None:
        self.require_owned()
        check_fits(self.state, "table", schema)

    def publish(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        self.require_owned()

        def commit(connection: Connection) -> None:
            self.state.advance(connection, shards, output.record(len(shards)))
            self._list(connection, output)

        try:
            transact(self.state.engine, commit)
        except ShardsLost:
            # The answer to the commit may have been lost, and the second attempt found what the first one did.
            if not self.state.has_committed(output.batch):
                raise

    def _list(self, connection: Connection, output: BatchOutput) -> None:
        now = text(BY_DIALECT[connection.dialect.name].now)
        shared = {"source": self.state.source, "batch": output.batch}
        rows = [
            {**shared, "path": f"{self.location}/{file.path}", "rows": file.rows, "bytes": file.size}
            for file in output.files
        ]
        for some in in_portions(rows, INSERT_ROWS):
            connection.execute(insert(FILES).values(committed_at=now), list(some))

    def live_batches(self) -> frozenset[str]:
        return self.state.committed()

    def refuse(self, batch: str) -> bool:
        return self.state.refuse(batch)


def read_table(spark: SparkSession, config: IngestConfig) -> DataFrame:
    """The rows of an ingest's manifest table. Later commits are not in it: read it again.

    >>> read_table(spark, config).createOrReplaceTempView("orders")
    """
    engine = connect_existing(config.state_url)
    try:
        schema = kept_schema(engine, f"{config.name}/table")
        with engine.connect() as connection:
            rows = connection.execute(select(FILES.c.path).where(FILES.c.source == config.name).order_by(FILES.c.path))
            paths = [row.path for row in rows]
    finally:
        engine.dispose()
    if schema is None:
        raise NotFound(f"nothing was committed to the table of {config.name!r} so far")
    from pyspark.sql.types import StructType

    wanted = StructType.fromJson(json.loads(schema.columns))
    return spark.read.schema(wanted).parquet(*paths) if paths else spark.createDataFrame([], wanted)
