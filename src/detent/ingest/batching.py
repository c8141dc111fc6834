"""When a batch is due, and which files are in it: by bytes, count and age."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from detent.ingest.local_state import File


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch gets, and how long a file waits for others. One file alone is always a batch."""

    files: int
    bytes: int
    age_s: float


def next_batch(ready: Iterable[File], limits: BatchLimits, now: float, *, is_draining: bool) -> list[File]:
    """The files of the next batch, oldest first; none while it is worth waiting for more."""
    chosen: list[File] = []
    size = 0
    is_full = False
    for file in ready:
        if chosen and (len(chosen) >= limits.files or size + file.shard.size > limits.bytes):
            is_full = True
            break
        chosen.append(file)
        size += file.shard.size
    if not chosen:
        return []
    is_full = is_full or len(chosen) >= limits.files or size >= limits.bytes
    is_old = now - chosen[0].since >= limits.age_s
    return chosen if is_full or is_old or is_draining else []
