"""Reports of how far shards are, for whoever waits for them or looks at them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from detent.consumer.lives import Held
from detent.engine import Operation
from detent.errors import DetentError, Unavailable
from detent.shard import operations as ops

if TYPE_CHECKING:
    from detent.store import Store

REPORT_S: Final = 0.02
"""The least time between two reports, which somebody may wait for. They are in the owner's memory and cost little."""

KEEP_S: Final = 5.0
"""How often a report is also written down: what somebody sees who looks when neither this process nor the store's owner
is there any more."""

logger = logging.getLogger("detent.consumer")


class Reporter:
    """Tells the store how far the shards of a process are, in a thread, as long as there is news."""

    def __init__(self, store: Store, consumer: str, held: Callable[[], Sequence[Held]]) -> None:
        self._store = store
        self._consumer = consumer
        self._held = held
        self._reported: dict[int, int] = {}
        self._kept: dict[int, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="detent-report", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(REPORT_S):
            self.report()

    def report(self, *, last: bool = False) -> None:
        """What is news, now. The last one is written down. A store that does not take it is asked again later."""
        try:
            with self._lock:  # the worker reports too, and what is older must not come later
                news = [one for held in self._held() if (one := self._news(held, last)) is not None]
                if news:
                    self._store.commit(news)
        except DetentError as error:
            self._reported.clear()
            self._kept.clear()
            level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
            logger.log(level, "a report of progress was not taken: %s", error)

    def _news(self, held: Held, last: bool) -> Operation | None:
        seen = held.progress.snapshot()
        at, kept = self._kept.get(held.index, (0.0, -1))
        keep = bool(seen.number) and seen.version != kept and (last or time.monotonic() - at >= KEEP_S)
        if seen.version == self._reported.get(held.index) and not keep:
            return None
        self._reported[held.index] = seen.version
        if keep:
            self._kept[held.index] = (time.monotonic(), seen.version)
        return ops.ReportShard(
            self._consumer,
            held.index,
            seen.generation if seen.number else held.generation,
            seen.status,
            seen.error,
            seen.processed if seen.number else {},
            seen.published,
            keep=keep,
            number=seen.number,
            numbers=seen.numbers if seen.number else {},
        )

    def forget(self, index: int) -> None:
        """A shard is not this process's any more."""
        self._reported.pop(index, None)
        self._kept.pop(index, None)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()
