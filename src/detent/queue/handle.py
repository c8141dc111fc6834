"""`store.queue(name)`: a queue as a user holds it, sync and async.

Both halves build their operations in :mod:`detent.queue.calls`, and share what takes several steps.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar, Unpack

from detent.durations import Duration, milliseconds
from detent.engine import Operation
from detent.engine.twins import Awaited, Plain, Twin, drive_each
from detent.errors import Corrupt, Invalid
from detent.queue import calls, pages
from detent.queue import operations as ops
from detent.queue.assignment import AssignmentReader, AsyncAssignmentReader, ReaderInfo, reader_info
from detent.queue.calls import Message
from detent.queue.info import FailedMessage, QueueInfo, QueuePage, failed_message, queue_info
from detent.queue.message import AsyncDelivery, Delivery, Held, Published, ack_operations
from detent.queue.reader import QueueReader
from detent.queue.reader_operations import DescribeReaders
from detent.queue.unclaiming import undoing, undoing_deliveries, undoing_readable
from detent.runtime.ground import drive
from detent.settings.queue import QueueSettings

Delivered = TypeVar("Delivered", Delivery, AsyncDelivery)

WAIT_SLICE_MS: Final = 5_000
"""A consumer that waits looks again this often, whatever it hears: the owner may have been replaced."""

FAILED_PAGE: Final = 500

PAYLOAD_BYTES: Final = 256
"""The first bytes of a payload that a look into a queue shows, unless told otherwise."""

READ_AT_ONCE_MAX: Final = 16
"""Messages whose content an event loop reads itself from a local file: that takes less than asking a thread to."""


class QueueStore(Protocol):
    """What a queue needs of its store."""

    messages: QueueReader

    def commit(self, operations: list[Operation]) -> list[Any]: ...

    def wait_claimable(self, queue: str, timeout_ms: int) -> None: ...

    def undo(self, operations: list[Operation]) -> None: ...


class AsyncQueueStore(Protocol):
    """The same, for asyncio. `reads_are_slow` says whether reading waits for a network."""

    messages: QueueReader
    reads_are_slow: bool

    async def commit(self, operations: list[Operation]) -> list[Any]: ...

    async def wait_claimable(self, queue: str, timeout_ms: int) -> None: ...

    def undo(self, operations: list[Operation]) -> None: ...


@cache
def _label(process: int) -> str:
    return f"{socket.gethostname()}:{process}"[: ops.CONSUMER_BYTES_MAX]


def consumer_label() -> str:
    """What a consumer is called that gives itself no name: its machine and process."""
    return _label(os.getpid())


class _ClaimPatience:
    """How long a claim goes on waiting."""

    def __init__(self, wait: Duration) -> None:
        self._deadline = time.monotonic() + milliseconds(wait) / 1000

    def slice_ms(self) -> int:
        """How long to wait now; 0 when the time is over."""
        left_ms = (self._deadline - time.monotonic()) * 1000
        return 0 if left_ms <= 0 else min(WAIT_SLICE_MS, int(left_ms) + 1)


class _QueueBase(Twin):
    """What both halves share; what takes several steps is a coroutine here."""

    def __init__(self, store: Any, name: str) -> None:
        ops.check_name(name)
        self._store = store
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _create(self, given: QueueSettings, earliest: bool, exist_ok: bool) -> ops.CreateQueue:
        return ops.CreateQueue(self.name, calls.settings(self.name, given), earliest, exist_ok)

    def _changes(self, given: QueueSettings) -> ops.Settings:
        if not given:
            raise Invalid("there is nothing to change: name a setting")
        return calls.settings(self.name, given)

    def _publish(self, message: Message, headers: Mapping[str, str] | None, options: Mapping[str, Any]) -> list[Any]:
        if type(message) is bytes and not options:
            return [calls.publish_plain([message], headers, self.name)]
        return calls.publish([calls.outgoing(message, headers, options)], self.name)

    # -- what takes several steps -------------------------------------------------------------------------------

    async def _claim(
        self,
        kind: type[Delivered],
        count: int,
        wait: Duration | None,
        lease: Duration | None,
        consumer: str | None,
    ) -> list[Delivered]:
        operation = calls.claim(self.name, count, lease, consumer_label() if consumer is None else consumer)
        patience = None if wait is None else _ClaimPatience(wait)
        while True:
            result: ops.ClaimedMessages = (await self._ask([operation]))[0]
            if result.messages:
                found = await self._deliveries(kind, result)
                if found:
                    return found
            left_ms = 0 if patience is None else patience.slice_ms()
            if not left_ms:
                return []
            await self._answered(self._store.wait_claimable(self.name, left_ms))

    async def _deliveries(self, kind: type[Delivered], result: ops.ClaimedMessages) -> list[Delivered]:
        """The messages of a claim with their content. Without it the claim is undone, except of a message whose content
        is damaged."""
        store = self._store
        try:
            if result.contents is not None:  # it came along; what found no room is asked for
                steps = calls.Fetching(result)
                while steps.more:
                    steps.did((await self._ask([steps.next_step()]))[0])
                result = steps.complete()
            elif self._reads_aside(len(result.messages)):
                found: list[Delivered]
                found = await self._aside(calls.deliveries, kind, store, self.name, store.messages, result)
                return found
            return calls.deliveries(kind, store, self.name, store.messages, result)
        except Corrupt:
            store.undo(await self._aside(undoing_readable, result, store.messages))
            raise
        except BaseException:
            store.undo(undoing([result]))
            raise

    def _reads_aside(self, count: int) -> bool:
        """Whether the content of so many messages is read in a thread."""
        del count
        return False

    async def _claim_on(
        self, kind: type[Delivered], batch: int, timeout: Duration | None, lease: Duration | None
    ) -> AsyncGenerator[Delivered, None]:
        while True:
            found = await self._claim(kind, batch, "1h" if timeout is None else timeout, lease, None)
            given = 0
            try:
                for message in found:
                    given += 1
                    yield message
            finally:  # closed before it had given out all of them
                self._store.undo(undoing_deliveries(found[given:]))
            if not found and timeout is not None:
                return

    async def _list_failed(self) -> AsyncGenerator[FailedMessage, None]:
        after, more = -1, True
        while more:
            page: ops.FailedMessages = (await self._ask([ops.ListFailed(self.name, after, FAILED_PAGE)]))[0]
            contents = await self._aside(calls.failed_contents, self._store.messages, page)
            for entry, content in zip(page.messages, contents, strict=True):
                yield failed_message(self.name, entry, content)
                after = entry.message
            more = page.more

    async def _peek(self, *given: Any) -> QueuePage:
        operation = pages.peek(self.name, *given)
        page = (await self._ask([operation]))[0]
        found: QueuePage = await self._aside(pages.queue_page, self.name, self._store.messages, operation, page)
        return found

    async def _move(self, steps: calls.Redriving | calls.Purging, progress: Callable[[int], None] | None = None) -> int:
        while steps.more:
            steps.did((await self._ask([steps.next_step()]))[0])
            if progress is not None:
                progress(steps.total)
        return steps.total


class Queue(_QueueBase, Plain):
    """A queue: claims messages with a lease, and takes what became of them.

    >>> orders = store.queue("orders")
    >>> orders.create()
    >>> orders.publish(b"one").message
    0
    >>> for message in orders.claim(10):
    ...     with message:
    ...         print(message.payload)
    b'one'
    """

    _store: QueueStore

    def create(self, *, earliest: bool = False, exist_ok: bool = False, **settings: Unpack[QueueSettings]) -> bool:
        """Create the queue; `Exists` if it is there, unless `exist_ok`. True if it is new.

        A queue that exists keeps its settings; `configure` changes them. Without a `filter` it gets the messages that
        are published to it. A filter is a CEL expression over the headers, such as ``headers.tier == "gold"``; ``true``
        takes everything. With `earliest` the queue also gets what is stored already. Its settings are those of
        :class:`detent.QueueSettings`.
        """
        created: ops.QueueCreated = self._commit(self._create(settings, earliest, exist_ok))
        return created.new

    def configure(self, *, expect_filter: str | None = None, **settings: Unpack[QueueSettings]) -> None:
        """Change settings; what is not named stays. A new filter applies to what the queue has not read yet. With
        `expect_filter` nothing is changed, and `Conflict` raised, if the filter is another one by now."""
        self._commit(ops.ConfigureQueue(self.name, self._changes(settings), expect_filter))

    def pause(self) -> None:
        """Give out nothing and take nothing in until `resume`; what is in flight can still be acknowledged."""
        self.configure(paused=True)

    def resume(self) -> None:
        """Go on where the queue was paused. It catches up with what was published meanwhile, in the background: `info`
        says whether it still does, and a claim that waits gets what comes.
        """
        self.configure(paused=False)

    def delete(self) -> None:
        """Delete the queue and all that is in it. Its receipts are stale from now on."""
        self._commit(ops.DeleteQueue(self.name))

    def info(self) -> QueueInfo:
        """Settings, contents, counters."""
        found: ops.QueueDescriptions = self._commit(ops.DescribeQueues(self.name))
        return queue_info(found.queues[0])

    def publish(self, message: Message, *, headers: Mapping[str, str] | None = None, **options: Any) -> Published:
        """Publish a message to this queue. When this returns, it is durable and can be claimed.

        `NotFound` if there is no such queue, `Invalid` if its filter does not match the headers. (The address is a
        header too, so other queues whose filters match get the message as well.) A dedup key is the queue's own.
        Options: `uri`, `created`, `visible_at`, `delay` ("10s"), `retention` ("4d"; "0s" is for ever), `dedup_key`.
        """
        return calls.published(self._store.commit(self._publish(message, headers, options)))[0]

    def publish_many(
        self, messages: Iterable[Message], *, headers: Mapping[str, str] | None = None
    ) -> Sequence[Published]:
        """Publish many messages to this queue, all or none."""
        operations = calls.operations_for(messages, headers, self.name)
        return calls.PublishedMany(self._store.commit(operations) if operations else [])

    def claim(
        self,
        count: int = 1,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Claim up to `count` messages, most urgent first, then oldest first.

        With `wait`, an empty queue is waited for that long. Each message is this consumer's until its lease ends:
        acknowledge it, fail it or extend the lease before that. A `lease` is cut to the queue's `max_lease`.
        """
        return drive(self._claim(Delivery, count, wait, lease, consumer))

    def wait(self, timeout: Duration) -> None:
        """Return when there may be something to claim, or after the time."""
        left_ms = milliseconds(timeout)
        self._store.wait_claimable(self.name, min(WAIT_SLICE_MS, left_ms))

    def messages(
        self, *, batch: int = 1, timeout: Duration | None = None, lease: Duration | None = None
    ) -> Iterator[Delivery]:
        """Claim messages for ever, one after another; with a timeout, until none has come for that long.

        With a larger `batch` the lease of the last one must last for all of them: nobody extends it here. A `Worker`
        does. What was claimed and not given out goes back when the iterator is closed, with its attempt.
        """
        return drive_each(self._claim_on(Delivery, batch, timeout, lease))

    def ack(self, messages: Iterable[Held]) -> None:
        """Many messages are done, all or none: one stale receipt refuses them all."""
        operations = ack_operations(messages)
        if operations:
            self._store.commit(operations)

    def peek(
        self,
        limit: int = 100,
        *,
        states: str | Iterable[str] | None = None,
        filter: str | None = None,
        priority: int | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        payload_bytes: int = PAYLOAD_BYTES,
        cursor: str | None = None,
    ) -> QueuePage:
        """Look into the queue, page by page, without claiming: nothing changes, and no attempt is counted.

        A page has up to `limit` messages (1,000 at most), with their headers and the first `payload_bytes` of their
        payloads (4,096 at most; 0 reads none). Choose by `states` (available, delayed, blocked, in flight, assigned,
        failed, done), by a `filter` for headers, by `priority`, by how long ago they were published. First come those
        that are not failed or done, in the order in which they came to the queue; then the failed, then the done ones.

        `page.cursor` is where the next page begins. It stays good while the queue changes: a message that stays where
        it is, is on one page; one that moves on may be on two, or on none.
        """
        return drive(self._peek(limit, states, filter, priority, older_than, newer_than, payload_bytes, cursor))

    def failed(self) -> Iterator[FailedMessage]:
        """The failed messages, oldest first, with their reasons and attempts."""
        return drive_each(self._list_failed())

    def redrive(
        self,
        messages: Iterable[int] | None = None,
        *,
        filter: str | None = None,
        to: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Try failed messages again, with no attempts counted: those named, those that match a filter, or all; in this
        queue or in another one. How many there were."""
        return drive(self._move(calls.Redriving(self.name, messages, filter, to), progress))

    def purge(
        self,
        *,
        available: bool = True,
        failed: bool = True,
        messages: Iterable[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove available and failed messages for good, or the failed ones that are named. What is in flight stays."""
        return drive(self._move(calls.Purging(self.name, available, failed, messages), progress))

    def reader(self, name: str, *, generation: int | None = None) -> AssignmentReader:
        """A reader of the queue by name, which takes messages by number instead of under leases. Open it before its
        first use, unless you were told its generation."""
        return AssignmentReader(self._store, self.name, name, generation)

    def readers(self) -> list[ReaderInfo]:
        """The readers of the queue, by name: how far each has come, and what is assigned to it."""
        return list(map(reader_info, self._commit(DescribeReaders(self.name)).readers))

    def work(self, handler: Callable[[Delivery], Any], **options: Any) -> None:
        """Handle messages until SIGTERM or SIGINT: see :class:`detent.Worker`."""
        from detent.queue.worker import Worker

        Worker(self, handler, **options).run()

    def _commit(self, operation: Operation) -> Any:
        return self._store.commit([operation])[-1]


class AsyncQueue(_QueueBase, Awaited):
    """`Queue` for asyncio: the same calls, awaited."""

    _store: AsyncQueueStore

    async def create(
        self, *, earliest: bool = False, exist_ok: bool = False, **settings: Unpack[QueueSettings]
    ) -> bool:
        """Create the queue; see :class:`detent.QueueSettings` for its settings. True if it is new."""
        created: ops.QueueCreated = await self._commit(self._create(settings, earliest, exist_ok))
        return created.new

    async def configure(self, *, expect_filter: str | None = None, **settings: Unpack[QueueSettings]) -> None:
        """Change settings; what is not named stays. See :meth:`Queue.configure`."""
        await self._commit(ops.ConfigureQueue(self.name, self._changes(settings), expect_filter))

    async def pause(self) -> None:
        """Give out nothing and take nothing in until `resume`."""
        await self.configure(paused=True)

    async def resume(self) -> None:
        """Go on where the queue was paused."""
        await self.configure(paused=False)

    async def delete(self) -> None:
        """Delete the queue and all that is in it."""
        await self._commit(ops.DeleteQueue(self.name))

    async def info(self) -> QueueInfo:
        """Settings, contents, counters."""
        found: ops.QueueDescriptions = await self._commit(ops.DescribeQueues(self.name))
        return queue_info(found.queues[0])

    async def publish(self, message: Message, *, headers: Mapping[str, str] | None = None, **options: Any) -> Published:
        """Publish a message to this queue by name; see :meth:`Queue.publish` for the options."""
        return calls.published(await self._store.commit(self._publish(message, headers, options)))[0]

    async def publish_many(
        self, messages: Iterable[Message], *, headers: Mapping[str, str] | None = None
    ) -> Sequence[Published]:
        """Publish many messages to this queue, all or none."""
        operations = calls.operations_for(messages, headers, self.name)
        return calls.PublishedMany(await self._store.commit(operations) if operations else [])

    async def claim(
        self,
        count: int = 1,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> list[AsyncDelivery]:
        """Claim up to `count` messages; see :meth:`Queue.claim`."""
        return await self._claim(AsyncDelivery, count, wait, lease, consumer)

    def _reads_aside(self, count: int) -> bool:
        return self._store.reads_are_slow or count > READ_AT_ONCE_MAX

    async def wait(self, timeout: Duration) -> None:
        """Return when there may be something to claim, or after the time."""
        await self._store.wait_claimable(self.name, min(WAIT_SLICE_MS, milliseconds(timeout)))

    def messages(
        self, *, batch: int = 1, timeout: Duration | None = None, lease: Duration | None = None
    ) -> AsyncIterator[AsyncDelivery]:
        """Claim messages for ever, one after another; with a timeout, until none has come for that long.

        With a larger `batch` the lease of the last one must last for all of them: nobody extends it here. A `Worker`
        does.
        """
        return self._claim_on(AsyncDelivery, batch, timeout, lease)

    async def ack(self, messages: Iterable[Held]) -> None:
        """Many messages are done, all or none."""
        operations = ack_operations(messages)
        if operations:
            await self._store.commit(operations)

    async def peek(
        self,
        limit: int = 100,
        *,
        states: str | Iterable[str] | None = None,
        filter: str | None = None,
        priority: int | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        payload_bytes: int = PAYLOAD_BYTES,
        cursor: str | None = None,
    ) -> QueuePage:
        """Look into the queue, page by page, without claiming; see :meth:`Queue.peek`."""
        return await self._peek(limit, states, filter, priority, older_than, newer_than, payload_bytes, cursor)

    def failed(self) -> AsyncIterator[FailedMessage]:
        """The failed messages, oldest first, with their reasons and attempts."""
        return self._list_failed()

    async def redrive(
        self, messages: Iterable[int] | None = None, *, filter: str | None = None, to: str | None = None
    ) -> int:
        """Try failed messages again; see :meth:`Queue.redrive`."""
        return await self._move(calls.Redriving(self.name, messages, filter, to))

    async def purge(self, *, available: bool = True, failed: bool = True, messages: Iterable[int] | None = None) -> int:
        """Remove available and failed messages for good; see :meth:`Queue.purge`."""
        return await self._move(calls.Purging(self.name, available, failed, messages))

    def reader(self, name: str, *, generation: int | None = None) -> AsyncAssignmentReader:
        """A reader of the queue by name; see :meth:`Queue.reader`."""
        return AsyncAssignmentReader(self._store, self.name, name, generation)

    async def readers(self) -> list[ReaderInfo]:
        """The readers of the queue, by name."""
        return list(map(reader_info, (await self._commit(DescribeReaders(self.name))).readers))

    async def work(self, handler: Callable[[AsyncDelivery], Awaitable[Any]], **options: Any) -> None:
        """Handle messages until SIGTERM or SIGINT: see :class:`detent.AsyncWorker`."""
        from detent.queue.worker import AsyncWorker

        await AsyncWorker(self, handler, **options).run()

    async def _commit(self, operation: Operation) -> Any:
        return (await self._store.commit([operation]))[-1]
