"""Message attributes: what SQS allows, the digests that it answers, and how they travel in Detent's headers.

A text attribute is a header of its own name, so that filters and the priority header see it:

    Name             the value of a String or Number attribute
    sqs-type-Name    its data type, unless that is String
    sqs-value-Name   the value instead, of an attribute whose name would mean something else as a header
    sqs-binary-Name  the value instead, in base64, of a Binary attribute

Headers have less room than attributes. The largest that do not fit travel behind the body, in the content; the header
`sqs-body` then says how many bytes of the content are the body.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from hashlib import md5
from typing import Any, Final, NamedTuple

import msgspec

from detent.engine import MALFORMED
from detent.queue.operations import HEADER_BYTES_MAX, HEADERS_MAX
from detent.server.sqs.errors import INVALID_CONTENTS, Refused, invalid_value

ATTRIBUTES_MAX: Final = 10
"""Attributes of one message, as in SQS."""

NAME_MAX: Final = 256
TYPE_MAX: Final = 256
NUMBER_DIGITS_MAX: Final = 38
NUMBER_MIN: Final = Decimal("1e-128")
NUMBER_MAX: Final = Decimal("1e126")
TRACE_BYTES_MAX: Final = 1_024
"""A trace header has about a hundred bytes; this keeps room for the attributes among the headers."""

RESERVED: Final = "sqs-"
"""What the headers begin with that say something about an SQS message."""

ADDRESS: Final = "queue"
"""Detent's own header: to which queue a message was published."""

TYPE: Final = "sqs-type-"
VALUE: Final = "sqs-value-"
BINARY: Final = "sqs-binary-"
BODY: Final = "sqs-body"
GROUP: Final = "sqs-group"
DEDUP: Final = "sqs-dedup"
TRACE: Final = "sqs-trace"
SENDER: Final = "sqs-sender"

_NAME: Final = re.compile("[A-Za-z0-9_\u00c0-\u017f-]+([.][A-Za-z0-9_\u00c0-\u017f-]+)*")
"""SQS takes Latin letters with accents too, though its documentation does not say so."""

_DATA_TYPE: Final = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that XML 1.0 cannot hold, and SQS therefore refuses."""

INVALID_CHARACTERS: Final = (
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)
"""What SQS says of them."""


class Attribute(NamedTuple):
    """One attribute as it was given: its data type, and its value as text or as bytes."""

    data_type: str
    text: str | None = None
    data: bytes | None = None
    is_list: bool = False

    def value(self) -> bytes:
        """The value's bytes."""
        return self.text.encode() if self.data is None and self.text is not None else self.data or b""

    def answer(self) -> dict[str, Any]:
        """The attribute as a consumer gets it."""
        if self.data is not None:
            return {"BinaryValue": self.data, "DataType": self.data_type}
        return {"StringValue": self.text, "DataType": self.data_type}


Attributes = Mapping[str, Attribute]


def is_text(text: str) -> bool:
    """Whether SQS allows every character: those that XML 1.0 can hold."""
    return NOT_XML.search(text) is None


def check_body(body: str) -> bytes:
    """A message's body as bytes, if it has only characters that SQS allows."""
    if not is_text(body):
        raise Refused(INVALID_CONTENTS, INVALID_CHARACTERS)
    return body.encode()


def size(attributes: Attributes) -> int:
    """How many bytes attributes count: their names, types and values."""
    return sum(
        len(name.encode()) + len(attribute.data_type.encode()) + len(attribute.value())
        for name, attribute in attributes.items()
    )


