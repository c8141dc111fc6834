"""What a shard reads: its journals, each in order, taken in turns.

A journal is read up to where it ended at some moment, so that messages which were acknowledged together are read
together. A shard that waits is woken by a bell, which a journal rings that has grown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from detent.consumer.application import Source
from detent.errors import Conflict, NotFound
from detent.journal import JournalInfo, Message
from detent.journal.message import messages_of
from detent.message import Checkpoint as RawCheckpoint
from detent.message import Envelope, Sequencer
from detent.state.checkpoint import Checkpoint, RawPosition, raw_checkpoint, raw_positions
from detent.stream.bell import Growth, close_all, wait_for_any
from detent.stream.following import Following, start_of

if TYPE_CHECKING:
    from detent.store import Store

READ_ROWS: Final = 65_536
"""Messages that are taken at once, at most."""

REMEDY: Final = "Reset the consumer"
"""What a user can do when what a shard has read is gone."""

Mine = Callable[[Message], bool]


class ReadJournal(NamedTuple):
    """Which journal was read, by its number and when it was made; None where nothing was read, 0 where an earlier
    release has not written down when."""

    number: int | None
    created_ms: int | None


class CommittedSource:
    """A journal by its committed offsets."""

    has_pending = False

    def __init__(
        self, store: Store, journal: str, source: Source, at: int | None, known: ReadJournal, mine: Mine | None
    ) -> None:
        number, created_ms = known
        if at is None:
            at, number = start_of(store.reader, journal, source.start)
            created_ms = None
        self._following = Following(store.reader, journal, at, number, created_ms=created_ms, remedy=REMEDY)
        self._mine = mine
        self.at = at
        """Offset after the last message that was consumed or passed over."""

    @property
    def number(self) -> int | None:
        """The journal's number; None until it exists."""
        return self._following.number

    @property
    def created_ms(self) -> int | None:
        """When it was made; None until it exists."""
        return self._following.created_ms

    def take(self) -> list[Message]:
        """Messages that are there, some at a time; none if there are none."""
        while messages := self._following.take(READ_ROWS):
            if self._mine is None or (messages := list(filter(self._mine, messages))):
                return messages
            self.at = self._following.at
        return []

    @property
    def done(self) -> int:
        """The committed offset up to which everything is consumed."""
        return self.at

    @property
    def awaited(self) -> int:
        """The committed offset that would be news."""
        return self._following.at

    def drained(self) -> None:
        """All messages that were handed out are consumed."""
        self.at = self._following.at

    def put_back(self, messages: list[Message]) -> None:
        """These were handed out and will be consumed in the next transaction; those before them are consumed."""
        self.at = messages[0].offset
        self._following.move(self.at)

    def close(self) -> None:
        """Let go of a read that is under way."""
        self._following.close()


class RawSource:
    """A journal by its stored rows: duplicates, pending messages and acknowledgements, sequenced here."""

    def __init__(
        self, store: Store, journal: str, position: RawPosition | None, read: ReadJournal, mine: Mine | None
    ) -> None:
        self._store = store
        self.journal = journal
        self.number, self.created_ms = read
        """The journal's number, and when it was made; None until it exists."""
        self._mine = mine
        known = {} if position is None else {journal: position}
        start = self._start() if position is None else position.position
        begin = raw_checkpoint(known) if known else RawCheckpoint({journal: start}, [], {})
        self._sequencer = Sequencer(checkpoint=begin)
        self._rows: Iterator[Envelope] = iter(())
        self._read_to = start
        self._next: Message | None = None
        self._mark = (0, 0)
        self._done = 0
        self._seen: JournalInfo | None = None
        """The journal as it was when it was looked at last."""

    def _start(self) -> int:
        info = self._info(0)
        return 0 if info is None else info.first_position

    def _info(self, at: int) -> JournalInfo | None:
        """The journal as it is; None if it does not exist yet. `NotFound` if it is not the one that was read."""
        try:
            info = self._store.reader.info(self.journal)
        except NotFound:
            if self.number is not None or at:
                raise self._vanished(at) from None
            return None
        self.number = info.id if self.number is None else self.number
        if info.id != self.number or not info.goes_on(self.created_ms or 0, at, raw=True):
            raise self._vanished(at)
        self.created_ms = info.created_ms
        return info

    def _vanished(self, at: int) -> NotFound:
        return NotFound(
            f"{self.journal!r} was read to {at}, which is not there: the journal was deleted, or is another one of "
            f"that name. {REMEDY} to an offset that exists to go on"
        )

    @property
    def has_pending(self) -> bool:
        """Whether a producer's transaction was begun since the last checkpoint and is open."""
        return self._sequencer.has_pending

    @property
    def done(self) -> int:
        """The committed offset up to which everything is consumed: what it was when the journal ended at the position
        up to which this has read by now."""
        position, offset = self._mark
        if self._sequencer.offset(self.journal) >= position:
            self._done = offset
        return self._done

    @property
    def awaited(self) -> int:
        """The committed offset that would be news."""
        return self._mark[1]

    def take(self) -> list[Message]:
        """The next committed message, alone: it counts as consumed when the one after it is looked for."""
        message = self._next or self._step()
        self._next = None
        return [] if message is None else [message]

    def _step(self) -> Message | None:
        while True:
            again = self._sequencer.replay_range()
            if again is not None:
                self._sequencer.start_replay(self._envelopes(again[1], again[2]))
            envelope = self._sequencer.step()
            if envelope is not None:
                if not envelope.is_ack and (self._mine is None or self._mine(envelope.message)):
                    return envelope.message  # type: ignore[no-any-return]
                continue
            row = next(self._rows, None)
            if row is None:
                self._rows = self._look()
                row = next(self._rows, None)
                if row is None:
                    return None
            self._sequencer.queue(row)
            self._read_to = row.end

    def _look(self) -> Iterator[Envelope]:
        info = self._info(self._read_to)
        if info is None:
            return iter(())
        if self._read_to > info.next_position:
            raise self._vanished(self._read_to)
        if not info.first_offset:
            # No committed message was ever dropped: what is gone from the front were rows of aborted transactions.
            self._read_to = max(self._read_to, info.first_position)
        seen, self._seen = self._seen, info
        if seen is not None:  # all rows that were there then are sequenced by now
            self._sequencer.forget(self.journal, seen.clock_floor, seen.open_from)
        self._mark = (info.next_position, info.next_offset)
        return self._envelopes(self._read_to, info.next_position)

    def _envelopes(self, start: int, end: int) -> Iterator[Envelope]:
        for position, batch in self._store.reader.uncommitted(self.journal, start, end, journal=self.number):
            for message in messages_of(batch, position=position, journal=self.journal):
                producer = int.from_bytes(message.producer, "big")
                at = message.position
                yield Envelope(self.journal, at, at + 1, producer, message.clock, message.flags, message)

    def drained(self) -> None:
        """The message that was handed out is consumed: look for the next one, which says so to the sequencer."""
        self._next = self._step()

    def put_back(self, messages: list[Message]) -> None:
        """It was handed out and will be consumed in the next transaction."""
        self._next = messages[0]

    def position(self) -> RawPosition:
        """Where to resume."""
        return raw_positions(self._sequencer.checkpoint())[self.journal]

    def close(self) -> None:
        """Let go of a read that is under way."""
        self._rows = iter(())


