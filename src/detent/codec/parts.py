"""What a writer of Arrow's writes, taken in parts while it goes on: nothing is ever whole in memory."""

from __future__ import annotations

import io
from typing import Any


class Parts(io.RawIOBase):
    """A file that keeps what is written to it until that is taken."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(memoryview(data))
        return len(self._parts[-1])

    def take(self) -> list[memoryview]:
        """What was written since the last time."""
        taken, self._parts = self._parts, []
        return taken
