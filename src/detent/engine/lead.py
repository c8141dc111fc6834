"""Who commits next. A caller that finds no leader leads: it takes those who wait along and answers all of them.

The lead then goes to the first of those who came meanwhile; asynchronous callers, who have no thread to spare, are led
by a thread of the engine, or by an event loop that has offered itself. The order of changes below is such that an
interrupted leader (Ctrl-C can strike between any two steps) still has the lead until another thread has it, so that
`_heal` can pass it on and no caller waits for ever. An interrupt that hits even that is found by those who wait: a
leader whose thread is no longer in here does not lead.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from detent.engine.operation import Ticket
from detent.errors import Busy, Unavailable
from detent.runtime import thread

GROUP_TRANSACTIONS_MAX: Final = 1024
"""Bounds how long the first of a group waits for the last to be applied."""

GROUP_BYTES_MAX: Final = 8 << 20
"""LMDB's commits slow down beyond a few MiB; a group stops gathering here."""

WAITING_TRANSACTIONS_MAX: Final = 10_000
WAITING_BYTES_MAX: Final = 256 << 20
"""What may wait at once. A sync caller then waits for room; an asynchronous one is refused with `Busy`."""

ROOM_WAIT_S: Final = 30.0
WATCH_S: Final = 1.0
"""How long a caller waits before it looks whether a leader is still at work."""

CLOSE_WAIT_S: Final = 60.0

logger = logging.getLogger("detent.engine")

_COMMITTER: Final = object()

Schedule = Callable[[Callable[[], object]], None]
"""Has something run soon, and returns at once: `call_soon` of an event loop, made safe for any thread."""


