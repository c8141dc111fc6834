"""A graceful end for programs that run until they are told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(stopping: threading.Event, at_once: Callable[[], None] | None = None) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a graceful stop; the second one does not wait for it. It raises KeyboardInterrupt, or
    calls `at_once`: for programs that would wait again, for threads of theirs, before they end."""

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not stopping.is_set():
            stopping.set()
        elif at_once is not None:
            at_once()
        else:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
