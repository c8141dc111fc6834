"""Real processes for tests: started, talked to in lines of JSON, stopped, continued, killed, always cleaned up.

A test passes a top-level function of its own module; the child imports that module afresh and calls the
function with an `Io` and the keyword arguments. `store_process` is such a function, good for most tests: it opens a
store and does what it is told, call by call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zygote import Forked

PATIENCE_S = 30.0
"""How long a test waits for anything before it gives up: never a statement about speed."""


def eventually(check: Callable[[], Any], *, seconds: float = PATIENCE_S, what: str = "the condition") -> Any:
    """What `check` answers, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.005)
    return found


class CallFailed(Exception):
    """What a child was asked to do raised an exception there."""

    def __init__(self, kind: str, message: str, seconds: float) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.seconds = seconds


class Child:
    """A process under a test's control."""

    def __init__(
        self,
        function: Callable[..., None],
        arguments: dict[str, Any],
        environment: dict[str, str],
        wrapper: list[str],
        with_spark: bool,
    ) -> None:
        self.name = function.__name__
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in `end`
        self._process = Forked(
            [*wrapper, sys.executable, __file__, inspect.getfile(function), function.__name__, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            start_new_session=True,
            with_spark=with_spark,
        )
        self.pid = self._process.pid
        self.events: list[dict[str, Any]] = []
        self.last_errors = ""
        self._changed = threading.Condition()
        self._next = 0
        self._ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # the last words of a killed process
            event = json.loads(line)
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- talking ------------------------------------------------------------------------------------------------

    def next_event(self, *, seconds: float = PATIENCE_S) -> dict[str, Any] | None:
        """The next event, or None when the process will say no more."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._next < len(self.events) or self._ended, seconds):
                raise AssertionError(f"{self.name} ({self.pid}) said nothing for {seconds} s\n{self.errors()}")
            if self._next == len(self.events):
                return None
            self._next += 1
            return self.events[self._next - 1]

    def expect(self, event: str, *, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """The next event, which must be this one."""
        found = self.next_event(seconds=seconds)
        assert found is not None, f"{self.name} ({self.pid}) ended before {event!r}\n{self.errors()}"
        assert found["event"] == event, f"{self.name} said {found} instead of {event!r}\n{self.errors()}"
        return found

    def tell(self, **message: Any) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def send(self, call: str, **arguments: Any) -> None:
        """Ask a `store_process` to do something; `answer` fetches the result."""
        self.tell(call=call, arguments=arguments)

    def answer(self, *, seconds: float = PATIENCE_S) -> Any:
        """The result of the earliest `send` that has not been answered; `CallFailed` if it raised."""
        found = self.next_event(seconds=seconds)
        assert found is not None, f"{self.name} ({self.pid}) ended instead of answering\n{self.errors()}"
        if found["event"] == "raised":
            raise CallFailed(found["kind"], found["message"], found["seconds"])
        assert found["event"] == "answer", found
        return found["result"]

    def call(self, call: str, *, seconds: float = PATIENCE_S, **arguments: Any) -> Any:
        """Ask, and wait for the result."""
        self.send(call, **arguments)
        return self.answer(seconds=seconds)

    def errors(self) -> str:
        """What the process wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    # -- life and death -----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Freeze the process; returns when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(self.stands_still, what=f"{self.pid} standing still")

    def stands_still(self) -> bool:
        """Whether it was stopped, and not yet resumed."""
        return _state(self.pid) == "T"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as by kill -9, and wait until it is gone. Children of its own live on."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, *, seconds: float = PATIENCE_S) -> int:
        """The exit status (negative: the signal that ended it)."""
        return self._process.wait(seconds)

    def was_killed(self, *, seconds: float = PATIENCE_S) -> bool:
        """Whether it ended by SIGKILL."""
        return self.wait(seconds=seconds) == -signal.SIGKILL

    def finish(self, *, seconds: float = PATIENCE_S) -> None:
        """No more commands: it ends by itself, and well."""
        assert self._process.stdin is not None
        self.tell(call="end", arguments={})
        status = self.wait(seconds=seconds)
        assert status == 0, f"{self.name} ended with {status}\n{self.errors()}"

    def end(self) -> None:
        """Make sure that nothing is left, grandchildren included."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is self._process.stdout:
                self._listener.join(PATIENCE_S)
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        if not self._errors.closed:
            self.last_errors = self.errors()
            self._errors.close()


def children_of(pid: int) -> list[int]:
    """The processes that a process started, and that still run."""
    return [child for child, (_, parent, _) in _table().items() if parent == pid]


def session_of(leader: int) -> list[int]:
    """The processes of a session, which a process began and its descendants share."""
    return [pid for pid, (_, _, session) in _table().items() if session == leader]


def terminate_session(leader: int) -> int:
    """Tell every process of a session to end, as a service manager does; how many there were."""
    everyone = session_of(leader)
    for process in everyone:
        with contextlib.suppress(ProcessLookupError):  # another one has ended it, as it was told
            os.kill(process, signal.SIGTERM)
    return len(everyone)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for somebody to ask how it ended."""
    return _state(pid) in {"", "Z"}


def _table() -> dict[int, tuple[str, int, int]]:
    """State, parent and session of every process that has not ended, be it that nobody has asked how."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            found[int(path.name)] = _status(int(path.name))
    return {pid: status for pid, status in found.items() if status[0] != "Z"}


def _status(pid: int) -> tuple[str, int, int]:
    state, parent, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    return state, int(parent), int(session)


def _state(pid: int) -> str:
    try:
        return _status(pid)[0]
    except FileNotFoundError:
        return ""


class Processes:
    """All processes of one test."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end()

    def start(
        self,
        function: Callable[..., None],
        *,
        environment: dict[str, str] | None = None,
        wrapper: list[str] | None = None,
        with_spark: bool = False,
        **arguments: Any,
    ) -> Child:
        """A process that runs a function of the test's module, if wanted inside another program such as strace."""
        child = Child(function, arguments, environment or {}, wrapper or [], with_spark)
        self._children.append(child)
        return child

    def store(self, url: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> Child:
        """A process that has opened a store, see `store_process`."""
        child = self.start(store_process, environment=environment, url=url, **arguments)
        child.expect("open")
        return child

    def stores(self, url: str, count: int) -> list[Child]:
        """Several of them, started side by side."""
        children = [self.start(store_process, url=url) for _ in range(count)]
        for child in children:
            child.expect("open")
        return children


# -- in the child -----------------------------------------------------------------------------------------------


class Io:
    """A child's line to its test. When the test goes away, so does the child."""

    def __init__(self) -> None:
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # Bare reads: a thread inside a buffered reader is a fatal error when the interpreter ends.
        rest = b""
        while data := os.read(0, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._heard.put(json.loads(line))
        os._exit(3)

    def say(self, event: str, **fields: Any) -> None:
        """One event, out of this process before the call returns."""
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(1, line) :]

    def hear(self) -> dict[str, Any]:
        """The next message."""
        return self._heard.get()

    def calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the test asks for, until it asks for no more."""
        while (message := self.hear())["call"] != "end":
            yield message["call"], message["arguments"]


def store_process(
    io: Io,
    url: str,
    role: str = "auto",
    timeout: str = "30s",
    force: bool = False,
    patches: dict[str, Any] | None = None,
) -> None:
    """Open a store and do what the test asks for. `patches` sets names of detent's modules before that."""
    import detent

    for name, value in (patches or {}).items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    with detent.open(url, role=role, timeout=timeout, force=force) as store:  # type: ignore[arg-type]
        io.say("open", owner=store.is_owner, epoch=store.epoch if role != "reader" else None)
        calls = Calls(io, store)
        for call, arguments in io.calls():
            began = time.monotonic()
            try:
                io.say("answer", result=getattr(calls, call)(**arguments))
            except Exception as error:
                seconds = time.monotonic() - began
                io.say("raised", kind=type(error).__name__, message=str(error), seconds=seconds)


def arm(point: str) -> None:
    """Arm a crash point. One of them is reached only where records of the log are written and synced in two steps."""
    from detent import crash
    from detent.kv.commitlog import DirectFile

    if point.startswith("kv.log.after_write"):
        DirectFile.write = lambda *_: False  # type: ignore[method-assign]
    crash.arm(point)


class Calls:
    """What a `store_process` can be asked for. Bodies are text here, so that they travel as JSON."""

    def __init__(self, io: Io, store: Any) -> None:
        self._io = io
        self._store = store

    def status(self) -> dict[str, Any]:
        return {"owner": self._store.is_owner, "epoch": self._store.epoch}

    def change_directory(self, path: str) -> None:
        os.chdir(path)

    def arm(self, point: str) -> None:
        arm(point)

    def append(self, journal: str, body: str) -> dict[str, Any]:
        return _appended(self._store.journal(journal).append(body.encode()))

    def append_many(self, journal: str, bodies: list[str]) -> dict[str, Any]:
        return _appended(self._store.journal(journal).append_many([body.encode() for body in bodies]))

    def append_big(self, journal: str, size: int, count: int) -> list[int]:
        """Messages of random bytes; their offsets."""
        return [self._store.journal(journal).append(os.urandom(size)).offset for _ in range(count)]

    def transaction(self, bodies: dict[str, str], registers: dict[str, dict[str, str]] | None = None) -> Any:
        with self._store.transaction() as transaction:
            for journal, values in (registers or {}).items():
                transaction.set_registers(journal, values)
            for journal, body in bodies.items():
                transaction.append(journal, body.encode())
        return [_appended(result) for result in transaction.results if hasattr(result, "offset")]

    def registers(self, journal: str) -> dict[str, str]:
        found: dict[str, str] = self._store.journal(journal).registers()
        return found

    def set_registers(self, journal: str, values: dict[str, str], expect: dict[str, str | None] | None = None) -> None:
        self._store.journal(journal).set_registers(values, expect=expect)

    def count_up(self, journal: str, times: int) -> int:
        """Raise a counter by compare-and-set; how often that had to be tried again."""
        from detent.errors import Conflict

        handle, conflicts = self._store.journal(journal), 0
        for _ in range(times):
            while True:
                found = handle.registers().get("counter", "0")
                try:
                    handle.set_registers({"counter": str(int(found) + 1)}, expect={"counter": found})
                    break
                except Conflict:
                    conflicts += 1
        return conflicts

    def read(self, journal: str, isolation: str = "committed") -> list[str]:
        return [message.body.decode() for message in self._store.journal(journal).read(isolation=isolation)]

    def extent(self, journal: str) -> list[int]:
        return list(self._store.reader.extent(journal))

    def count(self, journal: str) -> int:
        """Read everything, for real, and count it."""
        return sum(1 for _ in self._store.journal(journal).read())

    def tail(self, journal: str, count: int) -> None:
        """Say when each message arrives."""
        self._io.say("tailing")
        for message in self._store.journal(journal).tail(0):
            self._io.say("message", at=time.monotonic(), body=message.body.decode())
            if (count := count - 1) == 0:
                return


def _appended(result: Any) -> dict[str, Any]:
    return {field: getattr(result, field) for field in ("position", "count", "offset", "committed")}


def _main(path: str, function: str, arguments: str) -> None:
    if Path(path).resolve() == Path(__file__).resolve():
        module: Any = sys.modules[__name__]
    else:
        sys.modules["processes"] = sys.modules[__name__]
        specification = importlib.util.spec_from_file_location("child_module", path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules["child_module"] = module
        specification.loader.exec_module(module)
    try:
        getattr(module, function)(Io(), **json.loads(arguments))
    except BaseException:
        traceback.print_exc()
        raise


if __name__ == "__main__":
    _main(*sys.argv[1:])
