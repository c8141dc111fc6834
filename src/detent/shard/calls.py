"""What the calls on consumers have in common, sync and async: the operations they send, and what they make of the
answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from detent import names
from detent.durations import Duration, milliseconds
from detent.engine import Operation
from detent.errors import Denied, Invalid, NotFound, Unavailable
from detent.runtime.backoff import Backoff, Failures
from detent.shard import operations as ops
from detent.shard.memory import furthest

LOOK: Final = Backoff(0.002, 0.05, factor=1.5)
"""How often a caller that waits for a consumer looks: soon at first, for most are done soon, and then less often."""


class JournalBounds(Protocol):
    """Which journal has a name, and where it begins and ends."""

    @property
    def number(self) -> int: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...


class KnowsJournals(Protocol):
    """Says where journals are."""

    def whereabouts(self, name: str) -> JournalBounds | None: ...


def describe(name: str) -> Operation:
    """The question for one consumer. Without a name it would be the one for all of them."""
    ops.check_consumer(name)
    return ops.DescribeConsumers(name=name)


def described(results: list[Any]) -> ops.ConsumerDescription:
    """The one consumer that was asked for."""
    found: ops.ConsumerDescription = results[0].consumers[0]
    return found


def reset(name: str, offsets: Mapping[str, int]) -> Operation:
    """Checked here too: what cannot be written down cannot be sent to an owner elsewhere."""
    if not isinstance(offsets, Mapping):
        raise Invalid(f"say an offset for each journal, in a dictionary, not {type(offsets).__name__}")
    operation = ops.ResetShards(name, dict(offsets))
    ops.check_consumer(name)
    ops.check_reset(operation)
    return operation


def read(name: str, shard: int, keys: list[str]) -> Operation:
    """The question for some entries of a shard's state."""
    operation = ops.ReadShardState(name, shard, keys)
    ops.check_index(shard)
    ops.check_read(operation)
    return operation


def scan(name: str, shard: int, prefix: str, after: str) -> Operation:
    """The question for a page of a shard's state."""
    operation = ops.ScanShardState(name, shard, prefix, after)
    ops.check_index(shard)
    ops.check_scan(operation)
    return operation


def lag(found: ops.ConsumerDescription, reader: KnowsJournals) -> dict[int, dict[str, int]]:
    """How many committed messages each shard has still to process, of each journal that it reads. Messages that are
    gone are not among them. A journal that the shard has never reported counts from its first message on, or from where
    it was reset to; and so does one that was deleted and made anew since."""
    places = {journal: reader.whereabouts(journal) for journal in found.sources}
    return {
        shard.index: {journal: behind(shard, journal, places[journal]) for journal in found.journals_of(shard.index)}
        for shard in found.states
    }


class Reads(Protocol):
    """What is known of a shard that reads journals: a description of it, or what users see of that."""

    @property
    def processed(self) -> Mapping[str, int]: ...

    @property
    def resets(self) -> Mapping[str, int]: ...

    @property
    def numbers(self) -> Mapping[str, int]: ...


def behind(shard: Reads, journal: str, found: JournalBounds | None) -> int:
    """How many messages of a journal a shard has still to process. One that was never written has none."""
    if found is None:
        return 0
    far = 0 if is_other(shard, journal, found) else place_of(shard, journal) or 0
    return max(0, found.next_offset - max(found.first_offset, far))


def place_of(shard: Reads, journal: str) -> int | None:
    """Where a shard goes on in a journal, as far as that is known: a reset counts before a process has read on."""
    return shard.processed.get(journal, shard.resets.get(journal))


def is_other(shard: Reads, journal: str, found: JournalBounds | None) -> bool:
    """Whether the journal that a shard has read was deleted, whether or not there is another one of that name now. Its
    offsets say nothing then."""
    known = shard.numbers.get(journal)
    return known is not None and (found is None or found.number != known)


def require_same(found: ops.ConsumerDescription, journal: str, reader: KnowsJournals) -> None:
    """`NotFound` if a shard has processed another journal of that name, whose offsets are not those of this one."""
    if not any(journal in shard.numbers for shard in found.shards_of(journal)):
        return
    with suppress(Denied):  # a token that may wait for a consumer may not be one that may read its journals
        _refuse_other(found, journal, reader.whereabouts(journal))


def _refuse_other(found: ops.ConsumerDescription, journal: str, place: JournalBounds | None) -> None:
    if any(is_other(shard, journal, place) for shard in found.shards_of(journal)):
        raise NotFound(
            f"the journal {journal!r} that the consumer {found.name!r} has read was deleted, and what has its name now "
            "is not processed: reset the consumer to an offset of it"
        )


class Awaiting:
    """Waits until a consumer has processed a message: says what to look at, whether it is so, and when to look next."""

    def __init__(self, name: str, journal: str, offset: int, timeout: Duration | None) -> None:
        ops.check_consumer(name)
        names.check_name(journal, "journal")
        if type(offset) is not int or not 0 <= offset < ops.OFFSET_MAX:
            raise Invalid(f"{offset!r} is not an offset of {journal!r}: offsets are numbered from 0 on")
        self._name = name
        self._journal = journal
        self._offset = offset
        self._deadline = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
        self._looks = Failures(LOOK)

    def published(self, found: ops.ConsumerDescription) -> dict[str, int] | None:
        """How far the shards that have processed the message have written other journals; None while one has not."""
        shards = found.shards_of(self._journal)
        if not shards:
            raise NotFound(f"the consumer {self._name!r} does not read the journal {self._journal!r}")
        if min(shard.processed.get(self._journal, 0) for shard in shards) <= self._offset:
            return None
        return dict(sorted(_union(shard.published for shard in shards).items()))

    def pause_s(self, found: ops.ConsumerDescription) -> float:
        """How long to wait before the next look. `Unavailable` when the time is over."""
        pause_s = self._looks.failed()
        if self._deadline is None:
            return pause_s
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise Unavailable(self._how_far(found))
        return min(pause_s, left_s)

    def _how_far(self, found: ops.ConsumerDescription) -> str:
        behind = min(found.shards_of(self._journal), key=lambda shard: shard.processed.get(self._journal, 0))
        far = behind.processed.get(self._journal)
        said = "has not reported anything" if far is None else f"has processed what is below offset {far}"
        reasons = [f"its last error: {behind.error}"] if behind.error else []
        reasons += [] if behind.holder else ["no member holds it"]
        reasons += ["the consumer is paused"] if found.paused else []
        return (
            f"the consumer {self._name!r} has not processed offset {self._offset} of {self._journal!r} in time: shard "
            f"{behind.index} {said}" + "".join(f"; {reason}" for reason in reasons)
        )


def _union(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    union: dict[str, int] = {}
    for one in maps:
        union = furthest(union, one)
    return union
