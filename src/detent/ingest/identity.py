"""What makes a file *this* file: its name and, by a policy, what tells one writing of it from the next.

================  =========================================================================================
``etag``          the object's etag, or a local file's time and size; the default. Writing the same bytes again
                  is not a new file, writing others is
``version``       the object's version, in buckets that keep versions; the etag in those that do not
``sequencer``     the number that S3 gives each write of a key: every write is a new file, also of the same bytes
``uri``           the name alone: a file is ingested once, and what is written over it later is not
================  =========================================================================================
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from detent.errors import Invalid
from detent.ingest.announcements import Announced
from detent.ingest.shared_state import MESSAGE_SCHEME, FileShard

POLICIES: Final = ("etag", "version", "sequencer", "uri")
KEY_BYTES: Final = 16
"""Of a hash of the identity: short rows, however long the name, and no two files with one key in any real table."""

MISSING: Final = "missing"
"""The version of a file that was announced and is not there."""

REFUSED: Final = "refused"
"""The version of a file of a notification that is refused and does not say enough of itself to have another."""

MALFORMED: Final = "malformed"
"""The version of a record of a notification that cannot be understood, and so names no file."""

_NO_VERSION: Final = ("", "null")
"""What buckets say that keep no versions."""


def check_policy(policy: str) -> str:
    """The policy; `Invalid` if there is none of that name."""
    if policy not in POLICIES:
        raise Invalid(f"identity is one of {', '.join(POLICIES)}, not {policy!r}")
    return policy


def version_of(file: Announced, policy: str) -> str | None:
    """What tells this writing of the file from others; None if the announcement does not say, and one has to look."""
    if file.data is not None or policy == "uri":
        return ""
    if policy == "sequencer":
        if not file.sequencer:
            raise Invalid(
                f"{file.uri} was announced without a sequencer, which only notifications of S3 have: use another "
                "identity, such as etag"
            )
        return f"sequencer:{file.sequencer}:{file.etag}"
    if policy == "version" and file.version not in _NO_VERSION:
        return f"version:{file.version}"
    return f"etag:{file.etag}" if file.etag else None


def shard_of(file: Announced, policy: str) -> FileShard:
    """The shard of a file that says enough of itself."""
    version = version_of(file, policy)
    assert version is not None, "look the file up first"
    return FileShard(key_of(file.uri, version), file.uri, version, file.size or 0)


def announced_of(shard: FileShard) -> Announced:
    """The file of a shard, as it was announced once."""
    kind, _, value = shard.version.partition(":")
    if kind == "sequencer":
        sequencer, _, etag = value.partition(":")
        return Announced(shard.uri, shard.size, etag, sequencer=sequencer)
    file = Announced(shard.uri, shard.size)
    if kind == "version":
        return file._replace(version=value)
    return file._replace(etag=value) if kind == "etag" else file


def missing(file: Announced) -> FileShard:
    """The shard of a file that is not there: attempts at it are counted, and if it comes later it is another one."""
    return FileShard(key_of(file.uri, MISSING), file.uri, MISSING, 0)


def refused(file: Announced, policy: str) -> FileShard:
    """The shard of a file that is refused: its own, so that a redrive brings this writing of it, for its message is
    gone by then. One that does not say enough of itself has a shard by its name, and is another one when it is
    redriven."""
    try:
        version = version_of(file, policy)
    except Invalid:
        version = None
    if version is None:
        return FileShard(key_of(file.uri, REFUSED), file.uri, REFUSED, 0)
    return shard_of(file, policy)


def malformed(queue: str, message_id: str, record: str) -> FileShard:
    """The shard of a malformed record: the same for the same record, whichever message it comes in."""
    queue_uri = f"{MESSAGE_SCHEME}{queue}"
    return FileShard(key_of(queue_uri, f"{MALFORMED}:{record}"), f"{queue_uri}/{message_id}", MALFORMED, 0)


def key_of(uri: str, version: str) -> bytes:
    """The key of a file. A name has no NUL in it."""
    return blake2b(f"{uri}\0{version}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()
