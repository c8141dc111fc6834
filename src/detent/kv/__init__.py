"""The only code that touches a disk: ordered keys, atomic durable batches, one fenced writer, a space for objects.

The URL picks the engine: ``memory:`` (tests, simulation), ``file:PATH`` (LMDB, the embedded default), ``s3://``,
``gs://`` and ``az://`` (SlateDB on an object store).
"""

from __future__ import annotations

from detent.kv.base import Batch, ObjectInfo, Objects, Reader, View, Writer, prefix_end
from detent.kv.urls import Location, absolute_url, parse_url

__all__ = [
    "Batch",
    "Location",
    "ObjectInfo",
    "Objects",
    "Reader",
    "View",
    "Writer",
    "absolute_url",
    "open_objects",
    "open_reader",
    "open_writer",
    "parse_url",
    "prefix_end",
]


def open_writer(url: str) -> Writer:
    """Open a store for writing: raises its epoch, so that any writer before this one is fenced."""
    location = parse_url(url)
    if location.scheme == "memory":
        from detent.kv.memory import MemoryWriter, space_for

        return MemoryWriter(space_for(location.path))
    if location.scheme == "file":
        from detent.kv.file import FileWriter

        return FileWriter(location.directory)
    from detent.kv import slate

    return slate.open_writer(url)


def open_reader(url: str) -> Reader:
    """Open a store for reading only; a store that does not exist is `NotFound`."""
    location = parse_url(url)
    if location.scheme == "memory":
        from detent.kv.memory import MemoryReader, space_for

        return MemoryReader(space_for(location.path))
    if location.scheme == "file":
        from detent.kv.file import FileReader

        return FileReader(location.directory)
    from detent.kv import slate

    return slate.open_reader(url)


def open_objects(url: str) -> Objects:
    """Objects in a folder or below a prefix of a bucket that is no store: each is there under its own name."""
    location = parse_url(url)
    if location.scheme == "memory":
        from detent.kv.memory import space_for

        return space_for(location.path).objects
    if location.scheme == "file":
        from detent.kv.localobjects import LocalObjects

        return LocalObjects(location.directory)
    from detent.kv.objectstore import BucketObjects, open_bucket

    return BucketObjects(open_bucket(location), root="")
