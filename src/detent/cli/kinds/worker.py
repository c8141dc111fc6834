"""Workers: functions that handle the messages of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from detent.cli._common import count_text
from detent.cli._output import line_text
from detent.cli._views import Look, TaskNotice, TaskView
from detent.cli.kinds.kind import LOOK_S, Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions
from detent.errors import NotFound, Unavailable
from detent.runtime import thread
from detent.runtime.report import Report, State

if TYPE_CHECKING:
    from detent.queue import AsyncWorker, Queue, QueueInfo, Worker
    from detent.store import Store

QUIET_LOOKS: Final = 2
"""A queue that is empty at so many looks in a row has nothing more for --once."""


class WorkerKind(TaskKind):
    """The kind."""

    noun = "worker"
    home = "detent.queue"
    usual = "worker"
    example = "mails.py:worker or shop.mails:worker"
    lines = (
        'import detent; store = detent.open("file:./data"); worker = detent.Worker(store.queue("mails"), handle), or '
        'detent.AsyncWorker(detent.open_async("file:./data").queue("mails"), handle)'
    )

    def classes(self) -> tuple[type, ...]:
        """Of a worker, with threads or with asyncio."""
        from detent.queue import AsyncWorker, Worker

        return (Worker, AsyncWorker)

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task a worker."""
        del given
        return [ReadyWorker(one.what) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """The queue of a worker of a file."""
        del given
        with opened_queue(found) as queue:
            store: Any = queue._store
            yield KnownQueue(store, queue.name)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """The queues of a store that have no subscriptions: workers take their messages."""
        return stored_queues(store, kind="worker")

    def known(self, store: Store, name: str) -> KnownTask | None:
        """One whose queue has none."""
        return known_queue(store, name, kind="worker")


@contextmanager
def opened_queue(worker: Worker | AsyncWorker) -> Iterator[Queue]:
    """The queue of a worker, to look at: that of a store which the file has opened, or has yet to open."""
    import detent
    from detent.queue import DeclaredQueue

    queue = worker.queue
    if not isinstance(queue, DeclaredQueue):
        yield queue
        return
    with detent.open(queue.url) as store:
        yield store.queue(queue.name)


class ReadyWorker(ReadyTask):
    """A worker that is about to run in this process."""

    kind = "worker"
    hangs_on_threads = True
    tells_of_log = True

    def __init__(self, worker: Worker | AsyncWorker) -> None:
        super().__init__()
        self._worker = worker
        self.name: str = worker.queue.name

    def check(self, *, as_json: bool) -> None:
        """Its queue."""
        del as_json
        click.echo(f"worker of the queue {self.name}")

    def stop(self) -> None:
        """Claim no more, and finish what is running."""
        super().stop()
        self._worker.stop()

    def run(self, view: TaskView) -> int:
        """Handle messages until `stop`."""
        return self._run(view, is_once=False)

    def run_once(self, view: TaskView) -> int:
        """Handle messages until the queue is empty."""
        return self._run(view, is_once=True)

    def _run(self, view: TaskView, *, is_once: bool) -> int:
        view.tell(TaskNotice("started", f"started on the queue {self.name}", {"queue": self.name}))
        # In a thread of its own: in this one it would have Ctrl-C call `stop` each time, also the second one.
        with opened_queue(self._worker) as queue, thread.pool(f"detent-worker-{self.name}", 1) as pool:
            working = pool.submit(self._work)
            try:
                self._watch(view, working, queue if is_once else None)
            finally:
                self._worker.stop()
        working.result()
        counts = {"handled": self._worker.handled, "failed": self._worker.failed}
        text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        event = "summary" if is_once else "stopped"
        view.tell(TaskNotice(event, f"stopped: {text}", {"queue": self.name, **counts}))
        return 0

    def _work(self) -> None:
        running = self._worker.run()
        if running is not None:
            asyncio.run(running)

    def _watch(self, view: TaskView, working: Future[None], drained: Queue | None) -> None:
        """Show how it is until it has ended, or, for --once, until the queue is drained."""
        look, quiet, is_told = Look(self.title, self._reports, self._fields), 0, False
        while not wait([working], LOOK_S).done:
            view.show(look)
            quiet = quiet + 1 if drained is not None and not _waiting(drained) else 0
            if quiet >= QUIET_LOOKS:
                return
            if self.stopping.is_set() and not is_told:
                is_told = True
                view.tell(TaskNotice("stopping", "stopping: handlers under way are waited for; Ctrl-C does not wait"))

    def _fields(self) -> dict[str, Any]:
        return self._reports()[0].as_json()

    def _reports(self) -> list[Report]:
        counts = {"handled": self._worker.handled, "failed": self._worker.failed}
        return [Report(self.kind, self.name, State.RUNNING, counts)]


def _waiting(queue: Queue) -> int:
    """Messages that are still to be handled. A queue that is paused hands out none, so these are left."""
    try:
        found = queue.info()
    except Unavailable:  # the worker waits for it, too
        return 1
    return found.in_flight + (0 if found.paused else found.available + found.delayed + found.blocked)


# -- steering ---------------------------------------------------------------------------------------------------------


def stored_queues(store: Store, *, kind: str) -> Iterator[KnownTask]:
    """The queues of a store that apps, or workers, take messages from."""
    for info in store.queues():
        if _kind_of(info) == kind:
            yield KnownQueue(store, info.name, kind=kind)


def known_queue(store: Store, name: str, *, kind: str) -> KnownTask | None:
    """The queue of this name, if apps, or workers, take its messages."""
    with suppress(NotFound):
        if _kind_of(store.queue(name).info()) == kind:
            return KnownQueue(store, name, kind=kind)
    return None


def _kind_of(info: QueueInfo) -> str:
    """An app has subscribed to types of messages."""
    from detent.bus import topics

    return "app" if topics.parse_filter(info.name, info.filter).topics else "worker"


def queue_report(found: QueueInfo, kind: str, name: str) -> Report:
    """What works on a queue, as far as the queue can tell: messages that are being handled now."""
    state = State.PAUSED if found.paused else State.RUNNING if found.in_flight else State.UNKNOWN
    done = {"handled": found.total_acked, "given up": found.total_failed}
    about = {"queue": found.name, "in flight": str(found.in_flight), "failed": str(found.failed)}
    return Report(kind, name, state, done, found.available + found.delayed + found.blocked, about=about)


class KnownQueue(KnownTask):
    """What handles the messages of a queue: an app or a worker, in any number of processes."""

    instead: ClassVar[Mapping[str, str]] = {
        "reset": "a queue hands each message out until it is handled, and has no place to go back to. Have messages "
        "that were given up tried again with `detent queue redrive`",
    }

    def __init__(self, store: Store, name: str, *, kind: str = "worker") -> None:
        self._store = store
        self.name = name
        self.kind = kind

    def info(self) -> QueueInfo:
        """The queue."""
        return self._store.queue(self.name).info()

    def report(self) -> Report:
        """What the queue can tell."""
        return queue_report(self.info(), self.kind, self.name)

    def pause(self) -> None:
        """The queue hands out no messages."""
        self._store.queue(self.name).pause()

    def resume(self) -> None:
        """The queue hands them out again."""
        self._store.queue(self.name).resume()

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What goes."""
        del wanted
        found = self.info()
        held = found.available + found.delayed + found.blocked + found.in_flight + found.failed
        return f"deletes the queue {line_text(self.name)} with {count_text(held)}"

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete the queue."""
        del wanted
        self._store.queue(self.name).delete()
        return {}

    def left(self) -> int:
        """Messages that are not handled, also those that are being handled."""
        found = self.info()
        return found.available + found.delayed + found.blocked + found.in_flight
