"""Tables whose commits share no transaction with the shards: Delta anywhere, Iceberg in any catalog.

A batch is prepared in the database of the shards, committed to the table with its number as a mark, and finished in the
database (`detent.ingest.prepared`). The mark is looked up in the view of the table that the commit is made from, and
the table refuses a commit from a view that is older than another commit of the same source.

A batch whose files are gone cannot be committed any more. Then a commit without files takes its mark, with a second
mark that says so, and its shards are free again.

Rows that replace others (`merge_on`) are written to a folder beside the table's data, `_merging/BATCH`. They are what
is prepared; the commit reads them and merges them into the table, and can do so again. When the batch is finished, or
refused, its folder is deleted.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection

from detent import crash
from detent.errors import Conflict, LimitExceeded, NotFound, OutcomeUnknown, Unavailable
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.prepared import AnotherPrepared, PreparedBatch, PreparedBatches
from detent.ingest.shared_state import FileShard
from detent.sql.transactions import transact
from detent.tables.files import PARTITIONS_MAX, FilePlan, WrittenFile
from detent.tables.merge import BYTES_MAX, ROWS_MAX, check_rule, one_row_a_key
from detent.tables.orphans import DATA_FOLDER, lost_files, require_named

COMMIT_ATTEMPTS: Final = 20
"""How often a commit is tried that other writers of the table came before: pipelines of one table do all the time."""

PATIENCE_S: Final = 2.0
"""How long a pipeline waits for the batch of another one to be finished, before it does that itself."""

LOOK_S: Final = 0.02

MERGING_FOLDER: Final = "_merging"
"""The folder of batches whose rows are to replace others. Vacuums leave names with an underscore alone."""


log = logging.getLogger("detent.ingest")


class MarkedView(Protocol):
    """A view of a table, which knows the marks in it."""

    def transaction_version(self, app_id: str) -> int | None:
        """The last version of an application."""


class LakeCommitter(TableCommitter):
    """Publishes into a table elsewhere."""

    _window_s: float = 0.0

    @property
    def application(self) -> str:
        """What the table's marks of this source are called."""
        return f"detent-ingest:{self.state.source}"

    @property
    def prepared(self) -> PreparedBatches:
        """The batch that is on its way."""
        return PreparedBatches(self.state)

    @property
    def written_to(self) -> str:
        return DATA_FOLDER if self.rule is None else MERGING_FOLDER

    def merging_plan(self, plan: FilePlan) -> FilePlan:
        """How tasks write rows that are merged later, by the plan for the table: whole rows, each with a key. What the
        table would refuse fails here, where it is known whose file it is of."""
        if self.rule is None:
            return plan
        check_rule(plan.arrow_schema, self.rule)
        required = tuple(dict.fromkeys((*plan.required, *self.rule.keys)))
        return dataclasses.replace(plan, sort_by=(), required=required, holds_values=True, tells_footer=False)

    def check_written(self, files: Sequence[WrittenFile]) -> None:
        if self.rule is None:
            return
        rows, memory = sum(file.rows for file in files), sum(file.memory for file in files)
        partitions = len({tuple(file.partition_values.values()) for file in files})
        if rows > ROWS_MAX or memory > BYTES_MAX or partitions > PARTITIONS_MAX:
            raise LimitExceeded(
                f"a commit merges at most {ROWS_MAX} rows of {BYTES_MAX} bytes and {PARTITIONS_MAX} partitions into a "
                f"table, and these are {rows} of {memory} and {partitions}: make files smaller"
            )

    def publish(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        self.require_owned()
        self.check_unfinished(shards)
        if not output.files:
            self._publish_nothing(shards, output)
            return
        prepared = self._prepare(shards, output)
        crash.point("ingest.after_prepare")
        if prepared is not None and not self._decide(prepared):
            raise self.state.shards_lost(shard.key for shard in shards)

    def check_unfinished(self, shards: Sequence[FileShard]) -> None:
        """`ShardsLost` if the table says that it has some of the files, from before there were batches with numbers."""

    def _publish_nothing(self, shards: Sequence[FileShard], output: BatchOutput) -> None:
        """Files without rows: they are finished in the database alone."""

        def commit(connection: Connection) -> None:
            self.state.advance(connection, shards, output.record(len(shards)))

        transact(self.state.engine, commit)

    def _prepare(self, shards: Sequence[FileShard], output: BatchOutput) -> PreparedBatch | None:
        """Prepare a batch, when there is no other on its way, or it was helped to its end."""
        since: dict[str, float] = {}
        while True:
            try:
                return self.prepared.prepare(shards, output, self.mark())
            except AnotherPrepared as other:
                now = time.monotonic()
                if now - since.setdefault(other.batch, now) >= PATIENCE_S:
                    self.resolve()
                time.sleep(LOOK_S)

    def resolve(self, *, grace_s: float = 0.0) -> bool:
        found = self.prepared.current()
        is_ours = found is not None and found.token == self.state.token
        if found is None or not (is_ours or found.age_ms >= grace_s * 1000):
            return False
        self._decide(found, is_left=True)
        return True

    def _decide(self, prepared: PreparedBatch, *, is_left: bool = False) -> bool:
        """See to it that the table has a batch, or never will, and note which; whether it has. One that was left by a
        pipeline may have lost its files."""
        self.state.epoch.require_current()
        self.require_owned()
        if is_left and 0 < self._window_s * 1000 < prepared.age_ms:
            raise Conflict(
                f"the batch {prepared.batch} was prepared longer ago than the table is known to remember what it has: "
                f"look into its history for the mark {self.application} = {prepared.number}"
            )
        lost = lost_files(self.files, prepared.files, is_looked=is_left)
        is_whole = not lost
        if lost:
            log.warning(
                "files of the batch %s were deleted before it was committed, such as %s: its rows are read again",
                prepared.batch,
                lost[0],
            )
        try:
            has_it = self._commit(prepared, is_whole=is_whole)
        except NotFound as error:  # another pipeline has finished the batch, or a file is lost: the next look tells
            raise Unavailable(f"files of the batch {prepared.batch} were deleted meanwhile: {error}") from error
        crash.point("ingest.after_table_commit")
        if has_it:
            is_ours = self.prepared.finish(prepared)
        else:
            self.prepared.refuse(prepared)
            is_ours = False
        crash.point("ingest.after_finish")
        if prepared.rule is not None:
            self.drop(f"{self.location}/{MERGING_FOLDER}/{prepared.batch}")
        return is_ours

    def rows_of(self, prepared: PreparedBatch) -> Any:
        """The rows of a batch that replace others, one a key; `NotFound` if they are not there any more."""
        assert prepared.rule is not None
        found = [pq.read_table(pa.BufferReader(self.files.get(file.path))) for file in prepared.files]
        return one_row_a_key(pa.concat_tables(found), prepared.rule)

    def _commit(self, prepared: PreparedBatch, *, is_whole: bool) -> bool:
        """Bring a batch into the table, or its refusal; whether the table has the batch then."""
        refusal = f"{self.application}:refused"
        marks = [(self.application, prepared.number), *([] if is_whole else [(refusal, prepared.number)])]
        seen: list[MarkedView] = []

        def look(view: Any) -> list[tuple[str, int]] | None:
            self.check_view(view)
            seen.append(view)
            last = view.transaction_version(self.application)
            return None if last is not None and last >= prepared.number else marks

        try:
            is_done = self.commit_marked(look, prepared, is_whole=is_whole)
        except OutcomeUnknown as error:  # the next look at the table tells
            raise Unavailable(str(error)) from error
        if is_done:
            if is_whole and prepared.rule is None:
                require_named(self.files, prepared.files, f"the table {self.location}")
            return is_whole
        return seen[-1].transaction_version(refusal) != prepared.number

    @abstractmethod
    def mark(self) -> int | None:
        """The number of the last batch of the source that the table has."""

    @abstractmethod
    def check_view(self, view: Any) -> None:
        """`Conflict` if a view is of another table than the source's."""

    @abstractmethod
    def commit_marked(
        self, look: Callable[[Any], list[tuple[str, int]] | None], prepared: PreparedBatch, *, is_whole: bool
    ) -> bool:
        """Change the table, with the marks that `look` answers for a view of it; False if it answers none."""

    def refuse(self, batch: str) -> bool:
        return self.state.refuse(batch)

    def sweep(self, older_than_s: float, known_s: float = math.inf) -> int:
        """As for every table, and then the rows of batches that were merged, or never will be."""
        swept = super().sweep(older_than_s, known_s)
        for batch in self.old(MERGING_FOLDER, older_than_s, math.inf):
            self.state.refuse(batch)
            current = self.prepared.current()
            if current is None or current.batch != batch:
                self.drop(f"{self.location}/{MERGING_FOLDER}/{batch}")
                swept += 1
        return swept
