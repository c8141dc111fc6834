"""What a processor does when it starts: a pure function of what is durable.

Nothing is guessed and nothing is computed anew: positions, the delivery key, what was chosen and what is owed are all
in the record. Called twice with the same arguments it answers the same; a process that dies anywhere in carrying it out
leaves a record from which it can be done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from detent.errors import Conflict, Corrupt
from detent.processor.declaration import JournalPlace, Processor
from detent.processor.records import JournalId, OutputMark, Owed, ProcessorRecord, Shape, Snapshot


class Fresh(NamedTuple):
    """Random parts for what is new: drawn by the caller, so that this is a function."""

    identity: str
    series: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to go on."""

    record: ProcessorRecord
    """From here."""
    owed: tuple[Owed, ...]
    """After these were appended, each with the mark of its store."""
    is_new: bool
    """Whether the record is not what is durable, and has to be written first."""


def recover(
    name: str,
    found: ProcessorRecord | None,
    marks: Mapping[str, OutputMark | None],
    shape: Shape,
    *,
    fresh: Fresh,
    starts: Mapping[str, int],
    journals: Mapping[str, JournalId] | None = None,
    generation: int = 0,
    resets: Mapping[str, int] | None = None,
    migrate: bool = False,
) -> Recovery:
    """How a processor goes on, from its record and the marks in all other stores that it writes to.

    `starts` are the offsets at which inputs begin that the record does not know, `journals` says which journals there
    are. `resets` are offsets by input that a reset asked for, in a newer `generation`.
    """
    if found is None:
        for store, mark in marks.items():
            if mark is not None:
                raise _foreign(name, store)
        positions = {one: starts[one] for one in shape.inputs}
        new = Snapshot(fresh.series, positions=positions, journals=dict(journals or {}))
        return Recovery(ProcessorRecord(fresh.identity, 1, generation, shape, new), (), is_new=True)
    owed = _owed(name, found, marks)
    record = _reshaped(name, found, shape, starts, fresh, migrate=migrate)
    if generation > found.generation:
        record = msgspec.structs.replace(reset_to(record, resets or {}, fresh.series), generation=generation)
    if record.snapshot.positions != found.snapshot.positions:  # those that moved have to be the journals that are there
        known = {**(journals or {}), **record.snapshot.journals}
        read = {one: which for one, which in known.items() if one in record.snapshot.positions}
        snapshot = msgspec.structs.replace(record.snapshot, journals=read)
        record = msgspec.structs.replace(record, snapshot=snapshot)
    return Recovery(record, owed, is_new=record != found)


def _owed(name: str, found: ProcessorRecord, marks: Mapping[str, OutputMark | None]) -> tuple[Owed, ...]:
    """What other stores do not have yet. Loud when one of them has less than it confirmed, or more than was done."""
    attempt = found.attempt
    for store, mark in marks.items():
        number = 0 if mark is None else mark.number
        if mark is not None and mark.identity != found.identity:
            raise _foreign(name, store)
        if number < found.given.get(store, 0):
            raise Corrupt(
                f"the store {store!r} confirmed the outputs of {name} up to {found.given[store]}, and has them up to "
                f"{number} now: it has lost what it had made durable. Restore it, or reset the processor to an offset "
                "from which it shall write again"
            )
        if number > found.snapshot.number:
            raise Corrupt(
                f"the store {store!r} has outputs of {name} up to {number}, and the graph's own store knows of "
                f"{found.snapshot.number} only: it has lost what was durable there. Restore it, or reset the processor"
            )
    if attempt is None:
        return ()
    for one in attempt.owed:
        if one.store not in marks:
            raise Conflict(
                f"{name} owes messages to {one.journal!r} in the store {one.store!r}, which the graph does not name "
                "any more: declare it again, until they are there"
            )
    return tuple(one for one in attempt.owed if _number(marks[one.store]) < attempt.end)


def _number(mark: OutputMark | None) -> int:
    return 0 if mark is None else mark.number


def _foreign(name: str, store: str) -> Conflict:
    return Conflict(
        f"the store {store!r} has outputs of a processor {name} that is not this one: its graph's store is another. "
        "Give this graph another name; or, if that graph's store is gone for good, delete the consumer "
        f"'graph/{name}' of the store {store!r}"
    )


