"""Values: the reader never reads past the end, the writer never cuts anything off."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec.values import ARRAY_COUNT_MAX, UTF8_BYTES_MAX, ByteReader, Bytes, ByteWriter
from detent.errors import Corrupt, Invalid, LimitExceeded
from unit import golden_codec as golden

INTEGERS = {"u8": (0, 2**8 - 1), "u16": (0, 2**16 - 1), "u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1)} | {
    "i64": (-(2**63), 2**63 - 1)
}
TEXT = st.text(max_size=40)

FIELD = st.one_of(
    *(st.tuples(st.just(name), st.integers(low, high)) for name, (low, high) in INTEGERS.items()),
    st.tuples(st.just("f64"), st.floats(allow_nan=False)),
    st.tuples(st.just("utf8"), TEXT),
    st.tuples(st.just("optional_utf8"), st.one_of(st.none(), st.text(min_size=1, max_size=8))),
    st.tuples(st.just("var_bytes"), st.binary(max_size=40)),
)


def encode(fields: list[tuple[str, object]]) -> bytes:
    writer = ByteWriter()
    for name, value in fields:
        getattr(writer, name)(value)
    return writer.finish()


@pytest.fixture(params=[bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def buffer(request: pytest.FixtureRequest) -> Callable[[bytes], Bytes]:
    kind: Callable[[bytes], Bytes] = request.param
    return kind


class TestRoundTrips:
    @pytest.mark.parametrize(("text", "encoded"), golden.UTF8)
    def test_golden_utf8(self, text: str, encoded: str) -> None:
        assert ByteWriter().utf8(text).finish().hex() == encoded
        assert ByteReader(bytes.fromhex(encoded)).utf8() == text

    @given(st.lists(FIELD, max_size=12))
    def test_fields_read_back_in_order(self, fields: list[tuple[str, object]]) -> None:
        for kind in (bytes, bytearray, memoryview):
            reader = ByteReader(kind(encode(fields)))
            for name, value in fields:
                assert getattr(reader, name)() == value
            reader.finish()

    @given(st.lists(FIELD, min_size=1, max_size=6), st.data())
    def test_every_truncation_is_corrupt(self, fields: list[tuple[str, object]], data: st.DataObject) -> None:
        encoded = encode(fields)
        reader = ByteReader(encoded[: data.draw(st.integers(0, len(encoded) - 1))])

        def read_all() -> None:
            for name, _ in fields:
                getattr(reader, name)()

        with pytest.raises(Corrupt):
            read_all()
        assert reader.position + reader.remaining <= len(encoded)

    @given(st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=20))
    def test_arrays(self, items: list[tuple[str, bytes]]) -> None:
        def write(writer: ByteWriter, item: tuple[str, bytes]) -> None:
            writer.utf8(item[0]).var_bytes(item[1])

        encoded = ByteWriter().array(items, write).u8(7).finish()
        assert encoded[:2] == len(items).to_bytes(2, "little")
        reader = ByteReader(encoded)
        assert reader.array(lambda r: (r.utf8(), r.var_bytes()), element_bytes=6) == items
        assert reader.u8() == 7

    @given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-128, 127)), max_size=20))
    def test_fixed_elements(self, items: list[tuple[int, int]]) -> None:
        layout = struct.Struct("<Ib")
        encoded = ByteWriter().fixed_elements(layout, items).finish()
        assert len(encoded) == 5 * len(items)
        assert ByteReader(encoded).fixed_elements(layout) == items

    def test_bytes_layout(self) -> None:
        assert ByteWriter().var_bytes(b"abc").finish().hex() == "03000000616263"
        assert ByteWriter().u16(0x0102).u32(0x01020304).i64(-2).finish().hex() == "020104030201feffffffffffffff"


class TestReader:
    def test_what_it_hands_out(self, buffer: Callable[[bytes], Bytes]) -> None:
        reader = ByteReader(buffer(b"\x03\x00\x00\x00abcdefgh"))
        assert reader.remaining == 12
        assert reader.var_view() == b"abc"
        taken = reader.take(2)
        assert (taken, type(taken)) == (b"de", bytes)
        assert reader.view(1).tobytes() == b"f"
        assert reader.position == 10
        assert reader.rest() == b"gh"
        assert reader.rest() == b""
        reader.finish()

    def test_a_view_of_wider_items_is_read_as_bytes(self) -> None:
        wide = memoryview(struct.pack("=III", 1, 2, 3)).cast("I")
        reader = ByteReader(wide)
        assert [reader.u32() for _ in range(3)] == [1, 2, 3]
        reader.finish()
        assert ByteWriter().var_bytes(wide).finish()[:4] == b"\x0c\x00\x00\x00"

    @pytest.mark.parametrize("count", [4, 2**31, 2**63, 2**70, -1])
    def test_take_is_bounded(self, buffer: Callable[[bytes], Bytes], count: int) -> None:
        reader = ByteReader(buffer(b"abc"))
        with pytest.raises(Corrupt):
            reader.take(count)
        with pytest.raises(Corrupt):
            reader.view(count)
        assert reader.take(3) == b"abc"

    def test_a_failed_read_leaves_the_position(self) -> None:
        reader = ByteReader(b"\x01\x02\x03")
        for read in (reader.u32, reader.u64, reader.i64, reader.f64):
            with pytest.raises(Corrupt):
                read()
        assert reader.u16() == 0x0201

    def test_trailing_bytes(self) -> None:
        reader = ByteReader(b"\x01\x02", "the thing")
        reader.u8()
        with pytest.raises(Corrupt, match=r"the thing, at byte 1 of 2: 1 bytes follow"):
            reader.finish()
        reader.finish(allow_trailing=True)

    @pytest.mark.parametrize("body", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
    def test_text_that_is_not_utf8(self, body: bytes, buffer: Callable[[bytes], Bytes]) -> None:
        with pytest.raises(Corrupt):
            ByteReader(buffer(len(body).to_bytes(2, "little") + body)).utf8()

    def test_a_length_is_checked_before_memory_is_taken(self) -> None:
        tracemalloc.start()
        try:
            for read in (ByteReader.var_bytes, ByteReader.var_view, lambda r: r.array(ByteReader.u8)):
                with pytest.raises(Corrupt):
                    read(ByteReader(b"\xff\xff\xff\xffx"))
            assert tracemalloc.get_traced_memory()[1] < 1 << 16
        finally:
            tracemalloc.stop()

    def test_a_count_is_checked_before_elements_are_read(self) -> None:
        reader = ByteReader(b"\x03\x00" + bytes(11))
        with pytest.raises(Corrupt, match="3 elements of 4 bytes"):
            reader.array(ByteReader.u32, element_bytes=4)

    def test_fixed_elements_need_whole_elements(self) -> None:
        with pytest.raises(Corrupt):
            ByteReader(bytes(9)).fixed_elements(struct.Struct("<Q"))
        assert ByteReader(b"").fixed_elements(struct.Struct("<Q")) == []

    def test_unpack_is_bounded(self) -> None:
        reader = ByteReader(bytes(15))
        with pytest.raises(Corrupt):
            reader.unpack(struct.Struct(">QQ"))
        assert reader.position == 0


class TestWriterRefuses:
    @pytest.mark.parametrize(("name", "bounds"), INTEGERS.items())
    def test_integers_out_of_range(self, name: str, bounds: tuple[int, int]) -> None:
        for value in (bounds[0] - 1, bounds[1] + 1, 2**70):
            with pytest.raises(Invalid):
                getattr(ByteWriter(), name)(value)

    def test_other_types(self) -> None:
        for value in ("1", 1.0, None):
            with pytest.raises(Invalid):
                ByteWriter().u64(value)  # type: ignore[arg-type]

    def test_texts(self) -> None:
        longest = "x" * UTF8_BYTES_MAX
        assert ByteReader(ByteWriter().utf8(longest).finish()).utf8() == longest
        with pytest.raises(LimitExceeded):
            ByteWriter().utf8(longest + "x")
        with pytest.raises(LimitExceeded):
            ByteWriter().utf8("é" * (UTF8_BYTES_MAX // 2 + 1))
        with pytest.raises(Invalid):
            ByteWriter().utf8("\ud800")

    def test_the_empty_text_where_empty_means_none(self) -> None:
        with pytest.raises(Invalid):
            ByteWriter().optional_utf8("")
        assert ByteWriter().optional_utf8(None).finish() == b"\x00\x00"

    def test_arrays(self) -> None:
        encoded = ByteWriter().array(range(ARRAY_COUNT_MAX), lambda w, _: w.u8(0)).finish()
        assert len(ByteReader(encoded).array(ByteReader.u8)) == ARRAY_COUNT_MAX
        with pytest.raises(LimitExceeded):
            ByteWriter().array(range(ARRAY_COUNT_MAX + 1), lambda w, _: w.u8(0))

    def test_byte_strings_beyond_their_length_field(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("detent.codec.values.VAR_BYTES_MAX", 3)
        assert len(ByteWriter().var_bytes(b"abc")) == 7
        with pytest.raises(LimitExceeded):
            ByteWriter().var_bytes(b"abcd")

    @pytest.mark.parametrize("data", [b"", b"1234567", b"12345"])
    def test_byte_fields_of_another_size(self, data: bytes) -> None:
        layout = struct.Struct("<B6s")
        with pytest.raises(Invalid):
            ByteWriter().pack(layout, 1, data)
        assert ByteWriter().pack(layout, 1, b"123456").finish() == b"\x01123456"