class Sources:
    """All journals of a shard."""

    def __init__(self, store: Store, bell: threading.Event) -> None:
        self._store = store
        self._bell = bell
        self._sources: dict[str, CommittedSource | RawSource] = {}
        self._turn = 0
        self._growths: dict[str, Growth] = {}

    def add(self, journal: str, source: Source, checkpoint: Checkpoint, mine: Mine | None) -> None:
        """Read a journal, from the checkpoint on if it names it."""
        if journal in (checkpoint.offsets if source.raw else checkpoint.raw):
            raise Conflict(
                f"this shard has read {journal!r} {'by offsets' if source.raw else 'raw'}, and is to read it "
                "otherwise: leave it as it was, or reset the consumer to where it shall go on"
            )
        made: CommittedSource | RawSource
        number = checkpoint.numbers.get(journal)
        known = ReadJournal(number, None if number is None else checkpoint.created.get(journal, 0))
        if source.raw:
            made = RawSource(self._store, journal, checkpoint.raw.get(journal), known, mine)
        else:
            made = CommittedSource(self._store, journal, source, checkpoint.offsets.get(journal), known, mine)
        self._sources[journal] = made
        self._growths[journal] = Growth(self._store, journal, self._bell)

    def __contains__(self, journal: str) -> bool:
        return journal in self._sources

    def take(self) -> tuple[CommittedSource | RawSource, list[Message]] | None:
        """Messages of one journal, of the next one each time; None if no journal has any."""
        sources = list(self._sources.values())
        for step in range(len(sources)):
            source = sources[(self._turn + step) % len(sources)]
            messages = source.take()
            if messages:
                self._turn = (self._turn + step + 1) % len(sources)
                return source, messages
        return None

    @property
    def has_pending(self) -> bool:
        """Whether a raw source waits for an acknowledgement."""
        return any(source.has_pending for source in self._sources.values())

    def offsets(self) -> dict[str, int]:
        """Up to where each committed source is consumed."""
        return {name: one.at for name, one in self._sources.items() if isinstance(one, CommittedSource)}

    def raw(self) -> dict[str, RawPosition]:
        """The same of raw sources."""
        return {name: one.position() for name, one in self._sources.items() if isinstance(one, RawSource)}

    def numbers(self) -> dict[str, int]:
        """Which journals these are."""
        return {name: one.number for name, one in self._sources.items() if one.number is not None}

    def created(self) -> dict[str, int]:
        """When each of them was made."""
        return {name: one.created_ms for name, one in self._sources.items() if one.created_ms is not None}

    def progress(self) -> dict[str, int]:
        """Up to which committed offset each source is consumed."""
        return {name: one.done for name, one in self._sources.items()}

    def wait(self, seconds: float) -> None:
        """Return when a journal has something new, when the bell rings, or after some seconds."""
        awaited = ((self._growths[name], one.awaited) for name, one in self._sources.items())
        wait_for_any(awaited, self._bell, seconds)

    def close(self) -> None:
        """Stop waiting and reading, for good."""
        close_all(self._growths.values())
        for source in self._sources.values():
            source.close()


def key_filter(shard: int, shards: int) -> Mine:
    """Whether a message belongs to a shard, by its key. Messages without a key are the first shard's."""

    def mine(message: Message) -> bool:
        key = message.key
        return shard == (0 if key is None else xxhash.xxh3_64_intdigest(key) % shards)

    return mine


def shard_journals(sources: Sequence[Source], listed: Sequence[str]) -> list[str]:
    """The journals that sources name: those that are named outright, and those that match a pattern and exist."""
    named = [source.journal for source in sources if not source.is_pattern]
    patterns = [source for source in sources if source.is_pattern]
    found = [name for name in listed if any(pattern.matches(name) for pattern in patterns)]
    return list(dict.fromkeys([*named, *found]))
