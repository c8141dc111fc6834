"""What journals and queues can be called."""

from __future__ import annotations

import re
from typing import Final

from detent.errors import Invalid

NAME_MAX: Final = 200
"""A name and its key prefix fit into the kv's key limit with room for what is to come."""

NAME_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.:=+-]*)*"
_NAME: Final = re.compile(NAME_PATTERN)


def check_name(name: str, what: str) -> None:
    """`Invalid` unless this can be the name of `what`."""
    if not isinstance(name, str) or len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is no {what} name: use up to {NAME_MAX} ASCII letters, digits and any of _ . : = + -, "
            "with '/' between parts"
        )
