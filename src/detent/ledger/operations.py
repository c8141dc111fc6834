"""The operations on ledgers and pins that a transaction can hold, and what they answer."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from detent import names
from detent.codec.ledger import DIGEST_BYTES
from detent.engine import Operation, Result
from detent.engine.operation import OPERATION_WEIGHT
from detent.errors import Invalid, LimitExceeded

LEDGERS_MAX: Final = 100_000
"""Their rows are kept in memory, about 1 KiB each, and for ever: a highest batch that was forgotten could be entered
again."""

PINS_MAX: Final = 10_000
PIN_JOURNALS_MAX: Final = 10_000
PIN_BYTES_MAX: Final = 1 << 20
"""A pin is one record, and travels whole in each answer that shows it."""

PINS_BYTES_MAX: Final = 64 << 20
"""All pins together are kept in memory."""

NAME_BYTES_MAX: Final = names.TEXT_NAME_BYTES_MAX

QUERY_BYTES_MAX: Final = 128
RUN_BYTES_MAX: Final = 128
"""Query and run are ids that other programs make, mostly UUIDs of 36 bytes."""

PLANS_MAX: Final = 10_000
PLANS_BYTES_MAX: Final = 64 << 20
"""Plans are kept in memory. When there are too many, those go that were not used for the longest time: their readers
plan anew, and a batch that comes with another input than before is refused by its ledger."""

PLAN_BYTES_MAX: Final = 64 << 10
"""What the steps of a plan may take, the newest apart: it is written whole with each step."""

STREAMS_MAX: Final = 10_000
PLACES_MAX: Final = 1_000
PLACE_BYTES_MAX: Final = 2_000
"""Streams whose inputs and outputs are kept, in memory; how many each may have, and how long their names are."""

PAGE_MAX: Final = 1_000
"""Ledgers or pins in one answer; everybody else waits while it is made."""

PAGE_BYTES: Final = 4 << 20
"""A page of pins ends when it has about so many bytes."""

BATCH_MAX: Final = (1 << 63) - 1
OFFSET_MAX: Final = 1 << 62
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that has dates."""

