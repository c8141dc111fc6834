"""Processors that have another name than before: their progress goes with them, and is never left behind unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detent.errors import Conflict, Fenced, NotFound
from detent.processor.declaration import Processor
from detent.processor.records import Record
from detent.processor.runner import consumer_name
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
        if processor.name in known and known[processor.name][1] is not None:
            if processor.formerly in known:  # it died between taking over and forgetting
                _finish(live, processor, known[processor.name][1], known[processor.formerly][1])
            continue
        if processor.formerly in known:
            assert processor.formerly is not None
            _move(live, processor.formerly, processor)
            continue
        for name, (_, record) in known.items():
            if name not in declared and record is not None and _is_alike(record, processor):
                lost = f"there is no progress of {processor.formerly!r}. " if processor.formerly else ""
                raise Conflict(
                    f"{lost}{processor.name!r} is new, and reads what {name!r} has read, which the graph does not have "
                    f"any more. If it is the same one, say formerly={name!r}; if not, forget the old one: detent graph "
                    f"reset ... {name} --forget"
                )


def _is_alike(record: Record, processor: Processor) -> bool:
    return bool(processor.inputs) and record.shape.inputs == [str(one) for one in processor.inputs]


def _move(live: LiveGraph, old: str, processor: Processor) -> None:
    """First the other stores, then the graph's own: until that commit, the old name has everything, and this can be
    done again."""
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
                _copy(store, before, after, [])
        _copy(live.store, before, after, journals)
    except (Fenced, NotFound) as error:
        raise Conflict(f"another process makes {old!r} {processor.name!r} at this moment: start again") from error
    _forget(live, before)


def _finish(live: LiveGraph, processor: Processor, record: Record | None, old: Record | None) -> None:
    """Forget the old name, if it is the same processor's."""
    assert processor.formerly is not None
    if old is not None and record is not None and old.identity != record.identity:
        raise Conflict(
            f"{processor.name!r} and {processor.formerly!r} have both run, each by itself: leave formerly=... out, and "
            f"forget the old one if it is not needed: detent graph reset ... {processor.formerly} --forget"
        )
    _forget(live, consumer_name(live.graph.name, processor.formerly))


def _forget(live: LiveGraph, before: str) -> None:
    for store in reversed(list(live.stores.values())):  # the graph's own is the last
        if described(store, before) is not None:
            store.commit([ops.DeleteConsumer(before, force=True)])


def _copy(store: Store, before: str, after: str, journals: list[str]) -> None:
    """Under both fences, so that whoever does the same at this moment does not undo what was done since."""
    if described(store, before) is None:
        return
    old = store.commit([ops.OpenShard(before, 0)])[0]
    if old.checkpoint is None:
        return
    register = ops.RegisterConsumer(after, 1, journals)
    new = store.commit([register, ops.OpenShard(after, 0)])[1]
    checkpoint = old.checkpoint
    store.commit([ops.CommitShard(before, 0, old.fence, checkpoint), ops.CommitShard(after, 0, new.fence, checkpoint)])
