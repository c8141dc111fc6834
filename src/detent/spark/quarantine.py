"""Quarantine: bodies that did not match their schema, kept with the reason, and put back when that is mended.

A stream with a schema writes them to the journal ``PIPELINE/STREAM.quarantine``, in the transaction of the batch they
came with. Headers say where from and why; the message's own key and headers are kept. Putting them back writes them to
where they came from, as new messages; how far that has come is a register of the quarantine's own journal, set in the
same transaction, so that each one is put back once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from detent.errors import Conflict, Invalid, NotFound
from detent.journal import Message
from detent.queue import Outgoing
from detent.spark.pipeline_stream import QUARANTINE
from detent.store import Store
from detent.transaction import Transaction

REASON: Final = "detent-reason"
JOURNAL: Final = "detent-journal"
OFFSET: Final = "detent-offset"
QUEUE: Final = "detent-queue"
MESSAGE: Final = "detent-message"
URI: Final = "detent-uri"
HEADERS: Final = (REASON, JOURNAL, OFFSET, QUEUE, MESSAGE, URI)
"""What is added to a message in quarantine, and taken away when it is put back."""

REDRIVEN: Final = "redriven"
"""The register that says up to which offset messages were put back."""

CHUNK_MESSAGES: Final = 1_000
CHUNK_BYTES: Final = 4 << 20
"""What one transaction puts back: other users of the store wait for it."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A message in quarantine."""

    offset: int
    reason: str
    source: str
    place: int
    key: bytes | None
    headers: dict[str, str]
    body: bytes
    is_queue: bool
    uri: str | None

    @classmethod
    def of(cls, message: Message) -> Quarantined:
        found = dict(message.headers)
        is_queue = QUEUE in found
        source, place = found.get(QUEUE if is_queue else JOURNAL), found.get(MESSAGE if is_queue else OFFSET, "")
        if source is None or not place.isdigit():
            raise Invalid(
                f"the message at offset {message.offset} does not say where it came from: it was not put there by a "
                "stream"
            )
        own = {name: value for name, value in found.items() if name not in HEADERS}
        reason, uri = found.get(REASON, ""), found.get(URI)
        return cls(message.offset, reason, source, int(place), message.key, own, message.body, is_queue, uri)


@dataclass(frozen=True, slots=True)
class QuarantineInfo:
    """A quarantine: how many messages wait in it, and how many were put back."""

    name: str
    waiting: int
    redriven: int


def quarantines(store: Store) -> list[QuarantineInfo]:
    """All quarantines of a store."""
    return [info(store, name) for name in store.journals() if name.endswith(QUARANTINE)]


def info(store: Store, name: str) -> QuarantineInfo:
    """One of them."""
    at, end = _extent(store, name)
    return QuarantineInfo(name, end - at, _register(store, name))


def waiting(store: Store, name: str) -> Iterator[Quarantined]:
    """The messages that were not put back yet."""
    at, end = _extent(store, name)
    return (Quarantined.of(message) for message in store.journal(name).read(at, end))


def redrive(store: Store, name: str) -> int:
    """Put the messages that wait now back to where they came from; how many. Each one is put back once, also if this
    is interrupted and begun again, or several do it at once."""
    _, end = _extent(store, name)
    count = 0
    while True:
        before = store.journal(name).registers().get(REDRIVEN)
        at, _ = _extent(store, name)
        if at >= end:
            return count
        messages = _chunk(store, name, at, end)
        try:
            _put_back(store, name, before, messages)
        except Conflict:
            continue  # another process has put these back
        count += len(messages)


def _chunk(store: Store, name: str, at: int, end: int) -> list[Quarantined]:
    """The next messages, as many as one transaction takes; at least one."""
    found: list[Quarantined] = []
    size = 0
    for message in store.journal(name).read(at, min(end, at + CHUNK_MESSAGES)):
        size += len(message.body)
        if found and size > CHUNK_BYTES:
            break
        found.append(Quarantined.of(message))
    return found


def _put_back(store: Store, name: str, before: str | None, messages: list[Quarantined]) -> None:
    with store.transaction() as transaction:
        transaction.check_registers(name, {REDRIVEN: before})
        transaction.set_registers(name, {REDRIVEN: str(messages[-1].offset + 1)})
        for is_queue, source in sorted({(message.is_queue, message.source) for message in messages}):
            mine = [message for message in messages if (message.is_queue, message.source) == (is_queue, source)]
            if is_queue:
                transaction.publish_many(list(map(_outgoing, mine)), queue=source)
            else:
                _append(store, transaction, source, mine)


def _append(store: Store, transaction: Transaction, journal: str, messages: list[Quarantined]) -> None:
    if store.reader.number(journal) is None:
        raise NotFound(
            f"the journal {journal!r}, where these messages came from, is gone: create it again with "
            f"`detent journal create`, or trim the quarantine"
        )
    transaction.append_many(journal, [(message.body, message.key, message.headers) for message in messages])


def _outgoing(message: Quarantined) -> Outgoing:
    headers = {name: value for name, value in message.headers.items() if name != "queue"}  # the address it had
    if message.uri is not None:
        return Outgoing(uri=message.uri, headers=headers)
    return Outgoing(message.body, headers=headers)


def _register(store: Store, name: str) -> int:
    return int(store.journal(name).registers().get(REDRIVEN) or 0)


def _extent(store: Store, name: str) -> tuple[int, int]:
    """The offsets of what waits: from the first that was neither put back nor trimmed."""
    if not name.endswith(QUARANTINE) or store.reader.number(name) is None:
        names = [one for one in store.journals() if one.endswith(QUARANTINE)]
        there = f"there are {', '.join(names)}" if names else "the store has none"
        raise NotFound(f"there is no quarantine {name!r}; {there}")
    first, end = store.reader.extent(name)
    return max(first, _register(store, name)), end
