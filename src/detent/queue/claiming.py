"""Claims, and how they end: acknowledged, failed, extended, expired, or undone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from operator import itemgetter, sub

from detent.codec import statelog
from detent.codec.published import FOREVER
from detent.engine import ApplyContext, Done, Result
from detent.errors import Invalid, LimitExceeded, StaleReceipt
from detent.queue import moving
from detent.queue import operations as ops
from detent.queue.grant import OpenClaim
from detent.queue.holdings import Undo
from detent.queue.memory import QueueMemory
from detent.queue.places import picked
from detent.queue.settings import backoff_ms
from detent.queue.state import QueueState


def claim(memory: QueueMemory, op: ops.Claim, context: ApplyContext) -> Result:
    """Give out messages. An empty queue, or a paused one, gives none, and nothing is written for that."""
    state = memory.queue(op.queue)
    if not 1 <= op.count <= ops.CLAIM_MAX:
        raise Invalid(f"a claim is for 1 to {ops.CLAIM_MAX} messages, not {op.count}")
    ops.check_text(op.consumer, ops.CONSUMER_BYTES_MAX, "a consumer's label")
    length_ms = lease(state, op.lease_ms)
    lease_ms = context.now_ms + length_ms
    places: list[int] = []
    if state.ready and not state.config.paused:
        room = ops.IN_FLIGHT_MAX - len(state.flights)
        if room <= 0:
            raise LimitExceeded(f"{ops.IN_FLIGHT_MAX} messages of {op.queue!r} are in flight: acknowledge some first")
        places = state.choose(min(op.count, room))
    if not places:
        context.idle += 1
        return ops.ClaimedMessages(state.number, lease_ms, 0, [], [], [], b"", length_ms=length_ms)
    undo = None if context.last else context.undo
    first = memory.next_delivery
    memory.next_delivery += len(places)
    if undo is not None:
        undo.append(partial(setattr, memory, "next_delivery", first))
    step = statelog.encode_claimed(state.number, context.now_ms, lease_ms, first, op.consumer, places)
    memory.log_step(step, undo)
    messages, groups = state.grant(places, context.now_ms, lease_ms, first, op.consumer, undo)
    return ops.ClaimedMessages(
        state.number,
        lease_ms,
        first,
        messages,
        list(map(sub, messages, picked("offsets", groups))),
        picked("attempts", groups),
        bytes(picked("priorities", groups)),
        length_ms=length_ms,
        earlier=_earlier(state, messages),
    )


def _earlier(state: QueueState, messages: list[int]) -> list[int]:
    """How often each of these was claimed in other queues; empty if none was."""
    if not state.origins:
        return []
    counts = [state.origins.get(message, 0) for message in messages]
    return counts if any(counts) else []


def lease(state: QueueState, wanted_ms: int | None) -> int:
    """How long a lease lasts: what the consumer wants, up to the queue's maximum."""
    if wanted_ms is None:
        return state.config.lease_ms
    if wanted_ms < ops.LEASE_MS_MIN:
        raise Invalid(
            f"a lease lasts at least {ops.LEASE_MS_MIN} ms; to give a message back, fail it with a delay of 0"
        )
    return min(wanted_ms, state.config.lease_max_ms)


def check_receipts(memory: QueueMemory, op: ops.Ack | ops.Fail | ops.Extend, context: ApplyContext) -> QueueState:
    """The queue, if every receipt is current: the same delivery, and its lease not over."""
    count = len(op.messages)
    if count != len(op.deliveries) or not 1 <= count <= ops.CLAIM_MAX:
        raise Invalid(f"{count} messages with {len(op.deliveries)} delivery numbers: there are 1 to {ops.CLAIM_MAX}")
    state = memory.users_queue(op.queue)
    if state is None:
        raise StaleReceipt(f"no queue has the number {op.queue}: it was deleted, and its receipts with it")
    found = list(map(state.flights.get, op.messages))
    for message, delivery, flight in zip(op.messages, op.deliveries, found, strict=True):
        if flight is None or flight[1] != delivery or not context.now_ms < flight[2].lease_ms < FOREVER:
            raise StaleReceipt(_why_stale(state, message, delivery))
    if count > 1 and len(set(op.messages)) != count:
        raise Invalid("a message is named twice")
    return state


def _why_stale(state: QueueState, message: int, delivery: int) -> str:
    flight = state.flights.get(message)
    if flight is not None and flight[2].is_assigned:
        return (
            f"message {message} in {state.name!r} is assigned to the reader {flight[2].consumer!r}, and is done with "
            "its assignment alone; nothing was changed"
        )
    return (
        f"delivery {delivery} of message {message} in {state.name!r} is over: it was acknowledged, failed, or its "
        "lease expired; nothing was changed"
    )


def ack(memory: QueueMemory, op: ops.Ack, context: ApplyContext) -> Result:
    """Messages are done."""
    state = check_receipts(memory, op, context)
    undo = None if context.last else context.undo
    step = statelog.encode_ended(statelog.ACK, state.number, context.now_ms, 0, "", op.messages)
    memory.log_step(step, undo)
    state.ack(op.messages, context.now_ms, undo)
    memory.housekeeper.arm_done(memory.wheel, state, context.now_ms)
    return Done()


