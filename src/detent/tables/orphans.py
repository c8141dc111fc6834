"""Folders of batches: each batch of files has one under a table's `data`, and a crash can leave one behind."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from detent.engine import OwnerTime

DATA_FOLDER: Final = "data"
"""The folder of a table in which the folders of batches are."""

BATCH: Final = re.compile(r"[0-9a-f]{32}-\d+")
"""The name of a batch: the token of the pipeline that made it, and a number. Folders of other names are not ours."""

BATCH_FILE: Final = re.compile(rf".*/{DATA_FOLDER}/({BATCH.pattern})/")
"""The batch of a file, in its path or URL: the last such folder, because a table may itself be in one named alike."""

_steady: Final = OwnerTime()


def sweeping_time_s() -> float:
    """What time it is, for what is deleted because it is old: a wall clock that has just jumped ahead makes nothing
    old."""
    return min(time.time(), _steady.now_ms() / 1000)


def old_batches(folder: Path, older_than_s: float, known_s: float) -> list[Path]:
    """The folders of batches that are older than one time and not older than another."""
    now = sweeping_time_s()
    found: list[Path] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another pipeline sweeps too
                age_s = now - entry.stat().st_mtime
                if BATCH.fullmatch(entry.name) and older_than_s < age_s < known_s:
                    found.append(Path(entry.path))
    return found


def old_files(folder: Path, endings: tuple[str, ...], limit: float) -> list[str]:
    """The names of the files with these endings that were written before a time."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # those who commit delete all the time
                if entry.name.endswith(endings) and entry.stat().st_mtime < limit:
                    found.append(entry.name)
    return found
