"""The origin of a dead letter: which queues gave it up, why, and after which attempts. `docs/format.md` shows it in
full.

The record stands beside the message in the queue that has it now. Its size is bounded, because a queue may hold
millions of dead letters, and each claim of one reads its record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from detent.codec.queue import AttemptRecord
from detent.codec.values import ByteReader, ByteWriter

T = TypeVar("T")

MOVES_KEPT: Final = 5
"""Moves of one message that are kept: the first one, which says where it began, and the newest ones."""

MOVE_ATTEMPTS_KEPT: Final = 10
"""Attempts of one move that are kept: the first one and the newest ones."""

TEXT_BYTES_MAX: Final = 512
"""An attempt's reason, and that of a move that is not the last one, are cut to so many bytes. So a record has less than
64 KiB."""


class Move(NamedTuple):
    """A queue gave the message up. `number` counts the message's moves from 1 on; `attempts` are those in that queue,
    of which `history` has some."""

    number: int
    source: str
    source_queue: int
    moved_ms: int
    attempts: int
    delivery: int
    reason: str
    history: tuple[AttemptRecord, ...]


class OriginRecord(NamedTuple):
    """How a message came to the queue that has it: how often it was claimed before, in all queues, and its moves, the
    oldest first."""

    earlier: int
    moves: tuple[Move, ...]

    def encode(self) -> bytes:
        """The record's value."""
        return ByteWriter().u64(self.earlier).array(self.moves, _write_move).finish()

    @classmethod
    def decode(cls, value: bytes) -> OriginRecord:
        """Read a value back."""
        reader = ByteReader(value, "origin of a dead letter")
        origin = cls(reader.u64(), tuple(reader.array(_read_move, element_bytes=_MOVE.size + 6)))
        reader.finish()
        numbers = [move.number for move in origin.moves]
        if not 0 < len(numbers) <= MOVES_KEPT or numbers[0] < 1 or numbers != sorted(set(numbers)):
            raise reader.corrupt(f"moves are 1 to {MOVES_KEPT}, and their numbers rise from 1 on: {numbers}")
        return origin

    def moved(self, last: Move) -> OriginRecord:
        """The origin of the message after one more move."""
        shortened = [move._replace(reason=cut(move.reason)) for move in self.moves]
        history = kept(last.history, MOVE_ATTEMPTS_KEPT)
        attempts = tuple(attempt._replace(reason=cut(attempt.reason)) for attempt in history)
        number = self.moves[-1].number + 1 if self.moves else 1
        moves = (*shortened, last._replace(number=number, history=attempts))
        return OriginRecord(self.earlier + last.attempts, tuple(kept(moves, MOVES_KEPT)))


NOWHERE: Final = OriginRecord(0, ())
"""Of a message that no queue has given up."""

_MOVE: Final = struct.Struct("<IIqHQ")


def _write_move(writer: ByteWriter, move: Move) -> None:
    writer.pack(_MOVE, move.number, move.source_queue, move.moved_ms, move.attempts, move.delivery)
    writer.utf8(move.source).utf8(move.reason)
    writer.array(move.history, lambda w, a: w.i64(a.claimed_ms).utf8(a.consumer).i64(a.ended_ms).utf8(a.reason))


def _read_move(reader: ByteReader) -> Move:
    number, queue, moved_ms, attempts, delivery = reader.unpack(_MOVE)
    source, reason = reader.utf8(), reader.utf8()
    history = reader.array(lambda r: AttemptRecord(r.i64(), r.utf8(), r.i64(), r.utf8()), element_bytes=20)
    if not history:
        raise reader.corrupt("a queue gave a message up that was never claimed there")
    return Move(number, source, queue, moved_ms, attempts, delivery, reason, tuple(history))


def kept(items: Sequence[T], count: int) -> Sequence[T]:
    """The first one and the newest ones, `count` in all."""
    return items if len(items) <= count else (items[0], *items[1 - count :])


def cut(text: str) -> str:
    """As much of a text as is kept."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
