"""Having a processor read its inputs again, and forgetting one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from detent.durations import since_1970_ms
from detent.errors import Conflict, Fenced, Invalid, NotFound
from detent.processor.declaration import Processor
from detent.processor.place import Place, place
from detent.processor.plan import OpenGraph
from detent.processor.records import Mark, Record
from detent.processor.recovery import moved, settled
from detent.processor.runner import journal_ids, new_series
from detent.processor.status import given_to
from detent.stream.membership import Membership
from detent.stream.record import FencedRecord

FORGETTING_MS: Final = 60_000
"""How long nobody may begin a processor that is being forgotten."""

TRIES: Final = 10
"""A processor that is fenced, or that fails, starts over at once, and may take the fence back before it is reset."""


def reset(graph: OpenGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Move a processor's inputs. Whoever runs it is fenced, and goes on from there."""
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
    """Take the fence, and write another record: what is "latest" is seen behind the fence, where nobody goes on
    meanwhile. `Fenced` if the processor was started in between."""
    kept, journals = graph.record(processor.name), processor.own_inputs
    opened = kept.open(journals)
    if opened.checkpoint is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    record = Record.decode(opened.checkpoint)
    offsets = _offsets(graph, processor, to, time)
    missing = sorted(set(offsets) - set(record.snapshot.positions))
    if missing:
        raise Conflict(f"{processor.name!r} has not read {', '.join(missing)} so far: start it once, then reset it")
    record = _rebased(graph, processor.name, record, offsets)
    snapshot = record.snapshot
    processed = {journal: snapshot.positions[journal] for journal in journals if journal in snapshot.positions}
    graph.store.commit([kept.replacing(record.encode(), processed=processed)])
    return offsets


def _rebased(graph: OpenGraph, name: str, record: Record, offsets: Mapping[str, int]) -> Record:
    """The record from other offsets on. Numbers never go back, so it also puts right what a store has lost: its mark
    is not behind, or ahead, of what comes next."""
    marks: dict[str, int] = {}
    for store in graph.others():
        kept = graph.record(name, store)
        if kept.describe() is not None:
            mark = kept.open().checkpoint
            marks[store] = 0 if mark is None else Mark.decode(mark).number
    snapshot = moved(record.snapshot, offsets, new_series())
    snapshot = msgspec.structs.replace(
        snapshot,
        number=max([snapshot.number, *marks.values()]),
        journals={**snapshot.journals, **journal_ids(graph.stores, map(place, offsets))},
    )
    return msgspec.structs.replace(record, snapshot=snapshot, given={})


def _offset(graph: OpenGraph, where: Place, to: str | int | Mapping[str, int], time: Any) -> int | None:
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
        for store in graph.others():
            mark = graph.record(name, store)
            if mark.describe() is not None:
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
    record = Record.decode(stored)
    owed, end = ([], 0) if record.attempt is None else (record.attempt.owed, record.attempt.end)
    for one in owed:
        if one.store not in graph.stores or given_to(graph.record(name, one.store)) < end:
            raise Conflict(
                f"{name!r} owes messages to {one.journal!r} in the store {one.store!r}: start it once, so that they "
                "get there, and forget it then"
            )
    record = msgspec.structs.replace(settled(record), given={})
    graph.store.commit([kept.replacing(record.encode())])
