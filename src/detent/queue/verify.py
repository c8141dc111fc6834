"""The queues' part of `store verify`: their records one by one, then the state that follows from all of them.

Everything is read from one view. The state is worked out as an owner does that takes over, by replaying the state log;
what each queue holds is then compared with the bodies and the metadata log. Memory is needed for the state, as the
owner needs it, and for some 30 bytes a message; bodies and metadata pass by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from detent.codec import queue as records
from detent.codec import statelog
from detent.codec.keys import SUBSYSTEM_LOG, SUBSYSTEM_QUEUE, Prefix, u32
from detent.codec.log import LOG_VERSION
from detent.codec.published import FOREVER, PAYLOAD
from detent.codec.queue import Config, QueueCursor, Watermark
from detent.codec.reader import READER
from detent.codec.values import U32_MAX
from detent.engine.verify import Finding, Tally, record_at
from detent.errors import Corrupt, DetentError, Invalid
from detent.kv import Reader, View
from detent.queue import operations as ops
from detent.queue.filters import Filter
from detent.queue.holdings import LIVE
from detent.queue.machine import QueueMachine
from detent.queue.memory import STORES_OWN
from detent.queue.settings import changed
from detent.queue.verify_messages import MessageCheck
from detent.queue.verify_queue import QueueCheck

PREFIX_BYTES: Final = 3
NUMBER_BYTES: Final = 4
LOG: Final = Prefix(SUBSYSTEM_LOG, LOG_VERSION)
OF_ONE_QUEUE: Final = (records.ACTIVE, records.DONE, records.FAILED, records.ATTEMPTS, records.ORIGIN, READER)
KNOWN: Final = (
    *OF_ONE_QUEUE,
    LOG,
    PAYLOAD,
    records.CONFIG,
    records.CURSOR,
    records.STATE_LOG,
    records.WATERMARK,
    records.DEDUP,
    records.DEDUP_EXPIRY,
    records.DELETED,
    records.NEXT_QUEUE,
    records.DEDUP_WINDOW,
)
"""All that this release writes of queues, and of the log that is theirs."""


def has_queues(view: View) -> bool:
    """Whether there is any record of queues."""
    ranges = [(bytes([system]), bytes([system + 1])) for system in (SUBSYSTEM_LOG, SUBSYSTEM_QUEUE)]
    return any(True for start, end in ranges for _ in view.scan(start, end, limit=1))


def check_queues(reader: Reader, tally: Tally) -> Iterator[Finding]:
    """Check all queues, as they are at one moment."""
    with reader.view() as view:
        survey = QueueRecords(view, tally)
        yield from survey.findings()
        machine: QueueMachine | None = QueueMachine(reader)
        try:
            assert machine is not None
            machine.load(view)
        except (Corrupt, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            machine = None
            reason = str(error) if isinstance(error, Corrupt) else f"{type(error).__name__}: {error}"
            problem = f"an owner could not work out the queues' state, which is compared with nothing: {reason}"
            yield Finding(record_at(records.WATERMARK.raw), problem)
        yield from MessageCheck(view, tally, machine, survey.numbers, survey.names).findings()
        yield from _check_dedup(view, tally, machine, survey)


class QueueRecords:
    """The records that belong to all queues, and those that belong to one."""

    def __init__(self, view: View, tally: Tally) -> None:
        self._view = view
        self._tally = tally
        self._watermark = Watermark(0, 0, 1)
        self._configs: dict[int, Config] = {STORES_OWN: Config("true", 0, 0, STORES_OWN, 0)}
        self._deleted: set[int] = set()
        self._cursors: dict[int, QueueCursor] = {}
        self._next = 1
        self.names: dict[int, str] = {}

    def findings(self) -> Iterator[Finding]:
        """Look at all of them; afterwards `names` has each queue that is there."""
        yield from self._numbers()
        yield from self._settings()
        yield from self._deletions()
        yield from self._next_queue()
        yield from self._read_cursors()
        yield from self._state_log()
        for prefix in OF_ONE_QUEUE:
            yield from self._strangers(prefix)
        for number, config in self._configs.items():
            cursor = self._cursors.get(number, QueueCursor(LIVE, *(0,) * 9))
            yield from QueueCheck(
                self._view,
                self._tally,
                self.names.get(number),
                config,
                cursor,
                self._watermark,
                deleted=number in self._deleted,
            ).findings()

    @property
    def numbers(self) -> list[int]:
        """All queues that have records: also the deleted ones, and the store's own."""
        return sorted(self._configs)

    def _at(self, key: bytes, number: int, problem: str) -> Finding:
        return Finding(record_at(key, queue=self.names.get(number)), problem)

    def _numbers(self) -> Iterator[Finding]:
        for prefix, what in (
            (records.WATERMARK, "checkpoint watermark"),
            (records.NEXT_QUEUE, "next queue"),
            (records.DEDUP_WINDOW, "dedup window"),
        ):
            for key, value in self._tally.scan(self._view, *prefix.range()):
                try:
                    prefix.reader(key, what).finish()
                    if prefix is records.WATERMARK:
                        self._watermark = Watermark.decode(value)
                        continue
                    number = records.decode_number(value, what)
                except Corrupt as error:
                    yield Finding(record_at(key), str(error))
                    continue
                if prefix is records.NEXT_QUEUE:
                    self._next = number
                elif number > ops.DELAY_MS_MAX:
                    yield Finding(record_at(key), f"a dedup window of {number} ms is out of range")

    def _settings(self) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *records.CONFIG.range()):
            try:
                name = key[PREFIX_BYTES:].decode()
                ops.check_name(name)
                config = Config.decode(value)
            except (UnicodeDecodeError, Invalid, Corrupt) as error:
                yield Finding(record_at(key), f"malformed queue settings: {error}")
                continue
            if config.number in self._configs:
                other = self.names.get(config.number, "the store's own")
                yield Finding(record_at(key, queue=name), f"number {config.number} is also the number of {other!r}")
                continue
            self._configs[config.number] = config
            self.names[config.number] = name
            self._tally.counts.queues += 1
            yield from self._check_settings(key, name, config)

    def _check_settings(self, key: bytes, name: str, config: Config) -> Iterator[Finding]:
        try:
            if changed(name, config, ops.Settings()) != config:
                raise Invalid("a default is above its maximum")
        except DetentError as error:
            yield self._at(key, config.number, f"settings that no queue can have: {error}")
        try:
            Filter(config.filter)
        except DetentError as error:
            yield self._at(key, config.number, f"a filter that does not compile: {error}")

    def _deletions(self) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *records.DELETED.range()):
            try:
                reader = records.DELETED.reader(key, "deleted queue")
                number = reader.u32()
                reader.finish()
                config = Config.decode(value)
            except Corrupt as error:
                yield Finding(record_at(key), f"a malformed note of a deleted queue: {error}")
                continue
            if config.number != number:
                yield Finding(record_at(key), f"a deleted queue's settings are those of number {config.number}")
            elif number in self._configs:
                yield self._at(key, number, "the queue is there, and noted as deleted")
            else:
                self._configs[number] = config
                self._deleted.add(number)

    def _next_queue(self) -> Iterator[Finding]:
        highest = max(self._configs)
        if self._next <= highest:
            problem = (
                f"the next queue would get number {self._next}, and {highest} is taken: it would share its records"
            )
            yield Finding(record_at(records.NEXT_QUEUE.raw), problem)

    def _read_cursors(self) -> Iterator[Finding]:
        for key, value in self._tally.scan(self._view, *records.CURSOR.range()):
            try:
                reader = records.CURSOR.reader(key, "cursor key")
                number = reader.u32()
                reader.finish()
                cursor = QueueCursor.decode(value)
            except Corrupt as error:
                yield Finding(record_at(key), str(error))
                continue
            if number not in self._configs:
                yield Finding(record_at(key), f"the cursor of queue number {number}, which does not exist")
                continue
            self._cursors[number] = cursor
            end = self._watermark.log_end
            if cursor.next_message != LIVE and cursor.next_message > end:
                yield self._at(
                    key, number, f"the queue has read up to {cursor.next_message}, and the log ends at {end}"
                )
            generation = self._configs[number].generation
            if cursor.generation != generation:
                problem = f"the cursor is of the filter's generation {cursor.generation}, the settings of {generation}"
                yield self._at(key, number, problem)
        for number in self._configs:
            if number not in self._cursors and number != STORES_OWN:
                yield self._at(records.cursor_key(number), number, f"queue number {number} has no cursor")

    def _state_log(self) -> Iterator[Finding]:
        expected = self._watermark.next_record
        for key, value in self._tally.scan(self._view, *records.STATE_LOG.range()):
            try:
                reader = records.STATE_LOG.reader(key, "state log key")
                number = reader.u64()
                reader.finish()
                for _ in statelog.decode_steps(value):
                    pass
            except Corrupt as error:
                yield Finding(record_at(key), str(error))
                continue
            if number != expected:
                yield Finding(record_at(key), f"the state log goes on with record {number} where {expected} belongs")
            expected = number + 1

    def _strangers(self, prefix: Prefix) -> Iterator[Finding]:
        """Records of one kind that belong to no queue. Those of the others are passed over."""
        at, end = prefix.range()
        assert end is not None
        while at < end:
            found = next(iter(self._view.scan(at, end, limit=1)), None)
            if found is None:
                return
            key = found[0]
            if len(key) < PREFIX_BYTES + NUMBER_BYTES:
                self._tally.saw(*found)
                yield Finding(record_at(key), f"a key of {len(key)} bytes is malformed")
                at = key + b"\x00"
                continue
            number = int.from_bytes(key[PREFIX_BYTES : PREFIX_BYTES + NUMBER_BYTES], "big")
            start, after = prefix.range(u32(number))
            at = end if after is None else after
            if number not in self._configs:
                count = sum(1 for _ in self._tally.scan(self._view, start, after))
                yield Finding(record_at(key), f"{count} records of queue number {number}, which does not exist")


