"""Message blocks: what goes in comes out, one changed bit is noticed, and templates make the same bytes."""

from __future__ import annotations

import random

import pytest

from detent.codec import block, single
from detent.errors import Corrupt


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


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "TEMPLATES_MAX", 10)
    for size in range(100):
        single.encode_single(b"\x01abcde", 1, 2, bytes(size))
    assert len(single._templates) <= 10


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
