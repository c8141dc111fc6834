"""The file of a recorded state: a copy as of some offset of its recovery log, whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import xxhash

from detent import crash
from detent.engine import MALFORMED
from detent.errors import Corrupt
from detent.state.base import ShardName
from detent.state.checkpoint import Checkpoint
from detent.state.recovery_log import Playback

FORMAT: Final = 2
"""Format 1 had a checksum of the state alone. Such a file is left aside, like any that cannot be read."""

FILE_BYTES_MAX: Final = 16 << 30
_CHECKSUM_BYTES: Final = 17


class _FileHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: what the rest is a copy of."""

    format: int
    log: int
    at: int
    sequence: int
    digest: str
    checkpoint: str
    bytes_since_snapshot: int


def _checksum(content: bytes) -> bytes:
    """The last line: of the head, too, because it says where the log goes on."""
    return xxhash.xxh64_hexdigest(content).encode() + b"\n"


class StateFile:
    """The state of one shard as a file: a line of JSON that says what it is, the state as a JSON object, and a checksum
    of these two lines."""

    def __init__(self, folder: Path, shard: ShardName) -> None:
        self.path = folder / f"{quote(shard.consumer, safe='')}-{shard.shard}.json"

    def save(self, playback: Playback, log: int) -> None:
        """Write it anew: beside the old one, synced, then in its place."""
        assert playback.checkpoint is not None
        body = msgspec.json.encode({key: msgspec.Raw(value) for key, value in playback.entries.items()})
        head = _FileHead(
            FORMAT,
            log,
            playback.at,
            playback.sequence,
            playback.digest.hex(),
            playback.checkpoint.encode().hex(),
            playback.bytes_since_snapshot,
        )
        content = msgspec.json.encode(head) + b"\n" + body + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for left in self.path.parent.glob(f"{glob.escape(self.path.stem)}.*.next"):  # by a process that was killed
            left.unlink(missing_ok=True)
        beside = self.path.with_suffix(f".{secrets.token_hex(4)}.next")
        with beside.open("wb") as file:
            file.write(content + _checksum(content))
            file.flush()
            os.fsync(file.fileno())
        crash.point("state.recorded.before_rename")
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, log: int | None) -> Playback | None:
        """What was saved of the log with this number; None if nothing was."""
        try:
            if self.path.stat().st_size > FILE_BYTES_MAX:
                raise Corrupt(f"{self.path} is larger than any state file")
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if checksum != _checksum(content):
            raise Corrupt(f"{self.path} does not match its checksum, or is of another format")
        first, _, body = content.partition(b"\n")
        try:
            head = msgspec.json.decode(first, type=_FileHead)
            if head.format != FORMAT:
                raise Corrupt(f"{self.path} has format {head.format}, and this release knows format {FORMAT}")
            playback = Playback()
            entries = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            playback.entries = {key: bytes(raw) for key, raw in entries.items()}
            playback.checkpoint = Checkpoint.decode(bytes.fromhex(head.checkpoint))
            playback.digest = bytes.fromhex(head.digest)
        except (*MALFORMED, ValueError) as error:
            raise Corrupt(f"{self.path} is not a state file: {error}") from error
        if head.log != log:
            return None
        playback.at, playback.sequence = head.at, head.sequence
        playback.bytes_since_snapshot = head.bytes_since_snapshot
        return playback
