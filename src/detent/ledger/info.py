"""What can be known of ledgers and pins, as users see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from detent.durations import at_1970_ms
from detent.ledger import operations as ops


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger: the highest batch that its query has entered, -1 if it has entered none since the ledger was reset.

    `run` is the run of the driver that entered last, `replaced` those before it, oldest first. `entries` counts the
    batches of this query, `generation` how often the ledger was reset.
    """

    name: str
    query: str
    batch: int
    run: str
    replaced: tuple[str, ...]
    entries: int
    generation: int
    created: datetime
    updated: datetime


@dataclass(frozen=True, slots=True)
class PinInfo:
    """Where a stream began: the offsets of its journals, and when they were pinned."""

    name: str
    offsets: dict[str, int]
    created: datetime


def ledger_info(found: ops.LedgerDescription) -> LedgerInfo:
    """A description as users see it."""
    return LedgerInfo(
        name=found.name,
        query=found.query,
        batch=found.batch,
        run=found.run,
        replaced=tuple(found.replaced),
        entries=found.entries,
        generation=found.generation,
        created=at_1970_ms(found.created_ms),
        updated=at_1970_ms(found.updated_ms),
    )


def pin_info(found: ops.PinDescription) -> PinInfo:
    """A description as users see it."""
    return PinInfo(found.name, found.offsets, at_1970_ms(found.created_ms))
