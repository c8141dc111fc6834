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
from detent.remote.address import Address, server_address
from detent.remote.answers import Disconnected, Overloaded
from detent.remote.client import RemoteOwner
from detent.remote.owner import LocalOwner
from detent.runtime.backoff import Backoff, Failures

Role = Literal["auto", "client", "reader"]
ROLES: Final = ("auto", "client", "reader")

HUNG_S: Final = 2.0
"""An owner that holds the lock and has not said who it is, or does not answer, for this long counts as hung."""

RETRY: Final = Backoff(0.005, 0.05)

SERVER_RETRY: Final = Backoff(0.005, 0.5)
"""A server that does not answer is asked less often: it may be far away, and others ask too."""

AnyOwner = LocalOwner | RemoteOwner


class Connection:
    """The way to the owner, found anew whenever it is lost."""

    def __init__(
        self, url: str, role: Role, *, force: bool = False, now_ms: OwnerTime | Callable[[], int] | None = None
    ) -> None:
        if role not in ROLES:
            raise Invalid(f"a role is one of {', '.join(ROLES)}, not {role!r}")
        self.url = url
        self.role = role
        self.server = server_address(url)
        if self.server is not None and force:
            raise Invalid(f"force ends an owner on this machine; end the one behind {url} where it runs")
        self._location = parse_url(url) if self.server is None else Location("server", self.server.url, "")
        self._force = force
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._closed = False
        self.current: AnyOwner | None = None
        self.address: Address | None = None

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
                self.lost(owner)
                if time.monotonic() >= deadline:
                    raise Unavailable(f"{error}; nothing was changed") from error

    def lost(self, owner: AnyOwner) -> None:
        """Forget an owner that does not answer."""
        with self._lock:
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
        if self.server is not None:
            return self._find_server(self.server, deadline)
        if self._location.scheme != "file":
            if self.role == "client":
                raise Invalid(f"{self.url} has no owner process to be a client of; open it without role='client'")
            return LocalOwner(self.url, now_ms=self._now_ms, patience_s=deadline - time.monotonic())
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

    def _find_server(self, address: Address, deadline: float) -> RemoteOwner:
        tries = Failures(SERVER_RETRY)
        while True:
            owner = RemoteOwner(address)
            try:
                owner.status(deadline - time.monotonic())
                self.address = address
                return owner
            except BaseException as error:
                owner.close()
                if not isinstance(error, Disconnected):
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Unavailable(
                        f"no Detent server answers at {self.url} ({error}): start it, or correct the address"
                    ) from error
                pause_s = tries.failed()
                time.sleep(min(error.retry_s if isinstance(error, Overloaded) else pause_s, left))

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
