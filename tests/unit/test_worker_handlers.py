"""A worker takes handlers that it can run, and no others."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import detent
from detent import AsyncWorker, Worker


async def coroutine(message: Any) -> None:
    """Handles a message, once it is awaited."""


class Callable:
    async def __call__(self, message: Any) -> None: ...


@pytest.mark.parametrize("handler", [coroutine, functools.partial(coroutine), Callable(), None, "print"])
def test_a_worker_refuses_what_it_cannot_run(handler: Any) -> None:
    """A coroutine that nobody awaits does nothing, and its message would count as handled."""
    with detent.open("memory:") as store, pytest.raises(detent.Invalid):
        Worker(store.queue("q"), handler)


@pytest.mark.parametrize("handler", [print, lambda message: None, None, 7])
def test_an_async_worker_refuses_what_it_cannot_await(handler: Any) -> None:
    with detent.open("memory:") as store, pytest.raises(detent.Invalid):
        AsyncWorker(store.queue("q"), handler)  # type: ignore[arg-type]


def test_each_takes_its_own() -> None:
    with detent.open("memory:") as store:
        Worker(store.queue("q"), print)
        AsyncWorker(store.queue("q"), coroutine)  # type: ignore[arg-type]
        AsyncWorker(store.queue("q"), Callable())  # type: ignore[arg-type]
