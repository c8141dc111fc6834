"""Processors that have another name than before: their progress goes with them, and is never left behind unnoticed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from detent import crash
from detent.errors import Conflict, Fenced, NotFound
from detent.processor.declaration import Processor
from detent.processor.plan import OpenGraph
from detent.processor.records import Mark, Record
from detent.processor.recovery import reset_to, written_by
from detent.processor.runner import new_series
from detent.processor.status import mark_in, records
from detent.shard.operations import PauseConsumer
from detent.stream.members import has_died


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
                    f"the same one, say formerly={name!r}; if not, forget the old one: detent graph reset ... {name} "
                    "--forget"
                )


def _is_alike(record: Record, processor: Processor) -> bool:
    """Whether they read the same; or, of sources, which read nothing, whether they write the same."""
    if record.shape.inputs or processor.inputs:
        return record.shape.inputs == [str(one) for one in processor.inputs]
    return record.shape.outputs == written_by(processor)


def _move(graph: OpenGraph, old: str, processor: Processor) -> None:
    """First the other stores, then the graph's own: until that commit, the old name has everything, and this can be
    done again; after it, nobody can go on under the old name."""
    name = processor.name
    found = graph.record(old).describe()
    holder = "" if found is None else found.states[0].holder
    if holder and not has_died(holder):
        raise Conflict(f"{old!r} is run by {holder}, and {name!r} takes over what it has done: stop that process first")
    try:
        for store in graph.others():
            _copy_mark(graph, store, old, name)
        crash.point("processor.renaming.after_marks")
        if found is not None:
            _move_record(graph, old, processor, is_paused=found.paused)
    except (Fenced, NotFound) as error:
        raise Conflict(f"another process makes {old!r} {name!r} at this moment: start again") from error
    crash.point("processor.renaming.after_record")
    _forget_marks(graph, old)


def _finish(graph: OpenGraph, processor: Processor, own: Record, old: Record | None) -> None:
    """Forget what other stores have under the old name, if it died before it had."""
    assert processor.formerly is not None
    if old is not None:
        raise Conflict(
            f"{processor.name!r} and {processor.formerly!r} have both run, each by itself: leave formerly=... out, and "
            f"forget the old one if it is not needed: detent graph reset ... {processor.formerly} --forget"
        )
    _forget_marks(graph, processor.formerly, own.identity)


def _forget_marks(graph: OpenGraph, old: str, identity: str | None = None) -> None:
    """In all stores but the graph's own; only those of this processor, where that is to be told."""
    for store in graph.others():
        kept = graph.record(old, store)
        if kept.describe() is None:
            continue
        there = mark_in(kept)
        if identity is None or there is None or there.identity == identity:
            graph.stores[store].commit([kept.deleting()])


def _copy_mark(graph: OpenGraph, store: str, old: str, new: str) -> None:
    """Under both fences, so that a process that does the same at this moment does not undo what was done since."""
    before, after = graph.record(old, store), graph.record(new, store)
    if before.describe() is None:
        return
    there = mark_in(after)
    mark = before.open().checkpoint
    if mark is None:
        return
    if there is not None and there.identity != Mark.decode(mark).identity:
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
    record = Record.decode(opened.checkpoint)
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
