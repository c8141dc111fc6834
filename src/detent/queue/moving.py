"""Messages that go from one queue to another: those that were given up go to the dead letter queue, if there is one;
failed ones can be redriven anywhere. The hold goes along; body and metadata stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from detent.codec import published, statelog
from detent.codec import queue as records
from detent.codec.origin import NOWHERE, Move, OriginRecord
from detent.codec.published import FOREVER
from detent.codec.queue import AttemptRecord
from detent.codec.statelog import Run
from detent.kv import View
from detent.queue.holdings import Undo
from detent.queue.memory import QueueMemory
from detent.queue.settings import group_of, priority_of
from detent.queue.state import QueueState

Moves = Sequence[tuple[int, int, bytes | None]]
"""Messages, each with the priority and the group that it gets where it goes."""


def give_up(
    memory: QueueMemory, state: QueueState, messages: list[int], reason: str, now_ms: int, undo: Undo | None
) -> None:
    """Attempts are used up. What the dead letter queue can take goes there; all else has failed here.

    Dead letters are available where they go to, and nothing is given up there in the same step: so queues that are each
    other's dead letter queues hand a message to and fro, but never within one step.
    """
    wanted = "" if state.deleted else state.config.dead_letter
    target = memory.queues.get(wanted) if wanted else None
    there = set(messages) if target is None else there_already(memory, target, messages)
    going = [message for message in messages if message not in there]
    if target is not None and going:
        headers = headers_of(memory, [(message, state.offset_of(message)) for message in going])
        moves = [(message, *_standing(target, headers[message])) for message in going]
        earlier = _write_origins(memory, state, target, going, reason, now_ms, undo)
        memory.log_step(statelog.encode_moved(state.number, now_ms, target.number, moves), undo)
        move(state, target, now_ms, moves, earlier, now_ms, undo)
    staying = [message for message in messages if message in there]
    if staying:
        memory.log_step(statelog.encode_ended(statelog.FAIL, state.number, now_ms, 0, reason, staying), undo)
        for message in staying:
            state.fail(message, now_ms, reason, undo)


def _write_origins(
    memory: QueueMemory,
    state: QueueState,
    target: QueueState,
    messages: list[int],
    reason: str,
    now_ms: int,
    undo: Undo | None,
) -> dict[int, int]:
    """Write down where dead letters come from, in the commit that moves them. Answers how often each was claimed before
    it came to its new queue."""
    earlier: dict[int, int] = {}
    with memory.reader.view() as view:
        for message in messages:
            _, delivery, grant = state.flights[message]
            past = history(state, message, view) if state.attempts_of(message) > 1 else []
            tries = (*past, AttemptRecord(grant.claimed_ms, grant.consumer, now_ms, reason))
            last = Move(0, state.name, state.number, now_ms, state.attempts_of(message), delivery, reason, tries)
            origin = origin_of(memory, state, message, view).moved(last)
            memory.write(records.queue_key(records.ORIGIN, target.number, message), origin.encode(), undo)
            earlier[message] = origin.earlier
    return earlier


def history(state: QueueState, message: int, view: View) -> list[AttemptRecord]:
    """The attempts of a message that came to nothing: stored ones, and those since the last checkpoint."""
    stored = None
    if message not in state.old_attempts:
        stored = view.get(records.queue_key(records.ATTEMPTS, state.number, message))
    known = [] if stored is None else records.decode_attempts(stored)
    return [*known, *state.new_attempts.get(message, ())]


def origin_of(memory: QueueMemory, state: QueueState, message: int, view: View) -> OriginRecord:
    """Where a message of a queue came from, if it came as a dead letter."""
    if message not in state.origins:
        return NOWHERE
    stored = memory.stored(records.queue_key(records.ORIGIN, state.number, message), view)
    return NOWHERE if stored is None else OriginRecord.decode(stored)


def move(
    source: QueueState,
    target: QueueState,
    at_ms: int,
    moves: Moves,
    earlier: Mapping[int, int],
    now_ms: int,
    undo: Undo | None,
) -> None:
    """Messages in flight leave their queue and come to another one, behind all others, as if never tried there.
    `earlier` says how often they were claimed before, of those whose record tells where they come from.

    The other queue's settings say how long it keeps them. A step that is replayed finds them as they were: a change of
    settings ends with a checkpoint.
    """
    kept_s = target.config.dead_letter_retention_s
    for message, priority, group in moves:
        gone = source.hand_over(message, at_ms, undo)
        deadline_ms = max(gone.deadline_ms, at_ms + kept_s * 1000) if kept_s else gone.deadline_ms
        # One whose retention ended while it was in flight is given to no queue: it goes with the next timer.
        visible_ms = FOREVER if deadline_ms < at_ms else at_ms
        run = Run(message, 1, gone.offset, gone.record_count, visible_ms, deadline_ms)
        target.route(run, priority, now_ms, undo, group)
        if message in earlier:
            target.note_origin(message, earlier[message], undo)


def _standing(target: QueueState, headers: dict[str, str]) -> tuple[int, bytes | None]:
    return priority_of(target.config, headers), group_of(target.config, headers)


def there_already(memory: QueueMemory, target: QueueState, messages: Iterable[int]) -> set[int]:
    """Those of some messages of another queue that the target has as well, or will read of by itself: a queue has a
    message once."""
    shared = [message for message in messages if memory.holdings.count(message) > 1]  # no other queue holds the others
    held = target.holds(np.array(shared, np.uint64)) if shared else set()
    held.update(message for message in messages if message >= target.next_message)
    return held


def headers_of(memory: QueueMemory, messages: Iterable[tuple[int, int]]) -> dict[int, dict[str, str]]:
    """The headers of messages, each given with its place in its record."""
    found: dict[int, dict[str, str]] = {}
    entries: dict[int, published.LogEntry] = {}
    with memory.reader.view() as view:
        for message, offset in messages:
            record = message - offset
            if record not in entries:
                stored = memory.stored(memory.holdings.entry_key(record), view)
                assert stored is not None, f"the metadata of message {message} is missing"
                entries[record] = published.decode_entry(stored)
            about = entries[record].at(offset)
            assert about is not None, f"message {message} is not in its entry"
            found[message] = about.headers
    return found
