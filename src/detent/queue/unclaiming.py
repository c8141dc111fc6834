"""What undoes claims that could not be handed over: their messages are as if they had not been claimed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from detent.engine import Operation
from detent.errors import Corrupt
from detent.queue import operations as ops
from detent.queue.message import _Delivered
from detent.queue.reader import QueueReader


def has_claim(operations: Sequence[Operation]) -> bool:
    """Whether a transaction takes messages, which come back if its answer is lost."""
    return any(isinstance(operation, ops.Claim) for operation in operations)


def only_claims(operations: Sequence[Operation]) -> bool:
    """Whether a transaction does nothing else: then nothing is left of it when its claims are undone."""
    return all(isinstance(operation, ops.Claim) for operation in operations)


def undoing(results: Iterable[Any]) -> list[Operation]:
    """What undoes the claims among the results of a transaction."""
    return [
        ops.Unclaim(
            claimed.queue,
            claimed.messages,
            list(range(claimed.first_delivery, claimed.first_delivery + len(claimed.messages))),
        )
        for claimed in results
        if isinstance(claimed, ops.ClaimedMessages) and claimed.messages
    ]


def undoing_readable(claimed: ops.ClaimedMessages, reader: QueueReader) -> list[Operation]:
    """What undoes the claim of the messages whose content can be read, when that of another one is damaged. That one
    counts as tried, or it would come first for ever. Reads each by itself."""
    undo = ops.Unclaim(claimed.queue, [], [])
    for index, (message, record) in enumerate(zip(claimed.messages, claimed.records, strict=True)):
        with contextlib.suppress(Corrupt):
            reader.columns([message], [record])
            undo.messages.append(message)
            undo.deliveries.append(claimed.first_delivery + index)
    return [undo] if undo.messages else []


def undoing_deliveries(messages: Iterable[_Delivered]) -> list[Operation]:
    """What undoes the claims of these messages, of which no handler has seen one."""
    found: dict[int, ops.Unclaim] = {}
    for message in messages:
        number, number_of_message, delivery = message.receipt
        undo = found.setdefault(number, ops.Unclaim(number, [], []))
        undo.messages.append(number_of_message)
        undo.deliveries.append(delivery)
    return list(found.values())
