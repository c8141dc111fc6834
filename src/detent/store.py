"""`detent.open(url)`: a store, embedded or through its owner, sync (`Store`) and async (`AsyncStore`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from detent import forks, spans
from detent.durations import Duration, milliseconds
from detent.engine import Operation, OwnerTime, Request, Ticket
from detent.engine.twins import Twin, both
from detent.errors import Busy, Denied, Invalid, NotFound, OutcomeUnknown, SessionExpired, Unavailable
from detent.forks import refuse_in_child
from detent.journal import (
    AsyncJournal,
    AsyncPublisher,
    Journal,
    JournalReader,
    Publisher,
)
from detent.journal import calls as journal_calls
from detent.journal.producers import Given
from detent.kv import Reader, absolute_url, open_reader, parse_url
from detent.ledger import AsyncLedgers, Ledgers
from detent.paths import as_url
from detent.queue import (
    AsyncQueue,
    MessageInfo,
    Published,
    Queue,
    QueueInfo,
    QueueReader,
    message_info,
    queue_info,
)
from detent.queue import calls as queue_calls
from detent.queue import operations as queue_operations
from detent.queue.calls import Message
from detent.queue.unclaiming import has_claim
from detent.queue.worker import DeclaredQueue
from detent.remote import (
    AsyncLostClaims,
    AsyncRemoteOwner,
    ClientSession,
    Connection,
    Disconnected,
    Dispatcher,
    LocalOwner,
    Overloaded,
    OwnerApp,
    OwnerLine,
    RemoteJournalReader,
    RemoteOwner,
    RemoteReader,
    Role,
    StoreClaim,
    lost_claims,
    server_address,
)
from detent.remote.address import SOCKET
from detent.runtime.backoff import Backoff, Failures
from detent.runtime.ground import drive
from detent.schedule import AsyncSchedules, Schedules
from detent.shard import AsyncConsumers, Consumers, StateReader
from detent.transaction import AsyncTransaction, Transaction

TIMEOUT: Final = "30s"
"""How long a call keeps looking for an owner that answers."""

WAIT_SLICE_MS: Final = 5_000
"""A wait looks again this often, whatever it hears: the journal may have been deleted, the owner replaced."""

POLL: Final = Backoff(0.001, 0.02, factor=1.5)
IN_FLIGHT_MAX: Final = 4_096
"""Asynchronous transactions of one store under way; more wait their turn."""


def open(
    url: str | os.PathLike[str], *, role: Role = "auto", timeout: Duration = TIMEOUT, force: bool = False
) -> Store:
    """Open a store: ``memory:``, ``file:PATH``, ``s3://BUCKET/PREFIX``, or a server's, ``https://HOST:PORT``. A path
    such as ``./data`` is short for ``file:./data``.

    The first process that opens a ``file:`` store owns it; the next ones talk to the owner, through this same API.
    `role` narrows that: "client" never becomes the owner, "reader" only reads and needs no owner at all. `force` ends
    an owner that holds the store and does not answer.

    A process that opens a server's store is its client. A token for it comes from the environment variable
    DETENT_TOKEN, or from the file that DETENT_TOKEN_FILE names; DETENT_CA_FILE names certificates to trust
    instead of the system's.
    """
    return Store(url, role=role, timeout=timeout, force=force)


def open_async(
    url: str | os.PathLike[str], *, role: Role = "auto", timeout: Duration = TIMEOUT, force: bool = False
) -> OpeningStore:
    """Open a store for asyncio: ``async with detent.open_async(url) as store``, or ``await`` it. See :func:`open`."""
    return OpeningStore(url, role=role, timeout=timeout, force=force)


def open_to_serve(
    url: str, claim: StoreClaim | None, *, timeout: Duration = TIMEOUT, force: bool = False
) -> OpeningStore:
    """Open a store for a server that is to own it. On an object store the server says itself where it answers, and has
    looked at the lease before."""
    return OpeningStore(url, timeout=timeout, force=force, claim=claim)


class OpeningStore:
    """A store that is being opened: await it, or enter it with ``async with``."""

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        self._url = url
        self._options = options
        self._store: AsyncStore | None = None

    def queue(self, name: str) -> DeclaredQueue:
        """A queue of the store, which is opened when a worker runs: for an `AsyncWorker` in a file that `detent run`
        runs, where there is no event loop yet."""
        return DeclaredQueue(name, os.fspath(self._url), lambda: open_async(self._url, **self._options))

    async def _open(self) -> AsyncStore:
        return AsyncStore(await asyncio.to_thread(Store, self._url, **self._options))

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


class _StoreBase(Twin):
    """What both stores share."""

    _generation: int
    _connection: Connection
    _session: ClientSession
    _timeout_s: float
    reader: JournalReader
    messages: QueueReader

    @both
    async def journals(self, prefix: str = "") -> list[str]:
        """The names of the journals, sorted."""
        names: list[str] = await self._aside(self.reader.names, prefix)
        return names

    @both
    async def queues(self, prefix: str = "") -> list[QueueInfo]:
        """The queues, by name, with their settings and contents."""
        found = await self._do(queue_operations.DescribeQueues(None, prefix))
        return [queue_info(queue) for queue in found.queues]

    @both
    async def unmatched(self) -> int:
        """How many stored messages matched no queue."""
        found: int = (await self._do(queue_operations.DescribeQueues(None, "\0"))).unmatched
        return found

    @both
    async def set_dedup_window(self, window: Duration) -> None:
        """Hold the dedup keys of messages published from now on for at least so long."""
        await self._do(queue_operations.SetDedupWindow(milliseconds(window)))

    @both
    async def publish(
        self, /, message: Message, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Published:
        """Publish a message to every queue whose filter matches its headers. One that matches none is kept until its
        retention ends, for queues that are created with `earliest`. A dedup key is the store's.

        Options: `uri`, `created`, `visible_at`, `delay`, `retention`, `dedup_key`; see :meth:`Queue.publish`.
        """
        with spans.sending("publish", ""):
            operations = queue_calls.publish([queue_calls.outgoing(message, headers, options)])
            return queue_calls.published(await self._ask(list(operations)))[0]

    @both
    async def publish_many(
        self, messages: Iterable[Message], *, headers: Mapping[str, str] | None = None
    ) -> Sequence[Published]:
        """Publish many messages, each to every queue that matches it; all or none."""
        listed = list(messages)
        with spans.sending("publish", "", len(listed)):
            operations = queue_calls.operations_for(listed, headers, None)
            return queue_calls.PublishedMany(await self._ask(operations) if operations else [])

    @both
    async def message(self, message: int) -> MessageInfo:
        """A published message, and where it is in each queue. `NotFound` if nothing is known of it any more."""
        found = await self._do(queue_operations.FindMessage(message))
        while found.contents == [None]:  # there was no room for it in that answer
            found = await self._do(queue_operations.FindMessage(message))
        content = await self._aside(queue_calls.found_content, self.messages, message, found)
        if content is None and not found.states:
            raise NotFound(f"there is no message {message}: it is done, expired, or was never published")
        return message_info(message, found, content)

    # -- committing ---------------------------------------------------------------------------------------------

    async def _commit(self, operations: list[Operation]) -> list[Any]:
        """Apply operations as one transaction. It is sent under the same name until an owner has answered it."""
        refuse_in_child(self._generation)
        deadline = time.monotonic() + self._timeout_s
        session, request = self._session, None
        sent = asked = False
        tries = 0
        try:
            while True:
                owner = self._connection.at_hand or await self._aside(self._find_owner, deadline, sent)
                try:
                    if not session.is_open:
                        session.open(await self._new_session(owner))
                    request = request or session.begin(operations)
                    if request is not None:
                        asked = await self._reach(owner, operations) or asked
                        left_s = self._connection.attempt_s(deadline - time.monotonic(), tries)
                        return await self._commit_at(owner, request, left_s)
                except Overloaded as error:
                    sent = sent or (request is not None and not error.sure)
                    await self._sleep(self._busy_pause(error, deadline, sent))
                except Denied as error:
                    self._after_denial(error, sent)
                    raise
                except Disconnected as error:
                    sent = sent or (request is not None and not error.sure)
                    tries += not error.sure
                    await self._aside(self._after_disconnect, owner, error, deadline, sent)
                except SessionExpired as error:
                    self._after_expiry(request, sent, error)
                    request = None
        except BaseException as error:
            is_lost = request is not None and not isinstance(error, Exception) and asked and has_claim(operations)
            if is_lost and request is not None and self._undo_interrupted(error, request, sent):
                request = None
            raise
        finally:
            if request is not None:
                session.end(request)

    async def _new_session(self, owner: LocalOwner | RemoteOwner) -> bytes:
        raise NotImplementedError

    async def _reach(self, owner: LocalOwner | RemoteOwner, operations: list[Operation]) -> bool:
        """Before a request goes to an owner: whether its claims have to be undone if the caller is interrupted."""
        raise NotImplementedError

    async def _commit_at(self, owner: LocalOwner | RemoteOwner, request: Request, left_s: float) -> list[Any]:
        raise NotImplementedError

    def _undo_interrupted(self, error: BaseException, request: Request, sent: bool) -> bool:
        """The caller will not hear what it has claimed. True if the request ends with that, and not at once."""
        raise NotImplementedError

    def _find_owner(self, deadline: float, sent: bool) -> LocalOwner | RemoteOwner:
        """The owner. When the transaction has been sent once, not finding another leaves its outcome unknown."""
        try:
            return self._connection.owner(deadline)
        except Unavailable as error:
            if not sent:
                raise
            raise OutcomeUnknown(f"{error}; whether the transaction was applied before is unknown") from error

    def _after_disconnect(
        self, owner: LocalOwner | RemoteOwner, error: Disconnected, deadline: float, sent: bool = True
    ) -> None:
        """The same request is sent again, under its name, to the store's next owner."""
        self._connection.lost(owner, error)
        if time.monotonic() < deadline:
            return
        if sent:
            raise OutcomeUnknown(f"{error}; whether the transaction was applied is unknown") from error
        raise Unavailable(f"{error}; nothing was changed") from error

    @staticmethod
    def _busy_pause(error: Overloaded, deadline: float, sent: bool) -> float:
        """How long to wait before the same request is sent again. When the time is over, what is known of it: nothing
        was applied, unless an earlier try broke off."""
        left = deadline - time.monotonic()
        if left > 0:
            return min(error.retry_s, left)
        if sent:
            raise OutcomeUnknown(f"{error}; whether the transaction was applied before is unknown") from error
        raise Busy(f"{error}; nothing was changed") from error

    @staticmethod
    def _after_denial(error: Denied, sent: bool) -> None:
        """A right may have been taken away between a try that broke off and this one."""
        if sent:
            raise OutcomeUnknown(f"{error}; whether the transaction was applied before is unknown") from error

    def _after_expiry(self, request: Request | None, sent: bool, error: SessionExpired) -> None:
        assert request is not None
        self._session.expire(request.session)
        if sent:
            raise OutcomeUnknown("the session expired before its owner answered") from error

    # -- waiting ------------------------------------------------------------------------------------------------

    @both
    async def wait_claimable(self, queue: str, timeout_ms: int) -> None:
        """Return when a queue may have something to claim, or after the time."""
        await self._wait_claimable(queue, timeout_ms)

    @both
    async def wait(self, journal: str, offset: int, timeout_ms: int | None) -> bool:
        """Wait until a journal's next offset is above `offset`. False after the time."""
        return await self._wait(journal, offset, timeout_ms)

    async def _wait_claimable(self, queue: str, timeout_ms: int) -> None:
        refuse_in_child(self._generation)
        connection = self._connection
        try:
            owner = connection.at_hand or await self._aside(connection.owner, time.monotonic())
        except Unavailable:
            await self._sleep(POLL.max_s)
            return
        try:
            await self._await_claimable(owner, queue, connection.wait_ms(timeout_ms))
        except Disconnected as error:
            await self._aside(connection.lost, owner, error)

    async def _await_claimable(self, owner: LocalOwner | RemoteOwner, queue: str, timeout_ms: int) -> None:
        """Wait at the owner for something to claim."""
        raise NotImplementedError

    async def _wait(self, journal: str, offset: int, timeout_ms: int | None) -> bool:
        refuse_in_child(self._generation)
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        polls = Failures(POLL)
        while True:
            if await self._next_offset(journal) > offset:
                return True
            left_ms = WAIT_SLICE_MS if deadline is None else min(WAIT_SLICE_MS, (deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                return False
            if not await self._wait_at_owner(journal, offset, int(left_ms) + 1):
                await self._sleep(min(polls.failed(), left_ms / 1000))

    async def _wait_at_owner(self, journal: str, offset: int, timeout_ms: int) -> bool:
        """True when an owner was asked; without one the caller looks for itself, a little later."""
        connection = self._connection
        if connection.role == "reader" and not connection.is_remote:
            return False
        try:
            owner = connection.current or await self._aside(connection.reach, time.monotonic())
        except Unavailable:
            return False
        try:
            await self._await_growth(owner, journal, offset, connection.wait_ms(timeout_ms))
        except Disconnected as error:
            await self._aside(connection.lost, owner, error)
            return False
        return True

    async def _await_growth(self, owner: LocalOwner | RemoteOwner, journal: str, offset: int, timeout_ms: int) -> None:
        """Wait at the owner until a journal has grown above an offset."""
        raise NotImplementedError

    async def _next_offset(self, journal: str) -> int:
        raise NotImplementedError


class Store(_StoreBase, Ledgers, Consumers, Schedules):
    """A store. Use it in a ``with`` block, or call `close`."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        role: Role = "auto",
        timeout: Duration = TIMEOUT,
        force: bool = False,
        now_ms: OwnerTime | Callable[[], int] | None = None,
        claim: StoreClaim | None = None,
    ) -> None:
        """See :func:`open`. `now_ms` is the time of the engine, if this process owns the store: tests have one that
        they move. `claim` is a server's, on an object store."""
        self._generation = forks.generation
        self._timeout_s = milliseconds(timeout) / 1000
        url = as_url(url)
        self.url = url if server_address(url) is not None else absolute_url(url)
        self._connection = Connection(self.url, role, force=force, now_ms=now_ms, claim=claim)
        self._session = ClientSession()
        self._closed = False
        try:
            if role != "reader" or self._connection.server is not None:
                self._connection.reach(time.monotonic() + self._timeout_s)
            self._kv, self.reader = self._open_readers()
        except BaseException:
            self._connection.close()
            raise
        self.messages = QueueReader(self._kv)
        self.states = StateReader(self._kv if self._has_files else None)
        self.objects = self._kv.objects

    @property
    def _has_files(self) -> bool:
        """Whether reading costs no network, and shows at once what any process has committed."""
        return not self._connection.is_remote and parse_url(self.url).scheme in {"file", "memory"}

    def _open_readers(self) -> tuple[Reader, JournalReader]:
        owner = self._connection.current
        if self._connection.is_remote:
            line = OwnerLine(self._connection, self._timeout_s)
            far = RemoteReader(line)
            return far, RemoteJournalReader(far, line)
        if isinstance(owner, LocalOwner) and parse_url(self.url).scheme != "file":
            return owner.reader, JournalReader(owner.reader)
        reader = open_reader(self.url)
        return reader, JournalReader(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the store. Closing twice is fine, and so is closing a parent's store in a forked child."""
        if not self._closed:
            self._closed = True
            if self._generation != forks.generation:
                return
            self._connection.close()  # first: an owner in this process may still write through what is closed next
            self._kv.close()

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the store."""
        return isinstance(self._connection.current, LocalOwner)

    @property
    def epoch(self) -> int:
        """The store's epoch: it rises with each new owner."""
        refuse_in_child(self._generation)
        owner = self._connection.owner(time.monotonic() + self._timeout_s)
        return owner.epoch if isinstance(owner, LocalOwner) else owner.status()["epoch"]

    def size_bytes(self) -> int:
        """Roughly what the records occupy, fragments not counted."""
        return self._kv.size_bytes()

    def journal(self, name: str) -> Journal:
        """A journal by name. Nothing is created before the first append."""
        return Journal(self, name)

    def queue(self, name: str) -> Queue:
        """A queue by name. Create it before its first use."""
        return Queue(self, name)

    async def _await_claimable(self, owner: LocalOwner | RemoteOwner, queue: str, timeout_ms: int) -> None:
        owner.wait_claimable(queue, timeout_ms)

    def publisher(self, *, deadline: Duration = "0s") -> Publisher:
        """A publisher with a producer of its own, for pending messages and acknowledgements. What it has pending may
        wait for its acknowledgement as long as the journal's `transaction_deadline` says, or for `deadline` if that is
        longer, 90 days at most; until then it holds back the journal's retention."""
        return Publisher(self.commit, give=self._new_producer, deadline_ms=journal_calls.publisher_deadline(deadline))

    def _new_producer(self) -> Given:
        refuse_in_child(self._generation)
        return self._connection.new_producer(time.monotonic() + self._timeout_s)

    def transaction(self) -> Transaction:
        """Several operations that take effect together or not at all.

        >>> with store.transaction() as t:
        ...     t.append("orders", b"new")
        ...     t.append("audit", b"order came")
        """
        return Transaction(self.commit)

    def sweep(self, *, grace: Duration | None = None) -> int:
        """Delete fragments that were written and never adopted. The owner does this by itself once an hour."""
        owner = self._connection.current
        if not isinstance(owner, LocalOwner):
            raise Invalid("only the owner of a store can sweep it")
        return owner.sweep(None if grace is None else milliseconds(grace))

    def owner_app(self) -> OwnerApp:
        """The owner's half of the wire protocol, for a server in this process to answer from one event loop."""
        owner = self._connection.current
        if not isinstance(owner, LocalOwner):
            raise Invalid(f"a server owns its store, and another process owns {self.url}: stop that one first")
        return owner.new_app()

    @property
    def owner_url(self) -> str | None:
        """Where the owner of this store answers other processes of this machine: this process's socket, or that of the
        owner whose client it is. None if it answers none."""
        owner = self._connection.current
        if isinstance(owner, LocalOwner):
            return None if owner.socket is None else f"{SOCKET}{owner.socket}"
        address = self._connection.address
        return None if address is None else address.store_url

    # -- committing ---------------------------------------------------------------------------------------------

    def commit(self, operations: list[Operation]) -> list[Any]:
        """Apply operations as one transaction; their results, once they are durable."""
        return drive(self._commit(operations))

    async def _new_session(self, owner: LocalOwner | RemoteOwner) -> bytes:
        return owner.new_session()

    async def _reach(self, owner: LocalOwner | RemoteOwner, operations: list[Operation]) -> bool:
        del owner, operations
        return True

    async def _commit_at(self, owner: LocalOwner | RemoteOwner, request: Request, left_s: float) -> list[Any]:
        return owner.commit(request, left_s)

    def _undo_interrupted(self, error: BaseException, request: Request, sent: bool) -> bool:
        del error, sent
        lost_claims.undo_unanswered(self, request)
        return False

    def undo(self, operations: list[Operation]) -> None:
        """Undo claims whose messages could not be handed over, as far as the owner can be reached."""
        lost_claims.undo(self, operations)

    # -- waiting ------------------------------------------------------------------------------------------------

    async def _next_offset(self, journal: str) -> int:
        return self.reader.next_offset(journal)

    async def _await_growth(self, owner: LocalOwner | RemoteOwner, journal: str, offset: int, timeout_ms: int) -> None:
        owner.wait(journal, offset, timeout_ms)

    def on_growth(self, journal: str, offset: int, wake: Callable[[], None]) -> Callable[[], None] | None:
        """Call `wake` once, from whatever thread, when the journal's next offset is above `offset`; answers how to stop
        waiting. None if another process owns the store: then the caller has to `wait`.

        Look at the journal after this: it may have grown just before.
        """
        refuse_in_child(self._generation)
        owner = self._connection.at_hand
        return owner.journals.watch.add(journal, offset, wake) if isinstance(owner, LocalOwner) else None

    def announced(self, journal: str) -> int | None:
        """The next offset of a journal as its last commit announced it, without a look at the journal. None if that is
        not known, or if another process owns the store."""
        owner = self._connection.at_hand
        return owner.journals.watch.announced(journal) if isinstance(owner, LocalOwner) else None


class AsyncStore(_StoreBase, AsyncLedgers, AsyncConsumers, AsyncSchedules):
    """`Store` for asyncio: the same calls, awaited. Use it in ``async with``, or call `close`."""

    _store: Store

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection, self._generation = store._connection, store._generation
        self._session, self._timeout_s = store._session, store._timeout_s
        self._loop = asyncio.get_running_loop()
        self._dispatcher = Dispatcher(self._loop, self._undo_lost)
        self._lost_claims = AsyncLostClaims(self)
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._remote: AsyncRemoteOwner | None = None
        self._local: LocalOwner | None = None
        self.reads_are_slow = not store.objects.local
        self.reader = store.reader
        self.messages = store.messages
        self.states = store.states
        self.objects = store.objects
        self.url = store.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the store."""
        await self._lost_claims.settle()
        if self._remote is not None:
            await self._remote.close()
            self._remote = None
        await asyncio.to_thread(self._store.close)

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the store."""
        return self._store.is_owner

    def journal(self, name: str) -> AsyncJournal:
        """A journal by name. Nothing is created before the first append."""
        return AsyncJournal(self, name)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by name. Create it before its first use."""
        return AsyncQueue(self, name)

    async def _await_claimable(self, owner: LocalOwner | RemoteOwner, queue: str, timeout_ms: int) -> None:
        if not isinstance(owner, LocalOwner):
            await (await self._remote_of()).wait_claimable(queue, timeout_ms)
            return
        woken, wake = self._alarm()
        stop = owner.queues.wait(queue, wake)
        try:
            if not owner.queues.claimable(queue):
                async with asyncio.timeout(timeout_ms / 1000):  # `wait_for` may swallow a cancellation
                    await woken.wait()
        except TimeoutError:
            return
        finally:
            stop()

    def _alarm(self) -> tuple[asyncio.Event, Callable[[], None]]:
        """An event of the loop, and how any thread sets it."""
        woken = asyncio.Event()

        def wake() -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(woken.set)

        return woken, wake

    def owner_app(self) -> OwnerApp:
        """The owner's half of the wire protocol, for a server on this event loop."""
        return self._store.owner_app()

    def publisher(self, *, deadline: Duration = "0s") -> AsyncPublisher:
        """A publisher with a producer of its own, for pending messages and acknowledgements; `deadline` as in
        `Store.publisher`."""
        return AsyncPublisher(self._store.publisher(deadline=deadline))

    def transaction(self) -> AsyncTransaction:
        """Several operations that take effect together or not at all."""
        return AsyncTransaction(self.commit)

    async def commit(self, operations: list[Operation]) -> list[Any]:
        """Apply operations as one transaction; their results, once they are durable."""
        async with self._room:
            return await self._commit(operations)

    async def _reach(self, owner: LocalOwner | RemoteOwner, operations: list[Operation]) -> bool:
        if isinstance(owner, LocalOwner):
            return owner.engine.is_prepared(operations)  # otherwise `_commit_locally` undoes them
        await self._remote_of()
        return True

    async def _commit_at(self, owner: LocalOwner | RemoteOwner, request: Request, left_s: float) -> list[Any]:
        if not isinstance(owner, LocalOwner):
            return await (await self._remote_of()).commit(request, left_s)
        if owner.engine.is_prepared(request.operations):
            return await asyncio.to_thread(owner.commit, request, left_s)
        return await self._commit_locally(owner, request)

    def _undo_interrupted(self, error: BaseException, request: Request, sent: bool) -> bool:
        unsent = self._remote is not None and self._remote.take_back(request)
        if not isinstance(error, asyncio.CancelledError) or (unsent and not sent):
            return False
        self._lost_claims.undo_unanswered(request)
        return True

    async def _commit_locally(self, owner: LocalOwner, request: Request) -> list[Any]:
        self._local = owner
        future: asyncio.Future[Ticket] = self._loop.create_future()
        owner.engine.submit(request, self._dispatcher.deliver, future)
        try:
            return (await future).outcome()
        except asyncio.CancelledError:
            if not future.cancelled() and future.done():  # it was answered at this very moment
                owner.undo_lost(future.result())
            raise

    def _undo_lost(self, ticket: Ticket) -> None:
        """The caller of a ticket was cancelled before its answer came. For any thread."""
        if self._local is not None:
            self._local.undo_lost(ticket)

    def undo(self, operations: list[Operation]) -> None:
        """Undo claims whose messages could not be handed over, in the background."""
        self._lost_claims.undo(operations)

    async def _new_session(self, owner: LocalOwner | RemoteOwner) -> bytes:
        if isinstance(owner, LocalOwner):
            return owner.new_session()
        return await (await self._remote_of()).new_session()

    async def _remote_of(self) -> AsyncRemoteOwner:
        """The asynchronous twin of the connection that was found."""
        address = self._store._connection.address
        if address is None:
            raise Disconnected("this process has just become the owner itself")
        if self._remote is None or self._remote.address != address:
            old, self._remote = self._remote, AsyncRemoteOwner(address, self._connection.slack_s)
            if old is not None:
                await old.retire()
        return self._remote

    async def _next_offset(self, journal: str) -> int:
        """A look at a local file does not block; one at an object store does, and goes to a thread."""
        if self.reads_are_slow:
            return await asyncio.to_thread(self.reader.next_offset, journal)
        return self.reader.next_offset(journal)

    async def _await_growth(self, owner: LocalOwner | RemoteOwner, journal: str, offset: int, timeout_ms: int) -> None:
        if not isinstance(owner, LocalOwner):
            await (await self._remote_of()).wait(journal, offset, timeout_ms)
            return
        woken, wake = self._alarm()
        stop = owner.journals.watch.add(journal, offset, wake)
        try:
            if await self._next_offset(journal) <= offset:
                async with asyncio.timeout(timeout_ms / 1000):
                    await woken.wait()
        except TimeoutError:
            return
        finally:
            stop()


__all__ = ["AsyncStore", "AsyncTransaction", "Store", "Transaction", "open", "open_async"]
