"""The first page of a commit log: whose log it is, how long the file is at least, and since which start of the machine.

It is written when the log is made and when the log grows, and synced each time; records begin behind it.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from detent.errors import Corrupt
from detent.kv.commitrecord import LogName

_MAGIC: Final = b"dtntlog2"
"""The last letter is the version of the log."""

_HEAD: Final = struct.Struct("<8sQQQQ16s")
_CHECKSUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size

GIVE_UP: Final = "restore the store from a copy; `detent store abandon-log` goes on with what can be read of the log"


class LogHead(NamedTuple):
    """What the first page says. `base`: the commits that LMDB had when the log was made. `size`: the file has at least
    so many bytes. `boot`: which start of the machine the writer has lived in; zeros where the system does not say."""

    name: LogName
    base: int
    size: int
    boot: bytes

    def encode(self) -> bytes:
        """The page's bytes; behind them are zeros."""
        head = _HEAD.pack(_MAGIC, self.name.store, self.name.epoch, self.base, self.size, self.boot)
        return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))

    @property
    def machine_restarted(self) -> bool:
        """Whether what was not synced may be lost since then; the end of a process alone loses nothing."""
        return self.boot != boot_id() or not any(self.boot)


def decode_log_head(name: LogName, data: bytes) -> LogHead:
    """The head at the start of a log's `data`; `Corrupt` where that is no such page."""
    path = name.path(Path(), "log")
    if len(data) < HEAD_BYTES:
        raise Corrupt(f"the commit log {path} is damaged: it was cut to {len(data)} bytes; {GIVE_UP}")
    magic, store, epoch, base, size, boot = _HEAD.unpack_from(data)
    checksum = _CHECKSUM.unpack_from(data, _HEAD.size)[0]
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(data[: _HEAD.size]) != checksum or LogName(store, epoch) != name:
        raise Corrupt(f"the commit log {path} is damaged: its first page is not that of this log; {GIVE_UP}")
    return LogHead(name, base, size, boot)


@functools.cache
def boot_id() -> bytes:
    """Another 16 bytes for each start of the machine; zeros where the system does not say."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
