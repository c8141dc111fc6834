"""Files that are put whole, once, under names of their own: those of tables, in a folder or below a URL.

A file is there with all its bytes, or not at all, also when its writer dies or raises; when `put` returns, it survives
a power failure. Names are used once, so a name that is taken was taken by the same bytes: by a request whose answer was
lost. (Objects of a store have stricter names, and are never said to be there twice; see `detent.kv.base`.)
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from detent import crash
from detent.errors import Exists, Invalid, NotFound, Unavailable
from detent.kv.base import ObjectInfo
from detent.kv.localobjects import TEMPORARY_SUFFIX, make_directories, sync_directory
from detent.kv.objectstore import BucketObjects, open_bucket
from detent.kv.urls import OBJECT_STORE_SCHEMES, parse_url

NAME_MAX: Final = 1024


class WholeFiles(Protocol):
    """Files below one folder or URL, by their names relative to it."""

    def put(self, name: str, data: Any) -> None:
        """Put a new file there, whole and durable. `data` is bytes, or a buffer of them."""

    def get(self, name: str) -> memoryview:
        """The bytes of a file; `NotFound` if there is none."""

    def size(self, name: str) -> int | None:
        """How long a file is; None if there is none."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The files whose names begin with a folder, such as ``data/`` (empty: all)."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, of which others may have deleted some."""


def open_whole_files(place: str, options: Mapping[str, str] | None = None) -> WholeFiles:
    """The files below a folder (a path, or a ``file:`` URL) or a URL such as ``s3://bucket/table``. Options, such as
    ``aws_endpoint_url``, come before the environment's."""
    place = place.replace("s3a://", "s3://", 1) if place.startswith("s3a://") else place
    if place.startswith("file:"):
        return _LocalFiles(Path(unquote(urlsplit(place).path)))
    if "://" not in place:
        return _LocalFiles(Path(place))
    scheme = place.partition("://")[0]
    if scheme not in OBJECT_STORE_SCHEMES:
        raise Invalid(f"a table is in a folder, or at s3://, gs:// or az://, and not at {place!r}")
    return _BucketFiles(open_bucket(parse_url(place), options or {}))


def _checked(name: str) -> str:
    parts = name.split("/")
    if len(name) > NAME_MAX or not all(parts) or {".", ".."}.intersection(parts) or not name.isprintable():
        raise Invalid(f"{name!r} is not the name of a file below a table")
    return name


class _LocalFiles:
    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._synced: set[Path] = set()

    def put(self, name: str, data: Any) -> None:
        path = self._root / _checked(name)
        self._make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        crash.point("kv.object.before_write")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            crash.point("kv.object.before_rename")
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        crash.point("kv.object.after_rename")
        sync_directory(path.parent)
        crash.point("kv.object.after_sync")

    def _make_folder(self, folder: Path) -> None:
        """Have a folder whose name is durable, also when another task made it just now."""
        if folder in self._synced:
            return
        make_directories(folder)
        for one in (folder, *folder.parents):
            sync_directory(one.parent)
            if one == self._root:
                break
        self._synced.add(folder)

    def get(self, name: str) -> memoryview:
        try:
            return memoryview((self._root / _checked(name)).read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"there is no file {name!r} in {self._root}") from error

    def size(self, name: str) -> int | None:
        try:
            return (self._root / _checked(name)).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for directory, _, files in os.walk(self._root / prefix):
            for file in files:
                path = Path(directory, file)
                with suppress(FileNotFoundError):  # deleted since the folder was read
                    status = path.stat()
                    name = path.relative_to(self._root).as_posix()
                    yield ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._root / _checked(name)
            path.unlink(missing_ok=True)
            self._forget_empty(path.parent)

    def _forget_empty(self, folder: Path) -> None:
        """Remove the folders that a deletion left empty, as they are on an object store."""
        while folder != self._root and self._root in folder.parents:
            try:
                folder.rmdir()
            except OSError:  # another file is in it, or it is gone already
                return
            self._synced.discard(folder)
            folder = folder.parent


class _BucketFiles:
    def __init__(self, bucket: Any) -> None:
        self._objects = BucketObjects(bucket, root="")

    def put(self, name: str, data: Any) -> None:
        _checked(name)
        view = memoryview(data).cast("B")
        crash.point("kv.object.before_write")
        crash.point("kv.object.before_rename")
        try:
            self._objects.put_whole(name, view)
        except (Exists, Unavailable):
            if self.size(name) != view.nbytes:  # else an earlier try was carried out, and its answer was lost
                raise
        crash.point("kv.object.after_rename")
        crash.point("kv.object.after_sync")

    def get(self, name: str) -> memoryview:
        return self._objects.get_whole(_checked(name))

    def size(self, name: str) -> int | None:
        return self._objects.size_at(_checked(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for path, size, modified_ms in self._objects.stored(prefix):
            yield ObjectInfo(path, size, modified_ms)

    def delete(self, names: Iterable[str]) -> None:
        found = [_checked(name) for name in names]
        if found:
            self._objects.remove_all(found)
