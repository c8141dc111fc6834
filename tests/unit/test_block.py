"""Message blocks: what goes in comes out, one changed bit is noticed, and templates make the same bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.codec import block, single
from detent.errors import Corrupt, LimitExceeded
from detent.journal.chunks import RowsChunk, encode_chunk
from detent.journal.operations import Append, check_append


def make(bodies: list[bytes], keys=None, headers=None, *, clock: int = 160, time: int = 5):
    rows = len(bodies)
    return block.stamped(
        rows,
        b"\x01abcde" * rows,
        clock.to_bytes(8, "little") * rows,
        bytes(2 * rows),
        time.to_bytes(8, "little") * rows,
        block.content_of(bodies, keys, headers),
    )


def test_round_trip() -> None:
    batch = make([b"a", b"", b"\xff" * 300], [None, b"k", b""], [{"x": "y"}, None, {"ü": ""}])
    value = block.encode_block(batch, 3, 5)
    assert block.decode_block(value).equals(batch)
    head = block.decode_head(value)
    assert (head.rows, head.first_time, head.last_time) == (3, 3, 5)


@pytest.mark.parametrize("size", [*range(70), 127, 128, 1000, 1024, 4096, 16 << 10, (16 << 10) + 1, 100_000])
def test_a_template_makes_what_arrow_makes(size: int) -> None:
    rng = random.Random(size)
    for _ in range(3):
        body, clock, time = rng.randbytes(size), rng.getrandbits(63), rng.getrandbits(40)
        expected = block.encode_block(make([body], clock=clock, time=time), time, time)
        assert single.encode_single(b"\x01abcde", clock, time, body) == expected


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(deadline=None, max_examples=200)
@given(
    body=st.binary(max_size=200),
    key=st.none() | st.binary(max_size=40),
    headers=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=4),
    clock=st.integers(0, (1 << 64) - 1),
    time=st.integers(0, 1 << 62),
)
def test_a_template_with_key_and_headers_makes_what_arrow_makes(
    body: bytes, key: bytes | None, headers: dict[str, str] | None, clock: int, time: int
) -> None:
    expected = block.encode_block(make([body], [key], [headers], clock=clock, time=time), time, time)
    for _ in range(2):  # by Arrow, and then for the template
        assert single.encode_single(b"\x01abcde", clock, time, body, key, headers) == expected
    other_key = None if key is None else bytes(len(key))
    other_headers = {name[::-1]: value[::-1] for name, value in (headers or {}).items()}
    other = block.encode_block(make([body[::-1]], [other_key], [other_headers], clock=1, time=2), 2, 2)
    assert single.encode_single(b"\x01abcde", 1, 2, body[::-1], other_key, other_headers) == other
    assert single.encode_single(b"\x01abcde", clock, time, body, key, headers) == expected


@pytest.mark.parametrize(
    "change", [{"body": 1}, {"key": 1}, {"name": 1}, {"value": 1}, {"headers": 17}, {"body": 9000}]
)
def test_messages_without_a_template(change: dict[str, int]) -> None:
    """Just below and just above what templates are made for."""
    for more in (False, True):
        sizes = {"body": 8 << 10, "key": 4 << 10, "name": 2 << 10, "value": 2 << 10, "headers": 1}
        if more:
            sizes = {name: size + change.get(name, 0) for name, size in sizes.items()}
        body, key = b"b" * sizes["body"], b"k" * sizes["key"]
        headers = {str(n): "v" for n in range(sizes["headers"] - 1)} | {"n" * sizes["name"]: "w" * sizes["value"]}
        single._templates.clear()
        single._once.clear()
        expected = block.encode_block(make([body], [key], [headers], clock=7, time=8), 8, 8)
        for _ in range(3):
            assert single.encode_single(b"\x01abcde", 7, 8, body, key, headers) == expected
        assert bool(single._templates) is not more


@pytest.mark.parametrize("key", [None, b"k"])
def test_one_message_is_left_of_a_group(key: bytes | None) -> None:
    """What a refused transaction added before it, or behind it, is nothing of its own."""
    refused = [b"a"], [b"refused"], [{"x": "y"}], b"\x01abcde", [16], [0], 100
    one = [b"b"], None if key is None else [key], None, b"\x01abcde", [160], [0], 65
    chunk = RowsChunk(7)
    chunk.add(*refused)
    chunk.truncate(0)
    chunk.add(*one)
    chunk.add(*refused)
    chunk.truncate(1)
    assert list(encode_chunk(chunk, 5)) == [(7, block.encode_block(make([b"b"], [key]), 5, 5))]


def test_a_message_is_measured_with_all_that_it_has() -> None:
    room = block.MESSAGE_BYTES_MAX - 4
    assert check_append(Append("j", [bytes(room)], [b"k"], [{"ü": "v"}])) == (1, block.MESSAGE_BYTES_MAX, None)
    with pytest.raises(LimitExceeded, match=f"a message of {block.MESSAGE_BYTES_MAX + 1} bytes"):
        check_append(Append("j", [bytes(room)], [b"k"], [{"ü": "vv"}]))


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "TEMPLATES_MAX", 10)
    monkeypatch.setattr(single, "ONCE_MAX", 20)
    single._templates.clear()
    made = 0
    for size in range(100):
        for key in (None, b"k", b"k"):
            before = len(single._templates)
            single.encode_single(b"\x01abcde", 1, 2, bytes(size), key)
            made += len(single._templates) != before
            assert len(single._templates) <= 10
            assert len(single._once) <= 20
    assert made >= 90


def test_every_changed_bit_is_noticed() -> None:
    value = block.encode_block(make([b"body"]), 1, 1)
    for at in range(len(value)):
        for bit in range(8):
            damaged = bytearray(value)
            damaged[at] ^= 1 << bit
            # The times in the head are not covered by the checksum: they steer retention, not content.
            if 16 <= at < 32:
                continue
            with pytest.raises(Corrupt):
                block.decode_block(bytes(damaged))


def test_splitting_keeps_order_and_size() -> None:
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.choice((10, 1000, 300_000))) for _ in range(60)]
    pieces = list(block.split(make(bodies)))
    assert [body for piece in pieces for body in piece.column("body").to_pylist()] == bodies
    assert len(pieces) > 3
    assert all(piece.num_rows == 1 or piece.nbytes <= 2 * block.BLOCK_BYTES_TARGET for piece in pieces)
