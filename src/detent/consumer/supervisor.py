"""Several processes for one consumer: started, watched, started again when they die, and ended together.

The supervisor opens the store before its workers do: of a ``file:`` store it is the owner then, and stays it however
often workers die. A worker has two lines to it. What it reads from ends when the supervisor does, however that
happens, and so does the worker. On the other one it tells what happens to its shards.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from detent.consumer.application import Declaration
from detent.consumer.consumer import opened, stopped_by
from detent.consumer.worker import Worker, register
from detent.errors import BY_NAME, Conflict, Denied, DetentError, Invalid, NotFound, Unavailable
from detent.kv import parse_url
from detent.remote import server_address
from detent.runtime.backoff import Backoff, Failures
from detent.shard import operations as ops
from detent.stream.members import new_member

if TYPE_CHECKING:
    from detent.store import Store

POLL_S: Final = 0.05
"""How often the supervisor looks whether its workers live. What a dead one held is free that much later."""

RESTART: Final = Backoff(0.2, 30.0)
"""How long a worker that died is not started again: at first, and at most. Each death doubles it."""

STEADY_S: Final = 60.0
"""A worker that lived for so long before it died is started again soon."""

GRACE_S: Final = 30.0
"""How long workers may take to finish their transactions when they are to end: as long as service managers wait."""

SHOW_S: Final = 1.0
"""How often whoever watches is shown the shards."""

LAST_WORDS_S: Final = 1.0
"""How long the supervisor listens to a worker that has ended. A child of it may hold the line open."""

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


class _Process:
    """A worker that runs, or is to run, and its successors."""

    def __init__(self) -> None:
        self.member = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.listeners: list[threading.Thread] = []
        self.start_at = 0.0
        self._deaths = Failures(RESTART, steady_s=STEADY_S)

    def is_due(self) -> bool:
        """Whether it is to be started now."""
        return self.process is None and time.monotonic() >= self.start_at

    def start(self, command: list[str], *, catch_output: bool) -> subprocess.Popen[bytes]:
        """Start it, as a member of its own: no life is taken for another."""
        self.process = subprocess.Popen(
            [*command, "--worker", self.member],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if catch_output else None,
        )
        self._deaths.began()
        return self.process

    def reap(self) -> None:
        """Let go of a process that has ended, and say when the next one may start."""
        assert self.process is not None
        for listener in self.listeners:
            listener.join(LAST_WORDS_S)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process = None
        self.start_at = time.monotonic() + self._deaths.failed()


class Supervisor:
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
        self._tell = tell
        self._show = show
        self._catch_output = catch_output
        self._force = force
        self._command = [sys.executable, "-m", "detent.cli", "consume", target, "--store", store_url]
        self._command += ["--shards", str(consumer.shards), "--standbys", str(consumer.standbys)]
        self._command += ["--lease", f"{consumer.lease_ms}ms", *options]
        self._processes = [_Process() for _ in range(workers)]
        self._failure: DetentError | None = None

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping` is set, or until a worker says that there is no use. Raises what is the matter then."""
        import detent

        with detent.open(self._url, force=self._force) as store:
            register(self._app, store)
            try:
                self._announce(store)
                self._watch(store, stopping)
                self._tell(Notice("stopping"))
                self._end(store)
            finally:
                self._kill(store)
        if self._failure is not None:
            raise self._failure

    def _announce(self, store: Store) -> None:
        """Let all workers count as members before they have started, so that the first one does not take everything."""
        for one in self._processes:
            one.member = new_member()
            store.commit([ops.Heartbeat(self._app.name, one.member, self._app.lease_ms, "starting")])

    def _watch(self, store: Store, stopping: threading.Event) -> None:
        shown = 0.0
        while not stopping.wait(POLL_S) and self._failure is None:
            for one in self._processes:
                if one.process is not None and one.process.poll() is not None:
                    self._bury(one, store)
                    one.member = new_member()
                if one.is_due() and self._failure is None:
                    self._start(one)
            if self._show is not None and time.monotonic() - shown >= SHOW_S:
                with contextlib.suppress(DetentError):  # the store may be away for a while; workers know what to do
                    self._show(store)
                shown = time.monotonic()

    def _start(self, one: _Process) -> None:
        process = one.start(self._command, catch_output=self._catch_output)
        self._tell(Notice("started", one.member, pid=process.pid))
        one.listeners = [self._listen(process.stdout, self._heard, one.member)]
        if process.stderr is not None:
            one.listeners.append(self._listen(process.stderr, self._said, one.member))

    @staticmethod
    def _listen(stream: IO[bytes] | None, take: Callable[[str, str], None], member: str) -> threading.Thread:
        assert stream is not None

        def listen() -> None:
            with stream:
                for line in stream:
                    take(member, line.decode(errors="replace").rstrip("\n"))

        thread = threading.Thread(target=listen, name="detent-listener", daemon=True)
        thread.start()
        return thread

    def _heard(self, member: str, line: str) -> None:
        """What a worker tells. The last line of one that was killed may be half of one."""
        try:
            what, shard, text = json.loads(line)
        except (ValueError, TypeError):  # something that the application printed while it was loaded
            return
        if what in BY_NAME:
            self._failure = BY_NAME[what](text)
        else:
            self._tell(Notice(what, member, shard, "" if text == member else text))

    def _said(self, member: str, line: str) -> None:
        self._tell(Notice("output", member, text=line))

    def _bury(self, one: _Process, store: Store) -> None:
        """A worker has ended: its shards are free at once, nobody has to wait for the end of its lease."""
        assert one.process is not None
        status, pid = one.process.returncode, one.process.pid
        self._release(one, store)
        one.reap()
        if status == WRONG_USAGE and self._failure is None:
            self._failure = Invalid("a worker does not take the options that it was started with: see what it said")
        self._tell(Notice("died", one.member, text=_how_it_ended(status), pid=pid))

    def _release(self, one: _Process, store: Store) -> None:
        try:
            store.commit([ops.ReleaseShards(self._app.name, one.member, None)])
        except DetentError as error:
            logger.warning("the shards of a worker that ended are free when their lease is over: %s", error)

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self, store: Store) -> None:
        """Let all workers finish what they are at. Those that take too long are killed."""
        for one in self._processes:
            if one.process is not None:
                one.process.terminate()
        deadline = time.monotonic() + GRACE_S
        while any(one.process is not None for one in self._processes):
            for one in self._processes:
                if one.process is not None and one.process.poll() is not None:
                    if one.process.returncode:  # it was too young to hear that it should finish, or has failed
                        self._release(one, store)
                    one.reap()
            if time.monotonic() >= deadline:
                count = self._kill(store)
                self._failure = self._failure or Unavailable(
                    f"{count} of the workers did not finish their transactions within {GRACE_S:.0f} s and were killed; "
                    "what they had not committed is done again by whoever runs the consumer next"
                )
                return
            time.sleep(POLL_S / 5)

    def _kill(self, store: Store) -> int:
        """End what still runs, as by ``kill -9``; how many there were."""
        left = [one for one in self._processes if one.process is not None]
        for one in left:
            assert one.process is not None
            one.process.kill()
        for one in left:
            assert one.process is not None
            one.process.wait()
            self._bury(one, store)
        return len(left)


