"""Python processes that start at once, because they are forked from one that has imported everything already.

    process = Forked(["-m", "detent.cli", "queue", "ls", url], stdout=subprocess.PIPE)

takes what `subprocess.Popen` takes and is one: a process of its own, with its own pipes, environment, folder, session
and end, that signals stop and kill like any other. Only the half second of imports is missing, which hundreds of tests
would spend again. Tests of how a program is found or imported, or of another Python, take `subprocess.Popen` itself.

The zygote ends with the test process, and opens no store: nothing of one survives a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib.machinery
import importlib.util
import inspect
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

MODULES = (
    "detent.bus.inbox",
    "detent.bus.outbox_sql",
    "detent.bus.app",
    "detent.cli",
    "detent.runtime.target",
    "detent.consumer.supervisor",
    "detent.processor.live_graph",
    "detent.kv.file",
    "detent.kv.memory",
    "detent.server.serving",
    "detent.state.recorded",
    "detent.state.sql",
    "detent.store",
    "detent.verify",
    "psycopg",
    "rich.console",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
)
SPARK_MODULES = (
    "detent.ingest.pipeline",
    "detent.spark.pipeline_runner",
    "boto3",
    "pandas",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pyspark.sql",
    "sqlalchemy.dialects.sqlite",
)
"""What the programs of tests import, as far as it starts no threads: those do not survive a fork. Programs without
Spark have a zygote of their own, because a smaller one forks faster."""

_NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
"""Libraries that would start some when they are imported."""

_LENGTH = struct.Struct(">I")
_TOLD = struct.Struct(">ci")
_BEGUN, _ENDED = b"+", b"-"
"""What is told of a process: its number when it has become what it is to be, and its status when it has ended."""


class Forked(subprocess.Popen[Any]):
    """A process whose command is ``[sys.executable, FILE, ...]`` or ``[sys.executable, "-m", MODULE, ...]``."""

    def __init__(self, command: list[str], *, with_spark: bool = False, **options: Any) -> None:
        self._line: socket.socket | None = None
        self._with_spark = with_spark
        super().__init__(command, **options)

    def _execute_child(self, *values: Any, **named: Any) -> None:
        """In place of a fork and exec of this process: ask the zygote for a fork of itself."""
        execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        given = inspect.signature(execute).bind(self, *values, **named).arguments
        environment = dict(os.environ if given["env"] is None else given["env"])
        if not _can_fork(given) or _of_python(environment) != _of_python(os.environ):
            execute(self, *values, **named)
            return
        wanted = {
            "arguments": given["args"][1:],
            "folder": os.fspath(given["cwd"] or os.getcwd()),
            "environment": environment,
            "new_session": bool(given["start_new_session"]),
        }
        ours = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        streams = [number if stream == -1 else stream for number, stream in enumerate(ours)]
        self._line, self.pid = _ask(wanted, streams, with_spark=self._with_spark)
        self._child_created = True
        # Of pipes their ends are the child's alone; other streams are the caller's.
        for theirs, mine in zip(ours, (given["p2cwrite"], given["c2pread"], given["errread"]), strict=True):
            if mine != -1:
                os.close(theirs)
        if hasattr(self, "_devnull"):
            os.close(self._devnull)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """What `os.waitpid` would say of a child of this process."""
        if self._line is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        self._line.setblocking(not wait_flags & os.WNOHANG)
        try:
            told = self._line.recv(_TOLD.size)
        except BlockingIOError:
            return 0, 0
        self._line.close()
        if not told:
            raise ChildProcessError(errno.ECHILD, "the zygote has ended")
        what, status = _TOLD.unpack(told)
        assert what == _ENDED
        return self.pid, status

    def _internal_poll(self, *values: Any, **named: Any) -> int | None:
        if self._line is None:
            code: int | None = super()._internal_poll(*values, **named)  # type: ignore[misc]
            return code
        lock: Any = self._waitpid_lock  # type: ignore[attr-defined]
        if not lock.acquire(False):
            return None  # another thread waits for the end
        try:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            return self.returncode
        finally:
            lock.release()


def run(
    command: list[str], *, timeout: float, input: bytes | str | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """What `subprocess.run` is for a program whose output is wanted."""
    with Forked(
        command,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    ) as process:
        try:
            out, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _can_fork(given: Mapping[str, Any]) -> bool:
    """Whether a process can be had from the zygote: a file or a module, for this Python, and nothing more special."""
    python, *arguments = given["args"]
    special = [given[name] for name in ("preexec_fn", "pass_fds", "executable", "uid", "gid", "gids")]
    is_plain = given["umask"] == -1 and given.get("process_group", -1) in {-1, None} and not any(special)
    return python == sys.executable and is_plain and (arguments[0] == "-m" or not arguments[0].startswith("-"))


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python itself takes from an environment when it starts."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


# -- in the test process ---------------------------------------------------------------------------------------------


@cache
def _zygote(*, with_spark: bool) -> socket.socket:
    """The line to a zygote of this test process, which is started at the first call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(theirs.fileno()), *(SPARK_MODULES if with_spark else ())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, **_NO_THREADS},
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _ask(wanted: dict[str, Any], streams: list[int], *, with_spark: bool) -> tuple[socket.socket, int]:
    """A process, as the line on which its end is told, and its number."""
    line, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(_zygote(with_spark=with_spark), [b"fork"], [theirs.fileno(), *streams])
    data = pickle.dumps(wanted)
    line.sendall(_LENGTH.pack(len(data)) + data)
    answer = line.recv(_TOLD.size)
    if not answer:
        raise RuntimeError("the zygote has ended")
    what, number = _TOLD.unpack(answer)
    if what != _BEGUN:
        line.close()
        raise OSError(f"a process could not begin, with {wanted['folder']} as its folder: it ended with {number}")
    return line, number


