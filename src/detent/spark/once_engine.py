"""Sinks of `once` in the store itself: journals and queues. What they stage takes effect with the ledger row."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame

from detent import names
from detent.errors import Invalid
from detent.queue.operations import check_name as check_queue
from detent.spark.journal_writing import Staged, WriteSettings, add_staged, stage_rows
from detent.spark.once_batch import EngineSink, Select, Share, check_select, in_tasks, selected
from detent.spark.outgoing import RowsToMessages
from detent.spark.queue_outgoing import RowsToPublish, pack
from detent.spark.queue_splitting import settle
from detent.store import Store
from detent.transaction import Transaction


def to_journal(name: str | None = None, *, select: Select = None) -> EngineSink:
    """A sink that appends each row to a journal, as ``df.write.format("detent")`` does: columns body, key and headers,
    or any others as one JSON object. Without a name, the column journal says where each row goes."""
    return _ToJournal(name, select)


def to_queue(name: str | None = None, *, select: Select = None) -> EngineSink:
    """A sink that publishes each row to a queue, as ``df.write.format("detent.queue")`` does: columns body (or
    body, or uri), headers, delay and dedup_key, or any others as one JSON object. Without a name, the column queue says
    where each row goes; without both, to every queue whose filter matches the headers."""
    return _ToQueue(name, select)


class _ToJournal(EngineSink):
    def __init__(self, name: str | None, select: Select) -> None:
        if name is not None:
            names.check_name(name, "journal")
        check_select(select)
        self._name = name
        self._select = select

    @property
    def name(self) -> str:
        return f"journal {self._name}" if self._name else "journals of the rows"

    def stage(self, batch: DataFrame, url: str) -> list[dict[str, Staged]]:
        rows = selected(batch, self._select)
        columns = RowsToMessages.of(rows.schema)
        if self._name is None and "journal" not in rows.schema.fieldNames():
            raise Invalid('say where the rows go: to_journal("orders"), or a column called journal')
        settings = WriteSettings(url=url, journal=self._name, ledger=None, version=None, columns=columns)
        return in_tasks(rows, partial(stage_rows, settings))

    def add(self, store: Store, transaction: Transaction, staged: list[dict[str, Staged]], share: Share) -> None:
        del share  # there is room for files of any size
        add_staged(store, transaction, staged)


class _ToQueue(EngineSink):
    def __init__(self, name: str | None, select: Select) -> None:
        if name is not None:
            check_queue(name)
        check_select(select)
        self._name = name
        self._select = select

    @property
    def name(self) -> str:
        return f"queue {self._name}" if self._name else "queues of the rows"

    def stage(self, batch: DataFrame, url: str) -> list[bytes]:
        del url  # the rows travel along; nothing is put into the store before the commit
        rows = selected(batch, self._select)
        return in_tasks(rows, partial(pack, RowsToPublish.of(rows.schema, self._name)))

    @property
    def publishes(self) -> bool:
        return True

    def add(self, store: Store, transaction: Transaction, staged: list[bytes], share: Share) -> None:
        settle(store, transaction, staged, share)
