"""Rows into Parquet files that no table names yet, and that survive a power failure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from detent.ingest.committer import DataFile
from detent.spark.delta_files import sync_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUIET: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def write(frame: DataFrame, folder: str) -> tuple[DataFile, ...]:
    """Let Spark write the rows into a folder of their own; the files that came of it, and that have rows."""
    shutil.rmtree(folder, ignore_errors=True)
    frame.write.mode("errorifexists").options(**_QUIET).parquet(folder)
    return _made_durable(Path(folder))


def _made_durable(folder: Path) -> tuple[DataFile, ...]:
    files: list[DataFile] = []
    for path in sorted(folder.iterdir()):
        if path.suffix != ".parquet":
            path.unlink()  # checksums of Hadoop's, which nobody else reads
            continue
        rows = pq.read_metadata(path).num_rows
        if not rows:
            path.unlink()
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        files.append(DataFile(str(path), rows, status.st_size, status.st_mtime_ns // 1_000_000))
    for place in (folder, folder.parent, folder.parent.parent, folder.parent.parent.parent):
        sync_folder(place)
    return tuple(files)
