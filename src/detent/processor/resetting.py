"""Having a processor read its inputs again, and forgetting one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detent.durations import since_1970_ms
from detent.errors import Conflict, Fenced, Invalid, NotFound
from detent.processor.declaration import Processor
from detent.processor.place import Place, place
from detent.processor.records import Mark, Record
from detent.processor.recovery import moved, settled
from detent.processor.runner import consumer_name, journal_ids, new_series
from detent.processor.status import described, mark_of
from detent.shard import operations as ops
from detent.shard.members import has_died, new_member

if TYPE_CHECKING:
    from detent.processor.live import LiveGraph

FORGETTING_MS: Final = 60_000
"""How long nobody may begin a processor that is being forgotten."""

TRIES: Final = 10
"""A processor that is fenced, or that fails, starts over at once, and may take the fence back before it is reset."""


def reset(live: LiveGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Move a processor's inputs. Whoever runs it is fenced, and goes on from there."""
    if not processor.inputs:
        then = (
            "forget it, to have it asked from its beginning" if processor.runs else "it is a journal that others write"
        )
        raise Invalid(f"the source {processor.name!r} reads nothing: {then}")
    if isinstance(to, Mapping) and (unknown := sorted(set(to) - {str(one) for one in processor.inputs})):
        reads = ", ".join(map(str, processor.inputs))
        raise Invalid(f"{processor.name!r} does not read {', '.join(map(repr, unknown))}: it reads {reads}")
    if described(live.store, consumer_name(live.graph.name, processor.name)) is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    _offsets(live, processor, to, time)  # what cannot be is refused before anybody is fenced
    for _ in range(TRIES - 1):
        try:
            return _reset(live, processor, to, time)
        except Fenced:
            continue
    return _reset(live, processor, to, time)


def _offsets(live: LiveGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    wanted = {str(one): _offset(live, one, to, time) for one in processor.inputs}
    return {one: offset for one, offset in wanted.items() if offset is not None}


def _reset(live: LiveGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Take the fence, and write another record: what is "latest" is seen behind the fence, where nobody goes on
    meanwhile. `Fenced` if the processor was started in between."""
    consumer = consumer_name(live.graph.name, processor.name)
    journals = [one.journal for one in processor.inputs if not one.store]
    register = ops.RegisterConsumer(consumer, 1, journals)
    opened: ops.ShardOpened = live.store.commit([register, ops.OpenShard(consumer, 0)])[1]
    if opened.checkpoint is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    record = Record.decode(opened.checkpoint)
    offsets = _offsets(live, processor, to, time)
    missing = sorted(set(offsets) - set(record.snapshot.positions))
    if missing:
        raise Conflict(f"{processor.name!r} has not read {', '.join(missing)} so far: start it once, then reset it")
    record = _rebased(live, consumer, record, offsets)
    snapshot = record.snapshot
    processed = {journal: snapshot.positions[journal] for journal in journals if journal in snapshot.positions}
    live.store.commit([ops.CommitShard(consumer, 0, opened.fence, record.encode(), processed=processed)])
    return offsets


def _rebased(live: LiveGraph, consumer: str, record: Record, offsets: Mapping[str, int]) -> Record:
    """The record from other offsets on. Numbers never go back, so it also puts right what a store has lost: its mark
    is not behind, or ahead, of what comes next."""
    marks: dict[str, int] = {}
    for name, store in live.stores.items():
        if name and described(store, consumer) is not None:
            opened: ops.ShardOpened = store.commit([ops.OpenShard(consumer, 0)])[0]
            marks[name] = 0 if opened.checkpoint is None else Mark.decode(opened.checkpoint).number
    snapshot = moved(record.snapshot, offsets, new_series())
    snapshot = msgspec.structs.replace(
        snapshot,
        number=max([snapshot.number, *marks.values()]),
        journals={**snapshot.journals, **journal_ids(live.stores, map(place, offsets))},
    )
    return msgspec.structs.replace(record, snapshot=snapshot, given={})


def _offset(live: LiveGraph, where: Place, to: str | int | Mapping[str, int], time: Any) -> int | None:
    """From where an input is read on; None if it stays where it is."""
    if isinstance(to, Mapping):
        if str(where) not in to:
            return None
        to = to[str(where)]
    found = live.stores[where.store].reader.whereabouts(where.journal)
    first, end = (0, 0) if found is None else found[1:3]
    if time is not None:
        if not isinstance(time, datetime):
            raise Invalid(f"time is a datetime with its zone, not {time!r}")
        return first if found is None else live.stores[where.store].reader.offset_at(where.journal, since_1970_ms(time))
    if to in {"earliest", "latest"}:
        return first if to == "earliest" else end
    if not isinstance(to, int) or isinstance(to, bool):
        raise Invalid(f"a reset goes to 'earliest', 'latest' or an offset, not to {to!r}")
    if not first <= to <= end:
        raise NotFound(f"{str(where)!r} has the offsets from {first} to {end}, and not {to}")
    return to


def forget(live: LiveGraph, name: str) -> None:
    """Delete a processor's record, and its marks in the stores that the graph names. `Conflict` while it runs, or while
    it owes something."""
    consumer = consumer_name(live.graph.name, name)
    found = described(live.store, consumer)
    if found is None:
        raise NotFound(f"there is nothing to forget: the graph {live.graph.name!r} has no progress of {name!r}")
    holder = found.states[0].holder
    if holder and has_died(holder):
        live.store.commit([ops.ReleaseShards(consumer, holder)])
    member = new_member()
    try:  # with the lease, nobody begins while its marks go
        live.store.commit([ops.LeaseShard(consumer, 0, member, FORGETTING_MS)])
    except Conflict as error:
        raise Conflict(f"{name!r} is run by {holder}: stop it first") from error
    try:
        _settle(live, consumer, name)
        for store in live.stores.values():
            if store is not live.store and described(store, consumer) is not None:
                store.commit([ops.OpenShard(consumer, 0), ops.DeleteConsumer(consumer, force=True)])
    except BaseException:
        live.store.commit([ops.ReleaseShards(consumer, member)])
        raise
    live.store.commit([ops.OpenShard(consumer, 0), ops.DeleteConsumer(consumer, force=True)])


def _settle(live: LiveGraph, consumer: str, name: str) -> None:
    """Write a record that needs no marks, so that they can go first. `Conflict` if something is owed, which nobody else
    knows."""
    opened: ops.ShardOpened = live.store.commit([ops.OpenShard(consumer, 0)])[0]
    if opened.checkpoint is None:
        return
    record = Record.decode(opened.checkpoint)
    owed, end = ([], 0) if record.attempt is None else (record.attempt.owed, record.attempt.end)
    for one in owed:
        store = live.stores.get(one.store)
        if store is None or mark_of(store, consumer) < end:
            raise Conflict(
                f"{name!r} owes messages to {one.journal!r} in the store {one.store!r}: start it once, so that they "
                "get there, and forget it then"
            )
    record = msgspec.structs.replace(settled(record), given={})
    live.store.commit([ops.CommitShard(consumer, 0, opened.fence, record.encode())])
