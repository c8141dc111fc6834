"""What an idle stream asks: nothing, while it is known that nothing has come.

Spark looks for data twenty times a second, for each stream. On an object store each look is a request that is paid for.
Where an owner can be asked, one request waits there until something comes, and looks in between are answered from
memory. Without an owner the bucket is asked less and less often, once a second in the end. Neither makes Spark wait: a
query has other sources too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from detent.errors import DetentError
from detent.kv import parse_url
from detent.remote import server_address
from detent.runtime.backoff import Backoff, Failures
from detent.runtime.thread import DaemonPool

WAIT_MS: Final = 10_000
"""How long one wait at the owner lasts. After it the stream looks again, whatever was heard: what it reads may have
been deleted or trimmed."""

PACE: Final = Backoff(0.02, 1.0)
"""How long a stream that found nothing takes that for granted, where no owner can be waited at."""

Offset = TypeVar("Offset")


class IdleStream:
    """Whether something may have come since a stream found nothing. `wait` returns when the owner of what is read knows
    of something, or after the milliseconds that it is given; without it time alone tells."""

    def __init__(self, wait: Callable[[Any, int], object] | None = None) -> None:
        self._wait = wait
        self._looked = Failures(PACE)
        self._place: Any = None
        self._until = 0.0
        self._heard = threading.Event()
        self._heard.set()
        self._pool: DaemonPool | None = None

    def end_after(self, place: Offset, look: Callable[[], Offset]) -> Offset:
        """Where a stream that stands at `place` may read to: a look, unless it would find nothing again."""
        if self._is_quiet(place):
            return place
        end = look()
        self._found_nothing(place) if end == place else self._found_something()
        return end

    def _is_quiet(self, place: Any) -> bool:
        return place == self._place and (not self._heard.is_set() or time.monotonic() < self._until)

    def _found_nothing(self, place: Any) -> None:
        self._place = place
        self._until = time.monotonic() + self._looked.failed()
        if self._wait is None or not self._heard.is_set():
            return
        self._until = 0.0
        heard = self._heard = threading.Event()
        if self._pool is None:
            self._pool = DaemonPool("detent-idle", 1)
        self._pool.submit(lambda: self._listen(heard, place))

    def _found_something(self) -> None:
        self._place = None
        self._looked.worked()

    def _listen(self, heard: threading.Event, place: Any) -> None:
        assert self._wait is not None
        began = time.monotonic()
        try:
            self._wait(place, WAIT_MS)
        except DetentError:  # the next look meets it too, and says so
            self._until = time.monotonic() + max(0.0, PACE.max_s - (time.monotonic() - began))
        finally:
            heard.set()


def has_requests(url: str) -> bool:
    """Whether a look at a store is a request to an object store."""
    return server_address(url) is None and parse_url(url).scheme not in {"file", "memory"}
