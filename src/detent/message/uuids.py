"""Message ids: RFC 4122 version-1 UUIDs that carry producer, clock and flags.

The node bits hold the producer, the timestamp and the upper four bits of the clock sequence hold the clock, and the
lower ten bits of the clock sequence hold the flags. An id can thus be read without any other state.
"""

from __future__ import annotations

import uuid
from typing import Final, Self

from detent.errors import Invalid
from detent.message.clock import CLOCK_MAX, COUNTER_BITS

FLAG_BITS: Final = 10
"""The width of the flags field inside a message's UUID."""

FLAGS_MAX: Final = (1 << FLAG_BITS) - 1

OUTSIDE_TXN: Final = 0
"""The message commits by itself, at once."""

CONTINUE_TXN: Final = 1
"""The message is pending until its producer's next ACK_TXN."""

ACK_TXN: Final = 2
"""Commits the producer's pending messages up to its own clock, and rolls back those above it."""


def kind_of(flags: int) -> int:
    """OUTSIDE_TXN, CONTINUE_TXN or ACK_TXN; a value that is none of them is handled as OUTSIDE_TXN.

    >>> kind_of(2), kind_of(682)
    (2, 0)
    """
    return flags if flags in (CONTINUE_TXN, ACK_TXN) else OUTSIDE_TXN


PRODUCER_BYTES: Final = 6
PRODUCER_MAX: Final = (1 << 8 * PRODUCER_BYTES) - 1
_MULTICAST: Final = 0x01
_VERSION: Final = 1
_VARIANT: Final = 0b10
_COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1


class ProducerId(bytes):
    """Who published a message: six bytes, drawn at random for every lifetime of a publisher.

    Two live publishers must never share one, and a publisher that restarts is given a new one.
    State machines and columns use the integer form: `int(producer)`, and back with `ProducerId.of(number)`.
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        if len(value) != PRODUCER_BYTES:
            raise Invalid(f"a producer id has {PRODUCER_BYTES} bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def of(cls, number: int) -> Self:
        """The producer id whose bytes, read big-endian, are `number`."""
        if not 0 <= number <= PRODUCER_MAX:
            raise Invalid(f"producer {number} does not fit {PRODUCER_BYTES} bytes")
        return cls(number.to_bytes(PRODUCER_BYTES, "big"))

    def __int__(self) -> int:
        return int.from_bytes(self, "big")

    def __repr__(self) -> str:
        return f"ProducerId({self.hex()})"

    def __str__(self) -> str:
        return self.hex()


def new_producer_id(random_bytes: bytes) -> ProducerId:
    """A producer id from six random bytes, such as `os.urandom(6)`.

    The multicast bit is set, so that it never equals the address of a network card.
    """
    producer = ProducerId(random_bytes)
    return ProducerId(bytes([producer[0] | _MULTICAST]) + producer[1:])


def build_uuid(producer: bytes, clock: int, flags: int) -> uuid.UUID:
    """The id of one message.

    >>> str(build_uuid(bytes.fromhex("010000000001"), 160, 1))
    '0000000a-0000-1000-8001-010000000001'
    """
    if not 0 <= clock <= CLOCK_MAX:
        raise Invalid(f"clock {clock} does not fit 64 bits")
    if not 0 <= flags <= FLAGS_MAX:
        raise Invalid(f"flags {flags:#x} do not fit {FLAG_BITS} bits")
    steps = clock >> COUNTER_BITS
    sequence = _VARIANT << 14 | (clock & _COUNTER_MAX) << FLAG_BITS | flags
    high = (steps & 0xFFFF_FFFF) << 32 | (steps >> 32 & 0xFFFF) << 16 | _VERSION << 12 | steps >> 48
    return uuid.UUID(int=high << 64 | sequence << 48 | int(ProducerId(producer)))


def parse_uuid(value: uuid.UUID | bytes | str) -> tuple[ProducerId, int, int]:
    """Producer, clock and flags of a message id, given as a UUID, its 16 bytes or its text.

    The all-zero UUID is accepted and has clock 0: such a message is not sequenced. Any other UUID that is not of
    version 1 is `Invalid`.
    """
    number = _uuid(value).int
    if number == 0:
        return ProducerId.of(0), 0, 0
    if number >> 76 & 0xF != _VERSION or number >> 62 & 0b11 != _VARIANT:
        raise Invalid(f"{uuid.UUID(int=number)} is not a version-1 UUID, so it carries no producer and clock")
    # The version nibble sits above the 12 high bits of the timestamp and must not leak into it.
    steps = (number >> 64 & 0x0FFF) << 48 | (number >> 80 & 0xFFFF) << 32 | number >> 96
    sequence = number >> 48 & 0x3FFF
    clock = steps << COUNTER_BITS | sequence >> FLAG_BITS
    return ProducerId.of(number & PRODUCER_MAX), clock, sequence & FLAGS_MAX


def is_sequenced(value: uuid.UUID | bytes | str) -> bool:
    """Whether a message with this id is de-duplicated; one with clock 0, or without a version-1 id, is not."""
    parsed = _uuid(value)
    try:
        return parse_uuid(parsed)[1] != 0
    except Invalid:
        return False


def _uuid(value: uuid.UUID | bytes | str) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        if isinstance(value, bytes):
            return uuid.UUID(bytes=value)
        return uuid.UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise Invalid(f"{value!r} is not a UUID") from error
