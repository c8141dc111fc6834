"""**Handling**: a task that takes pieces of work as long as hands are free, gives one to each, and keeps their leases.

    take         as many as hands are free, and never more: another worker could handle what waits here
    begin        each in a hand of its own, a thread or a task of an event loop; from now on its lease is renewed
    handle       what a kind of worker does with it; what becomes of it is said there
    stop         take no more, give back what no hand has begun with
    finish       wait for the hands; what takes longer is left to its lease

Hands and leases outlive the taking: handlers that are waited for at the end keep what they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from detent.runtime.ground import PROGRAM_ENDS, drive, is_awaited
from detent.runtime.lease import KeepLeases, Lease, Leases
from detent.runtime.supervisor import Supervised
from detent.runtime.task import AGAIN, DONE, Maybe, Next, Task
from detent.runtime.thread import DaemonPool

FREE_S: Final = 1.0
"""How long a free hand is waited for before it is looked whether to stop."""

CANCEL_S: Final = 1.0
"""How long handlers on an event loop may take to tidy up when they are cancelled."""

Thing = TypeVar("Thing")
Given = TypeVar("Given")

logger = logging.getLogger("detent.runtime")


async def answered(given: Maybe[Given]) -> Given:
    """What a function has answered, awaited if it has to be."""
    return await given if is_awaited(given) else given  # type: ignore[misc, return-value]


class Hands:
    """Threads that handle pieces of work, `size` at a time. With `gather_s`, a worker whose hands are nearly all busy
    waits so long for more of them: to take ten pieces costs as much as to take one. One that idles takes at once."""

    ends: tuple[type[BaseException], ...] = ()

    def __init__(self, name: str, size: int, *, gather_s: float = 0.0) -> None:
        self._size = size
        self._gather_s = gather_s
        self._slots = threading.Semaphore(size)
        self._crew = DaemonPool(name, size)

    async def free(self, wait_s: float) -> int:
        """Reserve those that are free, and wait for the first one; how many these are, or 0 after so long."""
        if not self._slots.acquire(timeout=wait_s):
            return 0
        free = 1
        while free < self._size and self._slots.acquire(blocking=False):
            free += 1
        deadline = time.monotonic() + self._gather_s
        while free < self._size // 2 and self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            free += 1
        return free

    def let_go(self, count: int) -> None:
        """So many have nothing to do after all."""
        if count:
            self._slots.release(count)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """One that is reserved does this."""
        try:
            self._crew.submit(lambda: self._do(work))
        except BaseException:
            work.close()
            raise

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            drive(work)
        finally:
            self._slots.release()

    async def finish(self, patience_s: float) -> bool:
        """Wait for all; whether they have ended, in time."""
        return self._crew.dismiss(patience_s)


class LoopHands(Hands):
    """Tasks of the event loop that this is used on."""

    ends = PROGRAM_ENDS

    def __init__(self, size: int) -> None:
        self._size = size
        self._running: set[asyncio.Task[None]] = set()

    async def free(self, wait_s: float) -> int:
        if len(self._running) >= self._size:
            await asyncio.wait(self._running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return self._size - len(self._running)

    def let_go(self, count: int) -> None:
        del count

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self, patience_s: float) -> bool:
        if not self._running:
            return True
        _, late = await asyncio.wait(self._running, timeout=patience_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCEL_S)
        return not late


class Handling(Task, Generic[Thing]):
    """Takes what waits and has it handled. Subclasses say where from, and what handling is."""

    kind = "worker"

    def __init__(self, name: str, hands: Hands, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self._hands = hands
        self._clock = clock
        self._is_told = False
        self._unseen: dict[Hashable, Thing] = {}
        self.leases: Leases[Thing] = Leases(clock=clock)
        self.keeper = Supervised(KeepLeases(f"{name}-keep", self.leases, self.extend))
        self.taking = Supervised(self)

    # -- what a kind of worker says -----------------------------------------------------------------------------

    def take(self, limit: int) -> Maybe[Sequence[Thing]]:
        """Up to so many pieces of work; none after a while without any."""
        raise NotImplementedError

    def handle(self, thing: Thing) -> Maybe[object]:
        """Do one, and say what became of it. What this raises is logged, and the piece left to its lease."""
        raise NotImplementedError

    def extend(self, due: Sequence[Lease[Thing]]) -> Maybe[None]:
        """Renew these leases; each is said to be `renewed` or `lost` in `leases`."""
        raise NotImplementedError

    def give_back(self, unseen: list[Thing]) -> None:
        """No hand has begun with these, and none will."""
        raise NotImplementedError

    def key_of(self, thing: Thing) -> Hashable:
        """What it is known by."""
        return thing

    def lease_s(self, thing: Thing) -> float:
        """How long it is held from when it was asked for."""
        raise NotImplementedError

    # -- taking -------------------------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Take no more. Returns at once, and holds for a task that has not begun, too."""
        self._is_told = True
        self.taking.stop_soon()

    async def step(self) -> Next:
        """Take what hands are free for, and begin with it."""
        if self._is_told:
            return DONE
        free = await self._hands.free(FREE_S)
        asked_s = self._clock()
        found: Sequence[Thing] = ()
        try:
            if free and not self._is_told:
                found = await answered(self.take(free))
        finally:
            self._hands.let_go(free - len(found))
        self._unseen.update((self.key_of(thing), thing) for thing in found)
        for count, thing in enumerate(found):
            if self._is_told:
                return DONE
            try:
                self._begin(thing, asked_s)
            except BaseException:  # no thread could be made: rest, and do not take the same again at once
                self._hands.let_go(len(found) - count)
                self.leave()
                raise
        return AGAIN

    def leave(self) -> None:
        """Give back what no hand has begun with."""
        unseen = list(_all_of(self._unseen))
        if unseen:
            self.give_back(unseen)

    async def finish(self, patience_s: float) -> bool:
        """Wait for the hands, for so long at most; whether all have ended."""
        if await self._hands.finish(patience_s):
            return True
        logger.warning("%d handlers of %s did not end within %.3g s", len(self.leases), self.name, patience_s)
        return False

    # -- one piece ----------------------------------------------------------------------------------------------

    def _begin(self, thing: Thing, asked_s: float) -> None:
        key = self.key_of(thing)
        self.leases.take(key, thing, self.lease_s(thing), asked_s)
        try:
            self._hands.begin(self._run(key))
        except BaseException:
            self.leases.give_back(key)
            raise

    async def _run(self, key: Hashable) -> None:
        try:
            thing = self._unseen.pop(key, None)
            if thing is not None:  # it was not given back
                await answered(self.handle(thing))
        except self._hands.ends:
            raise
        except BaseException:  # a handler that ends its thread, or was cancelled
            logger.exception("%s left a message to its lease", self.name)
        finally:
            self.leases.give_back(key)


def _all_of(unseen: dict[Hashable, Thing]) -> Iterator[Thing]:
    """Take all out. A hand that would begin meanwhile finds that it has none."""
    while unseen:
        with contextlib.suppress(KeyError):  # one has just begun
            yield unseen.popitem()[1]
