"""`detent serve` as a process of its own, on a free port of 127.0.0.1."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading

from zygote import Forked

READY = re.compile(r"detent serves \S+.* at (https?)://([0-9.]+):(\d+),")
SERVE = [sys.executable, "-m", "detent.cli", "serve", "--port", "0"]


class Served:
    """A server process, whose log is read all the time."""

    def __init__(self, command: list[str]) -> None:
        self.process = Forked(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        assert self._ready.wait(60), self.log
        self.scheme, self.host, port = READY.findall(self.log)[0]
        self.port = int(port)
        self.url = f"{self.scheme}://{self.host}:{port}"

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if READY.search(line):
                self._ready.set()
        self._ready.set()

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=30)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reading.join()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
