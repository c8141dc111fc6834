"""Who owns a store on an object store: a process claims it, holds its lease, and gives it back.

    claim = StoreClaim("s3://BUCKET/PREFIX", lease_s=15.0)
    if claim.look().is_free:
        lease = claim.take()               # None: another process was faster
        ...                                # open the store: that fences the writer before
        lease.announce(["http://a:7410"])
        ...
        lease.release()

**Taken** when it is absent or released, when its process is known to be gone, or when it has not changed for its own
length by the clock of the process that looks. Times that others have written are never believed, so clocks may jump;
they only have to run at about the same speed. **Renewed** by conditional put when two fifths of it are over. A holder
that has not renewed it for two thirds of its length stops answering, because another process may take it a third
later; one whose put finds another holder has lost it. All of this is about who answers: two processes that both take
themselves for the owner are told apart by SlateDB's writer epoch, at every commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from detent import crash
from detent.engine.ownertime import steady_s
from detent.errors import DetentError, Fenced, NotOwner, Unavailable
from detent.kv.leaseobject import Found, LeaseNote, LeaseObject, Overtaken, State
from detent.runtime.lease import KeepLeases, Lease, Leases
from detent.runtime.supervisor import Supervised

LEASE_S: Final = 15.0
"""The lease of a process that owns a store for itself: a renewal each six seconds costs 0.07 $ a day on S3."""

STANDBY_LEASE_S: Final = 2.5
"""The lease of a server that others stand by for: the next one serves within twice of it. A renewal a second costs
0.43 $ a day on S3."""

LEASE_S_MIN, LEASE_S_MAX = 0.5, 3600.0
"""Shorter ones end with an object store that takes a moment longer; longer ones keep a store closed for hours."""

RENEW_SHARE: Final = 2.5
"""Renewed when so much of it (1 / 2.5) is over: a second try fits in before the holder has to stop answering."""

ANSWER_SHARE: Final = 3
"""A request to the lease has failed after such a part of it."""

LATE_SHARE: Final = 2 / 3
"""Not renewed for such a part of it, its holder stops answering."""

LOOKS: Final = 4
"""A process that waits for the store looks so often within a lease."""

logger = logging.getLogger("detent.lease")


class Sight(NamedTuple):
    """What a look at the lease has shown."""

    note: LeaseNote | None
    """None: there is no lease yet."""

    is_free: bool
    silent_s: float
    """How long it has not changed, as far as this process has seen."""

    changes: int
    """How often this process has seen it change."""

    @property
    def is_alive(self) -> bool:
        """Whether its holder has shown that it lives."""
        return self.changes > 0 and not self.is_free


class StoreClaim:
    """A process that wants to own a store, or to know which one does."""

    def __init__(
        self,
        url: str,
        lease_s: float | None = None,
        *,
        serves: bool = False,
        clock: Callable[[], float] = steady_s,
        lease_object: LeaseObject | None = None,
    ) -> None:
        self.url = url
        self.lease_s = lease_s or LEASE_S
        self.serves = serves
        """Whether a server says itself where this process answers; otherwise its owner opens a socket."""
        self.clock = clock
        self._object = lease_object or LeaseObject.of(url, self.lease_s / ANSWER_SHARE)
        self._seen: Found | None = None
        self._since_s = 0.0
        self._changes = 0
        self._gone = ""

    def give_up_on(self, holder: str) -> None:
        """This holder has been seen to be gone: its lease need not run out."""
        self._gone = holder

    @property
    def look_s(self) -> float:
        """How long to wait between two looks at a lease that another process holds."""
        note = None if self._seen is None else self._seen.note
        return (self.lease_s if note is None else note.lease_ms / 1000) / LOOKS

    def look(self) -> Sight:
        """Read the lease, and judge it by whether it has changed."""
        asked_s = self.clock()
        found = self._object.read()
        if found is None:
            self._seen = None
            return Sight(None, True, 0.0, 0)
        if self._seen is None or self._seen.version != found.version:
            same_holder = self._seen is not None and self._seen.note.holder == found.note.holder
            self._changes = self._changes + 1 if same_holder else 0
            self._seen, self._since_s = found, self.clock()
        note, silent_s = found.note, max(0.0, asked_s - self._since_s)
        is_over = note.state == "released" or silent_s >= note.lease_ms / 1000
        is_free = is_over or note.has_died or note.holder == self._gone
        return Sight(note, is_free, silent_s, self._changes)

    def take(self) -> HeldLease | None:
        """Take the lease that the last look has found. None if another process has done so since."""
        before = self._seen
        note = LeaseNote.of_this_process(1 if before is None else before.note.term + 1, int(self.lease_s * 1000))
        crash.point("lease.before_take")
        asked_s = self.clock()
        try:
            mine = self._object.write(note, before)
        except Overtaken:
            now = self._object.read()
            if now is None or now.note.holder != note.holder:
                return None
            mine = now  # the answer to our own was lost, and the library asked again
        except Unavailable:
            now = self._object.read()
            if now is None or now.note.holder != note.holder:
                raise
            mine = now
        crash.point("lease.after_take")
        if before is not None and before.note.state != "released":
            logger.warning("taking over %s from %s (term %d)", self.url, before.note.who, note.term)
        return HeldLease(self, self._object, mine, asked_s)


class HeldLease:
    """The lease, held by this process and renewed until it is released or lost. For any thread."""

    def __init__(self, claim: StoreClaim, lease_object: LeaseObject, mine: Found, asked_s: float) -> None:
        self.claim = claim
        self.url = claim.url
        self._object = lease_object
        self._mine: Found | None = mine
        self._note = mine.note
        self._clock = claim.clock
        self._length_s = claim.lease_s
        self._renewed_s = asked_s
        self._lock = threading.Lock()
        self._is_over = False
        self._loss: Fenced | None = None
        self.taken_by: LeaseNote | None = None
        """Which process has it now, if it was lost to one."""
        self.on_lost: Callable[[Fenced], None] = lambda _: None
        leases: Leases[HeldLease] = Leases(share=RENEW_SHARE, clock=self._clock)
        leases.take(self._note.holder, self, self._length_s, asked_s)
        self._leases = leases
        self._keeper = Supervised(KeepLeases("detent-lease", leases, self._extend)).start()

    @property
    def term(self) -> int:
        """Rises with every holder."""
        return self._note.term

    @property
    def loss(self) -> Fenced | None:
        """Set once another process has the lease."""
        return self._loss

    @property
    def is_late(self) -> bool:
        """Whether it could not be renewed for so long that another process may take it soon."""
        return self._clock() - self._renewed_s > self._length_s * LATE_SHARE

    def refusal(self) -> NotOwner | None:
        """Why this process may not answer now, if it may not."""
        if self._loss is not None:
            return NotOwner(str(self._loss), _leader(self.taken_by))
        if self.is_late:
            silent_s = self._clock() - self._renewed_s
            return NotOwner(
                f"the lease on {self.url} could not be renewed for {silent_s:.1f} s: the object store is slow, or out "
                "of this server's reach"
            )
        return None

    def require_held(self) -> None:
        """`Fenced` if it was lost, `Unavailable` if it may have been: look before the writer before is fenced."""
        if self._loss is not None:
            raise Fenced(str(self._loss))
        if self.is_late:
            raise Unavailable(f"the lease on {self.url} ran out while the store was opened: try again")

    # -- changing it --------------------------------------------------------------------------------------------------

    def announce(self, addresses: Sequence[str]) -> None:
        """Say where the owner answers, now that it does. A put that fails is no reason to stop: the next renewal says
        the same."""
        crash.point("lease.before_announce")
        try:
            self._replace(state="serving", addresses=list(addresses))
        except Unavailable as error:
            logger.warning("%s could not be told yet where its owner answers: %s", self.url, error)
        crash.point("lease.after_announce")

    def stopping(self) -> None:
        """Say that the owner stops by itself: others wait for the release, however silent its port is."""
        try:
            self._replace(state="stopping")
        except DetentError as error:
            logger.warning("%s could not be told that its owner stops: %s", self.url, error)

    def release(self) -> None:
        """Give it back, so that the next process need not wait. Once; a lease that was lost stays as it is."""
        self._keeper.stop()
        if self._is_over or self.taken_by is not None:
            return
        self._is_over = True
        crash.point("lease.before_release")
        try:
            self._replace(state="released", addresses=[])
        except DetentError as error:
            logger.warning("the lease on %s could not be released, and runs out by itself: %s", self.url, error)
        crash.point("lease.after_release")

    def _extend(self, due: Sequence[Lease[Any]]) -> None:
        """Renew it: its keeper asks."""
        asked_s = self._clock()
        crash.point("lease.before_renew")
        self._replace()
        crash.point("lease.after_renew")
        if self._loss is None:
            for lease in due:
                self._leases.renewed(lease, asked_s=asked_s)

    def _replace(self, state: State | None = None, addresses: list[str] | None = None) -> None:
        """Write the note anew. A put that was refused is looked into: an answer that was lost is not a loss."""
        with self._lock:
            if self.taken_by is not None:
                return
            asked_s = self._clock()
            self._note = msgspec.structs.replace(
                self._note,
                counter=self._note.counter + 1,  # also for a try that fails: it may arrive after the next one
                state=state or self._note.state,
                addresses=self._note.addresses if addresses is None else addresses,
            )
            if self._written() or self._written():
                self._renewed_s = asked_s
            elif self.taken_by is None:
                raise Unavailable("the object store refused a put of the lease, which is still ours")

    def _written(self) -> bool:
        """Whether the note is written now. One that was refused is looked for: it may be there, or an earlier one of
        ours whose answer was lost, or another process's."""
        if self.taken_by is not None:
            return False
        try:
            self._mine = self._object.write(self._note, self._mine)
        except Overtaken:
            now = self._object.read()
            if now is not None and now.note.holder != self._note.holder:
                self._lose(now.note)
                return False
            self._mine = now
            return now is not None and now.note.counter == self._note.counter
        return True

    def _lose(self, now: LeaseNote) -> None:
        self.taken_by = now
        self._end(Fenced(f"{now.who} has taken over {self.url} (term {now.term}, this process had {self._note.term})"))

    def lose(self, error: Fenced) -> Fenced:
        """Another process writes the store, whatever the lease says: look which one. What callers are told."""
        if self._loss is not None:
            return self._loss
        try:
            now = self._object.read()
        except DetentError as trouble:
            logger.warning("the lease on %s cannot be read: %s", self.url, trouble)
            now = None
        if now is not None and now.note.holder != self._note.holder:
            self._lose(now.note)
        return self._end(error)

    def _end(self, error: Fenced) -> Fenced:
        if self._loss is None:
            self._loss = error
            self._leases.give_back(self._note.holder)
            logger.warning("%s", error)
            self.on_lost(error)
        return self._loss


def _leader(note: LeaseNote | None) -> str:
    """Where a server answers that holds the lease; empty if none is known."""
    if note is None or note.state != "serving":
        return ""
    return next((address for address in note.addresses if address.startswith(("http://", "https://"))), "")


def leader_of(sight: Sight) -> str:
    """Where the server answers that holds the lease; empty if none is known, or if it looks dead."""
    return "" if sight.is_free else _leader(sight.note)
