"""Looking at queues: descriptions, failed messages, where a message is. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from detent.codec import published
from detent.codec import queue as records
from detent.codec.origin import Origin
from detent.engine import Context, Result
from detent.errors import Invalid, LimitExceeded
from detent.kv import View
from detent.queue import operations as ops
from detent.queue.bucket import BLOCKED, HIDDEN, READY
from detent.queue.memory import QueueMemory
from detent.queue.moving import history, origin_of
from detent.queue.settings import settings_of
from detent.queue.state import QueueState

MESSAGE_MAX: Final = (1 << 62) - 1
FAILED_MAX: Final = 1_000
"""Failed messages in one answer."""

FAILED_TEXT_MAX: Final = 4 << 20
"""Bytes of reasons and consumers after which a list of failed messages ends early: one message can have 100 KiB of
them, and the owner makes the list while every caller waits."""

TRIED_BYTES: Final = 32
"""What the times and lengths of an attempt add to its words."""

DONE_RECORDS_SEARCHED: Final = 1_000
DONE_MESSAGES_SEARCHED: Final = 1_000_000
"""Records of done messages, and about how many messages in them, that a search for one message looks through, newest
first. Everybody else waits meanwhile: a few milliseconds."""


def describe(memory: QueueMemory, op: ops.DescribeQueues, context: Context) -> Result:
    """Queues by name."""
    context.idle += 1
    if op.queue is not None:
        names = [memory.queue(op.queue).name]
    else:
        names = sorted(name for name in memory.queues if name.startswith(op.prefix))
        names = names[: op.limit] if op.limit else names
    with memory.reader.view() as view:
        found = [_describe(memory, memory.queues[name], view) for name in names]
    return ops.QueueDescriptions(found, memory.own.ready.get(0, 0), memory.dedup_window_ms)


def _describe(memory: QueueMemory, state: QueueState, view: View) -> ops.QueueDescription:
    return ops.QueueDescription(
        name=state.name,
        number=state.number,
        created_ms=state.config.created_ms,
        settings=settings_of(state.config),
        behind=state.number in memory.behind,
        available=sum(state.ready.values()),
        delayed=state.hidden,
        in_flight=len(state.flights),
        failed=len(state.failed),
        done_kept=state.done_kept,
        routed=state.routed,
        acked=state.acked,
        failures=state.failures,
        expired=state.expired,
        purged=state.purged,
        oldest_ms=_oldest_ms(memory, state, view),
        priorities=dict(sorted(state.ready.items())),
        blocked=state.blocked,
        blocked_delayed=state.blocked_until_later(memory.now_ms),
        dead_lettered=state.dead_lettered,
    )


def _oldest_ms(memory: QueueMemory, state: QueueState, view: View) -> int:
    """When the oldest message that can be claimed was received; 0 if there is none."""
    for number in sorted(state.buckets) if state.ready else ():
        bucket = state.buckets[number]
        row = bucket.states.find(READY)
        if row >= 0:
            offset = bucket.offsets[row]
            entry = memory.stored(memory.holdings.entry_key(bucket.messages[row] - offset), view)
            return 0 if entry is None else published.decode_metadata(entry)[offset].received_ms
    return 0


def list_failed(memory: QueueMemory, op: ops.ListFailed, context: Context) -> Result:
    """Failed messages, with the attempts that led there."""
    context.idle += 1
    state = memory.queue(op.queue)
    if not 1 <= op.limit <= FAILED_MAX:
        raise Invalid(f"a list has 1 to {FAILED_MAX} messages, not {op.limit}")
    messages = sorted(message for message in state.failed if message > op.after)
    entries: list[ops.FailedEntry] = []
    left = FAILED_TEXT_MAX
    with memory.reader.view() as view:
        for failed in (state.failed[message] for message in messages[: op.limit]):
            past = history(state, failed.message, view)
            moves = moves_of(origin_of(memory, state, failed.message, view))
            entries.append(
                ops.FailedEntry(
                    failed.message,
                    failed.message - failed.offset,
                    failed.failed_ms,
                    failed.attempts,
                    failed.priority,
                    failed.delivery,
                    failed.reason,
                    past,
                    moves,
                )
            )
            left -= _text(failed.reason, past) + sum(_text(move.reason, move.history) for move in moves)
            if left <= 0:
                break
    return ops.FailedMessages(entries, len(messages) > len(entries))


def _text(reason: str, attempts: Sequence[ops.Tried]) -> int:
    """About how many bytes a reason and attempts take in an answer."""
    return len(reason) + sum(TRIED_BYTES + len(consumer) + len(why) for _, consumer, _, why in attempts)


def find_message(memory: QueueMemory, op: ops.FindMessage, context: Context) -> Result:
    """Where a message is."""
    if not 0 <= op.message <= MESSAGE_MAX:
        raise Invalid(f"messages are numbered from 0 on, not {op.message}")
    if len(op.queues) > ops.QUEUES_MAX:
        raise LimitExceeded(f"a message is looked for in at most {ops.QUEUES_MAX} queues, not {len(op.queues)}")
    context.idle += 1
    named = [memory.queues[name] for name in dict.fromkeys(op.queues) if name in memory.queues]
    record, found = -1, []
    holders = memory.holdings.count(op.message)
    with memory.reader.view() as view:
        for state in named if op.queues else (memory.own, *memory.queues.values()):
            # Once all holders are found, no other queue has it.
            held = _find_held(memory, state, op.message, view) if holders else None
            if held is None:
                done = None if op.message >= memory.log_end else _find_done(state, op.message, view)
                found += [] if done is None else [done]
                continue
            holders -= 1
            record = op.message - held[0]
            if state is not memory.own:
                found.append(held[1])
    return ops.MessageFound(record, found)


def moves_of(origin: Origin) -> list[ops.DeadLetterMove]:
    """The moves of a dead letter as an answer has them."""
    return [ops.DeadLetterMove(*move[:-1], list(move.history)) for move in origin.moves]


def _find_held(memory: QueueMemory, state: QueueState, message: int, view: View) -> tuple[int, ops.MessageState] | None:
    """Its place in its record and its state, if the queue has the message."""
    moves = moves_of(origin_of(memory, state, message, view))
    failed = state.failed.get(message)
    if failed is not None:
        where = ops.MessageState(
            state.name,
            "failed",
            failed.attempts,
            failed.priority,
            failed.failed_ms,
            "",
            failed.reason,
            failed.delivery,
            history(state, message, view),
            moves,
        )
        return failed.offset, where
    place = state.place_of(message)
    if place is None:
        return None
    bucket, row = state.buckets[place // state.size], place % state.size
    flight = state.flights.get(message)
    name, at_ms, consumer, delivery = "available", bucket.visible[row], "", 0
    if flight is not None:
        _, delivery, grant = flight
        name, at_ms = ("assigned", grant.claimed_ms) if grant.is_assigned else ("in flight", grant.lease_ms)
        consumer = grant.consumer
    elif bucket.states[row] == HIDDEN:
        name = "delayed"
    elif bucket.states[row] == BLOCKED:
        name = "blocked"
    where = ops.MessageState(
        state.name,
        name,
        bucket.attempts[row],
        bucket.priorities[row],
        at_ms,
        consumer,
        "",
        delivery,
        history(state, message, view),
        moves,
    )
    return bucket.offsets[row], where


def _find_done(state: QueueState, message: int, view: View) -> ops.MessageState | None:
    """What the queue knows of a message that is done there: the newest of what it keeps is looked through."""
    if not state.done_kept:
        return None
    for index in np.flatnonzero(np.frombuffer(state.done_messages, "<u8") == np.uint64(message)).tolist():
        return ops.MessageState(state.name, "done", state.done_attempts[index], 0, state.done_times[index])
    start, end = records.queue_range(records.DONE, state.number)
    left = DONE_MESSAGES_SEARCHED
    for _, value in view.scan(start, end, reverse=True, limit=DONE_RECORDS_SEARCHED):
        table = records.decode_done(value)
        for row in table[table["message"] == np.uint64(message)].tolist():
            return ops.MessageState(state.name, "done", row[2], 0, row[1])
        left -= len(table)
        if left <= 0:
            break
    return None
