"""A queue that Detent did not write, whose answers are checked: a wrong one is an error that says what is wrong.

What a foreign class returns becomes keys, receipts and rows here. A value of the wrong type would fail later, in a
place that does not name the class, or not at all.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from detent.errors import DetentError, Invalid, Unavailable
from detent.transports.contract import (
    BODY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    RECEIPT_BYTES_MAX,
    Delivery,
    MessageQueue,
    NewMessage,
)

METHODS: Final = ("receive", "extend", "give_back", "acknowledge", "retention_s", "close")
"""What every queue has, besides the properties `name` and `visibility_max_s`."""

NAME_BYTES_MAX: Final = 1_024
VISIBILITY_S_MIN: Final = 1.0
"""A shorter longest lease could not be extended in time."""

LOGGED_MAX: Final = 1_000
"""Messages over a limit that are remembered as logged."""

Answer = TypeVar("Answer")

logger = logging.getLogger("detent.transports")


def missing_members(queue: object, *more: str) -> list[str]:
    """What a class or an object lacks to be a queue."""
    wanted = (*METHODS, *more)
    return [name for name in wanted if not callable(getattr(queue, name, None))]


def check_members(queue: object, shown: str, *more: str) -> None:
    """`Invalid` for what has not the methods of a queue."""
    if missing := missing_members(queue, *more):
        raise Invalid(
            f"{shown} has no {', '.join(missing)}: a queue has the methods of detent.transports.MessageQueue, and send "
            "for the bus; detent.testing.TransportSuite tests them"
        )


class CheckedQueue:
    """The same queue, with every answer checked. One that is `trusted`, since it is Detent's own, is asked directly."""

    def __init__(self, queue: MessageQueue, *, trusted: bool = False) -> None:
        self.kind: Final = type(queue).__name__
        check_members(queue, self.kind)
        self._queue = queue
        self._logged: OrderedDict[str, None] = OrderedDict()
        self.name: Final = self._checked_name()
        self.visibility_max_s: Final = self._checked_visibility()
        self.receive_creates: Final = getattr(queue, "receive_creates", False) is True
        self.keeps_failed: Final = getattr(queue, "keeps_failed", False) is True
        self.delay_max_s: Final = self._checked_delay()
        for method in ("receive", "extend", "give_back", "acknowledge") if trusted else ():
            setattr(self, method, getattr(queue, method))

    def __repr__(self) -> str:
        return f"CheckedQueue({self.kind} {self.name!r})"

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Up to `limit` messages, each of them whole. One that is over a limit of size is left to its lease,
        or it would keep the others back for as long as it is there."""
        deliveries = self._sequence("receive", self._call("receive", limit, wait_s, visibility_s), "deliveries")
        if len(deliveries) > limit:
            raise self._wrong("receive", f"{len(deliveries)} deliveries where {limit} were asked for")
        for delivery in deliveries:
            self._check_delivery(delivery)
        if len({delivery.receipt for delivery in deliveries}) < len(deliveries):
            raise self._wrong("receive", "two deliveries with the same receipt: each delivery has its own")
        return [delivery for delivery in deliveries if self._fits(delivery)]

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Let leases last for longer; those for which that failed."""
        return self._failed("extend", deliveries, self._call("extend", deliveries, visibility_s))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have messages."""
        self._call("give_back", deliveries)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Delete messages; those that were not."""
        return self._failed("acknowledge", deliveries, self._call("acknowledge", deliveries))

    def retention_s(self) -> float | None:
        """How long the queue keeps a message."""
        found = self._call("retention_s")
        if found is None:
            return None
        if not _is_number(found) or found <= 0:
            raise self._wrong("retention_s", f"{_shown(found)}: it is seconds, or None for a queue that does not say")
        return float(found)

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages; by index, why one was not sent."""
        found = self._call("send", messages)
        if not isinstance(found, Mapping):
            raise self._wrong("send", f"{_shown(found)}: it is a dict of errors by index, {{}} if all were sent")
        for index, error in found.items():
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(messages):
                raise self._wrong("send", f"the index {_shown(index)}, and {len(messages)} messages were given")
            if not isinstance(error, DetentError):
                raise self._wrong("send", f"{_shown(error)} for a message: it is one of detent.errors")
        return found

    def send_copy(self, delivery: Delivery, message: NewMessage) -> None:
        """Send a message of another queue with all that it had, if this one can; raises what goes wrong."""
        if callable(getattr(self._queue, "send_copy", None)):
            self._call("send_copy", delivery, message)
            return
        for error in self.send([message]).values():
            raise error

    def fail(self, delivery: Delivery, reason: str, delay_s: float | None) -> None:
        """An attempt came to nothing."""
        self._call("fail", delivery, reason, delay_s)

    def check_exists(self) -> None:
        """`NotFound` if there is no such queue."""
        if callable(getattr(self._queue, "check_exists", None)):
            self._call("check_exists")
        else:
            self.retention_s()

    def create(self) -> None:
        """Make the queue, unless it is there."""
        if not callable(getattr(self._queue, "create", None)):
            raise Invalid(f"{self.kind} has no create(), so it makes no queues: make {self.name!r} yourself")
        self._call("create")

    def close(self) -> None:
        """Let go of connections."""
        self._call("close")

    # -- checking -----------------------------------------------------------------------------------------------

    def _call(self, method: str, *values: Any) -> Any:
        """What a method answers. An exception of another library may pass as well as not: it is tried again."""
        try:
            return getattr(self._queue, method)(*values)
        except DetentError:
            raise
        except Exception as error:
            raise self._passing(method, error) from error

    def _told(self, what: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except DetentError:
            raise
        except Exception as error:
            raise self._passing(what, error) from error

    def _passing(self, what: str, error: Exception) -> Unavailable:
        return Unavailable(
            f"{self.kind}.{what} failed with {type(error).__name__}: {error}; raise one of detent.errors there to say "
            "whether it may pass"
        )

    def _wrong(self, method: str, what: str) -> Invalid:
        return Invalid(f"{self.kind}.{method} answered {what}")

    def _checked_name(self) -> str:
        found: object = self._told("name", lambda: self._queue.name)
        if not isinstance(found, str) or not found.isprintable() or not 0 < _bytes(found) <= NAME_BYTES_MAX:
            raise Invalid(
                f"{self.kind}.name is {_shown(found)}: it is the queue's name, of up to {NAME_BYTES_MAX} bytes that "
                "can be printed"
            )
        return found

    def _checked_visibility(self) -> float:
        found: object = self._told("visibility_max_s", lambda: self._queue.visibility_max_s)
        if not _is_number(found) or not found >= VISIBILITY_S_MIN:  # type: ignore[operator]
            raise Invalid(
                f"{self.kind}.visibility_max_s is {_shown(found)}: it is the longest lease in seconds, "
                f"{VISIBILITY_S_MIN:g} at least"
            )
        return float(found)  # type: ignore[arg-type]

    def _checked_delay(self) -> float:
        found: object = self._told("delay_max_s", lambda: getattr(self._queue, "delay_max_s", 0.0))
        if found == math.inf or (_is_number(found) and found >= 0):  # type: ignore[operator]
            return float(found)  # type: ignore[arg-type]
        raise Invalid(f"{self.kind}.delay_max_s is {_shown(found)}: it is seconds, 0 or more")

    def _sequence(self, method: str, found: object, of: str) -> Sequence[Delivery]:
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            raise self._wrong(method, f"{_shown(found)}: it is a list of {of}, [] for none")
        for one in found:
            if not isinstance(one, Delivery):
                raise self._wrong(method, f"{_shown(one)} where a detent.transports.Delivery belongs")
        return found

    def _failed(self, method: str, given: Sequence[Delivery], found: object) -> Sequence[Delivery]:
        """Deliveries for which something failed; which are some of those that were given."""
        if found == []:
            return []
        failed = self._sequence(method, found, "those that failed")
        known = {delivery.receipt for delivery in given}
        for delivery in failed:
            if delivery.receipt not in known:
                raise self._wrong(method, f"a delivery of {delivery.message_id!r}, which it was not given")
        return failed

    def _check_delivery(self, delivery: Delivery) -> None:
        message_id, receipt, body = delivery.message_id, delivery.receipt, delivery.body
        if not isinstance(message_id, str) or not message_id.isprintable() or not _bytes(message_id) > 0:
            raise self._wrong("receive", f"the message_id {_shown(message_id)}: it is text that can be printed")
        shown_id = _shown(message_id)
        if not isinstance(receipt, str) or not receipt:
            raise self._wrong(
                "receive", f"the receipt {_shown(receipt)}: it is text of 1 to {RECEIPT_BYTES_MAX:,} bytes"
            )
        if not isinstance(body, bytes):
            raise self._wrong("receive", f"the body {_shown(body)} of {shown_id}: it is bytes")
        attempts = delivery.attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 0:
            raise self._wrong("receive", f"{_shown(attempts)} attempts at {shown_id}: it is a count, or 0")
        token, ends = delivery.fencing_token, delivery.ends
        if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
            raise self._wrong("receive", f"the fencing_token {_shown(token)} of {shown_id}: it is a number, or None")
        if ends != math.inf and not _is_number(ends):
            raise self._wrong("receive", f"the end {_shown(ends)} of {shown_id}: it is a time by time.monotonic()")
        self._check_headers(delivery.headers, shown_id)

    def _fits(self, delivery: Delivery) -> bool:
        """Whether a delivery is within the limits; if not, that is logged once for its message."""
        key = delivery.message_id[:MESSAGE_ID_BYTES_MAX]
        why = _too_large(delivery)
        if why and key not in self._logged:
            logger.error(
                "%s.receive answered %s: the message %r of %r is left to its lease, and comes again until the queue "
                "drops it or it is removed there",
                self.kind, why, key, self.name,
            )  # fmt: skip
            self._logged[key] = None
            if len(self._logged) > LOGGED_MAX:
                self._logged.popitem(last=False)
        return not why

    def _check_headers(self, headers: object, shown_id: str) -> None:
        if not isinstance(headers, dict):
            raise self._wrong("receive", f"the headers {_shown(headers)} of {shown_id}: they are a dict of texts")
        for name, value in headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise self._wrong(
                    "receive", f"the header {_shown(name)}: {_shown(value)} of {shown_id}: both are texts"
                )


def _too_large(delivery: Delivery) -> str:
    """What of a delivery is over its limit; nothing if all of it is within."""
    if (size := _bytes(delivery.message_id)) > MESSAGE_ID_BYTES_MAX:
        return f"a message_id of {size} bytes ({MESSAGE_ID_BYTES_MAX} are the most; hash it)"
    if (size := _bytes(delivery.receipt)) > RECEIPT_BYTES_MAX:
        return f"a receipt of {size:,} bytes ({RECEIPT_BYTES_MAX:,} are the most)"
    if (size := len(delivery.body)) > BODY_BYTES_MAX:
        return f"a body of {size:,} bytes ({BODY_BYTES_MAX:,} are the most)"
    return ""


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def _shown(value: object) -> str:
    """A value for a message: its type, and its beginning, which may be all of a message's body."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - it is a foreign object, and this is about what is wrong with it
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."
