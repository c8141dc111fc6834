"""Queues made, changed and deleted; failed messages driven again; messages purged.

These are rare, and end their group with a checkpoint: so the state log never reaches over a change of settings.
"""

from __future__ import annotations

from functools import partial

from detent.codec import queue as records
from detent.codec.queue import Config
from detent.codec.statelog import Run
from detent.engine import ApplyContext, Done, Result
from detent.errors import Conflict, Exists, Invalid, LimitExceeded, NotFound
from detent.queue import assigning
from detent.queue import operations as ops
from detent.queue.filters import Filter
from detent.queue.holdings import LIVE
from detent.queue.housekeeping import COLLECT_RECORDS, forget_keys
from detent.queue.memory import QueueMemory
from detent.queue.moving import headers_of, there_already
from detent.queue.settings import changed, group_of, new_config, priority_of
from detent.queue.state import QueueState


def create(memory: QueueMemory, op: ops.CreateQueue, context: ApplyContext) -> Result:
    """A new queue: its settings, and its empty records."""
    ops.check_name(op.queue)
    known = memory.queues.get(op.queue)
    if known is not None:
        if op.exist_ok:
            context.idle += 1
            return ops.QueueCreated(known.number, False)
        raise Exists(f"there is a queue {op.queue!r} already; exist_ok takes it as it is, and configure changes it")
    if len(memory.queues) >= ops.QUEUES_MAX:
        raise LimitExceeded(f"there are {ops.QUEUES_MAX} queues already")
    name, number, undo = op.queue, memory.next_queue, context.undo
    config = new_config(name, number, context.now_ms, op.settings)
    _check_dead_letter(memory, op.settings)
    state = memory.new_state(name, config, _first_message(memory, op.earliest or config.paused, op.earliest))
    memory.next_queue += 1
    memory.queues[name] = memory.by_number[number] = state
    state.touched = True
    undo.append(partial(_uncreate, memory, state))
    memory.write(records.config_key(name), config.encode(), undo)
    memory.write(records.NEXT_QUEUE.raw, records.number_record(memory.next_queue), undo)
    memory.write(records.queue_key(records.ACTIVE, number, 0), records.EMPTY_ACTIVE, undo)
    memory.write(records.queue_key(records.FAILED, number, 0), records.EMPTY_ARRAY, undo)
    memory.write(records.empty_done_key(number), records.EMPTY_ARRAY, undo)
    _place(memory, state)
    memory.checkpoint_wanted = True
    return ops.QueueCreated(number, True)


def _first_message(memory: QueueMemory, behind: bool, earliest: bool) -> int:
    if not behind:
        return LIVE
    segments = memory.holdings.segments
    if earliest:
        return segments[0].start if segments else LIVE
    return memory.log_end


def _uncreate(memory: QueueMemory, state: QueueState) -> None:
    del memory.queues[state.name], memory.by_number[state.number]
    memory.behind.pop(state.number, None)
    memory.next_queue = state.number
    memory.router.remove(state)
    memory.note_behind()


def _place(memory: QueueMemory, state: QueueState) -> None:
    """A queue stands at the end of the log and takes part in publishes; or it is behind, and does not."""
    if state.next_message == LIVE and state.config.paused:
        state.next_message = memory.log_end
    if state.next_message == LIVE:
        memory.behind.pop(state.number, None)
        memory.router.add(state)
    else:
        memory.behind[state.number] = state
        memory.router.remove(state)
    state.touched = True
    memory.note_behind()


def _check_dead_letter(memory: QueueMemory, settings: ops.Settings) -> None:
    """A dead letter queue is there when it is named. It may be deleted later: then failed messages are kept."""
    if settings.dead_letter and settings.dead_letter not in memory.queues:
        raise NotFound(f"there is no queue {settings.dead_letter!r} that dead letters could go to; create it first")


def _alone(context: ApplyContext, what: str) -> None:
    if not context.last:
        raise Invalid(f"{what} stands alone in its transaction")


def configure(memory: QueueMemory, op: ops.ConfigureQueue, context: ApplyContext) -> Result:
    """Other settings. A queue that is paused stops reading the log; one that is not reads on from there."""
    _alone(context, "a change of settings")
    state = memory.queue(op.queue)
    if op.expect_filter is not None and op.expect_filter != state.config.filter:
        raise Conflict(f"the filter of {op.queue!r} was changed meanwhile: look at it again")
    config = changed(op.queue, state.config, op.settings)
    _check_dead_letter(memory, op.settings)
    if (config.group_header, config.group_fair) != (state.config.group_header, state.config.group_fair):
        state = _regrouped(memory, state, config)
    state.config = config
    state.reconfigured()
    state.generation = config.generation
    memory.write(records.config_key(op.queue), config.encode(), None)
    memory.housekeeper.done_due.add(state.number)
    _place(memory, state)
    memory.checkpoint_wanted = True
    return Done()


def _regrouped(memory: QueueMemory, state: QueueState, config: Config) -> QueueState:
    """An empty queue goes on as one with groups, with others, or without."""
    if state.available or state.flights or state.failed:
        raise Invalid(
            f"{state.name!r} holds messages, whose groups are by {state.config.group_header or 'no header'!r} and "
            "cannot change under them: create another queue, or empty this one"
        )
    memory.router.remove(state)
    new = memory.new_state(state.name, config, state.next_message)
    new.take_over(state)
    memory.queues[state.name] = memory.by_number[state.number] = new
    return new


