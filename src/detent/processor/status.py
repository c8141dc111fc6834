"""How the processors of a graph are doing, as the store knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from detent.errors import Denied
from detent.processor.declaration import place
from detent.processor.inputs import is_other
from detent.processor.plan import OpenGraph, consumer_name, writes
from detent.processor.records import JournalId, OutputMark, ProcessorRecord, Totals
from detent.processor.tracing import latency_of
from detent.shard import operations as ops
from detent.stream.following import start_of
from detent.stream.membership import has_died
from detent.stream.record import FencedRecord


class InputStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far an input is read. `gone` is "recreated" if the journal that was read was deleted and another one has its
    name, all of whose messages are the lag then; "deleted" if there is none; otherwise empty."""

    journal: str
    position: int
    lag: int
    gone: str = ""


class ProcessorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One processor: who runs it, how far it is, and what became of its input sets.

    `status` is "running", "failed", "stopped", "died", or "new" for one that never ran. `owed` says how many
    messages other stores may not have yet. `latency` are the times from the sources to its outputs. `error` says
    what made it fail, or that an input is not the journal any more that it has read, also before it runs into that.
    """

    name: str
    kind: str
    status: str
    holder: str
    error: str
    epoch: int
    steps: int
    outputs: int
    errors: int
    nils: int
    owed: int
    inputs: list[InputStatus]
    latency: dict[str, Any]
    declared: bool = True
    """False for one that the graph does not have any more, whose progress is still there."""

    @property
    def lag(self) -> int:
        """Messages that it has not read."""
        return sum(one.lag for one in self.inputs)


def mark_in(record: FencedRecord) -> OutputMark | None:
    """What another store has of a processor: up to where its outputs are there. Changes nothing."""
    if record.describe() is None:
        return None
    found = record.find().checkpoint
    return None if found is None else OutputMark.decode(found)


def given_to(record: FencedRecord) -> int:
    """Up to which number a store has a processor's outputs."""
    mark = mark_in(record)
    return 0 if mark is None else mark.number


def records(graph: OpenGraph) -> dict[str, tuple[ops.ShardDescription, ProcessorRecord | None]]:
    """What the store has of all processors of a graph, by name, also of those that are not declared any more."""
    prefix = consumer_name(graph.plan.name, "")
    found: dict[str, tuple[ops.ShardDescription, ProcessorRecord | None]] = {}
    for consumer in _consumers(graph, prefix):
        stored = FencedRecord(graph.store, consumer.name).find().checkpoint
        record = None if stored is None else ProcessorRecord.decode(stored)
        found[consumer.name.removeprefix(prefix)] = (consumer.states[0], record)
    return found


def _consumers(graph: OpenGraph, prefix: str) -> Iterator[ops.ConsumerDescription]:
    """All that the store keeps of a graph; or, for who may not list what is in the store, of the processors that the
    graph names."""
    after, more = "", True
    try:
        while more:
            page = graph.store.commit([ops.DescribeConsumers(prefix, after)])[0]
            yield from page.consumers
            after, more = page.consumers[-1].name if page.consumers else "", page.more
    except Denied:
        names = [name for one in graph.plan.processors for name in (one.name, one.formerly) if name and one.runs]
        for name in names:
            known = graph.record(name).describe()
            if known is not None:
                yield known


def statuses(graph: OpenGraph, *, latency: bool = True) -> list[ProcessorStatus]:
    """All processors that run, in their order, and then those that are not declared any more."""
    found = records(graph)
    declared = [one.name for one in graph.plan.in_order() if one.runs]
    gone = sorted(set(found) - set(declared))
    nothing: tuple[ops.ShardDescription | None, ProcessorRecord | None] = (None, None)
    return [
        _status(graph, name, *(found.get(name) or nothing), declared=name in declared, latency=latency)
        for name in [*declared, *gone]
    ]


def _status(
    graph: OpenGraph,
    name: str,
    shard: ops.ShardDescription | None,
    record: ProcessorRecord | None,
    *,
    declared: bool,
    latency: bool,
) -> ProcessorStatus:
    inputs = _inputs(graph, _positions(graph, name, record, declared=declared), _journals(shard, record))
    said, error = _said(shard, record), _what_is_gone(name, inputs)
    if error and said in {"starting", "running"}:
        said = "failed"  # it is about to notice
    if not error and shard is not None and said == "failed":
        error = shard.error
    totals = Totals() if record is None else record.totals
    kind = graph.plan.processor(name).kind if declared else ("" if record is None else record.shape.kind)
    outputs = writes(graph.plan.processor(name), None) if declared else []
    took = {str(one): latency_of(graph.stores, one) for one in outputs} if latency else {}
    return ProcessorStatus(
        name=name,
        kind=kind,
        status=said,
        holder="" if shard is None else shard.holder,
        error=error,
        epoch=0 if record is None else record.epoch,
        steps=totals.steps,
        outputs=totals.outputs,
        errors=totals.errors,
        nils=totals.nils,
        owed=0 if record is None or record.attempt is None else sum(len(one.bodies) for one in record.attempt.owed),
        inputs=inputs,
        latency={where: msgspec.to_builtins(one) for where, one in took.items() if one is not None},
        declared=declared,
    )


def _said(shard: ops.ShardDescription | None, record: ProcessorRecord | None) -> str:
    if shard is None or record is None:
        return "new"
    if not shard.holder:
        return "stopped"
    return "died" if has_died(shard.holder) else shard.status or "running"


def _positions(graph: OpenGraph, name: str, record: ProcessorRecord | None, *, declared: bool) -> dict[str, int]:
    """How far a processor is; for one that never ran, where it would begin."""
    if record is not None:
        return record.snapshot.positions
    if not declared:
        return {}
    processor = graph.plan.processor(name)
    readers = {one: graph.stores[one.store].reader for one in processor.inputs}
    return {str(one): start_of(reader, one.journal, processor.start)[0] for one, reader in readers.items()}


def _journals(shard: ops.ShardDescription | None, record: ProcessorRecord | None) -> dict[str, JournalId]:
    """Which journals a processor has read, without those that it is to read from elsewhere when it begins again."""
    if shard is None or record is None:
        return {}
    resets = shard.resets if shard.generation > record.generation else {}
    return {name: one for name, one in record.snapshot.journals.items() if name not in resets}


def _inputs(graph: OpenGraph, positions: dict[str, int], known: dict[str, JournalId]) -> list[InputStatus]:
    return [_input(graph, name, position, known.get(name)) for name, position in positions.items()]


def _input(graph: OpenGraph, name: str, position: int, known: JournalId | None) -> InputStatus:
    where = place(name)
    store = graph.stores.get(where.store)
    if store is None:
        return InputStatus(journal=name, position=position, lag=0)
    found = store.reader.whereabouts(where.journal)
    is_gone = is_other(store.reader, where.journal, found, known, position)
    gone = "" if not is_gone else "deleted" if found is None else "recreated"
    if found is None:
        return InputStatus(journal=name, position=position, lag=0, gone=gone)
    start = found.first_offset if gone else position
    return InputStatus(journal=name, position=position, lag=max(0, found.next_offset - start), gone=gone)


def _what_is_gone(name: str, inputs: list[InputStatus]) -> str:
    """What to say of an input that is not the journal that was read, and what to do."""
    for one in inputs:
        if one.gone == "recreated":
            return (
                f"the input {one.journal!r} was deleted and made anew after it was read to {one.position}: to read the "
                f"new one, reset the processor (detent reset FILE --only {name})"
            )
        if one.gone:
            return f"the input {one.journal!r} was deleted after it was read to {one.position}"
    return ""
