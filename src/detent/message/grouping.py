"""Grouping the rows of a block by producer, each producer's rows in row order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MIX = np.uint64(0x9E3779B97F4A7C15)


class Groups(NamedTuple):
    """Rows sorted by producer, then by row."""

    rows: NDArray[np.int64]
    producers: NDArray[np.uint64]
    """One for each group."""
    starts: NDArray[np.int64]
    """Index into `rows` where each group begins; one more at the end, the number of rows."""


def group_rows(producers: NDArray[np.uint64]) -> Groups:
    """Group the rows of a block."""
    n = len(producers)
    if n == 0 or bool((producers == producers[0]).all()):
        ends = [0, n] if n else [0]
        return Groups(np.arange(n, dtype=np.int64), producers[:1].copy(), np.array(ends, np.int64))
    rows = _sorted_by_hash(producers)
    ordered = producers[rows]
    changed = ordered[1:] != ordered[:-1]
    starts = np.concatenate(([0], np.flatnonzero(changed) + 1, [n])).astype(np.int64)
    return Groups(rows, ordered[starts[:-1]], starts)


def _sorted_by_hash(producers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Row numbers, sorted so that equal producers are adjacent and rows ascend within each.

    Hash and row number share one word: sorting plain words is several times faster than a stable argsort.
    """
    n = len(producers)
    bits = np.uint64(n.bit_length())
    mask = (np.uint64(1) << bits) - np.uint64(1)
    words = producers * _MIX
    words &= ~mask
    words |= np.arange(n, dtype=np.uint64)
    words.sort()
    rows = (words & mask).view(np.int64)
    words &= ~mask
    ordered = producers[rows]
    if bool(((ordered[1:] != ordered[:-1]) & (words[1:] == words[:-1])).any()):
        # Two producers share a hash and may be interleaved; rare enough to pay for the slow exact sort.
        return np.argsort(producers, kind="stable")
    return rows


def running_max(values: NDArray[np.uint64], segments: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The highest value so far within each segment, including the row itself.

    `segments` numbers the segments: it never falls from one row to the next.
    """
    if len(values) == 0 or bool(((values[1:] >= values[:-1]) | (segments[1:] != segments[:-1])).all()):
        return values
    if segments[0] == segments[-1]:
        return np.maximum.accumulate(values)
    low: np.uint64 = values.min()
    bits = int(values.max() - low).bit_length()
    if bits + int(segments[-1]).bit_length() > np.iinfo(np.uint64).bits:
        ranked, codes = np.unique(values, return_inverse=True)
        highest: NDArray[np.uint64] = ranked[running_max(codes.astype(np.uint64), segments)]
        return highest
    # With the segment in the upper bits no maximum reaches past its own segment.
    words: NDArray[np.uint64] = (segments.astype(np.uint64) << np.uint64(bits)) | (values - low)
    np.maximum.accumulate(words, out=words)
    words &= (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    words += low
    return words
