"""The zygote of sources' processes, without Spark: who gets a child, what it is like, and when the zygote ends."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detent.spark import source_process, source_request
from processes import children_of, eventually, has_ended

PATIENCE_S = 30.0

SOURCE = """
import os, sys
from detent.spark import source_process
source_process._MODULES = ("json",)
source_process.begin()
print(os.getpid(), os.getppid(), os.environ.get("WORD"), "json" in sys.modules, flush=True)
sys.stdin.read() if os.environ.get("FIRST") else None
"""

JAVA = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
sys.stdin.read()
"""
"""Stands for Spark's Java: what is started by it ends with it."""


class Nest:
    """A first source's process, below a process that stands for Java."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o700)
        self.folder = folder
        self.java = subprocess.Popen(
            [sys.executable, "-c", JAVA, SOURCE],
            env=self.environment(FIRST="1", WORD="first"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.java.stdout is not None
        self.first = self.java.stdout.readline().split()

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, source_request.CONNECTION: str(self.folder / "spark.sock"), **more}

    def ask(self, **more: str) -> list[str]:
        """What a second source's process says; "instead" if it had to be started."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", source_request.__file__],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.stdout.split() or [done.stderr]

    @property
    def zygote(self) -> int:
        """The process that the first source's process forked."""
        (found,) = children_of(int(self.first[0]))
        return found

    def close(self) -> None:
        self.java.kill()
        self.java.communicate()


def _open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    made = Nest(tmp_path)
    yield made
    made.close()


def test_the_next_source_is_forked_with_its_own_environment_and_streams(nest: Nest) -> None:
    process, parent, word, imported = nest.ask(WORD="second")
    assert (word, imported) == ("second", "True")
    assert process != nest.first[0]
    assert parent == str(nest.zygote)  # and not the process that asked


def test_each_that_asks_gets_a_process_of_its_own(nest: Nest) -> None:
    assert len({nest.ask(WORD=str(number))[0] for number in range(5)}) == 5


def test_a_python_that_would_be_different_is_started_instead(nest: Nest) -> None:
    assert "Error" in nest.ask(WORD="other", PYTHONOPTIMIZE="2")[0]  # the real runner, which finds no Spark here


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\x00",
        struct.pack(">I", 3) + b"A=B",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 10) + b"A",
        struct.pack(">I", 3) + b"abc",
    ],
    ids=["nothing", "half a head", "no streams", "huge", "short", "no environment"],
)
def test_nonsense_does_not_end_the_zygote(nest: Nest, request_bytes: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(nest.folder / source_request.SOCKET))
        connection.sendall(request_bytes)
    assert nest.ask(WORD="after")[2] == "after"


def test_nonsense_with_streams_leaves_no_descriptor_open(nest: Nest) -> None:
    nest.ask(WORD="before")  # by now it waits
    before = _open_files(nest.zygote)
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(nest.folder / source_request.SOCKET))
            socket.send_fds(connection, [struct.pack(">I", 0xFFFFFFFF)], [1, 2])
    assert nest.ask(WORD="after")[2] == "after"
    assert _open_files(nest.zygote) == before


def test_the_zygote_ends_with_java(nest: Nest) -> None:
    process = nest.zygote
    nest.java.kill()
    nest.java.wait()
    os.kill(int(nest.first[0]), signal.SIGKILL)
    eventually(lambda: has_ended(process))


def test_a_killed_zygote_is_missed_by_nobody(nest: Nest) -> None:
    os.kill(nest.zygote, signal.SIGKILL)
    assert "Error" in nest.ask(WORD="again")[0]  # a process of its own, which finds no Spark here


@pytest.mark.parametrize("connection", ["", "/nowhere/spark.sock"])
def test_without_a_private_folder_there_is_none(connection: str) -> None:
    assert source_process._place(connection) is None


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert source_process._place(str(tmp_path / "spark.sock")) is None


# -- reporting ------------------------------------------------------------------------------------------------------

REPORT = """
import sys
from detent.spark import source_process
line = source_process.report()
print("pyspark" in sys.modules, flush=True)
"""


def reported(listener: socket.socket, **environment: str) -> tuple[socket.socket, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", REPORT], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    listener.settimeout(PATIENCE_S)
    line, _ = listener.accept()
    return line, process


def test_source_reports_to_a_socket_before_it_imports_anything_large(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "spark.sock"))
        listener.listen()
        line, process = reported(listener, **{source_request.CONNECTION: str(tmp_path / "spark.sock")})
        with line:
            assert struct.unpack("!i", line.recv(4)) == (process.pid,)
            assert process.communicate()[0] == "False\n"


@pytest.mark.parametrize("answer", [b"ok", b"no"])
def test_source_reports_to_a_port_with_the_secret_that_spark_gave_it(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        place = {source_process.PORT: port, source_process.SECRET: "secret", source_request.CONNECTION: ""}
        line, process = reported(listener, **place)
        with line:
            assert line.recv(10) == b"\0\0\0\6secret"
            line.sendall(b"\0\0\0\2" + answer)
            assert line.recv(4) == (struct.pack("!i", process.pid) if answer == b"ok" else b"")
            process.communicate()
        assert (process.returncode == 0) is (answer == b"ok")
