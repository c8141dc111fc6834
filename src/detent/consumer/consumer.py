"""`Consumer`, and how one runs in this process: its stores opened, its shards in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from detent.consumer.application import Declaration
from detent.consumer.worker import Event, Worker
from detent.runtime import thread
from detent.runtime.loop import call_on
from detent.runtime.signals import stop_on_signals
from detent.runtime.target import refuse_while_loading
from detent.stream.opening import OWN, coroutines_run, opened_stores, store_url

if TYPE_CHECKING:
    from detent.remote import Role
    from detent.store import Store


class Consumer(Declaration):
    """An application that reads journals, each message taking effect exactly once.

    >>> app = Consumer("words", store="file:./data", read="lines")
    >>> @app.consume
    ... def count(message, state, publish):
    ...     for word in message.body.decode().split():
    ...         state[word] = state.get(word, 0) + 1
    ...         publish("counted", word.encode())
    >>> app.run(once=True)

    `read` names the journals (or `Source`s, or patterns such as ``orders/*``). They are divided over `shards`: whole
    journals with ``partition="journal"``; with ``partition="key"`` every shard reads all of them and takes the messages
    whose keys are its own. The number of shards is fixed when the consumer first runs. `state` is where state and
    progress are kept, together: `EngineState()` (the default), `SqlState(url)` or `RecordedState(folder)`. `outputs`
    names other stores to publish to: ``outputs={"audit": "https://..."}``, then ``publish(..., store="audit")``.

    A transaction has at least one message. It ends when no message is ready and it has lasted `min_transaction`, or
    when it has lasted `max_transaction`. `standbys` processes follow each shard of a `RecordedState`, ready to take
    over. `lease` is how long a process that vanished keeps its shards. `output_deadline` is how long a journal keeps
    what a transaction has published and not acknowledged, where that is longer than the journal's own
    `transaction_deadline`: a shard may be down for so long between the two.
    """

    def run(self, *, store: str | Store | None = None, once: bool = False) -> None:
        """Run all shards in threads of this process, until SIGTERM or Ctrl-C; with `once`, until nothing is left to
        read. `store` is another URL than the consumer's own, or a store that is open. `detent run module:app` runs
        the shards in several processes."""
        run(self, store=store, once=once)

    async def run_async(self, *, store: str | Store | None = None, once: bool = False) -> None:
        """The same, while the functions that are ``async def`` run on the caller's event loop. Cancel it to stop."""
        await run_async(self, store=store, once=once)


@contextmanager
def opened(
    consumer: Declaration,
    store: str | Store | None = None,
    *,
    role: Role = "auto",
    member: str | None = None,
    run_coroutine: Callable[[Any], Any] | None = None,
    on_event: Event | None = None,
) -> Iterator[Worker]:
    """A worker for a consumer, with its stores open."""
    url = partial(store_url, f"Consumer({consumer.name!r}, store='file:./data', ...)", consumer.store)
    with (
        opened_stores(url, store, consumer.outputs, role=role) as stores,
        coroutines_run(consumer.is_async and run_coroutine is None) as run,
        closing(consumer.state),
    ):
        own = stores.pop(OWN)
        yield Worker(consumer, own, stores, member=member, run_coroutine=run_coroutine or run, on_event=on_event)


def run(consumer: Declaration, *, store: str | Store | None = None, once: bool = False) -> None:
    """Run all shards in threads of this process, until SIGTERM or Ctrl-C, or with `once` until nothing is left."""
    refuse_while_loading("run()")
    if threading.current_thread() is not threading.main_thread():
        with opened(consumer, store) as worker:
            worker.run(once=once)
        return
    stopping = threading.Event()
    with stop_on_signals(stopping), opened(consumer, store) as worker, stopped_by(stopping, worker):
        worker.run(once=once)


@contextmanager
def stopped_by(
    stopping: threading.Event, worker: Worker, look: Callable[[], None] | None = None, look_s: float | None = None
) -> Iterator[None]:
    """Stop a worker when an event is set, which it is at the end in any case; until then, look every so often. By a
    thread: a handler of signals must not wait for a lock that the thread has which it interrupts."""

    def wait() -> None:
        while not stopping.wait(look_s):
            if look is not None:
                look()
        worker.stop()

    watcher = thread.start("detent-stopping", wait)
    try:
        yield
    finally:
        stopping.set()
        watcher.join()


async def run_async(consumer: Declaration, *, store: str | Store | None = None, once: bool = False) -> None:
    """The same, with ``async def`` functions on the caller's event loop. Cancel it to stop."""
    refuse_while_loading("run_async()")
    on_caller = call_on(asyncio.get_running_loop())
    box: list[Worker] = []

    def work() -> None:
        with opened(consumer, store, run_coroutine=on_caller) as worker:
            box.append(worker)
            worker.run(once=once)

    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # the shards' last messages may still need this loop, however often it is cancelled
            for worker in box:
                worker.stop()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task}, timeout=0.05)
        raise
