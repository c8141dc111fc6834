"""Key encodings: the reference's bytes, the order of values, and one key for one value."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detent.codec import keys
from detent.codec.keys import KeyReader, Prefix
from detent.errors import Corrupt, Invalid
from unit import golden_codec as golden

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)

TRICKY = st.lists(st.sampled_from([0x00, 0x01, 0x02, 0x61, 0xFE, 0xFF]), max_size=8).map(bytes)
"""Byte strings of the bytes around which an escape can go wrong."""

NEAR_POWERS = st.builds(
    lambda bit, off: min(max((1 << bit) + off, 0), 2**64 - 1), st.integers(0, 64), st.integers(-2, 2)
)
"""Integers around the places where the encoded length changes."""


class TestTerminated:
    @pytest.mark.parametrize(("raw", "encoded"), golden.TERMINATED)
    def test_golden(self, raw: bytes, encoded: str) -> None:
        assert keys.terminated(raw).hex() == encoded
        assert keys.decode_terminated(bytes.fromhex(encoded)) == (raw, len(encoded) // 2)

    @pytest.mark.parametrize(("encoded", "why"), golden.TERMINATED_REFUSED)
    def test_malformed_is_corrupt(self, encoded: str, why: str) -> None:
        with pytest.raises(Corrupt):
            keys.decode_terminated(bytes.fromhex(encoded))

    @given(TRICKY, TRICKY)
    @example(b"\xff\x00\xfe", b"a")
    def test_order(self, left: bytes, right: bytes) -> None:
        assert (left < right) == (keys.terminated(left) < keys.terminated(right))

    @given(TRICKY, st.binary(max_size=4), TRICKY, st.binary(max_size=4))
    def test_what_follows_does_not_disturb_the_order(
        self, left: bytes, after_left: bytes, right: bytes, after_right: bytes
    ) -> None:
        pair = (left, after_left) < (right, after_right)
        assert pair == (keys.terminated(left) + after_left < keys.terminated(right) + after_right)

    @given(st.one_of(TRICKY, st.binary(max_size=64)), st.binary(max_size=8), st.binary(max_size=8))
    def test_round_trip_in_the_middle_of_a_key(self, raw: bytes, before: bytes, after: bytes) -> None:
        key = before + keys.terminated(raw) + after
        assert keys.decode_terminated(key, len(before)) == (raw, len(key) - len(after))

    @given(st.one_of(TRICKY.map(lambda b: b + b"\x00"), st.binary(max_size=16)))
    def test_one_value_one_key(self, data: bytes) -> None:
        try:
            value, end = keys.decode_terminated(data)
        except Corrupt:
            return
        assert keys.terminated(value) == data[:end]

    @given(TRICKY)
    def test_growth_is_bounded(self, raw: bytes) -> None:
        assert len(keys.terminated(raw)) <= 2 * len(raw) + 1


VarCodec = tuple[Callable[[int], bytes], Callable[[bytes, int], tuple[int, int]], int]
VAR_CODECS: dict[str, VarCodec] = {
    "u64": (keys.var_u64, keys.decode_var_u64, 2**64 - 1),
    "u32": (keys.var_u32, keys.decode_var_u32, 2**32 - 1),
}


@pytest.fixture(params=sorted(VAR_CODECS))
def var_codec(request: pytest.FixtureRequest) -> VarCodec:
    return VAR_CODECS[request.param]


class TestVariableLengthIntegers:
    @pytest.mark.parametrize(("value", "encoded"), golden.VAR_U64)
    def test_golden_u64(self, value: int, encoded: str) -> None:
        assert keys.var_u64(value).hex() == encoded
        assert keys.decode_var_u64(bytes.fromhex(encoded)) == (value, len(encoded) // 2)

    @pytest.mark.parametrize(("value", "encoded"), golden.VAR_U32)
    def test_golden_u32(self, value: int, encoded: str) -> None:
        assert keys.var_u32(value).hex() == encoded
        assert keys.decode_var_u32(bytes.fromhex(encoded)) == (value, len(encoded) // 2)

    @pytest.mark.parametrize(("encoded", "why"), golden.VAR_U64_REFUSED)
    def test_refused_u64(self, encoded: str, why: str) -> None:
        with pytest.raises(Corrupt):
            keys.decode_var_u64(bytes.fromhex(encoded))

    @pytest.mark.parametrize(("encoded", "why"), golden.VAR_U32_REFUSED)
    def test_refused_u32(self, encoded: str, why: str) -> None:
        with pytest.raises(Corrupt):
            keys.decode_var_u32(bytes.fromhex(encoded))

    def test_out_of_range(self, var_codec: VarCodec) -> None:
        encode, _, highest = var_codec
        for value in (-1, highest + 1):
            with pytest.raises(Invalid):
                encode(value)

    @pytest.mark.parametrize("name", sorted(VAR_CODECS))
    @given(left=st.one_of(U64, NEAR_POWERS), right=st.one_of(U64, NEAR_POWERS))
    def test_order(self, name: str, left: int, right: int) -> None:
        encode, _, highest = VAR_CODECS[name]
        left, right = min(left, highest), min(right, highest)
        assert (left < right) == (encode(left) < encode(right))

    @pytest.mark.parametrize("name", sorted(VAR_CODECS))
    @given(value=st.one_of(U64, NEAR_POWERS), after=st.binary(max_size=3))
    def test_round_trip(self, name: str, value: int, after: bytes) -> None:
        encode, decode, highest = VAR_CODECS[name]
        value = min(value, highest)
        data = encode(value)
        assert decode(b"\xff" + data + after, 1) == (value, 1 + len(data))

    @pytest.mark.parametrize("name", sorted(VAR_CODECS))
    @given(data=st.binary(max_size=17))
    def test_one_value_one_key(self, name: str, data: bytes) -> None:
        encode, decode, _ = VAR_CODECS[name]
        try:
            value, end = decode(data, 0)
        except Corrupt:
            return
        assert encode(value) == data[:end]

    def test_every_two_byte_form(self, var_codec: VarCodec) -> None:
        encode, decode, _ = var_codec
        accepted = set()
        for number in range(1 << 16):
            data = number.to_bytes(2, "big")
            try:
                value, end = decode(data, 0)
            except Corrupt:
                continue
            if end == 2:
                assert encode(value) == data
                accepted.add(value)
        low, high = (16, 4096) if encode is keys.var_u64 else (32, 8192)
        assert accepted == set(range(low, high))


class TestSortableNumbers:
    @given(I64, I64)
    def test_order_of_integers(self, left: int, right: int) -> None:
        assert (left < right) == (keys.sortable_i64(left) < keys.sortable_i64(right))

    @given(I64)
    def test_integers_round_trip(self, value: int) -> None:
        assert KeyReader(keys.sortable_i64(value)).sortable_i64() == value

    @pytest.mark.parametrize("value", [-(2**63) - 1, 2**63])
    def test_integers_out_of_range(self, value: int) -> None:
        with pytest.raises(Invalid):
            keys.sortable_i64(value)

    @given(FLOATS, FLOATS)
    @example(-0.0, 0.0)
    @example(-math.inf, math.inf)
    @example(5e-324, 0.0)
    def test_order_of_floats(self, left: float, right: float) -> None:
        # -0.0 == 0.0 as numbers; as keys the negative one comes first.
        def rank(value: float) -> tuple[float, float]:
            return value, math.copysign(1.0, value)

        assert (rank(left) < rank(right)) == (keys.sortable_f64(left) < keys.sortable_f64(right))

    @given(FLOATS)
    @example(-0.0)
    @example(math.inf)
    @example(-math.inf)
    def test_floats_round_trip(self, value: float) -> None:
        back = KeyReader(keys.sortable_f64(value)).sortable_f64()
        assert struct.pack(">d", back) == struct.pack(">d", value)

    def test_nan_is_refused_both_ways(self) -> None:
        with pytest.raises(Invalid):
            keys.sortable_f64(math.nan)
        with pytest.raises(Invalid):
            keys.sortable_f64(-math.nan)
        for data in (b"\xff" * 8, b"\x00" * 8):
            with pytest.raises(Corrupt):
                KeyReader(data).sortable_f64()


class TestFixedIntegers:
    @pytest.mark.parametrize(("name", "size"), [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)])
    def test_bounds(self, name: str, size: int) -> None:
        encode = getattr(keys, name)
        highest = (1 << 8 * size) - 1
        assert encode(0) == bytes(size)
        assert encode(highest) == b"\xff" * size
        assert encode(1) == bytes(size - 1) + b"\x01"
        for value in (0, 1, highest):
            assert getattr(KeyReader(encode(value)), name)() == value
        for value in (-1, highest + 1):
            with pytest.raises(Invalid):
                encode(value)
        with pytest.raises(Corrupt):
            getattr(KeyReader(bytes(size - 1)), name)()


class TestPrefix:
    def test_the_registry(self) -> None:
        assert keys.SUBSYSTEMS == {
            3: "log",
            5: "queue",
            6: "journal",
            7: "engine",
            8: "ledger",
            9: "shard",
            10: "schedule",
        }

    def test_key_and_reader(self) -> None:
        prefix = Prefix(keys.SUBSYSTEM_QUEUE, 1, 2)
        key = prefix.key(keys.terminated(b"q\x00"), keys.u64(9), keys.var_u32(40))
        assert key.hex() == "050102" + "71010100" + "0000000000000009" + "2028"
        reader = prefix.reader(key, "active bucket")
        assert (reader.terminated(), reader.u64(), reader.var_u32()) == (b"q\x00", 9, 40)
        reader.finish()

    @pytest.mark.parametrize("other", [b"", b"\x05\x01", b"\x05\x01\x03", b"\x05\x02\x02"])
    def test_another_prefix_is_corrupt(self, other: bytes) -> None:
        with pytest.raises(Corrupt, match="active bucket"):
            Prefix(keys.SUBSYSTEM_QUEUE, 1, 2).reader(other, "active bucket")

    @pytest.mark.parametrize("parts", [(0, 1, 1), (1, 1, 1), (5, 0, 1), (5, 1, 0), (5, 256, 1), (5, 1, 256)])
    def test_bytes_out_of_the_registry_or_range(self, parts: tuple[int, int, int]) -> None:
        with pytest.raises(Invalid):
            Prefix(*parts)

    @given(TRICKY, TRICKY)
    def test_range_holds_exactly_what_begins_with_it(self, part: bytes, other: bytes) -> None:
        prefix = Prefix(keys.SUBSYSTEM_JOURNAL, 1, 0xFF)
        start, end = prefix.range(part)
        key = prefix.key(other)
        assert (start <= key and (end is None or key < end)) == other.startswith(part)

    def test_reader_refuses_to_read_past_the_end(self) -> None:
        reader = Prefix(keys.SUBSYSTEM_ENGINE, 1).reader(b"\x07\x01\x00\x00")
        with pytest.raises(Corrupt):
            reader.u32()
        assert reader.u16() == 0
        with pytest.raises(Corrupt):
            reader.var_u64()
        with pytest.raises(Corrupt):
            reader.terminated()
        reader.finish()

    def test_trailing_bytes_of_a_key(self) -> None:
        reader = Prefix(keys.SUBSYSTEM_ENGINE, 1).reader(b"\x07\x01\x00")
        with pytest.raises(Corrupt, match="1 bytes follow"):
            reader.finish()
