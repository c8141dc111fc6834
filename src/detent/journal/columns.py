"""Messages that were read, by column: who needs only their bodies does not pay for the rest."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from detent.codec.block import header_values
from detent.journal.message import Message, messages_of


class Columns:
    """The messages of a record batch. Each column is read, and messages are made, when they are first asked for."""

    def __init__(self, batch: Any, offset: int, journal: str) -> None:
        self._batch = batch
        self._values: dict[str, list[str | None]] = {}
        self.offset = offset
        """That of the first message."""
        self.journal = journal

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    @cached_property
    def messages(self) -> list[Message]:
        """All of them."""
        return list(messages_of(self._batch, offset=self.offset, journal=self.journal))

    @cached_property
    def bodies(self) -> list[bytes]:
        """Their bodies."""
        found: list[bytes] = self._batch.column(6).to_pylist()
        return found

    @cached_property
    def keys(self) -> list[bytes | None]:
        """Their keys."""
        column = self._batch.column(4)
        return [None] * len(column) if column.null_count == len(column) else column.to_pylist()

    @cached_property
    def times(self) -> list[int]:
        """When each was stored, in milliseconds."""
        found: list[int] = self._batch.column(3).view("int64").to_pylist()
        return found

    def values(self, header: str) -> list[str | None]:
        """What each has in a header."""
        if header not in self._values:
            self._values[header] = header_values(self._batch.column(5), header)
        return self._values[header]


class Rows:
    """Some messages of `Columns`, one after another."""

    __slots__ = ("_columns", "_start", "_stop")

    def __init__(self, columns: Columns, start: int, stop: int) -> None:
        self._columns = columns
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def part(self, start: int, stop: int) -> Rows:
        """Some of these."""
        return Rows(self._columns, self._start + start, self._start + stop)

    @property
    def offset(self) -> int:
        """That of the first message."""
        return self._columns.offset + self._start

    @property
    def journal(self) -> str:
        """What messages say that they are from."""
        return self._columns.journal

    @property
    def messages(self) -> list[Message]:
        """The messages."""
        return self._columns.messages[self._start : self._stop]

    def message(self, index: int) -> Message:
        """One of them."""
        return self._columns.messages[range(self._start, self._stop)[index]]

    @property
    def bodies(self) -> list[bytes]:
        """Their bodies."""
        return self._columns.bodies[self._start : self._stop]

    @property
    def keys(self) -> list[bytes | None]:
        """Their keys."""
        return self._columns.keys[self._start : self._stop]

    @property
    def times(self) -> list[int]:
        """When each was stored, in milliseconds."""
        return self._columns.times[self._start : self._stop]

    def values(self, header: str) -> list[str | None]:
        """What each has in a header."""
        return self._columns.values(header)[self._start : self._stop]
