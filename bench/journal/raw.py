"""The other side: what the same bytes cost without us."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb

MAP_BYTES = 4 << 30


@contextmanager
def synced_log(path: Path) -> Iterator[Callable[[bytes], None]]:
    """A plain file; each append is followed by fdatasync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write, sync = os.write, os.fdatasync

    def append(body: bytes) -> None:
        write(descriptor, body)
        sync(descriptor)

    try:
        yield append
    finally:
        os.close(descriptor)


@contextmanager
def lmdb_log(directory: Path) -> Iterator[Callable[[bytes], None]]:
    """LMDB with its own settings; each append is one put and one durable commit."""
    with lmdb.open(str(directory), map_size=MAP_BYTES) as environment:
        numbers = iter(range(1 << 62))

        def append(value: bytes) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(next(numbers).to_bytes(8, "big"), value)

        yield append


def repeat(append: Callable[[bytes], None], bodies: Sequence[bytes], count: int) -> None:
    """So many appends, taking the bodies in turn."""
    for number in range(count):
        append(bodies[number % len(bodies)])
