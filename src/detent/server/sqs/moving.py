"""Message move tasks: a dead-letter queue's messages go back to where they came from, in the background.

A task claims a few messages at a time. One transaction publishes them at their destination and acknowledges them at
their source: after a crash each is in one of the two queues. A task itself is not stored: what a dead server has left
unmoved stays in the source, for another task.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from detent.errors import DetentError, StaleReceipt
from detent.queue import calls
from detent.queue.message import AsyncDelivery, Outgoing, ack_operations
from detent.server.access import Caller
from detent.server.sqs.attributes import ADDRESS
from detent.server.sqs.call import Call, require_any
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import INTERNAL, NO_SOURCE, NOT_FOUND, UNSUPPORTED, Refused, invalid_value, refused
from detent.server.sqs.names import Place, queue_of_arn
from detent.server.sqs.settings import View

if TYPE_CHECKING:
    from detent.store import AsyncStore

RATE_MAX: Final = 500
"""Messages that a task moves in a second at most, as in SQS."""

BATCH: Final = 100
LEASE: Final = "60s"
TASKS_KEPT: Final = 10
"""Tasks of one queue that are remembered, as in SQS."""

_HANDLE: Final = re.compile("[0-9a-f]{32}")

logger = logging.getLogger("detent.server.sqs")


@dataclass(slots=True)
class Task:
    """One task, under way or over."""

    source: str
    destination: str | None
    rate: int | None
    to_move: int
    started_ms: int
    caller: Caller
    sources: frozenset[str]
    handle: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "RUNNING"
    moved: int = 0
    reason: str = ""

    def answer(self, place: Place) -> dict[str, Any]:
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


class Moving:
    """The tasks of this server."""

    def __init__(self, store: AsyncStore, directory: Directory, place: Place, clock: Callable[[], float]) -> None:
        self._store = store
        self._directory = directory
        self._place = place
        self._clock = clock
        self._tasks: dict[str, list[Task]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop all tasks. What was claimed and not moved comes back when its lease ends."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def start(self, call: Call) -> dict[str, Any]:
        """StartMessageMoveTask."""
        source = queue_of_arn(call.fields["SourceArn"], "SourceArn")
        given = call.fields.get("DestinationArn")
        destination = queue_of_arn(given, "DestinationArn") if given else None
        rate = call.number("MaxNumberOfMessagesPerSecond", 1, RATE_MAX)
        call.caller.require("consume", "queue", source)
        if destination is not None:
            call.caller.require("publish", "queue", destination)
        view = await self._existing(source, "SourceArn")
        sources = await self._sources(view, destination)
        known = self._tasks.setdefault(source, [])
        if any(task.status in {"RUNNING", "CANCELLING"} for task in known):
            raise invalid_value(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time."
            )
        task = Task(source, destination, rate, view.visible, int(self._clock() * 1000), call.caller, sources)
        known.insert(0, task)
        del known[TASKS_KEPT:]
        running = asyncio.create_task(self._run(task))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return {"TaskHandle": task.handle}

    async def _sources(self, source: View, destination: str | None) -> frozenset[str]:
        """With no destination, a message goes back to the queue that gave it up: one of these."""
        if destination is None:
            found = frozenset(view.name for view in await self._directory.all() if view.dead_letter == source.name)
            if not found:
                raise invalid_value(
                    "Source queue must be configured as a Dead Letter Queue, or a DestinationArn be given."
                )
            return found
        target = await self._existing(destination, "DestinationArn")
        if target.name == source.name:
            raise invalid_value("Source and destination are the same queue.")
        if target.is_fifo != source.is_fifo:
            raise invalid_value("Source and destination must be of the same type, FIFO or standard.")
        return frozenset()

    async def _existing(self, name: str, parameter: str) -> View:
        try:
            return await self._directory.look(name)
        except Refused as error:
            raise Refused(
                NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
            ) from error

    async def tasks(self, call: Call) -> dict[str, Any]:
        """ListMessageMoveTasks: the newest first."""
        source = queue_of_arn(call.fields["SourceArn"], "SourceArn")
        require_any(call.caller, source)
        await self._existing(source, "SourceArn")
        count = call.number("MaxResults", 1, TASKS_KEPT) or 1
        return {"Results": [task.answer(self._place) for task in self._tasks.get(source, [])[:count]]}

    async def cancel(self, call: Call) -> dict[str, Any]:
        """CancelMessageMoveTask."""
        handle = call.fields["TaskHandle"]
        if not _HANDLE.fullmatch(handle):
            raise invalid_value("Value for parameter TaskHandle is invalid.")
        task = next((task for known in self._tasks.values() for task in known if task.handle == handle), None)
        if task is None:
            raise Refused(NOT_FOUND, "Task does not exist.")
        call.caller.require("consume", "queue", task.source)
        if task.status != "RUNNING":
            raise Refused(UNSUPPORTED, f"Only active tasks can be cancelled; this one is {task.status}.")
        task.status = "CANCELLING"
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    # -- a task under way ---------------------------------------------------------------------------------------

    async def _run(self, task: Task) -> None:
        try:
            while task.status == "RUNNING" and task.moved < task.to_move:
                moved = await self._step(task)
                if not moved:
                    break
                if task.rate is not None:
                    await asyncio.sleep(moved / task.rate)
            task.status = "CANCELLED" if task.status == "CANCELLING" else "COMPLETED"
        except DetentError as error:
            logger.warning("moving messages from %s: %s", task.source, error)
            task.status, task.reason = "FAILED", refused(error).fault.code
        finally:
            if task.status in {"RUNNING", "CANCELLING"}:
                task.status, task.reason = "FAILED", INTERNAL.code  # whatever it was: it does not run any more

    async def _step(self, task: Task) -> int:
        """Move a few messages; how many there were."""
        count = min(BATCH, task.to_move - task.moved, task.rate or BATCH)
        found = await self._store.queue(task.source).claim(count, lease=LEASE, consumer="message move task")
        if not found:
            return 0
        try:
            operations: list[Any] = []
            for destination, messages in (await self._by_destination(task, found)).items():
                operations += await self._publish(destination, messages)
            await self._store.commit([*operations, *ack_operations(found)])
        except StaleReceipt:
            return len(found)  # a lease ended before the transaction, and nothing was moved: they come again
        except DetentError:
            await self._give_back(found)
            raise
        task.moved += len(found)
        return len(found)

    async def _by_destination(self, task: Task, found: list[AsyncDelivery]) -> dict[str, list[AsyncDelivery]]:
        groups: dict[str, list[AsyncDelivery]] = {}
        for message in found:
            name = task.destination or _source_of(message.headers, task.sources)
            task.caller.require("publish", "queue", name)
            groups.setdefault(name, []).append(message)
        return groups

    async def _publish(self, destination: str, messages: list[AsyncDelivery]) -> list[Any]:
        """The same messages as new ones: their retention starts anew, and so does the count of their deliveries."""
        view = await self._directory.find(destination)
        retention = f"{view.retention_s}s"
        return calls.publish(
            [
                Outgoing(
                    message.payload,
                    {name: value for name, value in message.headers.items() if name != ADDRESS},
                    uri=message.uri,
                    retention=retention,
                )
                for message in messages
            ],
            destination,
        )

    async def _give_back(self, found: list[AsyncDelivery]) -> None:
        for message in found:
            try:
                await message.fail("it could not be moved", delay="0s")
            except StaleReceipt:
                continue  # its lease ended meanwhile, which gives it back as well


def _source_of(headers: Mapping[str, str], sources: frozenset[str]) -> str:
    """The queue that gave a message up: the one that it was sent to, or the only one that gives up to this queue."""
    sent_to = headers.get(ADDRESS, "")
    if sent_to in sources:
        return sent_to
    if len(sources) == 1:
        return next(iter(sources))
    raise Refused(NO_SOURCE, f"a message came from one of {', '.join(sorted(sources))}: name a destination")
