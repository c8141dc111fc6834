"""What journals, queues, ledgers, consumers and schedules can be called."""

from __future__ import annotations

import re
from typing import Any, Final

from detent.errors import Invalid

NAME_MAX: Final = 200
"""A name and its key prefix fit into the kv's key limit with room for what is to come."""

NAME_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.:=+-]*)*"
_NAME: Final = re.compile(NAME_PATTERN)

TEXT_NAME_BYTES_MAX: Final = 500
"""A name that may be any text, and its key prefix, fit into the kv's key limit, with room for a little more."""

# Control characters, line separators and halves of surrogate pairs: nothing that a person could see or type.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_name(name: str, what: str) -> None:
    """`Invalid` unless this can be the name of `what`."""
    if not isinstance(name, str) or len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} is no {what} name: use up to {NAME_MAX} ASCII letters, digits and any of _ . : = + -, "
            "with '/' between parts"
        )


def check_text_name(name: str, what: str) -> None:
    """`Invalid` unless this can be the name of `what`, which may be called by any text that people write."""
    if not is_text(name, TEXT_NAME_BYTES_MAX) or not name or name != name.strip():
        raise Invalid(
            f"{name!r} is no {what} name: use 1 to {TEXT_NAME_BYTES_MAX} bytes of text without control characters, and "
            "without spaces at its ends"
        )


def is_text(value: Any, limit: int) -> bool:
    """Whether this is text that a person can read, of so many bytes in UTF-8."""
    return isinstance(value, str) and not _UNPRINTABLE.search(value) and len(value.encode()) <= limit
