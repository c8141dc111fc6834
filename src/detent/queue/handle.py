"""`store.queue(name)`: a queue as a user holds it, sync and async.

Both halves build their operations in :mod:`detent.queue.calls`; they differ in how they wait.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, Unpack

from detent.durations import Duration, milliseconds
from detent.engine import Operation
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
from detent.settings.queue import QueueSettings

WAIT_SLICE_MS: Final = 5_000
"""A consumer that waits looks again this often, whatever it hears: the owner may have been replaced."""

FAILED_PAGE: Final = 500

PAYLOAD_BYTES: Final = 256
"""The first bytes of a payload that a look into a queue shows, unless told otherwise."""

READ_AT_ONCE_MAX: Final = 16
"""Messages whose content an event loop reads itself from a local file: that takes less than asking a thread to."""


class Store(Protocol):
    """What a queue needs of its store."""

    messages: QueueReader

    def commit(self, operations: list[Operation]) -> list[Any]: ...

    def wait_claimable(self, queue: str, timeout_ms: int) -> None: ...

    def undo(self, operations: list[Operation]) -> None: ...


class AsyncStore(Protocol):
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


class _Patience:
    """How long a claim goes on waiting."""

    def __init__(self, wait: Duration | None) -> None:
        self._deadline = None if wait is None else time.monotonic() + milliseconds(wait) / 1000

    def slice_ms(self) -> int:
        """How long to wait now; 0 when the time is over."""
        if self._deadline is None:
            return 0
        left_ms = (self._deadline - time.monotonic()) * 1000
        return 0 if left_ms <= 0 else min(WAIT_SLICE_MS, int(left_ms) + 1)


class _QueueBase:
    """What both halves share."""

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


class Queue(_QueueBase):
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

    _store: Store

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
        operation = calls.claim(self.name, count, lease, consumer_label() if consumer is None else consumer)
        patience = _Patience(wait)
        while True:
            result: ops.ClaimedMessages = self._store.commit([operation])[0]
            if result.messages:
                found = self._deliveries(result)
                if found:
                    return found
            left_ms = patience.slice_ms()
            if not left_ms:
                return []
            self._store.wait_claimable(self.name, left_ms)

    def _deliveries(self, result: ops.ClaimedMessages) -> list[Delivery]:
        """The messages of a claim with their content. Without it the claim is undone, except of a message whose content
        is damaged."""
        try:
            whole = result if result.contents is None else self._fetch(calls.Fetching(result))
            return calls.deliveries(Delivery, self._store, self.name, self._store.messages, whole)
        except Corrupt:
            self._store.undo(undoing_readable(result, self._store.messages))
            raise
        except BaseException:
            self._store.undo(undoing([result]))
            raise

    def _fetch(self, steps: calls.Fetching) -> ops.ClaimedMessages:
        while steps.more:
            steps.did(self._commit(steps.next_step()))
        return steps.complete()

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
        while True:
            found = self.claim(batch, wait="1h" if timeout is None else timeout, lease=lease)
            given = 0
            try:
                for message in found:
                    given += 1
                    yield message
            finally:  # closed before it had given out all of them
                self._store.undo(undoing_deliveries(found[given:]))
            if not found and timeout is not None:
                return

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
        operation = pages.peek(
            self.name, limit, states, filter, priority, older_than, newer_than, payload_bytes, cursor
        )
        return pages.queue_page(self.name, self._store.messages, operation, self._commit(operation))

    def failed(self) -> Iterator[FailedMessage]:
        """The failed messages, oldest first, with their reasons and attempts."""
        after, more = -1, True
        while more:
            page: ops.FailedMessages = self._commit(ops.ListFailed(self.name, after, FAILED_PAGE))
            contents = calls.failed_contents(self._store.messages, page)
            for entry, content in zip(page.messages, contents, strict=True):
                yield failed_message(self.name, entry, content)
                after = entry.message
            more = page.more

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
        steps = calls.Redriving(self.name, messages, filter, to)
        while steps.more:
            steps.did(self._commit(steps.next_step()))
            if progress is not None:
                progress(steps.total)
        return steps.total

    def purge(
        self,
        *,
        available: bool = True,
        failed: bool = True,
        messages: Iterable[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove available and failed messages for good, or the failed ones that are named. What is in flight stays."""
        steps = calls.Purging(self.name, available, failed, messages)
        while steps.more:
            steps.did(self._commit(steps.next_step()))
            if progress is not None:
                progress(steps.total)
        return steps.total

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


