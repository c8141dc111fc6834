"""A handle and its twin for asyncio, from one body.

A call is described once, as a coroutine under `both` in the class that the two share; or, if it gives one thing after
another, as an asynchronous generator under `each`. It asks the store through its class. `Plain` answers at once, so
that nothing of it waits, and the call is a plain method there; `Awaited` waits on the loop. A checker of types, and an
editor, see each as what it is::

    class _Shelf(Twin):
        @both
        async def count(self) -> int:
            return len(await self._do(Describe(self.name)))

    class Shelf(_Shelf, Plain): ...            # shelf.count() -> int
    class AsyncShelf(_Shelf, Awaited): ...     # await shelf.count() -> int
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import update_wrapper
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from detent.engine.operation import Operation
from detent.runtime.ground import drive

P = ParamSpec("P")
Answer = TypeVar("Answer")
Item = TypeVar("Item")
Seen = TypeVar("Seen", bound=Callable[..., Any])


class Twin:
    """What the body of both can ask for."""

    __slots__ = ()

    _store: Any

    async def _ask(self, operations: list[Operation]) -> list[Any]:
        """What a transaction answers."""
        raise NotImplementedError

    async def _do(self, operation: Operation) -> Any:
        """What an operation answers, in a transaction of its own."""
        return (await self._ask([operation]))[-1]

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


class both(Generic[P, Answer]):
    """A call of a handle and of its twin. It is for callers: the body of another one asks what is below it."""

    def __init__(self, body: Callable[Concatenate[Any, P], Coroutine[Any, Any, Answer]]) -> None:
        self.body = body

    @overload
    def __get__(self, handle: Plain, kind: Any = None) -> Callable[P, Answer]: ...

    @overload
    def __get__(self, handle: Awaited, kind: Any = None) -> Callable[P, Coroutine[Any, Any, Answer]]: ...

    def __get__(self, handle: Any, kind: Any = None) -> Any:
        raise TypeError("a class with calls for both is Plain or Awaited")

    def plain(self) -> Callable[..., Answer]:
        """The method of the handle."""
        body, run = self.body, drive

        def call(handle: Any, /, *given: Any, **named: Any) -> Answer:
            coroutine = body(handle, *given, **named)
            try:
                return run(coroutine)
            finally:  # a Ctrl-C may have come before it began, and Python warns of those that never do
                coroutine.close()

        return _seen_as(call, body, lambda returned: returned)


class each(Generic[P, Item]):
    """The same of a call that gives one thing after another."""

    def __init__(self, body: Callable[Concatenate[Any, P], AsyncGenerator[Item, None]]) -> None:
        self.body = body

    @overload
    def __get__(self, handle: Plain, kind: Any = None) -> Callable[P, Iterator[Item]]: ...

    @overload
    def __get__(self, handle: Awaited, kind: Any = None) -> Callable[P, AsyncIterator[Item]]: ...

    def __get__(self, handle: Any, kind: Any = None) -> Any:
        raise TypeError("a class with calls for both is Plain or Awaited")

    def plain(self) -> Callable[..., Iterator[Item]]:
        """The method of the handle."""
        body, run = self.body, drive_each

        def call(handle: Any, /, *given: Any, **named: Any) -> Iterator[Item]:
            return run(body(handle, *given, **named))

        return _seen_as(call, body, lambda returned: _GIVEN.sub(r"Iterator[\1]", returned))


_GIVEN = re.compile(r"^AsyncGenerator\[(.*), None\]$")


def _seen_as(call: Seen, body: Any, returns: Callable[[str], str]) -> Seen:
    """A plain call with the name, the text and the signature of its body, for `help` and for frameworks that look. They
    must not find the body behind it, which is a coroutine: they would await the call. The names in its annotations are
    those of the body's module."""
    seen: Any = FunctionType(call.__code__, body.__globals__, body.__name__, None, call.__closure__)
    update_wrapper(seen, body)
    del seen.__wrapped__
    signature = inspect.signature(body)
    answer = returns(signature.return_annotation)
    seen.__signature__ = signature.replace(return_annotation=answer)
    if answer != signature.return_annotation:
        seen.__annotations__ = {name: kind for name, kind in body.__annotations__.items() if name != "return"}
    return seen  # type: ignore[no-any-return]


def _described(kind: type) -> Iterator[tuple[str, both[Any, Any] | each[Any, Any]]]:
    """The calls of a class that are described for both."""
    names = {name for base in kind.__mro__ for name in vars(base)}
    for name in names:
        found = next(vars(base)[name] for base in kind.__mro__ if name in vars(base))
        if isinstance(found, both | each):
            yield name, found


class Plain(Twin):
    """Calls return when they are done."""

    __slots__ = ()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, call in _described(cls):
            setattr(cls, name, call.plain())

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

    __slots__ = ()

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, call in _described(cls):
            setattr(cls, name, call.body)

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
