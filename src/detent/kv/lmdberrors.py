"""What LMDB finds wrong with its pages, said as one of our errors."""

from __future__ import annotations

from typing import Final

import lmdb

from detent.errors import Corrupt

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.BadTxnError)
"""The last one is what a transaction says for each further call."""


def corrupt(error: lmdb.Error) -> Corrupt:
    """The error to raise for one of these."""
    return Corrupt(f"the data file of the store is damaged ({error}): restore the store from a copy")


class reading:
    """Raises that error for what LMDB finds wrong in a with-block. (A class, because a generator costs much more.)"""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DAMAGE):
            raise corrupt(error) from error
