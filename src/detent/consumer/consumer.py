"""`Consumer`, and how one runs in this process: its stores opened, its shards in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from detent.consumer.application import Declaration
from detent.consumer.worker import Event, Worker
from detent.errors import Invalid
from detent.runtime import thread
from detent.runtime.loop import call_on, loop_in_thread
from detent.runtime.signals import stop_on_signals
from detent.runtime.target import refuse_while_loading

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


def store_url(consumer: Declaration, store: str | None) -> str:
    """The store that a consumer reads; `Invalid` if nobody names one."""
    url = store or consumer.store or os.environ.get("DETENT_URL")
    if not url:
        raise Invalid(f"no store: write Consumer({consumer.name!r}, store='file:./data', ...), or set DETENT_URL")
    return url


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
    import detent

    with ExitStack() as stack:
        own: Store
        if isinstance(store, detent.Store):
            own = store
        else:
            own = stack.enter_context(detent.open(store_url(consumer, store), role=role))
        outputs = {name: stack.enter_context(detent.open(url)) for name, url in consumer.outputs.items()}
        if run_coroutine is None and consumer.is_async:
            run_coroutine = call_on(stack.enter_context(loop_in_thread()))
        stack.callback(consumer.state.close)
        yield Worker(consumer, own, outputs, member=member, run_coroutine=run_coroutine, on_event=on_event)


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
def stopped_by(stopping: threading.Event, worker: Worker) -> Iterator[None]:
    """Stop a worker when an event is set, which it is at the end in any case. By a thread: a handler of signals must
    not wait for a lock that the thread has which it interrupts."""

    def wait() -> None:
        stopping.wait()
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
