"""The code of a page of the documentation, run in the order of the page in one folder, as its reader would.

    with Page(path, folder, processes) as page:
        page.run()
        page.printed          # all that its blocks have printed

The first words of a fence say what becomes of a block:

=======================  ============================================================================================
``python``               runs in the page's one Python process
``python``, named        `# words.py` in the first line: saved as that file; pytest runs it if it is called test_...
``toml``, ``json``, ...  saved, if named (`# x.toml`, `// x.json`, `-- x.sql`); TOML and JSON have to parse
``sh``                   runs in the page's one shell, `bash -euo pipefail`; variables stay for the next block
``sh background``        runs in a shell of its own until the page ends, and has to: it gets SIGTERM then
``sh not-run``           is left out; the test has a list of these
none, or ``text``        is output if it stands directly behind a block that ran, or if its first line was printed
                         by that: then its lines have to have been printed in that order; ``...`` is any text
=======================  ============================================================================================

The ports 7410, which `detent serve` takes, and 7411 are printed; the blocks use two that are free.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import traceback
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from forkedcommand import ForkedCommand
from processes import CallFailed, Child, Io, Processes, eventually
from servers import HOST, free_port

BLOCK_SECONDS = 200.0
STOP_SECONDS = 60.0
PRINTED_PORTS = ("7410", "7411")  # the first one is the server's own
OUTPUT = {"", "text"}
LANGUAGES = {*OUTPUT, "python", "sh", "toml", "json", "yaml", "sql", "mermaid"}
NAME = re.compile(r"(?:#|//|--) ((?:[\w-]+/)*[\w-]+\.\w+)(?:  .*)?$")
USES_SPARK = re.compile(r"detent\.spark|\bdetent (ingest )?run \S+\.toml\b")
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


# -- what stands on a page -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    line: int
    """Of its fence, counted from 1."""
    language: str
    word: str
    """What the fence says besides: `background`, `not-run`, or nothing."""
    text: str
    gap: str
    """What stands between it and the block before."""

    @property
    def name(self) -> str | None:
        """The file that it is saved as."""
        named = NAME.match(self.text.partition("\n")[0])
        return named[1] if named and self.language not in {*OUTPUT, "sh"} else None

    @property
    def is_test(self) -> bool:
        return self.name is not None and Path(self.name).name.startswith("test_")

    @property
    def runs(self) -> bool:
        """Whether it prints something when it is run."""
        is_code = self.language == "sh" or (self.language == "python" and (self.name is None or self.is_test))
        return is_code and self.word != "not-run"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in its order."""
    text = page.read_text()
    found = []
    end = 0
    for fence in FENCE.finditer(text):
        language, _, word = fence[1].partition(" ")
        line = text.count("\n", 0, fence.start()) + 1
        assert language in LANGUAGES, f"{page.name}:{line}: no block is in {fence[1]!r}"
        assert word in ({"", "background", "not-run"} if language == "sh" else {""}), f"{page.name}:{line}: {word!r}"
        found.append(Block(line, language, word, fence[2], text[end : fence.start()].strip()))
        end = fence.end()
    fences = len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page.name}: a fence is indented, is not closed, or is none of three backticks"
    return found


def needs_spark(page: Path) -> bool:
    """Whether a block that is run starts Spark."""
    return any(block.runs and USES_SPARK.search(block.text) for block in blocks_of(page))


def with_ports(text: str, ports: Sequence[int]) -> str:
    """A block that uses other ports than the ones that are printed."""
    text = re.sub(r"\bdetent serve\b(?!.*--port)", f"detent serve --port {PRINTED_PORTS[0]}", text)
    for printed, port in zip(PRINTED_PORTS, ports, strict=True):
        text = re.sub(rf"\b{printed}\b", str(port), text)
    return text


def missing_lines(expected: str, printed: str) -> list[str]:
    """The lines of an output from the first one on that was not printed behind the one before it."""
    wanted = [line.rstrip() for line in expected.splitlines() if line.strip() not in {"", "..."}]
    lines = iter(printed.splitlines())
    for number, line in enumerate(wanted):
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        if not any(pattern.fullmatch(one.rstrip()) for one in lines):
            return wanted[number:]
    return []


