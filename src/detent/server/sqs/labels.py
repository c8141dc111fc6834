"""What SQS knows of a queue and Detent does not: kept with the queue's settings, as labels.

Attributes of SQS are labels that begin with ``sqs:``, tags begin with ``tag:``. A core without labels keeps them in the
queue's description, as JSON; a description that somebody wrote for people is left alone.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from detent.queue.calls import Settings
from detent.queue.info import QueueInfo
from detent.server.sqs.errors import UNSUPPORTED, Refused

HAS_LABELS: Final = "labels" in Settings.__annotations__
HAS_DEAD_LETTER: Final = "dead_letter" in Settings.__annotations__
HAS_GROUPS: Final = "group_header" in Settings.__annotations__
"""What the queues below can do; asked once."""

ATTRIBUTE: Final = "sqs:"
TAG: Final = "tag:"
TAGS_MAX: Final = 50
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 256

Labels = dict[str, str]

_MARK: Final = '{"labels":'
_WRITTEN: Final = msgspec.json.Decoder(dict[str, Labels])


def labels_of(info: QueueInfo) -> Labels:
    """The labels of a queue."""
    if HAS_LABELS:
        return dict(getattr(info, "labels", None) or {})
    if not info.description.startswith(_MARK):
        return {}
    try:
        return _WRITTEN.decode(info.description).get("labels", {})
    except msgspec.DecodeError:
        return {}  # somebody's own text that happens to begin like ours


def settings_for(labels: Labels, info: QueueInfo | None) -> dict[str, Any]:
    """The setting that keeps these labels."""
    if HAS_LABELS:
        return {"labels": labels}
    if info is not None and info.description and not info.description.startswith(_MARK):
        raise Refused(UNSUPPORTED, "The queue has a description, which is where its SQS attributes would go: clear it.")
    return {"description": msgspec.json.encode({"labels": labels}).decode()}


def tags_of(labels: Labels) -> dict[str, str]:
    """A queue's tags."""
    return {name[len(TAG) :]: value for name, value in labels.items() if name.startswith(TAG)}
