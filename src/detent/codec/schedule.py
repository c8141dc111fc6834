"""The records of schedules: what is published when, and how far that is. `docs/format.md` shows them.

All keys start with subsystem 0A, version 01 and a type; the name follows and ends the key, so records lie in the order
of their names. What a schedule says is written when it is changed; how far it is stands in a small record of its own,
because each tick writes that one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from detent.codec.keys import SUBSYSTEM_SCHEDULE, Prefix
from detent.codec.values import ByteReader, ByteWriter

DEFINITION: Final = Prefix(SUBSYSTEM_SCHEDULE, 1, 0x01)
STATE: Final = Prefix(SUBSYSTEM_SCHEDULE, 1, 0x02)

QUEUE: Final = "queue"
JOURNAL: Final = "journal"
TARGETS: Final = (QUEUE, JOURNAL)
"""Where the messages of a schedule go."""

NONE: Final = "none"
LAST: Final = "last"
ALL: Final = "all"
MISSED: Final = (NONE, LAST, ALL)
"""Which of the ticks that were missed are made up for."""

RUNS_KEPT: Final = 8
"""Runs of ticks that a state remembers. They are looked at when the clock is set back, and there is a new one only
where ticks were passed over."""

NO_TIME: Final = 0
"""In the place of a time that there is not."""

_ABSENT: Final = 0
_PRESENT: Final = 1
_HEAD: Final = struct.Struct("<qqIBBIQqBQI")
_STATE: Final = struct.Struct("<QqqqQQq")
_RUN: Final = struct.Struct("<qq")
_HEADER_BYTES: Final = 4


class ScheduleDefinition(NamedTuple):
    """What a schedule says. It goes by `cron` in the zone `tz`, or by an interval of `every_ms`, from `start_ms` on if
    that is given. `edition` counts its changes.

    Without a body, its messages say in JSON which tick they are.
    """

    created_ms: int
    updated_ms: int
    edition: int
    paused: bool
    missed: str
    missed_max: int
    cron: str
    tz: str
    every_ms: int
    start_ms: int
    target: str
    place: str
    delay_ms: int
    retention_s: int
    key: bytes | None
    headers: dict[str, str]
    body: bytes | None

    def encode(self) -> bytes:
        writer = ByteWriter().pack(
            _HEAD, self.created_ms, self.updated_ms, self.edition, self.paused, MISSED.index(self.missed),
            self.missed_max, self.every_ms, self.start_ms, TARGETS.index(self.target), self.delay_ms, self.retention_s,
        )  # fmt: skip
        writer.utf8(self.cron).utf8(self.tz).utf8(self.place)
        writer.array(sorted(self.headers.items()), lambda w, header: w.utf8(header[0]).utf8(header[1]))
        for part in (self.key, self.body):
            if part is None:
                writer.u8(_ABSENT)
            else:
                writer.u8(_PRESENT).var_bytes(part)
        return writer.finish()

    @classmethod
    def decode(cls, value: bytes) -> ScheduleDefinition:
        reader = ByteReader(value, "schedule")
        head = reader.unpack(_HEAD)
        created_ms, updated_ms, edition, paused, missed, missed_max, every_ms, start_ms, target, delay_ms, kept_s = head
        cron, tz, place = reader.utf8(), reader.utf8(), reader.utf8()
        pairs = reader.array(lambda r: (r.utf8(), r.utf8()), element_bytes=_HEADER_BYTES)
        key, body = _read_part(reader), _read_part(reader)
        reader.finish()
        if paused not in {0, 1} or missed >= len(MISSED) or target >= len(TARGETS):
            raise reader.corrupt(f"paused {paused}, missed {missed}, target {target}")
        if not edition or not place or bool(cron) == bool(every_ms) or bool(cron) != bool(tz):
            raise reader.corrupt(f"edition {edition}, place {place!r}, cron {cron!r}, zone {tz!r}, every {every_ms} ms")
        names = [name for name, _ in pairs]
        if names != sorted(set(names)):
            raise reader.corrupt("headers that are out of order or twice there")
        return cls(
            created_ms, updated_ms, edition, bool(paused), MISSED[missed], missed_max, cron, tz, every_ms, start_ms,
            TARGETS[target], place, delay_ms, kept_s, key, dict(pairs), body,
        )  # fmt: skip


def _read_part(reader: ByteReader) -> bytes | None:
    """Bytes that may not be there."""
    there = reader.u8()
    if there not in {_ABSENT, _PRESENT}:
        raise reader.corrupt(f"{there} where bytes are there (1) or not (0)")
    return reader.var_bytes() if there else None


class ScheduleState(NamedTuple):
    """How far a schedule is. `step` rises with each change of it.

    `next_ms` is the tick that comes next, of which none before was published or passed over later; `last_ms` is the
    last one that was published, at `published_ms`. `published` and `skipped` count. `asked` are the times at which a
    message was asked for by hand that is not published yet, and `last_asked_ms` is the latest ever.

    `runs` are ticks that were published, each from the first to the last of some that follow one another.
    """

    step: int
    next_ms: int
    last_ms: int
    published_ms: int
    published: int
    skipped: int
    last_asked_ms: int
    asked: tuple[int, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        writer = ByteWriter().pack(
            _STATE, self.step, self.next_ms, self.last_ms, self.published_ms, self.published, self.skipped,
            self.last_asked_ms,
        )  # fmt: skip
        writer.array(self.asked, ByteWriter.i64)
        return writer.array(self.runs, lambda w, run: w.pack(_RUN, *run)).finish()

    @classmethod
    def decode(cls, value: bytes) -> ScheduleState:
        reader = ByteReader(value, "state of a schedule")
        step, next_ms, last_ms, published_ms, published, skipped, last_asked_ms = reader.unpack(_STATE)
        asked = tuple(reader.array(ByteReader.i64, element_bytes=8))
        runs = tuple(reader.array(lambda r: (r.i64(), r.i64()), element_bytes=_RUN.size))
        reader.finish()
        if list(asked) != sorted(set(asked)) or (asked and asked[-1] > last_asked_ms):
            raise reader.corrupt(f"times that were asked for out of order, or after {last_asked_ms}")
        if len(runs) > RUNS_KEPT or any(first > last for first, last in runs):
            raise reader.corrupt(f"runs of ticks that are over {RUNS_KEPT}, or end before they begin")
        return cls(step, next_ms, last_ms, published_ms, published, skipped, last_asked_ms, asked, runs)
