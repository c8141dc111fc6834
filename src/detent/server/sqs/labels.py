"""What SQS knows of a queue and Detent does not: kept with the queue's settings, as labels.

Attributes of SQS are labels that begin with ``sqs:``, tags begin with ``tag:``. A tag whose key is too long for a
label's name is in a label called ``tag#DIGEST``, with the key beside the value.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

from detent.engine import MALFORMED
from detent.queue.operations import LABEL_NAME_BYTES_MAX

ATTRIBUTE: Final = "sqs:"
TAG: Final = "tag:"
LONG_TAG: Final = "tag#"
TAGS_MAX: Final = 50
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 256

Labels = dict[str, str]


def tags_of(labels: Labels) -> dict[str, str]:
    """A queue's tags."""
    found: dict[str, str] = {}
    for name, value in labels.items():
        if name.startswith(TAG):
            found[name[len(TAG) :]] = value
        elif name.startswith(LONG_TAG):
            try:
                key, text = _PAIR.decode(value)
            except MALFORMED:
                continue  # another program's label
            found[key] = text
    return found


def tag_name(key: str) -> str:
    """The name of the label that holds a tag."""
    name = TAG + key
    return name if len(name.encode()) <= LABEL_NAME_BYTES_MAX else LONG_TAG + sha256(key.encode()).hexdigest()


def tag_label(key: str, value: str) -> tuple[str, str]:
    """The label that holds a tag: its name and its value."""
    name = tag_name(key)
    return name, value if name.startswith(TAG) else msgspec.json.encode((key, value)).decode()


_PAIR: Final = msgspec.json.Decoder(tuple[str, str])
