"""Message move tasks: a dead-letter queue's messages go back to where they came from, in the background.

A task claims a few messages at a time. One transaction publishes them at their destination and acknowledges them at
their source: after a crash each is in one of the two queues. Large ones take several transactions, so that no more
than `STEP_BYTES` is held at once. A task itself is not stored: what a dead server has left unmoved stays in the source,
for another task.

A message that its destination refuses stays in the source, and the others are moved: the task ends as failed, and says
how many stay and why. The destination may have got another `priority_header` or filter since the message was sent.

Messages that have failed, because their queue had no dead-letter queue to give them up to, go along where a destination
is named, as they are: no consumer claims them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from detent.codec.origin import OriginRecord
from detent.codec.published import URI
from detent.errors import Denied, DetentError, Exists, Invalid, NotFound, StaleReceipt
from detent.queue import calls
from detent.queue import operations as ops
from detent.queue.message import Outgoing
from detent.queue.reader import Content, QueueReader, content_bytes
from detent.remote.rights import told
from detent.server.access import Caller
from detent.server.sqs.attributes import ADDRESS
from detent.server.sqs.call import SqsCall, require_any
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import (
    INTERNAL,
    INVALID_VALUE,
    NO_SOURCE,
    NOT_FOUND,
    OVER_LIMIT,
    UNSUPPORTED,
    Refused,
    invalid_value,
    no_queue,
    refused,
)
from detent.server.sqs.names import QueuePlace, queue_of_arn
from detent.server.sqs.sending import check_order
from detent.server.sqs.settings import SettingsView

if TYPE_CHECKING:
    from detent.store import AsyncStore


import uuid
from dataclasses import dataclass, field


@dataclass(slots=True)
class MoveTask:
    """One task, under way or over. `number` is the source's own; `failed` says that there may be failed messages to
    move, those after the message `after`. The messages `staying` were refused at their destination, and stay in the
    source; `refusal` is why the first of them was."""

    source: str
    number: int
    destination: str | None
    rate: int | None
    to_move: int
    started_ms: int
    caller: Caller
    sources: frozenset[str]
    failed: bool
    after: int = -1
    handle: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "RUNNING"
    moved: int = 0
    reason: str = ""
    staying: set[int] = field(default_factory=set)
    refusal: Refused | None = None

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return self.status in {"RUNNING", "CANCELLING"}

    @property
    def in_place(self) -> bool:
        """Whether failed messages are made available again in their own queue, and nothing else is moved."""
        return self.destination == self.source

    @property
    def left(self) -> int:
        """How many messages are still to be moved."""
        return self.to_move - self.moved - len(self.staying)

    def stay(self, message: int, error: Refused) -> None:
        """A message was refused at its destination."""
        self.staying.add(message)
        self.refusal = self.refusal or error

    def end(self) -> None:
        """There is nothing left to do. With messages that stay the task has failed, because the rest is up to the
        caller."""
        if self.status == "CANCELLING":
            self.status = "CANCELLED"
        elif self.refusal is None:
            self.status = "COMPLETED"
        else:
            self.status, self.reason = "FAILED", self.refusal.fault.code
            if self.refusal.fault != NO_SOURCE:  # SQS knows that one by its code alone
                staying = f"{len(self.staying)} of the messages could not be moved"
                self.reason += f": {staying}; the first of them: {self.refusal.message}"

    def answer(self, place: QueuePlace) -> dict[str, Any]:
        """The task as it is listed."""
        found: dict[str, Any] = {"Status": self.status, "SourceArn": place.arn(self.source)}
        if self.status == "RUNNING":
            found["TaskHandle"] = self.handle
        if self.destination is not None:
            found["DestinationArn"] = place.arn(self.destination)
        if self.rate is not None:
            found["MaxNumberOfMessagesPerSecond"] = self.rate
        found["ApproximateNumberOfMessagesMoved"] = self.moved
        found["ApproximateNumberOfMessagesToMove"] = self.to_move
        if self.reason:
            found["FailureReason"] = self.reason
        return {**found, "StartedTimestamp": self.started_ms}


RATE_MAX: Final = 500
"""Messages that a task moves in a second at most, as in SQS."""

BATCH: Final = 100
STEP_BYTES: Final = 8 << 20
"""What one transaction of a task moves, unless a single message is larger."""

LEASE_MS: Final = 60_000
PAUSE_S: Final = 0.25
"""How long a task waits that finds nothing to claim in a queue with messages."""

ACTIVE_MAX: Final = 100
"""Tasks that run at once, as in SQS."""

TASKS_KEPT: Final = 10
"""Tasks of one queue that are remembered, as in SQS."""

TASKS_MAX: Final = 1_000
"""Tasks of all queues that are remembered: the newest."""

STAYING_MAX: Final = ops.CLAIM_MAX - BATCH
"""Messages that a task may leave behind. Each claim goes past them."""

_HANDLE: Final = re.compile("[0-9a-f]{32}")

logger = logging.getLogger("detent.server.sqs")


class Held(NamedTuple):
    """A message that a task has claimed: the message, the record that it is in, the delivery."""

    message: int
    record: int
    delivery: int


class Parcel(NamedTuple):
    """A message to move, and the queue that gave it up, if that is known."""

    content: Content
    source: str


class Moving:
    """The tasks of this server."""

    def __init__(
        self,
        store: AsyncStore,
        directory: Directory,
        place: QueuePlace,
        clock: Callable[[], float],
        still: Callable[[Caller], bool],
    ) -> None:
        self._store = store
        self._directory = directory
        self._place = place
        self._clock = clock
        self._still = still
        self._tasks: dict[str, MoveTask] = {}  # by their handles, the oldest first
        self._running: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop all tasks. What was claimed and not moved comes back when its lease ends."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def start(self, call: SqsCall) -> dict[str, Any]:
        """StartMessageMoveTask."""
        source = queue_of_arn(call.fields["SourceArn"], "SourceArn")
        given = call.fields.get("DestinationArn")
        destination = queue_of_arn(given, "DestinationArn") if given else None
        rate = call.number("MaxNumberOfMessagesPerSecond", 1, RATE_MAX)
        call.caller.require("consume", "queue", source)
        if destination is not None:
            call.caller.require("publish", "queue", destination)
        view = await self._existing(source, "SourceArn")
        failed = view.info.failed if destination and call.caller.may("admin", "queue", source) else 0
        sources = await self._sources(view, destination, failed)
        to_move = failed if destination == source else view.visible + failed
        now_ms = int(self._clock() * 1000)
        task = MoveTask(source, view.number, destination, rate, to_move, now_ms, call.caller, sources, failed > 0)
        self._keep(task)
        running = asyncio.create_task(self._run(task))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return {"TaskHandle": task.handle}

    def _keep(self, task: MoveTask) -> None:
        """Remember a task, if it may begin, and forget old ones: more than a queue has room for, or the server."""
        if any(known.is_active for known in self._of(task.number)):
            raise invalid_value(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time."
            )
        if sum(known.is_active for known in self._tasks.values()) >= ACTIVE_MAX:
            raise Refused(OVER_LIMIT, f"There are {ACTIVE_MAX} active tasks already.")
        self._tasks[task.handle] = task
        old = self._of(task.number)[TASKS_KEPT:]
        if len(self._tasks) > TASKS_MAX:
            old.append(next(known for known in self._tasks.values() if not known.is_active))
        for known in old:
            self._tasks.pop(known.handle, None)

    def _of(self, number: int) -> list[MoveTask]:
        """The tasks of a queue, the newest first."""
        return [task for task in reversed(self._tasks.values()) if task.number == number]

    def forget(self, number: int) -> None:
        """A queue was deleted, and its tasks with it."""
        for task in self._of(number):
            task.status = "CANCELLING" if task.is_active else task.status
            del self._tasks[task.handle]

    async def _sources(self, source: SettingsView, destination: str | None, failed: int) -> frozenset[str]:
        """With no destination, a message goes back to the queue that gave it up: one of these."""
        if destination is None:
            found = frozenset(view.name for view in await self._directory.all() if view.dead_letter == source.name)
            if not found:
                raise invalid_value(
                    "Source queue must be configured as a Dead Letter Queue, or a DestinationArn be given."
                )
            return found
        target = await self._existing(destination, "DestinationArn")
        check_order(target)
        if target.name == source.name and not failed:
            raise invalid_value("Source and destination are the same queue, and none of its messages has failed.")
        if target.is_fifo != source.is_fifo:
            raise invalid_value("Source and destination must be of the same type, FIFO or standard.")
        return frozenset()

    async def _existing(self, name: str, parameter: str) -> SettingsView:
        try:
            return await self._directory.look(name)
        except Refused as error:
            raise Refused(
                NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
            ) from error

    async def tasks(self, call: SqsCall) -> dict[str, Any]:
        """ListMessageMoveTasks: the newest first."""
        source = queue_of_arn(call.fields["SourceArn"], "SourceArn")
        require_any(call.caller, source)
        view = await self._existing(source, "SourceArn")
        count = call.number("MaxResults", 1, TASKS_KEPT) or 1
        return {"Results": [task.answer(self._place) for task in self._of(view.number)[:count]]}

    async def cancel(self, call: SqsCall) -> dict[str, Any]:
        """CancelMessageMoveTask."""
        handle = call.fields["TaskHandle"]
        if not _HANDLE.fullmatch(handle):
            raise invalid_value("Value for parameter TaskHandle is invalid.")
        task = self._tasks.get(handle)
        if task is None:
            raise Refused(NOT_FOUND, "Task does not exist.")
        call.caller.require("consume", "queue", task.source)
        if task.status != "RUNNING":
            raise Refused(UNSUPPORTED, f"Only active tasks can be cancelled; this one is {task.status}.")
        task.status = "CANCELLING"
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    # -- a task under way ---------------------------------------------------------------------------------------

    async def _run(self, task: MoveTask) -> None:
        try:
            while task.status == "RUNNING" and task.left > 0 and len(task.staying) <= STAYING_MAX:
                moved = await self._step(task)
                if task.rate is not None and moved:
                    await asyncio.sleep(moved / task.rate)
                elif not moved:
                    if not await self._has_more(task):
                        break
                    await asyncio.sleep(PAUSE_S)
            task.end()
        except DetentError as error:
            logger.warning("moving messages from %s: %s", task.source, error)
            task.status, task.reason = "FAILED", refused(error).fault.code
        except Exception:
            logger.exception("moving messages from %s", task.source)
        finally:
            if task.is_active:
                task.status, task.reason = "FAILED", INTERNAL.code  # whatever it was: it does not run any more

    async def _has_more(self, task: MoveTask) -> bool:
        """Whether there is something left that could not be had just now: others of its group are in flight, or the
        queue is paused."""
        return task.failed or (not task.in_place and (await self._view(task)).visible > len(task.staying))

    async def _view(self, task: MoveTask) -> SettingsView:
        """The source as it is now; refused if it is another one of the same name."""
        view = await self._directory.look(task.source)
        if view.number != task.number:
            raise no_queue()
        return view

    async def _step(self, task: MoveTask) -> int:
        """Move a few messages; how many there were."""
        self._check_caller(task.caller)
        await self._view(task)
        count = min(BATCH, task.left, task.rate or BATCH)
        if task.failed:
            return await self._redrive(task, count)
        if task.in_place:
            return 0
        claim = ops.Claim(task.source, count + len(task.staying), LEASE_MS, "message move task")
        claimed: ops.ClaimedMessages = (await self._store.commit([claim]))[0]
        came = [
            Held(message, record, claimed.first_delivery + index)
            for index, (message, record) in enumerate(zip(claimed.messages, claimed.records, strict=True))
        ]
        wanted = [held for held in came if held.message not in task.staying][:count]
        left, before = wanted, task.moved
        try:
            if claimed.queue != task.number:
                raise no_queue()
            while left:
                left = await self._move(task, left)
            if came and (task.staying or len(wanted) < len(came)):
                await self._store.commit([_unclaim(claimed.queue, came)])  # what was moved has no receipt any more
        except StaleReceipt:  # leases ended: what was not moved comes again
            self._give_back(claimed.queue, came)
        except BaseException:
            self._give_back(claimed.queue, came)
            raise
        return task.moved - before

    def _check_caller(self, caller: Caller) -> None:
        """`Denied` if the caller that began a task may not go on, or if that is not known."""
        try:
            known = self._still(caller)
        except DetentError as error:
            raise Denied(f"it is not known whether the key of {caller.name} still counts: {error}") from error
        if not known:
            raise Denied(f"the key of {caller.name} was revoked or changed since it began to move messages")

    async def _move(self, task: MoveTask, left: list[Held]) -> list[Held]:
        """Move the first of some messages, as many as one transaction holds. Answers the others."""
        parcels = await asyncio.to_thread(_read, self._store.messages, task.number, left)
        taken = left[: len(parcels)]
        found = [(held, parcel) for held, parcel in zip(taken, parcels, strict=True) if parcel is not None]
        if found:
            try:
                await self._move_these(task, found)
            except (Invalid, Refused):  # one of them: the others are wanted still
                for one in found:
                    await self._move_or_leave(task, one)
        return left[len(taken) :]

    async def _move_or_leave(self, task: MoveTask, found: tuple[Held, Parcel]) -> None:
        """Move one message, unless its destination refuses it or is not known: then it stays."""
        try:
            await self._move_these(task, [found])
        except (Invalid, Refused) as error:
            refusal = refused(told(task.caller, error))
            if refusal.fault not in {INVALID_VALUE, NO_SOURCE}:
                raise
            logger.warning("message %d stays in %s: %s", found[0].message, task.source, error)
            task.stay(found[0].message, refusal)

    async def _move_these(self, task: MoveTask, found: list[tuple[Held, Parcel]]) -> None:
        operations: list[Any] = []
        by_destination = self._by_destination(task, [parcel for _, parcel in found])
        for destination, letters in by_destination.items():
            operations += await self._publish(destination, letters)
        messages, deliveries = [held.message for held, _ in found], [held.delivery for held, _ in found]
        await self._store.commit([*operations, ops.Ack(task.number, messages, deliveries)])
        task.moved += len(found)

    def _by_destination(self, task: MoveTask, found: list[Parcel]) -> dict[str, list[Content]]:
        groups: dict[str, list[Content]] = {}
        for content, source in found:
            name = task.destination or _source_of(content[2].headers, source, task.sources)
            task.caller.require("publish", "queue", name)
            groups.setdefault(name, []).append(content)
        return groups

    async def _publish(self, destination: str, found: list[Content]) -> list[Any]:
        """The same messages as new ones: their retention starts anew, and so does the count of their deliveries."""
        view = await self._directory.find(destination)
        retention = f"{view.retention_s}s"
        return calls.publish(
            [
                Outgoing(
                    b"" if kind == URI else data,
                    {name: value for name, value in about.headers.items() if name != ADDRESS},
                    uri=data.decode() if kind == URI else None,
                    retention=retention,
                )
                for kind, data, about in found
            ],
            destination,
        )

    def _give_back(self, queue: int, came: list[Held]) -> None:
        """What was not moved is as if it had not been claimed."""
        if came:
            self._store.undo([_unclaim(queue, came)])

    async def _redrive(self, task: MoveTask, count: int) -> int:
        """Move a few messages that have failed; how many there were."""
        if task.destination is not None:
            await self._directory.look(task.destination)
        page: ops.FailedMessages = (await self._store.commit([ops.ListFailed(task.source, task.after, count)]))[0]
        messages = [entry.message for entry in page.messages]
        task.after, task.failed = messages[-1] if messages else task.after, page.more
        try:
            moved = await self._redrive_these(task, messages)
        except (Exists, NotFound):  # one of them is there already, or not here any more: the others are wanted still
            moved = 0
            for message in messages:
                with contextlib.suppress(Exists, NotFound):
                    moved += await self._redrive_these(task, [message])
        task.moved += moved
        return moved

    async def _redrive_these(self, task: MoveTask, messages: list[int]) -> int:
        if not messages:
            return 0
        to = None if task.in_place else task.destination
        result: ops.Moved = (await self._store.commit([ops.Redrive(task.source, messages, to=to)]))[0]
        return result.count


def _unclaim(queue: int, came: list[Held]) -> ops.Unclaim:
    return ops.Unclaim(queue, [held.message for held in came], [held.delivery for held in came])


def _read(reader: QueueReader, queue: int, left: list[Held]) -> list[Parcel | None]:
    """The contents of the first of some messages: as many as one transaction should hold, and one at least; None for
    one whose retention has ended."""
    found: list[Parcel | None] = []
    origins = reader.origins(queue, [held.message for held in left])
    size = 0
    for message, record, _ in left:
        (content,) = reader.contents([message], [record])
        size += 0 if content is None else content_bytes(content)
        if found and size > STEP_BYTES:
            break
        origin = origins.get(message)
        source = "" if origin is None else OriginRecord.decode(origin).moves[-1].source
        found.append(None if content is None else Parcel(content, source))
    return found


def _source_of(headers: Mapping[str, str], source: str, sources: frozenset[str]) -> str:
    """The queue that gave a message up. Of one that an earlier release has moved, that is not known: it is the queue
    that the message was sent to, or the only one that gives up to this queue."""
    if source in sources:
        return source
    sent_to = headers.get(ADDRESS, "")
    if sent_to in sources:
        return sent_to
    if len(sources) == 1:
        return next(iter(sources))
    raise Refused(NO_SOURCE, f"a message came from one of {', '.join(sorted(sources))}: name a destination")
