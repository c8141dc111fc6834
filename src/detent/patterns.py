"""Which journals a pattern such as ``orders/*`` means: those whose names match, apart from the package's own.

The package keeps journals for itself in the same store. Their messages are means to an end: read with everything else
they would be taken for input, and they go when they have served. So a pattern means them only when it begins as their
names do: ``detent.replies/*``, or ``words/recovery/*``. By its name each of them can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

SPARK_PARTS: Final = "spark-parts/"
"""Begins the names of journals that hold the messages of a Spark batch which is published in parts."""

REPLIES: Final = "detent.replies/"
"""Begins the names of journals that replies to an app go to."""

RECOVERY: Final = "/recovery/"
"""Stands between a consumer's name and the number of a shard in the names of recovery logs."""

_INTERNAL: Final = re.compile(rf"({re.escape(SPARK_PARTS)}|{re.escape(REPLIES)}|.+{RECOVERY}(?=[0-9]+\Z))")
_WILD: Final = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Whether this stands for any number of journals."""
    return _WILD.search(text) is not None


def fixed_start(pattern: str) -> str:
    """What the names begin with that a pattern can mean."""
    return _WILD.split(pattern, 1)[0]


def is_internal(name: str) -> bool:
    """Whether a journal is one that the package keeps for itself."""
    return _INTERNAL.match(name) is not None


def matches(pattern: str, name: str) -> bool:
    """Whether a journal is meant, by a pattern or by its name."""
    if not is_pattern(pattern):
        return name == pattern
    internal = _INTERNAL.match(name)
    return fnmatchcase(name, pattern) and (internal is None or pattern.startswith(internal[0]))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of some journals that a pattern means."""
    return [name for name in names if matches(pattern, name)]