Batch = Annotated[int, msgspec.Meta(ge=0, le=BATCH_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]


class EnterLedger(Operation, frozen=True, tag=True, array_like=True):
    """This batch of this query takes effect with the rest of the transaction, or `AlreadyEntered`: it did before.

    `Fenced` when the name is another query's, or when this run of the driver was replaced by a later one. A caller that
    names no run is not held to that, and replaces no run. `input` is a digest of what the batch is made from:
    `OtherInput` when the batch of this number was made from something else. Without one the number alone decides.
    """

    name: str
    query: str
    batch: Batch
    run: str = ""
    input: bytes = b""


class ResetLedger(Operation, frozen=True, tag=True, array_like=True):
    """Forget query, batch and run of a ledger, so that another query may use its name."""

    name: str


class DeleteLedger(Operation, frozen=True, tag=True, array_like=True):
    """Forget a ledger altogether."""

    name: str


class DescribeLedgers(Operation, frozen=True, tag=True, array_like=True):
    """Ledgers whose names begin with `prefix` and come after `after`, by name; or the one with a `name`. Changes
    nothing."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE_MAX
    name: str = ""


class PinOffsets(Operation, frozen=True, tag=True, array_like=True):
    """Keep offsets under a name, unless there are some already: then those count. Answers `Pinned`."""

    name: str
    offsets: dict[str, Offset]

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(len(journal) + 16 for journal in self.offsets)


class Unpin(Operation, frozen=True, tag=True, array_like=True):
    """Forget the offsets that are kept under a name."""

    name: str


class PlanOffsets(Operation, frozen=True, tag=True, array_like=True):
    """A reader of journals plans a step from one place to another. If it has planned from there before, that step
    counts. Answers `Planned`.

    `start`, `end` and `journals` are digests: of the offsets, and of which journals they are of. `moved` are the
    offsets of the end that differ from those of the start. With `anew` the step takes the place of an earlier one.
    """

    name: str
    start: bytes
    end: bytes
    journals: bytes
    moved: dict[str, Offset]
    anew: bool = False

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(len(journal) + 16 for journal in self.moved)


class DeclareStream(Operation, frozen=True, tag=True, array_like=True):
    """Keep what the stream of this name reads and writes, in the place of what was kept before."""

    name: str
    reads: dict[str, Offset]
    writes: dict[str, Offset]

    def weight(self) -> int:
        return OPERATION_WEIGHT + sum(len(place) + 16 for place in (*self.reads, *self.writes))


class DescribeStreams(Operation, frozen=True, tag=True, array_like=True):
    """Streams whose names come after `after`, by name. Changes nothing."""

    after: str = ""
    limit: int = PAGE_MAX


class DescribePins(Operation, frozen=True, tag=True, array_like=True):
    """Pins whose names begin with `prefix` and come after `after`, by name. Changes nothing."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE_MAX


class Entered(Result, frozen=True, tag=True, array_like=True):
    """A batch was entered; which one was the highest before it, -1 for none."""

    name: str
    previous_batch: int


class Pinned(Result, frozen=True, tag=True, array_like=True):
    """The offsets that count, and whether they are the ones that were brought along just now."""

    offsets: dict[str, int]
    new: bool


class Planned(Result, frozen=True, tag=True, array_like=True):
    """The step that counts: what it moves, on which journals, and whether it is the one that was brought along just
    now. `before` says on which journals the step was that ended where this one starts; empty if none is known."""

    moved: dict[str, int]
    journals: bytes
    new: bool
    before: bytes


class StreamDescription(msgspec.Struct, frozen=True, array_like=True):
    """One stream: what it reads and writes."""

    name: str
    reads: dict[str, int]
    writes: dict[str, int]


class StreamDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Some streams by name, and whether there are more after them."""

    streams: list[StreamDescription]
    more: bool


class LedgerDescription(msgspec.Struct, frozen=True, array_like=True):
    """One ledger, as its owner sees it."""

    name: str
    query: str
    batch: int
    run: str
    replaced: list[str]
    entries: int
    generation: int
    created_ms: int
    updated_ms: int
    inputs: list[tuple[int, bytes]] = []  # of the newest batches, oldest first


class LedgerDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Some ledgers by name, and whether there are more after them."""

    ledgers: list[LedgerDescription]
    more: bool


class PinDescription(msgspec.Struct, frozen=True, array_like=True):
    """One pin."""

    name: str
    offsets: dict[str, int]
    created_ms: int


class PinDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Some pins by name, and whether there are more after them."""

    pins: list[PinDescription]
    more: bool


def check_name(name: str, what: str = "ledger") -> None:
    """`Invalid` unless this can be the name of a ledger or pin."""
    names.check_text_name(name, what)


def check_enter(op: EnterLedger) -> None:
    """`Invalid` unless name, query, batch and run can be entered."""
    check_name(op.name)
    for what, text, limit in (("query", op.query, QUERY_BYTES_MAX), ("run", op.run, RUN_BYTES_MAX)):
        if not names.is_text(text, limit):
            raise Invalid(f"{text!r} is no {what}: use up to {limit} bytes of text without control characters")
    if type(op.batch) is not int or not 0 <= op.batch <= BATCH_MAX:
        raise Invalid(f"{op.batch!r} is not a batch: batches are numbered from 0 to {BATCH_MAX}")
    if not isinstance(op.input, bytes) or len(op.input) not in {0, DIGEST_BYTES}:
        raise Invalid(f"{op.input!r} does not identify an input: use a digest of {DIGEST_BYTES} bytes")


def check_pin(op: PinOffsets) -> None:
    """Refuse offsets that cannot be kept."""
    check_name(op.name, "pin")
    if not isinstance(op.offsets, dict):
        raise Invalid(f"a pin keeps an offset for each journal, in a dictionary, not {type(op.offsets).__name__}")
    if len(op.offsets) > PIN_JOURNALS_MAX:
        raise LimitExceeded(f"a pin keeps offsets of at most {PIN_JOURNALS_MAX} journals, not of {len(op.offsets)}")
    for journal, offset in op.offsets.items():
        names.check_name(journal, "journal")
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise Invalid(f"{offset!r} is not an offset of {journal!r}: offsets are numbered from 0 on")


def check_plan(op: PlanOffsets) -> None:
    """Refuse a step that cannot be kept."""
    for digest in (op.start, op.end, op.journals):
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
            raise Invalid(f"{digest!r} is not a digest of {DIGEST_BYTES} bytes")
    check_pin(PinOffsets(op.name, op.moved))


def check_stream(op: DeclareStream) -> None:
    """Refuse places that cannot be kept."""
    check_name(op.name, "stream")
    for places in (op.reads, op.writes):
        if not isinstance(places, dict) or len(places) > PLACES_MAX:
            raise Invalid(f"a stream reads and writes at most {PLACES_MAX} places, in dictionaries")
        for place, number in places.items():
            if not place or not names.is_text(place, PLACE_BYTES_MAX):
                raise Invalid(f"{place!r} is not a place of a stream: use up to {PLACE_BYTES_MAX} bytes of text")
            if type(number) is not int or not 0 <= number <= OFFSET_MAX:
                raise Invalid(f"{number!r} is not the number of {place!r}")


def check_page(prefix: str, after: str, limit: int) -> None:
    """`Invalid` unless this says which names to list."""
    if not isinstance(prefix, str) or not isinstance(after, str):
        raise Invalid("names are listed by a prefix, and after a name, which are text")
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise Invalid(f"a list has 1 to {PAGE_MAX} names, not {limit!r}")
