"""The only code that touches a disk: ordered keys, atomic durable batches, one fenced writer, objects.

The URL picks the back end: ``memory:`` (tests, simulation), ``file:PATH`` (LMDB, the embedded
default), ``s3://``, ``gs://`` and ``az://`` (SlateDB on an object store).

For all back ends:

    base.py            the contract: views, batches, the writer's epoch, objects
    urls.py            what a store's URL means
    memory.py          `memory:`, the same behaviour without a disk
    wholefiles.py      files of tables, in a folder or a bucket: whole or not there
    stored.py          a record as it is stored: its value and a checksum
    upgrade.py         brings a store of an earlier release to this release's format
    restoring.py       a store that is made from a backup, which opens for nothing else until it is whole
    compact.py         gives back the room that deleted records have left

`file:`, in the order of a commit:

    ownership.py       which process owns the store: a lock, and a note that says how to reach it
    file.py            the writer, the readers, and their views: an LMDB snapshot with the overlay on top
    commitlog.py       a small commit is one synced record here, and moves to LMDB later; its tip in shared memory
    commitrecord.py    the bytes of such a record
    loghead.py         the log's first page: whose log it is
    logfollower.py     the log as readers and the next owner see it; damage is told from a crash
    oldlog.py          logs of version 1, which an upgrade reads
    environment.py     the LMDB file: opened once a process, grown, its dead readers removed, its errors in our words
    metapages.py       LMDB's two meta pages, looked at before LMDB does
    pages.py           how many pages a commit may take
    room.py            room kept free, so that consuming works on a full disk
    overlay.py         commits that are in the log and not yet in LMDB, for views
    localobjects.py    objects as files, synced

Object stores:

    slate.py           the writer, over SlateDB
    _slate_session.py  the way into SlateDB's asynchronous binding, and its errors in our words
    _slate_reader.py   readers: a checkpoint of the tables, then the commits after it, by polling
    _slate_fast.py     bytes into the binding in one copy
    objectstore.py     objects in a bucket, through obstore
    leaseobject.py     which process owns the store, as other processes see it: an object beside it
    _slate_upgrade.py  the upgrade of a store there
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


def open_writer(url: str, *, patience_s: float | None = None) -> Writer:
    """Open a store for writing: raises its epoch, so that any writer before this one is fenced. An object store that
    does not answer within `patience_s` is `Unavailable`."""
    location = parse_url(url)
    if location.scheme == "memory":
        from detent.kv.memory import MemoryWriter, space_for

        return MemoryWriter(space_for(location.path))
    if location.scheme == "file":
        from detent.kv.file import FileWriter

        return FileWriter(location.directory)
    from detent.kv import slate

    return slate.open_writer(url, open_seconds=patience_s)


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
    """Objects in a folder or below a prefix of a bucket that is not a store: each is there under its own name."""
    location = parse_url(url)
    if location.scheme == "memory":
        from detent.kv.memory import space_for

        return space_for(location.path).objects
    if location.scheme == "file":
        from detent.kv.localobjects import LocalObjects

        return LocalObjects(location.directory)
    from detent.kv.objectstore import BucketObjects, open_bucket

    return BucketObjects(open_bucket(location), root="")