def check(attributes: Attributes) -> None:
    """Refuse attributes that SQS refuses."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid_value(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10].")
    for name, attribute in attributes.items():
        _check_one(name, attribute)


def _check_one(name: str, attribute: Attribute) -> None:
    if not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
        raise invalid_value(
            f"The message attribute name '{name[:300]}' is invalid: it has letters, digits and any of _ - . (none of "
            "them first, last or twice in a row), and does not start with AWS. or Amazon."
        )
    if len(name) > NAME_MAX:
        raise invalid_value(f"Message (user) attribute name is longer than the limit of {NAME_MAX} characters.")
    data_type = attribute.data_type
    if not data_type:
        raise invalid_value(f"The message attribute '{name}' must contain non-empty message attribute type.")
    if attribute.is_list:
        raise invalid_value(f"The message attribute '{name}' is a list; message attribute lists are not supported.")
    if not _DATA_TYPE.fullmatch(data_type) or len(data_type) > TYPE_MAX or not is_text(data_type):
        raise invalid_value(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes "
            "is Binary, Number, and String."
        )
    _check_value(name, attribute)


def _check_value(name: str, attribute: Attribute) -> None:
    kind = attribute.data_type.partition(".")[0]
    wanted, other = (attribute.text, attribute.data) if kind != "Binary" else (attribute.data, attribute.text)
    if not wanted or other is not None:
        raise invalid_value(
            f"The message attribute '{name}' with type '{kind}' must use field "
            f"'{'Binary' if kind == 'Binary' else 'String'}', non-empty, and no other."
        )
    if attribute.text is not None and not is_text(attribute.text):
        raise invalid_value(INVALID_CHARACTERS)
    if kind == "Number":
        text = attribute.text or ""
        digits = sum(map(str.isdigit, text.lower().partition("e")[0]))
        if len(text) > 64 or not _NUMBER.fullmatch(text) or digits > NUMBER_DIGITS_MAX:
            raise invalid_value(f"Can't cast the value of message (user) attribute '{name}' to a number.")
        value = abs(Decimal(text))
        if value and not NUMBER_MIN <= value <= NUMBER_MAX:
            raise invalid_value(
                f"The message (user) attribute '{name}' is a number out of range: from 10^-128 to 10^126."
            )


def check_system(attributes: Attributes) -> str | None:
    """The trace header, the only system attribute that can be sent."""
    for name, attribute in attributes.items():
        if name != "AWSTraceHeader":
            raise invalid_value(
                f"Message system attribute name '{name[:100]}' is invalid; only AWSTraceHeader can be sent."
            )
        if attribute.data_type != "String" or not is_trace(attribute.text or ""):
            raise invalid_value(f"AWSTraceHeader is a String of 1 to {TRACE_BYTES_MAX} bytes.")
    return attributes["AWSTraceHeader"].text if attributes else None


def is_trace(text: str) -> bool:
    """Whether this can be a trace header."""
    return bool(text) and is_text(text) and len(text.encode()) <= TRACE_BYTES_MAX


def digest(attributes: Attributes) -> str:
    """The MD5 of attributes as SQS computes it: name, type, kind and value of each, by name, with their lengths."""
    found = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        for part in (name.encode(), attribute.data_type.encode()):
            found.update(len(part).to_bytes(4, "big") + part)
        value = attribute.value()
        kind = b"\x01" if attribute.data is None else b"\x02"
        found.update(kind + len(value).to_bytes(4, "big") + value)
    return found.hexdigest()


# -- attributes as headers --------------------------------------------------------------------------------------


def pack(body: bytes, attributes: Attributes, headers: dict[str, str]) -> bytes:
    """Add attributes to a message's headers, as far as there is room. Answers the content."""
    parts = {name: _headers_of(name, attribute) for name, attribute in attributes.items()}
    room = HEADER_BYTES_MAX - _size(headers) - len(BODY) - 8
    size = sum(map(_size, parts.values()))
    behind: list[tuple[str, str, str | None, bytes | None]] = []
    if size > room:
        for name in sorted(parts, key=lambda name: _size(parts[name]), reverse=True):
            if size <= room:
                break
            size -= _size(parts.pop(name))
            behind.append((name, *attributes[name][:3]))
    for part in parts.values():
        headers.update(part)
    if not behind:
        return body
    headers[BODY] = str(len(body))
    return body + msgspec.msgpack.encode(behind)


def _headers_of(name: str, attribute: Attribute) -> dict[str, str]:
    if attribute.data is not None:
        return {BINARY + name: b64encode(attribute.data).decode(), TYPE + name: attribute.data_type}
    assert attribute.text is not None
    if name == ADDRESS or name.startswith(RESERVED):
        return {VALUE + name: attribute.text, TYPE + name: attribute.data_type}
    if attribute.data_type == "String":
        return {name: attribute.text}
    return {name: attribute.text, TYPE + name: attribute.data_type}


def _size(headers: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def unpack(content: bytes, headers: Mapping[str, str]) -> tuple[bytes, dict[str, Attribute]]:
    """The body and the attributes of a message. Headers that no SQS client set are String attributes, as far as SQS
    could have them."""
    found: dict[str, Attribute] = {}
    for name, value in headers.items():
        if name == ADDRESS:
            continue
        if not name.startswith(RESERVED):
            if value and len(name) <= NAME_MAX and _NAME.fullmatch(name) and is_text(value):
                found[name] = Attribute(headers.get(TYPE + name, "String"), value)
        elif name.startswith(VALUE):
            plain = name[len(VALUE) :]
            found[plain] = Attribute(headers.get(TYPE + plain, "String"), value)
        elif name.startswith(BINARY):
            plain = name[len(BINARY) :]
            found[plain] = Attribute(headers.get(TYPE + plain, "Binary"), None, _bytes(value))
    size = headers.get(BODY)
    if size is None:
        return content, found
    length = int(size) if size.isascii() and size.isdigit() and len(size) < 10 else len(content)
    try:
        behind = _BEHIND.decode(content[length:])
    except MALFORMED:
        return content, found  # another producer's header of this name: one message must not stop a whole queue
    found.update((name, Attribute(data_type, text, data)) for name, data_type, text, data in behind)
    return content[:length], found


def _bytes(text: str) -> bytes:
    """Bytes from base64; what is none was put there by another producer, and is given as it is."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text.encode()


_BEHIND: Final = msgspec.msgpack.Decoder(list[tuple[str, str, str | None, bytes | None]])


_EVERYTHING: Final = frozenset({"All", ".*", "*"})


def wanted(attributes: Mapping[str, Attribute], names: list[str]) -> dict[str, Attribute]:
    """Those attributes that a consumer asks for: by name, by the beginning of a name (``bar.*``), or all."""
    if not names or not attributes:
        return {}
    if not _EVERYTHING.isdisjoint(names):
        return dict(attributes)
    exact = {name for name in names if not name.endswith(".*")}
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in exact or (prefixes and name.startswith(prefixes))
    }


assert 3 * ATTRIBUTES_MAX + 8 <= HEADERS_MAX
