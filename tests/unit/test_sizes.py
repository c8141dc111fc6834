"""Sizes as people write and read them."""

from __future__ import annotations

from typing import Any

import pytest

from detent.errors import Invalid
from detent.sizes import size_of, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [(7, 7), ("7", 7), ("7B", 7), ("2 KB", 2_000), ("1.5KiB", 1_536), (" 3MiB ", 3 << 20), ("1GB", 10**9)],
)
def test_sizes_are_written_as_people_do(text: int | str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 PB", "1e3", "9" * 400 + "GB", "9000000 TiB", True, None, 1.5])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(Invalid):
        size_of(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (20_992, "20.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 29, "2.5 GiB"),
        (5_000 << 40, "5,000.0 TiB"),
    ],
)
def test_sizes_have_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text
