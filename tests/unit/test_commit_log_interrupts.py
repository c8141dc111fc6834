"""Ctrl-C before any line of the kv layer: afterwards this process, a reader and a successor agree, and nothing that was
acknowledged, before or after, is missing."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from detent.kv import commitlog, file
from detent.kv.file import FileReader, FileWriter
from filestore import everything, put

LAYER = str(Path(file.__file__).parent)


class Strike:
    """Raises KeyboardInterrupt before the n-th line that the kv layer executes."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(LAYER):
            return None
        if event == "line" and not _is_with(frame):
            self.left -= 1
            if not self.left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace

    def run(self, work: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            work()
        except KeyboardInterrupt:
            assert self.where
        finally:
            sys.settrace(before)


def _is_with(frame: FrameType) -> bool:
    """A trace function is called at the end of a with-block too, before it is left; a signal never strikes there."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def small(writer: FileWriter) -> None:
    put(writer, x=b"new", a=None, y=b"new")


def large(writer: FileWriter) -> None:
    put(writer, x=bytes(file.LOGGED_BYTES_MAX + 1), a=None, y=b"new")


def into_a_full_log(writer: FileWriter) -> None:
    put(writer, x=bytes(50_000), a=None, y=b"new")


def maintain(writer: FileWriter) -> None:
    writer.maintain()


def recover(writer: FileWriter) -> None:
    writer.recover()


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is such a place: a thousand syncs are not what this is about."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None, prefix="detent-") as path:
        yield Path(path)


@pytest.mark.parametrize("work", [small, large, into_a_full_log, maintain, recover])
def test_an_interrupt_before_any_line_loses_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[FileWriter], None]
) -> None:
    monkeypatch.setattr(commitlog, "LOG_BYTES_FIRST", 64 << 10)
    monkeypatch.setattr(commitlog, "LOG_BYTES_MAX", 64 << 10)
    number = 0
    while True:
        number += 1
        place = directory / str(number)
        writer = FileWriter(place)
        put(writer, a=b"1")
        put(writer, b=b"1" * 20_000)
        if work is recover:
            leave_a_commit_unsettled(writer)
        before = everything(writer)
        strike = Strike(number)
        strike.run(lambda: work(writer))  # noqa: B023 - it is run at once
        if not strike.where:
            writer.close()
            break
        check(writer, place, before, strike.where)
        shutil.rmtree(place)
    assert number > 20, "the strikes did not go through the work"


def leave_a_commit_unsettled(writer: FileWriter) -> None:
    assert writer._log is not None
    accept = writer._log.accept

    def struck(*_: Any) -> None:
        raise KeyboardInterrupt

    writer._log.accept = struck  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        put(writer, unsettled=b"x")
    writer._log.accept = accept  # type: ignore[method-assign]


def check(writer: FileWriter, directory: Path, before: dict[str, bytes], where: str) -> None:
    assert not writer._live()._views, where
    if not writer._moving or writer._unsettled:
        writer.recover()  # as the engine does after its own commits; `maintain` has nobody who does
    now = everything(writer)
    assert now == before or ("x" in now and "y" in now and "a" not in now), where
    put(writer, after=b"1")
    expected = {**now, "after": b"1"}
    assert everything(writer) == expected, where
    copy = directory.with_suffix(".copy")
    shutil.copytree(directory, copy)  # as kill -9 would leave it
    reader = FileReader(copy)
    assert everything(reader) == expected, where
    reader.close()
    successor = FileWriter(copy)
    assert everything(successor) == expected, where
    successor.close()
    shutil.rmtree(copy)
    writer.close()
