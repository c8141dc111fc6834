"""The queues as this server knows them: looked up at the store, remembered for a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from detent.errors import NotFound
from detent.queue import operations as ops
from detent.queue.info import queue_info
from detent.server.sqs.errors import no_queue
from detent.server.sqs.names import is_name
from detent.server.sqs.settings import SettingsView

if TYPE_CHECKING:
    from detent.store import AsyncStore

KNOWN_S: Final = 1.0
"""How long a queue's attributes are taken as known. A change made by this server counts at once; one made by another
else after this time at the latest (SQS itself allows a minute)."""

KNOWN_MAX: Final = 10_000


class Directory:
    """Finds queues by name."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._known: dict[str, tuple[float, SettingsView]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def find(self, name: str) -> SettingsView:
        """A queue; its attributes may be a moment old."""
        known = self._known.get(name)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        return await self.look(name)

    async def look(self, name: str) -> SettingsView:
        """A queue as it is now."""
        try:
            found: ops.QueueDescriptions = (await self._store.commit([ops.DescribeQueues(name)]))[0]
        except NotFound:
            self._known.pop(name, None)
            raise no_queue() from None
        view = SettingsView.of(queue_info(found.queues[0]), found.dedup_window_ms)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name] = (time.monotonic() + KNOWN_S, view)
        return view

    async def all(self, prefix: str = "") -> list[SettingsView]:
        """All queues that SQS clients can name, by name."""
        found: ops.QueueDescriptions = (await self._store.commit([ops.DescribeQueues(None, prefix)]))[0]
        infos = [queue_info(queue) for queue in found.queues if is_name(queue.name)]
        return [SettingsView.of(info, found.dedup_window_ms) for info in infos]

    def forget(self, name: str) -> None:
        """A queue is not what it was."""
        self._known.pop(name, None)

    def changing(self, name: str) -> asyncio.Lock:
        """To be held (``async with``) while a queue's labels are read, changed and written."""
        if len(self._locks) >= KNOWN_MAX:
            self._locks = {held: lock for held, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())
