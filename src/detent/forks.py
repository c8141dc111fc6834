"""A forked child shares its parent's descriptors, but none of its threads, and whatever lock a thread held stays held.

So nothing of a store may be used in a child: it opens the store again. `generation` tells the two apart.
"""

from __future__ import annotations

import os

from detent.errors import Unavailable

generation = 0
"""How many forks lie between the first process and this one."""


def _after_fork() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_after_fork)


def refuse_in_child(opened_in: int) -> None:
    """Raise if the caller's object was made before a fork."""
    if opened_in != generation:
        raise Unavailable("a store does not cross a fork: open it again in this process")
