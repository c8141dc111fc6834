"""The operations on queues that a transaction can hold, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Optional

import msgspec

from detent import names
from detent.codec.published import Metadata
from detent.engine import Operation, Result
from detent.engine.operation import OPERATION_WEIGHT, OPERATIONS_MAX
from detent.errors import Invalid, LimitExceeded
from detent.settings.queue import ATTEMPTS_MAX as ATTEMPTS_MAX
from detent.settings.queue import DELAY_MS_MAX as DELAY_MS_MAX
from detent.settings.queue import DONE_RETENTION_S as DONE_RETENTION_S
from detent.settings.queue import LEASE_MS_MAX as LEASE_MS_MAX
from detent.settings.queue import LEASE_MS_MIN as LEASE_MS_MIN
from detent.settings.queue import MAX_ATTEMPTS as MAX_ATTEMPTS
from detent.settings.queue import QUEUE
from detent.settings.queue import RETENTION_S_MAX as RETENTION_S_MAX
from detent.settings.setting import NumberFrom0

QUEUES_MAX: Final = 10_000
"""Each publish asks the filter of each queue that has one of its own."""

BODY_BYTES_MAX: Final = 16 << 20
"""A body is one record and travels whole. What is larger belongs in an object store, published by its URI."""

PUBLISH_BYTES_MAX: Final = 64 << 20
PUBLISH_MESSAGES_MAX: Final = OPERATIONS_MAX
"""What a transaction holds in operations, if all messages differ."""

URI_BYTES_MAX: Final = 8 << 10
HEADERS_MAX: Final = 255
"""The metadata record counts them in one byte."""

HEADER_BYTES_MAX: Final = 8 << 10
"""Filters read the headers of every message, and a queue that catches up reads those of all."""

DEDUP_KEY_BYTES_MAX: Final = 255
CONSUMER_BYTES_MAX: Final = 255
REASON_BYTES_MAX: Final = 4 << 10
EXPIRED_REASON: Final = "the lease expired"
"""The reason of an attempt of which its consumer said nothing."""

LABELS_MAX: Final = 128
LABEL_NAME_BYTES_MAX: Final = 255
LABEL_VALUE_BYTES_MAX: Final = 4 << 10
LABELS_BYTES_MAX: Final = 64 << 10
"""Labels are in one record with the settings, in the memory of the owner, and in each description of their queue."""

CLAIM_MAX: Final = 10_000
"""Messages in one claim, acknowledgement or failure."""

IN_FLIGHT_MAX: Final = 120_000
"""Messages of one queue in flight; the lease of each is kept in memory."""

RETENTION_S: Final = 4 * 24 * 3600
DEFAULT_PRIORITY: Final = 128
"""Of a message whose header says nothing, or no number from 0 to 255: there is room above and below it."""

DEDUP_WINDOW_MS: Final = 24 * 3600 * 1000
STEP_MESSAGES: Final = 10_000
"""What a purge, a redrive or a list does in one step; callers go on until all is done."""

MESSAGE_WEIGHT: Final = 128


Number = NumberFrom0


def check_name(name: str) -> None:
    """`Invalid` unless this can be the name of a queue."""
    names.check_name(name, "queue")


Settings: Any = msgspec.defstruct(
    "Settings",
    [(setting.key, Optional[setting.stored_as], None) for setting in QUEUE],  # noqa: UP045
    namespace={"__doc__": "What can be configured of a queue; None leaves a setting as it is, or at its default."},
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    module=__name__,
)


class CreateQueue(Operation, frozen=True, tag=True, array_like=True):
    """Create a queue. With `earliest` it also gets the messages that are stored already, as far as they match."""

    queue: str
    settings: Settings = Settings()
    earliest: bool = False
    exist_ok: bool = False


class ConfigureQueue(Operation, frozen=True, tag=True, array_like=True):
    """Change settings. A new filter applies from the router's position onward. `Conflict` if the filter is not the
    expected one, where one is: so two who each add to it do not lose what the other added."""

    queue: str
    settings: Settings
    expect_filter: str | None = None


class DeleteQueue(Operation, frozen=True, tag=True, array_like=True):
    """Delete a queue with all that is in it. It stands alone in its transaction."""

    queue: str


class SetDedupWindow(Operation, frozen=True, tag=True, array_like=True):
    """How long a dedup key is held at least, of messages published from now on."""

    window_ms: Number


class Publish(Operation, frozen=True, tag=True, array_like=True):
    """Publish messages that share their times. `headers` are one for each, or one for all.

    With `to`, they are for a queue: it must exist and its filter match them, or nothing is published; and their dedup
    keys are that queue's own.
    """

    grows = True
    bodies: list[bytes]
    headers: list[dict[str, str]] | None = None
    uri: bool = False
    created_ms: Number | None = None
    visible_ms: Number | None = None
    delay_ms: Number = 0
    retention_s: Number = RETENTION_S
    dedup_keys: list[str | None] | None = None
    to: str = ""

    def weight(self) -> int:
        bodies = self.bodies
        size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        return OPERATION_WEIGHT + MESSAGE_WEIGHT * len(bodies) + size + self.header_bytes()

    def header_bytes(self) -> int:
        """About how many bytes the headers have."""
        return sum(len(name) + len(value) for headers in self.headers or () for name, value in headers.items())


class Claim(Operation, frozen=True, tag=True, array_like=True):
    """Claim up to `count` messages."""

    queue: str
    count: Number = 1
    lease_ms: Number | None = None
    consumer: str = ""


class _Receipts(Operation, frozen=True, tag=False, array_like=True):
    queue: int
    messages: list[Number]
    deliveries: list[Number]

    def weight(self) -> int:
        return OPERATION_WEIGHT + 16 * len(self.messages)


class Ack(_Receipts, frozen=True, tag=True, array_like=True):
    """These messages are done. Any stale receipt refuses all of them."""


class Fail(_Receipts, frozen=True, tag=True, array_like=True):
    """These attempts came to nothing. `delay_ms` None is the queue's back-off; `final` gives the messages up."""

    reason: str = ""
    delay_ms: Number | None = None
    final: bool = False


