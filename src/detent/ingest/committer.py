"""Committers: each publishes the data files of a batch, and that its shards are finished, in one commit."""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detent.errors import Invalid
from detent.ingest.ownership import require_table
from detent.ingest.shared_state import BatchRecord, FileShard, QueueSharedState
from detent.tables.orphans import DATA_FOLDER, old_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

    from detent.tables.files import DataFile


class BatchOutput(NamedTuple):
    """What Spark made of a batch: durable files that no table names yet."""

    batch: str
    folder: str
    files: tuple[DataFile, ...]
    schema: StructType

    def record(self, shards: int) -> BatchRecord:
        """What is kept of the commit."""
        rows = sum(file.rows for file in self.files)
        return BatchRecord(self.batch, shards, len(self.files), rows, sum(file.bytes for file in self.files))


class TableCommitter(ABC):
    """A table, for one pipeline. `location` is its folder, in which Spark writes a folder of files for each batch."""

    kind: str

    def __init__(self, location: str, state: QueueSharedState) -> None:
        self.location = location
        self.state = state
        self._owned: str | None = None

    @property
    def data_folder(self) -> Path:
        """Where the folders of batches are."""
        return Path(self.location) / DATA_FOLDER

    def folder_of(self, batch: str) -> str:
        """Where Spark writes a batch."""
        return str(self.data_folder / batch)

    @abstractmethod
    def identity(self) -> str | None:
        """What tells this table from every other that could stand in its place; None if there is none."""

    def require_owned(self) -> None:
        """`Conflict` if the table is not there that the source has committed to, or another one is. One that was never
        noted is noted."""
        self.require_same(self.identity())

    def require_same(self, found: str | None) -> None:
        """The same, of a table that was just looked at."""
        if found is None or found != self._owned:
            require_table(self.state, self.location, found)
            self._owned = found

    def require_gone(self, noted: str | None) -> None:
        """`Invalid` if the table is there that the source has noted."""
        found = self.identity()
        if found is not None and noted in {None, found}:
            raise Invalid(
                f"the table {self.location} is there, and is that of the ingest {self.state.source!r}. If the ingest "
                "forgot its files now, their rows would come twice: move the table away or delete it first"
            )

    def forget_table(self, connection: Connection) -> None:  # noqa: B027  most tables are nowhere but in their folder
        """Forget, in a transaction, what the database of the shards knows of a table that is gone."""

    @abstractmethod
    def prepare(self, schema: StructType) -> None:
        """Make the table if it is not there, and give it the columns that it lacks. `Invalid` if these rows can never
        be rows of this table."""

    def finished(self, shards: Iterable[FileShard]) -> frozenset[bytes]:  # noqa: ARG002
        """The keys of shards that the table itself says it has. Most tables leave that to the shards' rows."""
        return frozenset()

    @abstractmethod
    def publish(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        """Commit: all files of the output, and the end of each shard, or nothing. `ShardsLost` if a shard is not this
        pipeline's any more; then nothing was committed, and the output is to be dropped. When it returns, the commit
        survives a power failure."""

    @abstractmethod
    def live_batches(self) -> frozenset[str]:
        """The names of the batches whose files the table has."""

    @abstractmethod
    def refuse(self, batch: str) -> bool:
        """See to it that a batch can never be committed any more; False if it was. Its files are deleted next."""

    def drop(self, output: str) -> None:
        """Delete the files of a batch that was not committed."""
        shutil.rmtree(output, ignore_errors=True)

    def sweep(self, older_than_s: float, known_s: float = math.inf) -> int:
        """Delete what losers and crashed pipelines left behind; how many batches. A batch is made uncommittable before
        its files go, so one whose pipeline only slept is refused when it wakes up. Those older than `known_s` stay:
        whether they were committed, and then compacted by others, may be forgotten."""
        self.require_owned()  # another table has none of our batches, and that makes them no orphans
        live = self.live_batches()
        swept = 0
        for folder in old_batches(self.data_folder, older_than_s, known_s):
            if folder.name not in live and self.refuse(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                swept += 1
        return swept
