"""The two meta pages of LMDB, looked at before LMDB does: it takes the one with the higher number, and checks little.

Commits write them in turn, so their numbers are neighbours. Where they are not, one is damaged, and LMDB could begin
with a state that is long past.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

from detent.errors import Corrupt

_PAGE_SIZE_AT: Final = 40
_NUMBER_AT: Final = 144
_TRIES: Final = 20
_TRY_S: Final = 0.001


def check_meta_pages(data: Path) -> None:
    """`Corrupt` if a commit that is shown by one meta page cannot have come next to that of the other."""
    numbers: tuple[int, int] = (0, 0)
    for _ in range(_TRIES):  # a writer may write one while they are read
        numbers = _numbers(data) or (0, 0)
        if numbers == (0, 0) or (abs(numbers[0] - numbers[1]) == 1 and numbers[0] % 2 == 0):
            return
        time.sleep(_TRY_S)
    raise Corrupt(
        f"{data} is damaged: its two meta pages show the commits {numbers[0]} and {numbers[1]} of LMDB, which do not "
        "follow each other; restore the store from a copy"
    )


def _numbers(data: Path) -> tuple[int, int] | None:
    """The commits of the two meta pages; None where LMDB will say what is wrong, or make the file."""
    try:
        with data.open("rb") as file:
            first = file.read(_NUMBER_AT + 8)
            if len(first) < _NUMBER_AT + 8:
                return None
            file.seek(struct.unpack_from("=I", first, _PAGE_SIZE_AT)[0])
            second = file.read(_NUMBER_AT + 8)
    except FileNotFoundError:
        return None
    if len(second) < _NUMBER_AT + 8:
        return None
    (one,), (other,) = (struct.unpack_from("=Q", page, _NUMBER_AT) for page in (first, second))
    return one, other
