"""A graceful end for what runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def call_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call this, each time, where that can be had: in the main thread. Elsewhere nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def call_on_signals_of_loop(stop: Callable[[], None]) -> Iterator[None]:
    """The same for the event loop that this is called on."""
    loop = asyncio.get_running_loop()
    handled = []
    for number in SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
            loop.add_signal_handler(number, stop)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
