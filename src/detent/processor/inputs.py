"""What a processor reads: input sets, from one journal, one message of each of several, or one of any of them.

Positions are the record's. What is read here moves nothing that is durable, so that a process that dies between two
inputs of a join, or is stopped there, has taken neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

from detent.errors import NotFound, Restored
from detent.journal import JournalReader, Message
from detent.journal.columns import Rows
from detent.journal.reader import Whereabouts
from detent.processor.declaration import JournalPlace, Mode
from detent.processor.records import JournalId, Snapshot
from detent.stream.bell import Growth, close_all, wait_for_any
from detent.stream.following import Following

if TYPE_CHECKING:
    from detent.store import Store

SLICE_S: Final = 1.0
"""A wait looks again this often, whatever it hears: a journal may have been deleted, and another one made of its
name."""

Set = tuple[Message, ...]
Chosen = list[tuple[str, int]]


class Singles(Sequence[Set]):
    """Input sets of one message each. Callers that need only some columns take those of `rows`."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Set: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Set]: ...

    def __getitem__(self, index: int | slice) -> Set | Sequence[Set]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return Singles(self.rows.part(start, max(start, stop))) if step == 1 else list(self)[index]
        return (self.rows.message(index),)

    def __iter__(self) -> Iterator[Set]:
        return zip(self.rows.messages, strict=True)


@dataclass(slots=True)
class Taken:
    """Input sets of one step, and how to tell where the inputs stand after some of them."""

    sets: Sequence[Set]
    after: Callable[[int], dict[str, int]]
    """Positions after so many sets."""


class ProcessorInputs:
    """The journals of one processor, followed from its snapshot on. For one thread; only `wait` may be woken."""

    def __init__(
        self,
        mode: Mode,
        places: Sequence[JournalPlace],
        stores: Mapping[str, Store],
        snapshot: Snapshot,
        bell: threading.Event,
    ) -> None:
        self._mode = mode
        self._bell = bell
        self._names = [str(place) for place in places]
        self._followed = {str(place): _followed(stores[place.store], place, snapshot) for place in places}
        self._growths = {str(place): Growth(stores[place.store], place.journal, bell) for place in places}
        self._turn = 0

    # -- positions ----------------------------------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        """The next offset of each input."""
        return {name: one.at for name, one in self._followed.items()}

    def journals(self) -> dict[str, JournalId]:
        """Which journals these are."""
        return {
            name: (one.number, one.created_ms)
            for name, one in self._followed.items()
            if one.number is not None and one.created_ms is not None
        }

    def move(self, positions: Mapping[str, int]) -> None:
        """Go on from there."""
        for name, at in positions.items():
            self._followed[name].move(at)

    # -- taking -------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Taken | None:
        """Up to so many input sets of a single input or a join; None if there is none yet."""
        before = self.positions()
        if self._mode == "one":
            rows = self._followed[self._names[0]].take_rows(limit)
            return None if rows is None else Taken(Singles(rows), lambda count: _plus(before, count))
        ready = min(one.look() for one in self._followed.values())
        if not ready:
            return None
        columns = [one.take(min(limit, ready)) for one in self._followed.values()]
        return Taken(list(zip(*columns, strict=True)), lambda count: _plus(before, count))

    def choose(self, limit: int) -> Chosen:
        """Which messages a step would take: nothing is taken. Empty if there is none yet."""
        if self._mode != "any":
            ready = min(one.look() for one in self._followed.values())
            return [("", min(ready, limit))] if ready else []
        turn = self._turn % len(self._names)
        order = [*self._names[turn:], *self._names[:turn]]
        ready_in = {name: ready for name in order if (ready := self._followed[name].look())}
        chosen: Chosen = []
        for index, (name, ready) in enumerate(ready_in.items()):  # equal parts, so that none starves
            part = min(ready, -(-limit // (len(ready_in) - index)))
            if part:
                chosen.append((name, part))
                limit -= part
        if chosen:
            self._turn = self._names.index(chosen[0][0]) + 1
        return chosen

    def take_chosen(self, chosen: Chosen) -> Taken:
        """What was chosen, and nothing else; `NotFound` if it is not there any more."""
        before = self.positions()
        if self._mode != "any":
            count = chosen[0][1]
            columns = [self._exactly(name, count) for name in self._names]
            return Taken(list(zip(*columns, strict=True)), lambda done: _plus(before, done))
        sets: list[Set] = []
        names: list[str] = []
        for name, count in chosen:
            sets += [(message,) for message in self._exactly(name, count)]
            names += [name] * count

        def after(done: int) -> dict[str, int]:
            positions = dict(before)
            for name in names[:done]:
                positions[name] += 1
            return positions

        return Taken(sets, after)

    def _exactly(self, name: str, count: int) -> list[Message]:
        messages = self._followed[name].take_all(count)
        if len(messages) != count:
            raise NotFound(
                f"{count} messages of {name!r} were chosen for a step that did not end, and {len(messages)} of them "
                "are there: the store has lost what it had made durable. Restore it, or reset the processor"
            )
        return messages

    # -- waiting ------------------------------------------------------------------------------------------------

    def is_still(self) -> bool:
        """Whether there is nothing to take, as far as that is known without a look. Take all the same after a wait: it
        may have ended because a look is due."""
        still = map(self._is_still, self._names)
        return any(still) if self._mode == "zip" else all(still)

    def _is_still(self, name: str) -> bool:
        one = self._followed[name]
        return not one.ready and self._growths[name].is_still(one.at)

    def wait(self, stopping: Callable[[], bool], seconds: float = SLICE_S) -> None:
        """Return when there may be something to take, when the bell rings, or after some seconds."""
        self._bell.clear()
        if stopping():
            return
        missing = self._names
        if self._mode == "zip":
            missing = [name for name in missing if self._is_still(name) or not self._followed[name].look()]
        if missing:
            wait_for_any(((self._growths[name], self._followed[name].at) for name in missing), self._bell, seconds)

    def close(self) -> None:
        """Stop waiting and reading, for good."""
        close_all(self._growths.values())
        for one in self._followed.values():
            one.close()


def is_other(reader: JournalReader, journal: str, found: Whereabouts | None, known: JournalId | None, at: int) -> bool:
    """Whether the journal that a processor has read to `at` was deleted, whether or not there is another one of that
    name now; or its store was restored from a backup that does not reach so far. Its offsets say nothing then."""
    if known is None or (found is not None and (found.number, found.created_ms) == known):
        return False
    if found is None or found.number != known[0]:
        return True
    try:
        return not reader.info(journal).goes_on(known[1], at)
    except (Restored, NotFound):
        return True


def _followed(store: Store, place: JournalPlace, snapshot: Snapshot) -> Following:
    name = str(place)
    number, created_ms = snapshot.journals.get(name, (None, None))
    at = snapshot.positions[name]
    return Following(store.reader, place.journal, at, number, created_ms=created_ms, label=name)


def _plus(positions: Mapping[str, int], count: int) -> dict[str, int]:
    return {name: at + count for name, at in positions.items()}


def rest_of(chosen: Chosen, done: int) -> Chosen:
    """What is left of a choice after so many sets."""
    left = []
    for name, count in chosen:
        used = min(count, done)
        done -= used
        if count > used:
            left.append((name, count - used))
    return left
