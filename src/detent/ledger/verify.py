"""The ledgers' part of `store verify`: rows, pins and plans by themselves, and inputs with the row that they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from detent.codec import ledger as records
from detent.codec.keys import Prefix
from detent.codec.ledger import BatchInputs, Declared, Pin, Plan, Row
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, DetentError
from detent.kv import View
from detent.ledger import operations as ops

KNOWN: Final = (records.ROW, records.PIN, records.INPUTS, records.PLAN, records.STREAM, records.RESTORED)
"""All that this release writes of ledgers."""


def check_ledgers(view: View, tally: Tally) -> Iterator[Finding]:
    """Rows and pins decode, and are what an owner would have written."""
    for key, problem in _check(view, tally, records.ROW, _check_row):
        yield Finding(record_at(key), f"a malformed ledger: {problem}")
    for key, problem in _check(view, tally, records.PIN, _check_pin):
        yield Finding(record_at(key), f"a malformed pin: {problem}")
    for key, problem in _check(view, tally, records.INPUTS, partial(_check_inputs, view)):
        yield Finding(record_at(key), f"malformed inputs of a ledger: {problem}")
    for key, problem in _check(view, tally, records.PLAN, _check_plan):
        yield Finding(record_at(key), f"a malformed plan: {problem}")
    for key, problem in _check(view, tally, records.STREAM, _check_stream):
        yield Finding(record_at(key), f"a malformed stream: {problem}")
    for key, problem in _check(view, tally, records.RESTORED, _check_restored):
        yield Finding(record_at(key), f"a malformed note of a restore: {problem}")


def _check(
    view: View, tally: Tally, prefix: Prefix, check: Callable[[str, bytes, Tally], None]
) -> Iterator[tuple[bytes, DetentError]]:
    for key, value in tally.scan(view, *prefix.range()):
        try:
            check(records.name_of(prefix, key), value, tally)
        except DetentError as error:
            yield key, error


def _check_row(name: str, value: bytes, tally: Tally) -> None:
    row = Row.decode(value)
    tally.counts.ledgers += 1
    for run in (row.run, *row.replaced):
        ops.check_enter(ops.EnterLedger(name, row.query, max(row.batch, 0), run))
    _check_times(row.created_ms, row.updated_ms)


def _check_restored(name: str, value: bytes, tally: Tally) -> None:
    del name, tally
    records.decode_restored(value)


def _check_pin(name: str, value: bytes, tally: Tally) -> None:
    pin = Pin.decode(value)
    tally.counts.pins += 1
    ops.check_pin(ops.PinOffsets(name, pin.offsets))
    _check_times(pin.created_ms)


def _check_inputs(view: View, name: str, value: bytes, tally: Tally) -> None:
    del tally
    inputs = BatchInputs.decode(value)
    row = view.get(records.key_of(records.ROW, name))
    highest = Row.decode(row).batch if row is not None else records.NO_BATCH
    if not inputs.entries or inputs.entries[-1][0] > highest:
        raise Corrupt(f"inputs up to batch {inputs.entries[-1:]}, and batch {highest} as the ledger's highest")


def _check_plan(name: str, value: bytes, tally: Tally) -> None:
    del tally
    for step in Plan.decode(value).steps:
        ops.check_plan(ops.PlanOffsets(name, step.start, step.end, step.journals, step.moved))
        _check_times(step.planned_ms)


def _check_stream(name: str, value: bytes, tally: Tally) -> None:
    del tally
    stream = Declared.decode(value)
    ops.check_stream(ops.DeclareStream(name, stream.reads, stream.writes))
    _check_times(stream.declared_ms)


def _check_times(*times_ms: int) -> None:
    """Later times have no date, and the record could not be shown."""
    for time_ms in times_ms:
        if not 0 <= time_ms <= ops.TIME_MS_MAX:
            raise Corrupt(f"{time_ms} is not a time in milliseconds since 1970")