def _how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"it ended with the exit code {status}"
    try:
        return f"{signal.Signals(-status).name} ended it"
    except ValueError:
        return f"the signal {-status} ended it"


def run_alone(consumer: Declaration, store_url: str, stopping: threading.Event, tell: Tell, show: Show | None) -> None:
    """Run a consumer in this process, whose store lets no other one in, until `stopping` is set."""

    def on_event(what: str, shard: int, text: str) -> None:
        tell(Notice(what, worker.member, shard, "" if text == worker.member else text))

    with opened(consumer, store_url, on_event=on_event) as worker:
        tell(Notice("started", worker.member, pid=os.getpid()))
        watcher = threading.Thread(target=_show_until, args=(stopping, worker, show), daemon=True)
        watcher.start()
        try:
            worker.run()
        finally:
            stopping.set()
            watcher.join()


def _show_until(stopping: threading.Event, worker: Worker, show: Show | None) -> None:
    while not stopping.wait(SHOW_S):
        if show is not None:
            with contextlib.suppress(DetentError):
                show(worker.store)
    worker.stop()


# -- in a worker --------------------------------------------------------------------------------------------------


class _Line:
    """A worker's line to its supervisor: standard input, whose end is the supervisor's, and standard output. What the
    application reads and prints is apart from it."""

    def __init__(self) -> None:
        self._hear, self._say = os.dup(0), os.dup(1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def tell(self, what: str, shard: int | None, text: str) -> None:
        """One line, whole. Nobody may listen any more."""
        line = json.dumps([what, shard, text]).encode() + b"\n"
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._say, line) :]

    def wait_for_end(self) -> None:
        """Return when the supervisor is gone. Bare reads: nothing is held when the process ends meanwhile."""
        with contextlib.suppress(OSError):
            while os.read(self._hear, 64):
                pass


def work(consumer: Declaration, store_url: str, member: str) -> int:
    """What a process does that a supervisor has started: work until it is told to stop, or the supervisor is gone.
    Answers the exit code."""
    line = _Line()
    stopping = threading.Event()
    _stop_on_terminate(stopping)
    threading.Thread(target=_outlive, args=(line, stopping), name="detent-supervised", daemon=True).start()
    try:
        with (
            opened(consumer, store_url, member=member, on_event=line.tell) as worker,
            stopped_by(stopping, worker),
        ):
            worker.run()
    except HOPELESS as error:
        kind = next(kind for kind in HOPELESS if isinstance(error, kind))
        line.tell(kind.__name__, None, str(error))
        return 1
    return 0


def _stop_on_terminate(stopping: threading.Event) -> None:
    """SIGTERM may come from the supervisor and from a service manager. Ctrl-C reaches all processes at a terminal, and
    is the supervisor's affair."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGTERM:
            stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _outlive(line: _Line, stopping: threading.Event) -> None:
    """Finish when the supervisor is gone; and end in any case, as it would have seen to."""
    line.wait_for_end()
    stopping.set()
    time.sleep(GRACE_S)
    os._exit(LOST)
