"""FlatBuffers as Arrow writes its metadata in, read without trust: no look leaves the bytes that were sent.

A table says where its fields are relative to itself, so that a few bytes can point anywhere. Each step here is checked
against the length of the metadata; nothing is followed that was not asked for, so a loop of references costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from detent.errors import Invalid

FIELDS_MAX: Final = 8
"""No field behind these is looked at, in any table of Arrow's."""

_U8: Final = struct.Struct("<B")
_I16: Final = struct.Struct("<h")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")


def _at(kind: struct.Struct, data: memoryview, place: int) -> int:
    # Python counts negative places from the end, and would find something there.
    if place < 0 or place + kind.size > len(data):
        raise Invalid("its metadata point outside of themselves")
    found: int = kind.unpack_from(data, place)[0]
    return found


class FlatTable:
    """A table of fields by number; one that is not there has its default."""

    __slots__ = ("_data", "_fields", "_place")

    def __init__(self, data: memoryview, place: int) -> None:
        where = place - _at(_I32, data, place)
        size = _at(_U16, data, where)
        if size < 4 or size % 2 or where + size > len(data):
            raise Invalid("its metadata have a table without fields")
        self._data = data
        self._place = place
        count = min(size // 2 - 2, FIELDS_MAX)
        self._fields: tuple[int, ...] = struct.unpack_from(f"<{count}H", data, where + 4)

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return number < len(self._fields) and self._fields[number] != 0

    def _scalar(self, kind: struct.Struct, number: int, default: int) -> int:
        return _at(kind, self._data, self._place + self._fields[number]) if self.has(number) else default

    def u8(self, number: int, default: int = 0) -> int:
        """A byte, which is how truth values and kinds are written."""
        return self._scalar(_U8, number, default)

    def i16(self, number: int, default: int = 0) -> int:
        """A field of 16 bits, such as an enumeration."""
        return self._scalar(_I16, number, default)

    def i32(self, number: int, default: int = 0) -> int:
        """A field of 32 bits."""
        return self._scalar(_I32, number, default)

    def i64(self, number: int, default: int = 0) -> int:
        """A field of 64 bits, such as a length."""
        return self._scalar(_I64, number, default)

    def table(self, number: int) -> FlatTable | None:
        """A table that this one refers to."""
        place = self._reference(number)
        return None if place is None else FlatTable(self._data, place)

    def tables(self, number: int, most: int) -> Iterator[FlatTable]:
        """The tables of a vector of at most so many."""
        start, count = self._vector(number, 4)
        if count > most:
            raise Invalid(f"its metadata have {count} entries where at most {most} are allowed")
        for place in range(start, start + 4 * count, 4):
            yield FlatTable(self._data, place + _at(_U32, self._data, place))

    def bytes_of(self, number: int, width: int = 1) -> memoryview:
        """The bytes of a text, or of a vector of structs that are so wide."""
        start, count = self._vector(number, width)
        return self._data[start : start + count * width]

    def numbers(self, number: int, width: int) -> tuple[int, ...]:
        """A vector of structs of 64-bit numbers, as all of their numbers in a row."""
        found = self.bytes_of(number, width)
        return struct.unpack(f"<{len(found) // 8}q", found)

    def _reference(self, number: int) -> int | None:
        if not self.has(number):
            return None
        place = self._place + self._fields[number]
        return place + _at(_U32, self._data, place)

    def _vector(self, number: int, width: int) -> tuple[int, int]:
        place = self._reference(number)
        if place is None:
            return 0, 0
        count = _at(_U32, self._data, place)
        if place + 4 + count * width > len(self._data):
            raise Invalid("its metadata have a vector that is longer than they are")
        return place + 4, count


def root(data: memoryview) -> FlatTable:
    """The table that a FlatBuffer begins with."""
    return FlatTable(data, _at(_U32, data, 0))
