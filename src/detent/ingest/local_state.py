"""`QueueLocalState`: what one pipeline knows of the messages it received lately.

A file goes from *ready for read* to *read in progress* to *awaiting commit* to *completed*. A message announces one or
more files, and is acknowledged when all of them are completed, by any pipeline. It has no clock, no queue and no lock:
the coordinator brings them. What is ready for read is put into batches here, by bytes, count and age.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from detent.ingest.announcements import Announced
from detent.ingest.shared_state import FileShard
from detent.transports.contract import Delivery

COMPLETED_MAX: Final = 20_000
"""Completed files that are remembered: duplicates of them, which mostly come soon, need no question to the database.
Each takes 200 bytes of the driver."""

MESSAGES_A_FILE_MAX: Final = 100
"""Messages that wait for one file. Further ones are left to the queue, which delivers them again later."""

SHRINK_BITS: Final = 4
"""A batch over which a pipeline died has a sixteenth of the files the next time."""

DEATHS_MAX: Final = 6
"""A file over which so many pipelines died was alone the last times, in batches of up to 65,536."""

MARGIN_S_MAX: Final = 4.0
"""What a request for an extension may take, a retry included."""

Stage = Literal["ready", "reading", "committing"]


@dataclass(eq=False, slots=True)
class HeldMessage:
    """A delivery that is held, until when, and the files that it still waits for."""

    delivery: Delivery
    deadline: float
    waits_for: set[bytes]
    is_lost: bool = False
    """The queue did not extend it: another pipeline may have it now."""

    is_begun: bool = False
    """A file of it was read, or is being read."""

    is_last_extended: bool = False
    """The commit has begun; the extension it got then is its last."""


@dataclass(eq=False, slots=True)
class HeldFile:
    """A file that this pipeline has taken."""

    shard: FileShard
    announced: Announced
    since: float
    stage: Stage = "ready"
    deaths: int = 0
    """How many pipelines went silent while they read it."""

    messages: list[HeldMessage] = field(default_factory=list)

    @property
    def is_abandoned(self) -> bool:
        """Whether every message that announced it was lost."""
        return bool(self.messages) and all(message.is_lost for message in self.messages)


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch gets, and how long a file waits for others. One file alone is always a batch."""

    files: int
    bytes: int
    age_s: float


class QueueLocalState:
    """The files that this pipeline has, by their keys, and the messages that wait for them."""

    def __init__(self, completed_max: int = COMPLETED_MAX) -> None:
        self._files: dict[bytes, HeldFile] = {}
        self._ready: OrderedDict[bytes, None] = OrderedDict()
        self._completed: OrderedDict[bytes, None] = OrderedDict()
        self._completed_max = completed_max
        self._acknowledgeable: list[HeldMessage] = []

    # -- from messages to files --------------------------------------------------------------------------------------

    def receive(self, message: HeldMessage) -> set[bytes]:
        """Take a message in; the files that have to be asked for. Duplicates wait for the file that is there."""
        message.waits_for -= {key for key in message.waits_for if self.is_completed(key)}
        if not message.waits_for:
            self._acknowledgeable.append(message)
            return set()
        for key in message.waits_for & self._files.keys():
            self._join(self._files[key], message)
        return message.waits_for - self._files.keys()

    @staticmethod
    def _join(file: HeldFile, message: HeldMessage) -> None:
        file.messages = [one for one in file.messages if one.delivery.message_id != message.delivery.message_id]
        if len(file.messages) < MESSAGES_A_FILE_MAX:
            file.messages.append(message)

    def grant(
        self, shard: FileShard, announced: Announced, messages: Iterable[HeldMessage], now: float, deaths: int = 0
    ) -> None:
        """A file is ours, and ready for read."""
        file = self._files.setdefault(shard.key, HeldFile(shard, announced, now, deaths=deaths))
        for message in messages:
            self._join(file, message)
        if file.stage == "ready":
            self._ready[shard.key] = None

    # -- from ready to completed -------------------------------------------------------------------------------------

    def start(self, keys: Iterable[bytes]) -> None:
        """Read in progress."""
        for key in keys:
            del self._ready[key]
            self._move(key, "ready", "reading")
            for message in self._files[key].messages:
                message.is_begun = True

    def written(self, keys: Iterable[bytes]) -> None:
        """Awaiting commit."""
        for key in keys:
            self._move(key, "reading", "committing")

    def reread(self, keys: Iterable[bytes]) -> None:
        """A commit was refused: what is left of it is read again."""
        for key in keys:
            self._move(key, "committing", "reading")

    def _move(self, key: bytes, expected: Stage, stage: Stage) -> None:
        file = self._files[key]
        assert file.stage == expected, f"{file.shard.uri} is {file.stage}, not {expected}"
        file.stage = stage

    def complete(self, keys: Iterable[bytes], messages: Iterable[HeldMessage] = ()) -> None:
        """Nothing is left to do for these files: messages that waited for no other can be acknowledged. `messages` are
        some that wait for them and were not taken in."""
        for key in keys:
            self._completed[key] = None
            self._completed.move_to_end(key)
            if len(self._completed) > self._completed_max:
                self._completed.popitem(last=False)
            for message in [*self._forget(key), *messages]:
                if key in message.waits_for:
                    message.waits_for.discard(key)
                    if not message.waits_for:
                        self._acknowledgeable.append(message)

    def drop(self, keys: Iterable[bytes]) -> list[HeldMessage]:
        """Another has these files, or they failed: the queue will deliver their messages again. Those messages."""
        return [message for key in keys for message in self._forget(key)]

    def release(self, key: bytes, messages: Iterable[HeldMessage]) -> None:
        """Messages wait for a file no longer, though it was not completed: those that wait for no other are done."""
        for message in messages:
            if key in message.waits_for:
                message.waits_for.discard(key)
                if not message.waits_for:
                    self._acknowledgeable.append(message)

    def _forget(self, key: bytes) -> list[HeldMessage]:
        file = self._files.pop(key, None)
        self._ready.pop(key, None)
        return [] if file is None else file.messages

    # -- questions ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: bytes) -> bool:
        return key in self._files

    def is_completed(self, key: bytes) -> bool:
        """Whether this pipeline knows the file to be finished."""
        return key in self._completed

    def file(self, key: bytes) -> HeldFile:
        """A file that is tracked."""
        return self._files[key]

    def ready(self) -> Iterator[HeldFile]:
        """Files that are ready for read, oldest first."""
        return (self._files[key] for key in self._ready)

    def files(self) -> list[HeldFile]:
        """All files."""
        return list(self._files.values())

    def messages(self) -> list[HeldMessage]:
        """Messages that are held for a file."""
        return list({id(message): message for file in self._files.values() for message in file.messages}.values())

    def acknowledgeable(self) -> list[HeldMessage]:
        """Messages that wait for nothing any more; they are forgotten here."""
        found, self._acknowledgeable = self._acknowledgeable, []
        return found


