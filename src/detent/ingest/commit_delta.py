"""A Delta table as the place of the rows, in a folder or on an object store.

The table has one mark for the source: the number of its last batch. Earlier releases gave each file a transaction id of
its own; a table that has such ids keeps them, and they are still believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from detent import crash
from detent.errors import Invalid, Unavailable
from detent.ingest.commit_lake import COMMIT_ATTEMPTS, LakeCommitter
from detent.ingest.config import TableStyle
from detent.ingest.prepared import PreparedBatch
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.tables.delta import (
    RETENTION,
    Change,
    DeltaPlace,
    add_of_task,
    adding,
    deltalake_module,
    id_of,
    properties,
    remembered_s,
)
from detent.tables.delta_evolution import fit_delta
from detent.tables.delta_schema import check_writable, delta_schema, required_columns
from detent.tables.files import FilePlan, WrittenFile, write_files
from detent.tables.merge import merge_rows, sync_files
from detent.tables.orphans import BATCH_FILE

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

COMMITTED: Final = 1
"""The transaction id that earlier releases gave a file, and a batch, that was committed."""


class DeltaCommitter(LakeCommitter):
    """Publishes into a Delta table. `window_s` is how long the table remembers at least what it has."""

    kind = "delta"

    def __init__(
        self,
        location: str,
        state: QueueSharedState,
        window_s: float,
        storage: Mapping[str, str] | None = None,
        style: TableStyle | None = None,
    ) -> None:
        super().__init__(location, state, storage, style)
        self._window_s = window_s
        self._place = DeltaPlace(location, self.storage)
        deltalake_module()

    def identity(self) -> str | None:
        return id_of(self._place.open_if_there())

    # -- the table's columns -----------------------------------------------------------------------------------------

    def prepare(self, schema: StructType) -> None:
        table = self._place.open_if_there()
        self.require_same(id_of(table))
        wanted = delta_schema(schema)
        if table is None:
            self._place.create(wanted, self.style.partition_by)
            self._place.sync(0)
            crash.point("ingest.delta_after_create")
            table = self._place.open()
            self.require_same(id_of(table))
        self._check_memory(table)
        check_writable(table, self.location)
        self._check_plain(table)
        fit_delta(self._place, table, wanted, evolve=True, attempts=COMMIT_ATTEMPTS)

    def _check_memory(self, table: DeltaTable) -> None:
        """`Invalid` if the table forgets sooner than the window says."""
        if remembered_s(table) < self._window_s:
            raise Invalid(
                f"the Delta table {self.location} forgets transaction ids after "
                f"{table.metadata().configuration[RETENTION]!r} ({RETENTION}), before the "
                f"window of {self._window_s / 86400:g} days is over: set the property higher, or unset it"
            )

    def _check_plain(self, table: DeltaTable) -> None:
        """`Invalid` for a table whose rows would come out otherwise than they went in."""
        partitions = tuple(table.metadata().partition_columns)
        if partitions != self.style.partition_by:
            raise Invalid(
                f"the Delta table {self.location} is partitioned by {', '.join(partitions) or 'nothing'}, and the "
                f"ingest says {', '.join(self.style.partition_by) or 'nothing'}: set partition_by to what it is"
            )
        required = required_columns(table)
        if required:
            raise Invalid(f"the Delta table {self.location} has columns that may not be null: {', '.join(required)}")

    def plan(self, batch: str, schema: StructType) -> FilePlan:
        del schema  # the table has it by now
        return self.merging_plan(self._place.plan(self._place.open(), **self.how(batch)))

    # -- commits -----------------------------------------------------------------------------------------------------

    def mark(self) -> int | None:
        return self._place.open().transaction_version(self.application)

    def check_view(self, view: DeltaTable) -> None:
        self.require_same(id_of(view))

    def commit_marked(
        self, look: Callable[[Any], list[tuple[str, int]] | None], prepared: PreparedBatch, *, is_whole: bool
    ) -> bool:
        delta = deltalake_module()

        def said(view: DeltaTable) -> Any:
            marks = look(view)
            remarks = {"detent.batch": prepared.batch}
            return None if marks is None else properties(marks, int(time.time() * 1000), remarks)

        change = self._change(prepared) if is_whole else adding(())
        try:
            view = self._place.commit(said, change, COMMIT_ATTEMPTS)
        except (delta.exceptions.DeltaError, OSError) as error:
            raise Unavailable(f"the commit to the Delta table {self.location} had no clear answer: {error}") from error
        # What another pipeline committed must be durable, too, before files count as done.
        if view is None and prepared.rule is not None and self.is_local:
            sync_files(self._place.open(), Path(self.location))
        self._place.sync(0 if view is None else view.version())
        return view is not None

    def _change(self, prepared: PreparedBatch) -> Change:
        """How a batch comes into the table, whatever columns that has by then."""
        rows: list[Any] = []

        def merge(view: DeltaTable, said: Any) -> None:
            assert prepared.rule is not None
            rows[:] = rows or [self.rows_of(prepared)]
            merge_rows(self._place.plan(view), rows[0], prepared.rule, view, said)

        def add(view: DeltaTable, said: Any) -> None:
            adding([add_of_task(file) for file in self._fitting(view, prepared)])(view, said)

        return add if prepared.rule is None else merge

    def _fitting(self, view: DeltaTable, prepared: PreparedBatch) -> Sequence[WrittenFile]:
        """The files of a batch; where the table got wider types since tasks wrote them, such with the same rows in
        these types. Other readers of Delta could not read narrower ones."""
        plan = self._place.plan(view, **self.how(prepared.batch))
        if prepared.columns in {b"", plan.schema}:
            return prepared.files
        types = {column.name: column.type for column in plan.arrow_schema}
        before = pa.ipc.read_schema(pa.BufferReader(prepared.columns))
        if all(column.type.equals(types.get(column.name)) for column in before):
            return prepared.files
        return [new for file in prepared.files for new in write_files(plan, self._batches(plan, file))]

    def _batches(self, plan: FilePlan, file: WrittenFile) -> list[Any]:
        """The rows of a file, with the values of its partition."""
        rows = pq.read_table(pa.BufferReader(self.files.get(file.path)))
        for name, value in file.partition_values.items():
            kind = plan.arrow_schema.field(name).type
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()).cast(kind), rows.num_rows))
        batches: list[Any] = rows.to_batches()
        return batches

    # -- marks of earlier releases -----------------------------------------------------------------------------------

    def _of_file(self, key: bytes) -> str:
        return f"{self.application}:{key.hex()}"

    def finished(self, shards: Iterable[FileShard]) -> frozenset[bytes]:
        table = self._place.open_if_there() if self.is_local else None  # there were none on object stores
        if table is None:
            return frozenset()
        keys = {self._of_file(shard.key): shard.key for shard in shards}
        found = frozenset(keys[name] for name in self._place.known(table, keys.keys()))
        if found:
            # The pipeline that committed them may have died before this; what is acknowledged next must be durable.
            self._place.sync(0)
        return found

    def check_unfinished(self, shards: Sequence[FileShard]) -> None:
        done = self.finished(shards)
        if done:
            self.state.finish(shard for shard in shards if shard.key in done)
            raise self.state.shards_lost(done)

    # -- what is left behind -----------------------------------------------------------------------------------------

    def live_batches(self) -> frozenset[str]:
        table = self._place.open_if_there()
        if table is None:
            return frozenset()
        return frozenset(match[1] for uri in table.file_uris() if (match := BATCH_FILE.search(uri)))

    def refuse(self, batch: str) -> bool:
        table = self._place.open_if_there()
        if table is not None and table.transaction_version(f"{self.application}:batch:{batch}") == COMMITTED:
            return False
        return super().refuse(batch)
