"""How many pages of LMDB a commit may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from detent.kv.stored import CHECKSUM_BYTES

SPARE_PAGES: Final = 256
"""Pages that a commit may take besides those of its records: for the list of free ones, which holds 500 to a page."""

TREE_DEPTH_MAX: Final = 6


def pages_for(changes: Mapping[bytes, bytes | None], stat: Mapping[str, int], page: int) -> int:
    """At most so many pages are taken by a commit: those of its records, of which each is at least half full, and those
    of the tree that it copies."""
    whole = small = 0
    for key, value in changes.items():
        size = len(value) + CHECKSUM_BYTES if value is not None else 0
        if size > page // 4:
            whole += size // page + 2
        small += len(key) + 24 + min(size, page // 4)
    copied = min(stat["branch_pages"] + stat["leaf_pages"], TREE_DEPTH_MAX * len(changes))
    taken = whole + 2 * small // page + copied
    return taken + taken // 100 + SPARE_PAGES
