"""What a transaction publishes, and how it leaves the shard: with the engine's commit, or pending and acknowledged.

The order that carries exactly once, kept by one committing thread a shard: pending messages are durable before the
checkpoint, the checkpoint before the acknowledgements, and these before anything of the next transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from detent import spans
from detent.codec.block import MESSAGE_BYTES_MAX
from detent.consumer.application import OUTPUT_DEADLINE
from detent.durations import Duration
from detent.engine import Operation
from detent.errors import ClockBehind, Denied, DetentError, Fenced, Invalid, NotFound
from detent.journal import AckIntent, Publisher, calls
from detent.journal import operations as ops
from detent.journal.calls import Entry
from detent.names import NAME_MAX
from detent.stream.opening import OWN

if TYPE_CHECKING:
    from detent.store import Store

BYTES_MAX: Final = 16 << 20
"""Bytes of messages after which a transaction ends, as if its time were over: they are in memory until it commits."""

JOURNALS_MAX: Final = 5_000
"""Journals that one transaction publishes to; it ends when it has so many."""

CHUNK_BYTES: Final = 32 << 20
"""What goes into one append: half of the limit, so that no estimate of sizes can exceed it."""

MESSAGE_COST: Final = 64
"""What a message takes besides its content."""

logger = logging.getLogger("detent.consumer")


class Outbox:
    """The messages of one transaction, by store and journal, in the order in which they were published."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._sealed = False
        self.bytes = 0
        self.entries: dict[str, dict[str, list[Entry]]] = {}
        self._journals = 0

    def publish(
        self,
        journal: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        store: str = OWN,
    ) -> None:
        """Add a message to the transaction. Readers see it when the transaction has committed, and not before.

        `store` is a name of the consumer's `outputs`, if the journal is not in the consumer's own store.
        """
        if self._sealed:
            raise Invalid("this publish belongs to a transaction that has ended: use the one that consume() was given")
        if store not in self._names:
            raise Invalid(f"{store!r} is not an output of this consumer; it has {sorted(self._names - {OWN})}")
        entry: Entry
        headers = spans.with_trace(headers)
        is_plain = type(body) is bytes and not headers
        if is_plain and key is None and len(body) <= MESSAGE_BYTES_MAX:
            entry = body
        elif is_plain and type(key) is bytes and len(body) + len(key) <= MESSAGE_BYTES_MAX:
            entry = (body, key)
        else:
            entry = _checked(journal, body, key, headers)
        known = self.entries.get(store, {}).get(journal)
        if known is None:
            ops.check_name(journal)
            known = self.entries.setdefault(store, {})[journal] = []
            self._journals += 1
        known.append(entry)
        self.bytes += _size(entry)

    def seal(self) -> None:
        """The transaction takes no more messages."""
        self._sealed = True

    def written(self) -> list[tuple[str, str]]:
        """The journals that get messages, with the names of their stores."""
        return [(name, journal) for name, by_journal in self.entries.items() for journal in by_journal]

    @property
    def is_full(self) -> bool:
        """Whether the transaction should end."""
        return self.bytes >= BYTES_MAX or self._journals >= JOURNALS_MAX


