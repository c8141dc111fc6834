"""One state of a `file:` store: an LMDB snapshot, and what the commit log had on top of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from detent.kv.base import FIRST_KEY, BlockView
from detent.kv.lmdberrors import DAMAGE, corrupt, reading
from detent.kv.overlay import Layer, merged


class FileView(BlockView):
    """One LMDB read transaction, and what the commit log had on top of it."""

    def __init__(self, transaction: Any, layer: Layer | None) -> None:
        self._transaction = transaction
        self._layer = layer

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        if key < FIRST_KEY:
            return None
        if self._layer is not None:
            version = self._layer.find(key)
            if version is not None:
                return version[1]
        try:
            value: bytes | None = self._transaction.get(key)
        except DAMAGE as error:
            raise corrupt(error) from error
        return value

    def scan(
        self, start: bytes, end: bytes | None = None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._require_open()
        start = max(start, FIRST_KEY)
        if self._layer is None:
            return self._stored(start, end, reverse, limit)
        return self._merged(self._layer, start, end, reverse, limit)

    def _merged(
        self, layer: Layer, start: bytes, end: bytes | None, reverse: bool, limit: int | None
    ) -> Iterator[tuple[bytes, bytes]]:
        changes = layer.between(start, end, reverse=reverse)
        with closing(self._stored(start, end, reverse, None)) as stored:
            yield from islice(merged(stored, changes, reverse=reverse), limit)

    def _stored(
        self, start: bytes, end: bytes | None, reverse: bool, limit: int | None
    ) -> Generator[tuple[bytes, bytes]]:
        left = -1 if limit is None else limit
        self._require_open()
        with reading(), self._transaction.cursor() as cursor:
            if reverse:
                pairs = self._backward(cursor, end)
            else:
                pairs = cursor.iternext() if cursor.set_range(start) else iter(())
            for key, value in pairs:
                if left == 0 or (key < start if reverse else end is not None and key >= end):
                    return
                left -= 1
                yield key, value
                self._require_open()

    @staticmethod
    def _backward(cursor: Any, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if end is not None and cursor.set_range(end):
            if not cursor.prev():
                return
        elif not cursor.last():
            return
        yield from cursor.iterprev()
