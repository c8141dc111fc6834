"""Messages as transports and outboxes carry them: bytes, headers of text, and where they go.

An address is text with a kind: ``queue:billing`` is the input of one app, ``topic:|OrderPlaced|`` whoever has
subscribed to one of the names, ``reply:shop`` whoever of the app ``shop`` waits for that answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ID: Final = "detent-id"
TYPE: Final = "detent-type"
TOPICS: Final = "detent-topics"
SENT_AT: Final = "detent-sent-at"
CORRELATION: Final = "detent-correlation-id"
CAUSATION: Final = "detent-causation-id"
REPLY_TO: Final = "detent-reply-to"
IN_REPLY_TO: Final = "detent-in-reply-to"
CONTENT_TYPE: Final = "content-type"
"""Headers that the bus writes; whatever else a message has is the sender's own."""

ID_BYTES_MAX: Final = 200
"""A message's id is a part of keys: of a tracker's row, of a queue's dedup key."""


def is_id(text: object) -> bool:
    """Whether this can be the id of a message."""
    return isinstance(text, str) and text.isprintable() and 0 < len(text.encode(errors="replace")) <= ID_BYTES_MAX


QUEUE: Final = "queue"
TOPIC: Final = "topic"
REPLY: Final = "reply"
KINDS: Final = (QUEUE, TOPIC, REPLY)


def address(kind: str, name: str) -> str:
    """The text of an address."""
    assert kind in KINDS, kind
    return f"{kind}:{name}"


def parts_of(to: str) -> tuple[str, str]:
    """The kind and the name of an address."""
    kind, _, name = to.partition(":")
    assert kind in KINDS, to
    return kind, name


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way out. Its id stays the same however often it is sent, so that receivers see it once."""

    id: str
    to: str
    headers: Mapping[str, str]
    body: bytes
    visible_ms: int | None = None
    """When it may be delivered, in milliseconds since 1970; at once if it is not said."""


@dataclass(slots=True, eq=False)
class Incoming:
    """One delivery of a message by a transport."""

    transport_id: str
    """What the transport calls the message: the same at each delivery."""
    headers: dict[str, str]
    body: bytes
    attempts: int
    """How often it was delivered, with this time. The transport keeps count, so that it survives a process."""
    fencing_token: int | None
    """Higher at each delivery, where a transport has such a number."""
    receipt: Any = None
    """The transport's own."""
    lost: bool = field(default=False, compare=False)
    """Whether the lease was found gone while the handler runs: what it does is not to be committed."""
    error: Exception | None = field(default=None, compare=False)
    """What went wrong at this attempt, for those who watch; None while nothing has."""
