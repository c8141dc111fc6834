"""Folders of batches: each batch of files has one under a table's `data`, and a crash can leave one behind."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detent.engine import OwnerTime
from detent.errors import Corrupt

if TYPE_CHECKING:
    from detent.kv.wholefiles import WholeFiles
    from detent.tables.files import WrittenFile

DATA_FOLDER: Final = "data"
"""The folder of a table in which the folders of batches are."""

BATCH: Final = re.compile(r"[0-9a-f]{32}-\d+")
"""The name of a batch: the token of the pipeline that made it, and a number. Folders of other names are not ours."""

BATCH_FILE: Final = re.compile(rf".*/{DATA_FOLDER}/({BATCH.pattern})/")
"""The batch of a file, in its path or URL: the last such folder, because a table may itself be in one named alike."""

LOOK_S: Final = 12 * 3600.0
"""Files that were written longer ago are looked for before they are committed. What no commit names is deleted when it
is a day old, at the earliest (`detent.tables.maintenance.FLOOR_S`)."""

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


def lost_files(where: WholeFiles, files: Sequence[WrittenFile], *, is_looked: bool = False) -> list[str]:
    """Those files of a batch that are not there any more, as they were written. Unless `is_looked`, young ones are not
    looked for: a batch only loses files when its process stands still for longer than a vacuum waits."""
    oldest_ms = min((file.modification_time for file in files), default=0)
    if not is_looked and sweeping_time_s() - oldest_ms / 1000 <= LOOK_S:
        return []
    return [file.path for file in files if where.size(file.path) != file.size]


def require_named(where: WholeFiles, files: Sequence[WrittenFile], table: str) -> None:
    """`Corrupt` if files of a commit that was just made were deleted since they were looked for."""
    lost = lost_files(where, files)
    if lost:
        raise Corrupt(
            f"{table} names files that were deleted while they were committed, such as {lost[0]}: this process stood "
            "still for longer than a vacuum waits. Restore the table to the version before that commit, and bring the "
            "rows in again"
        )
