"""Moving the progress of a processor: to other offsets (`reset`), to another name (`take_over`), or away (`forget`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from detent import crash
from detent.durations import since_1970_ms
from detent.errors import Conflict, Fenced, Invalid, NotFound
from detent.processor.declaration import JournalPlace, Processor, place
from detent.processor.plan import OpenGraph
from detent.processor.records import OutputMark, ProcessorRecord, settled
from detent.processor.recovery import moved, reset_to, written_by
from detent.processor.runner import journal_ids, new_series
from detent.processor.status import given_to, mark_in, records
from detent.shard.operations import PauseConsumer
from detent.stream.membership import Membership, has_died
from detent.stream.record import FencedRecord

FORGETTING_MS: Final = 60_000
"""How long a processor that is being forgotten may not begin."""

TRIES: Final = 10
"""A processor that is fenced, or that fails, starts over at once, and may take the fence back before it is reset."""


# -- other offsets ----------------------------------------------------------------------------------------------------


def reset(graph: OpenGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Move a processor's inputs. The process that runs it is fenced, and goes on from there."""
    if not processor.inputs:
        then = (
            "forget it, to have it asked from its beginning" if processor.runs else "it is a journal that others write"
        )
        raise Invalid(f"the source {processor.name!r} reads nothing: {then}")
    if isinstance(to, Mapping) and (unknown := sorted(set(to) - {str(one) for one in processor.inputs})):
        reads = ", ".join(map(str, processor.inputs))
        raise Invalid(f"{processor.name!r} does not read {', '.join(map(repr, unknown))}: it reads {reads}")
    if graph.record(processor.name).describe() is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    _offsets(graph, processor, to, time)  # what cannot be is refused before a processor is fenced
    for _ in range(TRIES - 1):
        try:
            return _reset(graph, processor, to, time)
        except Fenced:
            continue
    return _reset(graph, processor, to, time)