# -- the zygote ------------------------------------------------------------------------------------------------------


def _serve(asked: socket.socket) -> None:
    """Fork processes until the test process ends, and tell of their ends. Returns in each of them."""
    lines: dict[int, socket.socket] = {}
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = selectors.DefaultSelector()
    for source in (asked, reader):
        waiting.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is reader:
                reader.recv(4096)
                _tell_ends(lines)
                continue
            message, descriptors, _, _ = socket.recv_fds(asked, 16, 4)
            if not message:
                os._exit(0)
            line = socket.socket(fileno=descriptors[0])
            wanted = _wanted(line)
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                waiting.close()
                for other in (asked, reader, writer, *lines.values()):
                    other.close()
                _become(wanted, descriptors[1:])
                with line:
                    line.sendall(_TOLD.pack(_BEGUN, os.getpid()))
                return
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            lines[child] = line


def _wanted(line: socket.socket) -> dict[str, Any]:
    with line.dup().makefile("rb") as stream:
        (size,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        wanted: dict[str, Any] = pickle.loads(stream.read(size))
        return wanted


def _tell_ends(lines: dict[int, socket.socket]) -> None:
    while lines:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with lines.pop(child) as line, contextlib.suppress(OSError):  # nobody may want to know any more
            line.sendall(_TOLD.pack(_ENDED, status))


def _become(wanted: dict[str, Any], streams: list[int]) -> None:
    """What a new process has of its own, and a forked one has of its parent."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if wanted["new_session"]:
        os.setsid()
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = wanted["arguments"]
    import random

    random.seed()
    from detent import crash

    crash.arm_as_told()


def _run() -> None:
    """What ``python ARGUMENTS`` does."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    if sys.argv[0] == "-m":
        del sys.argv[0]
        spec = importlib.util.find_spec(sys.argv[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{spec.name}.__main__")
        assert spec is not None, sys.argv
        assert spec.origin is not None
        sys.argv[0] = spec.origin
        sys.path[0] = os.getcwd()
        main.__spec__, main.__package__ = spec, spec.parent
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    main.__file__ = sys.argv[0]
    code = importlib.machinery.SourceFileLoader("__main__", sys.argv[0]).get_code("__main__")
    assert code is not None
    exec(code, vars(main))


def _main() -> None:
    for name in (*MODULES, *sys.argv[2:]):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a module has started a thread, which a fork would lose"
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run()


if __name__ == "__main__":
    _main()
