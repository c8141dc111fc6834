"""Workers: functions that handle the messages of a queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from detent.cli._common import count_text
from detent.cli._output import line_text
from detent.cli._views import Look, TaskNotice, TaskView
from detent.cli.kinds.kind import LOOK_S, Found, Given, KnownTask, ReadyTask, TaskKind
from detent.errors import Unavailable
from detent.runtime import thread
from detent.runtime.report import Report, State
from detent.runtime.target import Sought

if TYPE_CHECKING:
    from detent.queue import QueueInfo
    from detent.store import Store

QUIET_LOOKS: Final = 2
"""A queue that is empty at so many looks in a row has nothing more for --once."""


class Workers(TaskKind):
    """The kind."""

    noun = "worker"
    home = "detent.queue"

    def sought(self) -> Sought[Any]:
        """What a file is to declare."""
        from detent.queue import Worker

        return Sought(
            Worker,
            noun="worker",
            plural="workers",
            article="a",
            example="mails.py:worker or shop.mails:worker",
            lines='import detent; store = detent.open("file:./data"); '
            'worker = detent.Worker(store.queue("mails"), handle)',
            usual="worker",
        )

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task a worker."""
        del given
        return [ReadyWorker(one.what) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """The queue of a worker of a file, whose store the file has opened."""
        del given
        store = found.queue._store
        yield KnownQueue(store, found.queue.name)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """The queues of a store that have no subscriptions: workers take their messages."""
        from detent.bus import topics

        for info in store.queues():
            if not topics.parse_filter(info.name, info.filter).topics:
                yield KnownQueue(store, info.name)


class ReadyWorker(ReadyTask):
    """A worker that is about to run in this process."""

    kind = "worker"
    hangs_on_threads = True
    tells_of_log = True

    def __init__(self, worker: Any) -> None:
        super().__init__()
        self._worker = worker
        self.name = worker.queue.name

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
        with thread.pool(f"detent-worker-{self.name}", 1) as pool:
            working = pool.submit(self._worker.run)
            try:
                self._watch(view, working, is_once=is_once)
            finally:
                self._worker.stop()
        working.result()
        counts = {"handled": self._worker.handled, "failed": self._worker.failed}
        text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        event = "summary" if is_once else "stopped"
        view.tell(TaskNotice(event, f"stopped: {text}", {"queue": self.name, **counts}))
        return 0

    def _watch(self, view: TaskView, working: Future[None], *, is_once: bool) -> None:
        """Show how it is until it has ended, or has nothing left for --once."""
        look, quiet, is_told = Look(self.title, self._reports, self._fields), 0, False
        while not wait([working], LOOK_S).done:
            view.show(look)
            quiet = quiet + 1 if is_once and not self._waiting() else 0
            if quiet >= QUIET_LOOKS:
                return
            if self.stopping.is_set() and not is_told:
                is_told = True
                view.tell(TaskNotice("stopping", "stopping: handlers under way are waited for; Ctrl-C does not wait"))

    def _waiting(self) -> int:
        """Messages that are still to be handled. A queue that is paused hands out none, so these are left."""
        try:
            found: QueueInfo = self._worker.queue.info()
        except Unavailable:  # the worker waits for it, too
            return 1
        return found.in_flight + (0 if found.paused else found.available + found.delayed + found.blocked)

    def _fields(self) -> dict[str, Any]:
        return self._reports()[0].as_json()

    def _reports(self) -> list[Report]:
        counts = {"handled": self._worker.handled, "failed": self._worker.failed}
        return [Report(self.kind, self.name, State.RUNNING, counts)]


# -- steering ---------------------------------------------------------------------------------------------------------


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

    def remove_consequence(self) -> str:
        """What goes."""
        found = self.info()
        held = found.available + found.delayed + found.blocked + found.in_flight + found.failed
        return f"deletes the queue {line_text(self.name)} with {count_text(held)}"

    def remove(self) -> None:
        """Delete the queue."""
        self._store.queue(self.name).delete()

    def left(self) -> int:
        """Messages that are not handled, also those that are being handled."""
        found = self.info()
        return found.available + found.delayed + found.blocked + found.in_flight