class AsyncQueue(_QueueBase):
    """`Queue` for asyncio: the same calls, awaited."""

    _store: AsyncStore

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
        operation = calls.claim(self.name, count, lease, consumer_label() if consumer is None else consumer)
        patience = _Patience(wait)
        while True:
            result: ops.ClaimedMessages = await self._commit(operation)
            if result.messages:
                found = await self._deliveries(result)
                if found:
                    return found
            left_ms = patience.slice_ms()
            if not left_ms:
                return []
            await self._store.wait_claimable(self.name, left_ms)

    async def _deliveries(self, result: ops.ClaimedMessages) -> list[AsyncDelivery]:
        """The messages of a claim with their content; see :meth:`Queue._deliveries`."""
        try:
            return await self._read(result)
        except Corrupt:
            self._store.undo(await asyncio.to_thread(undoing_readable, result, self._store.messages))
            raise
        except BaseException:
            self._store.undo(undoing([result]))
            raise

    async def _read(self, result: ops.ClaimedMessages) -> list[AsyncDelivery]:
        """The content came along, or is read from the store."""
        store = self._store
        if result.contents is not None:
            result = await self._fetch(calls.Fetching(result))
        elif store.reads_are_slow or len(result.messages) > READ_AT_ONCE_MAX:
            return await asyncio.to_thread(calls.deliveries, AsyncDelivery, store, self.name, store.messages, result)
        return calls.deliveries(AsyncDelivery, store, self.name, store.messages, result)

    async def _fetch(self, steps: calls.Fetching) -> ops.ClaimedMessages:
        while steps.more:
            steps.did(await self._commit(steps.next_step()))
        return steps.complete()

    async def wait(self, timeout: Duration) -> None:
        """Return when there may be something to claim, or after the time."""
        await self._store.wait_claimable(self.name, min(WAIT_SLICE_MS, milliseconds(timeout)))

    async def messages(
        self, *, batch: int = 1, timeout: Duration | None = None, lease: Duration | None = None
    ) -> AsyncIterator[AsyncDelivery]:
        """Claim messages for ever, one after another; with a timeout, until none has come for that long.

        With a larger `batch` the lease of the last one must last for all of them: nobody extends it here. A `Worker`
        does.
        """
        while True:
            found = await self.claim(batch, wait="1h" if timeout is None else timeout, lease=lease)
            given = 0
            try:
                for message in found:
                    given += 1
                    yield message
            finally:  # closed before it had given out all of them
                self._store.undo(undoing_deliveries(found[given:]))
            if not found and timeout is not None:
                return

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
        operation = pages.peek(
            self.name, limit, states, filter, priority, older_than, newer_than, payload_bytes, cursor
        )
        page = await self._commit(operation)
        return await asyncio.to_thread(pages.queue_page, self.name, self._store.messages, operation, page)

    async def failed(self) -> AsyncIterator[FailedMessage]:
        """The failed messages, oldest first, with their reasons and attempts."""
        after, more = -1, True
        while more:
            page: ops.FailedMessages = await self._commit(ops.ListFailed(self.name, after, FAILED_PAGE))
            contents = await asyncio.to_thread(calls.failed_contents, self._store.messages, page)
            for entry, content in zip(page.messages, contents, strict=True):
                yield failed_message(self.name, entry, content)
                after = entry.message
            more = page.more

    async def redrive(
        self, messages: Iterable[int] | None = None, *, filter: str | None = None, to: str | None = None
    ) -> int:
        """Try failed messages again; see :meth:`Queue.redrive`."""
        steps = calls.Redriving(self.name, messages, filter, to)
        while steps.more:
            steps.did(await self._commit(steps.next_step()))
        return steps.total

    async def purge(self, *, available: bool = True, failed: bool = True, messages: Iterable[int] | None = None) -> int:
        """Remove available and failed messages for good; see :meth:`Queue.purge`."""
        steps = calls.Purging(self.name, available, failed, messages)
        while steps.more:
            steps.did(await self._commit(steps.next_step()))
        return steps.total

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
