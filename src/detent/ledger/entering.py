"""The rule: a batch is entered if and only if it is above the highest of its query, by a run that nobody replaced.

It is pure. Spark replays a batch whose end it did not log, and of two drivers on one checkpoint both may come this far,
so nothing but this rule stands between a replay and a second effect.
"""

from __future__ import annotations

import shlex

from detent.codec.ledger import NO_BATCH, REPLACED_MAX, Row
from detent.errors import AlreadyEntered, Fenced
from detent.ledger.operations import EnterLedger


def new_row(now_ms: int) -> Row:
    """A ledger in which nothing is entered."""
    return Row(now_ms, now_ms, NO_BATCH, 0, 0, "", "", ())


def enter(row: Row, op: EnterLedger, now_ms: int) -> Row:
    """The row with the batch in it; `Fenced` or `AlreadyEntered` if it does not belong there.

    A replaced run is told so before anything else. To be told that its batch is done, or that the ledger can be reset,
    would be true and would mislead it: whoever replaced it goes on.
    """
    if op.run in row.replaced:
        raise Fenced(
            f"run {op.run!r} of the ledger {op.name!r} was replaced: a later driver has entered a batch, or the ledger "
            "was reset; stop this one"
        )
    if row.entries and row.query != op.query:
        reason = (
            f"and this is query {op.query!r}: the checkpoint was deleted, or another query uses this name; give this "
            f"one a name of its own, or, if it takes over, allow it with `detent ledger reset {shlex.quote(op.name)}`"
        )
        error = Fenced(f"the ledger {op.name!r} is the one of query {row.query!r}, {reason}")
        raise error.quoting("ledger", op.name, f"the ledger {op.name!r} is the one of another query, {reason}")
    if op.batch <= row.batch:
        raise AlreadyEntered(
            f"batch {op.batch} of the ledger {op.name!r} was entered before: the highest is {row.batch}",
            op.name,
            row.batch,
        )
    entered = row._replace(updated_ms=now_ms, batch=op.batch, entries=row.entries + 1, query=op.query)
    if not op.run or op.run == row.run:
        return entered
    return entered._replace(run=op.run, replaced=_replaced(row))


def reset(row: Row, now_ms: int) -> Row:
    """The row for a new query. The run that entered last counts as replaced: if it still lives, it stays out."""
    return Row(row.created_ms, now_ms, NO_BATCH, 0, row.generation + 1, "", "", _replaced(row))


def _replaced(row: Row) -> tuple[str, ...]:
    """The replaced runs, when the current one is replaced too."""
    return (*row.replaced, row.run)[-REPLACED_MAX:] if row.run else row.replaced
