"""Sizes as people write and read them: "256MiB", "1.5 GB", "512 B"."""

from __future__ import annotations

import re
from typing import Final

from detent.errors import Invalid

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KiB|MiB|GiB)?")
_UNITS: Final = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZE_MAX: Final = (1 << 63) - 1
"""What databases can hold; nothing is near it."""

_STEP: Final = 1024
_NEXT_FROM: Final = 1023.95
"""From here on a value would be shown as 1,024.0 of its unit."""


def size_of(value: int | str) -> int:
    """A number of bytes, as people write it.

    >>> size_of("256MiB"), size_of("1.5 KB"), size_of(7)
    (268435456, 1500, 7)
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Invalid(f"{value!r} is not a size: write 256MiB, or a number of bytes")
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise Invalid(f"{value!r} is not a size: write 256MiB, or a number of bytes")
    size = float(match[1]) * _UNITS[match[2] or "B"]  # hundreds of digits are infinity
    if size > SIZE_MAX:
        raise Invalid("a size is less than 8 EiB")
    return int(size)


def size_text(size: int) -> str:
    """A number of bytes for people, in the unit that fits.

    >>> size_text(512), size_text(1536), size_text(3 << 20)
    ('512 B', '1.5 KiB', '3.0 MiB')
    """
    if size < _STEP:
        return f"{size} B"
    value, unit = size / _STEP, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value < _NEXT_FROM:
            break
        value, unit = value / _STEP, larger
    return f"{value:,.1f} {unit}"