def is_output(block: Block, printed: str) -> bool:
    """Whether a block without a language shows what the block before it has printed."""
    first = block.text.partition("\n")[0]
    return not block.gap or (not re.search(r"\n\s*\n|^#", block.gap) and not missing_lines(first, printed))


# -- a page that is run ----------------------------------------------------------------------------------------------


class Page:
    """A page whose blocks are run, and what they have printed."""

    def __init__(self, path: Path, folder: Path, processes: Processes) -> None:
        self.path = path
        self.folder = folder
        self.ports = [free_port() for _ in PRINTED_PORTS]
        self._private = folder.parent / "harness"
        self._private.mkdir()
        folder.mkdir()
        self._command = ForkedCommand(self._private, ["run", "ingest"] if needs_spark(path) else [])
        self._environment = _environment(self._command.path)
        self._processes = processes
        self._python: Child | None = None
        self._shell: Shell | None = None
        self._background: list[tuple[Block, Background]] = []
        self._printed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, background in self._background:
            background.end()
        if self._shell is not None:
            self._shell.end()
        self._command.close()

    @property
    def printed(self) -> str:
        return "".join([*self._printed, *(background.printed() for _, background in self._background)])

    def run(self) -> None:
        """Run all blocks, and end what they have started."""
        last: Block | None = None
        for block in blocks_of(self.path):
            if block.language in OUTPUT:
                if last is not None and last.runs:
                    self._compare(block, last)
                continue
            self._run(block)
            last = block
        for block, background in reversed(self._background):
            status = background.stop()
            assert status in {0, -signal.SIGTERM}, f"{self._at(block)} ended with {status}\n{background.printed()}"
        if self._python is not None:
            self._python.finish(seconds=STOP_SECONDS)

    def _run(self, block: Block) -> None:
        text = with_ports(block.text, self.ports)
        if block.name is not None:
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.split("\n", 1)[1] if block.language == "json" else text)
            if block.language == "python":
                compile(text, f"{self.path.name}:{block.line}", "exec")
        if block.language == "toml":
            tomllib.loads(text)
        elif block.language == "json":
            json.loads(text if block.name is None else text.split("\n", 1)[1])
        elif block.word == "background":
            self._background.append((block, Background(text, self.folder, self._private, self._environment)))
            self._await_ready(block, text)
        elif block.runs:
            self._printed.append(self._run_in_shell(block, text) if block.language == "sh" else self._call(block, text))

    def _run_in_shell(self, block: Block, text: str) -> str:
        if self._shell is None:
            self._shell = Shell(self.folder, self._private, self._environment)
        has_ended_well, printed = self._shell.run(text)
        assert has_ended_well, f"{self._at(block)} failed\n{printed}{self._all_background()}"
        return printed

    def _call(self, block: Block, text: str) -> str:
        if self._python is None:
            self._python = self._processes.start(
                runs_python,
                environment=self._environment,
                with_spark=needs_spark(self.path),
                folder=str(self.folder),
            )
        where = {"file": str(self.path), "line": block.line}
        try:
            if block.is_test:
                return str(self._python.call("test", seconds=BLOCK_SECONDS, name=block.name))
            return str(self._python.call("run", seconds=BLOCK_SECONDS, text=text, **where))
        except CallFailed as failed:
            raise AssertionError(f"{self._at(block)} failed\n{failed}{self._all_background()}") from None

    def _await_ready(self, block: Block, text: str) -> None:
        """A server is ready when it listens, another program when it has printed a line."""
        started = self._background[-1][1]
        serves = re.search(r"\bdetent serve\b.*--port (\d+)", text)

        def is_ready() -> bool:
            assert started.is_running(), f"{self._at(block)} ended\n{started.printed()}"
            return _listens(int(serves[1])) if serves else "\n" in started.printed()

        eventually(is_ready, seconds=BLOCK_SECONDS, what=f"a word of {self._at(block)}")

    def _compare(self, block: Block, last: Block) -> None:
        """Hold what the page says was printed against what was; a program in the background may take its time."""

        def printed() -> str:
            return self._background[-1][1].printed() if last.word == "background" else self._printed[-1]

        if is_output(block, printed()):
            if last.word == "background":
                eventually(lambda: not missing_lines(block.text, printed()), what=f"the output in {self._at(block)}")
            missing = missing_lines(block.text, printed())
            assert not missing, f"{self._at(block)}: not printed: {missing}\nbut\n{printed()}"

    def _all_background(self) -> str:
        return "".join(f"\n{self._at(block)} says\n{background.printed()}" for block, background in self._background)

    def _at(self, block: Block) -> str:
        return f"{self.path.name}:{block.line}"


