"""The log's records and the allocation of sequence numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec import log
from detent.codec.log import EntryKey, SegmentMeta, SeqBlock, SequenceAllocator
from detent.errors import Corrupt, Invalid, LimitExceeded
from unit import golden_codec as golden

SEGMENTS = st.integers(1, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
USER_KEYS = st.lists(st.sampled_from([0x00, 0x01, 0x02, 0x61, 0xFE, 0xFF]), max_size=6).map(bytes)


class TestGolden:
    @pytest.mark.parametrize(("segment", "key", "sequence", "start", "encoded"), golden.ENTRIES)
    def test_entries(self, segment: int, key: bytes, sequence: int, start: int, encoded: str) -> None:
        entry = EntryKey.at(segment, key, sequence, start)
        assert entry.encode().hex() == encoded
        assert EntryKey.decode(bytes.fromhex(encoded)) == entry
        assert entry.relative + start == sequence

    @pytest.mark.parametrize(("base", "size", "encoded"), golden.SEQUENCE_BLOCKS)
    def test_sequence_blocks(self, base: int, size: int, encoded: str) -> None:
        assert SeqBlock(base, size).encode().hex() == encoded
        assert SeqBlock.decode(bytes.fromhex(encoded)) == SeqBlock(base, size)

    def test_sequence_block_key(self) -> None:
        assert log.SEQUENCE_BLOCK_KEY.hex() == golden.SEQUENCE_BLOCK_KEY

    @pytest.mark.parametrize(("segment", "encoded"), golden.SEGMENT_KEYS)
    def test_segment_keys(self, segment: int, encoded: str) -> None:
        assert log.segment_key(segment).hex() == encoded
        assert log.decode_segment_key(bytes.fromhex(encoded)) == segment

    @pytest.mark.parametrize(("start", "time_ms", "encoded"), golden.SEGMENTS)
    def test_segments(self, start: int, time_ms: int, encoded: str) -> None:
        assert SegmentMeta(start, time_ms).encode().hex() == encoded
        assert SegmentMeta.decode(bytes.fromhex(encoded)) == SegmentMeta(start, time_ms)

    @pytest.mark.parametrize(("segment", "key", "encoded"), golden.LISTINGS)
    def test_listings(self, segment: int, key: bytes, encoded: str) -> None:
        assert log.listing_key(segment, key).hex() == encoded
        assert log.decode_listing(bytes.fromhex(encoded), b"") == (segment, key)


class TestKeys:
    @given(st.tuples(SEGMENTS, USER_KEYS, U64), st.tuples(SEGMENTS, USER_KEYS, U64))
    def test_entries_sort_by_segment_key_and_sequence(
        self, left: tuple[int, bytes, int], right: tuple[int, bytes, int]
    ) -> None:
        assert (left < right) == (EntryKey(*left).encode() < EntryKey(*right).encode())
        assert EntryKey.decode(EntryKey(*left).encode()) == EntryKey(*left)

    @given(USER_KEYS, U64, USER_KEYS, U64)
    def test_entry_range(self, key: bytes, first: int, other: bytes, relative: int) -> None:
        start, end = log.entry_range(9, key, first)
        assert end is not None
        inside = start <= EntryKey(9, other, relative).encode() < end
        assert inside == (other == key and relative >= first)
        assert not start <= EntryKey(10, key, relative).encode() < end

    @given(SEGMENTS, USER_KEYS)
    def test_listing_range(self, segment: int, key: bytes) -> None:
        start, end = log.listing_range(segment)
        assert end is not None
        assert start <= log.listing_key(segment, key) < end
        assert not start <= EntryKey(segment, key, 0).encode() < end

    def test_segment_range(self) -> None:
        start, end = log.segment_range()
        assert end is not None
        assert all(start <= log.segment_key(segment) < end for segment in (1, 255, 256, 2**32 - 1))
        assert not start <= log.SEQUENCE_BLOCK_KEY < end

    @pytest.mark.parametrize("segment", [0, -1, 2**32])
    def test_segments_out_of_range(self, segment: int) -> None:
        for make in (
            log.segment_key,
            log.listing_range,
            lambda s: log.listing_key(s, b"k"),
            lambda s: EntryKey(s, b"k", 0).encode(),
        ):
            with pytest.raises(Invalid):
                make(segment)

    def test_a_sequence_before_its_segment(self) -> None:
        with pytest.raises(Invalid):
            EntryKey.at(1, b"k", 9, 10)

    @pytest.mark.parametrize(
        "encoded",
        [
            "",
            "0301000000011",
            "030200000001106b0005",  # another version
            "050100000001106b0005",  # another subsystem
            "030100000001206b0005",  # another tag
            "030100000000106b0005",  # an entry in the system segment
            "030100000001106b000500",  # bytes after the sequence
            "030100000001106b001005",  # a sequence in a form that is too long
            "030100000001106b",  # no terminator
            "030100000001106b00",  # no sequence
        ],
    )
    def test_malformed_entry_keys(self, encoded: str) -> None:
        with pytest.raises(Corrupt):
            EntryKey.decode(bytes.fromhex(encoded + "0" * (len(encoded) % 2)))

    def test_malformed_keys_of_other_records(self) -> None:
        for encoded in ("0301000000003000000000", "0301000000013000000001", "03010000000030000001"):
            with pytest.raises(Corrupt):
                log.decode_segment_key(bytes.fromhex(encoded))
        with pytest.raises(Corrupt):
            log.decode_listing(bytes.fromhex("030100000000406b"))
        with pytest.raises(Corrupt):
            log.decode_listing(log.listing_key(1, b"k"), b"x")


class TestValues:
    def test_later_fields_are_ignored(self) -> None:
        assert SeqBlock.decode(SeqBlock(1, 2).encode() + b"more") == SeqBlock(1, 2)
        assert SegmentMeta.decode(SegmentMeta(1, -2).encode() + b"more") == SegmentMeta(1, -2)

    @pytest.mark.parametrize("decode", [SeqBlock.decode, SegmentMeta.decode])
    def test_short_values(self, decode: object) -> None:
        assert callable(decode)
        for size in range(16):
            with pytest.raises(Corrupt):
                decode(bytes(size))

    def test_impossible_blocks(self) -> None:
        for base, size in ((0, 0), (2**64 - 1, 1), (2**63, 2**63)):
            with pytest.raises(Invalid):
                SeqBlock(base, size).encode()
            with pytest.raises(Corrupt):
                SeqBlock.decode(base.to_bytes(8, "big") + size.to_bytes(8, "big"))

    def test_segments_out_of_range(self) -> None:
        with pytest.raises(Invalid):
            SegmentMeta(-1, 0).encode()
        with pytest.raises(Invalid):
            SegmentMeta(0, 2**63).encode()


class TestSequenceAllocator:
    def test_first_numbers(self) -> None:
        allocator = SequenceAllocator.load(None)
        assert allocator.allocate(10) == (0, SeqBlock(0, 4096))
        assert allocator.allocate() == (10, None)
        assert allocator.next == 11

    def test_a_restart_skips_the_tail(self) -> None:
        allocator = SequenceAllocator.load(SeqBlock(4096, 4096).encode())
        assert allocator.allocate(1) == (8192, SeqBlock(8192, 4096))

    def test_a_run_crosses_into_the_next_block(self) -> None:
        allocator = SequenceAllocator()
        allocator.allocate(4090)
        assert allocator.allocate(10) == (4090, SeqBlock(4096, 4096))
        assert allocator.allocate(4092) == (4100, None)
        assert allocator.allocate(1) == (8192, SeqBlock(8192, 4096))

    def test_a_large_run_gets_a_block_of_its_size(self) -> None:
        allocator = SequenceAllocator()
        allocator.allocate(4000)
        assert allocator.allocate(10_000) == (4000, SeqBlock(4096, 9904))
        assert allocator.allocate(1) == (14_000, SeqBlock(14_000, 4096))

    def test_the_end_of_the_numbers(self) -> None:
        allocator = SequenceAllocator(SeqBlock(0, 2**64 - 5000))
        assert allocator.allocate(4096)[0] == 2**64 - 5000
        with pytest.raises(LimitExceeded):
            allocator.allocate(1)
        assert allocator.next == 2**64 - 904

    def test_bad_arguments(self) -> None:
        for count in (0, -1):
            with pytest.raises(Invalid):
                SequenceAllocator().allocate(count)
        with pytest.raises(Invalid):
            SequenceAllocator(block_size=0)

    @given(st.lists(st.one_of(st.integers(1, 40), st.just("crash"), st.just("lost")), max_size=60))
    def test_no_number_twice(self, steps: list[int | str]) -> None:
        """Crashes after a durable batch, and batches that were lost, never lead to a number given out twice."""
        stored: bytes | None = None
        allocator = SequenceAllocator.load(stored, block_size=16)
        used: list[range] = []
        for step in steps:
            if step == "crash":
                allocator = SequenceAllocator.load(stored, block_size=16)
            elif step == "lost":
                allocator.allocate(3)
                allocator = SequenceAllocator.load(stored, block_size=16)
            else:
                assert isinstance(step, int)
                first, block = allocator.allocate(step)
                stored = block.encode() if block else stored
                used.append(range(first, first + step))
        assert all(left.stop <= right.start for left, right in itertools.pairwise(used))
