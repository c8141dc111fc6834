"""What SQS knows of a queue and Detent does not: kept with the queue's settings, as labels.

Attributes of SQS are labels that begin with ``sqs:``, tags begin with ``tag:``.
"""

from __future__ import annotations

from typing import Final

ATTRIBUTE: Final = "sqs:"
TAG: Final = "tag:"
TAGS_MAX: Final = 50
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 256

Labels = dict[str, str]


def tags_of(labels: Labels) -> dict[str, str]:
    """A queue's tags."""
    return {name[len(TAG) :]: value for name, value in labels.items() if name.startswith(TAG)}
