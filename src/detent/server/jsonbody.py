"""JSON from strangers: held to a type, and to what JSON parsers do not agree on.

A parser that meets a key twice keeps the first, the last or both; one that meets a million nested or tiny values fills
the memory. Both are refused here, before anything else looks at them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from detent.engine import MALFORMED
from detent.errors import Invalid, LimitExceeded

VALUES_MAX: Final = 250_000
"""Values in one document: each takes some hundred bytes of memory, however few it has in the text."""

STRINGS_MAX: Final = 2 * VALUES_MAX
"""A value in an object has a key."""

# Possessive, and content with a string that never ends: it matches wherever a string begins, in one go, so that no
# text takes longer than its length.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_anything: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode


def decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """The value that a body holds; `Invalid` says where it is wrong and why."""
    skeleton, strings = _STRING.subn(b"", body, STRINGS_MAX + 1)
    values = skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{")
    if values > VALUES_MAX or strings > STRINGS_MAX:
        raise LimitExceeded(f"a JSON document has at most {VALUES_MAX} values: send it in parts")
    try:
        value = decoder.decode(body)
        # Outside of strings a colon stands for one member of an object; a member that came twice is there once now.
        members = _STRING.sub(b"", _encode(_anything.decode(body))).count(b":")
    except MALFORMED as error:
        raise Invalid(f"this body is not what is expected here: {error}") from error
    if members != skeleton.count(b":"):
        raise Invalid("a key comes twice in an object of this body")
    return value


def convert_query(fields: dict[str, str], kind: type[Any]) -> Any:
    """The fields of a query as a struct; numbers are read from their text."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except MALFORMED as error:
        raise Invalid(f"this query is not what is expected here: {error}") from error
