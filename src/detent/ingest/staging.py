"""The files of a batch, for Spark to read: in one folder, as copies, or pinned, where tasks read them themselves.

One folder, because Spark looks at each path that it is given by itself, which for ten thousand files takes longer than
reading them; and because names that mean something to it (hidden files, patterns) cannot do harm when they are ours.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from detent.errors import DetentError, Unavailable
from detent.ingest.local_state import HeldFile
from detent.ingest.objects import FileObjects, is_local
from detent.ingest.pinned import PinnedObject
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

    def __init__(
        self,
        folder: Path,
        files: Sequence[HeldFile],
        objects: FileObjects,
        is_pinned: Callable[[str], bool] = lambda _uri: False,
    ) -> None:
        """`is_pinned` says of which files, by their names, tasks read the originals."""
        self.folder = folder
        self._objects = objects
        self.files = [StagedFile(staged_name(number, file.shard.uri), file) for number, file in enumerate(files)]
        self._pinned_ones = [is_pinned(file.shard.uri) for file in files]
        self.pinned: list[PinnedObject] = []

    def __enter__(self) -> Staging:
        shutil.rmtree(self.folder, ignore_errors=True)
        if not all(self._pinned_ones):
            self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def copied(self) -> list[StagedFile]:
        """The files that are in the folder."""
        return [staged for staged, is_pinned in zip(self.files, self._pinned_ones, strict=True) if not is_pinned]

    def fetch(self) -> None:
        """Bring the files here that are copied, and pin the others; `FilesFailed` names those that cannot be had."""
        reasons: dict[bytes, DetentError] = {}
        local = [staged for staged in self.copied if is_local(staged.file.shard.uri)]
        remote = [staged for staged in self.copied if not is_local(staged.file.shard.uri)]
        for staged in local:
            self._fetch(staged, reasons)
        numbers = [number for number, is_pinned in enumerate(self._pinned_ones) if is_pinned]
        if remote or numbers:
            with thread.pool("ingest-fetch", FETCHES_MAX) as threads:
                list(threads.map(lambda staged: self._fetch(staged, reasons), remote))
                found = threads.map(lambda number: self._pin(number, reasons), numbers)
                self.pinned = [one for one in found if one is not None]
        if reasons:
            raise FilesFailed(reasons)

    def _fetch(self, staged: StagedFile, reasons: dict[bytes, DetentError]) -> None:
        try:
            self._objects.fetch(staged.file.announced, self.folder / staged.name)
        except DetentError as error:
            reasons[staged.file.shard.key] = error

    def _pin(self, number: int, reasons: dict[bytes, DetentError]) -> PinnedObject | None:
        staged = self.files[number]
        try:
            return PinnedObject(number, staged.name, self._objects.pinned(staged.file.announced))
        except DetentError as error:
            reasons[staged.file.shard.key] = error
            return None

    def failed(self, number: int, reason: DetentError) -> FilesFailed:
        """Which objects cannot be read, when one could not: that, and what it is with the others is asked now, because
        a batch would else be run again for each of them."""
        reasons = {self.files[number].file.shard.key: reason}
        others = [one for one in self.pinned if one.number != number]
        with thread.pool("ingest-fetch", FETCHES_MAX) as threads:
            list(threads.map(lambda one: self._look(one, reasons), others))
        return FilesFailed(reasons)

    def _look(self, one: PinnedObject, reasons: dict[bytes, DetentError]) -> None:
        try:
            self._objects.check_there(one.file)
        except Unavailable:
            return  # which says nothing of this one: the batch finds out
        except DetentError as error:
            reasons[self.files[one.number].file.shard.key] = error

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