def fail(memory: QueueMemory, op: ops.Fail, context: ApplyContext) -> Result:
    """Attempts came to nothing: again later, or given up."""
    ops.check_text(op.reason, ops.REASON_BYTES_MAX, "a reason")
    if op.delay_ms is not None and op.delay_ms > ops.DELAY_MS_MAX:
        raise LimitExceeded(f"a delay of {op.delay_ms} ms is over the limit of {ops.DELAY_MS_MAX} ms")
    state = check_receipts(memory, op, context)
    undo = None if context.last else context.undo
    end_attempts(memory, state, op.messages, op.reason, op.delay_ms, op.final, context.now_ms, undo)
    return Done()


def extend(memory: QueueMemory, op: ops.Extend, context: ApplyContext) -> Result:
    """Leases last longer, or shorter, from now on."""
    state = check_receipts(memory, op, context)
    undo = None if context.last else context.undo
    length_ms = lease(state, op.lease_ms)
    lease_ms = context.now_ms + length_ms
    step = statelog.encode_ended(statelog.EXTEND, state.number, context.now_ms, lease_ms, "", op.messages)
    memory.log_step(step, undo)
    state.extend(op.messages, lease_ms, undo)
    return ops.LeaseExtended(lease_ms, length_ms)


def unclaim(memory: QueueMemory, op: ops.Unclaim, context: ApplyContext) -> Result:
    """What could not be handed over is as if it had not been claimed. The delivery numbers are used up: a receipt that
    turns up after all is stale."""
    state, messages = _still_held(memory, op, context)
    if state is None or not messages:
        context.idle += 1
        return Done()
    undo = None if context.last else context.undo
    memory.log_step(statelog.encode_unclaimed(state.number, context.now_ms, messages), undo)
    state.put_back(messages, context.now_ms, context.now_ms, undo)
    return Done()


def read_held(memory: QueueMemory, op: ops.ReadHeld, context: ApplyContext) -> Result:
    """Where the messages of current receipts are stored. What is over is left out, not refused: the rest of the claim
    is still its holder's."""
    context.idle += 1
    state, messages = _still_held(memory, op, context)
    if state is None:
        return ops.HeldMessages([], [])
    return ops.HeldMessages(messages, list(map(state.record_of, messages)), earlier=_earlier(state, messages))


def _still_held(
    memory: QueueMemory, op: ops.Unclaim | ops.ReadHeld, context: ApplyContext
) -> tuple[QueueState | None, list[int]]:
    """The queue, if there is one, and the messages whose receipts are current, each once."""
    count = len(op.messages)
    if count != len(op.deliveries) or not 1 <= count <= ops.CLAIM_MAX:
        raise Invalid(f"{count} messages with {len(op.deliveries)} delivery numbers: there are 1 to {ops.CLAIM_MAX}")
    state = memory.users_queue(op.queue)
    if state is None:
        return None, []
    current = [
        message
        for message, delivery in zip(op.messages, op.deliveries, strict=True)
        if (flight := state.flights.get(message)) is not None
        and flight[1] == delivery
        and context.now_ms < flight[2].lease_ms < FOREVER
    ]
    return state, list(dict.fromkeys(current))


def expire_leases(memory: QueueMemory, grants: Iterable[OpenClaim], now_ms: int) -> None:
    """Leases are over: what is still held under them returns, or was given up.

    Dead letters come to their queue in the order in which the leases ended, and of those that ended together in the
    order in which they were claimed.
    """
    once = dict.fromkeys(grants)  # the wheel may name one twice
    over = [grant for grant in once if grant.held and grant.lease_ms <= now_ms and grant.queue in memory.by_number]
    states = [memory.by_number[grant.queue] for grant in over]
    if not any(state.config.dead_letter for state in states):
        for state, grant in zip(states, over, strict=True):
            _expire(memory, state, list(grant.held), now_ms, grant.lease_ms)
        return
    held = [
        (grant.lease_ms, state.flights[message][1], grant.queue, message)
        for state, grant in zip(states, over, strict=True)
        for message in grant.held
    ]
    for (ended_ms, number), group in groupby(sorted(held), itemgetter(0, 2)):
        messages = [message for _, _, _, message in group]
        _expire(memory, memory.by_number[number], messages, now_ms, ended_ms)


def _expire(memory: QueueMemory, state: QueueState, messages: list[int], now_ms: int, ended_ms: int) -> None:
    end_attempts(memory, state, messages, ops.EXPIRED_REASON, None, False, now_ms, None, ended_ms)


def end_attempts(
    memory: QueueMemory,
    state: QueueState,
    messages: list[int],
    reason: str,
    delay_ms: int | None,
    final: bool,
    now_ms: int,
    undo: Undo | None,
    ended_ms: int | None = None,
) -> None:
    """Sort failed attempts into those that are tried again, each group after its delay, and those that are not.

    The delay counts from `ended_ms`, or from now: a lease that ended while the store was closed has waited already.
    """
    config = state.config
    most = config.max_attempts or ops.ATTEMPTS_MAX + 1  # no limit: the count stops there, and the tries go on
    groups: dict[int | None, list[int]] = {}
    for message in messages:
        attempts = state.attempts_of(message)
        if final or attempts >= most:
            groups.setdefault(None, []).append(message)
        else:
            delay = backoff_ms(config, attempts) if delay_ms is None else delay_ms
            groups.setdefault(max(now_ms, (now_ms if ended_ms is None else ended_ms) + delay), []).append(message)
    for visible_ms, group in groups.items():
        if visible_ms is None:
            moving.give_up(memory, state, group, reason, now_ms, undo)
            continue
        step = statelog.encode_ended(statelog.RETURN, state.number, now_ms, visible_ms, reason, group)
        memory.log_step(step, undo)
        for message in group:
            state.give_back(message, now_ms, visible_ms, reason, now_ms, undo)
