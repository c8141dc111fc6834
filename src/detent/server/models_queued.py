"""A look into a queue in the JSON of the HTTP API."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from detent.queue import QueuedMessage, QueuePage
from detent.queue.info import whole_characters
from detent.server.models import Binary, Output, TimeText, time_text, to_text
from detent.server.models_queues import DeadLetter, dead_letters


class Queued(Output, kw_only=True):
    """A message in a queue, as a look into it shows it. `payload` has the first bytes of `size`; it is text where these
    are UTF-8. Without a `size` the payload was not read, or is gone. Of a done message only its number, its attempts
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
    payload: str | Binary | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    dead_letter: DeadLetter | None


class QueuedList(Output, kw_only=True):
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
        payload=UNSET if one.uri is not None or one.size is None else to_text(whole_characters(one)),
        uri=UNSET if one.uri is None else one.uri,
        dead_letter=dead_letters([one.dead_letter])[0] if one.dead_letter else None,
    )