class Extend(_Receipts, frozen=True, tag=True, array_like=True):
    """Let these leases end `lease_ms` from now; None is the queue's default."""

    lease_ms: Number | None = None


class Unclaim(_Receipts, frozen=True, tag=True, array_like=True):
    """These messages were claimed and not handed over: they are available again, at their old places, as if they had
    not been claimed. A receipt that is stale is left out, not refused: its message has gone on since."""


class ReadHeld(_Receipts, frozen=True, tag=True, array_like=True):
    """Where these messages are stored, of those whose receipts are current. Changes nothing. It is for clients without
    the files: the owner's server puts content into the answer."""


class Redrive(Operation, frozen=True, tag=True, array_like=True):
    """Make failed messages available again, with no attempts counted, in their queue or in another one.

    Those named; or, in steps from `after` on, those that match the filter, or all. It stands alone in its transaction.
    """

    queue: str
    messages: list[Number] | None = None
    filter: str | None = None
    to: str | None = None
    after: int = -1


class Purge(Operation, frozen=True, tag=True, array_like=True):
    """Remove messages, in steps: available ones, failed ones, or both; or failed ones by number. With `in_flight`,
    those under leases too, whose receipts are worth nothing then; with `keys`, the queue's own dedup keys.

    Only messages below a number go: what had been published when the first step was made, which answers that number
    for the next ones. It stands alone in its transaction.
    """

    queue: str
    available: bool = True
    failed: bool = True
    messages: list[Number] | None = None
    below: int = -1
    in_flight: bool = False
    keys: bool = False


class DescribeQueues(Operation, frozen=True, tag=True, array_like=True):
    """What is known of one queue, or of those whose names begin with `prefix`, the first `limit` of them by name (0:
    all). Changes nothing."""

    queue: str | None = None
    prefix: str = ""
    limit: Number = 0


class ListFailed(Operation, frozen=True, tag=True, array_like=True):
    """Failed messages after a message number, oldest first. Changes nothing."""

    queue: str
    after: int = -1
    limit: Number = 100


class FindMessage(Operation, frozen=True, tag=True, array_like=True):
    """Where a message is in each queue, or in those that are named and exist. Changes nothing."""

    message: Number
    queues: list[str] = msgspec.field(default_factory=list)


