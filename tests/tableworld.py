"""Tables of both formats, in a folder and on the loopback S3 server, with as little as a test needs to write them.

place = tableworld.iceberg(tmp_path)              # or delta(tmp_path); s3=True for the server's bucket
files = tableworld.written(place, view, [batch])  # as tasks write them
tableworld.rows(place)                            # what a reader finds
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from detent.tables.delta import DeltaPlace
from detent.tables.delta_schema import delta_schema
from detent.tables.files import WrittenFile, write_files
from detent.tables.iceberg_schema import iceberg_schema
from detent.tables.iceberg_table import IcebergTable

SCHEMA = StructType([StructField("id", LongType()), StructField("day", StringType())])

Place = DeltaPlace | IcebergTable


def _at(folder: Path, s3: bool) -> tuple[str, dict[str, str]]:
    """Where a table is, and the options for it: processes that Spark started know nothing of the server."""
    if not s3:
        return str(folder / "table"), {}
    import s3server

    url = f"{s3server.s3_store_url()}/table"
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ALLOW_HTTP")
    environment = s3server.shared_server().environment
    return url, {name.lower(): environment[name] for name in names}


def delta(folder: Path, *, s3: bool = False, partition_by: Sequence[str] = ()) -> DeltaPlace:
    """A Delta table with the columns `id` and `day`."""
    place = DeltaPlace(*_at(folder, s3))
    place.create(delta_schema(SCHEMA), partition_by)
    return place


def iceberg(
    folder: Path, *, s3: bool = False, partition_by: Sequence[str] = (), catalog: Any = None, **properties: str
) -> IcebergTable:
    """An Iceberg table with the same columns; its catalog is a file, unless another one is given."""
    catalog = catalog or f"sqlite:///{folder / 'catalog.db'}"
    place = IcebergTable("lake.orders", catalog, *_at(folder, s3))
    place.create(iceberg_schema(SCHEMA), partition_by, properties)
    return place


def batch(*ids: int, day: str | None = "d", **columns: Any) -> Any:
    """Rows of these columns, of one day."""
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string()), **columns}
    )


def written(place: Place, view: Any, batches: Sequence[Any], **how: Any) -> list[WrittenFile]:
    """Files of a task, which no commit names so far."""
    return write_files(place.plan(view, **how), batches)


def rows(place: Place) -> list[dict[str, Any]]:
    """What the table has, by the format's own library."""
    view: Any = place.open()
    found = view.to_pyarrow_table() if isinstance(place, DeltaPlace) else view.table.scan().to_arrow()
    listed: list[dict[str, Any]] = found.sort_by("id").to_pylist()
    return listed


def ids(place: Place) -> list[int]:
    """The column `id` of it."""
    return [row["id"] for row in rows(place)]
