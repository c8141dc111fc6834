"""Taking a backup: one state of a store, copied while its owner goes on committing.

1. What is large is read ahead, in short views, and copied: most of a store does not change meanwhile.
2. All records are read again in one view, which is the state that the backup has. What has changed since is put aside
   on the local disk, so that the view is not held for as long as a network takes.
3. What was put aside is copied, and the fragments that the state names. If one of them was deleted since, by retention,
   the backup goes back to 2.
4. The list is written.

Everything is read back once it is written, and compared by its digest.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import IO, Any, Final, NamedTuple

import xxhash

from detent import crash
from detent.backup.manifest import Manifest, ObjectPart, RecordsPart
from detent.backup.place import (
    BACKUP,
    OBJECTS,
    PARTS,
    BackupPlace,
    Held,
    Summed,
    fragment_in,
    object_name,
    part_name,
    read_object,
)
from detent.backup.records import Packed, Packer
from detent.codec import journal as journals
from detent.codec.journal import Fragment
from detent.engine.sessions import LINEAGE, SECRET
from detent.errors import Corrupt, DetentError, Invalid, NotFound, Unavailable
from detent.journal import fragments
from detent.kv import Reader, View, absolute_url, open_reader, parse_url
from detent.kv.base import FIRST_KEY
from detent.kv.stored import FORMAT_VERSION

AHEAD_BYTES: Final = 64 << 20
"""A smaller store is read once: its view lasts a second."""

AHEAD_VIEW_BYTES: Final = 32 << 20
"""What is read ahead in one view, and is in memory until it is copied."""

VIEW_SECONDS_MAX: Final = 540.0
"""How long one state may be held. LMDB takes no page again that it needs, so the data file grows by what is written
meanwhile; and a reader on an object store is promised ten minutes."""

TRIES: Final = 20
"""How often the state is read again because retention has deleted a fragment of it. Each time there is less to copy."""

Progress = Callable[[int, int], None]
"""Called with how many bytes are done, and about how many there are."""


class Taken(NamedTuple):
    """A backup that was taken. Of all that it has, so many bytes were not in the place before."""

    manifest: Manifest
    copied: int
    view_seconds: float


def take_backup(url: str, to: str, progress: Progress | None = None) -> Taken:
    """Copy a store's state to a folder or a bucket. No owner is asked, and none has to stop."""
    location = parse_url(url)
    if location.scheme == "memory":
        raise Invalid("a memory: store is in one process only, and ends with it: there is nothing to copy")
    place = BackupPlace(to, create=True)
    if place.root is not None and location.scheme == "file" and place.root.is_relative_to(location.directory):
        raise Invalid(f"{to} is inside the store: keep backups in a folder of their own, best on another disk")
    with closing(open_reader(url)) as reader, tempfile.TemporaryFile(prefix="detent-backup-") as aside:
        run = _Copying(reader, absolute_url(url), place, aside, progress)
        try:
            return run.run()
        except BaseException:
            with suppress(DetentError):  # it only spares a later removal the question whether this one still copies
                place.give_up(run.job)
            raise


class _Aside(NamedTuple):
    """A part on the local disk, to be copied."""

    digest: str
    at: int
    size: int


class _State(NamedTuple):
    """What one view has shown."""

    store: str
    made_ms: int
    parts: list[tuple[str, int, int]]
    aside: list[_Aside]
    fragments: dict[str, Fragment]
    record_bytes: int


