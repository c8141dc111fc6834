"""The lease of a store on an object store: one small object beside it, which is replaced by conditional put.

    lease = LeaseObject.of("s3://BUCKET/PREFIX")
    found = lease.read()                       # what it says, and its version; None in a new store
    version = lease.write(note, found)         # `Overtaken` if it is not the version that was found

It says which process owns the store and where that one answers. It is a courtesy between processes, which keeps them
from taking a store from each other by mistake; what keeps two of them from writing is SlateDB's writer epoch alone.
"""

from __future__ import annotations

import os
import secrets
import socket
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import msgspec

from detent.errors import Corrupt, DetentError, NotFound, Unavailable
from detent.kv.loghead import boot_id
from detent.kv.objectstore import object_location, open_bucket, translated
from detent.kv.ownership import is_same_process, process_born, process_space

LEASE_PATH: Final = "owner.json"
"""Where the object is, below the store's prefix."""

NOTE_BYTES_MAX: Final = 16 << 10
"""A note has a few hundred bytes; what is longer was not written by an owner."""

VERSION: Final = 1

_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
State = Literal["opening", "serving", "stopping", "released"]


class Overtaken(DetentError):
    """Another process has replaced the object since it was read."""


class LeaseNote(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What the object says. Its bytes change with every renewal, or its version would stay the same."""

    holder: _Text
    """A random name of this holding; a process that takes the store again has another one."""

    term: _Number
    """Rises with every holder."""

    counter: _Number
    """Rises with every renewal."""

    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
    """How long it has to stay unchanged until another process may take it."""

    state: State
    addresses: Annotated[list[_Text], msgspec.Meta(max_length=16)] = []
    """Where the holder answers: URLs of a server, or a socket (`unix:/PATH`) for processes of its machine."""

    host: _Text = ""
    boot: _Text = ""
    pid: _Number = 0
    born: _Text = ""
    space: _Text = ""
    version: _Number = VERSION

    @classmethod
    def of_this_process(cls, term: int, lease_ms: int) -> Self:
        """The first note of a new holding."""
        return cls(
            holder=secrets.token_hex(16),
            term=term,
            counter=0,
            lease_ms=lease_ms,
            state="opening",
            host=socket.gethostname(),
            boot=boot_id().hex(),
            pid=os.getpid(),
            born=process_born(os.getpid()),
            space=process_space(),
        )

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its process number means something here: since this start of the machine, in this PID namespace."""
        return any(boot_id()) and self.boot == boot_id().hex() and self.space == process_space()

    @property
    def has_died(self) -> bool:
        """Whether its process is known to be gone. Of another user's nothing may be known, where /proc hides them."""
        if not self.is_of_this_machine or is_same_process(self.pid, self.born):
            return False
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return False
        except (ProcessLookupError, OverflowError):
            return True
        return True  # a later process has its number

    @property
    def who(self) -> str:
        """The holder, for errors and logs."""
        where = f" at {', '.join(self.addresses)}" if self.addresses else ""
        return f"process {self.pid} on {self.host or 'an unnamed host'}{where}"

    def encode(self) -> bytes:
        """The object's bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From the object's bytes; `Corrupt` if no owner has written them, or one of a later release."""
        try:
            note = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(
                f"the object {LEASE_PATH!r} below the store's prefix says not who owns the store ({error}): see that "
                "no process does, and remove it"
            ) from error
        if note.version != VERSION:
            raise Corrupt(f"{LEASE_PATH} has version {note.version}, and this release knows {VERSION}: upgrade Detent")
        return note


class Found(NamedTuple):
    """The object as it was read or written."""

    note: LeaseNote
    version: dict[str, str]


class LeaseObject:
    """The object, in a bucket that is rooted at the store's prefix."""

    def __init__(self, bucket: Any, url: str = "the store", path: str = LEASE_PATH) -> None:
        self._bucket = bucket
        self._url = url
        self._path = path

    @classmethod
    def of(cls, url: str, answer_s: float) -> Self:
        """That of a store. A request that is not answered in time has failed: whether it is tried again is for those
        to decide who know how much of the lease is left."""
        return cls(open_bucket(object_location(url), once_within=timedelta(seconds=answer_s)), url)

    def read(self) -> Found | None:
        """What it says now. None if there is none."""
        import obstore

        try:
            got = translated(self._path, lambda: obstore.get(self._bucket, self._path, options={"range": _RANGE}))
        except NotFound:
            return None
        data = bytes(translated(self._path, got.bytes))
        meta: Any = got.meta
        return Found(LeaseNote.decode(data), _version(meta))

    def write(self, note: LeaseNote, replaced: Found | None) -> Found:
        """Replace what was found, or create it where nothing was; `Overtaken` if another write came first."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError

        mode: Any = "create" if replaced is None else replaced.version

        def put() -> Any:
            try:
                return obstore.put(self._bucket, self._path, note.encode(), mode=mode, use_multipart=False)
            except (AlreadyExistsError, FileExistsError, PreconditionError) as error:
                raise Overtaken(f"{self._path} was replaced by another process") from error
            except (PermissionDeniedError, PermissionError) as error:
                raise Unavailable(
                    f"{self._url} cannot be written: the object store refused to write the object {self._path!r} below "
                    "the store's prefix; give the credentials in the environment the right to put objects there"
                ) from error

        result: Any = translated(self._path, put)
        return Found(note, _version(result))


def _version(given: Any) -> dict[str, str]:
    """What names a version of the object; object stores give one of these, or both."""
    return {name: given[name] for name in ("e_tag", "version") if given.get(name)}


_RANGE: Final = (0, NOTE_BYTES_MAX)
