"""Copies of a folder that was prepared once, so that every side of every round begins with the same bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.place import Place


@contextmanager
def copy_of(prepared: Path, place: Place) -> Iterator[Path]:
    """A copy, on the disk before anything is measured: its own writing would be a part of the first sync otherwise."""
    with place.fresh() as directory:
        copied = Path(shutil.copytree(prepared, directory / "copy"))
        for path in copied.rglob("*"):
            if path.is_file():
                _sync(path)
        yield copied


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
