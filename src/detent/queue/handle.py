"""`store.queue(name)`: a queue as a user holds it, sync and async.

Both halves build their operations in :mod:`detent.queue.calls`, and share what takes several steps.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Generic, Protocol, TypeVar, Unpack

from detent import spans
from detent.durations import Duration, milliseconds
from detent.engine import Operation
from detent.engine.twins import Awaited, Plain, Twin, both, each
from detent.errors import Corrupt, Invalid
from detent.queue import calls
from detent.queue import operations as ops
from detent.queue.assignment import AssignmentReader, AsyncAssignmentReader, ReaderInfo, reader_info
from detent.queue.calls import Message
from detent.queue.info import FailedMessage, QueueInfo, QueuePage, failed_message, queue_info
from detent.queue.message import AsyncDelivery, Delivery, Held, Published, ack_operations
from detent.queue.reader import QueueReader
from detent.queue.reader_operations import DescribeReaders
from detent.queue.unclaiming import undoing, undoing_deliveries, undoing_readable
from detent.settings.queue import QueueSettings

Delivered = TypeVar("Delivered", Delivery, AsyncDelivery)

WAIT_SLICE_MS: Final = 5_000
"""A consumer that waits looks again this often, whatever it hears: the owner may have been replaced."""

FAILED_PAGE: Final = 500

BODY_BYTES: Final = 256
"""The first bytes of a body that a look into a queue shows, unless told otherwise."""

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


class _QueueBase(Twin, Generic[Delivered]):
    """What a queue and its twin share."""

    _delivery: type[Delivered]

    def __init__(self, store: Any, name: str) -> None:
        ops.check_name(name)
        self._store = store
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _publish(self, message: Message, headers: Mapping[str, str] | None, options: Mapping[str, Any]) -> list[Any]:
        if type(message) is bytes and not options:
            return [calls.publish_plain([message], headers, self.name)]
        return calls.publish([calls.outgoing(message, headers, options)], self.name)

    # -- what takes several steps -------------------------------------------------------------------------------

    async def _claim(
        self,
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
                found = await self._deliveries(result)
                if found:
                    return found
            left_ms = 0 if patience is None else patience.slice_ms()
            if not left_ms:
                return []
            await self._answered(self._store.wait_claimable(self.name, left_ms))

    async def _deliveries(self, result: ops.ClaimedMessages) -> list[Delivered]:
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
                found = await self._aside(calls.deliveries, self._delivery, store, self.name, store.messages, result)
                return found
            return calls.deliveries(self._delivery, store, self.name, store.messages, result)
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

    async def _move(self, steps: calls.Redriving | calls.Purging, progress: Callable[[int], None] | None = None) -> int:
        while steps.more:
            steps.did((await self._ask([steps.next_step()]))[0])
            if progress is not None:
                progress(steps.total)
        return steps.total

    # -- calls --------------------------------------------------------------------------------------------------

    @both
    async def create(
        self, *, earliest: bool = False, exist_ok: bool = False, **settings: Unpack[QueueSettings]
    ) -> bool:
        """Create the queue; `Exists` if it is there, unless `exist_ok`. True if it is new.

        A queue that exists keeps its settings; `configure` changes them. Without a `filter` it gets the messages that
        are published to it. A filter is a CEL expression over the headers, such as ``headers.tier == "gold"``; ``true``
        takes everything. With `earliest` the queue also gets what is stored already. Its settings are those of
        :class:`detent.QueueSettings`.
        """
        created: ops.QueueCreated = await self._do(
            ops.CreateQueue(self.name, calls.settings(self.name, settings), earliest, exist_ok)
        )
        return created.new

    @both
    async def configure(self, *, expect_filter: str | None = None, **settings: Unpack[QueueSettings]) -> None:
        """Change settings; what is not named stays. A new filter applies to what the queue has not read yet. With
        `expect_filter` nothing is changed, and `Conflict` raised, if the filter is another one by now."""
        if not settings:
            raise Invalid("there is nothing to change: name a setting")
        await self._do(ops.ConfigureQueue(self.name, calls.settings(self.name, settings), expect_filter))

    @both
    async def pause(self) -> None:
        """Give out nothing and take nothing in until `resume`; what is in flight can still be acknowledged."""
        await self._do(ops.ConfigureQueue(self.name, calls.settings(self.name, {"paused": True}), None))

    @both
    async def resume(self) -> None:
        """Go on where the queue was paused. It catches up with what was published meanwhile, in the background: `info`
        says whether it still does, and a claim that waits gets what comes.
        """
        await self._do(ops.ConfigureQueue(self.name, calls.settings(self.name, {"paused": False}), None))

    @both
    async def delete(self) -> None:
        """Delete the queue and all that is in it. Its receipts are stale from now on."""
        await self._do(ops.DeleteQueue(self.name))

    @both
    async def info(self) -> QueueInfo:
        """Settings, contents, counters."""
        found: ops.QueueDescriptions = await self._do(ops.DescribeQueues(self.name))
        return queue_info(found.queues[0])

    @both
    async def publish(
        self, /, message: Message, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Published:
        """Publish a message to this queue. When this returns, it is durable and can be claimed.

        `NotFound` if there is no such queue, `Invalid` if its filter does not match the headers. (The address is a
        header too, so other queues whose filters match get the message as well.) A dedup key is the queue's own.
        Options: `uri`, `created`, `visible_at`, `delay` ("10s"), `retention` ("4d"; "0s" is for ever), `dedup_key`.
        """
        with spans.sending("publish", self.name):
            return calls.published(await self._ask(self._publish(message, headers, options)))[0]

    @both
    async def publish_many(
        self, messages: Iterable[Message], *, headers: Mapping[str, str] | None = None
    ) -> Sequence[Published]:
        """Publish many messages to this queue, all or none."""
        listed = list(messages)
        with spans.sending("publish", self.name, len(listed)):
            operations = calls.operations_for(listed, headers, self.name)
            return calls.PublishedMany(await self._ask(operations) if operations else [])

    @both
    async def claim(
        self,
        count: int = 1,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> list[Delivered]:
        """Claim up to `count` messages, most urgent first, then oldest first.

        With `wait`, an empty queue is waited for that long. Each message is this consumer's until its lease ends:
        acknowledge it, fail it or extend the lease before that. A `lease` is cut to the queue's `max_lease`.
        """
        return await self._claim(count, wait, lease, consumer)

    @both
    async def wait(self, timeout: Duration) -> None:
        """Return when there may be something to claim, or after the time."""
        left_ms = min(WAIT_SLICE_MS, milliseconds(timeout))
        await self._answered(self._store.wait_claimable(self.name, left_ms))

    @each
    async def messages(
        self, *, batch: int = 1, timeout: Duration | None = None, lease: Duration | None = None
    ) -> AsyncGenerator[Delivered, None]:
        """Claim messages for ever, one after another; with a timeout, until none has come for that long.

        With a larger `batch` the lease of the last one must last for all of them: nothing extends it here. A `Worker`
        does. What was claimed and not given out goes back when the iterator is closed, with its attempt.
        """
        while True:
            found = await self._claim(batch, "1h" if timeout is None else timeout, lease, None)
            given = 0
            try:
                for message in found:
                    given += 1
                    yield message
            finally:  # closed before it had given out all of them
                self._store.undo(undoing_deliveries(found[given:]))
            if not found and timeout is not None:
                return

    @both
    async def ack(self, messages: Iterable[Held]) -> None:
        """Many messages are done, all or none: one stale receipt refuses them all."""
        operations = ack_operations(messages)
        if operations:
            await self._ask(operations)

    @both
    async def peek(
        self,
        limit: int = 100,
        *,
        states: str | Iterable[str] | None = None,
        filter: str | None = None,
        priority: int | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        body_bytes: int = BODY_BYTES,
        cursor: str | None = None,
    ) -> QueuePage:
        """Look into the queue, page by page, without claiming: nothing changes, and no attempt is counted.

        A page has up to `limit` messages (1,000 at most), with their headers and the first `body_bytes` of their
        bodies (4,096 at most; 0 reads none). Choose by `states` (available, delayed, blocked, in flight, assigned,
        failed, done), by a `filter` for headers, by `priority`, by how long ago they were published. First come those
        that are not failed or done, in the order in which they came to the queue; then the failed, then the done ones.

        `page.cursor` is where the next page begins. It stays good while the queue changes: a message that stays where
        it is, is on one page; one that moves on may be on two, or on none.
        """
        operation = calls.peek(self.name, limit, states, filter, priority, older_than, newer_than, body_bytes, cursor)
        page = await self._do(operation)
        found: QueuePage = await self._aside(calls.queue_page, self.name, self._store.messages, operation, page)
        return found

    @each
    async def failed(self) -> AsyncGenerator[FailedMessage, None]:
        """The failed messages, oldest first, with their reasons and attempts."""
        after, more = -1, True
        while more:
            page: ops.FailedMessages = await self._do(ops.ListFailed(self.name, after, FAILED_PAGE))
            contents = await self._aside(calls.failed_contents, self._store.messages, page)
            for entry, content in zip(page.messages, contents, strict=True):
                yield failed_message(self.name, entry, content)
                after = entry.message
            more = page.more

    @both
    async def redrive(
        self,
        messages: Iterable[int] | None = None,
        *,
        filter: str | None = None,
        to: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Try failed messages again, with no attempts counted: those named, those that match a filter, or all; in this
        queue or in another one. How many there were."""
        return await self._move(calls.Redriving(self.name, messages, filter, to), progress)

    @both
    async def purge(
        self,
        *,
        available: bool = True,
        failed: bool = True,
        messages: Iterable[int] | None = None,
        in_flight: bool = False,
        keys: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove available and failed messages for good, or the failed ones that are named. How many there were.

        What is in flight stays with its consumer, unless `in_flight` says that it goes too: the consumer's receipt is
        stale then. With `keys` the queue forgets its dedup keys: what is published again is delivered again."""
        return await self._move(calls.Purging(self.name, available, failed, messages, in_flight, keys), progress)

    @both
    async def readers(self) -> list[ReaderInfo]:
        """The readers of the queue, by name: how far each has come, and what is assigned to it."""
        return list(map(reader_info, (await self._do(DescribeReaders(self.name))).readers))


class Queue(_QueueBase[Delivery], Plain):
    """A queue: claims messages with a lease, and takes what became of them.

    >>> orders = store.queue("orders")
    >>> orders.create()
    >>> orders.publish(b"one").message
    0
    >>> for message in orders.claim(10):
    ...     with message:
    ...         print(message.body)
    b'one'
    """

    _store: QueueStore
    _delivery = Delivery

    def reader(self, name: str, *, generation: int | None = None) -> AssignmentReader:
        """A reader of the queue by name, which takes messages by number instead of under leases. Open it before its
        first use, unless you were told its generation."""
        return AssignmentReader(self._store, self.name, name, generation)

    def work(self, handler: Callable[[Delivery], Any], **options: Any) -> None:
        """Handle messages until SIGTERM or SIGINT: see :class:`detent.Worker`."""
        from detent.queue.worker import Worker

        Worker(self, handler, **options).run()


class AsyncQueue(_QueueBase[AsyncDelivery], Awaited):
    """`Queue` for asyncio: the same calls, awaited."""

    _store: AsyncQueueStore
    _delivery = AsyncDelivery

    def _reads_aside(self, count: int) -> bool:
        return self._store.reads_are_slow or count > READ_AT_ONCE_MAX

    def reader(self, name: str, *, generation: int | None = None) -> AsyncAssignmentReader:
        """A reader of the queue by name; see :meth:`Queue.reader`."""
        return AsyncAssignmentReader(self._store, self.name, name, generation)

    async def work(self, handler: Callable[[AsyncDelivery], Awaitable[Any]], **options: Any) -> None:
        """Handle messages until SIGTERM or SIGINT: see :class:`detent.AsyncWorker`."""
        from detent.queue.worker import AsyncWorker

        await AsyncWorker(self, handler, **options).run()
