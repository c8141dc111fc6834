"""A message move task as it is remembered and listed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from detent.server.access import Caller
from detent.server.sqs.errors import NO_SOURCE, Refused
from detent.server.sqs.names import Place


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
