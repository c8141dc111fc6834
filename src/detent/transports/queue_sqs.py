"""A queue of Amazon SQS, or of a server that speaks like it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from detent.errors import DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.runtime import thread
from detent.transports.contract import Delivery, FailedDeliveries, NewMessage
from detent.transports.sqs_client import (
    BATCH_MAX,
    CALLS_AT_ONCE,
    MISSING,
    PASSING,
    SENDING,
    SETTLING,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    SqsConnection,
    codes_of,
    place_of,
    seconds,
)
from detent.transports.sqs_message import (
    ATTRIBUTES_MAX,
    FIFO,
    MESSAGE_BYTES_MAX,
    SqsMessage,
    order_of,
    read,
    text_attribute,
    write,
)

DELAY_S_MAX: Final = 900
"""SQS keeps a message back for a quarter of an hour at most."""

RETENTION_S: Final = 1_209_600
"""How long queues that are made here keep messages: fourteen days, the most that SQS allows."""

RETENTION: Final = "MessageRetentionPeriod"

_EXTEND: Final = "change_message_visibility"
_DELETE: Final = "delete_message"
"""Calls for one delivery; with ``_batch``, for ten."""

_MAY_PASS: Final = ("Kms", "Internal", "Service", "Throttl", "RequestThrottled", "OverLimit")
"""How codes begin of what may pass, whichever side is said to be at fault."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_Entries = list[tuple[Delivery, dict[str, Any]]]


class _NewEntry(NamedTuple):
    """A message of a call, with its place among those that are sent."""

    place: int
    request: dict[str, Any]
    size: int


