"""The process of a stream's source; and the zygote, which has imported everything and forks such processes.

Spark starts a new Python for the source of every stream that is started, and each would spend more than half a second
on the same imports. So the first one, once it has imported them, leaves a zygote behind, a copy of itself that does
nothing else. `source_request.py`, which Spark's launcher runs in place of the later ones, asks it for a child, and
starts a Python of its own only if there is none to be had. The zygote ends with Spark's Java. Its socket lies beside
Spark's own (`launch.py`), in a folder that only this user can enter.

Spark gives a process ten seconds to report, and on a busy machine the imports alone can take longer. So this one
reports first, and imports while Spark waits for its first answer, for which it sets no time.

Spark stops a source by hanging up, and Spark's own runner answers that with three tracebacks; this one ends quietly.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
from importlib import import_module
from pathlib import Path
from typing import IO, Final, cast

from detent.spark import source_request

REQUEST_BYTES_MAX: Final = 4 << 20
"""An environment is limited by the kernel to about half of this."""

REQUEST_S: Final = 5.0
REPORT_S: Final = 15.0
"""How long Spark's Java may take to answer; its own processes give it as long."""

BUFFER_BYTES: Final = 65536
PORT: Final = "PYTHON_WORKER_FACTORY_PORT"
SECRET: Final = "PYTHON_WORKER_FACTORY_SECRET"
"""The variables in which Spark tells a process where to report, where it uses no Unix socket."""

ACCEPTED: Final = b"ok"
LOOK_MS: Final = 1_000
"""How often to see whether Java still runs, where the kernel does not tell."""

_LENGTH: Final = struct.Struct(source_request.LENGTH)
_NUMBER: Final = struct.Struct("!i")
_REFUSED: Final = b"-"
_MODULES: Final = ("detent.spark.journals", "detent.spark.queues")


def run() -> None:
    """Answer Spark's questions until it hangs up."""
    line = report()
    from pyspark.sql.streaming.python_streaming_source_runner import main  # before the zygote is left behind

    if begin(line):
        line = report()
    try:
        with line, line.makefile("rwb", BUFFER_BYTES) as stream:
            main(cast(IO[bytes], stream), cast(IO[bytes], stream))
    except (BrokenPipeError, ConnectionResetError):
        return  # Spark has hung up


def report() -> socket.socket:
    """Tell Spark's Java that this process is there, as the environment says how. Nothing large is imported for it."""
    place = os.environ.get(source_request.CONNECTION)
    if place:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(REPORT_S)
        line.connect(place)
    else:
        host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
        line = socket.create_connection((host, int(os.environ[PORT])), REPORT_S)
        secret = os.environ[SECRET].encode()
        line.sendall(_NUMBER.pack(len(secret)) + secret)
        if _exactly(line, _NUMBER.size + len(ACCEPTED)) != _NUMBER.pack(len(ACCEPTED)) + ACCEPTED:
            raise ConnectionRefusedError("Spark's Java does not take this process for the one it has started")
    line.sendall(_NUMBER.pack(os.getpid()))
    line.settimeout(None)
    return line


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := line.recv(size - len(data))):
        data += part
    return data


def begin(line: socket.socket | None = None) -> bool:
    """Leave a zygote behind, if there should be one; `line` stays with this process. Returns False in this process, and
    True in each that the zygote forks, which has yet to report."""
    place = _place(os.environ.get(source_request.CONNECTION, ""))
    java = os.getppid()
    if place is None or java == 1 or _answers(place):
        return False
    for name in _MODULES:
        import_module(name)
    listener = _listener(place)
    if listener is None:
        return False
    if os.fork():
        listener.close()
        return False
    if line is not None:
        line.close()
    _become_quiet()
    _serve(listener, java)
    return True


def _place(connection: str) -> Path | None:
    """Where the zygote's socket belongs: beside Spark's own, if only this user can get there."""
    folder = Path(connection).parent
    if not connection or not hasattr(socket, "send_fds") or not folder.is_dir():
        return None
    status = folder.stat()
    return folder / source_request.SOCKET if status.st_uid == os.getuid() and status.st_mode & 0o077 == 0 else None


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(place)) == 0


def _listener(place: Path) -> socket.socket | None:
    """The zygote's socket; None if another process was faster."""
    made = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        place.unlink()  # no process answers there
    try:
        made.bind(str(place))
    except OSError:
        made.close()
        return None
    made.listen()
    return made


def _become_quiet() -> None:
    """Keep nothing of the first process open, and leave the signals of a terminal to those who work."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # collections of the children then leave the shared memory shared


def _serve(listener: socket.socket, java: int) -> None:
    """Fork a child for each request until Java ends. Returns in the children."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(ProcessLookupError):
            waiting.register(os.pidfd_open(java), select.POLLIN)
    while True:
        ready = waiting.poll(LOOK_MS)
        if not _runs(java) or any(descriptor != listener.fileno() for descriptor, _ in ready):
            os._exit(0)
        if ready and _answer(listener):
            listener.close()
            return


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(listener: socket.socket) -> bool:
    """One request. True in the child that was forked for it."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(REQUEST_S)
        try:
            environment, streams = _request(connection)
        except (OSError, ValueError):
            return False  # the process that asked is gone, or sent nonsense, and starts one of its own
        child = _is_alike(environment) and os.fork() == 0
        if child:
            _become_source(environment, streams)
            connection.sendall(source_request.BORN)
        for stream in streams:
            os.close(stream)
        if not child and not _is_alike(environment):
            with contextlib.suppress(OSError):
                connection.sendall(_REFUSED)
    return child


def _request(connection: socket.socket) -> tuple[dict[bytes, bytes], list[int]]:
    """The environment of a process that is wanted, and its output and error streams."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 2)
    try:
        (size,) = _LENGTH.unpack(head)
        if size > REQUEST_BYTES_MAX or len(streams) != 2:
            raise ValueError("this is not a request")
        data = bytearray()
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise ValueError("the request ends early")
            data += part
        return dict(entry.split(b"=", 1) for entry in bytes(data).split(b"\0")), streams
    except (struct.error, OSError, ValueError) as error:
        for stream in streams:
            os.close(stream)
        raise ValueError(str(error)) from error


def _is_alike(environment: dict[bytes, bytes]) -> bool:
    """Whether a Python started with this environment would have been like this one."""

    def of_python(variables: dict[bytes, bytes]) -> dict[bytes, bytes]:
        return {
            name: value
            for name, value in variables.items()
            if name == b"VIRTUAL_ENV" or (name.startswith(b"PYTHON") and not name.startswith(b"PYTHON_"))
        }

    return of_python(environment) == of_python(dict(os.environb))


def _become_source(environment: dict[bytes, bytes], streams: list[int]) -> None:
    """What a process has of its own, and a forked one has of its parent."""
    os.environb.clear()
    os.environb.update(environment)
    for target, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if __name__ == "__main__":
    run()
