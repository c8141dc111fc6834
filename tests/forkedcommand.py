"""The command `detent` for shells of tests, forked from a process that has imported it already (see zygote.py).

    with contextlib.closing(ForkedCommand(folder, spark=["run"])) as command:
        subprocess.run(["bash", "-c", "detent queue ls file:./data"], env={**os.environ, "PATH": f"{command.path}:..."})

`path` is a folder for the PATH, with a program `detent`: a few lines that hand their arguments, folder, environment
and streams to this test process, which has the command forked with them, and that then wait for its end. Signals that
the program gets are passed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from zygote import Forked

_PROGRAM = """#!{python} -ISs
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
wanted = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [len(wanted).to_bytes(4, "big")], [0, 1, 2])
line.sendall(wanted)
answers = line.makefile("r")
number = int(answers.readline())
for one in (signal.SIGTERM, signal.SIGINT):
    signal.signal(one, lambda one, frame: os.kill(number, one))
status = int(answers.readline())
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
_COMMAND = "import sys\nfrom detent.cli import main\nsys.exit(main())\n"


class ForkedCommand:
    """A program `detent` in a folder, until it is closed."""

    def __init__(self, folder: Path, spark: Sequence[str] = ()) -> None:
        """Commands whose first word is in `spark` are forked from a process that has imported Spark too."""
        self.path = folder / "bin"
        self.path.mkdir()
        self._spark = spark
        self._command = folder / "command" / "run_detent.py"
        self._command.parent.mkdir()
        self._command.write_text(_COMMAND)
        address = f"\0detent-tests-{os.getpid()}-{id(self)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        program = self.path / "detent"
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        self._running: list[Forked] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End what still runs."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for thread in self._threads[1:]:
            while thread.is_alive():  # it may be about to start one
                for process in self._running:
                    process.kill()
                thread.join(0.05)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._serve, args=[line])
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        with line:
            size, streams, _, _ = socket.recv_fds(line, 4, 3)
            with line.makefile("rb") as stream:
                arguments, folder, environment = json.loads(stream.read(int.from_bytes(size, "big")))
            process = Forked(
                [sys.executable, str(self._command), *arguments],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                cwd=folder,
                env=environment,
                with_spark=bool(arguments) and arguments[0] in self._spark,
            )
            for descriptor in streams:
                os.close(descriptor)
            self._running.append(process)
            with contextlib.suppress(BrokenPipeError):  # the program was killed
                line.sendall(b"%d\n" % process.pid)
                status = process.wait()
                line.sendall(b"%d\n" % status)
