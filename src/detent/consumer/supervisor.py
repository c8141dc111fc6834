"""Several processes for one consumer: started, watched, started again when they die, and ended together.

This process opens the store before its workers do: of a ``file:`` store it is the owner then, and stays it however
often workers die. A worker has a line to it (`detent.runtime.process`): it ends when this process does, however that
happens, and it tells what happens to its shards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from detent.consumer.application import Declaration
from detent.consumer.consumer import opened, stopped_by
from detent.consumer.worker import register
from detent.errors import BY_NAME, Conflict, Denied, DetentError, Invalid, NotFound, Unavailable
from detent.kv import parse_url
from detent.remote import server_address
from detent.runtime.backoff import Backoff
from detent.runtime.process import Child, ChildTask, Died, ParentLine, how_it_ended
from detent.runtime.supervisor import Supervisor
from detent.runtime.task import Restart
from detent.stream.membership import Membership, new_member

if TYPE_CHECKING:
    from detent.store import Store

LOOK_S: Final = 0.05
"""How often it is looked whether a worker has said that another try is of no use."""

RESTART: Final = Backoff(0.2, 30.0)
"""How long a worker that died is not started again: at first, and at most. Each death doubles it."""

STEADY_S: Final = 60.0
"""A worker that lived for so long before it died is started again soon."""

GRACE_S: Final = 30.0
"""How long workers may take to finish their transactions when they are to end: as long as service managers wait."""

SHOW_S: Final = 1.0
"""How often a view is shown the shards."""

WRONG_USAGE: Final = 2
"""The exit code of a command that was given wrong options."""

LOST: Final = 1
"""The exit code of a worker whose supervisor died and whose transactions did not end in time."""

HOPELESS: Final = (Conflict, Denied, Invalid, NotFound)
"""Errors of a consumer as a whole that another try does not mend: it is divided otherwise, was deleted, or is not
allowed. What a message does to a shard is not among them: the shard tries that again by itself."""

logger = logging.getLogger("detent.consumer")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened: to a worker (started, died, output), to a shard of it (taken, released, failed, fenced,
    following), or to all (stopping)."""

    kind: str
    member: str = ""
    shard: int | None = None
    text: str = ""
    pid: int | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs: what there is to say."""
        said: dict[str, Any] = {"event": self.kind, "worker": self.member, "pid": self.pid, "shard": self.shard}
        said["text"] = self.text
        return {name: value for name, value in said.items() if value not in {None, ""}}


Tell = Callable[[Notice], None]
Show = Callable[["Store"], None]


def can_be_shared(url: str) -> bool:
    """Whether several processes can have a store open: through its owner's socket, or through a server."""
    return server_address(url) is not None or parse_url(url).scheme == "file"


def worker_count(consumer: Declaration, url: str, asked: int | None) -> int:
    """How many processes to start; 0 if the store lets only this one in, which then does the work itself.

    Unless it is said: one a shard, but no more than there are processors, and enough for all standbys of a shard.
    """
    if not can_be_shared(url):
        if asked is not None and asked > 1:
            raise Invalid(
                f"{url} is open in one process only, so there is no use for {asked} workers: leave --workers out, or "
                "put a server before it (detent serve) and give its address as the store"
            )
        return 0
    return asked or max(min(consumer.shards, os.cpu_count() or 1), consumer.standbys + 1)


class WorkerProcess(ChildTask):
    """A process that works on shards, and its successors. Each is a member of its own: no life is taken for another."""

    def __init__(self, name: str, begin: Callable[[str], Child], ended: Callable[[str, Child, int], None]) -> None:
        super().__init__(name, lambda: begin(self.member), self._end)
        self.restart = Restart(RESTART, steady_s=STEADY_S)
        self.member = new_member()
        self._tell_end = ended

    def _end(self, child: Child, status: int) -> None:
        member, self.member = self.member, new_member()
        self._tell_end(member, child, status)

    def failed(self, error: Exception, pause_s: float) -> None:
        """Of its death is told when it has ended."""
        if not isinstance(error, Died):
            super().failed(error, pause_s)


