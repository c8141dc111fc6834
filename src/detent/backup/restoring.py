"""Making a store from a backup. Nothing opens it until it is whole and checked.

Each commit has one part of the records and says how far the restore is, so one that was killed goes on there. At the
end the store gets a life of its own (:mod:`detent.backup.identity`), and all of it is verified.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from detent import crash
from detent.backup.identity import new_life
from detent.backup.manifest import Manifest, ObjectPart
from detent.backup.place import BackupPlace, Summed, copy_name, part_name
from detent.backup.records import unpacked
from detent.codec.keys import SUBSYSTEM_ENGINE, Prefix
from detent.codec.values import ByteReader, ByteWriter
from detent.engine.sessions import ANSWERS, LINEAGE, LINEAGE_BYTES, Lineage
from detent.engine.verify import Counts
from detent.errors import Corrupt, Exists, Invalid, NotFound
from detent.kv import Batch, Writer
from detent.kv.restoring import restoring
from detent.kv.stored import FORMAT_VERSION
from detent.verify import verify

CURSOR: Final = Prefix(SUBSYSTEM_ENGINE, 1, 0x7F)
"""While a restore is under way: the digest of the backup's list, and how many parts are done."""

COMMIT_BYTES: Final = 8 << 20
"""Records of one commit: a sync for each part would take as long as writing it."""

PROBLEMS_SHOWN: Final = 3

Progress = Callable[[int, int], None]


class RestoredStore(NamedTuple):
    """What came out: from which backup, and what was checked."""

    manifest: Manifest
    counts: Counts


def restore(
    source: str,
    url: str,
    *,
    backup: int | None = None,
    progress: Progress | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> RestoredStore:
    """Make a store at `url` from a backup in `source`, the newest one unless another is named. `Exists` if there is a
    store."""
    place = BackupPlace(source)
    manifest = _chosen(place, backup)
    with restoring(url) as target:
        run = _Restore(place, manifest, target.writer, progress or (lambda _done, _total: None), random)
        counts = run.run()
        target.finish()
    return RestoredStore(manifest, counts)


def _chosen(place: BackupPlace, backup: int | None) -> Manifest:
    if backup is None:
        found = place.manifests()
        if not found:
            raise NotFound(f"there is no backup in {place.url}")
        return found[-1]
    manifest = place.manifest(backup)
    if manifest is None:
        raise NotFound(f"backup {backup} in {place.url} was given up: it was never whole")
    return manifest


class _Restore:
    """One restore."""

    def __init__(
        self,
        place: BackupPlace,
        manifest: Manifest,
        writer: Writer,
        progress: Progress,
        random: Callable[[int], bytes],
    ) -> None:
        if manifest.format != FORMAT_VERSION:
            raise Invalid(
                f"this backup is of a store of format {manifest.format}, and this release reads format "
                f"{FORMAT_VERSION}: restore it with the release that took it, and run `detent store upgrade` then"
            )
        self._place = place
        self._manifest = manifest
        self._digest = manifest.digest()
        self._writer = writer
        self._progress = progress
        self._random = random
        self._total = manifest.record_bytes + manifest.object_bytes
        self._done = 0

    def run(self) -> Counts:
        """Do what is left of it."""
        done = self._begun()
        if done is not None:
            self._copy_objects()
            self._copy_records(done)
            self._begin_life()
        return self._verified()

    def _begun(self) -> int | None:
        """How many parts an earlier try has written; None if all is done and only to be checked."""
        with self._writer.view() as view:
            stored, lineage = view.get(CURSOR.raw), view.get(LINEAGE.raw)
        if stored is None:
            if lineage is None:
                return 0
            if Lineage.decode(lineage).backup == self._digest:
                return None
        else:
            reader = ByteReader(stored, "how far a restore is")
            digest, done = reader.var_bytes(), reader.u64()
            reader.finish()
            if digest == self._digest:
                return done
        raise Exists("the restore of another backup was begun there: finish that one, or remove what is there")

    # -- objects and records ------------------------------------------------------------------------------------

    def _copy_objects(self) -> None:
        """Before the records that name them."""
        for part in self._manifest.objects:
            if self._writer.objects.size(part.name) != part.size:
                self._writer.objects.put(part.name, self._checked(part))
                crash.point("restore.after_object")
            self._did(part.size)

    def _checked(self, part: ObjectPart) -> Iterator[bytes | memoryview]:
        summed = Summed(self._place.read(copy_name(part)))
        yield from summed
        if (summed.digest, summed.size) != (part.digest, part.size):
            raise Corrupt(f"the copy of {part.name!r} in {self._place.url} does not match its checksum")

    def _copy_records(self, done: int) -> None:
        batch = Batch()
        for index, part in enumerate(self._manifest.parts[done:], done + 1):
            name = part_name(part)
            data = self._place.objects.get(name)
            if hashlib.sha256(data).hexdigest() != part.digest:
                raise Corrupt(f"{name} in {self._place.url} does not match its checksum")
            count = 0
            for key, value in unpacked(data):
                count += 1
                if not key.startswith(ANSWERS.raw):  # to clients of the old store
                    batch.put(key, value)
            if count != part.records:
                raise Corrupt(f"{name} in {self._place.url} has {count} records, and should have {part.records}")
            self._did(part.size)
            if batch.bytes >= COMMIT_BYTES or index == len(self._manifest.parts):
                batch.put(CURSOR.raw, ByteWriter().var_bytes(self._digest).u64(index).finish())
                self._writer.commit(batch)
                crash.point("restore.after_records")
                batch = Batch()

    def _begin_life(self) -> None:
        """The restored store's own identity, and the end of the restore, in one commit."""
        batch = Batch()
        current = self._random(LINEAGE_BYTES)
        with self._writer.view() as view:
            now_ms = int(time.time() * 1000)
            for key, value in new_life(view, current=current, backup=self._digest, now_ms=now_ms):
                batch.put(key, value)
        batch.delete(CURSOR.raw)
        crash.point("restore.before_life")
        self._writer.commit(batch)
        crash.point("restore.after_life")

    # -- checking -----------------------------------------------------------------------------------------------

    def _verified(self) -> Counts:
        """Every record against every other one, as `detent store verify` does it."""
        findings = []
        run = verify(self._writer)
        while True:
            try:
                findings.append(next(run))
            except StopIteration as end:
                counts: Counts = end.value
                break
        if findings:
            shown = "; ".join(map(str, findings[:PROBLEMS_SHOWN]))
            raise Corrupt(
                f"the restored store has {len(findings)} problems, and stays closed: {shown}. Restore another backup"
            )
        self._progress(self._total, self._total)
        return counts

    def _did(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total)
