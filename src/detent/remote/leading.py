"""Which process owns a store that several servers can serve: found by asking them, or by the lease beside the store."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from detent.errors import Unavailable
from detent.kv.leaseobject import LeaseNote
from detent.kv.ownership import remove_dead_socket
from detent.remote.address import SOCKET, Address, server_address
from detent.remote.answers import Disconnected, Elsewhere, Overloaded
from detent.remote.client import RemoteOwner
from detent.remote.storelease import HeldLease, Sight, StoreClaim
from detent.runtime.backoff import Backoff, Failures

SERVER_RETRY: Final = Backoff(0.005, 0.5)
"""A server that does not answer is asked less often: it may be far away, and others ask too."""

PROBE_S: Final = 0.5
PROBE_LONG_S: Final = 4.0
"""How long one of several servers may take to say whether it owns the store. One that hangs must not keep a client
from the next owner; one that is only slow is found when a client has looked in vain for so long."""

FOLLOW_RETRY: Final = Backoff(0.005, 0.25)
"""How often they are asked in turn while none of them owns the store: that takes seconds."""

HOLDER_S: Final = 2.0
"""How long the holder of a lease may take to answer a process that opens the store."""

LEASE_RETRY: Final = Backoff(0.1, 1.0, jitter=0.5)
LEASE_TRIES: Final = 4
"""So often is a lease looked for that the object store does not show."""

STANDBY_GRACE: Final = 2.0
"""A silent server is left to those that stand by for it, for so many times its lease: a program that opens the store
takes it over only after that."""

logger = logging.getLogger("detent.remote")


class LeaderSearch:
    """Finds the owner among the servers of a URL; or, of a store on an object store, the one that its lease names.
    Used by one thread at a time."""

    def __init__(self, url: str, servers: Sequence[Address], claim: StoreClaim | None = None) -> None:
        self.url = url
        self._servers = list(servers)
        self._claim = claim
        self._told: Address | None = None
        """What a server that does not own the store has said about which one does."""
        self._lost: Address | None = None
        """The owner that did not answer any more: it is asked last, whatever others say."""

    @property
    def is_followed(self) -> bool:
        """Whether another server may own the store next."""
        return len(self._servers) != 1

    def lost(self, address: Address) -> None:
        """This one does not answer any more: the others are asked first."""
        self._lost = address
        self._servers.sort(key=lambda one: one == address)

    def hear(self, leader: str) -> None:
        """A server has said which one owns the store. Never from an encrypted line to one that is not: the token
        follows."""
        told = server_address(leader) if leader else None
        is_safe = told is not None and (
            told.url.startswith("https:") or not any(one.url.startswith("https:") for one in self._servers)
        )
        self._told = told if is_safe and self._servers else None

    def find(self, deadline: float, *, may_own: bool, force: bool) -> Address | HeldLease:
        """Where the owner answers; or the store's lease, if this process may own it and no other one does."""
        if self._servers:
            return self._find_server(deadline)
        return self._find_owner(self._claim or StoreClaim(self.url), deadline, may_own=may_own, force=force)

    # -- among servers ------------------------------------------------------------------------------------------------

    def _find_server(self, deadline: float) -> Address:
        tries = Failures(FOLLOW_RETRY if self.is_followed else SERVER_RETRY)
        began = time.monotonic()
        while True:
            now = time.monotonic()
            probe_s = deadline - now
            if self.is_followed:
                probe_s = min(PROBE_S if now - began < PROBE_LONG_S else PROBE_LONG_S, probe_s)
            found, errors = self._ask_all(probe_s)
            if found is not None:
                return found
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._unanswered(errors) from next(iter(errors.values()))
            pause_s = tries.failed()
            if not self.is_followed and isinstance(busy := next(iter(errors.values())), Overloaded):
                pause_s = busy.retry_s
            time.sleep(min(pause_s, left_s))

    def _ask_all(self, probe_s: float) -> tuple[Address | None, dict[Address, Disconnected]]:
        """Ask each server once, and first those that another one has named, until one says that it owns the store."""
        errors: dict[Address, Disconnected] = {}
        left = deque(self._servers)
        while left or self._told is not None:
            if self._told is not None and (self._told != self._lost or not left):
                address, self._told = self._told, None
            else:
                address = left.popleft()
            if address in errors:
                continue
            owner = RemoteOwner(address)
            try:
                owner.status(probe_s)
            except Disconnected as error:
                errors[address] = error
                if isinstance(error, Elsewhere):
                    self.hear(error.leader)
            else:
                self._lost = None
                return address, errors
            finally:
                owner.close()
        return None, errors

    def _unanswered(self, errors: dict[Address, Disconnected]) -> Unavailable:
        if not self.is_followed:
            error = next(iter(errors.values()))
            return Unavailable(f"no Detent server answers at {self.url} ({error}): start it, or correct the address")
        why = "; ".join(f"{address.url}: {error}" for address, error in errors.items())
        return Unavailable(f"none of the servers {self.url} owns the store ({why}): see whether one is well")

    # -- by the lease -------------------------------------------------------------------------------------------------

    def _find_owner(self, claim: StoreClaim, deadline: float, *, may_own: bool, force: bool) -> Address | HeldLease:
        tries = Failures(LEASE_RETRY)
        while True:
            try:
                sight = claim.look()
            except Unavailable:
                pause_s = tries.failed()
                if tries.in_a_row > LEASE_TRIES or time.monotonic() + pause_s >= deadline:
                    raise
                time.sleep(pause_s)
                continue
            if may_own and (force or (sight.is_free if claim.serves else _is_to_be_taken(sight))):
                taken = claim.take()
                if taken is not None:
                    _clear_after(sight.note)
                    return taken
                continue
            found = None if sight.note is None or sight.is_free else self._answering(sight.note, deadline)
            if found is not None:
                return found
            left_s = deadline - time.monotonic()
            if left_s <= 0 or _answers_no_process_here(sight):
                raise self._unowned(sight, may_own=may_own)
            time.sleep(min(claim.look_s, left_s))

    def _answering(self, note: LeaseNote, deadline: float) -> Address | None:
        """Where the holder answers this process."""
        for address in _addresses(note):
            owner = RemoteOwner(address)
            try:
                owner.status(min(HOLDER_S, deadline - time.monotonic()))
            except Disconnected as error:
                logger.info("the owner of %s does not answer at %s: %s", self.url, address.url, error)
            else:
                return address
            finally:
                owner.close()
        return None

    def _unowned(self, sight: Sight, *, may_own: bool) -> Unavailable:
        note = sight.note
        if note is None or sight.is_free:
            return Unavailable(f"no process owns {self.url}: start an owner, or open it without role='client'")
        if not _addresses(note):
            return Unavailable(
                f"{note.who} owns {self.url}, and answers no process of another machine: stop it, have `detent serve "
                f"{self.url}` own the store, or take it with force=True (--force)"
            )
        hint = "; force=True (--force) takes it at once" if may_own else ""
        return Unavailable(
            f"{note.who} owns {self.url} and does not answer (its lease has not changed for {sight.silent_s:.1f} s): "
            f"try again{hint}"
        )


