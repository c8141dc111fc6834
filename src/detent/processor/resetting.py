"""Having a processor read its inputs again, and forgetting one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from detent.durations import since_1970_ms
from detent.errors import Conflict, Invalid, NotFound
from detent.processor.declaration import Processor
from detent.processor.place import Place
from detent.processor.records import Mark, Record
from detent.processor.recovery import moved
from detent.processor.runner import consumer_name, new_series
from detent.shard import operations as ops

if TYPE_CHECKING:
    from detent.processor.live import LiveGraph


def reset(live: LiveGraph, processor: Processor, to: str | int | Mapping[str, int], time: Any) -> dict[str, int]:
    """Move a processor's inputs. Whoever runs it is fenced, and goes on from there."""
    if not processor.inputs:
        raise Invalid(f"the source {processor.name!r} reads nothing: forget it, to have it asked from its beginning")
    consumer = consumer_name(live.graph.name, processor.name)
    wanted = {str(one): _offset(live, one, to, time) for one in processor.inputs}
    offsets = {one: offset for one, offset in wanted.items() if offset is not None}
    journals = [one.journal for one in processor.inputs if not one.store]
    register = ops.RegisterConsumer(consumer, 1, journals)
    opened: ops.ShardOpened = live.store.commit([register, ops.OpenShard(consumer, 0)])[1]
    if opened.checkpoint is None:
        raise NotFound(f"the processor {processor.name!r} never ran: it begins where its `start` says")
    record = Record.decode(opened.checkpoint)
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
        if name and store.commit([ops.DescribeConsumers(name=consumer)])[0].consumers:
            opened: ops.ShardOpened = store.commit([ops.OpenShard(consumer, 0)])[0]
            marks[name] = 0 if opened.checkpoint is None else Mark.decode(opened.checkpoint).number
    snapshot = moved(record.snapshot, offsets, new_series())
    snapshot = msgspec.structs.replace(snapshot, number=max([snapshot.number, *marks.values()]))
    return msgspec.structs.replace(record, snapshot=snapshot, given={})


def _offset(live: LiveGraph, place: Place, to: str | int | Mapping[str, int], time: Any) -> int | None:
    """From where an input is read on; None if it stays where it is."""
    if isinstance(to, Mapping):
        if str(place) not in to:
            return None
        to = to[str(place)]
    found = live.stores[place.store].reader.whereabouts(place.journal)
    first, end = (0, 0) if found is None else found[1:]
    if time is not None:
        if not isinstance(time, datetime):
            raise Invalid(f"time is a datetime with its zone, not {time!r}")
        return first if found is None else live.stores[place.store].reader.offset_at(place.journal, since_1970_ms(time))
    if to in {"earliest", "latest"}:
        return first if to == "earliest" else end
    if not isinstance(to, int) or isinstance(to, bool):
        raise Invalid(f"a reset goes to 'earliest', 'latest' or an offset, not to {to!r}")
    if not first <= to <= end:
        raise NotFound(f"{str(place)!r} has the offsets from {first} to {end}, and not {to}")
    return to


def forget(live: LiveGraph, name: str) -> None:
    """Delete a processor's record, and its marks in the stores that the graph names. `Conflict` while it runs, or while
    it owes something."""
    consumer = consumer_name(live.graph.name, name)
    found = live.store.commit([ops.DescribeConsumers(name=consumer)])[0].consumers
    if not found:
        raise NotFound(f"there is nothing to forget: the graph {live.graph.name!r} has no progress of {name!r}")
    if found[0].states[0].holder:
        raise Conflict(f"{name!r} is run by {found[0].states[0].holder}: stop it first")
    for store in live.stores.values():
        listed = store.commit([ops.DescribeConsumers(name=consumer)])[0].consumers
        if listed and store is not live.store:
            store.commit([ops.OpenShard(consumer, 0), ops.DeleteConsumer(consumer, force=True)])
    live.store.commit([ops.OpenShard(consumer, 0), ops.DeleteConsumer(consumer)])
