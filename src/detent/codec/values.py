"""Little-endian values: a cursor that reads them and a builder that writes them.

A record codec lists its fields twice, in the same order and under the same names:

    def encode(self) -> bytes:
        return ByteWriter().u64(self.message).utf8(self.consumer).finish()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        reader = ByteReader(value, "claim")
        record = cls(message=reader.u64(), consumer=reader.utf8())
        reader.finish()
        return record

Two rules hold throughout. Writing never truncates: what does not fit its field is refused with `Invalid` or
`LimitExceeded`. Reading never trusts: a length or count is checked against the bytes that are there before
anything is sliced or allocated, and stored bytes that break their format raise `Corrupt`.

Integers in values are little-endian. The few values that are big-endian, and the fixed heads of larger
records, go through :meth:`Cursor.unpack` and :meth:`ByteWriter.pack` with a `struct.Struct` of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar

from detent.errors import Corrupt, Invalid, LimitExceeded

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview
"""What a cursor reads. It is not copied: do not change a bytearray while a cursor stands on it."""

U8_MAX: Final = (1 << 8) - 1
U16_MAX: Final = (1 << 16) - 1
U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1

UTF8_BYTES_MAX: Final = U16_MAX
"""A text field counts its UTF-8 bytes in a u16."""

ARRAY_COUNT_MAX: Final = U16_MAX
"""An array counts its elements in a u16. Records that need more are split, not widened."""

VAR_BYTES_MAX: Final = U32_MAX
"""A byte field counts its bytes in a u32."""

_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_I64: Final = struct.Struct("<q")
_F64: Final = struct.Struct("<d")


class ByteCursor:
    """A position in bytes that moves forward only and never past the end.

    `what` names the record in error messages.
    """

    __slots__ = ("_at", "_data", "_size", "_what")

    def __init__(self, data: Bytes, what: str = "record") -> None:
        if isinstance(data, memoryview) and data.format != "B":
            data = data.cast("B")  # positions count bytes, whatever the view's items are
        self._data = data
        self._size = len(data)
        self._at = 0
        self._what = what

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._at

    @property
    def remaining(self) -> int:
        """How many bytes have not been read."""
        return self._size - self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes, as a copy that does not keep the record alive."""
        return bytes(self._data[self._at : self._step(count)])

    def view(self, count: int) -> memoryview:
        """The next `count` bytes without a copy; the view keeps the whole record alive."""
        start = self._at
        return memoryview(self._data)[start : self._step(count)]

    def rest(self) -> bytes:
        """All bytes that have not been read."""
        return self.take(self._size - self._at)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Fixed fields in one step, in the byte order that `layout` states."""
        try:
            fields = layout.unpack_from(self._data, self._at)
        except struct.error:
            raise self._short(layout.size) from None
        self._at += layout.size
        return fields

    def finish(self, *, allow_trailing: bool = False) -> None:
        """State that the record ends here.

        Bytes that are left over are `Corrupt`, unless the format reserves them for fields of later versions.
        """
        if self._at != self._size and not allow_trailing:
            raise self.corrupt(f"{self._size - self._at} bytes follow the last field")

    def corrupt(self, reason: str) -> Corrupt:
        """An error, to be raised by the caller, that names the record and the position."""
        return Corrupt(f"{self._what}, at byte {self._at} of {self._size}: {reason}")

    def _step(self, count: int) -> int:
        end = self._at + count
        if count < 0 or end > self._size:
            raise self._short(count)
        self._at = end
        return end

    def _short(self, count: int) -> Corrupt:
        return self.corrupt(f"{count} bytes expected, {self._size - self._at} left")


class ByteReader(ByteCursor):
    """Reads the fields of a value in order."""

    __slots__ = ()

    def u8(self) -> int:
        """One byte."""
        return self._integer(_U8)

    def u16(self) -> int:
        """Two bytes, unsigned."""
        return self._integer(_U16)

    def u32(self) -> int:
        """Four bytes, unsigned."""
        return self._integer(_U32)

    def u64(self) -> int:
        """Eight bytes, unsigned."""
        return self._integer(_U64)

    def i64(self) -> int:
        """Eight bytes, signed; times are milliseconds since 1970 in this form."""
        return self._integer(_I64)

    def f64(self) -> float:
        """Eight bytes, IEEE 754."""
        value: float = self.unpack(_F64)[0]
        return value

    def utf8(self) -> str:
        """A text: u16 byte count, then UTF-8."""
        count = self._integer(_U16)
        end = self._step(count)
        try:
            return str(self._data[end - count : end], "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"the text before this is not UTF-8: {error.reason}") from None

    def optional_utf8(self) -> str | None:
        """A text whose empty form means that there is none."""
        return self.utf8() or None

    def var_bytes(self) -> bytes:
        """A byte string: u32 count, then the bytes."""
        return self.take(self._integer(_U32))

    def var_view(self) -> memoryview:
        """A byte string as :meth:`var_bytes` reads it, without a copy."""
        return self.view(self._integer(_U32))

    def array(self, read: Callable[[ByteReader], T], *, element_bytes: int = 1) -> list[T]:
        """An array: u16 count, then the elements, each taken by `read`.

        `element_bytes` is the least that one element occupies. A count that cannot fit into what is left is
        refused before the first element is read.
        """
        count = self.count(self._integer(_U16), element_bytes)
        return [read(self) for _ in range(count)]

    def count(self, count: int, element_bytes: int) -> int:
        """Check a count that was read from the record: that many elements must fit into what is left."""
        if count * element_bytes > self._size - self._at:
            raise self.corrupt(f"{count} elements of {element_bytes} bytes or more, {self._size - self._at} left")
        return count

    def fixed_elements(self, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """An array without a count: elements of one size up to the end of the value."""
        if (self._size - self._at) % layout.size:
            raise self.corrupt(f"{self._size - self._at} bytes are not a multiple of {layout.size}")
        return list(layout.iter_unpack(self.view(self._size - self._at)))

    def _integer(self, layout: struct.Struct) -> int:
        # One try costs nothing when it does not raise; a bounds check by hand costs a call for each field.
        try:
            value: int = layout.unpack_from(self._data, self._at)[0]
        except struct.error:
            raise self._short(layout.size) from None
        self._at += layout.size
        return value


class ByteWriter:
    """Builds a value field by field; every method returns the writer, so that a record is one expression."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def __len__(self) -> int:
        return len(self._out)

    def u8(self, value: int) -> Self:
        """One byte."""
        return self.pack(_U8, value)

    def u16(self, value: int) -> Self:
        """Two bytes, unsigned."""
        return self.pack(_U16, value)

    def u32(self, value: int) -> Self:
        """Four bytes, unsigned."""
        return self.pack(_U32, value)

    def u64(self, value: int) -> Self:
        """Eight bytes, unsigned."""
        return self.pack(_U64, value)

    def i64(self, value: int) -> Self:
        """Eight bytes, signed."""
        return self.pack(_I64, value)

    def f64(self, value: float) -> Self:
        """Eight bytes, IEEE 754."""
        return self.pack(_F64, value)

    def raw(self, data: Bytes) -> Self:
        """Bytes as they are, with no count."""
        self._out += data
        return self

    def pack(self, layout: struct.Struct, *fields: Any) -> Self:
        """Fixed fields in one step, in the byte order that `layout` states."""
        try:
            packed = layout.pack(*fields)
        except (struct.error, OverflowError) as error:
            raise Invalid(f"{fields!r} does not fit {layout.format!r}: {error}") from None
        # struct cuts or pads a byte string that is not as long as its field, and says nothing.
        if "s" in layout.format and layout.unpack(packed) != fields:
            raise Invalid(f"{fields!r} does not fill the fields of {layout.format!r}")
        self._out += packed
        return self

    def utf8(self, text: str) -> Self:
        """A text: u16 byte count, then UTF-8."""
        data = _utf8_bytes(text)
        self._out += _U16.pack(len(data))
        self._out += data
        return self

    def optional_utf8(self, text: str | None) -> Self:
        """A text or None. The empty text is refused, because it would read back as None."""
        if text == "":
            raise Invalid("an empty text cannot be told from an absent one here; pass None")
        return self.utf8(text or "")

    def var_bytes(self, data: Bytes) -> Self:
        """A byte string: u32 count, then the bytes."""
        count = data.nbytes if isinstance(data, memoryview) else len(data)
        if count > VAR_BYTES_MAX:
            raise LimitExceeded(f"a byte field of {count} bytes is over the limit of {VAR_BYTES_MAX}")
        self._out += _U32.pack(count)
        self._out += data
        return self

    def array(self, items: Iterable[T], write: Callable[[ByteWriter, T], object]) -> Self:
        """An array: u16 count, then the elements, each put down by `write`."""
        start = len(self._out)
        self._out += b"\x00\x00"
        count = 0
        for item in items:
            count += 1
            if count > ARRAY_COUNT_MAX:
                raise LimitExceeded(f"an array holds at most {ARRAY_COUNT_MAX} elements")
            write(self, item)
        _U16.pack_into(self._out, start, count)
        return self

    def fixed_elements(self, layout: struct.Struct, elements: Iterable[tuple[Any, ...]]) -> Self:
        """An array without a count. It must be all that the value holds, or its end could not be found."""
        for element in elements:
            self.pack(layout, *element)
        return self

    def finish(self) -> bytes:
        """The finished value."""
        return bytes(self._out)


def _utf8_bytes(text: str) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"the text has no UTF-8 form: {error.reason}") from None
    if len(data) > UTF8_BYTES_MAX:
        raise LimitExceeded(f"a text of {len(data)} UTF-8 bytes is over the limit of {UTF8_BYTES_MAX}")
    return data
