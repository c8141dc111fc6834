"""A table as a sink of `once`, of any format: tasks write the files, the driver commits them with the batch as a mark.

Looking the mark up and committing from the same view of the table is one step (`detent.tables`). The files of a batch
are in a folder of their own, so what tasks left there that were repeated, or that died, is swept once the batch is in
the table: no other commit of that batch can name them any more.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from detent import crash
from detent.errors import Conflict, Unavailable
from detent.spark.once_batch import (
    ExternalSink,
    MarkPlace,
    Select,
    check_select,
    collect,
    in_tasks,
    output_mode,
    selected,
)
from detent.tables import maintenance
from detent.tables.files import FilePlan, WrittenFile, escaped, sweep_folder, write_files
from detent.tables.marks import BatchKey, TableMark
from detent.tables.merge import one_row_a_key
from detent.tables.options import APPEND, COMPLETE, OVERWRITE, TableOptions
from detent.tables.orphans import lost_files, require_named

COMMIT_ATTEMPTS: Final = 5
"""How often a commit is tried that other writers of the table came before."""

LOOK_EVERY: Final = 10
"""Batches between two looks at how many small files a table has."""

logger = logging.getLogger("detent.spark")


class TableSink(ExternalSink):
    """A table. What is said below of one format only is said by a class for each."""

    def __init__(self, table: Any, options: TableOptions, select: Select) -> None:
        check_select(select)
        self._table = table
        self._options = options
        self._select = select
        self._swept: str | None = None
        """The run whose first batch has been swept."""
        self._batches = 0
        """Committed by this process."""

    @property
    def name(self) -> str:
        return f"table {self._title()}"

    @property
    def place(self) -> MarkPlace:
        return MarkPlace(str(self._table))

    def check_mode(self, mode: str) -> None:
        self._options.check_mode(mode, str(self._table))

    # -- what a format says ---------------------------------------------------------------------------------------

    @abstractmethod
    def _title(self) -> str:
        """What the table is called in views."""

    @abstractmethod
    def _create(self, schema: StructType) -> None:
        """Make the table, with the columns of a batch."""

    @abstractmethod
    def _fit(self, view: Any, schema: StructType) -> Any:
        """A view of the table that holds rows of this schema, as far as it may be changed for that; `Invalid` if rows
        do not fit, or if it asks more of its writers than to add files, or forgets which batches it has."""

    @abstractmethod
    def _merging(self, view: Any, rows: Any, plan: FilePlan) -> Any:
        """How rows, one a key, come into the table in the place of those with the same keys."""

    @abstractmethod
    def _stamp(self, mark: TableMark) -> Any:
        """What the commit of a batch says of itself."""

    @abstractmethod
    def _settle(self, view: Any, *, is_new: bool) -> None:
        """Make what the table has of the batch survive a power failure."""

    # -- a batch --------------------------------------------------------------------------------------------------

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        rows = selected(batch, self._select)
        view, mark = self._open(rows.schema), TableMark(key, str(self._table))
        is_new = not mark.is_in(view)
        if is_new:
            view = self._fit(view, rows.schema)
            overwrites = self._options.mode == OVERWRITE or output_mode(batch) == COMPLETE
            plan = self._plan(view, key)
            if self._options.merge_on and not overwrites:
                self._merge(view, rows, plan, mark)
            else:
                self._add(view, rows, plan, mark, OVERWRITE if overwrites else APPEND)
        self._settle(view, is_new=is_new)
        if is_new and self._options.compact_after:
            self._compact()

    def _compact(self) -> None:
        """Compact the table if it has too many small files. The batch is in it already, so one that fails does no harm,
        and is tried again some batches later."""
        self._batches += 1
        if self._batches % LOOK_EVERY:
            return
        try:
            if maintenance.info(self._table).small_files > self._options.compact_after:
                maintenance.compact(self._table)
        except (Unavailable, Conflict) as error:
            logger.warning("%s was not compacted: %s", self._table, error)

    def _open(self, schema: StructType) -> Any:
        view = self._table.open_if_there()
        if view is None:
            self._create(schema)
            view = self._table.open()
        return view

    def _plan(self, view: Any, key: BatchKey) -> FilePlan:
        folder = f"data/{escaped(key.name)}-{escaped(key.query)}/{key.batch}"
        plan: FilePlan = self._table.plan(
            view, folder=folder, sort_by=self._options.sort_by, target_bytes=self._options.file_bytes
        )
        return plan

    def _add(self, view: Any, rows: DataFrame, plan: FilePlan, mark: TableMark, mode: str) -> None:
        """Bring files that tasks write into the table, beside what is there or in its place."""
        answers = in_tasks(rows, partial(_written, plan))
        files = [file for _, written in answers for file in written]
        if files or mode != APPEND:
            done = self._commit(view, self._table.adding(view, files, mode), mark, partial(self._check, plan, files))
            if done is not None:
                require_named(plan.files, files, str(self._table))
                was_repeated = any(attempt for attempt, _ in answers)
                self._sweep(plan, mark.key, {file.path for file in files}, is_needed=was_repeated)

    def _check(self, plan: FilePlan, files: list[WrittenFile]) -> None:
        """`Conflict` if files of a batch that stood still for long were deleted."""
        lost = lost_files(plan.files, files)
        if lost:
            raise Conflict(
                f"files of this batch were deleted before it was committed to {self._table}, such as {lost[0]}: the "
                "query stood still for longer than a vacuum waits. Start it again: the batch is then written anew"
            )

    def _merge(self, view: Any, rows: DataFrame, plan: FilePlan, mark: TableMark) -> None:
        found = one_row_a_key(collect(rows), self._options.rule)
        if found.num_rows:
            self._commit(view, self._merging(view, found, plan), mark)

    def _commit(self, view: Any, change: Any, mark: TableMark, check: Callable[[], None] = lambda: None) -> Any:
        """Where another driver of the query was faster, no commit names our files; None then."""

        def look(seen: Any) -> Any:
            if mark.is_in(seen):
                return None
            check()
            return self._stamp(mark)

        crash.point("spark.once.table_before_commit")
        done = self._table.commit(look, change, COMMIT_ATTEMPTS, view)
        crash.point("spark.once.table_after_commit")
        return done

    def _sweep(self, plan: FilePlan, key: BatchKey, kept: set[str], *, is_needed: bool) -> None:
        """Delete what was left in the batch's folder. Only a batch in which a task or a driver died has any: one whose
        tasks were repeated, and the first one of a run."""
        if is_needed or self._swept != key.run:
            sweep_folder(plan.files, plan.folder, kept)
            self._swept = key.run


def _written(plan: FilePlan, batches: Iterator[Any]) -> tuple[int, list[WrittenFile]]:
    """What a task does: its files, and whether it was tried before."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber(), write_files(plan, batches)
