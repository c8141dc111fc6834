"""The engine: one owner applies transactions in order, and makes those that wait together durable together.

:mod:`detent.engine.lead` says whose thread does it and with whom. Here a group is applied to memory, written with one
commit, and answered; and when the commit fails, read back and answered truthfully.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Union

import msgspec

from detent import crash
from detent.engine.lead import Lead, Schedule
from detent.engine.operation import (
    SESSION_BYTES,
    ApplyContext,
    Callback,
    Done,
    Machine,
    Observer,
    Operation,
    Request,
    Result,
    Ticket,
    finish,
    refusal,
)
from detent.engine.ownertime import NOTHING, TIME, TIME_STEP_MS, OwnerTime, RecordedTime, ToldTime
from detent.engine.sessions import Sessions
from detent.errors import DetentError, Fenced, Invalid, OutcomeUnknown, SessionExpired, Unavailable
from detent.kv import Batch, View, Writer

HOUSEKEEPING: Final = -1
POSTED: Final = -2
"""The sequences of transactions that the owner's process makes by itself: no client could ask for their answers."""

logger = logging.getLogger("detent.engine")

FULL = (
    "the disk of the store is full, and this transaction was not applied because it brings new messages: acknowledge, "
    "trim or delete some, or make room on the disk"
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an engine does not commit now."""

    is_final: bool
    """Another process owns the store, so this engine never commits again."""

    seconds: float
    """For how long nothing could be committed, where that may end."""

    reason: str


class Engine:
    """Applies transactions to the registered machines, over one kv writer."""

    def __init__(
        self,
        writer: Writer,
        machines: Sequence[Machine],
        *,
        now_ms: OwnerTime | Callable[[], int] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`now_ms` is for tests: a time with clocks of theirs, or the time itself, as they tell it."""
        self._writer = writer
        self._machines = tuple(machines)
        self._handlers = {kind: (m, m.handlers[kind]) for m in machines for kind in (*m.operations, *m.local)}
        self._touched: set[Machine] = set()  # what was asked to change something, and has not written it yet
        self._preparations = {kind: machine.prepare for machine in machines for kind in machine.prepared}
        self.time = _time(now_ms)
        self._random = random
        self._stored_ms = 0
        self._is_set_back = False
        self._sessions = Sessions(random)
        self._encode = msgspec.msgpack.Encoder().encode
        results = [kind for machine in machines for kind in machine.results]
        self._decode = msgspec.msgpack.Decoder(list[Union[tuple({Done, *results})]]).decode  # type: ignore[misc]  # noqa: UP007
        self._fatal: Fenced | None = None
        self._to_announce: list[Machine] = []
        self._stale = True
        self._full = False
        self._failing: tuple[float, Exception] | None = None  # since when commits fail, and the last one's error
        self._committing_since: float | None = None
        self._lead = Lead(self._run_group, self._refuse)
        self._to_post: deque[_Posted] = deque()
        self.groups = 0
        self.on_fenced: Callable[[Fenced], Fenced] = lambda error: error
        """Called once another writer has been found to own the store, by whichever thread finds it; answers what
        callers are told of it."""
        self.observer: Observer | None = None
        self._sync_s = 0.0
        with writer.view() as view:
            is_news = self.time.start(_last_time(view))
        self._load()
        if is_news:
            self._commit_time()
        self._keep_secret()

    @property
    def epoch(self) -> int:
        """The epoch of the writer below."""
        return self._writer.epoch

    @property
    def restored_ms(self) -> int:
        """When the store was restored from a backup; 0 if it never was."""
        return self._sessions.restored_ms

    def now_ms(self) -> int:
        """The owner's time: see :mod:`detent.engine.ownertime`."""
        return self.time.now_ms()

    def new_session(self, holder: str = "") -> bytes:
        """A session for one client; of a server's clients, for the holder of this key."""
        return self._sessions.new_session(self.now_ms(), holder)

    def require_given(self, session: bytes, holder: str) -> None:
        """`SessionExpired` unless an owner of this store gave this session to this holder: strangers make up names.
        `Restored` if that was before the store was restored from a backup. One of the wrong length is refused, as what
        it is, with the request."""
        if len(session) == SESSION_BYTES and not self._sessions.was_given(session, holder):
            self._sessions.refuse_restored(session, holder)
            raise SessionExpired("this session was not given to this client; open a new one")

    def digest(self, purpose: bytes, content: bytes) -> bytes:
        """What only an owner of this store can make of some content: it proves what an owner has given."""
        return self._sessions.digest(purpose, content)

    @property
    def proved_since_ms(self) -> int:
        """Since when the owners of this store prove producers; releases before did not."""
        return self._sessions.proved_since_ms

    def trouble(self) -> Trouble | None:
        """What keeps this engine from committing, as far as it has tried; None if nothing is known to. For any
        thread. While commits fail, the housekeeping of each second tries one, so what has passed is noticed."""
        now = time.monotonic()
        if self._fatal is not None:
            return Trouble(True, 0.0, str(self._fatal))
        if (failing := self._failing) is not None:
            return Trouble(False, now - failing[0], str(failing[1]))
        since = self._committing_since
        return None if since is None else Trouble(False, now - since, "a commit is under way, and does not end")

    @property
    def is_full(self) -> bool:
        """Whether the last group found room on the disk for nothing but what makes room. For any thread."""
        return self._full

    # -- callers ------------------------------------------------------------------------------------------------

    def commit(self, request: Request) -> list[Result]:
        """Apply a transaction and return its results once they are durable."""
        request.check()
        for operation in request.operations:
            prepare = self._preparations.get(type(operation))
            if prepare is not None:
                prepare(operation)
        ticket = Ticket(request)
        self._lead.commit(ticket)
        return ticket.outcome()

    def submit(self, request: Request, callback: Callback, waiter: Any = None) -> None:
        """Apply a transaction in the background; the committing thread calls `callback` when it is done.

        The callback gets all tickets of a group that were submitted with it. `waiter` is the caller's own: the ticket
        carries it there. Operations that need slow checks first
        belong to `commit`, in a thread: see `is_prepared`.
        """
        request.check()
        self._lead.submit(Ticket(request, callback, waiter))

    def post(self, operations: list[Operation], lost: Request | None = None) -> None:
        """Apply operations of this process's own in the next commit. Returns at once, from any thread, and raises
        nothing; a commit that fails is tried again by the next ticks, so it must do no harm to apply them twice.

        They may undo what a client has asked for, whose answer was `lost` with its connection. They are left out then
        if the client has asked again meanwhile; when it asks after that, its request is applied as a new one.
        """
        if operations:
            self._post(_Posted(b"", POSTED, 0, operations, lost))

    def act(self, operations: list[Operation]) -> list[Result]:
        """Apply operations of this process's own as one transaction; their results, once they are durable. After
        `Unavailable` they may have been applied, so it must do no harm to apply them again."""
        ticket = Ticket(_Posted(b"", POSTED, 0, operations))
        self._lead.commit(ticket)
        return ticket.outcome()

    def _post(self, posted: _Posted) -> None:
        try:
            self._lead.submit(Ticket(posted, self._after_post), always=True)
        except DetentError as error:
            logger.warning("%s cannot be applied any more: %s", type(posted.operations[0]).__name__, error)

    def _after_post(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            if isinstance(ticket.error, Unavailable) and isinstance(ticket.request, _Posted):
                self._to_post.append(ticket.request)
            elif ticket.error is not None:
                name = type(ticket.request.operations[0]).__name__
                logger.warning("%s of this process itself was refused: %s", name, ticket.error)

    def lead_on(self, call_soon: Schedule | None) -> None:
        """Commit what is submitted from there on, instead of in a thread of the engine. See `Lead.lead_on`."""
        self._lead.lead_on(call_soon)

    def is_prepared(self, operations: Sequence[Operation]) -> bool:
        """Whether these operations need slow checks first; then `submit` does not belong on an event loop."""
        return not self._preparations.keys().isdisjoint(map(type, operations))

    def tick(self) -> None:
        """Do the housekeeping that is due. The owner calls this about once a second."""
        for _ in range(len(self._to_post)):
            self._post(self._to_post.popleft())
        self.keep_house()
        self._writer.maintain()

    def keep_house(self, *, closing: bool = False) -> None:
        """Do what the machines have to do by now; or, at the end, what they have left to do."""
        ticket = Ticket(Request(b"", HOUSEKEEPING, 0, [Housekeeping(closing)]))
        self._lead.commit(ticket)
        ticket.outcome()

    def next_due_ms(self) -> int | None:
        """When a machine has something to do, if it is to be done before the next tick."""
        now_ms = self.now_ms()
        return min(
            (due for machine in self._machines if (due := machine.next_due_ms(now_ms)) is not None), default=None
        )

    def close(self) -> None:
        """Stop taking transactions, finish those under way, release the writer."""
        try:
            self.keep_house(closing=True)
        except DetentError as error:  # what is not tidied up now is replayed by the next owner
            logger.info("the store closes without its last housekeeping: %s", error)
        self._lead.close()
        self._writer.close()

    def fence(self, error: Fenced) -> Fenced:
        """Another process owns the store: every call is refused from now on, with what this answers. For any thread."""
        if self._fatal is None:
            self._fatal = error
            self._fatal = self.on_fenced(error)
        return self._fatal

    @property
    def fencing(self) -> Fenced | None:
        """What says that another process owns the store, if one does as far as this one knows."""
        return self._fatal

    def _refuse(self) -> None:
        if self._fatal is not None:
            raise refusal(self._fatal)

    # -- one group: apply, commit, and only then answer -----------------------------------------------------------

    def _run_group(self, group: list[Ticket]) -> None:
        """Decide every ticket of the group, and answer all of them, whatever happens.

        But for an interrupt of the leading thread: that one leaves undecided tickets to the thread that heals the lead.
        """
        began, self._sync_s = time.perf_counter(), 0.0
        self._committing_since = time.monotonic()
        try:
            self._decide([ticket for ticket in group if not ticket.decided])
        except BaseException as error:
            self._stale = True
            if not isinstance(error, Exception):
                raise
            if isinstance(error, Fenced):
                error = self.fence(error)
            for ticket in group:
                ticket.refuse_undecided(error)
            if not isinstance(error, DetentError):
                logger.exception("a group commit failed")
        finally:
            self._committing_since = None
            crash.point("engine.group.before_answer")
            finish(group)
        if self.observer is not None:
            self._observe(self.observer, group, time.perf_counter() - began)

    def _observe(self, observer: Observer, group: list[Ticket], seconds: float) -> None:
        """Whatever goes wrong with the counting is not the group's affair."""
        try:
            observer.group(group, seconds, self._sync_s)
        except Exception:
            logger.exception("counting a group failed")

    def _decide(self, group: list[Ticket]) -> None:
        self._refuse()
        if self._stale:
            self._recover()
        if self.time.wants_step_back:
            self._step_back()
        try:
            batch = self._apply_all(group)
        except Exception:
            if len(group) == 1:
                raise
            logger.exception("a group failed before its commit; its transactions are tried one by one")
            self._decide_one_by_one(group)
            return
        if batch:
            self._commit(group, batch)
        else:
            for ticket in group:
                ticket.decided = True

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._failing = (time.monotonic() if self._failing is None else self._failing[0], error)

    def _decide_one_by_one(self, group: list[Ticket]) -> None:
        """Nothing of the group was committed. Whichever transaction caused that shall be the only one to fail."""
        for ticket in group:
            self._stale = True
            ticket.results = ticket.error = None
            try:
                self._decide([ticket])
            except Fenced:
                raise
            except Exception as error:  # noqa: BLE001 - it belongs to this caller, who gets it
                ticket.refuse_undecided(error)
        self._stale = True

    def _apply_all(self, group: list[Ticket]) -> Batch | None:
        """Apply the transactions to memory, and turn what they changed into one batch."""
        now_ms = self.now_ms()
        changed, self._full = self._is_set_back, self._writer.full
        for ticket in group:
            changed |= self._apply(ticket, now_ms)
        if not changed:
            return None
        batch = Batch()
        for machine in self._flushed():
            machine.flush(batch, now_ms)
        self._sessions.flush(batch, now_ms)
        self._record_time(batch, now_ms)
        return batch

    def _flushed(self) -> list[Machine]:
        """The machines that the group has touched, in the order of all. The others have nothing to write or to tell."""
        self._to_announce = [machine for machine in self._machines if machine in self._touched]
        self._touched.clear()
        return self._to_announce

    def _step_back(self) -> None:
        """Go on from the wall clock. What is durable is read again, and set back by what the time in it is ahead of
        that: so that one is written first."""
        self._commit_time()
        self.time.step_back()
        self._stale = True
        self._recover()

    def _commit_time(self) -> None:
        batch = Batch()
        batch.put(TIME.raw, self.time.recorded(self.now_ms()).encode())
        self._writer.commit(batch)

    def _record_time(self, batch: Batch, now_ms: int) -> None:
        """No record of the store is dated later than a step after the time in this one."""
        if self._is_set_back or self._failing is not None or now_ms - self._stored_ms >= TIME_STEP_MS:
            batch.put(TIME.raw, self.time.recorded(now_ms).encode())
            self._stored_ms, self._is_set_back = now_ms, False

    def _commit(self, group: list[Ticket], batch: Batch) -> None:
        crash.point("engine.group.before_commit")
        began = time.perf_counter()
        try:
            self._writer.commit(batch)
        except Fenced:
            raise
        except BaseException as error:
            # Also an interrupt, which may have struck when the batch was durable already.
            self._settle(group, error)
            if not isinstance(error, Exception):
                raise
            return
        self._sync_s = time.perf_counter() - began
        self._failing = None
        crash.point("engine.group.after_commit")
        for ticket in group:
            ticket.decided = True
        self.groups += 1
        self._announce(self._to_announce)

    def _announce(self, machines: Sequence[Machine]) -> None:
        """Tell those who wait for what is now durable. Nothing that goes wrong there undoes a commit."""
        for machine in machines:
            try:
                machine.committed()
            except Exception:
                logger.exception("waking the readers failed")

    def _apply(self, ticket: Ticket, now_ms: int) -> bool:
        """Apply one transaction in memory; a failed check takes back this one alone."""
        request = ticket.request
        if request.sequence == HOUSEKEEPING:
            return self._keep_house(ticket, now_ms)
        context = ApplyContext(now_ms, last=len(request.operations) == 1)
        try:
            if isinstance(request, _Posted):
                if request.lost is not None and not self._sessions.forget_lost(request.lost, now_ms):
                    ticket.results = []
                    return False
                known = None
            else:
                known = self._sessions.find(request)
            if known is not None:
                self._sessions.note_repeated(request)
                ticket.results = self._decode(known)
                if len(ticket.results) != len(request.operations):
                    raise Invalid(f"sequence {request.sequence} of this session was another transaction")
                return True  # it may belong to this very group: answered only after the commit
            if self._full and any(operation.grows for operation in request.operations):
                raise Unavailable(FULL)
            results = []
            for operation in request.operations:
                found = self._handlers.get(type(operation))
                if found is None:
                    raise Invalid(f"this store knows no operation {type(operation).__name__}")
                machine, handler = found
                self._touched.add(machine)
                results.append(handler(operation, context))
            ticket.results = results
            if context.idle == len(results):
                return False
            if not isinstance(request, _Posted):
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
        changed = self._sessions.dirty or self._failing is not None  # a commit shows whether they still fail
        closing = ticket.request.operations[0].closing
        for machine in self._machines:
            for operation in machine.closing() if closing else machine.due(now_ms):
                context = ApplyContext(now_ms)
                self._touched.add(machine)
                try:
                    machine.handlers[type(operation)](operation, context)
                    changed |= not context.idle
                except DetentError as error:
                    context.rollback()
                    logger.warning("housekeeping %s was refused: %s", operation, error)
        ticket.results = [Done()]
        return changed

    # -- after a failure ----------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._touched.clear()
        with self._writer.view() as view:
            self._sessions.load(view)
            for machine in self._machines:
                machine.load(view)
            self._stored_ms = _last_time(view).time_ms
        now_ms = self.now_ms()
        self._is_set_back = self._stored_ms > now_ms
        if self._is_set_back:
            for machine in self._machines:
                machine.set_back(self._stored_ms - now_ms, now_ms)
            self._touched.update(self._machines)
            self._sessions.set_back(now_ms)
        self._stale = False

    def _keep_secret(self) -> None:
        """Make durable what proves the names of sessions, once in a store's life and before a client gets one: an owner
        that dies with the first transactions would leave names that prove nothing to the next."""
        if self._sessions.has_new_secret:
            batch = Batch()
            self._sessions.flush(batch, self.now_ms())
            self._writer.commit(batch)

    def _recover(self) -> None:
        """Memory may be ahead of the disk: drop it and read again before a caller is served."""
        try:
            self._writer.recover()
            self._load()
        except Exception as error:
            self._note_failure(error)
            raise

    def _settle(self, group: list[Ticket], error: BaseException) -> None:
        """A commit with an unknown outcome: read what is durable, then tell each caller the truth.

        Refusals go too: they may rest on transactions of the group that are now gone.
        """
        logger.warning("a commit failed, the engine starts over from what is durable: %s", error)
        self._stale = True
        self._note_failure(error)
        try:
            self._recover()
        except Exception as failure:
            # Whether it is durable, the next owner will find out.
            for ticket in group:
                ticket.results, ticket.decided = None, True
                ticket.error = OutcomeUnknown(
                    f"a commit failed ({error}), and so did asking for its outcome: {failure}"
                )
            raise
        for ticket in group:
            known = None
            if ticket.request.sequence >= 0:
                with contextlib.suppress(DetentError):  # a request too old to be told apart was not applied now
                    known = self._sessions.find(ticket.request)
            ticket.error = None
            ticket.results = None if known is None else self._decode(known)
            if known is None:
                ticket.error = Unavailable(f"this transaction was not applied, because the commit failed: {error}")
            ticket.decided = True
        self._announce(self._machines)


def _time(now_ms: OwnerTime | Callable[[], int] | None) -> OwnerTime:
    if now_ms is None:
        return OwnerTime()
    return now_ms if isinstance(now_ms, OwnerTime) else ToldTime(now_ms)


def _last_time(view: View) -> RecordedTime:
    stored = view.get(TIME.raw)
    return NOTHING if stored is None else RecordedTime.decode(stored)


class _Posted(Request, frozen=True, array_like=True):
    """A transaction of the owner's process; `lost` is the client's request that it undoes, if it does."""

    lost: Request | None = None


class Housekeeping(Operation, frozen=True, tag=True, array_like=True):
    """Whatever is due: idle sessions, retention, deadlines. Only the engine itself sends it."""

    closing: bool = False


def operation_union(machines: Sequence[Machine]) -> Any:
    """The type of all operations that these machines know, for a decoder of requests."""
    return Union[tuple(kind for machine in machines for kind in machine.operations)]  # noqa: UP007
