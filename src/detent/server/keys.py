"""Keys: who may use a server, and for what. They live in a file that only its owner may read.

A key has an id and a secret. Detent's own clients and the HTTP API send both as a bearer token, ``ID.SECRET``; SQS
clients use the id as access key and the secret as secret key, and sign with it, so the server must know the secret
itself and not only a digest of it. Hence the file: it is as secret as what is in it, and is refused when others may
read it.
"""

from __future__ import annotations

import base64
import fcntl
import hmac
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from detent.errors import Denied, Exists, Invalid, LimitExceeded, NotFound, Unavailable
from detent.server.access import EVERYTHING, KINDS, RIGHTS, Caller, Grant

FILE_VARIABLE: Final = "DETENT_KEYS_FILE"
KEYS_VARIABLE: Final = "DETENT_KEYS"
"""Either names the file, or is its content: for places where secrets come as environment variables."""

FILE_BYTES_MAX: Final = 16 << 20
KEYS_MAX: Final = 10_000
GRANTS_MAX: Final = 100
NAME_BYTES_MAX: Final = 255
PATTERN_BYTES_MAX: Final = 1024

LOOK_S: Final = 1.0
"""How often a server looks whether its file has changed: a revoked key is refused within this time."""

LOCK_WAIT_S: Final = 30.0
LOCK_LOOK_S: Final = 0.01
"""How long a change waits for other changes of the same file, and how often it looks."""

ROOT: Final = 0

ID_PREFIX: Final = "DT"
SECRET_BYTES: Final = 30
"""240 bits, 40 characters: as long as the secrets that SQS clients are used to."""

_NOBODYS_SECRET: Final = secrets.token_urlsafe(SECRET_BYTES)
"""Compared with when the id is unknown, so that an unknown id takes as long to refuse as a wrong secret."""


class Unauthenticated(Denied):
    """There are no credentials, or they are wrong."""


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key. Grants are texts such as ``publish:queue:orders*``: a right, a kind, a pattern of names."""

    id: str
    secret: str
    name: str
    grants: tuple[str, ...]
    created: datetime
    expires: datetime | None = None

    def caller(self) -> Caller:
        """Who comes with this key."""
        return Caller(self.name, tuple(map(parse_grant, self.grants)), self.id)

    def has_expired(self, now: datetime) -> bool:
        """Whether it counts no more."""
        return self.expires is not None and self.expires <= now


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key]


def parse_grant(text: str) -> Grant:
    """A grant from its text; `Invalid` says what one looks like."""
    right, _, rest = text.partition(":")
    kind, _, pattern = rest.partition(":")
    if right not in RIGHTS or kind not in {*KINDS, EVERYTHING} or not pattern:
        raise Invalid(
            f"{text!r} is not a grant: write RIGHT:KIND:PATTERN, where RIGHT is one of {', '.join(RIGHTS)}, KIND is "
            "queue, journal, ledger, consumer, schedule, metrics or *, and PATTERN a name, with * and ? as in a shell; "
            "for example consume:queue:orders* or read:*:*"
        )
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise LimitExceeded(f"a pattern has at most {PATTERN_BYTES_MAX} bytes")
    return Grant(right, kind, pattern)


def new_key(name: str, grants: Iterable[str], *, now: datetime, expires: datetime | None = None) -> Key:
    """A new key with a random id and secret."""
    listed = tuple(grants)
    if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise Invalid(f"a key's name has 1 to {NAME_BYTES_MAX} bytes of text")
    if not 1 <= len(listed) <= GRANTS_MAX:
        raise Invalid(f"a key has 1 to {GRANTS_MAX} grants, not {len(listed)}")
    for grant in listed:
        parse_grant(grant)
    if expires is not None and expires <= now:
        raise Invalid("this key would have expired already")
    identity = ID_PREFIX + base64.b32encode(secrets.token_bytes(15)).decode()[:18]
    return Key(
        id=identity,
        secret=secrets.token_urlsafe(SECRET_BYTES),
        name=name,
        grants=listed,
        created=now,
        expires=expires,
    )


def decode_keys(data: bytes, where: str) -> list[Key]:
    """The keys of a file; `Invalid` says what is wrong with it, and never what is in it."""
    if len(data) > FILE_BYTES_MAX:
        raise LimitExceeded(f"{where} is over {FILE_BYTES_MAX} bytes: no file of keys is that large")
    try:
        keys = msgspec.json.decode(data, type=_File).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{where} holds no keys: {error}") from error
    if len(keys) > KEYS_MAX or len({key.id for key in keys}) != len(keys):
        raise Invalid(f"{where} has more than {KEYS_MAX} keys, or one of them twice")
    for key in keys:
        if not key.id.isascii() or not key.secret.isascii() or "." in key.id or len(key.secret) < 16:
            raise Invalid(f"the key {key.name!r} in {where} has no proper id and secret: make keys with `detent token`")
        for time_of in (key.created, key.expires):
            if time_of is not None and time_of.tzinfo is None:
                raise Invalid(f"a time of the key {key.name!r} in {where} has no zone: write 2026-01-31T12:00:00Z")
        key.caller()
    return keys


def read_keys(path: Path, *, managing: bool = False) -> list[Key]:
    """The keys of a file. It is refused if others than its owner may read it, and if its owner is neither this user nor
    root: its owner decides who gets in. Root, when it is `managing`, looks after all users' files."""
    try:
        with path.open("rb") as file:
            _check_private(os.fstat(file.fileno()), path, managing)
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file of keys at {path}; `detent token create` makes one") from error
    except OSError as error:
        raise Unavailable(f"the file of keys {path} cannot be read: {error}") from error
    return decode_keys(data, str(path))


