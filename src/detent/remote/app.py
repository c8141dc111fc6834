"""The owner's half of the wire protocol: an ASGI application over one engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from detent.engine import Engine, Request, Ticket
from detent.errors import Corrupt, DetentError, Fenced, NotFound, NotOwner, OutcomeUnknown, Unavailable
from detent.journal import JournalMachine, JournalReader
from detent.journal.producers import Producers
from detent.kv import Reader
from detent.queue import QueueMachine, QueueReader
from detent.queue import operations as queue_operations
from detent.queue.unclaiming import only_claims, undoing, undoing_readable
from detent.remote import contents, rights, served_objects, wire
from detent.remote.asgi import REQUESTS, OwnerCall, Receive, Reply, Scope, Send, number_of, text_of, wait_for_event
from detent.remote.dispatch import Dispatcher
from detent.remote.handing import hand_over
from detent.remote.rights import RightsHolder
from detent.remote.served_journals import ServedJournals, journal_of

PATHS: Final = ("/v1/transactions", "/v1/sessions", "/v1/producers", "/v1/status")
PATH_PREFIX: Final = "/v1/native/"


def is_native(path: str) -> bool:
    """Whether a path belongs to the wire protocol."""
    return path in PATHS or path.startswith(PATH_PREFIX)


class OwnerApp:
    """Serves one engine, from one event loop. Uncaught errors become a 500 and reach the server's log."""

    def __init__(
        self,
        engine: Engine,
        journals: JournalMachine,
        queues: QueueMachine,
        reader: Reader,
        refusal: Callable[[], NotOwner | None] = lambda: None,
    ) -> None:
        """`refusal` says why this process may not answer now, if it may not."""
        self._refusal = refusal
        self._engine = engine
        self._journals = journals
        self._queues = queues
        self._store = reader
        self._reader = JournalReader(reader)
        self._messages = QueueReader(reader)
        self._producers = Producers(engine, reader)
        self._objects = served_objects.ServedObjects(reader.objects)
        self._dispatcher: Dispatcher | None = None
        self._waits: set[Callable[[], None]] = set()
        self._closing = False
        self._routes: dict[tuple[str, str], Callable[[OwnerCall], Awaitable[Reply]]] = {
            ("POST", "/v1/transactions"): self._transactions,
            ("POST", "/v1/sessions"): self._new_session,
            ("POST", "/v1/producers"): self._new_producer,
            ("GET", "/v1/status"): self._status,
            ("GET", "/v1/native/size"): self._size,
            ("GET", "/v1/native/wait/journal"): self._wait,
            ("GET", "/v1/native/wait/queue"): self._wait_claimable,
            **ServedJournals(self._reader).routes,
        }

    def end_waits(self) -> None:
        """Answer everybody who waits for a journal to grow, and who asks again at once: the owner is closing."""
        self._closing = True
        for wake in list(self._waits):
            wake()
        self._objects.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request on the owner's socket."""
        if scope["type"] != "http":
            return
        try:
            reply = await self.answer(scope, receive, None)
        except DetentError as error:
            status, body = wire.encode_problem(error)
            reply = Reply(body, wire.PROBLEM_TYPE, status)
        await hand_over(reply.send, scope, receive, send, reply.undo)

    async def answer(self, scope: Scope, receive: Receive, caller: RightsHolder | None) -> Reply:
        """Answer one request of a caller, who may do everything if it is None."""
        self._require_owner()
        call = OwnerCall(scope, receive, caller)
        route = self._routes.get((call.method, call.path))
        if route is not None:
            reply = await route(call)
        elif call.path.startswith(served_objects.PATH):
            reply = await self._objects.answer(call)
        else:
            raise NotFound(f"there is no {call.method} {call.path[:300]} here")
        if call.method == "GET":
            self._require_owner()  # what was read may be older by now than what the next owner has
        return reply

    def _require_owner(self) -> None:
        refused = self._refusal()
        if refused is not None:
            raise refused

    # -- transactions -------------------------------------------------------------------------------------------

    async def _transactions(self, call: OwnerCall) -> Reply:
        wants_contents = call.query().get("contents") == "1"
        requests = wire.decode_requests(await call.body(wire.BODY_BYTES_MAX))
        call.scope[REQUESTS] = requests
        # All of them first, so that they share a commit.
        under_way = [self._submit(request, call.caller) for request in requests]
        try:
            outcomes = [_told(call, self._as_owner(await _outcome(one))) for one in under_way]
        except asyncio.CancelledError:
            for one in under_way:
                self._abandon(one)
            raise
        undo = partial(self._undo, requests, outcomes) if contents.wanted(outcomes) else None
        try:
            if wants_contents and (wanted := contents.wanted(outcomes)):
                outcomes = await self._with_contents(requests, outcomes, wanted)
            body = wire.encode_answers(outcomes)
        except BaseException:
            self._undo(requests, outcomes)
            raise
        return Reply(body, wire.TRANSACTION_TYPE, undo=undo)

    def _as_owner(self, outcome: list[Any] | DetentError) -> list[Any] | DetentError:
        """A transaction that was not applied, because this process owns the store no more, is another one's to
        apply."""
        if isinstance(outcome, Fenced | Unavailable) and not isinstance(outcome, OutcomeUnknown):
            return self._refusal() or outcome
        return outcome

    async def _with_contents(
        self, requests: Sequence[Any], outcomes: list[contents.Outcome], wanted: int
    ) -> list[contents.Outcome]:
        if self._store.objects.local and wanted <= contents.READ_AT_ONCE_MAX:
            found = contents.attach(requests, outcomes, self._messages)
        else:
            found = await asyncio.to_thread(contents.attach, requests, outcomes, self._messages)
        for request, before, after in zip(requests, outcomes, found, strict=True):
            if isinstance(after, Corrupt) and isinstance(before, list):
                claims = [one for one in before if isinstance(one, queue_operations.ClaimedMessages)]
                for claimed in claims:
                    self._engine.post(await asyncio.to_thread(undoing_readable, claimed, self._messages))
            elif isinstance(after, DetentError):
                self._undo([request], [before])
        return found

    def _undo(self, requests: Sequence[Request | DetentError], outcomes: Sequence[contents.Outcome]) -> None:
        """Undo the claims whose answers could not be handed over. What else a transaction did stays done, and is
        answered when it is asked for again; so do its claims then."""
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(request, Request) and isinstance(outcome, list) and only_claims(request.operations):
                self._engine.post(undoing(outcome), request)

    def _undo_lost(self, ticket: Ticket) -> None:
        """The same for an answer that came after its caller had gone."""
        if ticket.results:
            self._undo([ticket.request], [ticket.results])

    def _abandon(self, under_way: _UnderWay) -> None:
        """A transaction whose caller has gone. The dispatcher finds those that are not answered yet."""
        if isinstance(under_way, asyncio.Future) and not under_way.cancel() and not under_way.cancelled():
            found = None if under_way.exception() is not None else under_way.result()
            if isinstance(found, Ticket):
                self._undo_lost(found)

    def _submit(self, request: Request | DetentError, caller: RightsHolder | None) -> _UnderWay:
        """One transaction of perhaps several; what is wrong with it is its own affair."""
        if isinstance(request, DetentError):
            return request
        try:
            self._engine.require_given(request.session, "" if caller is None else caller.key)
            if caller is not None:
                rights.require(caller, request.operations, self._queues)
                self._producers.admit(request.operations, caller.key)
            if self._engine.is_prepared(request.operations):
                # Checking fragments reads files: not on the loop that everybody else is answered from.
                return asyncio.ensure_future(asyncio.to_thread(self._engine.commit, request))
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(asyncio.get_running_loop(), self._undo_lost)
            future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
            self._engine.submit(request, self._dispatcher.deliver, future)
            return future
        except DetentError as error:
            return error

    async def _new_session(self, call: OwnerCall) -> Reply:
        holder = "" if call.caller is None else call.caller.key
        return Reply.json({"session": self._engine.new_session(holder).hex()}, status=201)

    async def _new_producer(self, call: OwnerCall) -> Reply:
        """No right is needed: a producer is worth nothing without the right to publish to a journal."""
        given = self._producers.give("" if call.caller is None else call.caller.key)
        return Reply.json({name: part.hex() for name, part in given._asdict().items()}, status=201)

    async def _status(self, call: OwnerCall) -> Reply:
        del call
        engine = self._engine
        return Reply.json({"epoch": engine.epoch, "pid": os.getpid(), "restored_ms": engine.restored_ms})

    async def _size(self, call: OwnerCall) -> Reply:
        call.require_everywhere("read")
        return Reply.json(await asyncio.to_thread(self._store.size_bytes))

    # -- waits --------------------------------------------------------------------------------------------------

    async def _wait_claimable(self, call: OwnerCall) -> Reply:
        """Answer once a queue has something to claim, or after the time that was given."""
        fields = call.query()
        name, timeout_ms = text_of(fields, "queue"), number_of(fields, "timeout_ms")
        queue_operations.check_name(name)
        call.require("consume", "queue", name)
        woken, wake = _alarm()
        stop = self._queues.wait(name, wake)
        self._waits.add(wake)
        try:
            if not self._queues.claimable(name) and not self._closing:
                await wait_for_event(call, woken, min(timeout_ms, wire.WAIT_MS_MAX) / 1000)
        finally:
            self._waits.discard(wake)
            stop()
        return Reply.json({"claimable": self._queues.claimable(name)})

    async def _wait(self, call: OwnerCall) -> Reply:
        """Answer the journal's next offset once it is above `offset`, or after the time that was given."""
        name, fields = journal_of(call), call.query()
        offset, timeout_ms = number_of(fields, "offset"), number_of(fields, "timeout_ms")
        woken, wake = _alarm()
        stop = self._journals.watch.add(name, offset, wake)
        self._waits.add(wake)
        try:
            found = await self._next_offset(name)
            waits = found <= offset and not self._closing
            if waits and await wait_for_event(call, woken, min(timeout_ms, wire.WAIT_MS_MAX) / 1000):
                found = await self._next_offset(name)
        finally:
            self._waits.discard(wake)
            stop()
        return Reply.json({"next_offset": found})

    async def _next_offset(self, name: str) -> int:
        """A look at a local file does not block; one at an object store does, and goes to a thread."""
        if self._store.objects.local:
            return self._reader.next_offset(name)
        return await asyncio.to_thread(self._reader.next_offset, name)


_UnderWay = asyncio.Future[Ticket] | asyncio.Future[list[Any]] | DetentError
"""A transaction that was handed to the engine, or why it was not."""


def _told(call: OwnerCall, outcome: list[Any] | DetentError) -> list[Any] | DetentError:
    return rights.told(call.caller, outcome) if isinstance(outcome, DetentError) else outcome


async def _outcome(under_way: _UnderWay) -> list[Any] | DetentError:
    if isinstance(under_way, DetentError):
        return under_way
    try:
        found = await under_way
        return found.outcome() if isinstance(found, Ticket) else found
    except DetentError as error:
        return error


def _alarm() -> tuple[asyncio.Event, Callable[[], None]]:
    """An event of the running loop, and how any thread sets it."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    return woken, wake
