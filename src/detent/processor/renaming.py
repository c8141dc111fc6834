"""Processors that have another name than before: their progress goes with them, and is never left behind unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from detent import crash
from detent.errors import Conflict, Fenced, NotFound
from detent.processor.declaration import Processor
from detent.processor.records import Mark, Record
from detent.processor.recovery import reset_to
from detent.processor.runner import consumer_name, new_series
from detent.processor.shapes import written_by
from detent.processor.status import described, records
from detent.shard import operations as ops
from detent.shard.members import has_died

if TYPE_CHECKING:
    from detent.processor.live import LiveGraph
    from detent.store import Store


def take_over(live: LiveGraph, processors: Sequence[Processor]) -> None:
    """Move the progress of those that say what they were called. `Conflict` for one that looks renamed and does not say
    so: it would begin anew, and do everything again."""
    known = records(live)
    declared = {one.name for one in live.graph.processors}
    for processor in processors:
        own = known[processor.name][1] if processor.name in known else None
        if own is not None:
            if processor.formerly is not None:
                _finish(live, processor, own, known[processor.formerly][1] if processor.formerly in known else None)
            continue
        if processor.formerly in known:
            assert processor.formerly is not None
            _move(live, processor.formerly, processor)
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


def _move(live: LiveGraph, old: str, processor: Processor) -> None:
    """First the other stores, then the graph's own: until that commit, the old name has everything, and this can be
    done again; after it, nobody can go on under the old name."""
    before, after = consumer_name(live.graph.name, old), consumer_name(live.graph.name, processor.name)
    found = described(live.store, before)
    holder = "" if found is None else found.states[0].holder
    if holder and not has_died(holder):
        raise Conflict(
            f"{old!r} is run by {holder}, and {processor.name!r} takes over what it has done: stop that process first"
        )
    journals = [one.journal for one in processor.inputs if not one.store]
    try:
        for name, store in live.stores.items():
            if name:
                _copy_mark(store, name, before, after)
        crash.point("processor.renaming.after_marks")
        _move_record(live.store, before, after, journals)
    except (Fenced, NotFound) as error:
        raise Conflict(f"another process makes {old!r} {processor.name!r} at this moment: start again") from error
    crash.point("processor.renaming.after_record")
    _forget_marks(live, before)


def _finish(live: LiveGraph, processor: Processor, own: Record, old: Record | None) -> None:
    """Forget what other stores have under the old name, if it died before it had."""
    assert processor.formerly is not None
    if old is not None:
        raise Conflict(
            f"{processor.name!r} and {processor.formerly!r} have both run, each by itself: leave formerly=... out, and "
            f"forget the old one if it is not needed: detent graph reset ... {processor.formerly} --forget"
        )
    _forget_marks(live, consumer_name(live.graph.name, processor.formerly), own.identity)


def _forget_marks(live: LiveGraph, before: str, identity: str | None = None) -> None:
    """In all stores but the graph's own; only those of this processor, where that is to be told."""
    for name, store in live.stores.items():
        if not name or described(store, before) is None:
            continue
        there = _mark(store, before)
        if identity is None or there is None or there.identity == identity:
            store.commit([ops.DeleteConsumer(before, force=True)])


def _copy_mark(store: Store, name: str, before: str, after: str) -> None:
    """Under both fences, so that whoever does the same at this moment does not undo what was done since."""
    if described(store, before) is None:
        return
    there = _mark(store, after)
    old = store.commit([ops.OpenShard(before, 0)])[0]
    if old.checkpoint is None:
        return
    if there is not None and there.identity != Mark.decode(old.checkpoint).identity:
        raise Conflict(
            f"the store {name!r} has outputs of a {after.removeprefix('graph/')} that is another one: its graph's "
            "store is another. Choose a name that nobody has there"
        )
    new = store.commit([ops.RegisterConsumer(after, 1, []), ops.OpenShard(after, 0)])[1]
    mark = old.checkpoint
    store.commit([ops.CommitShard(before, 0, old.fence, mark), ops.CommitShard(after, 0, new.fence, mark)])


def _mark(store: Store, consumer: str) -> Mark | None:
    if described(store, consumer) is None:
        return None
    found: ops.ShardOpened = store.commit([ops.FindShard(consumer, 0)])[0]
    return None if found.checkpoint is None else Mark.decode(found.checkpoint)


def _move_record(store: Store, before: str, after: str, journals: list[str]) -> None:
    """The record, with what was asked for under the old name and is still to be done: a reset, a pause."""
    found = described(store, before)
    if found is None:
        return
    old: ops.ShardOpened = store.commit([ops.OpenShard(before, 0)])[0]
    if old.checkpoint is None:
        return
    record = Record.decode(old.checkpoint)
    new: ops.ShardOpened = store.commit([ops.RegisterConsumer(after, 1, journals), ops.OpenShard(after, 0)])[1]
    if old.generation > record.generation:
        asked: ops.ShardOpened = store.commit([ops.FindShard(before, 0, record.generation)])[0]
        record = reset_to(record, asked.resets, new_series())
    moved = msgspec.structs.replace(record, generation=new.generation)
    store.commit(
        [
            ops.CommitShard(before, 0, old.fence, old.checkpoint),
            ops.CommitShard(after, 0, new.fence, moved.encode()),
            ops.PauseConsumer(after, found.paused),
            ops.DeleteConsumer(before, force=True),
        ]
    )
