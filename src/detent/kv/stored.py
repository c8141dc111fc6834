"""How an engine stores a record's value: the value, then 8 bytes of checksum over the key and the value.

    stored = value + XXH3-64(value, seed = XXH3-64(key)), big-endian

All records pass through here, the engines' own too, so a byte that changed on the disk is noticed wherever the record
is read, whatever it holds; and so is a record that is found under another key. What is only in memory (`memory:`, the
overlay of a commit log, whose records have a checksum of their own) has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import xxhash

from detent.errors import Corrupt, Invalid

FORMAT_VERSION: Final = 3
"""The version of a store's records on every engine. 3: each record has a checksum. (LMDB's had 2 before, SlateDB's 1.)
It is the first byte of the engine's `00 epoch` record."""

UPGRADING: Final = 0
"""The version of a store whose upgrade has begun and not ended."""

RESTORING: Final = 255
"""The version of a store on an object store that is being made from a backup, and is not whole yet."""

CHECKSUM_BYTES: Final = 8

SUBSYSTEMS: Final[dict[int, str]] = {
    3: "log",
    5: "queue",
    6: "journal",
    7: "engine",
    8: "ledger",
    9: "shard",
    10: "schedule",
}
"""The first byte of every key. 00 is the kv engine's; 01, 02, 04 are formats Detent does not write."""

Check = Callable[[bytes, Any], bytes | None]
"""What makes a value of a key and what is stored under it; None passes the record over."""

OnDamage = Callable[[bytes, str], None]
"""Told of a damaged record: its key, and what is wrong. The record is then passed over: what it says now could be
anything, such as a count that keeps a loop busy for ever."""

digest_of = xxhash.xxh3_64_digest
seed_of = xxhash.xxh3_64_intdigest


def to_stored(key: bytes, value: bytes) -> bytes:
    """What is stored for a value."""
    return value + digest_of(value, seed_of(key))


def from_stored(key: bytes, stored: bytes) -> bytes:
    """The value. `Corrupt` if a byte of it, of its key or of its checksum has changed."""
    value = stored[:-CHECKSUM_BYTES]
    if stored.endswith(digest_of(value, seed_of(key))):
        return value
    raise damaged(key)


def from_buffer(key: bytes, stored: memoryview) -> bytes:
    """The same of bytes that belong to an engine. The copy is what is checked: it is still in the processor's cache."""
    value = bytes(stored[:-CHECKSUM_BYTES])
    if stored[-CHECKSUM_BYTES:] == digest_of(value, seed_of(key)):
        return value
    raise damaged(key)


def telling(on_damage: OnDamage) -> Check:
    """A check that tells of a damaged record, and passes it over."""

    def told(key: bytes, stored: bytes) -> bytes | None:
        try:
            return from_stored(key, stored)
        except Corrupt as error:
            on_damage(key, str(error))
            return None

    return told


def needs_upgrade(version: int) -> Invalid:
    """The error of one who opens a store of an earlier version, or one whose upgrade was interrupted."""
    if version == RESTORING:
        return Invalid(NOT_RESTORED)
    how = "an upgrade of this store was interrupted" if version == UPGRADING else f"this store has format {version}"
    return Invalid(
        f"{how}, and this release reads format {FORMAT_VERSION}: run `detent store upgrade URL`, with no other process "
        "at work on the store"
    )


NOT_RESTORED: Final = (
    "this store is being restored from a backup, or its restore was interrupted: run `detent store restore FROM URL` "
    "again, which goes on where it was"
)


def damaged(key: bytes) -> Corrupt:
    """The error. It names the record, and shows nothing of what it holds."""
    subsystem = SUBSYSTEMS.get(key[0], f"unknown subsystem {key[:1].hex()}") if key[0] else "kv engine"
    return Corrupt(
        f"the record {key.hex()} ({subsystem}) does not match its checksum: `detent store verify` lists all such "
        "records; restore the store from a copy"
    )
