"""Committers: each publishes the data files of a batch, and that its shards are finished, in one commit."""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from detent.errors import Invalid
from detent.ingest.config import TableStyle
from detent.ingest.ownership import require_table
from detent.ingest.shared_state import BatchRecord, FileShard, QueueSharedState
from detent.kv.wholefiles import WholeFiles, open_whole_files
from detent.tables.files import FilePlan, WrittenFile, is_local, schema_bytes
from detent.tables.options import MergeRule
from detent.tables.orphans import BATCH, DATA_FOLDER, old_batches, sweeping_time_s

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection


PROBE: Final = "probe"
"""The folder of rows that are written to see whether rows can be written."""


class BatchOutput(NamedTuple):
    """What tasks made of a batch: durable files that no table names yet."""

    batch: str
    folder: str
    files: tuple[WrittenFile, ...]
    schema: StructType
    columns: bytes = b""
    """The table's schema by which the files were written, as Arrow writes it."""

    rule: MergeRule | None = None
    """How the rows replace others; None: they are added."""

    def record(self, shards: int) -> BatchRecord:
        """What is kept of the commit."""
        rows = sum(file.rows for file in self.files)
        return BatchRecord(self.batch, shards, len(self.files), rows, sum(file.size for file in self.files))


class TableCommitter(ABC):
    """A table, for one pipeline. `location` is its folder, or its URL on an object store, below which tasks write files
    in a folder of their own for each batch; `storage` are options for reaching it."""

    kind: str

    def __init__(
        self,
        location: str,
        state: QueueSharedState,
        storage: Mapping[str, str] | None = None,
        style: TableStyle | None = None,
    ) -> None:
        self.location = location
        self.state = state
        self.storage = dict(storage or {})
        self.style = style or TableStyle()
        self._owned: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the table is a folder."""
        return is_local(self.location)

    @property
    def rule(self) -> MergeRule | None:
        """How rows replace others; None: they are added."""
        return self.style.merge

    @cached_property
    def files(self) -> WholeFiles:
        """What is below the table."""
        return open_whole_files(self.location, self.storage)

    def folder_of(self, batch: str) -> str:
        """Where tasks write a batch."""
        return f"{self.location}/{self.written_to}/{batch}"

    @property
    def written_to(self) -> str:
        """The folder of the table with the batches that tasks write."""
        return DATA_FOLDER

    def check_written(self, files: Sequence[WrittenFile]) -> None:  # noqa: B027  most commits take any number
        """`LimitExceeded` if a batch is too large for its commit."""

    def plan(self, batch: str, schema: StructType) -> FilePlan:
        """How tasks write the rows of a batch."""
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = schema_bytes(to_arrow_schema(schema, timezone="UTC"))
        return FilePlan(
            self.location, self.storage, columns, self.style.partition_by, holds_values=True, **self.how(batch)
        )

    def probe(self) -> FilePlan:
        """How tasks write a row of a column ``id``, to see whether they can."""
        columns = schema_bytes(pa.schema([pa.field("id", pa.int64())]))
        return FilePlan(self.location, self.storage, columns, folder=f"{self.written_to}/{PROBE}")

    def how(self, batch: str) -> dict[str, Any]:
        """What all plans for a batch say."""
        style = self.style
        return {
            "folder": f"{self.written_to}/{batch}",
            "sort_by": style.sort_by,
            "target_bytes": style.target_bytes,
        }

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

    def resolve(self, *, grace_s: float = 0.0) -> bool:  # noqa: ARG002
        """Finish what a pipeline left half committed, if it is silent for so long; whether there was such a batch. Most
        tables are committed in one step."""
        return False

    def drop(self, output: str) -> None:
        """Delete the files of a batch that was not committed. What a task writes after that is swept."""
        if self.is_local:
            shutil.rmtree(output, ignore_errors=True)
        else:
            folder = output.removeprefix(f"{self.location}/")
            self.files.delete([one.name for one in self.files.list(f"{folder}/")])

    def sweep(self, older_than_s: float, known_s: float = math.inf) -> int:
        """Delete what losers and crashed pipelines left behind; how many batches. A batch is made uncommittable before
        its files go, so one whose pipeline only slept is refused when it wakes up. Those older than `known_s` stay:
        whether they were committed, and then compacted by others, may be forgotten."""
        self.require_owned()  # another table has none of our batches, and that makes them no orphans
        live = self.live_batches()
        swept = 0
        for batch in self.old(DATA_FOLDER, older_than_s, known_s):
            if batch not in live and self.refuse(batch):
                self.drop(f"{self.location}/{DATA_FOLDER}/{batch}")
                swept += 1
        return swept

    def old(self, folder: str, older_than_s: float, known_s: float) -> list[str]:
        """The batches in a folder of the table of which something was written longer ago than one time, and not longer
        than another."""
        if self.is_local:
            return [found.name for found in old_batches(Path(self.location) / folder, older_than_s, known_s)]
        newest: dict[str, int] = {}
        for one in self.files.list(f"{folder}/"):
            batch = one.name.split("/")[1]
            newest[batch] = max(newest.get(batch, 0), one.modified_ms)
        now = sweeping_time_s()
        ages = {batch: now - modified_ms / 1000 for batch, modified_ms in newest.items() if BATCH.fullmatch(batch)}
        return [batch for batch, age_s in ages.items() if older_than_s < age_s < known_s]
