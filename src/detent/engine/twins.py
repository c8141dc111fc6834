"""A handle and its twin for asyncio, from one body.

What takes more than one call is written once, as a coroutine that asks the store through its class. `Plain` answers at
once, so that nothing of it waits, and `drive` takes it to its end; `Awaited` waits on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from detent.engine.operation import Operation
from detent.runtime.ground import drive

Item = TypeVar("Item")


class Twin:
    """What the body of both can ask for."""

    _store: Any

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        """What a transaction answers."""
        raise NotImplementedError

    async def _aside(self, function: Callable[..., Any], *values: Any) -> Any:
        """What a function answers that may read from a disk or a network."""
        raise NotImplementedError

    async def _answered(self, given: Any) -> Any:
        """What a method of the store answers."""
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _listed(self, page_after: Callable[[str], Operation], field: str) -> list[Any]:
        """What a store lists by name, page by page."""
        found: list[Any] = []
        more = True
        while more:
            page = (await self._ask([page_after(found[-1].name if found else "")]))[0]
            found += getattr(page, field)
            more = page.more
        return found


class Plain(Twin):
    """Calls return when they are done."""

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        done: list[Any] = self._store.commit(operations)
        return done

    async def _aside(self, function: Callable[..., Any], *values: Any) -> Any:
        return function(*values)

    async def _answered(self, given: Any) -> Any:
        return given

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Awaited(Twin):
    """Calls are awaited; what may block runs in a thread."""

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        done: list[Any] = await self._store.commit(operations)
        return done

    async def _aside(self, function: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.to_thread(function, *values)

    async def _answered(self, given: Any) -> Any:
        return await given

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class PlainStore(Plain):
    """What a store does itself."""

    def commit(self, operations: list[Operation]) -> list[Any]:
        """Apply operations as one transaction."""
        raise NotImplementedError

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        return self.commit(operations)


class AwaitedStore(Awaited):
    """The same, for asyncio."""

    async def commit(self, operations: list[Operation]) -> list[Any]:
        """Apply operations as one transaction."""
        raise NotImplementedError

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        return await self.commit(operations)


def drive_each(items: AsyncGenerator[Item, None]) -> Generator[Item, None, None]:
    """What an asynchronous generator gives that waits for nothing, one after another."""
    try:
        while True:
            try:
                item = drive(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        drive(items.aclose())