class SqsQueue:
    """A queue of SQS by its URL, or by its name in the region and account of the credentials.

    `client` is a boto3 client of your own, which stays open; without one a client is made from the environment as boto3
    does it, for `region` and `endpoint` if they are given, or as the queue's URL says. Queues may share a `connection`,
    which stays open, too. SQS counts in whole seconds: times are rounded up. `calls_at_once` is how many batches of ten
    are received or settled side by side.
    """

    def __init__(
        self,
        url_or_name: str,
        *,
        client: Any = None,
        region: str | None = None,
        endpoint: str | None = None,
        connection: SqsConnection | None = None,
        calls_at_once: int = CALLS_AT_ONCE,
    ) -> None:
        self.name: Final = _name_of(url_or_name)
        self.visibility_max_s: Final = float(VISIBILITY_S_MAX)
        self._is_fifo = self.name.endswith(FIFO)
        self.delay_max_s: Final = 0.0 if self._is_fifo else float(DELAY_S_MAX)
        self._own = connection is None
        self._sqs = connection or SqsConnection(*_place_of(url_or_name, region, endpoint), client)
        if self._own:
            self._sqs.open()
        if "://" in url_or_name:
            self._sqs.know(self.name, url_or_name)
        # Threads of their own: an extension that stands behind receives which hang would come too late.
        self._calls_at_once = calls_at_once
        self._receiving = thread.pool("detent-sqs-receive", calls_at_once)
        self._settling = thread.pool("detent-sqs-settle", calls_at_once)

    def __repr__(self) -> str:
        return f"SqsQueue({self.name!r})"

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Up to `limit` messages. The first ten are waited for; when there are as many, the others are asked for side
        by side, until one answer is short, which is how a queue says that it has no more."""
        request = {
            "VisibilityTimeout": seconds(visibility_s, VISIBILITY_S_MAX),
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
        }
        found = self._receive({**request, "WaitTimeSeconds": seconds(wait_s, WAIT_S_MAX)}, min(limit, BATCH_MAX))
        full = len(found) == BATCH_MAX
        while full and len(found) < limit:
            sizes = [min(BATCH_MAX, limit - at) for at in range(len(found), limit, BATCH_MAX)][: self._calls_at_once]
            answers = self._side_by_side(self._receiving, partial(self._receive_more, request), sizes)
            full = [len(answer) for answer in answers] == sizes
            found += [delivery for answer in answers for delivery in answer]
        return found

    def _receive(self, request: dict[str, Any], count: int) -> list[Delivery]:
        answer = self._sqs.call("receive_message", self.name, PASSING, MaxNumberOfMessages=count, **request)
        ends = time.monotonic() + VISIBILITY_S_MAX - 1
        return [_delivery(message, ends) for message in answer.get("Messages") or ()]

    def _receive_more(self, request: dict[str, Any], count: int) -> list[Delivery]:
        """Nothing if the queue does not answer now: what came before is not to be lost for that."""
        try:
            return self._receive({**request, "WaitTimeSeconds": 0}, count)
        except (Unavailable, NotFound):
            return []

    def _side_by_side(
        self, threads: ThreadPoolExecutor, call: Callable[[Item], Answer], items: Sequence[Item]
    ) -> list[Answer]:
        return list((map if min(len(items), self._calls_at_once) <= 1 else threads.map)(call, items))

    # -- settling -----------------------------------------------------------------------------------------------

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Keep messages invisible for longer; those for which that failed. SQS refuses what goes beyond its twelve
        hours, so that is not asked for."""
        hidden_s, now = seconds(visibility_s, VISIBILITY_S_MAX), time.monotonic()
        entries: _Entries = []
        over: dict[str, DetentError] = {}
        for delivery in deliveries:
            left_s = max(0, int(min(hidden_s, delivery.ends - now)))
            if left_s or not hidden_s:
                entries.append((delivery, {"VisibilityTimeout": left_s}))
            else:
                over[delivery.receipt] = StaleReceipt(f"SQS holds {delivery.message_id} no longer than twelve hours")
        return self._settle(_EXTEND, deliveries, entries, over)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have them; SQS goes on counting."""
        self.extend(deliveries, 0)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Delete messages; those that were not. SQS may say nothing of a lease that is gone: then another reader has
        the message still."""
        return self._settle(_DELETE, deliveries, [(delivery, {}) for delivery in deliveries], {})

    def _settle(
        self, action: str, given: Sequence[Delivery], entries: _Entries, why: dict[str, DetentError]
    ) -> Sequence[Delivery]:
        batches = [entries[at : at + BATCH_MAX] for at in range(0, len(entries), BATCH_MAX)]
        for failed in self._side_by_side(self._settling, partial(self._settle_batch, action), batches):
            why |= failed
        return FailedDeliveries(given, why)

    def _settle_batch(self, action: str, batch: _Entries) -> dict[str, DetentError]:
        """Why, by receipt, for those of a batch that the queue does not say it did."""
        requests = [{"ReceiptHandle": delivery.receipt, **entry} for delivery, entry in batch]
        try:
            if len(batch) == 1:
                self._sqs.call(action, self.name, SETTLING, **requests[0])
                return {}
            numbered = [{"Id": str(at), **request} for at, request in enumerate(requests)]
            answer = self._sqs.call(f"{action}_batch", self.name, Entries=numbered)
        except DetentError as error:
            return {delivery.receipt: error for delivery, _ in batch}
        done = {said["Id"] for said in answer.get("Successful") or ()}
        refused = {said["Id"]: said for said in answer.get("Failed") or ()}
        return {
            delivery.receipt: _not_settled(delivery, refused.get(str(at), {}))
            for at, (delivery, _) in enumerate(batch)
            if str(at) not in done
        }

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Send messages, ten a call; behind one that may pass later nothing is sent, which would overtake it. Standard
        queues keep no order, and may deliver one twice. A FIFO queue gets one after another: if one of ten failed,
        those behind it would have overtaken it."""
        sending = _Batches(self._sqs, self.name, 1 if self._is_fifo else BATCH_MAX)
        for at, message in enumerate(messages):
            try:
                written = write(message.headers, message.body)
                sending.add(_NewEntry(at, self._request_of(written, message), _checked_size(written)))
            except (Invalid, LimitExceeded) as error:  # it holds up no others
                sending.errors[at] = error
        sending.flush()
        return sending.errors

    def send_copy(self, delivery: Delivery, message: NewMessage) -> None:
        """Send a message of another queue of SQS, with its attributes whatever they are, and new headers."""
        written = _copy_of(delivery, message)
        _checked_size(written)
        self._sqs.call("send_message", self.name, SENDING, **self._request_of(written, message))

    def _request_of(self, written: SqsMessage, message: NewMessage) -> dict[str, Any]:
        found: dict[str, Any] = {"MessageBody": written.text, "MessageAttributes": written.attributes}
        if self._is_fifo:
            return found | order_of(self.name, message.headers, message.id)
        due_s = 0.0 if message.visible_ms is None else message.visible_ms / 1000 - time.time()
        return found | ({"DelaySeconds": min(math.ceil(due_s), DELAY_S_MAX)} if due_s > 0 else {})

    # -- the queue itself ---------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the queue, unless it is there."""
        self._sqs.make(self.name, {RETENTION: str(RETENTION_S)})

    def check_exists(self) -> None:
        """Ask for its URL, which needs fewer rights than asking for its attributes."""
        self._sqs.url(self.name)

    def retention_s(self) -> float | None:
        """How long the queue keeps a message. SQS deletes it then, in flight or not."""
        answer = self._sqs.call("get_queue_attributes", self.name, AttributeNames=[RETENTION])
        period = (answer.get("Attributes") or {}).get(RETENTION)
        return None if period is None else float(period)

    def close(self) -> None:
        """Let go of connections, and of threads once their calls are over."""
        for threads in (self._receiving, self._settling):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._own:
            self._sqs.close()


