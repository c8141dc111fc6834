"""How a message of the bus is written for SQS, and how whatever comes from there is read.

SQS has ten attributes a message and takes text only. So all headers are one attribute, as JSON, and a body that is no
text of SQS's is base64, which a header says. A message of another sender has neither: its attributes of text
are its headers. Whatever it is, it is read without an error, or one bad message would hold up a queue.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from detent.errors import Invalid

HEADERS: Final = "detent-headers"
"""The attribute that has all headers."""

ENCODING: Final = "detent-body-encoding"
"""Among the headers on the way: how the body is written, if it is not as it is. No sender sets it, and no receiver
sees it."""

BASE64: Final = "base64"
EMPTY: Final = "empty"
_NOTHING: Final = "-"
"""What is sent for a body of no bytes: SQS wants one character at least."""

GROUP: Final = "detent-group"
"""The header that names a message's group in a FIFO queue. Messages of a group come in their order."""

ONE_GROUP: Final = "detent"
"""The group of all messages that name none: they come in their order, one after another."""

MESSAGE_BYTES_MAX: Final = 1 << 20
"""Of a message with its attributes, and of all messages in one call."""

ATTRIBUTES_MAX: Final = 10

FIFO: Final = ".fifo"
_REFUSED: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_GROUP: Final = re.compile(r"[!-~]{1,128}")

Attributes = dict[str, dict[str, Any]]


class Content(NamedTuple):
    """A message that came from SQS."""

    headers: dict[str, str]
    body: bytes
    is_own: bool
    """Whether it was written here, and not by another sender."""


class SqsMessage(NamedTuple):
    """A message for SQS."""

    text: str
    attributes: Attributes

    @property
    def size(self) -> int:
        """How many bytes SQS counts."""
        return len(self.text.encode(errors="surrogatepass")) + sum(
            len(name.encode()) + len(attribute["DataType"].encode()) + _value_size(attribute)
            for name, attribute in self.attributes.items()
        )


def write(headers: Mapping[str, str], body: bytes) -> SqsMessage:
    """A message as SQS takes it."""
    if ENCODING in headers:
        raise Invalid(f"the header {ENCODING!r} is not a sender's: rename yours")
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise Invalid(f"headers are a mapping of text to text, not {dict(headers)!r}"[:500])
    text, encoding = _text_of(body)
    if encoding:
        headers = {**headers, ENCODING: encoding}
    return SqsMessage(text, {HEADERS: text_attribute(json.dumps(dict(headers)))})  # ASCII: there is nothing SQS refuses


def text_attribute(value: str) -> dict[str, Any]:
    """An attribute of text."""
    return {"DataType": "String", "StringValue": value}


def is_text(text: str) -> bool:
    """Whether SQS takes this text as it is."""
    return bool(text) and not _REFUSED.search(text)


def shown(text: str) -> str:
    """A text with a question mark for each character that SQS refuses."""
    return _REFUSED.sub("?", text)


def _text_of(body: bytes) -> tuple[str, str]:
    if not isinstance(body, bytes):
        raise Invalid(f"a body is bytes, not {type(body).__name__}")
    if not body:
        return _NOTHING, EMPTY
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode(), BASE64
    return (text, "") if is_text(text) else (b64encode(body).decode(), BASE64)


def read(message: Mapping[str, Any]) -> Content:
    """What a message says, whatever has sent it."""
    attributes = message.get("MessageAttributes") or {}
    body = str(message.get("Body") or "").encode(errors="surrogatepass")
    headers = _headers_of(attributes)
    if headers is None:
        plain = {name: str(value["StringValue"]) for name, value in attributes.items() if "StringValue" in value}
        return Content(plain, body, False)
    encoding = headers.pop(ENCODING, "")
    if encoding == EMPTY:
        return Content(headers, b"", True)
    if encoding == BASE64:
        try:
            return Content(headers, b64decode(body, validate=True), True)
        except binascii.Error:
            headers[ENCODING] = encoding  # written by hand: as it is, for the handler to refuse
            return Content(headers, body, False)
    return Content(headers, body, True)


def _headers_of(attributes: Mapping[str, Any]) -> dict[str, str] | None:
    """The headers that were written here; None if there are none, or what is there is something else."""
    text = (attributes.get(HEADERS) or {}).get("StringValue")
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return None
    return found


def order_of(queue: str, headers: Mapping[str, str], message_id: str) -> dict[str, str]:
    """What a FIFO queue wants to know besides: the group, and what makes two messages the same."""
    if not queue.endswith(FIFO):
        return {}
    group = headers.get(GROUP) or ONE_GROUP
    return {
        "MessageGroupId": group if _GROUP.fullmatch(group) else _digest(group),
        "MessageDeduplicationId": _digest(message_id),
    }


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _value_size(attribute: Mapping[str, Any]) -> int:
    if "BinaryValue" in attribute:
        return len(attribute["BinaryValue"])
    return len(str(attribute.get("StringValue", "")).encode(errors="surrogatepass"))
