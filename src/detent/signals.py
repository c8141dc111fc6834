"""A graceful end for programs that run until they are told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a graceful stop; the second one does not wait for it."""

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
