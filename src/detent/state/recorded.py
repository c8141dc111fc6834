"""State in memory and in a file, recorded: each change goes to a recovery-log journal first, behind an author fence.

The log is the truth. The file is a copy of the state as of some offset of the log, so that a process which starts on
the same machine plays only what came later; another machine plays from the log's newest snapshot. A standby plays all
the time, and takes over by the one transaction that names it as the author.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash

from detent import crash
from detent.engine import Operation
from detent.errors import Conflict, DetentError, Fenced, Invalid, Unavailable
from detent.journal import operations as journals
from detent.state import recovery_log as log
from detent.state.base import ShardName, ShardState, Standby, State
from detent.state.checkpoint import Checkpoint
from detent.state.keyed import Changes, Entries, KeyedState, Space, puts_and_deletes
from detent.state.recovery_log import Playback
from detent.state.state_file import StateFile
from detent.stream.opening import OWN

if TYPE_CHECKING:
    from detent.store import Store

HANDOFF_TRIES: Final = 1_000
"""How often a process tries to take over a log that its author keeps writing to, between two looks at its end."""

SNAPSHOT_BYTES_MIN: Final = 4 << 20
"""A log shorter than this is played faster than a snapshot is worth."""

SNAPSHOT_FACTOR: Final = 2
"""A snapshot is made when the changes since the last one are so many times its size: writing snapshots then costs at
most half of what writing changes does."""

APPEND_BYTES: Final = 32 << 20
"""Parts of a snapshot that go into one transaction."""

FOLLOW_MS: Final = 100
"""How often a standby that waits for the log looks whether it shall stop."""

logger = logging.getLogger("detent.state")


class RecordedState(State):
    """Keeps state in memory and in a file of this folder, as a dictionary of JSON values, and records every change in a
    journal of the consumer's store (``CONSUMER/recovery/SHARD``), from which any machine recovers it.

    For state that fits into memory and is read much more than written. It is the only kind that has hot standbys: a
    process that follows the log and takes over at once.
    """

    def __init__(self, folder: str | Path, *, snapshot_bytes: int = SNAPSHOT_BYTES_MIN) -> None:
        if not isinstance(snapshot_bytes, int) or snapshot_bytes < 1:
            raise Invalid(f"snapshot_bytes is a number of bytes, not {snapshot_bytes!r}")
        self._folder = Path(folder)
        self._snapshot_bytes = snapshot_bytes

    def open(self, store: Store, shard: ShardName) -> RecordedShardState:
        return RecordedShardState(store, shard, StateFile(self._folder, shard), Playback(), self._snapshot_bytes)

    def standby(self, store: Store, shard: ShardName) -> RecordedStandby:
        return RecordedStandby(store, shard, StateFile(self._folder, shard), self._snapshot_bytes)


class RecordedShardState(ShardState):
    """One shard's state, in memory."""

    def __init__(
        self, store: Store, shard: ShardName, file: StateFile, playback: Playback, snapshot_bytes: int
    ) -> None:
        self._store = store
        self._journal = log.log_name(shard)
        self._file = file
        self._playback = playback
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_size = 0
        self._author = ""
        self._space: Space | None = None
        self._live: dict[str, bytes] = {}

    # -- taking over --------------------------------------------------------------------------------------------

    def restore(self) -> Checkpoint | None:
        self._store.journal(self._journal).create(exist_ok=True)
        self._playback = load_file(self._store, self._journal, self._file, self._playback)
        self._hand_off()
        crash.point("state.recorded.after_handoff")
        self._live = dict(self._playback.entries)
        self._space = Space(_MemoryEntries(self))
        self._snapshot_size = sum(len(key) + len(value) for key, value in self._live.items())
        return self._playback.checkpoint

    def _hand_off(self) -> None:
        """Play to the end of the log and, if no other process wrote meanwhile, become its author."""
        self._author = secrets.token_hex(8)
        for _ in range(HANDOFF_TRIES):
            log.play_log(self._store, self._journal, self._playback)
            crash.point("state.recorded.before_handoff")
            record = log.Handoff(self._author, self._playback.sequence + 1, self._playback.digest)
            body = log.encode_record(record)
            try:
                self._store.commit(
                    [
                        journals.CheckHead(self._journal, self._playback.at),
                        journals.UpdateRegisters(self._journal, {log.AUTHOR: self._author}),
                        journals.Append(self._journal, [body]),
                    ]
                )
            except Conflict:
                continue  # another process wrote: that belongs to the state, too
            self._playback.play(body)
            return
        raise Unavailable(
            f"the author of {self._journal!r} writes faster than it can be played; stop it, or try again later"
        )

    # -- transactions -------------------------------------------------------------------------------------------

    def begin(self, settled: Callable[[], None]) -> KeyedState:
        del settled  # what is not durable yet is in memory
        assert self._space is not None, "restore() comes first"
        self._space.begin({})
        return KeyedState(self._space)

    def is_full(self, handle: KeyedState) -> bool:
        return handle.is_full

    def seal(self, handle: KeyedState) -> Changes:
        changes = handle.seal()
        for key, value in changes.items():
            if value is None:
                self._live.pop(key, None)
            else:
                self._live[key] = value
        return changes

    def commit(self, sealed: Changes, checkpoint: Checkpoint, outputs: Sequence[Operation]) -> None:
        assert not outputs, "messages of a recorded state are pending until they are acknowledged"
        puts, deletes = puts_and_deletes(sealed)
        record = log.RecordedCommit(self._author, self._next, self._playback.digest, checkpoint.encode(), puts, deletes)
        # The log is in the store of these messages: what it promises must not be rolled back as long as it stands.
        promised = checkpoint.intents.get(OWN, [])
        held = [intent.hold(self._journal) for intent in promised if intent.begun]
        self._record(record, held)
        due = max(self._snapshot_bytes, SNAPSHOT_FACTOR * self._snapshot_size)
        if self._playback.bytes_since_snapshot >= due:
            self._write_snapshot()

    def discard(self, handle: KeyedState) -> None:
        handle.discard()

    def close(self) -> None:
        """Leave a copy of what is committed in the file, so that the next start on this machine is quick."""
        if self._author and self._playback.checkpoint is not None:
            self._save()

    @property
    def _next(self) -> int:
        return self._playback.sequence + 1

    def _record(self, record: log.Record, more: Sequence[Operation]) -> None:
        body = log.encode_record(record)
        self._append([body], more)
        self._playback.play(body)

    def _append(self, bodies: list[bytes], more: Sequence[Operation]) -> int:
        """Append as the author, or learn that there is another one. Answers the first offset."""
        check = journals.CheckRegisters(self._journal, {log.AUTHOR: self._author})
        try:
            results = self._store.commit([check, journals.Append(self._journal, bodies), *more])
        except Conflict as error:
            raise Fenced(
                f"another process has taken over {self._journal!r}: nothing of this transaction was recorded ({error})"
            ) from error
        offset: int = results[1].offset
        return offset

    # -- snapshots ----------------------------------------------------------------------------------------------

    def _write_snapshot(self) -> None:
        """Write the whole state to the log, then forget what came before it."""
        checkpoint = self._playback.checkpoint
        assert checkpoint is not None, "a snapshot follows a commit"
        entries = self._playback.entries
        parts = list(log.snapshot_parts(entries))
        first = self._playback.at
        bodies: list[bytes] = []
        sequence, digest = self._playback.sequence, self._playback.digest
        for number, part in enumerate(parts):
            last = checkpoint.encode() if number == len(parts) - 1 else None
            sequence += 1
            record = log.SnapshotPart(self._author, sequence, digest, number, part, last)
            bodies.append(log.encode_record(record))
            digest = xxhash.xxh64_digest(bodies[-1])
        for group in _groups(bodies):
            is_last = group[-1] is bodies[-1]
            mark: Sequence[Operation] = (
                [
                    journals.UpdateRegisters(self._journal, {log.SNAPSHOT: str(first)}),
                    journals.TrimJournal(self._journal, first),
                ]
                if is_last
                else ()
            )
            self._append(group, mark)
            for body in group:
                self._playback.play(body)
        crash.point("state.recorded.after_snapshot")
        self._snapshot_size = sum(map(len, bodies))
        self._save()

    def _save(self) -> None:
        """The file is a copy: without it the log is played from its snapshot, and so a full disk is no failure."""
        number = self._store.reader.number(self._journal)
        if number is None:
            return  # the log itself is gone, and a copy of it is of no use
        try:
            self._file.save(self._playback, number)
        except OSError as error:
            logger.warning("the state file %s could not be written, the log has it all: %s", self._file.path, error)