# -- dedup keys -------------------------------------------------------------------------------------------------


DEDUP_BYTES_MAX: Final = len(records.own_dedup_key(U32_MAX, "")) + ops.DEDUP_KEY_BYTES_MAX
"""A dedup key of a queue, with the queue's number before it."""


def _check_dedup(view: View, tally: Tally, machine: QueueMachine | None, survey: QueueRecords) -> Iterator[Finding]:
    """Dedup keys and the index by their end agree, either way."""
    owners, alive = {None, *survey.numbers}, {None, *survey.names}
    for key, value in tally.scan(view, *records.DEDUP.range()):
        name = key[PREFIX_BYTES:]
        try:
            owner = records.dedup_owner(name)
            own = 0 if owner is None else len(records.own_dedup_key(owner, ""))
            if not name.decode() or len(name) - own > ops.DEDUP_KEY_BYTES_MAX:
                raise Corrupt(f"a dedup key of {len(name)} bytes")
            message, expires_ms = records.decode_dedup(value)
            if not 0 <= expires_ms <= FOREVER:
                raise Corrupt(f"a dedup key that is held until {expires_ms}")
        except (UnicodeDecodeError, Corrupt) as error:
            yield Finding(record_at(key), f"a malformed dedup key: {error}")
            continue
        if owner not in owners:
            yield Finding(record_at(key), f"a dedup key of queue number {owner}, which does not exist")
        if expires_ms < FOREVER and view.get(records.dedup_expiry_key(expires_ms, message)) != name:
            yield Finding(record_at(key), "the index by time does not name this dedup key, so that it is held for ever")
        if machine is not None and message >= machine.log_end:
            problem = f"the dedup key of message {message}, and the log ends at {machine.log_end}"
            yield Finding(record_at(key), problem)
    for key, value in tally.scan(view, *records.DEDUP_EXPIRY.range()):
        try:
            expires_ms, message = records.decode_dedup_expiry_key(key)
            stored = view.get(records.DEDUP.raw + value[: DEDUP_BYTES_MAX + 1])
            held = None if stored is None else records.decode_dedup(stored)
            owner = records.dedup_owner(value)
        except Corrupt as error:
            if not str(error).startswith("dedup key,"):  # the dedup record itself was found above
                yield Finding(record_at(key), str(error))
            continue
        if held is None and owner not in alive:
            continue  # a deleted queue's key is gone; what the index says of an earlier use goes when its time comes
        if held is None:
            yield Finding(record_at(key), f"the index by time names the dedup key {value!r}, which is not held")
        elif held != (message, expires_ms) and held[1] <= expires_ms:  # one that is taken again is held for longer
            problem = f"the index by time has the dedup key {value!r} until {expires_ms}, it is held until {held[1]}"
            yield Finding(record_at(key), problem)
