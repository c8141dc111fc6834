"""Where backups are kept: a folder, or a prefix of a bucket.

    jobs/N              each backup, and each removal of old ones, takes the next number first
    parts/XX/DIGEST-N   some records, copied by job N
    objects/XX/NAME-N   an object of the store, copied by job N
    backups/N           the list of a backup, written last; or a note that job N was given up
    removals/N          what job N is about to delete

Every object is written once, under a name that is never used again, and never changed. So no lock is needed, and a
process that was stopped for days does no harm when it goes on: see :mod:`detent.backup.removal`.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from detent import crash
from detent.backup.manifest import Manifest, ObjectPart, RecordsPart
from detent.errors import Corrupt, Exists, Fenced, Invalid, NotFound
from detent.journal.fragments import fragment_of
from detent.kv import Objects, open_objects, parse_url
from detent.kv.localobjects import PRIVATE, LocalObjects, make_directories
from detent.kv.ownership import process_born, process_space

T = TypeVar("T")

JOBS: Final = "jobs/"
BACKUPS: Final = "backups/"
PARTS: Final = "parts/"
OBJECTS: Final = "objects/"
REMOVALS: Final = "removals/"

GIVEN_UP: Final = b"given up\n"
"""In the place of a list: the job that has this number can never write one."""

READ_BYTES: Final = 8 << 20
"""What is read of an object at a time."""


BACKUP: Final = "backup"
REMOVAL: Final = "removal"

UNFINISHED_MS: Final = 6 * 3600 * 1000
"""A backup of another machine that began within this time may be at work: what it could need is left for a later
removal."""


class Job(msgspec.Struct, frozen=True):
    """Which process a job is of."""

    kind: str
    host: str
    space: str
    pid: int
    born: str


class KeptBackup(NamedTuple):
    """A backup in the place. `missing` parts are not there, so that it cannot be restored."""

    manifest: Manifest
    missing: int


class Held(NamedTuple):
    """Something that is in the place already: which job copied it, and its size."""

    job: int
    size: int


class BackupPlace:
    """A folder or a bucket with backups."""

    def __init__(self, url: str, *, create: bool = False) -> None:
        location = parse_url(url)
        if location.scheme == "memory":
            raise Invalid("a backup is kept in a folder (file:PATH) or on an object store, not in memory")
        self.url = url
        self.root: Path | None = None
        self.objects: Objects
        if location.scheme == "file":
            self.root = location.directory
            if (self.root / "data.mdb").exists():
                raise Invalid(f"{url} is a store: keep backups in a folder of their own")
            if create:
                make_directories(self.root, PRIVATE)
            elif not self.root.is_dir():
                raise NotFound(f"there is no folder {self.root}")
            # There is no such file, so what is written is for this user alone, as a new store is.
            self.objects = LocalObjects(self.root, like=self.root / "data.mdb")
        else:
            self.objects = open_objects(url)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def begin(self, kind: str) -> int:
        """The number of a new job, which no other one has or will have."""
        pid = os.getpid()
        about = Job(kind, socket.gethostname(), process_space(), pid, process_born(pid))
        while True:
            taken = [_number(one.name) for folder in (JOBS, BACKUPS, REMOVALS) for one in self.objects.list(folder)]
            job = max(taken, default=0) + 1
            with suppress(Exists):  # another process has taken it since
                self.objects.put(f"{JOBS}{job:020}", [msgspec.json.encode(about)])
                crash.point("backup.after_job")
                return job

    def jobs(self) -> dict[int, int]:
        """All jobs that are known, with the time at which each began, by the place's clock."""
        return {_number(one.name): one.modified_ms for one in self.objects.list(JOBS)}

    def copies(self, job: int) -> bool:
        """Whether a job is a backup; a removal writes no list, and one that is gone has ended."""
        about = self._about(job)
        return about is not None and about.kind == BACKUP

    def may_live(self, job: int, begun_ms: int) -> bool:
        """Whether the process of a job may be at work: it lives on this machine, or began not long ago on another."""
        about = self._about(job)
        if about is None:
            return False
        if (about.host, about.space) == (socket.gethostname(), process_space()):
            return process_born(about.pid) == about.born
        return time.time() * 1000 - begun_ms < UNFINISHED_MS

    def _about(self, job: int) -> Job | None:
        try:
            return self._decoded(f"{JOBS}{job:020}", Job)
        except NotFound:  # another removal has tidied up
            return None

    def _decoded(self, name: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(bytes(self.objects.get(name)), type=kind)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{name} in {self.url} is not what a backup has written: {error}") from error

    # -- lists --------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """The jobs that have ended: with a list, or given up."""
        return sorted(_number(one.name) for one in self.objects.list(BACKUPS))

    def manifest(self, job: int) -> Manifest | None:
        """The list of a backup; None if the job was given up. `NotFound` if there is none."""
        data = bytes(self.objects.get(f"{BACKUPS}{job:020}"))
        if data == GIVEN_UP:
            return None
        return Manifest.decode(data, f"backup {job} in {self.url}")

    def manifests(self) -> list[Manifest]:
        """The lists of all backups, the oldest first."""
        found = (self.manifest(job) for job in self.numbers())
        return [one for one in found if one is not None]

    def kept(self) -> list[KeptBackup]:
        """All backups, and whether each is whole."""
        there = {one.name: one.size for folder in (PARTS, OBJECTS) for one in self.objects.list(folder)}
        return [
            KeptBackup(one, sum(there.get(name) != size for name, size in names_of(one).items()))
            for one in self.manifests()
        ]

    def end(self, manifest: Manifest) -> None:
        """Write the list of a backup, if the job was not given up meanwhile. From here on it is a backup."""
        name, data = f"{BACKUPS}{manifest.job:020}", manifest.encode()
        crash.point("backup.before_manifest")
        try:
            self.objects.put(name, [data])
        except Exists:
            if self.objects.get(name) != data:  # else it is this one, whose answer was lost
                raise Fenced(
                    f"backup {manifest.job} was given up: another process has removed old backups from {self.url} "
                    "meanwhile. Begin again; what was copied and is still there is not copied again"
                ) from None
        if self.objects.get(name) != data:
            raise Corrupt(f"the list of backup {manifest.job} reads back otherwise than it was written")
        crash.point("backup.after_manifest")

    def give_up(self, job: int) -> None:
        """See to it that this job never writes a list, unless it has."""
        with suppress(Exists):
            self.objects.put(f"{BACKUPS}{job:020}", [GIVEN_UP])

    # -- parts and objects --------------------------------------------------------------------------------------

    def doomed(self) -> set[str]:
        """What a removal has begun to delete, and may delete at any time."""
        found: set[str] = set()
        for one in [*self.objects.list(REMOVALS)]:
            with suppress(NotFound):  # it has ended since, and what it deleted is gone
                found.update(self._decoded(one.name, list[str]))
        return found

    def held(self, folder: str) -> dict[str, Held]:
        """What is in the place and stays there: by digest, or by the object's fragment."""
        doomed = self.doomed()
        found: dict[str, Held] = {}
        for one in self.objects.list(folder):
            what, _, job = one.name.rpartition("/")[2].rpartition("-")
            if one.name not in doomed and what and job.isdecimal():
                found[what] = Held(int(job), one.size)
        return found

    def put(self, name: str, chunks: Iterable[bytes | memoryview], digest: str | None = None) -> str:
        """Store something new, read it back, and say its digest. `Corrupt` if that is not the one it should have."""
        summed = Summed(chunks)
        with suppress(Exists):  # this job has written it, and the answer was lost
            self.objects.put(name, summed)
        found = self.digest_of(name)
        if found != (digest or summed.digest):
            raise Corrupt(f"{name} in {self.url} reads back otherwise than it was written")
        return found

    def digest_of(self, name: str) -> str:
        """The digest of what is there."""
        summed = Summed(self.read(name))
        for _ in summed:
            pass
        return summed.digest

    def read(self, name: str) -> Iterator[memoryview]:
        """What is there, some at a time."""
        yield from read_object(self.objects, name)


class Summed:
    """Chunks, with the digest of those that have passed."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._sum = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for chunk in self._chunks:
            self._sum.update(chunk)
            self.size += len(chunk)
            yield chunk

    @property
    def digest(self) -> str:
        """In hexadecimal."""
        return self._sum.hexdigest()


def read_object(objects: Objects, name: str) -> Iterator[memoryview]:
    """An object in pieces: what is far away is not held in memory whole."""
    size = objects.size(name)
    if size is None:
        raise NotFound(f"there is no object {name!r}")
    if objects.local:
        whole = objects.get(name)
        yield from (whole[at : at + READ_BYTES] for at in range(0, size, READ_BYTES))
        return
    for at in range(0, size, READ_BYTES):
        yield objects.get(name, at, READ_BYTES)


def part_name(part: RecordsPart) -> str:
    """Where a part is."""
    return f"{PARTS}{part.digest[:2]}/{part.digest}-{part.job}"


def object_name(fragment: str, job: int) -> str:
    """Where the copy of a fragment is."""
    return f"{OBJECTS}{fragment[-2:]}/{fragment}-{job}"


def fragment_in(name: str) -> str:
    """The fragment that an object of a store holds, as text."""
    fragment = fragment_of(name)
    if fragment is None:
        raise Corrupt(f"{name!r} is not the name of a fragment")
    return fragment.hex()


def copy_name(part: ObjectPart) -> str:
    """Where the copy of an object is."""
    return object_name(fragment_in(part.name), part.job)


def names_of(manifest: Manifest) -> Mapping[str, int]:
    """All that a backup needs, with sizes."""
    parts = {part_name(part): part.size for part in manifest.parts}
    return parts | {copy_name(part): part.size for part in manifest.objects}


def _number(name: str) -> int:
    text = name.rpartition("/")[2]
    if not text.isdecimal():
        raise Invalid(f"{name!r} does not belong to backups: keep them in a folder or below a prefix of their own")
    return int(text)