class Advance(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: fire the timers that are due."""


class CatchUp(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: let a queue that is behind read some more of the metadata log."""

    queue: int


class Collect(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: remove some records of deleted queues, dead log segments, old done messages and dedup keys."""


class WriteCheckpoint(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: fold the state log into the buckets; at the end, give back the message numbers left over."""

    closing: bool = False


class QueueCreated(Result, frozen=True, tag=True, array_like=True):
    """A queue's number, and whether it is new."""

    queue: int
    new: bool


class PublishedMessages(Result, frozen=True, tag=True, array_like=True):
    """The new messages are numbered from `first`, in order; `duplicates` are (index, first message with that key)."""

    first: int
    count: int
    duplicates: list[tuple[int, int]]


AttachedContent = tuple[int, bytes | None, Metadata | None]
"""A message's body type, body and metadata, as an answer carries them; no body: it is gone."""

Attached = list[AttachedContent | None]
"""The contents of an answer's messages; None for one that found no room in the answer, and is to be asked for again."""


class ClaimedMessages(Result, frozen=True, tag=True, array_like=True):
    """What was claimed. `records` are the first messages of the records that hold each one. `contents` are never
    stored: a server adds them for clients that cannot read the files. `lease_ms` is when the leases end, by the owner's
    time; `length_ms` how long they last, for clients whose clock is another one (0: an older owner has not said).
    `earlier`, unless it is empty, says how often each was claimed in the queues that gave it up. `origins` are the
    records of those, and are added like `contents`."""

    queue: int
    lease_ms: int
    first_delivery: int
    messages: list[int]
    records: list[int]
    attempts: list[int]
    priorities: bytes
    contents: Attached | None = None
    length_ms: int = 0
    earlier: list[int] = msgspec.field(default_factory=list)
    origins: dict[int, bytes] | None = None


class HeldMessages(Result, frozen=True, tag=True, array_like=True):
    """The messages whose receipts are current, and the first messages of the records that hold them. For the others see
    :class:`ClaimedMessages`."""

    messages: list[int]
    records: list[int]
    contents: Attached | None = None
    earlier: list[int] = msgspec.field(default_factory=list)
    origins: dict[int, bytes] | None = None


class LeaseExtended(Result, frozen=True, tag=True, array_like=True):
    """When the leases end now, by the owner's time, and how long they last from now on."""

    lease_ms: int
    length_ms: int = 0


class Moved(Result, frozen=True, tag=True, array_like=True):
    """How many messages a step removed or moved, where the next one starts, and whether there is more to do."""

    count: int
    after: int = -1
    more: bool = False


class QueueDescription(msgspec.Struct, frozen=True, array_like=True):
    """One queue, as its owner sees it."""

    name: str
    number: int
    created_ms: int
    settings: Settings
    behind: bool
    available: int
    delayed: int
    in_flight: int
    failed: int
    done_kept: int
    routed: int
    acked: int
    failures: int
    expired: int
    purged: int
    oldest_ms: int
    priorities: dict[int, int]
    blocked: int = 0
    blocked_delayed: int = 0
    dead_lettered: int = 0


class QueueDescriptions(Result, frozen=True, tag=True, array_like=True):
    """Queues by name, and the messages that match none."""

    queues: list[QueueDescription]
    unmatched: int
    dedup_window_ms: int


Tried = tuple[int, str, int, str]
"""An attempt that came to nothing: when it began, by whom, when it ended and why."""


class DeadLetterMove(msgspec.Struct, frozen=True, array_like=True):
    """A queue gave a message up. See :class:`detent.codec.origin.Move`."""

    number: int
    source: str
    source_queue: int
    moved_ms: int
    attempts: int
    delivery: int
    reason: str
    history: Sequence[Tried]


class PeekedContent(msgspec.Struct, frozen=True, array_like=True):
    """What a page shows of a stored message: the first bytes of its body (or its URI), and how many it has; none if
    they were not read, or are gone."""

    headers: dict[str, str]
    created_ms: int
    received_ms: int
    kind: int
    size: int | None
    data: bytes
    move: DeadLetterMove | None = None


class FailedEntry(msgspec.Struct, frozen=True, array_like=True):
    """A failed message, without its body."""

    message: int
    record: int
    failed_ms: int
    attempts: int
    priority: int
    delivery: int
    reason: str
    history: Sequence[Tried]
    moves: list[DeadLetterMove] = msgspec.field(default_factory=list)


class FailedMessages(Result, frozen=True, tag=True, array_like=True):
    """Some failed messages. For `contents` see :class:`ClaimedMessages`; a page ends where they have no room."""

    messages: list[FailedEntry]
    more: bool
    contents: Attached | None = None


class MessageState(msgspec.Struct, frozen=True, array_like=True):
    """Where one message is in one queue: available, delayed, blocked, in flight, assigned, failed or done."""

    queue: str
    state: str
    attempts: int = 0
    priority: int = 0
    at_ms: int = 0
    consumer: str = ""
    reason: str = ""
    delivery: int = 0
    history: Sequence[Tried] = ()
    moves: list[DeadLetterMove] = msgspec.field(default_factory=list)


class MessageFound(Result, frozen=True, tag=True, array_like=True):
    """The first message of the record that a message is in (-1: it is gone, or in none of the queues that were named),
    and where it is in each queue. For `contents`, of one message or none, see :class:`ClaimedMessages`."""

    record: int
    states: list[MessageState]
    contents: Attached | None = None


def text_bytes(text: str, what: str) -> int:
    """How many bytes a text has in UTF-8; `Invalid` for what has no such form."""
    if not isinstance(text, str):
        raise Invalid(f"{what} is text, not {type(text).__name__}")
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} is text: {error}") from error


def check_text(text: str, limit: int, what: str) -> None:
    """Refuse a text that is too long, or none."""
    size = text_bytes(text, what)
    if size > limit:
        raise LimitExceeded(f"{what} of {size} bytes is over the limit of {limit}")


def check_headers(headers: dict[str, str]) -> None:
    """Refuse headers that are too many, too long, or no text."""
    if len(headers) > HEADERS_MAX:
        raise LimitExceeded(f"a message has at most {HEADERS_MAX} headers, not {len(headers)}")
    size = sum(text_bytes(name, "a header's name") + text_bytes(value, "a header") for name, value in headers.items())
    if size > HEADER_BYTES_MAX:
        raise LimitExceeded(f"headers of {size} bytes are over the limit of {HEADER_BYTES_MAX}")


def check_publish(op: Publish) -> list[int]:
    """Refuse what cannot be published. Answers the length of each body."""
    bodies = op.bodies
    count = len(bodies)
    if not count:
        raise Invalid("there is nothing to publish")
    if count > PUBLISH_MESSAGES_MAX:
        raise LimitExceeded(f"one publish holds at most {PUBLISH_MESSAGES_MAX} messages, not {count}")
    sizes = list(map(len, bodies))
    largest = max(sizes)
    limit = URI_BYTES_MAX if op.uri else BODY_BYTES_MAX
    if largest > limit:
        what = "a URI" if op.uri else "a body"
        raise LimitExceeded(f"{what} of {largest} bytes is over the limit of {limit}; publish a URI to where it is")
    if count > 1 and (total := sum(sizes) + op.header_bytes()) > PUBLISH_BYTES_MAX:
        raise LimitExceeded(f"a publish of {total} bytes is over the limit of {PUBLISH_BYTES_MAX}: send it in parts")
    if op.uri:
        for body in bodies:
            _check_uri(body)
    if op.headers is not None:
        if len(op.headers) not in {1, count}:
            raise Invalid(f"{count} bodies but {len(op.headers)} headers")
        for headers in op.headers:
            if headers:
                check_headers(headers)
    if op.dedup_keys is not None:
        if len(op.dedup_keys) != count:
            raise Invalid(f"{count} bodies but {len(op.dedup_keys)} dedup keys")
        for key in op.dedup_keys:
            if key is not None:
                check_text(key, DEDUP_KEY_BYTES_MAX, "a dedup key")
                if not key or "\0" in key:
                    raise Invalid("a dedup key has at least one byte, and none of them is 0; pass None for no key")
    if op.retention_s > RETENTION_S_MAX:
        raise LimitExceeded(f"a retention of {op.retention_s} s is over the limit of {RETENTION_S_MAX} s")
    if op.delay_ms > DELAY_MS_MAX:
        raise LimitExceeded(f"a delay of {op.delay_ms} ms is over the limit of {DELAY_MS_MAX} ms")
    return sizes


def _check_uri(body: bytes) -> None:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"a URI is UTF-8 text: {error}") from error
    if ":" not in text or text.split(":", 1)[0].strip() == "" or any(ord(c) < 33 for c in text):
        raise Invalid(f"{text!r} is no URI: it begins with a scheme, as in s3://bucket/key, and holds no white space")