def _environment(path: Path) -> dict[str, str]:
    """The environment of a reader who has set no variables; other tests leave addresses of their servers in ours."""
    programs = [str(path), os.path.dirname(sys.executable), os.environ["PATH"]]
    return {**_kept(), "PATH": os.pathsep.join(programs), "COLUMNS": "100"}


def _kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DETENT_"))}


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


class Shell:
    """The shell that a reader types into: what one block sets is there for the next."""

    def __init__(self, folder: Path, private: Path, environment: dict[str, str]) -> None:
        self._script = private / "block.sh"
        self._output = private / "block.out"
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[bool, str]:
        """Whether a block has ended well, and what it has printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._script.write_text(text)
        self._process.stdin.write(f"source '{self._script}' </dev/null >'{self._output}' 2>&1; echo ended\n")
        self._process.stdin.flush()
        has_ended_well = self._process.stdout.readline() == "ended\n"
        return has_ended_well, self._output.read_text(errors="replace")

    def end(self) -> None:
        _kill_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, with a line unread
                pipe.close()


class Background:
    """A program that runs on until the page ends."""

    _numbers = iter(range(1_000_000))

    def __init__(self, text: str, folder: Path, private: Path, environment: dict[str, str]) -> None:
        number = next(self._numbers)
        script = private / f"background-{number}.sh"
        script.write_text(text)
        self._output = private / f"background-{number}.out"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-euo", "pipefail", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    def stop(self) -> int:
        """End it as a service manager would. It has to run still; how it ended."""
        assert self.is_running(), f"it did not run until the end of the page\n{self.printed()}"
        os.killpg(self._process.pid, signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def end(self) -> None:
        _kill_group(self._process)


def _kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- in the process that runs Python ---------------------------------------------------------------------------------


class _Printed(io.StringIO):
    """What was printed, for the test; stderr has it too, for its reader."""

    def write(self, text: str) -> int:
        sys.stderr.write(text)
        return super().write(text)

    def take(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def runs_python(io: Io, folder: str) -> None:
    """Run blocks in one module, which is `__main__` as in Python's own prompt, so that Spark takes functions along."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    for name in [
        name for name in os.environ if name.startswith(("AWS_", "DETENT_")) and name != "AWS_EC2_METADATA_DISABLED"
    ]:
        del os.environ[name]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    printed = _Printed()
    sys.stdout = printed  # the other one is how this process talks to the test
    for call, arguments in io.calls():
        try:
            if call == "test":
                assert pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-c", os.devnull, arguments["name"]]) == 0
            else:
                source = "\n" * arguments["line"] + arguments["text"]
                exec(compile(source, arguments["file"], "exec"), vars(module))
            io.say("answer", result=printed.take())
        except BaseException:
            io.say("raised", kind="the block", message=printed.take() + traceback.format_exc(), seconds=0)


def unused_files(page: Path) -> Iterator[str]:
    """The files that a page prints, and no other block of it names."""
    blocks = blocks_of(page)
    for block in blocks:
        if block.name is not None and not block.is_test:
            stem = re.compile(rf"\b{re.escape(Path(block.name).stem)}\b")
            if not any(stem.search(other.text) for other in blocks if other is not block):
                yield block.name
