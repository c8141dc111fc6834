"""The ledgers' part of `store verify`: each row and each pin by itself, for none depends on another record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from detent.codec import ledger as records
from detent.codec.keys import Prefix
from detent.codec.ledger import Pin, Row
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, DetentError
from detent.kv import View
from detent.ledger import operations as ops

KNOWN: Final = (records.ROW, records.PIN)
"""All that this release writes of ledgers."""


def check_ledgers(view: View, tally: Tally) -> Iterator[Finding]:
    """Rows and pins decode, and are what an owner would have written."""
    for key, problem in _check(view, tally, records.ROW, _check_row):
        yield Finding(record_at(key), f"a malformed ledger: {problem}")
    for key, problem in _check(view, tally, records.PIN, _check_pin):
        yield Finding(record_at(key), f"a malformed pin: {problem}")


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


def _check_pin(name: str, value: bytes, tally: Tally) -> None:
    pin = Pin.decode(value)
    tally.counts.pins += 1
    ops.check_pin(ops.PinOffsets(name, pin.offsets))
    _check_times(pin.created_ms)


def _check_times(*times_ms: int) -> None:
    """Later times have no date, and nobody could be shown the record."""
    for time_ms in times_ms:
        if not 0 <= time_ms <= ops.TIME_MS_MAX:
            raise Corrupt(f"{time_ms} is no time in milliseconds since 1970")
