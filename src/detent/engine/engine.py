"""The engine: one owner applies transactions in order, and makes those that wait together durable together.

A caller that finds the engine idle leads: it applies its own transaction and everybody's who waits, commits once, and
answers all of them. Whoever arrives meanwhile waits; when the leader is done it hands the lead to the first of those.
So one caller pays no thread switch, and a hundred callers share a sync.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Union

import msgspec

from detent import crash
from detent.engine.operation import Context, Done, Machine, Operation, Result
from detent.engine.request import Request, Ticket, refusal
from detent.engine.sessions import Sessions
from detent.errors import DetentError, Fenced, Invalid, LimitExceeded, Unavailable
from detent.kv import Batch, Writer

GROUP_TRANSACTIONS_MAX = 1024
"""Bounds how long the first of a group waits for the last to be applied."""

GROUP_BYTES_MAX = 8 << 20
"""LMDB's commits slow down beyond a few MiB; a group stops gathering here."""

WAITING_TRANSACTIONS_MAX = 10_000
WAITING_BYTES_MAX = 256 << 20
"""What may wait at once. A sync caller then waits for room; an asynchronous one is refused with `LimitExceeded`."""

ROOM_WAIT_S = 30.0
CLOSE_WAIT_S = 60.0

logger = logging.getLogger("detent.engine")


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Engine:
    """Applies transactions to the registered machines, over one kv writer."""

    def __init__(
        self,
        writer: Writer,
        machines: Sequence[Machine],
        *,
        now_ms: Callable[[], int] = wall_ms,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._writer = writer
        self._machines = tuple(machines)
        self._handlers = {kind: machine.handlers[kind] for machine in machines for kind in machine.operations}
        self._preparations = {kind: machine.prepare for machine in machines for kind in machine.prepared}
        self._wall_ms = now_ms
        self._random = random
        self._last_ms = 0
        self._sessions = Sessions()
        self._encode = msgspec.msgpack.Encoder().encode
        results = [kind for machine in machines for kind in machine.results]
        self._decode = msgspec.msgpack.Decoder(list[Union[tuple({Done, *results})]]).decode  # type: ignore[misc]  # noqa: UP007
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Ticket] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._fatal: Exception | None = None
        self._stale = True
        self._closed = False
        self._wakeup = threading.Semaphore(0)
        self._committer: threading.Thread | None = None
        self._committer_leads = False
        self.groups = 0
        self.transactions = 0
        self._load()

    @property
    def epoch(self) -> int:
        """The epoch of the writer below."""
        return self._writer.epoch

    def now_ms(self) -> int:
        """The engine's time: the wall clock's, but never back."""
        self._last_ms = max(self._last_ms, self._wall_ms())
        return self._last_ms

    def new_session(self) -> bytes:
        """A session for one client."""
        return self._sessions.new_session(self.now_ms(), self._random(8))

    # -- callers ------------------------------------------------------------------------------------------------

    def commit(self, request: Request) -> list[Result]:
        """Apply a transaction and return its results once they are durable."""
        request.check()
        self._prepare(request)
        return self._commit_ticket(Ticket(request))

    def _commit_ticket(self, ticket: Ticket) -> list[Result]:
        with self._lock:
            self._require_open()
            if self._busy:
                self._wait_for_room(ticket)
            leader = not self._busy
            if leader:
                self._busy = True
            else:
                ticket.prepare_to_wait()
                self._enqueue(ticket)
        if leader:
            self._lead(ticket)
            return ticket.outcome()
        try:
            ticket.wait()
        except BaseException:
            self._abandon(ticket)
            raise
        if ticket.promoted:
            self._lead(None)
        return ticket.outcome()

    def _abandon(self, ticket: Ticket) -> None:
        """The caller was interrupted while it waited. Its ticket stays in the queue, but must never have to lead."""
        with self._lock:
            ticket.callback = _nobody_waits
            leads, ticket.promoted = ticket.promoted, False
            self._ensure_committer()
            if leads:
                self._let_committer_lead()

    def is_prepared(self, operations: Sequence[Operation]) -> bool:
        """Whether these operations need slow checks first; then `submit` does not belong on an event loop."""
        preparations = self._preparations
        return any(type(operation) in preparations for operation in operations)

    def _prepare(self, request: Request) -> None:
        for operation in request.operations:
            prepare = self._preparations.get(type(operation))
            if prepare is not None:
                prepare(operation)

    def _ensure_committer(self) -> None:
        if self._committer is None:
            self._committer = threading.Thread(target=self._run_committer, name="detent-committer", daemon=True)
            self._committer.start()

    def submit(self, request: Request, callback: Callable[[Ticket], None], waiter: Any = None) -> None:
        """Apply a transaction in the background; the committing thread calls `callback` when it is done.

        `waiter` is the caller's own: the ticket carries it to the callback. Operations that need slow checks first
        belong to `commit`, in a thread: see `is_prepared`.
        """
        request.check()
        ticket = Ticket(request, callback, waiter)
        with self._lock:
            self._require_open()
            if self._full(ticket):
                raise LimitExceeded("too many transactions are waiting; wait for some answers, then send again")
            self._ensure_committer()
            self._enqueue(ticket)
            if not self._busy:
                self._busy = True
                self._let_committer_lead()

    def tick(self) -> None:
        """Do the housekeeping that is due. The owner calls this about once a second."""
        self._commit_ticket(Ticket(Request(b"", -1, 0, [Housekeeping()])))
        self._writer.maintain()

    def close(self) -> None:
        """Stop taking transactions, finish those under way, release the writer."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._room.wait_for(lambda: not self._busy, CLOSE_WAIT_S):
                logger.warning(
                    "a commit is still under way after %.0f s; the store is closed all the same", CLOSE_WAIT_S
                )
            committer = self._committer
        self._wakeup.release()
        if committer is not None and committer is not threading.current_thread():
            committer.join(CLOSE_WAIT_S)
        self._writer.close()

    # -- the queue of waiting tickets ---------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._fatal is not None:
            raise refusal(self._fatal)
        if self._closed:
            raise Unavailable("this store was closed")

    def _full(self, ticket: Ticket) -> bool:
        if not self._waiting:
            return False
        return len(self._waiting) >= WAITING_TRANSACTIONS_MAX or self._waiting_bytes + ticket.weight > WAITING_BYTES_MAX

    def _wait_for_room(self, ticket: Ticket) -> None:
        if self._full(ticket) and not self._room.wait_for(lambda: not self._full(ticket), ROOM_WAIT_S):
            raise Unavailable(f"the engine has been full for {ROOM_WAIT_S:.0f} s; nothing was applied")
        self._require_open()

    def _enqueue(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)
        self._waiting_bytes += ticket.weight

    def _gather(self, first: Ticket | None) -> list[Ticket]:
        """The next group: the leader's own ticket, then the waiting ones in order."""
        group = [] if first is None else [first]
        waiting = self._waiting
        if not waiting:
            return group
        weight = 0 if first is None else first.weight
        with self._lock:
            while waiting and len(group) < GROUP_TRANSACTIONS_MAX and weight < GROUP_BYTES_MAX:
                ticket = waiting.popleft()
                self._waiting_bytes -= ticket.weight
                weight += ticket.weight
                group.append(ticket)
            self._room.notify_all()
        return group

    def _lead(self, own: Ticket | None) -> None:
        """Run one group, then hand the lead on. `own` is the leader's ticket unless it stands in the queue."""
        try:
            self._run_group(self._gather(own))
        finally:
            with self._lock:
                successor = self._waiting[0] if self._waiting else None
                if successor is None:
                    self._busy = False
                    self._room.notify_all()
                elif successor.callback is None:
                    successor.promoted = True
                    successor.wake()
                else:
                    self._let_committer_lead()

    def _run_committer(self) -> None:
        """Leads for the asynchronous callers, who have no thread of their own to spare."""
        while True:
            self._wakeup.acquire()
            with self._lock:
                leads, self._committer_leads = self._committer_leads, False
            if leads:
                self._lead(None)
            elif self._closed:
                return

    def _let_committer_lead(self) -> None:
        """Hand the lead to the committer. The caller holds the lock, and has the lead to give."""
        self._committer_leads = True
        self._wakeup.release()

    # -- one group ----------------------------------------------------------------------------------------------

    def _run_group(self, group: list[Ticket]) -> None:
        try:
            self._apply_safely(group)
        except BaseException as error:
            # Whatever went wrong, nobody may be left waiting; the machines start over before the next group.
            self._stale = True
            if isinstance(error, Fenced):
                self._fatal = error
            for ticket in group:
                if ticket.error is None:
                    ticket.error = refusal(error)
            if not isinstance(error, DetentError):
                logger.exception("a group commit failed")
            if not isinstance(error, Exception):
                raise
        finally:
            self.transactions += len(group)
            crash.point("engine.group.before_answer")
            for ticket in group:
                if not ticket.promoted:
                    ticket.finish()

    def _apply_safely(self, group: list[Ticket]) -> None:
        """Apply a group. When something unforeseen happens in it, each transaction is tried by itself, so that only the
        one that caused it fails; what was durable already is found by its name and not repeated."""
        try:
            self._apply_group(group)
        except DetentError:
            raise
        except Exception:
            if len(group) == 1:
                raise
            logger.exception("a group failed; its transactions are tried one by one")
            for ticket in group:
                self._stale = True
                ticket.results = ticket.error = None
                try:
                    self._apply_group([ticket])
                except DetentError:
                    raise
                except Exception as error:  # noqa: BLE001 - it is this caller's, who gets it
                    ticket.error = refusal(error)
            self._stale = True

    def _apply_group(self, group: list[Ticket]) -> None:
        if self._fatal is not None:
            raise refusal(self._fatal)
        if self._stale:
            self._recover()
        now_ms = self.now_ms()
        changed = False
        for ticket in group:
            changed |= self._apply(ticket, now_ms)
        if not changed:
            return
        batch = Batch()
        for machine in self._machines:
            machine.flush(batch, now_ms)
        self._sessions.flush(batch, now_ms)
        if not batch:
            return
        crash.point("engine.group.before_commit")
        try:
            self._writer.commit(batch)
        except Unavailable as error:
            self._settle(group, error)
            return
        crash.point("engine.group.after_commit")
        self.groups += 1
        for machine in self._machines:
            machine.committed()

    def _apply(self, ticket: Ticket, now_ms: int) -> bool:
        """Apply one transaction in memory; a failed check takes back this one alone."""
        request = ticket.request
        if request.sequence < 0:
            return self._keep_house(ticket, now_ms)
        context = Context(now_ms, last=len(request.operations) == 1)
        try:
            known = self._sessions.find(request)
            if known is not None:
                ticket.results = self._decode(known)
                return True  # it may belong to this very group: answered only after the commit
            results = []
            for operation in request.operations:
                handler = self._handlers.get(type(operation))
                if handler is None:
                    raise Invalid(f"this store knows no operation {type(operation).__name__}")
                results.append(handler(operation, context))
            ticket.results = results
            self._sessions.record(request, self._encode(results), now_ms)
        except DetentError as error:
            context.rollback()
            ticket.results = None
            ticket.error = error
            return False
        return True

    def _keep_house(self, ticket: Ticket, now_ms: int) -> bool:
        """The engine's own operations have no client who could ask again, so no answer is stored."""
        self._sessions.expire(now_ms)
        changed = self._sessions.dirty
        for machine in self._machines:
            for operation in machine.due(now_ms):
                context = Context(now_ms)
                try:
                    machine.handlers[type(operation)](operation, context)
                    changed = True
                except DetentError as error:
                    context.rollback()
                    logger.warning("housekeeping %s was refused: %s", operation, error)
        ticket.results = [Done()]
        return changed

    # -- after a failure ----------------------------------------------------------------------------------------

    def _load(self) -> None:
        with self._writer.view() as view:
            self._sessions.load(view)
            for machine in self._machines:
                machine.load(view)
        self._stale = False

    def _recover(self) -> None:
        """Memory may be ahead of the disk: drop it and read again before anybody is served."""
        self._writer.recover()
        self._load()

    def _settle(self, group: list[Ticket], error: Unavailable) -> None:
        """A commit with an unknown outcome: read what is durable, then tell each caller the truth."""
        logger.warning("a commit failed, the engine starts over from what is durable: %s", error)
        self._stale = True
        self._recover()
        for ticket in group:
            if ticket.error is not None:
                continue
            known = self._sessions.find(ticket.request) if ticket.request.sequence >= 0 else None
            if known is None:
                ticket.results = None
                ticket.error = Unavailable(f"this transaction was not applied, because the commit failed: {error}")
        for machine in self._machines:
            machine.committed()


class Housekeeping(Operation, frozen=True, tag=True, array_like=True):
    """Whatever is due: idle sessions, retention, deadlines. Only the engine itself sends it."""


def _nobody_waits(_: Ticket) -> None:
    """The callback of a ticket whose caller has gone."""


def operation_union(machines: Sequence[Machine]) -> Any:
    """The type of all operations that these machines know, for a decoder of requests."""
    return Union[tuple(kind for machine in machines for kind in machine.operations)]  # noqa: UP007