class _MemoryEntries(Entries):
    """What was sealed, durable or about to be."""

    def __init__(self, state: RecordedShardState) -> None:
        self._state = state

    def load(self, key: str) -> bytes | None:
        return self._state._live.get(key)

    def scan(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        live = self._state._live
        return ((key, live[key]) for key in sorted(live) if key.startswith(prefix))


class RecordedStandby(Standby):
    """Plays the log of a shard that another process writes."""

    def __init__(self, store: Store, shard: ShardName, file: StateFile, snapshot_bytes: int) -> None:
        self._store = store
        self._shard = shard
        self._journal = log.log_name(shard)
        self._file = file
        self._snapshot_bytes = snapshot_bytes
        self.playback = Playback()

    def follow(self, stop: Callable[[], bool]) -> None:
        self._store.journal(self._journal).create(exist_ok=True)
        self.playback = load_file(self._store, self._journal, self._file, self.playback)
        while not stop():
            log.play_log(self._store, self._journal, self.playback)
            self._store.wait(self._journal, self.playback.at, FOLLOW_MS)

    def take_over(self) -> RecordedShardState:
        return RecordedShardState(self._store, self._shard, self._file, self.playback, self._snapshot_bytes)


def load_file(store: Store, journal: str, file: StateFile, playback: Playback) -> Playback:
    """Start from the file if it is of this log and knows more than what was played. A file that does not fit the log is
    left aside: the log has everything."""
    try:
        saved = file.load(store.reader.number(journal))
        if saved is None or saved.at <= playback.at:
            return playback
        first, after = store.reader.extent(journal)
        if not first <= saved.at <= after:
            return playback
        if saved.at > first:
            _check_end(store, journal, saved)
    except (DetentError, OSError) as error:
        logger.warning("the state file %s is left aside, the log has it all: %s", file.path, error)
        return playback
    return saved


def _check_end(store: Any, journal: str, saved: Playback) -> None:
    """The log's message before the file's offset must be the one that the file saw last."""
    ((_, batch),) = store.reader.committed(journal, saved.at - 1, saved.at)
    if xxhash.xxh64_digest(batch.column("body")[0].as_py()) != saved.digest:
        raise Invalid(f"it is of another history than the log {journal!r}")


def _groups(bodies: list[bytes]) -> Iterator[list[bytes]]:
    """Parts in their order, in groups that fit into a transaction."""
    group: list[bytes] = []
    size = 0
    for body in bodies:
        if group and size + len(body) > APPEND_BYTES:
            yield group
            group, size = [], 0
        group.append(body)
        size += len(body)
    yield group
