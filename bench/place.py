"""Where benchmark data lives: on the project's own disk, never in memory, and gone afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent
DATA = ROOT / "data"


class Place:
    """A directory for one run, with fresh directories in it and some that several measurements share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count()
        self._shared: dict[str, Path] = {}

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """An empty directory, removed afterwards."""
        path = self.directory / f"{next(self._numbers)}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def shared(self, name: str, build: Callable[[Path], None]) -> Path:
        """A directory that is built when it is first needed and kept until the run ends."""
        if name not in self._shared:
            path = self.directory / name
            path.mkdir(parents=True)
            build(path)
            os.sync()
            self._shared[name] = path
        return self._shared[name]

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free


@contextmanager
def new_place() -> Iterator[Place]:
    """A place for one run."""
    directory = DATA / f"run-{os.getpid()}"
    directory.mkdir(parents=True)
    try:
        yield Place(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
