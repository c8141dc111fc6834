"""What one request of the HTTP API may ask for at most, and how its lists are paged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from detent.errors import LimitExceeded
from detent.names import NAME_MAX
from detent.server.models import RequestModel

BATCH_MESSAGES_MAX: Final = 10_000
"""Messages in one request: they are taken apart one by one while others wait for the loop."""

CLAIM_MESSAGES_MAX: Final = 1_000
"""Messages in one answer; where they are large there are fewer (`ANSWER_BYTES_MAX`)."""

CLAIM_STEP: Final = 16
"""Messages of one commit of a claim. They are the caller's before the server knows how large they are, and cannot be
given back without counting an attempt: so many of 16 MiB must find room in memory."""

NAMED_MAX: Final = 10_000
"""Receipts or message numbers in one request."""

OPERATIONS_MAX: Final = 1_000
"""Operations in one transaction: it is applied whole while everybody else waits."""

LIST_MAX: Final = 1_000
"""Queues or journals in one answer."""

FAILED_MAX: Final = 1_000
FAILED_PAGE: Final = 100
PEEK_PAGE: Final = 100
READ_MESSAGES_MAX: Final = 10_000
READ_PAGE: Final = 100
"""Messages in one answer in JSON, at most and unless told otherwise; an Arrow stream has no such limit."""

ANSWER_BYTES_MAX: Final = 16 << 20
"""Bytes of bodies, and of dead letters' histories, after which a page or a claim ends, whatever its limit: the answer
is in memory several times."""

LARGE_BYTES: Final = 256 << 10
"""From this size on a body is taken apart, and an answer put together, in a thread: others are answered meanwhile."""

LARGE_BODY_BYTES: Final = ANSWER_BYTES_MAX // CLAIM_STEP
"""So many bodies of this size are one step's answer: of larger ones a step takes fewer."""

SIZES_MAX: Final = 10_000
"""Queues whose body sizes are remembered: as many as a store may have."""


def check_count(count: int, limit: int, what: str) -> None:
    """`LimitExceeded` if a request has too much of something."""
    if count > limit:
        raise LimitExceeded(f"a request has at most {limit} {what}, not {count}: send it in parts")


class ClaimSizes:
    """How large bodies a queue gave out last: the best guess at the next ones. Only large ones are remembered."""

    def __init__(self) -> None:
        self._largest: dict[str, int] = {}

    def largest(self, queue: str) -> int:
        """The largest body of the queue's last claim; 0 if it is not worth a thought."""
        return self._largest.get(queue, 0)

    def note(self, queue: str, size: int) -> None:
        """A claim gave out bodies of up to this size."""
        if size <= LARGE_BODY_BYTES:
            self._largest.pop(queue, None)
            return
        if len(self._largest) >= SIZES_MAX:
            self._largest = {}
        self._largest[queue] = size


def claim_step(left: int, room: int, largest: int) -> int:
    """How many messages to claim at once when `left` are wanted and `room` bytes are free; one always finds room."""
    return max(1, min(left, CLAIM_STEP, room // max(1, largest)))


class ListQuery(RequestModel, kw_only=True):
    """Which queues or journals to list: those whose names begin with `prefix`, in pages."""

    prefix: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    after: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    limit: Annotated[int, Meta(ge=1)] = LIST_MAX


def page_of(names: Sequence[str], query: ListQuery) -> tuple[Sequence[str], str | None]:
    """A page of sorted names, and the last of it if there are more."""
    check_count(query.limit, LIST_MAX, "names in an answer")
    left = [name for name in names if name > query.after]
    page = left[: query.limit]
    return page, page[-1] if len(left) > len(page) else None
