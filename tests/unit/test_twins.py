"""What a call that is described for both looks like from outside: to `help`, and to frameworks that look before they
call."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

import detent
from detent.queue.handle import AsyncQueue, Queue


@pytest.mark.parametrize("name", ["create", "info", "publish", "claim", "messages", "failed"])
def test_a_plain_call_shows_nothing_of_the_coroutine_that_describes_it(name: str) -> None:
    plain: Any = getattr(Queue, name)
    found = inspect.unwrap(plain)
    assert not inspect.iscoroutinefunction(found)
    assert not inspect.isasyncgenfunction(found)
    assert "Async" not in str(inspect.signature(plain))
    assert plain.__doc__ == getattr(AsyncQueue, name).__doc__
    get_type_hints(plain)  # the names in its annotations are found


def test_a_call_takes_what_its_body_takes() -> None:
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create()
        with pytest.raises(detent.Invalid, match="no option 'handle'"):
            queue.publish(b"", handle=1)
    parameters = inspect.signature(Queue.messages).parameters
    assert list(parameters) == ["self", "batch", "timeout", "lease"]
    assert inspect.signature(Queue.messages).return_annotation.startswith("Iterator[")
    assert inspect.isasyncgenfunction(AsyncQueue.messages)
    assert inspect.iscoroutinefunction(AsyncQueue.create)