class _Batches:
    """One call of `send`: the messages of the next call of SQS, and what became of those before."""

    def __init__(self, sqs: SqsConnection, queue: str, most: int) -> None:
        self._sqs, self._queue, self._most = sqs, queue, most
        self._waiting: list[_NewEntry] = []
        self._held: DetentError | None = None
        self.errors: dict[int, DetentError] = {}

    def add(self, entry: _NewEntry) -> None:
        """One more. A call takes ten messages, and as many bytes as one of them."""
        size = sum(waiting.size for waiting in self._waiting) + entry.size
        if len(self._waiting) >= self._most or size > MESSAGE_BYTES_MAX:
            self.flush()
        self._waiting.append(entry)

    def flush(self) -> None:
        """Send those that wait."""
        entries, self._waiting = self._waiting, []
        if entries:
            self._send(entries)

    def _send(self, entries: Sequence[_NewEntry]) -> None:
        if self._held is not None:
            self._refused(entries, self._held)
            return
        requests = [{"Id": str(at), **entry.request} for at, entry in enumerate(entries)]
        try:
            answer = self._sqs.call("send_message_batch", self._queue, SENDING, Entries=requests)
        except (Invalid, LimitExceeded) as error:
            if len(entries) == 1:
                self._refused(entries, error)
                return
            for entry in entries:  # to learn which of them it was
                self._send([entry])
        except DetentError as error:
            self._refused(entries, error)
        else:
            failed = {said["Id"]: said for said in answer.get("Failed") or ()}
            done = {said["Id"] for said in answer.get("Successful") or ()}
            for at, entry in enumerate(entries):
                if str(at) not in done:
                    self._refused([entry], _not_sent(self._queue, failed.get(str(at), {})))

    def _refused(self, entries: Sequence[_NewEntry], error: DetentError) -> None:
        self.errors |= {entry.place: error for entry in entries}
        if not isinstance(error, Invalid | LimitExceeded):
            self._held = error


def _name_of(url_or_name: str) -> str:
    name = urlsplit(url_or_name).path.rpartition("/")[2] if "://" in url_or_name else url_or_name
    if not name or "/" in name:
        raise Invalid("name a queue of SQS, or give its URL, such as https://sqs.eu-west-1.amazonaws.com/123/orders")
    return name


def _place_of(url_or_name: str, region: str | None, endpoint: str | None) -> tuple[str | None, str | None]:
    """The region and the endpoint, from a queue's URL where they are not given."""
    if "://" not in url_or_name or endpoint is not None:
        return region, endpoint
    said, endpoint = place_of(url_or_name)
    return region or said, endpoint


def _delivery(message: Mapping[str, Any], ends: float) -> Delivery:
    content = read(message)
    return Delivery(
        message["MessageId"],
        message["ReceiptHandle"],
        content.body,
        int((message.get("Attributes") or {}).get("ApproximateReceiveCount", 0)),
        content.headers,
        ends=ends,
        own=None if content.is_own else message.get("MessageAttributes") or {},
    )


def _copy_of(delivery: Delivery, message: NewMessage) -> SqsMessage:
    """A copy of a delivery. One that was not written here keeps its attributes, of bytes as well, and gets new headers
    as others beside them."""
    if delivery.own is None:
        return write(message.headers, message.body)
    new = {name: value for name, value in message.headers.items() if value and delivery.headers.get(name) != value}
    added = {name: text_attribute(value) for name, value in new.items()}
    return SqsMessage(delivery.body.decode(errors="surrogatepass"), {**delivery.own, **added})


def _checked_size(written: SqsMessage) -> int:
    size = written.size
    if size > MESSAGE_BYTES_MAX:
        raise LimitExceeded(
            f"a message of {size} bytes with its headers is over SQS's limit of {MESSAGE_BYTES_MAX}: keep what is "
            "large elsewhere, and send where it is"
        )
    if len(written.attributes) > ATTRIBUTES_MAX:
        raise LimitExceeded(f"SQS takes {ATTRIBUTES_MAX} attributes of a message, not {len(written.attributes)}")
    return size


def _not_settled(delivery: Delivery, said: Mapping[str, Any]) -> DetentError:
    """What SQS says of one delivery of a call."""
    text = f"SQS did not settle {delivery.message_id}: {said.get('Message') or said.get('Code') or 'no reason'}"
    is_gone = StaleReceipt in {SETTLING.get(code) for code in codes_of(said)}
    return StaleReceipt(text) if is_gone else Unavailable(text)


def _not_sent(queue: str, said: Mapping[str, Any]) -> DetentError:
    """What SQS says of one message of a call."""
    codes = codes_of(said)
    text = f"SQS did not take a message for {queue!r}: {said.get('Message') or ', '.join(sorted(codes)) or 'no reason'}"
    if codes & MISSING:
        return NotFound(text)
    if said.get("SenderFault") and not any(code.startswith(_MAY_PASS) for code in codes):
        return Invalid(text)
    return Unavailable(text)
