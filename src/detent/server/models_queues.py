"""Queues and their messages in the JSON of the HTTP API."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Union, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from detent.errors import Invalid
from detent.queue import (
    AsyncDelivery,
    AttemptInfo,
    FailedMessage,
    MessageInfo,
    MessagePlace,
    Outgoing,
    Published,
    QueuedMessage,
    QueueInfo,
    QueuePage,
)
from detent.queue import DeadLetter as DeadLetterInfo
from detent.queue.info import whole_characters
from detent.server.models import (
    AnswerModel,
    Base64Text,
    DurationText,
    Encoded,
    GivenDuration,
    Number,
    ReceiptText,
    RequestModel,
    Time,
    TimeText,
    duration_text,
    time_text,
    to_bytes,
    to_text,
)

ATTEMPT_BYTES: Final = 160
"""What the names and times of an attempt add to its words in JSON."""

_OF_INFO: Final[dict[Any, Any]] = {datetime: TimeText, timedelta: DurationText}


def _answer_kind(kind: Any) -> Any:
    kinds = tuple(_OF_INFO.get(one, one) for one in get_args(kind)) if type(None) in get_args(kind) else ()
    return Union[kinds] if kinds else _OF_INFO.get(kind, kind)  # noqa: UP007


QueueDescription: Any = msgspec.defstruct(
    "QueueDescription",
    [(field.name, _answer_kind(get_type_hints(QueueInfo)[field.name])) for field in fields(QueueInfo)],
    bases=(AnswerModel,),
    namespace={"__doc__": "A queue: its settings, what is in it now, and what it has counted since it was created."},
    kw_only=True,
    module=__name__,
)


def describe_queue(info: QueueInfo) -> Any:
    """A queue as an answer has it. What `QueueInfo` gets, the API has."""
    return QueueDescription(**{field.name: _answer_value(getattr(info, field.name)) for field in fields(info)})


def _answer_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return duration_text(value)
    return time_text(value) if isinstance(value, datetime) else value


class QueueTotals(AnswerModel, kw_only=True):
    """What queues hold and have counted since they were created, together; `paused` of them are
    paused, and `behind` of them take in messages that came before."""

    queues: int
    paused: int
    behind: int
    available: int
    delayed: int
    blocked: int
    in_flight: int
    failed: int
    done: int
    routed: int
    acked: int
    failures: int
    expired: int
    purged: int
    dead_lettered: int


class QueueList(AnswerModel, kw_only=True):
    """Queues; `next` is what to go on `after`, if there are more. `totals` are of all queues that the names in the
    request match, and `matching` says how many of them hold what was asked for."""

    queues: list[QueueDescription]
    next: str | None
    totals: QueueTotals
    matching: int


class OutgoingMessage(RequestModel, kw_only=True):
    """A message to publish: a `body` or a `uri`. `delay` or `visible_at` say when it can be claimed, `retention` how
    long it may stay at all ("0s": for ever), `dedup_key` what makes it the same message as another."""

    body: str | Encoded | None = None
    uri: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    created: Time | None = None
    visible_at: Time | None = None
    delay: GivenDuration | None = None
    retention: GivenDuration | None = None
    dedup_key: str | None = None

    def outgoing(self, dedup_key: str | None = None) -> Outgoing:
        """As the library takes it; with a dedup key, if it has none itself."""
        if (self.body is None) == (self.uri is None):
            raise Invalid("a message has a body or a uri, one of the two")
        return Outgoing(
            b"" if self.body is None else to_bytes(self.body, "a body"),
            self.headers,
            uri=self.uri,
            created=self.created,
            visible_at=self.visible_at,
            delay=self.delay,
            retention=self.retention,
            dedup_key=dedup_key if self.dedup_key is None else self.dedup_key,
        )


class PublishedMessage(AnswerModel, kw_only=True):
    """A message's number. A duplicate has the number of the first message with its dedup key, also in
    `duplicate_of`."""

    id: int
    duplicate_of: int | None


class PublishedList(AnswerModel, kw_only=True):
    """What became of each message, in the order in which they were given."""

    messages: list[PublishedMessage]


def published_message(done: Published) -> PublishedMessage:
    """What became of a message, as an answer has it."""
    return PublishedMessage(id=done.message, duplicate_of=done.duplicate_of)


class ClaimRequest(RequestModel, kw_only=True):
    """How many messages to claim at most, how long to wait for one, for how long to hold them, and who asks."""

    count: Annotated[int, Meta(ge=1)] = 1
    wait: GivenDuration | None = None
    lease: GivenDuration | None = None
    consumer: str | None = None


class ClaimedMessage(AnswerModel, kw_only=True):
    """A claimed message: its caller's for `lease`, which by the server's clock is until `lease_until`. It has a body
    or a uri. `dead_letters` says which queues had given it up before, and `total_attempts` counts the claims there
    too."""

    receipt: str
    id: int
    queue: str
    fencing_token: int
    attempts: int
    total_attempts: int
    priority: int
    dead_letters: list[DeadLetterDescription]
    headers: dict[str, str]
    body: str | Base64Text | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    created: TimeText
    received: TimeText
    visible: TimeText
    retention: DurationText
    lease: DurationText
    lease_until: TimeText


class ClaimedList(AnswerModel, kw_only=True):
    """What was claimed: most urgent first, then oldest first. None, if there was nothing to claim."""

    messages: list[ClaimedMessage]


def answer_bytes(message: AsyncDelivery) -> int:
    """About what a claimed message takes in an answer: its body, and why which queues gave it up."""
    size = len(message.body)
    for move in message.dead_letters:
        size += len(move.reason) + sum(ATTEMPT_BYTES + len(one.consumer) + len(one.reason) for one in move.history)
    return size


def claimed_message(found: AsyncDelivery) -> ClaimedMessage:
    """A delivery as an answer has it."""
    uri = found.uri
    return ClaimedMessage(
        receipt=str(found.receipt),
        id=found.id,
        queue=found.queue,
        fencing_token=found.fencing_token,
        attempts=found.attempts,
        total_attempts=found.total_attempts,
        priority=found.priority,
        dead_letters=dead_letters(found.dead_letters),
        headers=found.headers,
        body=to_text(found.body) if uri is None else UNSET,
        uri=UNSET if uri is None else uri,
        created=time_text(found.created),
        received=time_text(found.received),
        visible=time_text(found.visible),
        retention=duration_text(found.retention_s * 1000),
        lease=duration_text(found.lease_length_ms),
        lease_until=time_text(found.lease_until),
    )


class AckRequest(RequestModel, kw_only=True):
    """The receipts of messages that are done."""

    receipts: list[ReceiptText]


class Acknowledged(AnswerModel, kw_only=True):
    """The receipts of messages that are done."""

    acknowledged: list[str]


class FailRequest(RequestModel, kw_only=True):
    """An attempt came to nothing: why, and whether the message is tried again after the queue's back-off, after a
    `delay`, or, with `final`, never."""

    receipt: ReceiptText
    reason: str = ""
    delay: GivenDuration | None = None
    final: bool = False


class FailedReceipts(AnswerModel, kw_only=True):
    """The receipts of attempts that came to nothing."""

    failed: list[str]


class ExtendRequest(RequestModel, kw_only=True):
    """A message is held for `lease` from now on, or for the queue's default."""

    receipt: ReceiptText
    lease: GivenDuration | None = None


