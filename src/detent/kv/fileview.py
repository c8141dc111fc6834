"""One state of a `file:` store: an LMDB snapshot, and what the commit log had on top of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Final

from detent.kv.base import FIRST_KEY, KEY_BYTES_MAX, BlockView
from detent.kv.lmdberrors import DAMAGE, corrupt, reading
from detent.kv.overlay import Layer, merged
from detent.kv.stored import CHECKSUM_BYTES, Check, digest_of, from_stored, seed_of

LAST_KEY: Final = b"\xff" * (KEY_BYTES_MAX + 1)
"""Above every key."""


class FileView(BlockView):
    """One LMDB read transaction, and what the commit log had on top of it."""

    _check: Check = staticmethod(from_stored)
    _buffers = False

    def __init__(self, transaction: Any, layer: Layer | None) -> None:
        self._transaction = transaction
        self._layer = layer

    def check_with(self, check: Check, *, buffers: bool) -> None:
        """Make values in another way. `buffers` says that the transaction hands out LMDB's own bytes, to be copied."""
        self._check = check
        self._buffers = buffers

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if key < FIRST_KEY:
            return None
        if self._layer is not None:
            version = self._layer.find(key)
            if version is not None:
                return version[1]
        try:
            stored = self._transaction.get(key)
        except DAMAGE as error:
            raise corrupt(error) from error
        return None if stored is None else self._check(key, stored)

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        start = max(start, FIRST_KEY)
        if self._layer is not None:
            return self._merged(self._layer, start, end, reverse, limit)
        stored = self._stored(start, end, reverse)
        return stored if limit is None else islice(stored, limit)

    def _merged(
        self, layer: Layer, start: bytes, end: bytes | None, reverse: bool, limit: int | None
    ) -> Iterator[tuple[bytes, bytes]]:
        changes = layer.between(start, end, reverse=reverse)
        with closing(self._stored(start, end, reverse)) as stored:
            yield from islice(merged(stored, changes, reverse=reverse), limit)

    def _stored(self, start: bytes, end: bytes | None, reverse: bool) -> Generator[tuple[bytes, bytes]]:
        check, buffers, last = self._check, self._buffers, LAST_KEY if end is None else end
        self._require_open()
        with reading(), self._transaction.cursor() as cursor:
            if reverse:
                pairs = self._backward(cursor, end)
            else:
                pairs = cursor.iternext() if cursor.set_range(start) else iter(())
            for found, stored in pairs:
                key = bytes(found) if buffers else found
                if not start <= key < last:
                    return
                # `check` does this too; but a call for each record would cost as much as the rest of this loop.
                value = b"" if buffers else stored[:-CHECKSUM_BYTES]
                if buffers or not stored.endswith(digest_of(value, seed_of(key))):
                    checked = check(key, stored)
                    if checked is None:
                        continue
                    value = checked
                yield key, value
                if not self.open:
                    self._require_open()

    @staticmethod
    def _backward(cursor: Any, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if end is not None and cursor.set_range(end):
            if not cursor.prev():
                return
        elif not cursor.last():
            return
        yield from cursor.iterprev()