def _check_private(found: os.stat_result, path: Path, managing: bool) -> None:
    user = os.geteuid()
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise Invalid(f"{path} holds secrets, and others may read it: chmod 600 {path}")
    if found.st_uid not in {user, ROOT} and not (managing and user == ROOT):
        raise Invalid(f"{path} belongs to user {found.st_uid}, who could put any key into it: chown {user} {path}")


def write_keys(path: Path, keys: list[Key]) -> None:
    """Replace the file, whole and durable, readable by its owner alone from its first moment on. Where the path is a
    link, the file behind it is replaced; and one that root replaces still belongs to whom it belonged."""
    target = _file_behind(path)
    data = msgspec.json.format(msgspec.json.encode(_File(keys)), indent=2)
    descriptor, new = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".new", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _keep_owner(descriptor, target)
            file.write(data + b"\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(new, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _file_behind(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _keep_owner(descriptor: int, target: Path) -> None:
    """The server that reads the file is often another user than the root who changes it."""
    if os.geteuid() == ROOT:
        with suppress(FileNotFoundError):
            replaced = target.stat()
            os.fchown(descriptor, replaced.st_uid, replaced.st_gid)


@contextmanager
def _changing(path: Path) -> Iterator[Path]:
    """The file behind a path, which no other process changes meanwhile."""
    target = _file_behind(path)
    try:
        lock = target.parent / f"{target.name}.lock"
        descriptor = _acquire(lock, target)
        try:
            yield target
        finally:
            # Removed while it is held: a process that waits for this one sees that it has gone, and makes the next.
            with suppress(OSError):
                lock.unlink()
            os.close(descriptor)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no folder {target.parent} for the file of keys: make it, or name a file elsewhere"
        ) from error
    except OSError as error:
        raise Unavailable(f"the file of keys {path} cannot be changed: {error}") from error


def _acquire(lock: Path, target: Path) -> int:
    """Wait for the lock file of a file and hold it; its descriptor. The lock ends with its process, however that ends,
    and is not in the way of the file's owner when root has left it behind."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _keep_owner(descriptor, target)
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise Unavailable(f"another process has held {lock} for {LOCK_WAIT_S:.0f} s: end it, then try again")
        time.sleep(LOCK_LOOK_S)


def add_key(path: Path, key: Key) -> None:
    """Put a key into the file, which is made if there is none."""
    with _changing(path) as target:
        try:
            keys = read_keys(target, managing=True)
        except NotFound:
            keys = []
        if any(known.name == key.name for known in keys):
            raise Exists(f"there is a key named {key.name!r} already: revoke it, or choose another name")
        write_keys(target, [*keys, key])


def remove_key(path: Path, wanted: str) -> Key:
    """Take a key out of the file, by its name or id."""
    with _changing(path) as target:
        keys = read_keys(target, managing=True)
        found = [key for key in keys if wanted in {key.name, key.id}]
        if not found:
            raise NotFound(f"there is no key {wanted!r}; `detent token ls` lists them")
        write_keys(target, [key for key in keys if key not in found])
        return found[0]


class KeyRing:
    """The keys of a running server. When the file changes, so do they."""

    def __init__(self, keys: Iterable[Key] = (), path: Path | None = None) -> None:
        self._path = path
        self._looked = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}
        self._callers: dict[str, Caller] = {}
        if path is None:
            self._take(keys)
        else:
            self._seen = _stamp(path)
            self._take(read_keys(path))

    def __len__(self) -> int:
        return len(self._keys)

    def _take(self, keys: Iterable[Key]) -> None:
        self._keys = {key.id: key for key in keys}
        self._callers = {key.id: key.caller() for key in self._keys.values()}

    def look(self) -> None:
        """Read the file again if it has changed. While it cannot be read, all are refused: it may be a revocation."""
        if self._path is None or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        stamp = _stamp(self._path)
        if stamp != self._seen:
            self._keys, self._callers = {}, {}
            self._seen = None
            self._take(read_keys(self._path))
            self._seen = stamp

    def listed(self) -> list[Key]:
        """All keys, by name."""
        self.look()
        return sorted(self._keys.values(), key=lambda key: key.name)

    def find(self, identity: str) -> Key | None:
        """The key with an id, unless it has expired."""
        self.look()
        key = self._keys.get(identity)
        return None if key is None or key.has_expired(datetime.now(UTC)) else key

    def caller(self, key: Key) -> Caller:
        """Who comes with a key."""
        return self._callers[key.id]

    def still_knows(self, caller: Caller) -> bool:
        """Whether a caller that came with a key still may do what it said then: it was not revoked, nor changed."""
        key = self.find(caller.key)
        return key is not None and self.caller(key) == caller

    def by_token(self, token: str) -> Caller:
        """The caller with this bearer token; `Unauthenticated` if no key has it."""
        identity, _, secret = token.partition(".")
        key = self.find(identity)
        expected = _NOBODYS_SECRET if key is None else key.secret
        if not hmac.compare_digest(secret.encode(), expected.encode()) or key is None:
            raise Unauthenticated("this token is not known here, was revoked, or has expired")
        return self.caller(key)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size


def keys_file(given: str | None) -> Path | None:
    """The file of keys: the one that is named, or that the environment names."""
    named = given or os.environ.get(FILE_VARIABLE)
    return Path(named) if named else None


def open_ring(given: str | None) -> KeyRing | None:
    """The keys of a server: from the file, or from the environment itself; None if there are none anywhere."""
    path = keys_file(given)
    if path is not None:
        return KeyRing(path=path)
    content = os.environ.get(KEYS_VARIABLE)
    return KeyRing(decode_keys(content.encode(), KEYS_VARIABLE)) if content else None
