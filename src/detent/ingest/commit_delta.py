"""A Delta table as the place of the rows. Its log says which files it has, and that is what counts.

Each shard is an application of the table with a transaction id. Looking the ids up and committing from the same view of
the table is one step, since the table refuses a commit when another with one of its ids came in between. The rows of
the shard table follow after the commit; when a crash comes before that, they are mended from the log.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from sqlalchemy import Connection

from detent import crash
from detent.errors import Invalid, Unavailable
from detent.ingest.committer import Committer, DataFile, Output
from detent.ingest.delta_log import known_applications
from detent.ingest.metastore import transact
from detent.ingest.shared_state import QueueSharedState, Shard
from detent.spark.delta_files import footer_statistics
from detent.spark.once_delta import (
    CHECKPOINT_INTERVAL,
    check_columns,
    check_writable,
    delta_schema,
    deltalake_module,
    sync_log,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried that other writers of the table came before: pipelines of one table do all the time."""

COMMITTED: Final = 1
REFUSED: Final = 2
"""Transaction ids of shards and batches: shards have the first only, and a batch has the one that it got first."""

RETENTION: Final = "delta.setTransactionRetentionDuration"
_DURATION: Final = re.compile(r"(?:interval\s+)?(\d+)\s*(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
_UNIT_S: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_BATCH: Final = re.compile(r"/data/([0-9a-f]{32}-\d+)/")


class DeltaCommitter(Committer):
    """Publishes into a Delta table in a folder. `window_s` is how long the table remembers at least which files it
    has."""

    kind = "delta"

    def __init__(self, location: str, state: QueueSharedState, window_s: float) -> None:
        super().__init__(location, state)
        self._window_s = window_s
        self._delta = deltalake_module()

    def _application(self, key: bytes) -> str:
        return f"detent-ingest:{self.state.source}:{key.hex()}"

    def _open(self) -> DeltaTable:
        # Anew each time: a handle does not follow its own commits, and gets slower with each of them.
        table: DeltaTable = self._delta.DeltaTable(self.location)
        return table

    def _open_if_there(self) -> DeltaTable | None:
        try:
            return self._open()
        except self._delta.exceptions.TableNotFoundError:
            return None

    def identity(self) -> str | None:
        return _id_of(self._open_if_there())

    # -- the table's columns -----------------------------------------------------------------------------------------

    def prepare(self, schema: StructType) -> None:
        table = self._open_if_there()
        self.require_same(_id_of(table))
        wanted = delta_schema(schema)
        if table is None:
            days = int(self._window_s // 86400) + 1
            self._delta.DeltaTable.create(
                self.location,
                schema=wanted,
                mode="ignore",  # another pipeline may have made it just now
                configuration={
                    "delta.checkpointInterval": CHECKPOINT_INTERVAL,
                    RETENTION: f"interval {days} days",
                },
            )
            sync_log(Path(self.location), 0)
            crash.point("ingest.delta_after_create")
            table = self._open()
            self.require_same(_id_of(table))
        self._check_memory(table)
        check_writable(table, self.location)
        self._check_plain(table)
        self._add_columns(table, wanted)

    def _check_memory(self, table: DeltaTable) -> None:
        """`Invalid` if the table forgets sooner than the window says."""
        kept = table.metadata().configuration.get(RETENTION)
        if kept is None:
            return
        match = _DURATION.fullmatch(kept.strip())
        if match is None or int(match[1]) * _UNIT_S[match[2].lower()] < self._window_s:
            raise Invalid(
                f"the Delta table {self.location} forgets transaction ids after {kept!r} ({RETENTION}), before the "
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
        required = [one["name"] for one in json.loads(table.schema().to_json())["fields"] if not one["nullable"]]
        if required:
            raise Invalid(f"the Delta table {self.location} has columns that may not be null: {', '.join(required)}")

    def _add_columns(self, table: DeltaTable, wanted: Any) -> None:
        for _ in range(COMMIT_ATTEMPTS):
            have = json.loads(table.schema().to_json())["fields"]
            rows = json.loads(wanted.to_json())["fields"]
            names = {field["name"].lower() for field in have}
            new = [field for field in rows if field["name"].lower() not in names]
            missing = [field for field in have if field["name"] not in {row["name"] for row in rows}]
            check_columns(have + new, rows + missing, self.location)
            if not new:
                return
            fields = [self._delta.Field.from_json(json.dumps(field)) for field in new]
            try:
                since = table.version()
                table.alter.add_columns(fields)
                sync_log(Path(self.location), since)
            except self._delta.exceptions.DeltaError as error:
                failure = error  # another pipeline may have added it
            else:
                return
            table = self._open()
        raise Unavailable(f"columns could not be added to the Delta table {self.location}") from failure

    # -- commits -----------------------------------------------------------------------------------------------------

    def finished(self, shards: Iterable[Shard]) -> frozenset[bytes]:
        table = self._open_if_there()
        found = frozenset() if table is None else self._finished(table, shards)
        if found:
            # Whoever committed them may have died before this, and what is acknowledged next must be there for good.
            sync_log(Path(self.location), 0)
        return found

    def _finished(self, table: DeltaTable, shards: Iterable[Shard]) -> frozenset[bytes]:
        keys = {self._application(shard.key): shard.key for shard in shards}
        return frozenset(keys[name] for name in self._known(table, keys.keys()))

    def _known(self, table: DeltaTable, names: Collection[str]) -> frozenset[str]:
        return known_applications(table, Path(self.location) / "_delta_log", names)

    def publish(self, shards: Sequence[Shard], output: Output) -> None:
        table = self._open_if_there()
        self.require_same(_id_of(table))
        adds = self._adds(shards, output)
        if table is None and not adds:
            self._publish_nothing(shards, output)
            return
        for attempt in range(COMMIT_ATTEMPTS):
            if table is None or attempt:
                table = self._open()
                self.require_same(_id_of(table))
            self._check_ours(table, shards, output.batch)
            try:
                table.create_write_transaction(
                    adds,
                    "append",
                    table.schema(),
                    [],
                    commit_properties=self._properties(shards, output.batch),
                )
            except self._delta.exceptions.CommitFailedError as error:
                failure = error
                continue
            crash.point("ingest.delta_after_commit")
            sync_log(Path(self.location), table.version())
            self._note(shards, output)
            return
        raise Unavailable(f"others wrote to {self.location} first, {COMMIT_ATTEMPTS} times") from failure

    def _publish_nothing(self, shards: Sequence[Shard], output: Output) -> None:
        """Files without rows or columns, of which no table can be made: they are finished in the database alone."""

        def commit(connection: Connection) -> None:
            self.state.advance(connection, shards, output.record(len(shards)))

        transact(self.state.engine, commit)

    def _check_ours(self, table: DeltaTable, shards: Sequence[Shard], batch: str) -> None:
        """`ShardsLost` if another pipeline committed a shard, has it now, or swept the batch."""
        keys = {self._application(shard.key): shard.key for shard in shards}
        known = self._known(table, [*keys, self._batch_application(batch)])
        done = frozenset(keys[name] for name in known if name in keys)
        if done:
            sync_log(Path(self.location), 0)
            self.state.finish(shard for shard in shards if shard.key in done)
            raise self.state.shards_lost(done)
        if known:
            raise self.state.shards_lost(shard.key for shard in shards)
        # The log alone decides; but a commit that beats the new owner would let it read the file for nothing.
        lost = self.state.lost(shard.key for shard in shards)
        if lost:
            raise self.state.shards_lost(lost)

    def _properties(self, shards: Sequence[Shard], batch: str) -> Any:
        now = int(time.time() * 1000)
        names = [self._application(shard.key) for shard in shards]
        ids = [self._delta.Transaction(name, COMMITTED, now) for name in [*names, self._batch_application(batch)]]
        return self._delta.CommitProperties(app_transactions=ids, custom_metadata={"detent.batch": batch})

    def _adds(self, shards: Sequence[Shard], output: Output) -> list[Any]:
        try:
            return [self._added(file) for file in output.files]
        except FileNotFoundError:
            self._check_ours(self._open(), shards, output.batch)  # it may have been swept while we slept
            raise

    def _added(self, file: DataFile) -> Any:
        return self._delta.transaction.AddAction(
            path=str(Path(file.path).relative_to(self.location)),
            size=file.bytes,
            partition_values={},
            modification_time=file.modified_ms,
            data_change=True,
            stats=json.dumps(footer_statistics(pq.read_metadata(file.path))),
        )

    def _note(self, shards: Sequence[Shard], output: Output) -> None:
        self.state.finish(shards, batch=output.batch)

        def enter(connection: Connection) -> None:
            self.state.enter(connection, output.record(len(shards)))

        transact(self.state.engine, enter)

    # -- what is left behind -----------------------------------------------------------------------------------------

    def _batch_application(self, batch: str) -> str:
        return f"detent-ingest:{self.state.source}:batch:{batch}"

    def _version_of(self, table: DeltaTable, batch: str) -> int | None:
        """Whether a batch was committed, or refused, or neither."""
        return table.transaction_version(self._batch_application(batch))

    def live_batches(self) -> frozenset[str]:
        table = self._open_if_there()
        if table is None:
            return frozenset()
        return frozenset(match[1] for uri in table.file_uris() if (match := _BATCH.search(uri)))

    def refuse(self, batch: str) -> bool:
        """Take the batch's own transaction id, which its commit would take."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._open_if_there()
            if table is None:
                return False
            version = self._version_of(table, batch)
            if version is not None:
                return version == REFUSED
            ids = [self._delta.Transaction(self._batch_application(batch), REFUSED, int(time.time() * 1000))]
            try:
                table.create_write_transaction(
                    [],
                    "append",
                    table.schema(),
                    [],
                    commit_properties=self._delta.CommitProperties(app_transactions=ids),
                )
            except self._delta.exceptions.CommitFailedError:
                continue
            sync_log(Path(self.location), table.version())  # before its files go
            return True
        return False


def _id_of(table: DeltaTable | None) -> str | None:
    return None if table is None else str(table.metadata().id)