class Processes:
    """Runs a consumer in several processes, until it is told to stop. `target` is what they load it by;
    `options` are further ones of the command that starts them."""

    def __init__(
        self,
        target: str,
        consumer: Declaration,
        store_url: str,
        workers: int,
        *,
        tell: Tell,
        show: Show | None = None,
        catch_output: bool = False,
        options: Sequence[str] = (),
        force: bool = False,
    ) -> None:
        self._app = consumer
        self._url = store_url
        self._count = workers
        self._tell = tell
        self._show = show
        self._catch_output = catch_output
        self._force = force
        self._store: Store
        self._command = [sys.executable, "-m", "detent.cli", "consume", target, "--store", store_url]
        self._command += ["--shards", str(consumer.shards), "--standbys", str(consumer.standbys)]
        self._command += ["--lease", f"{consumer.lease_ms}ms", *options]
        self._is_ending = False
        self._failure: DetentError | None = None

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping` is set, or until a worker says why another try is of no use: that is raised."""
        import detent

        with detent.open(self._url, force=self._force) as store:
            register(self._app, store)
            supervisor = Supervisor()
            self._store = store
            workers = [
                WorkerProcess(f"detent-worker-{number}", self._begin, self._ended) for number in range(self._count)
            ]
            for one in workers:  # all count as members before one has started, or the first would take everything
                self._membership(one.member).beat(info="starting")
                supervisor.add(one)
            try:
                supervisor.start()
                self._watch(stopping)
                self._tell(Notice("stopping"))
                self._is_ending = True
                supervisor.stop_soon()
                self._note_late(len(supervisor.stop(GRACE_S)))
            finally:  # told to end a second time, it does not wait
                supervisor.stop_soon()
                for one in workers:
                    one.kill()
                supervisor.stop(GRACE_S)
        if self._failure is not None:
            raise self._failure

    def _watch(self, stopping: threading.Event) -> None:
        shown = 0.0
        while not stopping.wait(LOOK_S) and self._failure is None:
            if time.monotonic() - shown >= SHOW_S:
                _show(self._store, self._show)
                shown = time.monotonic()

    def _note_late(self, count: int) -> None:
        if count and self._failure is None:
            self._failure = Unavailable(
                f"{count} of the workers did not finish their transactions within {GRACE_S:.0f} s and were killed: "
                "what they had not committed is done again when the consumer runs next"
            )

    # -- one worker -----------------------------------------------------------------------------------------------

    def _membership(self, member: str) -> Membership:
        return Membership(self._store, self._app.name, self._app.lease_ms, member)

    def _begin(self, member: str) -> Child:
        def said(line: str) -> None:
            self._tell(Notice("output", member, text=line))

        child = Child(
            [*self._command, "--worker", member],
            name="detent-listener",
            heard=lambda notice: self._heard(member, notice),
            said=said if self._catch_output else None,
        )
        self._tell(Notice("started", member, pid=child.pid))
        return child

    def _heard(self, member: str, notice: Any) -> None:
        """What a worker tells."""
        try:
            what, shard, text = notice
        except (ValueError, TypeError):  # something that the application printed while it was loaded
            return
        if what in BY_NAME:
            self._failure = BY_NAME[what](text)
        else:
            self._tell(Notice(what, member, shard, "" if text == member else text))

    def _ended(self, member: str, child: Child, status: int) -> None:
        """A worker has ended: its shards are free at once, and no other has to wait for the end of its lease."""
        if self._is_ending and not status:
            return  # it has given them back
        try:
            self._membership(member).give_back()
        except DetentError as error:
            logger.warning("the shards of a worker that ended are free when their lease is over: %s", error)
        child.join()  # its last words come before the word of its end
        if status == WRONG_USAGE and self._failure is None:
            self._failure = Invalid("a worker does not take the options that it was started with: see what it said")
        if not self._is_ending or status == -signal.SIGKILL:
            self._tell(Notice("died", member, text=how_it_ended(status), pid=child.pid))


def run_alone(consumer: Declaration, store_url: str, stopping: threading.Event, tell: Tell, show: Show | None) -> None:
    """Run a consumer in this process, whose store lets no other one in, until `stopping` is set."""

    def on_event(what: str, shard: int, text: str) -> None:
        tell(Notice(what, worker.member, shard, "" if text == worker.member else text))

    with opened(consumer, store_url, on_event=on_event) as worker:
        tell(Notice("started", worker.member, pid=os.getpid()))
        with stopped_by(stopping, worker, lambda: _show(worker.store, show), SHOW_S):
            worker.run()


def _show(store: Store, show: Show | None) -> None:
    """Show the shards. The store may be away for a while; workers know what to do."""
    if show is not None:
        with contextlib.suppress(DetentError):
            show(store)


# -- in a worker --------------------------------------------------------------------------------------------------


def work(consumer: Declaration, store_url: str, member: str) -> int:
    """What a worker does: it works until it is told to stop, or the supervisor is gone. Answers the exit code."""
    line = ParentLine()
    stopping = threading.Event()
    _stop_on_terminate(stopping)
    line.on_end(lambda: _outlive(stopping))

    def tell(what: str, shard: int | None, text: str) -> None:
        line.tell([what, shard, text])

    try:
        with opened(consumer, store_url, member=member, on_event=tell) as worker, stopped_by(stopping, worker):
            worker.run()
    except HOPELESS as error:
        kind = next(kind for kind in HOPELESS if isinstance(error, kind))
        tell(kind.__name__, None, str(error))
        return 1
    return 0


def _stop_on_terminate(stopping: threading.Event) -> None:
    """SIGTERM may come from the supervisor and from a service manager. Ctrl-C reaches all processes at a terminal, and
    is the supervisor's affair."""

    is_told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        del frame
        if number == signal.SIGTERM and not is_told:  # a second one may interrupt the first, which has the event's lock
            is_told = True
            stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _outlive(stopping: threading.Event) -> None:
    """The supervisor is gone: finish; and end in any case, as it would have seen to."""
    stopping.set()
    time.sleep(GRACE_S)
    os._exit(LOST)