def next_batch(ready: Iterable[HeldFile], limits: BatchLimits, now: float, *, is_draining: bool) -> list[HeldFile]:
    """The files of the next batch, oldest first; none while it is worth waiting for more.

    A file over which a pipeline died may have killed it. Such files go in batches of their own, smaller with each
    death, so that in the end the one to blame is alone, and the others are done.
    """
    chosen: list[HeldFile] = []
    size = 0
    is_full = False
    most = limits.files
    for file in ready:
        if not chosen:
            most = max(1, limits.files >> (SHRINK_BITS * file.deaths))
        elif file.deaths != chosen[0].deaths:
            continue
        elif len(chosen) >= most or size + file.shard.size > limits.bytes:
            is_full = True
            break
        chosen.append(file)
        size += file.shard.size
    if not chosen:
        return []
    is_full = is_full or len(chosen) >= most or size >= limits.bytes
    is_old = now - chosen[0].since >= limits.age_s
    return chosen if is_full or is_old or is_draining else []


@dataclass(frozen=True)
class VisibilitySchedule:
    """How long messages are kept from other pipelines, and when that is extended. `max_s` is the longest that the queue
    can do.

    A message is received with a visibility of `visibility_s` and the commit timeout, counted from when it was asked
    for, so that a slow answer makes the deadline early and not late. It is extended by half of `visibility_s` whenever
    that is about to end, until the commit of its last file begins; then once more, by twice the commit timeout. What
    goes wrong after that the publish token refuses, so a deadline that is missed costs work and no row.
    """

    visibility_s: float
    commit_timeout_s: float
    max_s: float

    @property
    def receive_s(self) -> float:
        """Asked for when a message is received."""
        return min(self.max_s, self.visibility_s + self.commit_timeout_s)

    @property
    def extension_s(self) -> float:
        """Asked for each time after that."""
        return min(self.max_s, self.visibility_s / 2)

    @property
    def last_s(self) -> float:
        """Asked for when the commit begins."""
        return min(self.max_s, 2 * self.commit_timeout_s)

    @property
    def margin_s(self) -> float:
        """How long before its deadline a message is extended."""
        return min(MARGIN_S_MAX, self.extension_s / 3)

    def due(self, messages: Iterable[HeldMessage], now: float) -> list[HeldMessage]:
        """The messages that have to be extended now."""
        limit = now + self.margin_s
        return [
            message
            for message in messages
            if message.deadline <= limit and not message.is_lost and not message.is_last_extended
        ]

    def last(self, messages: Iterable[HeldMessage], now: float) -> list[HeldMessage]:
        """Those that are extended for the last time, because it makes their deadline later."""
        return [message for message in messages if message.deadline < now + self.last_s and not message.is_lost]
