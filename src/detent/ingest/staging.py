"""The files of a batch in one folder, for Spark to read: copies of local files and of objects.

One folder, because Spark looks at each path that it is given by itself, which for ten thousand files takes longer than
reading them; and because names that mean something to it (hidden files, patterns) cannot do harm when they are ours.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from detent.errors import DetentError
from detent.ingest.local_state import HeldFile
from detent.ingest.objects import FileObjects, is_local
from detent.runtime import thread
from detent.tables.orphans import BATCH, sweeping_time_s

FETCHES_MAX: Final = 16
"""Objects that are fetched at once."""

_ENDINGS: Final = re.compile(r"(?:\.[A-Za-z0-9]{1,16}){0,2}\Z")


class StagedFile(NamedTuple):
    """A file of a batch, and what it is called in the batch's folder."""

    name: str
    file: HeldFile


class FilesFailed(DetentError):
    """Some files of a batch cannot be read; `reasons` says why, by their keys. Nothing was written."""

    def __init__(self, reasons: dict[bytes, DetentError]) -> None:
        super().__init__(f"{len(reasons)} files cannot be read, such as: {next(iter(reasons.values()))}")
        self.reasons = reasons


class Staging:
    """The folder of one batch, gone at the end."""

    def __init__(self, folder: Path, files: Sequence[HeldFile], objects: FileObjects) -> None:
        self.folder = folder
        self._objects = objects
        self.files = [StagedFile(staged_name(number, file.shard.uri), file) for number, file in enumerate(files)]

    def __enter__(self) -> Staging:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def fetch(self) -> None:
        """Bring all files here; `FilesFailed` names those that cannot be had."""
        reasons: dict[bytes, DetentError] = {}
        local = [staged for staged in self.files if is_local(staged.file.shard.uri)]
        remote = [staged for staged in self.files if not is_local(staged.file.shard.uri)]
        for staged in local:
            self._fetch(staged, reasons)
        if remote:
            with thread.pool("ingest-fetch", FETCHES_MAX) as threads:
                list(threads.map(lambda staged: self._fetch(staged, reasons), remote))
        if reasons:
            raise FilesFailed(reasons)

    def _fetch(self, staged: StagedFile, reasons: dict[bytes, DetentError]) -> None:
        try:
            self._objects.fetch(staged.file.announced, self.folder / staged.name)
        except DetentError as error:
            reasons[staged.file.shard.key] = error

    def named_in(self, text: str) -> list[tuple[HeldFile, str]]:
        """The files that an error of Spark's names, and what it calls them."""
        return [(staged.file, staged.name) for staged in self.files if f"/{staged.name}" in text]


def staged_name(number: int, uri: str) -> str:
    """What a file is called in its batch's folder. The ending is its own: Spark tells compression by it."""
    ending = _ENDINGS.search(uri.rpartition("/")[2])
    return f"f{number:06d}{ending[0] if ending else ''}"


def sweep_staging(folder: Path, older_than_s: float) -> None:
    """Delete what crashed pipelines left in the folder of staged batches. It holds copies, and no data."""
    limit = sweeping_time_s() - older_than_s
    with suppress(FileNotFoundError):
        for batch in folder.iterdir():
            with suppress(FileNotFoundError):  # another pipeline sweeps too
                if BATCH.fullmatch(batch.name) and batch.stat().st_mtime < limit:
                    shutil.rmtree(batch, ignore_errors=True)