def _reshaped(
    name: str, found: ProcessorRecord, shape: Shape, starts: Mapping[str, int], fresh: Fresh, *, migrate: bool
) -> ProcessorRecord:
    """The record for a processor as it is declared now. Positions go with the names of inputs. What was chosen keeps
    its keys; other input sets than those that may have been tried get other ones."""
    old = found.shape
    if old == shape:
        return found
    if not migrate:
        check_same_inputs(name, old, shape)
    snapshot = found.snapshot
    _check_choice(name, snapshot, old, shape)
    known = set(shape.inputs)
    # The next input sets may have been tried, and had a key each. Those of other inputs, and batches that are taken
    # whole, are none of those.
    is_other = reads(old) != reads(shape) or (shape.whole and not old.whole)
    snapshot = msgspec.structs.replace(
        snapshot,
        series=_behind(fresh.series, snapshot.series) if is_other and not snapshot.chosen else snapshot.series,
        positions={one: snapshot.positions.get(one, starts.get(one, 0)) for one in shape.inputs},
        journals={one: which for one, which in snapshot.journals.items() if one in known},
    )
    return msgspec.structs.replace(found, epoch=found.epoch + 1, shape=shape, snapshot=snapshot)


def _check_choice(name: str, snapshot: Snapshot, old: Shape, shape: Shape) -> None:
    """What was chosen has its keys: other messages must not get them."""
    if not snapshot.chosen:
        return
    missing = sorted({one for one, _ in snapshot.chosen if one} - set(shape.inputs))
    if missing or (old.mode, old.whole) != (shape.mode, shape.whole):
        raise Conflict(
            f"{name} has begun a step with messages of {', '.join(missing or old.inputs)}, as a {described(old)}: "
            "declare it so until that step has ended, or reset it"
        )


def reset_to(record: ProcessorRecord, resets: Mapping[str, int], series: str) -> ProcessorRecord:
    """From other offsets, under another key: these are new deliveries."""
    wanted = {one: offset for one, offset in resets.items() if one in record.snapshot.positions}
    return msgspec.structs.replace(record, snapshot=moved(record.snapshot, wanted, series))


def moved(snapshot: Snapshot, offsets: Mapping[str, int], series: str) -> Snapshot:
    """A snapshot of the same inputs from other offsets on, under a new series of delivery keys."""
    return msgspec.structs.replace(
        snapshot,
        series=_behind(series, snapshot.series),
        positions={**snapshot.positions, **offsets},
        journals={one: which for one, which in snapshot.journals.items() if one not in offsets},
        chosen=[],
    )


def _behind(series: str, old: str) -> str:
    """The new series as it is, or moved behind the old one: clocks go back, and sinks refuse what is older."""
    return series if series > old else f"{int(old[:12], 16) + 1:012x}{series[12:]}"


# -- the shape of a processor ----------------------------------------------------------------------------------------


def shape_of(processor: Processor, errors: JournalPlace | None, delivery: str) -> Shape:
    """The shape of a processor as it is declared, with the journal of its errors and its delivery."""
    return Shape(
        processor.kind,
        processor.mode,
        [str(place) for place in processor.inputs],
        written_by(processor),
        "" if errors is None else str(errors),
        delivery,
        processor.whole,
    )


def written_by(processor: Processor) -> list[str]:
    """The outputs of a processor, in one order whatever they are called."""
    return sorted(str(place) for place in processor.outputs.values())


def reads(shape: Shape) -> tuple[str, list[str]]:
    """What a processor reads, and how. The inputs of an any-of are known by their names, whatever their order; those of
    a join are also the parameters of its function."""
    return shape.mode, sorted(shape.inputs) if shape.mode == "any" else shape.inputs


def check_same_inputs(name: str, old: Shape, new: Shape) -> None:
    """`Conflict` unless a processor reads what it has read, in sets that can have the same keys. Everything else about
    it may change."""
    is_whole_now = new.whole and not old.whole
    if old.kind == new.kind and reads(old) == reads(new) and not is_whole_now:
        return
    own = name.partition("/")[2]
    raise Conflict(
        f"{name} was a {described(old)}, and is a {described(new)} now. Declare it as it was; or let it go on so, "
        f"each input from where it was and new ones from their start: migrate=[{own!r}], or --migrate {own}; or give "
        "it another name, to begin anew. If there are two graphs of that name, one of them needs another"
    )


def described(shape: Shape) -> str:
    """In words."""
    reads = {"one": "of", "zip": "that joins", "any": "of any of", "none": ""}.get(shape.mode, shape.mode)
    whole = ", in whole batches" if shape.whole else ""
    return f"{shape.kind} {reads} {', '.join(shape.inputs)}".strip() + whole