class Lead:
    """The queue of waiting tickets, and the right to run the next group of them."""

    def __init__(self, run_group: Callable[[list[Ticket]], None], refuse: Callable[[], None] = lambda: None) -> None:
        self._run_group = run_group
        self._refuse = refuse
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self.waiting: deque[Ticket] = deque()
        self._waiting_bytes = 0
        self._leader: object | None = None
        self._group: list[Ticket] = []
        self._closed = False
        self._wakeup = threading.Semaphore(0)
        self._committer: thread.Thread | None = None
        self._call_soon: Schedule | None = None

    def commit(self, ticket: Ticket) -> None:
        """Return once the ticket is answered; leading, if it comes to that."""
        try:
            leads = self._join(ticket)
            if not leads:
                while not ticket.wait(WATCH_S):
                    self._check_leader()
                with self._lock:
                    leads = self._leader is ticket
            if leads:
                self._lead()
        except BaseException:
            self._heal_at_last(ticket)
            raise

    def submit(self, ticket: Ticket, *, always: bool = False) -> None:
        """Have the ticket answered through its callback; with `always` also one for which there is no room, or that
        comes of a group which is still under way when the engine closes."""
        with self._lock:
            if not always or self._leader is None:
                self._require_open()
            if self._full(ticket) and not always:
                raise Busy("too many transactions are waiting; wait for some answers, then send again")
            if self._call_soon is None:
                self._ensure_committer()
            self._enqueue(ticket)
            if self._leader is None:
                self._let_committer_lead()

    def lead_on(self, call_soon: Schedule | None) -> None:
        """Lead the groups of asynchronous callers there, and not in a thread of the engine; None is back to the thread.

        An event loop whose callers all wait for commits loses nothing by waiting for the disk itself, and saves two
        changes of thread for each group, each of which has to win Python's global lock from a busy loop.
        """
        with self._lock:
            self._call_soon = call_soon

    def close(self) -> None:
        """Refuse newcomers, wait for those who are under way, end the thread."""
        with self._lock:
            self._closed = True
            if not self._room.wait_for(lambda: self._leader is None, CLOSE_WAIT_S):
                logger.warning("a commit is still under way after %.0f s; the store closes", CLOSE_WAIT_S)
            committer = self._committer
        self._wakeup.release()
        if committer is not None and not committer.is_current:
            committer.join(CLOSE_WAIT_S)

    # -- joining ------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        self._refuse()
        if self._closed:
            raise Unavailable("this store was closed")

    def _join(self, ticket: Ticket) -> bool:
        """Take the lead, or a place in the queue. True for the lead."""
        leader = self._leader
        if isinstance(leader, Ticket) and leader.thread == ticket.thread:
            self._heal(leader)  # an earlier call of this very thread, which was struck before it could pass the lead on
        with self._lock:
            self._require_open()
            if self._leader is None:
                self._leader = ticket
                return True
            if self._full(ticket) and not self._room.wait_for(lambda: not self._full(ticket), ROOM_WAIT_S):
                raise Unavailable(f"the engine has been full for {ROOM_WAIT_S:.0f} s; nothing was applied")
            self._require_open()
            if self._leader is None:
                self._leader = ticket
                return True
            ticket.prepare_to_wait()
            self._enqueue(ticket)
            return False

    def _full(self, ticket: Ticket) -> bool:
        if not self.waiting:
            return False
        return len(self.waiting) >= WAITING_TRANSACTIONS_MAX or self._waiting_bytes + ticket.weight > WAITING_BYTES_MAX

    def _enqueue(self, ticket: Ticket) -> None:
        weight = ticket.weight  # first: an operation that cannot say how heavy it is must not be left in the queue
        self.waiting.append(ticket)
        self._waiting_bytes += weight

    # -- leading ------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        leader = self._leader
        self._group = group = [leader] if isinstance(leader, Ticket) and not leader.is_queued else []
        if self.waiting:
            self._gather(group)
        self._run_group(group)
        self._hand_over()

    def _gather(self, group: list[Ticket]) -> None:
        """Add the waiting tickets to the group, in order."""
        weight = group[0].weight if group else 0
        with self._lock:
            while self.waiting and len(group) < GROUP_TRANSACTIONS_MAX and weight < GROUP_BYTES_MAX:
                ticket = self.waiting[0]
                group.append(ticket)
                self._leave_queue()
                weight += ticket.weight
            self._room.notify_all()

    def _leave_queue(self) -> None:
        self._waiting_bytes -= self.waiting.popleft().weight

    def _hand_over(self) -> None:
        """Pass the lead to the first who waits, or lay it down. Only the last assignment takes it from this leader."""
        with self._lock:
            self._group = []
            successor = self.waiting[0] if self.waiting else None
            if successor is None:
                self._room.notify_all()
                self._leader = None
            elif successor.callback is None:
                successor.wake()
                self._leader = successor
            else:
                self._let_committer_lead()

    def _heal_at_last(self, ticket: Ticket) -> None:
        """Heal, however often that is interrupted too; the caller raises its own interrupt afterwards."""
        while True:
            try:
                return self._heal(ticket)
            except KeyboardInterrupt:
                continue

    def _check_leader(self) -> None:
        """Look whether the leader still leads: its thread must be somewhere below `commit`."""
        leader = self._leader
        if not isinstance(leader, Ticket):
            return
        frame = sys._current_frames().get(leader.thread)
        while frame is not None:
            if frame.f_code is Lead.commit.__code__:
                return
            frame = frame.f_back
        logger.warning("a thread was interrupted while it committed for others; they go on without it")
        self._heal(leader)

    def _heal(self, ticket: Ticket) -> None:
        """Its caller was interrupted. If it waits, it must never have to lead; if it leads, others must not suffer."""
        with self._lock:
            self._ensure_committer()
            if ticket.callback is None:
                ticket.callback = _is_left
            leads = self._leader is ticket
            if leads and self.waiting and self._group and self.waiting[0] is self._group[-1]:
                self._leave_queue()  # it was struck between the two halves of taking a ticket
        if leads:
            self._run_group(self._group)
            self._hand_over()

    # -- the engine's own thread --------------------------------------------------------------------------------

    def _ensure_committer(self) -> None:
        if self._committer is None:
            self._committer = thread.start("detent-committer", self._run_committer)

    def _let_committer_lead(self) -> None:
        """The caller holds the lock, and has the lead to give."""
        if self._call_soon is None or not self._leads_soon(self._call_soon):
            self._ensure_committer()
            self._wakeup.release()
        self._leader = _COMMITTER

    def _leads_soon(self, call_soon: Schedule) -> bool:
        try:
            call_soon(self._take_turn)
        except RuntimeError:  # that loop is closed
            self._call_soon = None
            return False
        return True

    def _take_turn(self) -> bool:
        """Lead a group, if it is the committer's turn."""
        with self._lock:
            leads = self._leader is _COMMITTER
        if leads:
            self._lead()
        return leads

    def _run_committer(self) -> None:
        while True:
            self._wakeup.acquire()
            if not self._take_turn() and self._closed:
                return


def _is_left(_: list[Ticket]) -> None:
    """The callback of a ticket whose caller has gone."""
