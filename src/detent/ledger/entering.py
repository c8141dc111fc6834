"""The rule: a batch is entered if and only if it is above the highest of its query, by a run that was not replaced.

One that is not above it took effect before, if it is made from the same input. If it is made from another one it is
refused: to take it as done would lose what is new in it. Spark plans a batch number anew, over more, when its own log
has lost the newest entry.

It is pure. Spark replays a batch whose end it did not log, and of two drivers on one checkpoint both may come this far,
so nothing but this rule stands between a replay and a second effect.
"""

from __future__ import annotations

import shlex

from detent.codec.ledger import DIGEST_BYTES, INPUTS_MAX, NO_BATCH, REPLACED_MAX, BatchInputs, Row
from detent.errors import AlreadyEntered, Fenced, OtherInput, Restored
from detent.ledger.operations import EnterLedger

NO_INPUTS = BatchInputs(())
UNNAMED = bytes(DIGEST_BYTES)
"""The input of a batch that was entered without one. The number alone decides about it."""


def new_row(now_ms: int) -> Row:
    """A ledger in which nothing is entered."""
    return Row(now_ms, now_ms, NO_BATCH, 0, 0, "", "", ())


def enter(row: Row, op: EnterLedger, now_ms: int, inputs: BatchInputs = NO_INPUTS) -> Row:
    """The row with the batch in it; `Fenced`, `AlreadyEntered` or `OtherInput` if it does not belong there.

    A replaced run is told so before anything else. To be told that its batch is done, or that the ledger can be reset,
    would be true and would mislead it: the one that replaced it goes on.
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
        _check_input(op, row, inputs)
        raise AlreadyEntered(
            f"batch {op.batch} of the ledger {op.name!r} was entered before: the highest is {row.batch}",
            op.name,
            row.batch,
        )
    entered = row._replace(updated_ms=now_ms, batch=op.batch, entries=row.entries + 1, query=op.query)
    if not op.run or op.run == row.run:
        return entered
    return entered._replace(run=op.run, replaced=_replaced(row))


def add_input(inputs: BatchInputs, op: EnterLedger) -> BatchInputs:
    """What is known of inputs when the batch is entered. A ledger whose batches never had any stays without them."""
    if not op.input and not inputs.entries:
        return inputs
    return BatchInputs((*inputs.entries, (op.batch, op.input or UNNAMED))[-INPUTS_MAX:])


def _check_input(op: EnterLedger, row: Row, inputs: BatchInputs) -> None:
    """`OtherInput` unless the batch of this number was made from the same input, or the number alone decides: the
    caller names no input, the batch was entered without one, or the ledger is of a time when there were none."""
    known = dict(inputs.entries)
    if not op.input or not known or known.get(op.batch) in {op.input, UNNAMED}:
        return
    what = (
        "took effect with another input"
        if op.batch in known
        else f"is not among the newest ones, whose inputs are known ({min(known)} to {row.batch})"
    )
    raise OtherInput(
        f"batch {op.batch} of the ledger {op.name!r} {what}, so this one is not taken for done. {ADVICE} with "
        f"`detent ledger reset {shlex.quote(op.name)}`",
        op.name,
        op.batch,
    )


ADVICE = (
    "The checkpoint has lost its newest entries, or is an older copy. Put back the entries of its folder `offsets` as "
    "they were when the batch took effect, and start the stream again. If they are gone, start over behind what has "
    "taken effect: with a new checkpoint, a start given by the option of the source (startingOffsets), and the ledger "
    "reset"
)
"""What to do about a batch that comes with another input."""


def reset(row: Row, now_ms: int) -> Row:
    """The row for a new query. The run that entered last counts as replaced: if it still lives, it stays out."""
    return Row(row.created_ms, now_ms, NO_BATCH, 0, row.generation + 1, "", "", _replaced(row))


def replaced_by_restore(row: Row) -> Row:
    """The row in a store that was restored from a backup: the driver that entered last is of the old store."""
    return row._replace(run="", replaced=_replaced(row))


def require_next(op: EnterLedger, restored: int | None) -> None:
    """`Restored` if a ledger whose store was restored would skip batches: their effects went with the old store, and
    the checkpoint says that they are done."""
    if restored is not None and op.batch > restored + 1:
        raise Restored(
            f"the ledger {op.name!r} has batch {restored} as its highest since the store was restored from a backup, "
            f"and the checkpoint of this query goes on with batch {op.batch}: what the batches between wrote to this "
            "store is not there. Restore the checkpoint of that time too, or start over with a new checkpoint and "
            f"`detent ledger reset {shlex.quote(op.name)}`"
        )


def _replaced(row: Row) -> tuple[str, ...]:
    """The replaced runs, when the current one is replaced too."""
    return (*row.replaced, row.run)[-REPLACED_MAX:] if row.run else row.replaced
