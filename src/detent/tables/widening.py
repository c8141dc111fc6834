"""Types that hold the values of others: what a table or a schema does when its rows bring wider ones.

Types are named as Spark and Delta name them in JSON. Of whole numbers, and of fractions, the longer type holds the
shorter one's values; of decimals with the same scale the one with more digits.
"""

from __future__ import annotations

import re
from typing import Any, Final

_WHOLE: Final = ("byte", "short", "integer", "long")
_REAL: Final = ("float", "double")
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def wider(one: Any, other: Any) -> Any:
    """The type that holds the values of two; None if neither does."""
    if one == other:
        return one
    for order in (_WHOLE, _REAL):
        if one in order and other in order:
            return max(one, other, key=order.index)
    if isinstance(one, str) and isinstance(other, str):
        mine, theirs = _DECIMAL.fullmatch(one), _DECIMAL.fullmatch(other)
        if mine and theirs and mine[2] == theirs[2]:
            return one if int(mine[1]) >= int(theirs[1]) else other
    return None
