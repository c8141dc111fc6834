"""Messages to append, and stores that hold many of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

import detent

NAME = "bench"
BODY_BYTES = 100
BATCH_ROWS = 1_000
LARGE_ROWS = 100_000
"""Rows of one append while a big store is built."""

STORE_BYTES_PER_MESSAGE = 200
"""A generous guess, to refuse a run that would fill the disk."""


def body(size: int) -> bytes:
    """Bytes that no layer below could compress or share."""
    return os.urandom(size)


def bodies(rows: int = BATCH_ROWS, size: int = BODY_BYTES) -> list[bytes]:
    noise = os.urandom(rows * size)
    return [noise[start : start + size] for start in range(0, rows * size, size)]


def table(rows: int = BATCH_ROWS, size: int = BODY_BYTES) -> Any:
    """The same as an Arrow table with the column body."""
    offsets = pa.array(range(0, (rows + 1) * size, size), pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(os.urandom(rows * size))])
    return pa.table({"body": column})


def url(directory: Path) -> str:
    return f"file:{directory}"


def fill(directory: Path, messages: int, batch_rows: int) -> None:
    """A store whose journal holds this many messages of 100 B, appended in batches of `batch_rows`."""
    with detent.open(url(directory)) as store:
        journal = store.journal(NAME)
        rows = table(batch_rows)
        left = messages
        while left > 0:
            journal.append_table(rows if left >= batch_rows else rows.slice(0, left))
            left -= batch_rows
