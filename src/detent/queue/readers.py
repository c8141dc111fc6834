"""The readers of one queue, as its owner remembers them: how far each has come, and what is assigned to it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from detent.codec.published import FOREVER
from detent.codec.reader import ReaderRecord
from detent.errors import Corrupt
from detent.queue.grant import Flight, OpenClaim
from detent.queue.holdings import Undo


class KnownReader(NamedTuple):
    """One reader. What is assigned to it is a grant whose lease has no end, its messages in order; the number of that
    assignment is the one after the last that was acknowledged."""

    generation: int
    opened_ms: int
    acked: int = 0
    grant: OpenClaim | None = None

    @property
    def last(self) -> int:
        """The number of the last assignment."""
        return self.acked if self.grant is None else self.acked + 1


class Readers:
    """The readers of one queue by name."""

    number: int
    touched: bool
    flights: dict[int, Flight]

    def __init__(self) -> None:
        self.readers: dict[str, KnownReader] = {}
        self.dirty_readers: set[str] = set()  # what the next checkpoint writes

    def assigned_deliveries(self) -> dict[str, list[tuple[int, int]]]:
        """By reader, the delivery numbers of the messages that are assigned to it, with the messages, in order."""
        found: dict[str, list[tuple[int, int]]] = {}
        for message, (_, delivery, grant) in self.flights.items():
            if grant.is_assigned:
                found.setdefault(grant.consumer, []).append((delivery, message))
        for deliveries in found.values():
            deliveries.sort()
        return found

    def load_reader(self, name: str, record: ReaderRecord, deliveries: list[tuple[int, int]]) -> None:
        """Remember a reader as it is stored, with the messages in flight that are its own; `Corrupt` if they are not
        those of its assignment."""
        first, count = record.first_delivery, record.length
        if [delivery for delivery, _ in deliveries] != list(range(first, first + count)):
            raise Corrupt(
                f"the reader {name!r} of queue number {self.number} is said to have {count} messages from delivery "
                f"{first} on, and has {len(deliveries)} others"
            )
        grant = OpenClaim(self.number, record.assigned_ms, FOREVER, name) if count else None
        if grant is not None:
            for delivery, message in deliveries:
                grant.held[message] = None
                self.flights[message] = (self.flights[message][0], delivery, grant)
        self.readers[name] = KnownReader(record.generation, record.opened_ms, record.acked, grant)

    def set_reader(self, name: str, reader: KnownReader | None, undo: Undo | None) -> None:
        """A reader is like this from now on; None: there is none."""
        if undo is not None:
            undo.append(partial(self._set_reader, name, self.readers.get(name)))
        self._set_reader(name, reader)

    def _set_reader(self, name: str, reader: KnownReader | None) -> None:
        self.touched = True
        self.dirty_readers.add(name)
        if reader is None:
            self.readers.pop(name, None)
        else:
            self.readers[name] = reader
