"""What can be known of queues and messages, as users see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from detent.codec.origin import Move
from detent.codec.published import URI
from detent.queue import operations as ops
from detent.queue.reader import Content
from detent.settings.queue import QUEUE, ConfiguredQueue


@dataclass(frozen=True, slots=True)
class QueueInfo(ConfiguredQueue):
    """A queue: its settings, what is in it now, and what it has counted since it was created.

    What no consumer holds is available (a claim would get it), delayed (not visible yet) or blocked (behind others of
    its group); `blocked_delayed` of the blocked ones are not visible yet either. Of the messages that were given up
    (`total_failed`), `total_dead_lettered` went to the dead letter queue.
    """

    catching_up: bool
    available: int
    delayed: int
    blocked: int
    blocked_delayed: int
    in_flight: int
    failed: int
    done: int
    total_routed: int
    total_acked: int
    total_failed: int
    total_expired: int
    total_purged: int
    total_dead_lettered: int
    oldest: datetime | None
    available_by_priority: dict[int, int]


def queue_info(found: ops.QueueDescription) -> QueueInfo:
    """A description as users see it."""
    return QueueInfo(
        name=found.name,
        number=found.number,
        created=time_of(found.created_ms),
        **QUEUE.shown(found.settings),
        catching_up=found.behind and not found.settings.paused,
        available=found.available,
        delayed=found.delayed,
        blocked=found.blocked,
        blocked_delayed=found.blocked_delayed,
        in_flight=found.in_flight,
        failed=found.failed,
        done=found.done_kept,
        total_routed=found.routed,
        total_acked=found.acked,
        total_failed=found.failures,
        total_expired=found.expired,
        total_purged=found.purged,
        total_dead_lettered=found.dead_lettered,
        oldest=time_of(found.oldest_ms) if found.oldest_ms else None,
        available_by_priority=found.priorities,
    )


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One try that came to nothing: who had claimed the message and when, when it ended, and why."""

    claimed: datetime
    consumer: str
    ended: datetime
    reason: str

    @property
    def outcome(self) -> str:
        """How it ended: "failed", as its consumer said, or "lease expired", because no consumer said anything."""
        return "lease expired" if self.reason == ops.EXPIRED_REASON else "failed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A queue gave a message up, and it went to the dead letter queue. `number` counts the message's moves from 1 on;
    `attempts` are those in that queue, of which `history` has the first one and the newest ones."""

    number: int
    queue: str
    moved: datetime
    reason: str
    attempts: int
    delivery: int
    history: list[AttemptInfo]


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that has failed: why, after which attempts, and what it was; and which queues had given it up before,
    the first one first."""

    message: int
    queue: str
    failed: datetime
    reason: str
    attempts: int
    priority: int
    history: list[AttemptInfo]
    body: bytes
    uri: str | None
    headers: dict[str, str]
    dead_letters: list[DeadLetter]


def failed_message(queue: str, entry: ops.FailedEntry, content: Content | None) -> FailedMessage:
    """A failed message as users see it; its content may have ended its retention just now."""
    body, uri, headers = parts_of(content)
    return FailedMessage(
        message=entry.message,
        queue=queue,
        failed=time_of(entry.failed_ms),
        reason=entry.reason,
        attempts=entry.attempts,
        priority=entry.priority,
        history=attempts_of(entry.history),
        body=body,
        uri=uri,
        headers=headers,
        dead_letters=dead_letters_of(entry.moves),
    )


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message as `peek` shows it. `state`, `at`, `consumer`, `delivery` and `reason` are those of
    :class:`MessagePlace`.

    `body` has the first bytes of `size`. Without a `size` the body was not read, or is gone. Of a done message
    nothing is known but its number, its attempts and when it was done. `dead_letter` is the last queue that gave the
    message up, without its history: `store.message` has that.
    """

    message: int
    queue: str
    state: str
    at: datetime
    attempts: int
    total_attempts: int
    priority: int
    consumer: str
    delivery: int
    reason: str
    created: datetime | None
    received: datetime | None
    expires: datetime | None
    headers: dict[str, str]
    body: bytes
    size: int | None
    uri: str | None
    dead_letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some messages of a queue. `cursor` says where the next page begins; None, if this was the last one. A page that
    is not the last one may be empty, where a filter, an age or a state leaves most messages out."""

    messages: list[QueuedMessage]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a message is in one queue. `state` is available, delayed, blocked (by others of its group that came before
    it), in flight, assigned (to a reader), failed or done; `at` is when it becomes or became visible, when its lease
    ends, when it was assigned, failed or was done. `dead_letters` says which queues had given it up before."""

    queue: str
    state: str
    at: datetime
    attempts: int
    priority: int
    consumer: str
    reason: str
    delivery: int
    history: list[AttemptInfo]
    dead_letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message, and where it is in each queue that has it. One that is stored and in no queue matched none."""

    message: int
    stored: bool
    body: bytes
    uri: str | None
    headers: dict[str, str]
    created: datetime | None
    received: datetime | None
    visible: datetime | None
    retention: timedelta | None
    places: list[MessagePlace]


def message_info(message: int, found: ops.MessageFound, content: Content | None) -> MessageInfo:
    """A message as users see it."""
    body, uri, headers = parts_of(content)
    about = None if content is None else content[2]
    return MessageInfo(
        message=message,
        stored=content is not None,
        body=body,
        uri=uri,
        headers=headers,
        created=None if about is None else time_of(about.created_ms),
        received=None if about is None else time_of(about.received_ms),
        visible=None if about is None else time_of(about.visible_ms),
        retention=None if about is None or not about.retention_s else timedelta(seconds=about.retention_s),
        places=[
            MessagePlace(
                queue=state.queue,
                state=state.state,
                at=time_of(state.at_ms),
                attempts=state.attempts,
                priority=state.priority,
                consumer=state.consumer,
                reason=state.reason,
                delivery=state.delivery,
                history=attempts_of(state.history),
                dead_letters=dead_letters_of(state.moves),
            )
            for state in found.states
        ],
    )


def parts_of(content: Content | None) -> tuple[bytes, str | None, dict[str, str]]:
    """Body, URI and headers of a message."""
    if content is None:
        return b"", None, {}
    kind, data, about = content
    return (b"", data.decode(), dict(about.headers)) if kind == URI else (data, None, dict(about.headers))


def attempts_of(history: Iterable[ops.Tried]) -> list[AttemptInfo]:
    """Attempts as users see them."""
    return [AttemptInfo(time_of(claimed), who, time_of(ended), why) for claimed, who, ended, why in history]


def dead_letters_of(moves: Iterable[ops.DeadLetterMove | Move]) -> list[DeadLetter]:
    """Moves to dead letter queues as users see them."""
    return [
        DeadLetter(
            number=move.number,
            queue=move.source,
            moved=time_of(move.moved_ms),
            reason=move.reason,
            attempts=move.attempts,
            delivery=move.delivery,
            history=attempts_of(move.history),
        )
        for move in moves
    ]


def whole_characters(message: QueuedMessage) -> bytes:
    """The first bytes of a body without the first bytes of a character, if it is text that was cut within one."""
    data = message.body
    for cut in range(4 if message.size is not None and message.size > len(data) else 1):
        part = data[: len(data) - cut]
        try:
            part.decode()
        except UnicodeDecodeError:
            continue
        return part
    return data


def time_of(ms: int) -> datetime:
    """A time, from milliseconds since 1970; what is beyond all calendars is their end."""
    return datetime.fromtimestamp(min(ms, 253_402_300_799_000) / 1000, UTC)