def _offsets(graph: OpenGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    wanted = {str(one): _offset(graph, one, to, time) for one in processor.inputs}
    return {one: offset for one, offset in wanted.items() if offset is not None}


def _reset(graph: OpenGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Take the fence, and write another record: what is "latest" is seen behind the fence, where no process
    goes on meanwhile. `Fenced` if the processor was started in between."""
    kept, journals = graph.record(processor.name), processor.own_inputs
    opened = kept.open(journals)
    if opened.checkpoint is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    record = ProcessorRecord.decode(opened.checkpoint)
    offsets = _offsets(graph, processor, to, time)
    missing = sorted(set(offsets) - set(record.snapshot.positions))
    if missing:
        raise Conflict(f"{processor.name!r} has not read {', '.join(missing)} so far: start it once, then reset it")
    record = _rebased(graph, processor.name, record, offsets)
    snapshot = record.snapshot
    processed = {journal: snapshot.positions[journal] for journal in journals if journal in snapshot.positions}
    graph.store.commit([kept.replacing(record.encode(), processed=processed)])
    return offsets


def _rebased(graph: OpenGraph, name: str, record: ProcessorRecord, offsets: Mapping[str, int]) -> ProcessorRecord:
    """The record from other offsets on. Numbers never go back, so it also puts right what a store has lost: its mark
    is not behind, or ahead, of what comes next."""
    marks: dict[str, int] = {}
    for store, kept in graph.marks(name):
        mark = kept.open().checkpoint
        marks[store] = 0 if mark is None else OutputMark.decode(mark).number
    snapshot = moved(record.snapshot, offsets, new_series())
    snapshot = msgspec.structs.replace(
        snapshot,
        number=max([snapshot.number, *marks.values()]),
        journals={**snapshot.journals, **journal_ids(graph.stores, map(place, offsets))},
    )
    return msgspec.structs.replace(record, snapshot=snapshot, given={})


def _offset(graph: OpenGraph, where: JournalPlace, to: str | int | Mapping[str, int], time: Any) -> int | None:
    """From where an input is read on; None if it stays where it is."""
    if isinstance(to, Mapping):
        if str(where) not in to:
            return None
        to = to[str(where)]
    reader = graph.stores[where.store].reader
    found = reader.whereabouts(where.journal)
    first, end = (0, 0) if found is None else found[1:3]
    if time is not None:
        if not isinstance(time, datetime):
            raise Invalid(f"time is a datetime with its zone, not {time!r}")
        return first if found is None else reader.offset_at(where.journal, since_1970_ms(time))
    if to in {"earliest", "latest"}:
        return first if to == "earliest" else end
    if not isinstance(to, int) or isinstance(to, bool):
        raise Invalid(f"a reset goes to 'earliest', 'latest' or an offset, not to {to!r}")
    if not first <= to <= end:
        raise NotFound(f"{str(where)!r} has the offsets from {first} to {end}, and not {to}")
    return to


# -- another name -----------------------------------------------------------------------------------------------------


def take_over(graph: OpenGraph, processors: Sequence[Processor]) -> None:
    """Move the progress of those that say what they were called. `Conflict` for one that looks renamed and does not say
    so: it would begin anew, and do everything again."""
    known = records(graph)
    declared = {one.name for one in graph.plan.processors}
    for processor in processors:
        own = known[processor.name][1] if processor.name in known else None
        if own is not None:
            if processor.formerly is not None:
                _finish(graph, processor, own, known[processor.formerly][1] if processor.formerly in known else None)
            continue
        if processor.formerly in known:
            assert processor.formerly is not None
            _move(graph, processor.formerly, processor)
            continue
        for name, (_, record) in known.items():
            if name not in declared and record is not None and _is_alike(record, processor):
                lost = f"there is no progress of {processor.formerly!r}. " if processor.formerly else ""
                does = f"reads what {name!r} has read" if processor.inputs else f"writes what {name!r} has written"
                raise Conflict(
                    f"{lost}{processor.name!r} is new, and {does}, which the graph does not have any more. If it is "
                    f"the same one, say formerly={name!r}; if not, forget the old one: detent rm FILE --only {name}"
                )


def _is_alike(record: ProcessorRecord, processor: Processor) -> bool:
    """Whether they read the same; or, of sources, which read nothing, whether they write the same."""
    if record.shape.inputs or processor.inputs:
        return record.shape.inputs == [str(one) for one in processor.inputs]
    return record.shape.outputs == written_by(processor)


def _move(graph: OpenGraph, old: str, processor: Processor) -> None:
    """First the other stores, then the graph's own: until that commit, the old name has everything, and this can be
    done again; after it, no process can go on under the old name."""
    name = processor.name
    found = graph.record(old).describe()
    holder = "" if found is None else found.states[0].holder
    if holder and not has_died(holder):
        raise Conflict(f"{old!r} is run by {holder}, and {name!r} takes over what it has done: stop that process first")
    try:
        for store, mark in graph.marks(old):
            _copy_mark(graph, store, mark, name)
        crash.point("processor.renaming.after_marks")
        if found is not None:
            _move_record(graph, old, processor, is_paused=found.paused)
    except (Fenced, NotFound) as error:
        raise Conflict(f"another process makes {old!r} {name!r} at this moment: start again") from error
    crash.point("processor.renaming.after_record")
    _forget_marks(graph, old)


def _finish(graph: OpenGraph, processor: Processor, own: ProcessorRecord, old: ProcessorRecord | None) -> None:
    """Forget what other stores have under the old name, if it died before it had."""
    assert processor.formerly is not None
    if old is not None:
        raise Conflict(
            f"{processor.name!r} and {processor.formerly!r} have both run, each by itself: leave formerly=... out, and "
            f"forget the old one if it is not needed: detent rm FILE --only {processor.formerly}"
        )
    _forget_marks(graph, processor.formerly, own.identity)


def _forget_marks(graph: OpenGraph, old: str, identity: str | None = None) -> None:
    """In all stores but the graph's own; only those of this processor, where that is to be told."""
    for store, kept in graph.marks(old):
        there = mark_in(kept)
        if identity is None or there is None or there.identity == identity:
            graph.stores[store].commit([kept.deleting()])


def _copy_mark(graph: OpenGraph, store: str, before: FencedRecord, new: str) -> None:
    """Under both fences, so that a process that does the same at this moment does not undo what was done since."""
    after = graph.record(new, store)
    there = mark_in(after)
    mark = before.open().checkpoint
    if mark is None:
        return
    if there is not None and there.identity != OutputMark.decode(mark).identity:
        raise Conflict(
            f"the store {store!r} has outputs of a {graph.plan.name}/{new} that is another one: its graph's store is "
            "another. Choose a name that is free there"
        )
    after.open([])
    graph.stores[store].commit([before.replacing(mark), after.replacing(mark)])


def _move_record(graph: OpenGraph, old: str, processor: Processor, *, is_paused: bool) -> None:
    """The record, with what was asked for under the old name and is still to be done: a reset, a pause."""
    before, after = graph.record(old), graph.record(processor.name)
    opened = before.open()
    if opened.checkpoint is None:
        return
    record = ProcessorRecord.decode(opened.checkpoint)
    generation = after.open(processor.own_inputs).generation
    if opened.generation > record.generation:
        record = reset_to(record, before.find(record.generation).resets, new_series())
    moved = msgspec.structs.replace(record, generation=generation)
    graph.store.commit(
        [
            before.replacing(opened.checkpoint),
            after.replacing(moved.encode()),
            PauseConsumer(after.consumer, is_paused),
            before.deleting(),
        ]
    )


# -- nothing left -----------------------------------------------------------------------------------------------------


def forget(graph: OpenGraph, name: str) -> None:
    """Delete a processor's record, and its marks in the stores that the graph names. `Conflict` while it runs, or while
    it owes something."""
    kept = graph.record(name)
    found = kept.describe()
    if found is None:
        raise NotFound(f"there is nothing to forget: the graph {graph.plan.name!r} has no progress of {name!r}")
    holder = found.states[0].holder
    membership = Membership(graph.store, kept.consumer, FORGETTING_MS)
    try:  # with the lease, no process begins while its marks go
        membership.free_dead(holder)
        membership.take()
    except Conflict as error:
        raise Conflict(f"{name!r} is run by {holder}: stop it first") from error
    try:
        _settle(graph, kept, name)
        for _, mark in graph.marks(name):
            mark.delete()
    except BaseException:
        membership.give_back()
        raise
    kept.delete()


def _settle(graph: OpenGraph, kept: FencedRecord, name: str) -> None:
    """Write a record that needs no marks, so that they can go first. `Conflict` if something is owed: only this record
    tells of it."""
    stored = kept.open().checkpoint
    if stored is None:
        return
    record = ProcessorRecord.decode(stored)
    owed, end = ([], 0) if record.attempt is None else (record.attempt.owed, record.attempt.end)
    for one in owed:
        if one.store not in graph.stores or given_to(graph.record(name, one.store)) < end:
            raise Conflict(
                f"{name!r} owes messages to {one.journal!r} in the store {one.store!r}: start it once, so that they "
                "get there, and forget it then"
            )
    record = msgspec.structs.replace(settled(record), given={})
    graph.store.commit([kept.replacing(record.encode())])