class Extended(AnswerModel, kw_only=True):
    """How long a lease lasts now, and when it ends by the server's clock."""

    receipt: str
    lease: DurationText
    lease_until: TimeText


class AttemptDescription(AnswerModel, kw_only=True):
    """One try that came to nothing. `outcome` is "failed", or "lease expired" if its consumer said nothing."""

    claimed: TimeText
    consumer: str
    ended: TimeText
    outcome: str
    reason: str


def attempts(history: list[AttemptInfo]) -> list[AttemptDescription]:
    """Attempts as an answer has them."""
    return [
        AttemptDescription(
            claimed=time_text(one.claimed),
            consumer=one.consumer,
            ended=time_text(one.ended),
            outcome=one.outcome,
            reason=one.reason,
        )
        for one in history
    ]


class DeadLetterDescription(AnswerModel, kw_only=True):
    """A queue gave the message up. `number` counts its moves from 1 on; of the `attempts` in that queue, `history` has
    the first one and the newest ones."""

    number: int
    queue: str
    moved: TimeText
    reason: str
    attempts: int
    delivery: int
    history: list[AttemptDescription]


def dead_letters(found: list[DeadLetterInfo]) -> list[DeadLetterDescription]:
    """Moves to dead letter queues as an answer has them, the first one first."""
    return [
        DeadLetterDescription(
            number=one.number,
            queue=one.queue,
            moved=time_text(one.moved),
            reason=one.reason,
            attempts=one.attempts,
            delivery=one.delivery,
            history=attempts(one.history),
        )
        for one in found
    ]


class Failure(AnswerModel, kw_only=True):
    """A message that has failed: why, after which attempts, and what it was; and which queues had given it up
    before."""

    id: int
    queue: str
    failed: TimeText
    reason: str
    attempts: int
    priority: int
    history: list[AttemptDescription]
    dead_letters: list[DeadLetterDescription]
    headers: dict[str, str]
    body: str | Base64Text | UnsetType = UNSET
    uri: str | UnsetType = UNSET


