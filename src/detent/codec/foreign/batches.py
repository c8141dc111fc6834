"""Single record batches without their schema, as an append brings them."""

from __future__ import annotations

from typing import Any, Final

from detent.codec import block
from detent.codec.foreign.columns import Layout
from detent.codec.foreign.framing import RECORD_BATCH, message_at
from detent.errors import Invalid

STAMPED: Final = Layout(block.SCHEMA)
CONTENT: Final = Layout(block.CONTENT_SCHEMA)


def read_stamped(data: bytes | memoryview) -> Any:
    """One record batch of messages with their ids."""
    return _read(data, STAMPED)


def read_content(data: bytes | memoryview) -> Any:
    """One record batch of keys, headers and bodies."""
    return _read(data, CONTENT)


def _read(data: bytes | memoryview, layout: Layout) -> Any:
    view = memoryview(data)
    found = message_at(view, 0)
    if found is None or found[1] != len(view):
        raise Invalid("it is not one record batch and nothing else")
    message = found[0]
    message.require(RECORD_BATCH)
    return layout.read(message.header, message.body)
