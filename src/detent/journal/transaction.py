"""The journals' part of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detent.engine import Operation
from detent.journal import calls
from detent.journal.calls import Entry
from detent.journal.operations import FragmentRef
from detent.journal.publisher import AckIntent


class JournalOperations:
    """Journal operations gathered into a transaction. Each call answers the index of its result in `results`."""

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        raise NotImplementedError

    def append(
        self, journal: str, body: bytes, *, key: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one message. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append(journal, body, key, headers))

    def append_many(self, journal: str, entries: Iterable[Entry]) -> int:
        """Append several messages. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append_many(journal, entries))

    def append_table(self, journal: str, table: Any) -> int:
        """Append the rows of an Arrow table. Answers the index of its `Appended` in `results`."""
        return self.add(calls.append_table(journal, table))

    def adopt(self, journal: str, fragments: Sequence[FragmentRef]) -> int:
        """Adopt written fragments. Answers the index of its `Appended` in `results`."""
        return self.add(calls.adopt(journal, fragments))

    def acknowledge(self, intents: Iterable[AckIntent]) -> None:
        """Commit the pending messages that these intents of an earlier publisher cover, with the rest of this."""
        for intent in intents:
            self.add(intent.operation())

    def check_registers(self, journal: str, expected: Mapping[str, str | None]) -> int:
        """Refuse the whole transaction with `Conflict` unless the registers are as expected (None: absent)."""
        return self.add(calls.check_registers(journal, expected))

    def set_registers(self, journal: str, values: Mapping[str, str | None]) -> int:
        """Set registers (None removes one)."""
        return self.add(calls.set_registers(journal, values))

    def check_next_offset(self, journal: str, offset: int) -> int:
        """Refuse the whole transaction with `Conflict` unless the journal's next offset is this."""
        return self.add(calls.check_next_offset(journal, offset))
