"""Times of a store that was written under a clock that was ahead: what leases and delays had left then, they have left.

Retention and dedup keys stay as they are recorded: what came under that clock is kept for so much longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from detent.codec import published
from detent.codec.published import FOREVER
from detent.kv import View
from detent.queue.bucket import AVAILABLE, Bucket
from detent.queue.state import QueueState

if TYPE_CHECKING:
    from detent.queue.machine import QueueMachine

Received = Callable[[int, int], int]
"""When a message was published, by its number and its place in its record."""


def set_back(machine: QueueMachine, by_ms: int, now_ms: int, view: View) -> None:
    """Have everything that waits end earlier; the next checkpoint, in the commit of the next group, writes it."""
    known: dict[int, int] = {}
    received = partial(_received_ms, machine, view, known)
    for state in machine.by_number.values():
        if not state.deleted:
            _leases(state, by_ms)
            for bucket in list(state.buckets.values()):
                _delays(state, bucket, by_ms, now_ms, received)
    machine.checkpoint_wanted = True


def _leases(state: QueueState, by_ms: int) -> None:
    """What is assigned to a reader has no end, and keeps it."""
    for grant in {flight[2] for flight in state.flights.values() if not flight[2].is_assigned}:
        state.wheel.cancel(grant.lease_ms, grant)
        grant.lease_ms = max(0, grant.lease_ms - by_ms)
        grant.claimed_ms = max(0, grant.claimed_ms - by_ms)
        state.wheel.add(grant.lease_ms, grant)
        state.touched = True
        for message in grant.held:
            state.buckets[state.flights[message][0] // state.size].dirty = True


def _delays(state: QueueState, bucket: Bucket, by_ms: int, now_ms: int, received: Received) -> None:
    """A back-off is set back. So is what is delayed since it was published, unless that was before the clock was ahead:
    then its time was right."""
    waits = np.isin(np.frombuffer(bucket.states, np.uint8), list(AVAILABLE))
    visible = np.frombuffer(bucket.visible, "<i8")
    changed = False
    for row in np.flatnonzero(waits & (visible > now_ms) & (visible != FOREVER)).tolist():
        if bucket.attempts[row] or received(bucket.messages[row], bucket.offsets[row]) > now_ms:
            bucket.visible[row] -= by_ms
            changed = True
    if changed:
        state.touched = bucket.dirty = True
        state.rearm_reveal(bucket)


def _received_ms(machine: QueueMachine, view: View, known: dict[int, int], message: int, offset: int) -> int:
    first = message - offset
    if first not in known:
        entry = view.get(machine.holdings.entry_key(first))
        known[first] = 0 if entry is None else published.decode_metadata(entry)[0].received_ms
    return known[first]
