"""Reading journals through their owner, where there are no files: the same calls, the same answers.

A read of [start, end) yields exactly end - start messages or fails. When the line breaks in the middle, it goes on at
the message that comes next, in the same journal: what is committed does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from detent.errors import Corrupt, NotFound
from detent.journal import JournalInfo, JournalReader
from detent.journal.operations import check_name
from detent.journal.reader import Whereabouts, ahead_to, check_range
from detent.remote import batches
from detent.remote.answers import Disconnected, decoded
from detent.remote.line import OwnerLine
from detent.remote.objects import RemoteReader
from detent.remote.served_journals import END_HEADER, NUMBER_HEADER, PATH


class RemoteJournalReader(JournalReader):
    """Reads the journals of a store that is behind a server."""

    def __init__(self, reader: RemoteReader, line: OwnerLine) -> None:
        super().__init__(reader)
        self._line = line

    def names(self, prefix: str = "") -> list[str]:
        found: list[str] = self._ask("", list[str], prefix=prefix)
        return found

    def info(self, name: str) -> JournalInfo:
        found: JournalInfo = self._ask_of(name, "/info", JournalInfo)
        return found

    def restored_ms(self) -> int:
        answer = self._line.run(lambda owner, time: owner.call("GET", "/v1/status", timeout=time))
        found: dict[str, int] = decoded(answer, dict[str, int])
        return found.get("restored_ms", 0)

    def number(self, name: str) -> int | None:
        found: int | None = self._ask_of(name, "/number", int | None)
        return found

    def extent(self, name: str) -> tuple[int, int]:
        found: tuple[int, int] = self._ask_of(name, "/extent", tuple[int, int])
        return found

    def whereabouts(self, name: str) -> Whereabouts | None:
        try:
            info = self.info(name)  # one question, so that all of it is of one moment
        except NotFound:
            return None
        return Whereabouts(info.id, info.first_offset, info.next_offset, info.created_ms)

    def ahead(
        self, name: str, start: int, rows: int, *, journal: int | None = None
    ) -> tuple[Whereabouts | None, Iterator[tuple[int, Any]]]:
        found = self.whereabouts(name)
        end = ahead_to(found, start, rows, journal)
        if found is None or end is None:
            return found, iter(())
        return found, self.committed(name, start, end, journal=found[0])

    def extents(self, prefix: str = "") -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = self._ask("/extents", dict[str, tuple[int, int]], prefix=prefix)
        return found

    def next_offset(self, name: str) -> int:
        try:
            return self.extent(name)[1]
        except NotFound:
            return 0

    def offset_at(self, name: str, time_ms: int) -> int:
        found: int = self._ask_of(name, "/offset-at", int, time_ms=time_ms)
        return found

    def _ask_of(self, name: str, path: str, kind: Any, **fields: Any) -> Any:
        check_name(name)
        return self._ask(path, kind, journal=name, **fields)

    def _ask(self, path: str, kind: Any, **fields: Any) -> Any:
        return decoded(
            self._line.run(lambda owner, time: owner.call("GET", PATH + path, params=fields, timeout=time)), kind
        )

    # -- messages -----------------------------------------------------------------------------------------------

    def committed(self, name: str, start: int, end: int, *, journal: int | None = None) -> Iterator[tuple[int, Any]]:
        check_name(name)
        check_range(start, end)
        if start < end:
            yield from self._read("/committed", name, start, end, journal)

    def uncommitted(
        self, name: str, start: int, end: int | None = None, *, journal: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        check_name(name)
        yield from self._read("/uncommitted", name, start, end, journal)

    def _read(
        self, path: str, name: str, start: int, end: int | None, journal: int | None
    ) -> Iterator[tuple[int, Any]]:
        at, patience = start, self._line.patience()
        while True:
            owner = patience.owner()
            fields = {"journal": name, "start": at, "end": end, "number": journal}
            known = {field: value for field, value in fields.items() if value is not None}
            try:
                with owner.stream("GET", PATH + path, params=known, timeout=patience.timeout) as response:
                    journal, end = _extent(response, journal, end)
                    for first, batch in batches.decode(response.iter_bytes()):
                        if first != at or not batch.num_rows or at + batch.num_rows > end:
                            raise Corrupt(f"the owner sent {batch.num_rows} rows from {first} on where {at} comes next")
                        yield first, batch
                        at += batch.num_rows
                        patience.restore()
            except Disconnected as error:
                patience.spend(owner, error)
                continue
            if at != end:
                raise Corrupt(f"the owner's stream ends at {at}, before {end}")
            return


def _extent(response: httpx.Response, journal: int | None, end: int | None) -> tuple[int, int]:
    """Which journal the owner says that it reads, and to where; both as asked for, if they were."""
    try:
        found = int(response.headers[NUMBER_HEADER]), int(response.headers[END_HEADER])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"the owner does not say what it reads: {error}") from error
    if journal not in {None, found[0]} or end not in {None, found[1]}:
        raise Corrupt(f"the owner reads journal {found[0]} to {found[1]} where {journal} to {end} was asked for")
    return found