def delete(memory: QueueMemory, op: ops.DeleteQueue, context: ApplyContext) -> Result:
    """A queue goes at once; its records go in steps."""
    _alone(context, "deleting a queue")
    state = memory.queue(op.queue)
    state.deleted = True
    del memory.queues[op.queue]
    memory.deleted[state.number] = state
    memory.behind.pop(state.number, None)
    memory.router.remove(state)
    assigning.forget_readers(memory, state)
    memory.write(records.config_key(op.queue), None, None)
    memory.write(records.deleted_key(state.number), state.config.encode(), None)
    memory.note_behind()
    memory.checkpoint_wanted = True
    return Done()


def set_dedup_window(memory: QueueMemory, op: ops.SetDedupWindow, context: ApplyContext) -> Result:
    """How long keys are held at least, from now on."""
    if op.window_ms > ops.DELAY_MS_MAX:
        raise LimitExceeded(f"a dedup window is at most {ops.DELAY_MS_MAX} ms")
    context.undo.append(partial(setattr, memory, "dedup_window_ms", memory.dedup_window_ms))
    memory.dedup_window_ms = op.window_ms
    memory.write(records.DEDUP_WINDOW.raw, records.number_record(op.window_ms), context.undo)
    return Done()


# -- failed messages, purges ------------------------------------------------------------------------------------


def redrive(memory: QueueMemory, op: ops.Redrive, context: ApplyContext) -> Result:
    """Failed messages become available again, behind all others, as if never tried.

    A dead letter that stays in its queue still tells where it came from. In another queue it is a message like those
    that were published there.
    """
    _alone(context, "a redrive")
    source = memory.queue(op.queue)
    target = source if op.to is None else memory.queue(op.to)
    wanted = None if op.filter is None else Filter(op.filter)
    if op.messages is not None:
        missing = [message for message in op.messages if message not in source.failed]
        if missing:
            raise NotFound(f"message {missing[0]} is not among the failed ones of {op.queue!r}")
        step = sorted(set(op.messages))
    else:
        step = sorted(message for message in source.failed if message > op.after)
    more = len(step) > ops.STEP_MESSAGES
    step = step[: ops.STEP_MESSAGES]
    after = step[-1] if step else op.after
    headers: dict[int, dict[str, str]] = {}
    if wanted is not None or target is not source or target.config.group_header:
        headers = headers_of(memory, [(message, source.failed[message].offset) for message in step])
    if wanted is not None:
        step = [message for message in step if wanted.matches(headers[message])]
    if target is not source:
        there = there_already(memory, target, step)
        if there and op.messages is not None:
            raise Exists(f"message {min(there)} is in {op.to!r} already, or {op.to!r} has yet to read of it")
        step = [message for message in step if message not in there]
    if not step:
        context.idle += 1
        return ops.Moved(0, after, more)
    for failed in source.drop_failed(step, None):
        if target is not source:
            source.forget_origin(failed.message, None)
        run = Run(failed.message, 1, failed.offset, failed.record_count, context.now_ms, failed.deadline_ms)
        about = headers.get(failed.message, {})  # they were not asked for if nothing depends on them
        priority = failed.priority if target is source else priority_of(target.config, about)
        target.route(run, priority, context.now_ms, None, group_of(target.config, about))
    memory.checkpoint_wanted = True
    return ops.Moved(len(step), after, more)


def purge(memory: QueueMemory, op: ops.Purge, context: ApplyContext) -> Result:
    """Messages go for good. What is in flight stays with its holder, unless the operation says otherwise; what is
    assigned to a reader stays in any case."""
    _alone(context, "a purge")
    state = memory.queue(op.queue)
    below = memory.log_end if op.below < 0 else op.below
    keys = 0
    if op.in_flight and not op.available:
        raise Invalid("a purge of what is in flight is one of what is available, too: say available=True")
    if op.messages is not None:
        missing = [message for message in op.messages if message not in state.failed]
        if missing:
            raise NotFound(f"message {missing[0]} is not among the failed ones of {op.queue!r}")
        count = len(state.drop_failed(sorted(set(op.messages)), "purged"))
    else:
        if op.in_flight:
            leased = [message for message, flight in state.flights.items() if not flight[2].is_assigned]
            state.land([message for message in leased if message < below])
        count = _purge_available(state, below) if op.available else 0
        if op.failed and count < ops.STEP_MESSAGES:
            failed = sorted(message for message in state.failed if message < below)
            count += len(state.drop_failed(failed[: ops.STEP_MESSAGES], "purged"))
        if op.keys and count < ops.STEP_MESSAGES:
            with memory.reader.view() as view:
                keys = forget_keys(memory, state.number, view, below)
    if not count and not keys:
        context.idle += 1
        return ops.Moved(0, below)
    memory.checkpoint_wanted = True
    more = op.messages is None and (count >= ops.STEP_MESSAGES or keys >= COLLECT_RECORDS)
    return ops.Moved(count, below, more)


def _purge_available(state: QueueState, below: int) -> int:
    """Remove available messages below a number, bucket by bucket, until it is enough for one step."""
    count = 0
    for bucket in list(state.buckets.values()):
        places = [place for place in state.available_places(bucket) if bucket.messages[place % state.size] < below]
        state.remove(places, "purged")
        count += len(places)
        if count >= ops.STEP_MESSAGES:
            break
    return count
