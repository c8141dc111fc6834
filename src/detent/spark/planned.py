"""What a stream of journals has planned, kept in the store, so that it plans the same again.

Spark's log alone knows how far a batch goes. When the log loses its newest entry, a source is asked once more how far
to go from there; were it to say "to the end, as it is now", the batch would be another one under the same number. So
each step is kept in the store before the batch runs, and the store's answer counts. A step also says which journals it
was planned on: one that was deleted and made anew in the meantime is not read from its middle.

A stream that goes on from its own newest step knows the answer. It sends the next one while Spark writes its log, and
waits for it when Spark asks for the batch's partitions, before any task of it runs. So a kill in between leaves a batch
in Spark's log that the store has not heard of and that had no effect; the next process adds it before it runs it.

Without an owner nothing can be kept. A batch whose input is another one is then refused where it is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from detent import crash
from detent.codec.ledger import DIGEST_BYTES
from detent.errors import Denied, NotFound
from detent.kv import parse_url
from detent.kv.ownership import read_owner
from detent.ledger import Planned, PlanOffsets
from detent.ledger.operations import PIN_JOURNALS_MAX
from detent.remote import server_address
from detent.runtime import thread
from detent.spark.extents import ReadJournals
from detent.spark.opened import opened
from detent.spark.places import LATEST, OffsetPlaces
from detent.spark.ranges import Offsets, ordered
from detent.store import Store

if TYPE_CHECKING:
    from detent.spark.journal_reading import JournalReadSettings

NUMBERED_MAX: Final = 256
"""Of so many journals a step says which they are: behind a server each one is a request."""

NAME_SHOWN_MAX: Final = 100
_NO_END: Final = OffsetPlaces("endingOffsets", LATEST, LATEST).described
_UNKNOWN: Final = bytes(DIGEST_BYTES)

logger = logging.getLogger("detent.spark")


@dataclass(frozen=True)
class _Sent:
    """A step on its way to the store, and what is asked about it when the store has answered."""

    step: PlanOffsets
    start: Offsets
    known: Offsets
    journals: ReadJournals
    numbers: _JournalNumbers


class StreamPlans:
    """The plan of one stream."""

    def __init__(self, settings: JournalReadSettings) -> None:
        self._settings = settings
        self._is_denied = False
        self._begins: Offsets | None = None
        self._answered: tuple[Offsets, Offsets] | None = None
        self._newest: _Sent | None = None
        self._under_way: tuple[_Sent, Future[Planned]] | None = None
        self._is_alone = True

    def begin(self, start: Offsets) -> None:
        """The stream begins here, where its options say, and has read nothing yet: whatever was planned on earlier
        journals of these names, there is no other journal to go on from."""
        self._begins = start

    def settle(self, journals: ReadJournals, start: Offsets, end: Offsets, limit: str) -> Offsets:
        """How far the batch from `start` goes: as far as it did when it was planned before, or to `end`."""
        self._finish()
        known = self._settled(journals, start, end, limit) if _is_kept(start, end) else end
        self._answered = start, known
        return known

    def before_run(self, start: Offsets, end: Offsets, limit: str) -> None:
        """Return when the plan of a batch is in the store. A batch that Spark's log had when this process began is
        added: the process before may have been killed before its step came to the store."""
        self._finish()
        if self._answered == (start, end) or not _is_kept(start, end):
            return
        self._answered = start, end
        store = self._store()
        if store is None:
            return
        step = self._step(_JournalNumbers(ReadJournals(self._settings)), start, end, limit)
        try:
            planned = store.plan(step)
            if planned.journals not in {_UNKNOWN, step.journals}:  # a step on journals that were deleted since
                store.plan(_anew(step))
        except Denied as error:
            self._deny(error)

    def _settled(self, journals: ReadJournals, start: Offsets, end: Offsets, limit: str) -> Offsets:
        store = self._store()
        if store is None:
            return end
        numbers = _JournalNumbers(journals)
        step = self._step(numbers, start, end, limit)
        sent = _Sent(step, start, ordered({**start, **step.moved}), journals, numbers)
        if self._goes_on(sent):
            assert self._newest is not None
            self._check(numbers, start, self._newest.step.journals)
            self._under_way = sent, self._pool.submit(_plan, store, step)
            return sent.known
        try:
            known, before = self._taken(store, sent, _plan(store, step))
        except Denied as error:
            self._deny(error)
            return end
        if start != self._begins:
            self._check(numbers, start, before)
        return known

    def _goes_on(self, sent: _Sent) -> bool:
        """Whether a step begins where this process's own newest one ends. The store has none from there, unless
        another stream shares the plan, so its answer is known before it comes."""
        if self._newest is None or not self._is_alone:
            return False
        return (self._newest.step.name, self._newest.known) == (sent.step.name, sent.start)

    def _finish(self) -> None:
        """Wait for the step that is under way."""
        if self._under_way is None:
            return
        (sent, answer), self._under_way = self._under_way, None
        try:
            known, _ = self._taken(opened(self._settings.owner_url, "client"), sent, answer.result())
        except Denied as error:
            self._deny(error)
            return
        self._is_alone = known == sent.known  # if not, the batch is kept in Spark's log alone

    def _taken(self, store: Store, sent: _Sent, planned: Planned) -> tuple[Offsets, bytes]:
        """How far the batch goes by the store's answer, and the journals of the step before it."""
        known = ordered({**sent.start, **planned.moved})
        if not planned.new and not _is_possible(known, sent, planned):
            planned, known = store.plan(_anew(sent.step)), sent.known
        self._newest = sent if planned.new else None
        crash.point("spark.plan.after_step")
        return known, planned.before

    def _deny(self, error: Denied) -> None:
        self._is_denied = True
        logger.warning("%s. What this stream plans is not kept in the store", error)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return thread.pool("detent-plans", 1)

    def _step(self, numbers: _JournalNumbers, start: Offsets, end: Offsets, limit: str) -> PlanOffsets:
        return PlanOffsets(
            plan_name(self._settings, limit), digest(start), digest(end), numbers.digest(end), moved_of(start, end)
        )

    def _store(self) -> Store | None:
        """The owner's client; None if there is no owner, or it does not let this stream keep anything."""
        url = self._settings.owner_url
        if self._is_denied:
            return None
        if server_address(url) is None:
            location = parse_url(url)
            if location.scheme != "file" or read_owner(location.directory) is None:
                return None
        return opened(url, "client")

    def _check(self, numbers: _JournalNumbers, start: Offsets, before: bytes) -> None:
        """Refuse to go on in the middle of another journal than the one that was read so far."""
        if not before or before == _UNKNOWN or before == numbers.digest(start):
            return
        what = f"a journal of {', '.join(map(repr, _read(start)))} was deleted and made anew since it was read"
        if self._settings.fail_on_loss:
            raise NotFound(
                f"{what}, so this stream would begin in the middle of another journal. To read the new one from its "
                f"beginning, delete the stream's checkpoint and reset its ledger with `detent ledger reset NAME`"
                f"{self._unpinning()}; to go on at the offset where it was, set the option failOnDataLoss to false"
            )
        logger.warning("%s; going on at the offset where it was (failOnDataLoss is false)", what)

    def _unpinning(self) -> str:
        """How a stream forgets where it began in the old journal, if the store knows that."""
        if self._settings.reader_name is None:
            return ""
        command = ("detent", "ledger", "unpin", self._settings.owner_url, self._settings.reader_name, "--yes")
        return f", and forget its start with `{shlex.join(command)}`"