def failure(found: FailedMessage) -> Failure:
    """A failed message as an answer has it."""
    return Failure(
        id=found.message,
        queue=found.queue,
        failed=time_text(found.failed),
        reason=found.reason,
        attempts=found.attempts,
        priority=found.priority,
        history=attempts(found.history),
        dead_letters=dead_letters(found.dead_letters),
        headers=found.headers,
        body=to_text(found.body) if found.uri is None else UNSET,
        uri=UNSET if found.uri is None else found.uri,
    )


class FailureList(AnswerModel, kw_only=True):
    """Failed messages, oldest first; `next` is the message to go on `after`, if there are more."""

    messages: list[Failure]
    next: int | None


class RedriveRequest(RequestModel, kw_only=True):
    """Which failed messages are tried again: those named, those whose headers match a `filter`, or `all`; in this queue
    or in another one."""

    messages: list[Number] | None = None
    filter: str | None = None
    all: bool = False
    to: str | None = None


class Redriven(AnswerModel, kw_only=True):
    """How many messages can be claimed again, and from where."""

    queue: str
    to: str
    messages: int


class PurgeRequest(RequestModel, kw_only=True):
    """What goes for good: what is `available` (or delayed), what `failed`, or the failed messages that are named."""

    available: bool = False
    failed: bool = False
    messages: list[Number] | None = None


class Purged(AnswerModel, kw_only=True):
    """How many messages are gone."""

    queue: str
    messages: int


class PlaceDescription(AnswerModel, kw_only=True):
    """Where a message is in one queue. `at` is when it becomes or became visible, when its lease ends, when it failed
    or was done."""

    queue: str
    state: str
    at: TimeText
    attempts: int
    priority: int
    consumer: str
    reason: str
    history: list[AttemptDescription]
    dead_letters: list[DeadLetterDescription]


class MessageDescription(AnswerModel, kw_only=True):
    """A message, and where it is in each queue that has it. One that is not `stored` any more has no content."""

    id: int
    stored: bool
    created: TimeText | None
    received: TimeText | None
    visible: TimeText | None
    retention: DurationText | None
    headers: dict[str, str] | UnsetType = UNSET
    body: str | Base64Text | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    queues: list[PlaceDescription]


def describe_message(info: MessageInfo, places: list[MessagePlace]) -> MessageDescription:
    """A message as an answer has it, with those of its places that may be seen."""
    times = [None if one is None else time_text(one) for one in (info.created, info.received, info.visible)]
    return MessageDescription(
        id=info.message,
        stored=info.stored,
        created=times[0],
        received=times[1],
        visible=times[2],
        retention=duration_text(info.retention or 0) if info.stored else None,
        headers=info.headers if info.stored else UNSET,
        body=to_text(info.body) if info.stored and info.uri is None else UNSET,
        uri=info.uri if info.uri is not None else UNSET,
        queues=[
            PlaceDescription(
                queue=place.queue,
                state=place.state,
                at=time_text(place.at),
                attempts=place.attempts,
                priority=place.priority,
                consumer=place.consumer,
                reason=place.reason,
                history=attempts(place.history),
                dead_letters=dead_letters(place.dead_letters),
            )
            for place in places
        ],
    )


class Queued(AnswerModel, kw_only=True):
    """A message in a queue, as a look into it shows it. `body` has the first bytes of `size`; it is text where these
    are UTF-8. Without a `size` the body was not read, or is gone. Of a done message only its number, its attempts
    and the time are known."""

    id: int
    state: str
    at: TimeText
    attempts: int
    total_attempts: int
    priority: int
    consumer: str
    delivery: int
    reason: str
    created: TimeText | None
    received: TimeText | None
    expires: TimeText | None
    headers: dict[str, str]
    size: int | None
    body: str | Base64Text | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    dead_letter: DeadLetterDescription | None


class QueuedList(AnswerModel, kw_only=True):
    """Messages of a queue. `cursor` is where the next page begins, if there is one; a page before the last one may be
    empty."""

    queue: str
    messages: list[Queued]
    cursor: str | None


def queued_list(queue: str, page: QueuePage) -> QueuedList:
    """A page as an answer has it."""
    return QueuedList(queue=queue, messages=list(map(_queued, page.messages)), cursor=page.cursor)


def _queued(one: QueuedMessage) -> Queued:
    times = [None if time is None else time_text(time) for time in (one.created, one.received, one.expires)]
    return Queued(
        id=one.message,
        state=one.state,
        at=time_text(one.at),
        attempts=one.attempts,
        total_attempts=one.total_attempts,
        priority=one.priority,
        consumer=one.consumer,
        delivery=one.delivery,
        reason=one.reason,
        created=times[0],
        received=times[1],
        expires=times[2],
        headers=one.headers,
        size=one.size,
        body=UNSET if one.uri is not None or one.size is None else to_text(whole_characters(one)),
        uri=UNSET if one.uri is None else one.uri,
        dead_letter=dead_letters([one.dead_letter])[0] if one.dead_letter else None,
    )
