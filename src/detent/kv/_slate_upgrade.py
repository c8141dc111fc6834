"""The upgrade of a SlateDB store: `upgrade.py` says how it goes."""

from __future__ import annotations

from contextlib import closing

from detent import crash
from detent.kv._slate_reader import SlateReader
from detent.kv._slate_session import EPOCH_KEY, UPGRADABLE, Epoch, SlatePlace, SlateView
from detent.kv.base import FIRST_KEY
from detent.kv.slate import COMMIT_SECONDS, OLD_FENCE_KEYS, SlateWriter
from detent.kv.stored import FORMAT_VERSION, UPGRADING
from detent.kv.upgrade import CURSOR_KEY, Chunk, Progress, UpgradeCursor, Upgraded, chunks


def upgrade_slate(url: str, progress: Progress | None) -> Upgraded:
    """Bring a store to this release's format. No lock says whether another process owns it; if one does, it is fenced,
    as by a successor. `NotFound` if there is no store."""
    place = SlatePlace(url)
    with closing(SlateReader(place, 0, any_version=True)) as reader:
        reader._open()
        if reader.version == FORMAT_VERSION:
            return Upgraded(FORMAT_VERSION, 0)
    with closing(_SlateUpgrade(place, COMMIT_SECONDS)) as run:
        run._open()
        return run.run(progress)


class _SlateUpgrade(SlateWriter):
    """A writer that makes the records of the release before into those of this one."""

    _version = UPGRADING

    def _take_over(self) -> None:
        """Fence the writer before this one, tell it what was found, and say that the upgrade has begun."""
        before = Epoch.decode(self._run(self._db.get(EPOCH_KEY)), any_version=True)
        self.epoch = before.epoch + 1
        batch = self._numbered_batch()
        if before.version == UPGRADABLE:
            fence = OLD_FENCE_KEYS + before.epoch.to_bytes(8, "big")
            batch.put(fence, before.number.to_bytes(8, "little"))  # as a writer of that release looks for it
            batch.put(CURSOR_KEY, UpgradeCursor(UPGRADABLE, b"").encode())
        crash.point("kv.upgrade.before_begin")
        self._run(self._write(batch), self._commit_seconds)
        crash.point("kv.upgrade.after_begin")

    def run(self, progress: Progress | None) -> Upgraded:
        """Do what is left of it."""
        cursor = UpgradeCursor.decode(self._run(self._published.get(CURSOR_KEY)))
        start = cursor.last + b"\0" if cursor.last else FIRST_KEY
        records = done = 0
        total = self.size_bytes()
        for chunk in chunks(SlateView(self, self._published)._pairs(start, None, False, None)):
            self._put(chunk, cursor)
            records += len(chunk.stored)
            done += chunk.size
            if progress is not None:
                progress(min(done, total), total)
        self._end()
        return Upgraded(cursor.before, records)

    def _put(self, chunk: Chunk, cursor: UpgradeCursor) -> None:
        batch = self._numbered_batch()
        for key, stored in chunk.stored.items():
            batch.put(key, stored)
        batch.put(CURSOR_KEY, cursor._replace(last=chunk.last).encode())
        crash.point("kv.upgrade.before_chunk")
        self._run(self._write(batch), self._commit_seconds)
        crash.point("kv.upgrade.after_chunk")

    def _end(self) -> None:
        self._version = FORMAT_VERSION
        batch = self._numbered_batch()
        batch.delete(CURSOR_KEY)
        crash.point("kv.upgrade.before_end")
        self._run(self._write(batch), self._commit_seconds)
        crash.point("kv.upgrade.after_end")
