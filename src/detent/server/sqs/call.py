"""One call of an action: what was asked, by whom, and the checks that several actions share."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from detent.errors import Denied
from detent.server.access import RIGHTS, Caller, Right
from detent.server.sqs.errors import (
    BATCH_IDS_NOT_DISTINCT,
    EMPTY_BATCH,
    INVALID_BATCH_ID,
    MISSING_PARAMETER,
    TOO_MANY_ENTRIES,
    Refused,
    invalid_value,
)
from detent.server.sqs.names import queue_of_url

ENTRIES_MAX: Final = 10
"""Entries of one batch, as in SQS."""

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

Fields = dict[str, Any]
Answer = dict[str, Any] | None


@dataclass(slots=True)
class SqsCall:
    """One call: its fields, each of its type, who makes it, what URLs begin with for them, what their SDK calls it and
    its repetitions and the trace that it is a part of (both empty if it does not say), and a way to hear that they have
    gone away. `undo` takes back what the answer gives away."""

    action: str
    fields: Fields
    caller: Caller
    base_url: str
    invocation: str
    trace: str
    gone: Callable[[], Awaitable[None]]
    undo: Callable[[], None] | None = None

    def queue(self, right: Right) -> str:
        """The name of the queue that the call is about, if the caller has this right on it."""
        name = queue_of_url(self.fields["QueueUrl"])
        self.caller.require(right, "queue", name)
        return name

    def known_queue(self) -> str:
        """The same, for a caller who has any right on it."""
        name = queue_of_url(self.fields["QueueUrl"])
        require_any(self.caller, name)
        return name

    def number(self, name: str, low: int, high: int) -> int | None:
        """A number within its range, if it was given."""
        return number_of(self.fields, name, low, high)


def may_see(caller: Caller, queue: str) -> bool:
    """Whether a caller may know of a queue: one that may do anything with it."""
    return any(caller.may(right, "queue", queue) for right in RIGHTS)


def require_any(caller: Caller, queue: str) -> None:
    """`Denied` unless the caller has some right on a queue."""
    if not may_see(caller, queue):
        raise Denied(f"{caller.name} may do nothing with the queue {queue!r}")


def number_of(fields: Fields, name: str, low: int, high: int) -> int | None:
    """A number within its range, if it was given."""
    value: int | None = fields.get(name)
    if value is not None and not low <= value <= high:
        raise invalid_value(
            f"Value {value} for parameter {name} is invalid. Reason: Must be between {low} and {high}, if provided."
        )
    return value


def missing(name: str) -> Refused:
    """A parameter is not there, or empty."""
    return Refused(MISSING_PARAMETER, f"The request must contain the parameter {name}.")


def text_of(fields: Fields, name: str) -> str:
    """A text that must be there."""
    value: str = fields.get(name) or ""
    if not value:
        raise missing(name)
    return value


def entries_of(call: SqsCall) -> list[Fields]:
    """The entries of a batch: one to ten, each with an id of its own."""
    entries: list[Fields] = call.fields.get("Entries") or []
    if not entries:
        raise Refused(EMPTY_BATCH, f"There should be at least one {call.action}RequestEntry in the request.")
    if len(entries) > ENTRIES_MAX:
        raise Refused(
            TOO_MANY_ENTRIES, f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}."
        )
    seen: set[str] = set()
    for entry in entries:
        given: str = entry.get("Id") or ""
        if not _ENTRY_ID.fullmatch(given):
            raise Refused(
                INVALID_BATCH_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if given in seen:
            raise Refused(BATCH_IDS_NOT_DISTINCT, f"Id {given} repeated.")
        seen.add(given)
    return entries


def failed_entry(given: str, error: Refused) -> dict[str, Any]:
    """How a batch says that one of its entries was refused."""
    fault = error.fault
    return {"Id": given, "SenderFault": fault.by_sender, "Code": fault.code, "Message": error.message}


def batch_answer(entries: list[Fields], outcomes: list[dict[str, Any] | Refused]) -> dict[str, Any]:
    """What became of each entry of a batch."""
    pairs = [(entry["Id"], outcome) for entry, outcome in zip(entries, outcomes, strict=True)]
    found = {
        "Successful": [{"Id": given, **done} for given, done in pairs if not isinstance(done, Refused)],
        "Failed": [failed_entry(given, done) for given, done in pairs if isinstance(done, Refused)],
    }
    return {name: listed for name, listed in found.items() if listed}  # SQS leaves out what is empty
