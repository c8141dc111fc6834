"""Opening what runs on stores: a consumer, or a graph, with the stores that it names and a loop for its coroutines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.runtime.loop import call_on, loop_in_thread

if TYPE_CHECKING:
    from detent.remote import Role
    from detent.store import Store

OWN: Final = ""
"""The name of the own store among the others."""

LEASE: Final = "10s"
LEASE_MS_MIN: Final = 500
"""A lease is renewed several times before it runs out; a shorter one would be all that its holder does."""


def store_url(example: str, declared: str | None, given: str | None) -> str:
    """The store of what runs: the first of those that say it; `Invalid`, with how to write it, if none does."""
    url = given or declared or os.environ.get("DETENT_URL")
    if not url:
        raise Invalid(f"no store: write {example}, or set DETENT_URL")
    return url


@contextmanager
def opened_stores(
    url: Callable[[str | None], str],
    given: str | Store | None,
    others: Mapping[str, str],
    *,
    role: Role = "auto",
) -> Iterator[dict[str, Store]]:
    """The own store and the others, by name. One that was given open stays open; `url` says where it is otherwise."""
    import detent

    with ExitStack() as stack:
        own = given if isinstance(given, detent.Store) else stack.enter_context(detent.open(url(given), role=role))
        yield {OWN: own, **{name: stack.enter_context(detent.open(other)) for name, other in others.items()}}


@contextmanager
def coroutines_run(is_async: bool) -> Iterator[Callable[[Any], Any] | None]:
    """What runs coroutines, on a loop of its own; None where there are none to be run."""
    if not is_async:
        yield None
        return
    with loop_in_thread() as loop:
        yield call_on(loop)


def lease_ms(lease: Duration) -> int:
    """How long a lease lasts; `Invalid` if that is too short."""
    found = milliseconds(lease)
    if found < LEASE_MS_MIN:
        raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")
    return found
