"""When a batch is due, and which files are in it: by bytes, count and age."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from detent.ingest.local_state import File

SHRINK_BITS: Final = 4
"""A batch over which a pipeline died has a sixteenth of the files the next time."""

DEATHS_MAX: Final = 6
"""A file over which so many pipelines died was alone the last times, in batches of up to 65,536."""


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch gets, and how long a file waits for others. One file alone is always a batch."""

    files: int
    bytes: int
    age_s: float


def next_batch(ready: Iterable[File], limits: BatchLimits, now: float, *, is_draining: bool) -> list[File]:
    """The files of the next batch, oldest first; none while it is worth waiting for more.

    A file over which a pipeline died may have killed it. Such files go in batches of their own, smaller with each
    death, so that in the end the one to blame is alone, and the others are done.
    """
    chosen: list[File] = []
    size = 0
    is_full = False
    most = limits.files
    for file in ready:
        if not chosen:
            most = max(1, limits.files >> (SHRINK_BITS * file.deaths))
        elif file.deaths != chosen[0].deaths:
            continue
        elif len(chosen) >= most or size + file.shard.size > limits.bytes:
            is_full = True
            break
        chosen.append(file)
        size += file.shard.size
    if not chosen:
        return []
    is_full = is_full or len(chosen) >= most or size >= limits.bytes
    is_old = now - chosen[0].since >= limits.age_s
    return chosen if is_full or is_old or is_draining else []
