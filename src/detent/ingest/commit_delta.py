"""A Delta table as the place of the rows. Its log says which files it has, and that is what counts.

Each shard is an application of the table with a transaction id. Looking the ids up and committing from the same view of
the table is one step (`detent.tables.delta`). The rows of the shard table follow after the commit; when a crash comes
before that, they are mended from the log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from detent import crash
from detent.errors import Invalid, Unavailable
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.shared_state import FileShard, QueueSharedState
from detent.sql.transactions import transact
from detent.tables.delta import (
    RETENTION,
    DeltaPlace,
    add_of_batch,
    adding,
    deltalake_module,
    id_of,
    properties,
    remembered_s,
)
from detent.tables.delta_schema import check_writable, delta_schema, required_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried that other writers of the table came before: pipelines of one table do all the time."""

COMMITTED: Final = 1
REFUSED: Final = 2
"""Transaction ids of shards and batches: shards have the first only, and a batch has the one that it got first."""

_BATCH: Final = re.compile(r"/data/([0-9a-f]{32}-\d+)/")


class DeltaCommitter(TableCommitter):
    """Publishes into a Delta table in a folder. `window_s` is how long the table remembers at least which files it
    has."""

    kind = "delta"

    def __init__(self, location: str, state: QueueSharedState, window_s: float) -> None:
        super().__init__(location, state)
        self._window_s = window_s
        self._place = DeltaPlace(location)
        deltalake_module()

    def _application(self, key: bytes) -> str:
        return f"detent-ingest:{self.state.source}:{key.hex()}"

    def _batch_application(self, batch: str) -> str:
        return f"detent-ingest:{self.state.source}:batch:{batch}"

    def identity(self) -> str | None:
        return id_of(self._place.open_if_there())

    # -- the table's columns -----------------------------------------------------------------------------------------

    def prepare(self, schema: StructType) -> None:
        table = self._place.open_if_there()
        self.require_same(id_of(table))
        wanted = delta_schema(schema)
        if table is None:
            days = int(self._window_s // 86400) + 1
            self._place.create(wanted, configuration={RETENTION: f"interval {days} days"})
            self._place.sync(0)
            crash.point("ingest.delta_after_create")
            table = self._place.open()
            self.require_same(id_of(table))
        self._check_memory(table)
        check_writable(table, self.location)
        self._check_plain(table)
        self._place.widen(table, wanted, COMMIT_ATTEMPTS)

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
        partitions = table.metadata().partition_columns
        if partitions:
            raise Invalid(
                f"the Delta table {self.location} is partitioned by {', '.join(partitions)}, which an ingest "
                "cannot write: make one without"
            )
        required = required_columns(table)
        if required:
            raise Invalid(f"the Delta table {self.location} has columns that may not be null: {', '.join(required)}")

    # -- commits -----------------------------------------------------------------------------------------------------

    def finished(self, shards: Iterable[FileShard]) -> frozenset[bytes]:
        table = self._place.open_if_there()
        if table is None:
            return frozenset()
        keys = {self._application(shard.key): shard.key for shard in shards}
        found = frozenset(keys[name] for name in self._place.known(table, keys.keys()))
        if found:
            # The pipeline that committed them may have died before this; what is acknowledged next must be durable.
            self._place.sync(0)
        return found

    def publish(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        table = self._place.open_if_there()
        self.require_same(id_of(table))
        adds = self._adds(shards, output)
        if table is None and not adds:
            self._publish_nothing(shards, output)
            return

        def look(table: DeltaTable) -> Any:
            self.require_same(id_of(table))
            self._check_ours(table, shards, output.batch)
            return self._properties(shards, output.batch)

        table = self._place.commit(look, adding(adds), COMMIT_ATTEMPTS, table)
        crash.point("ingest.delta_after_commit")
        self._place.sync(table.version() if table else 0)
        self._note(shards, output)

    def _publish_nothing(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        """Files without rows or columns, of which no table can be made: they are finished in the database alone."""

        def commit(connection: Connection) -> None:
            self.state.advance(connection, shards, output.record(len(shards)))

        transact(self.state.engine, commit)

    def _check_ours(self, table: DeltaTable, shards: Sequence[FileShard], batch: str) -> None:
        """`ShardsLost` if another pipeline committed a shard, has it now, or swept the batch."""
        keys = {self._application(shard.key): shard.key for shard in shards}
        known = self._place.known(table, [*keys, self._batch_application(batch)])
        done = frozenset(keys[name] for name in known if name in keys)
        if done:
            self._place.sync(0)
            self.state.finish(shard for shard in shards if shard.key in done)
            raise self.state.shards_lost(done)
        if known:
            raise self.state.shards_lost(shard.key for shard in shards)
        # The log alone decides; but a commit that beats the new owner would let it read the file for nothing.
        lost = self.state.lost(shard.key for shard in shards)
        if lost:
            raise self.state.shards_lost(lost)

    def _properties(self, shards: Sequence[FileShard], batch: str) -> Any:
        names = [*(self._application(shard.key) for shard in shards), self._batch_application(batch)]
        return properties(((name, COMMITTED) for name in names), int(time.time() * 1000), {"detent.batch": batch})

    def _adds(self, shards: Sequence[FileShard], output: BatchOutput) -> list[Any]:
        try:
            return [add_of_batch(file, self.location) for file in output.files]
        except FileNotFoundError:
            self._check_ours(self._place.open(), shards, output.batch)  # it may have been swept while we slept
            raise

    def _note(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        self.state.finish(shards, batch=output.batch)

        def enter(connection: Connection) -> None:
            self.state.enter(connection, output.record(len(shards)))

        transact(self.state.engine, enter)

    # -- what is left behind -----------------------------------------------------------------------------------------

    def live_batches(self) -> frozenset[str]:
        table = self._place.open_if_there()
        if table is None:
            return frozenset()
        return frozenset(match[1] for uri in table.file_uris() if (match := _BATCH.search(uri)))

    def refuse(self, batch: str) -> bool:
        """Take the batch's own transaction id, which its commit would take."""
        application = self._batch_application(batch)
        found: int | None = None

        def look(table: DeltaTable) -> Any:
            nonlocal found
            found = table.transaction_version(application)
            return properties([(application, REFUSED)], int(time.time() * 1000)) if found is None else None

        try:
            view = self._place.commit(look, adding([]), COMMIT_ATTEMPTS)
        except (Unavailable, deltalake_module().exceptions.TableNotFoundError):
            return False
        if view is not None:
            self._place.sync(view.version())  # before its files go
        return found in {None, REFUSED}
