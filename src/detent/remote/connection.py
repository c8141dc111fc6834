"""How a process reaches a store: it owns it or talks to the owner; when the owner dies, it takes over or reconnects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal

from detent import crash
from detent.engine import OwnerTime
from detent.errors import Busy, Fenced, Invalid, Unavailable
from detent.journal.producers import Given
from detent.kv import Location, parse_url
from detent.kv.ownership import Owner, OwnerLock, end_owner, is_owned, read_owner
from detent.remote.address import Address, server_addresses
from detent.remote.answers import Disconnected, Elsewhere, Overloaded
from detent.remote.client import WAIT_SLACK_S, RemoteOwner
from detent.remote.leading import LeaderSearch
from detent.remote.owner import LocalOwner
from detent.remote.storelease import StoreClaim
from detent.runtime.backoff import Backoff, Failures

Role = Literal["auto", "client", "reader"]
ROLES: Final = ("auto", "client", "reader")

HUNG_S: Final = 2.0
"""An owner that holds the lock and has not said who it is, or does not answer, for this long counts as hung."""

RETRY: Final = Backoff(0.005, 0.05)

ATTEMPT_S: Final = 2.0
"""How long a request to one of several servers may take at first, before the others are asked whether they own the
store by now. A request that does take longer is sent again under its name, with twice the time."""

FOLLOWED_WAIT_MS: Final = 2_000
FOLLOWED_SLACK_S: Final = 1.0
"""A wait for messages at one of several servers, and how late its answer may be: after that the others are asked. One
server is waited for longer, which costs fewer requests."""

AnyOwner = LocalOwner | RemoteOwner


class Connection:
    """The way to the owner, found anew whenever it is lost."""

    def __init__(
        self,
        url: str,
        role: Role,
        *,
        force: bool = False,
        now_ms: OwnerTime | Callable[[], int] | None = None,
        claim: StoreClaim | None = None,
    ) -> None:
        """`claim` is that of a server, on an object store: it says how long its lease is, and has looked before."""
        if role not in ROLES:
            raise Invalid(f"a role is one of {', '.join(ROLES)}, not {role!r}")
        self.url = url
        self.role = role
        servers = server_addresses(url)
        self.server = servers[0] if servers else None
        if self.server is not None and force:
            raise Invalid(f"force ends an owner on this machine; end the one behind {url} where it runs")
        self._location = parse_url(url) if self.server is None else Location("server", self.server.url, "")
        self._search: LeaderSearch | None = None
        if servers or self._location.is_object_store:
            self._search = LeaderSearch(url, servers, claim)
        self._force = force
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._closed = False
        self.current: AnyOwner | None = None
        self.address: Address | None = None

    @property
    def is_followed(self) -> bool:
        """Whether another server may own the store next, so that no call waits for one alone until its time is over."""
        return self._search is not None and self._search.is_followed

    @property
    def is_remote(self) -> bool:
        """Whether everything goes through the owner: there are no files that this process could read."""
        is_far = self.current is not None and isinstance(self.current, RemoteOwner)
        return self.server is not None or (is_far and self._location.is_object_store)

    @property
    def slack_s(self) -> float:
        """How late the answer to a wait may be."""
        return FOLLOWED_SLACK_S if self.is_followed else WAIT_SLACK_S

    def wait_ms(self, timeout_ms: int) -> int:
        """How long to wait at the owner at a time."""
        return min(timeout_ms, FOLLOWED_WAIT_MS) if self.is_followed else timeout_ms

    def attempt_s(self, left_s: float, tries: int) -> float:
        """How long one try of a call may take, after so many others."""
        return min(left_s, ATTEMPT_S * 2**tries) if self.is_followed else left_s

    @property
    def at_hand(self) -> AnyOwner | None:
        """The owner that was found, for those who may write."""
        return None if self.role == "reader" else self.current

    def owner(self, deadline: float) -> AnyOwner:
        """The owner: this process itself, or a connection to another."""
        if self.role == "reader":
            raise Invalid("this store was opened as a reader; open it without role='reader' to write or to use queues")
        return self.reach(deadline)

    def reach(self, deadline: float) -> AnyOwner:
        """The owner, also for those who only read: behind a server there is no other way to."""
        current = self.current
        if current is not None:
            return current
        with self._lock:
            if self._closed:
                raise Unavailable("this store was closed")
            if self.current is None:
                self.current = self._find(deadline)
            return self.current

    def new_producer(self, deadline: float) -> Given:
        """A producer for one publisher. One that was given to a request whose answer was lost is never used."""
        while True:
            owner = self.owner(deadline)
            try:
                return owner.new_producer()
            except Overloaded as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Busy(f"{error}; nothing was changed") from error
                time.sleep(min(error.retry_s, left))
            except Disconnected as error:
                self.lost(owner, error)
                if time.monotonic() >= deadline:
                    raise Unavailable(f"{error}; nothing was changed") from error

    def lost(self, owner: AnyOwner, error: Disconnected | None = None) -> None:
        """Forget an owner that does not answer, or that says which server owns the store instead."""
        with self._lock:
            if self._search is not None and isinstance(owner, RemoteOwner):
                self._search.lost(owner.address)
                if isinstance(error, Elsewhere):
                    self._search.hear(error.leader)
            if self.current is owner and isinstance(owner, RemoteOwner):
                self.current = None
                owner.retire()

    def close(self) -> None:
        """Let the owner go; if that is this process, stop owning."""
        with self._lock:
            self._closed = True
            current, self.current = self.current, None
        if current is not None:
            current.close()

    # -- finding the owner --------------------------------------------------------------------------------------

    def _find(self, deadline: float) -> AnyOwner:
        if self._search is not None:
            return self._find_far(self._search, deadline)
        if self._location.scheme == "memory":
            if self.role == "client":
                raise Invalid(f"{self.url} has no owner process to be a client of; open it without role='client'")
            return LocalOwner(self.url, now_ms=self._now_ms)
        tries = Failures(RETRY)
        hung: Owner | None = None
        hung_since = 0.0
        while True:
            found = self._own() or self._connect(deadline)
            if found is not None:
                self._force = False  # it was meant for the owner that was in the way now, not for later ones
                return found
            now = time.monotonic()
            known = read_owner(self._location.directory)
            if known != hung:
                hung, hung_since = known, now
            elif self._force and hung is not None and now - hung_since >= HUNG_S:
                self._force = False  # one blow, for this one
                end_owner(self._location.directory, hung)
                continue
            if now >= deadline:
                raise self._unowned()
            time.sleep(min(tries.failed(), max(0.0, deadline - now)))

    def _own(self) -> LocalOwner | None:
        if self.role != "auto":
            return None
        directory = self._location.directory
        lock = OwnerLock(directory)
        if not lock.try_acquire():
            return None
        crash.point("owner.after_lock")
        try:
            owner = LocalOwner(self.url, directory=directory, lock=lock, now_ms=self._now_ms)
        except Fenced:
            # A process without the lock raised the epoch at this very moment: let it, and look again.
            lock.release()
            return None
        except BaseException:
            lock.release()
            raise
        self.address = None
        return owner

    def _connect(self, deadline: float) -> RemoteOwner | None:
        known = read_owner(self._location.directory)
        if known is None:
            return None
        address = Address(known.socket)
        probe = RemoteOwner(address)
        try:
            probe.status(min(HUNG_S, deadline - time.monotonic()))
        except Disconnected:
            return None
        finally:
            probe.close()
        self.address = address
        return RemoteOwner(address)

    def _find_far(self, search: LeaderSearch, deadline: float) -> AnyOwner:
        """The owner behind a server, or of a store on an object store, which this process may become. One that has
        been a client stays one: others stand by."""
        may_own = self.server is None and self.role == "auto" and self.address is None
        found = search.find(deadline, may_own=may_own, force=self._force)
        self._force = False
        if isinstance(found, Address):
            self.address = found
            return RemoteOwner(found, self.slack_s)
        try:
            found.require_held()
            return LocalOwner(
                self.url, now_ms=self._now_ms, patience_s=max(0.0, deadline - time.monotonic()), lease=found
            )
        except BaseException:
            found.release()
            raise

    def _unowned(self) -> Unavailable:
        known = read_owner(self._location.directory)
        if known is None and is_owned(self._location.directory):
            return Unavailable(f"a process owns {self.url} and has not said yet how to reach it: try again")
        if known is None:
            return Unavailable(f"no process owns {self.url}: start an owner, or open it without role='client'")
        return Unavailable(
            f"process {known.pid} owns {self.url} and does not answer; if it is stuck, open with force=True (--force) "
            "to end it and take over"
        )
