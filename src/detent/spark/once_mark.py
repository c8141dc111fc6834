"""The marks of sinks outside of the store: which batch they have last, and what it was made from.

A sink is written before the ledger, so it can have the batch that comes, and no later one. If it has that number and
the batch was made from the same input, there is nothing to do. Otherwise it is refused, for the reason that
`batch_input` gives; the rule is the ledger's own (`detent.ledger.entering`).
"""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING, Any

from detent.errors import OtherInput
from detent.ledger.entering import ADVICE
from detent.spark.once_batch import BatchKey

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from sqlalchemy import Connection, Table


def is_done(key: BatchKey, last: int | None, made_from: object, expected: object, where: str) -> bool:
    """Whether a sink has a batch: `last` is the one that it has, `made_from` and `expected` are what that one was made
    from, and what the one that comes is. `OtherInput` if it has another one of that number, or is ahead of it. A mark
    of an earlier release says nothing of inputs, and then the number decides."""
    if last is None or last < key.batch:
        return False
    if not key.input or made_from is None or (last == key.batch and made_from == expected):
        return True
    what = "was made from another input" if last == key.batch else f"cannot be compared, as {where} has batch {last}"
    raise OtherInput(
        f"{where} has batch {key.batch} of {key.name!r}, which {what}, so this one is not taken for done. {ADVICE} "
        f"with `detent ledger reset {shlex.quote(key.name)}`",
        where,
        key.batch,
    )


# -- Delta ----------------------------------------------------------------------------------------------------------


def delta_has(table: DeltaTable, application: str, key: BatchKey, uri: str) -> bool:
    """Whether a Delta table has a batch."""
    last = table.transaction_version(application)
    if last is None or last < key.batch:
        return False
    made_from = table.transaction_version(_input_application(application)) if key.input else None
    return is_done(key, last, made_from, _as_version(key), f"the Delta table {uri}")


def delta_marks(application: str, key: BatchKey) -> list[tuple[str, int]]:
    """The transaction ids of a commit: the batch, and its input as a number beside it. A table keeps the last one of
    each application, over checkpoints of its log, and nothing else of that kind."""
    marks = [(application, key.batch)]
    return [*marks, (_input_application(application), _as_version(key))] if key.input else marks


def _input_application(application: str) -> str:
    return f"{application}:input"


def _as_version(key: BatchKey) -> int:
    """An input as a number of 63 bits."""
    mixed = hashlib.blake2b(key.input + key.batch.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(mixed, "big") >> 1


# -- SQL ------------------------------------------------------------------------------------------------------------

INPUTS_TABLE = "detent_ledger_inputs"


def inputs_table(sqlalchemy: Any) -> Table:
    """For each row of `detent_ledger` what its batch was made from: a table of its own, as the other one may be older
    and belong to another program."""
    table: Table = sqlalchemy.Table(
        INPUTS_TABLE,
        sqlalchemy.MetaData(),
        sqlalchemy.Column("name", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("sink", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("query", sqlalchemy.Text, primary_key=True),
        sqlalchemy.Column("batch", sqlalchemy.BigInteger, nullable=False),
        sqlalchemy.Column("input", sqlalchemy.Text, nullable=False),
    )
    return table


def sql_has(sqlalchemy: Any, connection: Connection, label: str, key: BatchKey, last: int | None) -> bool:
    """Whether a database has a batch, of which `last` is the highest one entered."""
    if last is None or last < key.batch:
        return False
    table = inputs_table(sqlalchemy)
    row = (table.c.name == key.name) & (table.c.sink == label) & (table.c.query == key.query) & (table.c.batch == last)
    made_from = connection.execute(sqlalchemy.select(table.c.input).where(row)).scalar()
    return is_done(key, last, made_from, key.input.hex(), f"the row {label!r} of detent_ledger")


def sql_mark(sqlalchemy: Any, connection: Connection, label: str, key: BatchKey) -> None:
    """Note what a batch is made from, in the transaction that enters it."""
    if not key.input:
        return
    table = inputs_table(sqlalchemy)
    insert = getattr(sqlalchemy.dialects, connection.dialect.name).insert(table)
    values = {"name": key.name, "sink": label, "query": key.query, "batch": key.batch, "input": key.input.hex()}
    kept = {"batch": insert.excluded.batch, "input": insert.excluded.input}
    connection.execute(
        insert.values(**values).on_conflict_do_update(
            index_elements=[table.c.name, table.c.sink, table.c.query], set_=kept
        )
    )
