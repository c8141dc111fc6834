"""Streams of record batches: all of them arrive, or an error says what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from detent.codec import block
from detent.errors import Corrupt, NotFound, Unavailable
from detent.remote.batches import decode, encode


def batch(first: int, rows: int) -> Any:
    content = block.content_of([b"%d" % (first + row) for row in range(rows)], None, None)
    return block.stamped(
        rows, bytes(6 * rows), range_bytes("Q", rows), bytes(2 * rows), range_bytes("q", rows), content
    )


def range_bytes(kind: str, rows: int) -> Any:
    from array import array

    return array(kind, range(rows))


NUMBERED = [(5, batch(5, 3)), (8, batch(8, 1000)), (1008, batch(1008, 1).slice(0, 1))]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_there_and_back(size: int) -> None:
    found = list(decode(pieces(b"".join(encode(NUMBERED)), size)))
    assert [(first, rows.to_pylist()) for first, rows in found] == [(n, rows.to_pylist()) for n, rows in NUMBERED]


def test_nothing() -> None:
    assert list(decode(iter(encode([])))) == []


def test_an_error_in_the_middle_is_the_same_error_on_the_other_side() -> None:
    def breaking() -> Iterator[tuple[int, Any]]:
        yield NUMBERED[0]
        raise NotFound("offset 8 is gone")

    found = decode(iter(encode(breaking())))
    assert next(found)[0] == 5
    with pytest.raises(NotFound, match="offset 8 is gone"):
        next(found)


def test_a_stream_that_is_cut_off_anywhere_is_never_taken_for_a_whole_one() -> None:
    data = b"".join(encode(NUMBERED[:1]))
    end = len(data) - 8  # the mark of Arrow's own end, which comes after ours
    for cut in range(0, end, 3):
        with pytest.raises(Corrupt):
            list(decode(pieces(data[:cut], 100)))


def test_an_error_of_the_line_passes_through() -> None:
    def breaking() -> Iterator[bytes]:
        yield next(encode(NUMBERED))
        raise Unavailable("the line broke")

    found = decode(breaking())
    assert next(found)[0] == 5
    with pytest.raises(Unavailable, match="the line broke"):
        next(found)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xff" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(100)])
def test_what_is_no_stream(data: bytes) -> None:
    with pytest.raises(Corrupt):
        list(decode(iter([data])))
