"""What one request of the HTTP API may ask for at most, and how its lists are paged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from detent.errors import LimitExceeded
from detent.names import NAME_MAX
from detent.server.models import Input

BATCH_MESSAGES_MAX: Final = 10_000
"""Messages in one request: they are taken apart one by one while others wait for the loop."""

CLAIM_MESSAGES_MAX: Final = 1_000
"""Messages in one answer; each may have 16 MiB, so ask for few where they are large."""

NAMED_MAX: Final = 10_000
"""Receipts or message numbers in one request."""

OPERATIONS_MAX: Final = 1_000
"""Operations in one transaction: it is applied whole while everybody else waits."""

LIST_MAX: Final = 1_000
"""Queues or journals in one answer."""

FAILED_MAX: Final = 1_000
FAILED_PAGE: Final = 100
READ_MESSAGES_MAX: Final = 10_000
READ_PAGE: Final = 100
"""Messages in one answer in JSON, at most and unless told otherwise; an Arrow stream has no such limit."""

ANSWER_BYTES_MAX: Final = 16 << 20
"""Payload bytes after which a page ends, whatever its limit: the answer is in memory several times."""


def check_count(count: int, limit: int, what: str) -> None:
    """`LimitExceeded` if a request has too much of something."""
    if count > limit:
        raise LimitExceeded(f"a request has at most {limit} {what}, not {count}: send it in parts")


class ListQuery(Input, kw_only=True):
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