@contextmanager
def held_alone(url: str, patience_s: float) -> Iterator[None]:
    """Hold a store on an object store while it is changed as a whole, without an owner. `Unavailable` if one lives."""
    found = LeaderSearch(url, []).find(time.monotonic() + patience_s, may_own=True, force=False)
    if isinstance(found, Address):
        raise Unavailable(f"a process owns {url} and answers at {found.store_url}: stop it first")
    try:
        yield
    finally:
        found.release()


def _is_to_be_taken(sight: Sight) -> bool:
    """Whether a program that opens the store takes it. That of a server is left to its standbys for a while."""
    note = sight.note
    if not sight.is_free or note is None or note.state == "released" or note.has_died:
        return sight.is_free
    is_server = any(not address.startswith(SOCKET) for address in note.addresses)
    return not is_server or sight.silent_s >= STANDBY_GRACE * note.lease_ms / 1000


def _answers_no_process_here(sight: Sight) -> bool:
    """Whether the holder lives, and answers only processes of its own machine."""
    note = sight.note
    return note is not None and note.state == "serving" and sight.is_alive and not _addresses(note)


def _addresses(note: LeaseNote | None) -> list[Address]:
    """Where a holder answers this process: servers, and sockets of this machine."""
    if note is None or note.state not in {"serving", "stopping"}:
        return []
    usable = [one for one in note.addresses if not one.startswith(SOCKET) or note.is_of_this_machine]
    return [address for one in usable if (address := server_address(one)) is not None]


def _clear_after(note: LeaseNote | None) -> None:
    """Remove the socket of an owner on this machine that was killed."""
    if note is not None and note.is_of_this_machine:
        for address in note.addresses:
            if address.startswith(SOCKET):
                remove_dead_socket(Path(address.removeprefix(SOCKET)))