class Outlets:
    """The stores that a shard publishes to, each with a producer of its own, new for each start of the shard."""

    def __init__(
        self, own: Store, others: Mapping[str, Store], *, with_engine: bool, deadline: Duration = OUTPUT_DEADLINE
    ) -> None:
        self._stores: dict[str, Store] = {OWN: own, **others}
        self._with_engine = with_engine
        self._deadline = deadline
        self._publishers: dict[str, Publisher] = {}
        self.names = frozenset(self._stores)

    def new_outbox(self) -> Outbox:
        """For the next transaction."""
        return Outbox(self.names)

    def operations(self, outbox: Outbox) -> list[Operation]:
        """The messages that commit with the state, if they can."""
        if not self._with_engine:
            return []
        own = outbox.entries.get(OWN, {})
        parts = [own] if outbox.bytes <= CHUNK_BYTES else _transactions(own)
        return [calls.append_many(journal, entries) for some in parts for journal, entries in some.items()]

    def append(self, outbox: Outbox) -> None:
        """Make the others durable, pending."""
        for name, by_journal in self._pending(outbox):
            for some in [by_journal] if outbox.bytes <= CHUNK_BYTES else _transactions(by_journal):
                self._publisher(name).publish_uncommitted_many(some)

    def build_intents(self) -> dict[str, list[AckIntent]]:
        """The acknowledgements of all that was appended since the last ones; they go into the checkpoint."""
        built = {name: publisher.build_ack_intents() for name, publisher in self._publishers.items()}
        return {name: intents for name, intents in built.items() if intents}

    def acknowledge(self, intents: Mapping[str, list[AckIntent]]) -> None:
        """Let readers see what the checkpoint has committed."""
        for name, some in intents.items():
            self._publisher(name).acknowledge(some)

    def recover(self, intents: Mapping[str, list[AckIntent]], *, is_reset: bool) -> list[str]:
        """Send a checkpoint's acknowledgements again, as they were. Answers those that could not be sent because their
        journal is gone.

        An acknowledgement that comes after the consumer's output deadline and the journal's transaction deadline is
        refused, and its messages are lost, unless a checkpoint in the same store has held them. That stops the shard,
        until a reset of the consumer says that this is known.
        """
        missing: list[str] = []
        for name, some in intents.items():
            if name not in self._stores:
                raise Invalid(
                    f"the checkpoint holds acknowledgements for the output {name!r}, which this consumer does not have "
                    "any more: name it in outputs until they are written"
                )
            try:
                self._stores[name].commit([intent.operation() for intent in some])
            except (NotFound, Fenced):
                missing += self._recover_one_by_one(self._stores[name], some, is_reset)
        return missing

    @staticmethod
    def _recover_one_by_one(store: Store, intents: list[AckIntent], is_reset: bool) -> list[str]:
        """Those that can be sent, when not all can; the journals that are gone."""
        missing: list[str] = []
        for intent in intents:
            try:
                store.commit([intent.operation()])
            except NotFound:
                logger.warning("the journal %r is gone, and so are the messages in it", intent.journal)
                missing.append(intent.journal)
            except Fenced as error:
                if isinstance(error, ClockBehind):
                    continue  # an open transaction's producer is never forgotten: this one was acknowledged
                if not is_reset:
                    raise Invalid(_lost(intent.journal, error)) from error
                logger.error("%s", _lost(intent.journal, error))
        return missing

    @property
    def has_published(self) -> bool:
        """Whether something may be pending."""
        return bool(self._publishers)

    def give_up(self, kept: Mapping[str, list[AckIntent]]) -> None:
        """Roll back what the last transaction of these has left pending, unless a checkpoint has kept its promise. The
        fence is raised by now, so that no commit of it can come any more. Otherwise a shard whose commit fails again
        and again would leave one open transaction each time, for as long as the output deadline. What could not be
        rolled back stays with these, for another try."""
        self._publishers = {
            name: publisher
            for name, publisher in self._publishers.items()
            if not _is_given_up(publisher, kept.get(name, []))
        }

    def heads(self, written: Iterable[tuple[str, str]]) -> dict[str, int]:
        """The next offsets of journals that were published to; other stores' journals have the store's name before
        them. What is too long for a name then is left out."""
        found = {}
        for name, journal in written:
            shown = f"{name}:{journal}" if name else journal
            if name in self._stores and len(shown) <= NAME_MAX:
                with suppress(Denied):  # who may publish there may not be one who may read
                    found[shown] = self._stores[name].reader.next_offset(journal)
        return found

    def _pending(self, outbox: Outbox) -> Iterator[tuple[str, dict[str, list[Entry]]]]:
        for name, by_journal in outbox.entries.items():
            if name != OWN or not self._with_engine:
                yield name, by_journal

    def _publisher(self, name: str) -> Publisher:
        known = self._publishers.get(name)
        if known is None:
            known = self._publishers[name] = self._stores[name].publisher(deadline=self._deadline)
        return known


def _is_given_up(publisher: Publisher, kept: list[AckIntent]) -> bool:
    """Roll back what a publisher has pending. False if that may come to be done by another try."""
    promised = publisher.last_promised()
    if promised and set(promised) & set(kept):
        return True
    try:
        publisher.roll_back()
    except Fenced as error:  # past its deadline it was rolled back; or this store's owner was replaced for good
        logger.warning("what a failed transaction left pending cannot be rolled back: %s", error)
    except DetentError as error:
        logger.warning("what a failed transaction left pending is not rolled back yet: %s", error)
        return False
    return True


def _checked(journal: str, body: bytes, key: bytes | None, headers: Mapping[str, str] | None) -> Entry:
    """A message, if it can be stored: refused here, in the caller's own line, and not when everything commits."""
    operation = calls.append(journal, body, key, headers)
    ops.check_append(operation)
    return (operation.bodies[0], key, None if operation.headers is None else operation.headers[0])


def _lost(journal: str, error: Fenced) -> str:
    return (
        f"the last transaction published to {journal!r}, and its acknowledgement comes too late: {error}. If "
        "they were not acknowledged before, those messages are lost. Raise the consumer's output_deadline; to go on, "
        "reset the consumer"
    )


def _size(entry: Entry) -> int:
    return MESSAGE_COST + (len(entry) if type(entry) is bytes else sum(map(_part_size, entry)))


def _part_size(part: object) -> int:
    if isinstance(part, bytes):
        return len(part)
    return sum(len(name) + len(value) for name, value in part.items()) if isinstance(part, Mapping) else 0


def _chunks(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Entries in pieces that one append takes."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        here = _size(entry)
        if chunk and size + here > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += here
    if chunk:
        yield chunk


def _transactions(by_journal: dict[str, list[Entry]]) -> Iterator[dict[str, list[Entry]]]:
    """The messages of several journals in pieces that one transaction takes: mostly one."""
    some: dict[str, list[Entry]] = {}
    size = 0
    for journal, entries in by_journal.items():
        for chunk in _chunks(entries):
            here = sum(map(_size, chunk))
            if some and (size + here > CHUNK_BYTES or journal in some):
                yield some
                some, size = {}, 0
            some[journal] = chunk
            size += here
    if some:
        yield some