class _JournalNumbers:
    """The numbers of journals, each looked up once: another journal of the same name has another one."""

    def __init__(self, journals: ReadJournals) -> None:
        self._journals = journals
        self._known: dict[str, int | None] = {}

    def digest(self, offsets: Mapping[str, int]) -> bytes:
        """Which journals these offsets are of. One of which nothing was read may as well be another one."""
        names = _read(offsets)
        if len(names) > NUMBERED_MAX:
            return _UNKNOWN
        for name in names:
            if name not in self._known:
                self._known[name] = self._journals.number(name)
        return digest({name: self._known[name] for name in names})


def plan_name(settings: JournalReadSettings, limit: str) -> str:
    """The name of a stream's plan: its own, and what its planning depends on. One with a name of its own finds its plan
    under another end too: a replay goes as far as the batch did."""
    own = settings.plan_name or settings.reader_name
    stream = own or ",".join(settings.journals)
    what = [stream, settings.journals, settings.raw, settings.rows_max, settings.bytes_max, limit]
    if own is None and settings.end.described != _NO_END:
        what.append(settings.end.described)  # or it would go as far as another stream that ends elsewhere
    return f"{stream.strip()[:NAME_SHOWN_MAX]}#{digest(what).hex()}"


def digest(value: object) -> bytes:
    """A digest of offsets, or of anything else that JSON can say."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=DIGEST_BYTES).digest()


def moved_of(start: Mapping[str, int], end: Mapping[str, int]) -> Offsets:
    """What the end has and the start has not."""
    return {name: offset for name, offset in end.items() if start.get(name) != offset}


def _anew(step: PlanOffsets) -> PlanOffsets:
    return PlanOffsets(step.name, step.start, step.end, step.journals, step.moved, anew=True)


def _read(offsets: Mapping[str, int]) -> list[str]:
    """The journals of which something was read."""
    return [name for name, offset in sorted(offsets.items()) if offset > 0]


def _is_kept(start: Offsets, end: Offsets) -> bool:
    """Whether a step is one that the store keeps."""
    return start != end and len(moved_of(start, end)) <= PIN_JOURNALS_MAX


def _plan(store: Store, step: PlanOffsets) -> Planned:
    crash.point("spark.plan.before_step")
    return store.plan(step)


def _is_possible(known: Offsets, sent: _Sent, planned: Planned) -> bool:
    """Whether a step that was planned before can still be taken: it was on these journals, and they reach so far."""
    ends = sent.journals.ends()
    within = all(sent.start.get(name, 0) <= offset <= ends.get(name, -1) for name, offset in planned.moved.items())
    return within and planned.journals in {_UNKNOWN, sent.numbers.digest(known)}