class _Copying:
    """One backup."""

    def __init__(
        self, reader: Reader, url: str, place: BackupPlace, aside: IO[bytes], progress: Progress | None
    ) -> None:
        self._reader = reader
        self._url = url
        self._place = place
        self._aside = aside
        self._progress = progress or (lambda _done, _total: None)
        self.job = place.begin(BACKUP)
        self._parts = place.held(PARTS)
        self._objects: dict[str, ObjectPart] = {}
        self._copied = 0
        self._done = 0
        self._total = reader.size_bytes()
        self._view_s = 0.0

    def run(self) -> Taken:
        """Take it."""
        if self._total > AHEAD_BYTES:
            self._total *= 2
            self._copy_ahead()
        for _ in range(TRIES):
            state = self._read_state()
            crash.point("backup.after_state")
            try:
                self._copy(state)
                break
            except NotFound:  # a fragment went with its messages
                self._require_kept(state)
        else:
            raise Unavailable(
                f"the messages of {self._url} are forgotten faster than they are copied: lengthen the retention, and "
                "take the backup again; what was copied is kept"
            )
        manifest = self._manifest(state)
        self._place.end(manifest)
        self._progress(self._total, self._total)
        return Taken(manifest, self._copied, self._view_s)

    # -- records ------------------------------------------------------------------------------------------------

    def _copy_ahead(self) -> None:
        """Copy records as they are now. Nothing says what they are worth: the state decides which parts it has."""
        packer = Packer()
        at: bytes | None = FIRST_KEY
        while at is not None:
            found: list[Packed] = []
            with self._reader.view(large=True) as view:
                at = self._pack_some(view, at, packer, found)
            for packed in found:
                self._copy_part(hashlib.sha256(packed.data).hexdigest(), packed.data)

    def _pack_some(self, view: View, start: bytes, packer: Packer, found: list[Packed]) -> bytes | None:
        size = 0
        for key, value in view.scan(start):
            packed = packer.add(key, value)
            if packed is not None:
                found.append(packed)
            size += len(key) + len(value)
            if size >= AHEAD_VIEW_BYTES:
                self._did(size)
                return key + b"\0"
        self._did(size)
        return None

    def _read_state(self) -> _State:
        """All records in one view. What the place does not have is put aside."""
        self._aside.seek(0)
        self._aside.truncate()
        began = time.monotonic()
        with self._reader.view(large=True) as view:
            state = _State(_identity(view), int(time.time() * 1000), [], [], {}, 0)
            packer, size = Packer(), 0
            for key, value in view.scan(FIRST_KEY):
                size += len(key) + len(value)
                self._note_fragment(state, key, value)
                packed = packer.add(key, value)
                if packed is not None:
                    self._put_aside(state, packed)
                    self._did(len(packed.data))
                    self._require_short(began)
            packed = packer.end()
            if packed is not None:
                self._put_aside(state, packed)
        self._view_s = max(self._view_s, time.monotonic() - began)
        return state._replace(record_bytes=size)

    def _require_short(self, began: float) -> None:
        if time.monotonic() - began > VIEW_SECONDS_MAX:
            raise Unavailable(
                f"reading all records of {self._url} took longer than {VIEW_SECONDS_MAX:.0f} s, for which one state "
                "can be held: take the backup on a machine that reads it faster; what was copied is kept"
            )

    def _put_aside(self, state: _State, packed: Packed) -> None:
        digest = hashlib.sha256(packed.data).hexdigest()
        state.parts.append((digest, len(packed.data), packed.records))
        if digest not in self._parts:
            state.aside.append(_Aside(digest, self._aside.tell(), len(packed.data)))
            self._aside.write(packed.data)

    @staticmethod
    def _note_fragment(state: _State, key: bytes, value: bytes) -> None:
        if key.startswith(journals.FRAGMENT.raw):
            record = Fragment.decode(value)
            if record.journal:  # else its messages are gone, and perhaps its object
                state.fragments[fragments.object_name(key[len(journals.FRAGMENT.raw) :])] = record

    def _copy_part(self, digest: str, data: bytes) -> None:
        if digest in self._parts:
            return
        part = RecordsPart(digest, self.job, len(data), 0)
        self._place.put(part_name(part), [data], digest)
        crash.point("backup.after_part")
        self._parts[digest] = Held(self.job, len(data))
        self._copied += len(data)

    # -- fragments ----------------------------------------------------------------------------------------------

    def _copy(self, state: _State) -> None:
        """Copy what the state has and the place has not."""
        self._total = max(self._total, self._done + sum(record.size for record in state.fragments.values()))
        for aside in state.aside:
            self._aside.seek(aside.at)
            self._copy_part(aside.digest, self._aside.read(aside.size))
        known = self._known_objects(state)
        there = self._place.held(OBJECTS)
        for name, record in state.fragments.items():
            if name not in self._objects:
                found = known.get(name) or self._found(name, record, there) or self._copy_object(name, record)
                self._objects[name] = found
            self._did(record.size)

    def _known_objects(self, state: _State) -> dict[str, ObjectPart]:
        """What former backups of this very store have: an object never changes under its name."""
        there = self._place.held(OBJECTS)
        return {
            one.name: one
            for manifest in self._place.manifests()
            if manifest.store == state.store
            for one in manifest.objects
            if one.name in state.fragments
            and one.size == state.fragments[one.name].size
            and there.get(fragment_in(one.name)) == Held(one.job, one.size)
        }

    def _found(self, name: str, record: Fragment, there: dict[str, Held]) -> ObjectPart | None:
        """What a backup has copied that did not end: it is read, because no list says what it should be."""
        held = there.get(fragment_in(name))
        if held is None or held.size != record.size:
            return None
        copy = object_name(fragment_in(name), held.job)
        summed = Summed(self._place.read(copy))
        return ObjectPart(name, summed.digest, held.job, record.size) if _matches(summed, record) else None

    def _copy_object(self, name: str, record: Fragment) -> ObjectPart:
        copy = object_name(fragment_in(name), self.job)
        checked = _Checked(read_object(self._reader.objects, name), name, record)
        digest = self._place.put(copy, checked)
        crash.point("backup.after_object")
        self._copied += record.size
        return ObjectPart(name, digest, self.job, record.size)

    def _require_kept(self, state: _State) -> None:
        """Go on if an object that is not there was deleted with its messages; else the store itself has lost it."""
        with self._reader.view() as view:
            for name, record in state.fragments.items():
                stored = view.get(journals.FRAGMENT.raw + bytes.fromhex(fragment_in(name)))
                is_named = stored is not None and Fragment.decode(stored).journal == record.journal
                if is_named and name not in self._objects and self._reader.objects.size(name) is None:
                    raise Corrupt(f"{self._url} has lost the object {name!r}: `detent store verify` says more")

    # -- the list -----------------------------------------------------------------------------------------------

    def _manifest(self, state: _State) -> Manifest:
        parts = [RecordsPart(digest, self._parts[digest].job, size, count) for digest, size, count in state.parts]
        return Manifest(
            job=self.job,
            store=state.store,
            url=self._url,
            made_ms=state.made_ms,
            format=FORMAT_VERSION,
            records=sum(part.records for part in parts),
            record_bytes=state.record_bytes,
            copied_bytes=self._copied,
            parts=parts,
            objects=[self._objects[name] for name in sorted(state.fragments)],
        )

    def _did(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total)


class _Checked:
    """The bytes of a fragment, as the store's record describes them, or `Corrupt`: damage is not copied."""

    def __init__(self, chunks: Iterator[memoryview], name: str, record: Fragment) -> None:
        self._chunks = chunks
        self._name = name
        self._record = record

    def __iter__(self) -> Iterator[memoryview]:
        checksum = xxhash.xxh3_64()
        for chunk in self._chunks:
            checksum.update(chunk)
            yield chunk
        if checksum.intdigest() != self._record.checksum:
            raise Corrupt(f"the object {self._name!r} does not match its checksum, and is not copied")


def _matches(summed: Summed, record: Fragment) -> bool:
    checksum: Any = xxhash.xxh3_64()
    for chunk in summed:
        checksum.update(chunk)
    return bool(checksum.intdigest() == record.checksum)


def _identity(view: View) -> str:
    """What tells this store, in this life, from every other one; and does not tell its secret."""
    secret, lineage = view.get(SECRET.raw) or b"", view.get(LINEAGE.raw) or b""
    return hashlib.sha256(b"detent backup\0" + secret + b"\0" + lineage).hexdigest()[:32]
