"""The flags of a message: does it stand alone, belong to an open transaction, or close one?"""

from __future__ import annotations

from typing import Final

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
