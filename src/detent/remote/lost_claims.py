"""The client's side of claims that could not be handed over: they are undone, as far as the owner can be reached.

A claim that was cancelled or interrupted may have been committed. It is asked for again under its name, which answers
it and never repeats it, and what it brings is undone. What cannot be undone is left to its lease, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from detent.engine import Operation, Request
from detent.errors import DetentError
from detent.queue.unclaiming import undoing
from detent.remote.answers import Disconnected, Overloaded
from detent.remote.client import AsyncRemoteOwner, RemoteOwner
from detent.remote.connection import Connection
from detent.remote.owner import LocalOwner
from detent.remote.session import ClientSession

UNDO_S: Final = 5.0
"""How long a caller that was interrupted, or a store that is closed, waits for claims to be undone."""

logger = logging.getLogger("detent.queue")


class ClaimingStore(Protocol):
    """What undoing needs of a store."""

    _connection: Connection
    _session: ClientSession

    def commit(self, operations: list[Operation]) -> list[Any]: ...

    def _find_owner(self, deadline: float, sent: bool) -> LocalOwner | RemoteOwner: ...

    def _after_disconnect(self, owner: LocalOwner | RemoteOwner, error: Disconnected, deadline: float) -> None: ...

    def _busy_pause(self, error: Overloaded, deadline: float, sent: bool) -> float: ...


def undo(store: ClaimingStore, operations: list[Operation]) -> None:
    """Undo claims; an owner in this process does so in its next commit."""
    owner = store._connection.at_hand
    if isinstance(owner, LocalOwner):
        owner.engine.post(operations)
    elif operations:
        try:
            store.commit(operations)
        except DetentError as error:
            _left_to_leases(error)


def undo_unanswered(store: ClaimingStore, request: Request) -> None:
    """Undo a claim whose caller was interrupted before its answer came."""
    try:
        undo(store, undoing(_answer_of(store, request, time.monotonic() + UNDO_S)))
    except DetentError as error:
        _left_to_leases(error)


def _answer_of(store: ClaimingStore, request: Request, deadline: float) -> list[Any]:
    while True:
        owner = store._connection.at_hand or store._find_owner(deadline, True)
        try:
            return owner.commit(request, deadline - time.monotonic())
        except Overloaded as error:
            time.sleep(store._busy_pause(error, deadline, True))
        except Disconnected as error:
            store._after_disconnect(owner, error, deadline)


def _left_to_leases(error: Exception) -> None:
    logger.warning("claimed messages could not be given back, and wait for their lease to end: %s", error)


class AsyncClaimingStore(Protocol):
    """The same for asyncio."""

    _store: Any

    async def commit(self, operations: list[Operation]) -> list[Any]: ...

    async def _remote_of(self) -> AsyncRemoteOwner: ...


class AsyncLostClaims:
    """Undoes claims of one store in the background: a caller that was cancelled does not wait."""

    def __init__(self, store: AsyncClaimingStore) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def undo(self, operations: list[Operation]) -> None:
        """Undo claims; an owner in this process does so in its next commit."""
        owner = self._store._store._connection.at_hand
        if isinstance(owner, LocalOwner):
            owner.engine.post(operations)
        elif operations:
            self._start(self._undo(operations))

    def undo_unanswered(self, request: Request) -> None:
        """Undo a claim that was cancelled before its answer came. It stays outstanding until then."""
        self._start(self._undo_unanswered(request))

    async def settle(self) -> None:
        """Wait for what is under way, for a while: the store is closed."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=UNDO_S)
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _undo(self, operations: list[Operation]) -> None:
        try:
            await self._store.commit(operations)
        except DetentError as error:
            _left_to_leases(error)

    async def _undo_unanswered(self, request: Request) -> None:
        store = self._store._store
        try:
            results = await self._answer_of(request, time.monotonic() + store._timeout_s)
            operations = undoing(results)
            if operations:
                await self._store.commit(operations)
        except DetentError as error:
            _left_to_leases(error)
        finally:
            store._session.end(request)

    async def _answer_of(self, request: Request, deadline: float) -> list[Any]:
        store = self._store._store
        while True:
            owner = store._connection.at_hand
            if owner is None:
                owner = await asyncio.to_thread(store._find_owner, deadline, True)
            try:
                if isinstance(owner, LocalOwner):
                    return await asyncio.to_thread(owner.commit, request, deadline - time.monotonic())
                return await (await self._store._remote_of()).commit(request, deadline - time.monotonic())
            except Overloaded as error:
                await asyncio.sleep(store._busy_pause(error, deadline, True))
            except Disconnected as error:
                await asyncio.to_thread(store._after_disconnect, owner, error, deadline)
