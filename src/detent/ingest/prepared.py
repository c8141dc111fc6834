"""The batch of a source that is on its way into a table which shares no transaction with the shards.

Its life: *prepared*, in one transaction of the database, with its files, its number and its shards, which from then on
belong to the batch and to no pipeline; *committed* to the table, with its number as a mark; *finished*, in a second
transaction, with its shards. Any pipeline can do the second and third step again from what the first one stored, at any
time: the mark tells whether the table has the batch, and a commit that was made from an older view of the table than
another one of the same source is refused by the table. So a pipeline that dies in between is mended by the next one,
and one that only slept finds that its work is done.

There is one such batch of a source at a time. Numbers only grow, so the table keeps one mark for each source, and the
mark says of every earlier batch that it was decided.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from detent.errors import Conflict
from detent.ingest.committer import BatchOutput
from detent.ingest.shard_sql import BATCHES, BY_DIALECT, ENDS, PREPARED, SHARDS
from detent.ingest.shared_state import STATEMENT_ROWS, FileShard, QueueSharedState, in_portions, now_ms
from detent.sql.transactions import read, transact
from detent.tables.files import WrittenFile
from detent.tables.options import MergeRule

STATE: Final = "prepared"
"""The state of shards that belong to a batch."""


class PreparedBatch(NamedTuple):
    """A batch that is prepared."""

    number: int
    batch: str
    token: str
    files: tuple[WrittenFile, ...]
    age_ms: int
    """How long ago it was prepared."""

    columns: bytes = b""
    """The table's schema by which the files were written, as Arrow writes it; empty for a batch of an earlier release,
    whose tables kept their types."""

    rule: MergeRule | None = None
    """How the rows replace others; None: the files are added as they are."""


class AnotherPrepared(Exception):
    """Another batch of the source is on its way."""

    def __init__(self, batch: str) -> None:
        super().__init__(f"the batch {batch} is on its way")
        self.batch = batch


class PreparedBatches:
    """The prepared batch of a source, as one pipeline sees it."""

    def __init__(self, state: QueueSharedState) -> None:
        self._state = state
        self._mine = PREPARED.c.source == state.source

    def current(self) -> PreparedBatch | None:
        """The batch that is prepared; None if there is none."""
        return read(self._state.engine, self._current)

    def _current(self, connection: Connection) -> PreparedBatch | None:
        row = connection.execute(select(PREPARED).where(self._mine, PREPARED.c.batch != "")).first()
        if row is None:
            return None
        files, columns, rule = _unpacked(row.files)
        age_ms = now_ms(connection) - row.prepared_at
        return PreparedBatch(row.number, row.batch, row.token, files, age_ms, columns, rule)

    def prepare(self, shards: Sequence[FileShard], output: BatchOutput, mark: int | None) -> PreparedBatch | None:
        """Store a batch, and give it its shards; None if it was prepared before, and finished meanwhile. `ShardsLost`
        if a shard is not ours, or the batch was swept; `AnotherPrepared` while another one is on its way. `mark` is the
        one that the table had before this was called: `Conflict` if the database knows of fewer batches."""
        self._make_slot()
        asked = sorted(shards, key=lambda shard: shard.key)

        def work(connection: Connection) -> PreparedBatch | None:
            return self._prepare(connection, asked, output, mark or 0)

        return transact(self._state.engine, work)

    def _make_slot(self) -> None:
        def make(connection: Connection) -> None:
            if connection.execute(select(PREPARED.c.source).where(self._mine)).first() is None:
                empty = {"number": 0, "batch": "", "token": "", "files": "", "prepared_at": 0}
                connection.execute(insert(PREPARED).values(source=self._state.source, **empty))

        try:
            transact(self._state.engine, make)
        except IntegrityError:
            return  # another pipeline made it just now

    def _prepare(
        self, connection: Connection, shards: Sequence[FileShard], output: BatchOutput, mark: int
    ) -> PreparedBatch | None:
        state = self._state
        state.epoch.hold(connection)
        slot = connection.execute(select(PREPARED).where(self._mine).with_for_update()).one()
        if mark > slot.number:
            raise Conflict(
                f"the table has batch {mark} of the ingest {state.source!r}, and its database knows of {slot.number}: "
                "the database is older than the table, so files that are in the table would come twice. Put the newer "
                "database back, or begin anew with another table"
            )
        if slot.batch == output.batch:  # our own transaction, whose end nothing was heard of
            return _prepared(slot.number, slot.token, output)
        if slot.batch:
            raise AnotherPrepared(slot.batch)
        record = output.record(len(shards))
        if not state.enter(connection, record._replace(shards=-record.shards)):
            if self._is_committed(connection, output.batch):
                return None
            raise state.shards_lost(shard.key for shard in shards)
        self._take(connection, shards, output.batch)
        now = text(BY_DIALECT[connection.dialect.name].now)
        values = {
            "number": slot.number + 1,
            "batch": output.batch,
            "token": state.token,
            "files": _packed(output),
        }
        connection.execute(update(PREPARED).where(self._mine).values(**values, prepared_at=now))
        return _prepared(slot.number + 1, state.token, output)

    def _is_committed(self, connection: Connection, batch: str) -> bool:
        query = select(BATCHES.c.shards).where(BATCHES.c.source == self._state.source, BATCHES.c.batch == batch)
        return (connection.execute(query).scalar() or 0) > 0

    def _take(self, connection: Connection, shards: Sequence[FileShard], batch: str) -> None:
        columns, state = SHARDS.c, self._state
        lost: set[bytes] = set()
        for some in in_portions(shards, STATEMENT_ROWS):
            keys = [shard.key for shard in some]
            named = (columns.source == state.source, columns.shard.in_(keys))
            ours = (*named, columns.state == "open", columns.token == state.token, columns.position == "")
            # In the order in which all pipelines lock them.
            held = select(columns.shard).where(*ours).order_by(columns.shard).with_for_update()
            found = {bytes(row.shard) for row in connection.execute(held)}
            lost |= set(keys) - found
            connection.execute(update(SHARDS).where(*ours).values(state=STATE, batch=batch))
        if lost:
            raise state.shards_lost(lost)

    def finish(self, prepared: PreparedBatch) -> bool:
        """Note that the table has the batch: its shards are done. Where another pipeline has decided about the batch
        before, the database says how; whether it is committed."""

        def note(connection: Connection) -> bool:
            if self._leave_slot(connection, prepared):
                dialect = connection.dialect.name
                now = text(BY_DIALECT[dialect].now)
                done = {"state": "done", "position": ENDS[dialect], "updated_at": now, "reason": ""}
                connection.execute(update(SHARDS).where(*self._shards_of(prepared)).values(**done))
                values = {"shards": -BATCHES.c.shards, "committed_at": now}
                connection.execute(update(BATCHES).where(*self._record_of(prepared)).values(**values))
            return self._is_committed(connection, prepared.batch)

        return transact(self._state.engine, note)

    def refuse(self, prepared: PreparedBatch) -> None:
        """Note that the table can never have the batch: its shards are for all to take again."""

        def note(connection: Connection) -> None:
            if self._leave_slot(connection, prepared):
                free = {"state": "open", "token": "", "updated_at": 0, "begun": 0, "batch": ""}
                connection.execute(update(SHARDS).where(*self._shards_of(prepared)).values(**free))
                connection.execute(update(BATCHES).where(*self._record_of(prepared)).values(shards=0))

        transact(self._state.engine, note)

    def _leave_slot(self, connection: Connection, prepared: PreparedBatch) -> bool:
        self._state.epoch.hold(connection)
        slot = (self._mine, PREPARED.c.number == prepared.number, PREPARED.c.batch == prepared.batch)
        left = update(PREPARED).where(*slot).values(batch="", files="")
        return connection.execute(left).rowcount == 1

    def _shards_of(self, prepared: PreparedBatch) -> tuple[Any, ...]:
        columns = SHARDS.c
        return columns.source == self._state.source, columns.state == STATE, columns.batch == prepared.batch

    def _record_of(self, prepared: PreparedBatch) -> tuple[Any, ...]:
        return BATCHES.c.source == self._state.source, BATCHES.c.batch == prepared.batch


def _prepared(number: int, token: str, output: BatchOutput) -> PreparedBatch:
    return PreparedBatch(number, output.batch, token, output.files, 0, output.columns, output.rule)


def _packed(output: BatchOutput) -> str:
    """What is kept of a batch, so that any pipeline can commit it: its files, and how they come into the table."""
    rows = [{**file._asdict(), "footer": base64.b64encode(file.footer).decode()} for file in output.files]
    rule = None if output.rule is None else [list(output.rule.keys), output.rule.newest_by]
    return json.dumps({"files": rows, "columns": base64.b64encode(output.columns).decode(), "rule": rule})


def _unpacked(text: str) -> tuple[tuple[WrittenFile, ...], bytes, MergeRule | None]:
    kept = json.loads(text)
    if isinstance(kept, list):  # of an earlier release, which kept files alone
        kept = {"files": kept, "columns": "", "rule": None}
    files = tuple(WrittenFile(**{**row, "footer": base64.b64decode(row["footer"])}) for row in kept["files"])
    rule = None if kept["rule"] is None else MergeRule(tuple(kept["rule"][0]), kept["rule"][1])
    return files, base64.b64decode(kept["columns"]), rule
