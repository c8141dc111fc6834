"""DeleteMessage and ChangeMessageVisibility, alone and in batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from detent.engine import Operation
from detent.errors import DetentError, StaleReceipt
from detent.queue import operations as ops
from detent.queue.message import Receipt, ack_operations
from detent.server.sqs.call import Fields, SqsCall, batch_answer, entries_of, missing, number_of, text_of
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import NOT_IN_FLIGHT, Refused, invalid_value, refused
from detent.server.sqs.names import receipt_handle, receipt_of_handle
from detent.server.sqs.receiving import VISIBILITY_S_MAX
from detent.server.sqs.settings import SettingsView

if TYPE_CHECKING:
    from detent.store import AsyncStore

GIVEN_BACK: Final = "given back with a visibility timeout of 0"
HELD_AGAIN: Final = frozenset({"in flight", "assigned"})
DONE: Final = "done"
DEAD_LETTERS_MAX: Final = 10
"""How far a message is looked for from dead-letter queue to dead-letter queue."""


class Settling:
    """Takes what became of messages. Only the delivery that a handle was given out for can be settled with it."""

    def __init__(self, store: AsyncStore, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def delete(self, call: SqsCall) -> None:
        """DeleteMessage."""
        view = await self._directory.find(call.queue("consume"))
        await self._delete(view, receipt_of_handle(text_of(call.fields, "ReceiptHandle"), view.number))

    async def delete_batch(self, call: SqsCall) -> dict[str, Any]:
        """DeleteMessageBatch: all in one transaction, if no handle is stale."""
        view = await self._directory.find(call.queue("consume"))
        entries = entries_of(call)
        found = [_receipt(view, entry) for entry in entries]
        receipts = list(dict.fromkeys(one for one in found if not isinstance(one, Refused)))
        if not receipts:
            return batch_answer(entries, [one if isinstance(one, Refused) else {} for one in found])
        try:
            await self._store.commit(ack_operations(receipts))
            outcomes: dict[Receipt, dict[str, Any] | Refused] = {receipt: {} for receipt in receipts}
        except StaleReceipt:
            done = await asyncio.gather(*(self._outcome(self._delete(view, receipt)) for receipt in receipts))
            outcomes = dict(zip(receipts, done, strict=True))
        return batch_answer(entries, [one if isinstance(one, Refused) else outcomes[one] for one in found])

    async def change(self, call: SqsCall) -> None:
        """ChangeMessageVisibility."""
        view = await self._directory.find(call.queue("consume"))
        await self._change(view, call.fields)

    async def change_batch(self, call: SqsCall) -> dict[str, Any]:
        """ChangeMessageVisibilityBatch."""
        view = await self._directory.find(call.queue("consume"))
        entries = entries_of(call)
        done = await asyncio.gather(*(self._outcome(self._change(view, entry)) for entry in entries))
        return batch_answer(entries, list(done))

    async def _outcome(self, work: Any) -> dict[str, Any] | Refused:
        try:
            await work
        except DetentError as error:
            return refused(error)
        return {}

    async def _delete(self, view: SettingsView, receipt: Receipt) -> None:
        try:
            await self._store.commit(ack_operations([receipt]))
        except StaleReceipt:
            await self._after_stale_delete(view, receipt)

    async def _after_stale_delete(self, view: SettingsView, receipt: Receipt) -> None:
        """A handle that is not the latest deletes nothing. That is an error only if the caller has to know it: the
        message is there still, in the queue or where the queue gave it up to."""
        states = await self._states(receipt, [view.name, *await self._dead_letters(view)])
        here = states.pop(view.name, None)
        if here == DONE or (here is None and not set(states.values()) - {DONE}):
            return  # deleted before, or its retention is over: there is nothing left to delete
        if here in HELD_AGAIN and not view.is_fifo:
            return  # another consumer has it now, and SQS says nothing
        raise invalid_value(
            f"Value {receipt_handle(receipt)} for parameter ReceiptHandle is invalid. Reason: The receipt handle has "
            "expired."
        )

    async def _dead_letters(self, view: SettingsView) -> list[str]:
        """The queues that a message can have come to since: the dead-letter queue, and that one's own, and so on."""
        found: list[str] = []
        while view.dead_letter and view.dead_letter not in found and len(found) < DEAD_LETTERS_MAX:
            found.append(view.dead_letter)
            try:
                view = await self._directory.find(view.dead_letter)
            except Refused:
                break  # it was deleted: what is given up now stays where it is
        return found

    async def _change(self, view: SettingsView, fields: Fields) -> None:
        receipt = receipt_of_handle(text_of(fields, "ReceiptHandle"), view.number)
        seconds = number_of(fields, "VisibilityTimeout", 0, VISIBILITY_S_MAX)
        if seconds is None:
            raise missing("VisibilityTimeout")
        number, message, delivery = receipt
        operation: Operation = ops.Extend(number, [message], [delivery], seconds * 1000)
        if seconds == 0:
            operation = ops.Fail(number, [message], [delivery], GIVEN_BACK, 0)
        try:
            await self._store.commit([operation])
        except StaleReceipt:
            await self._after_stale_change(view, receipt)

    async def _after_stale_change(self, view: SettingsView, receipt: Receipt) -> None:
        if (await self._states(receipt, [view.name])).get(view.name, DONE) == DONE:
            raise invalid_value(
                f"Value {receipt_handle(receipt)} for parameter ReceiptHandle is invalid. Reason: Message does not "
                "exist or is not available for visibility timeout change."
            )
        raise Refused(NOT_IN_FLIGHT, "The specified message isn't in flight under this receipt handle.")

    async def _states(self, receipt: Receipt, queues: list[str]) -> dict[str, str]:
        """What a message is in those of some queues that know it."""
        found: ops.MessageFound = (await self._store.commit([ops.FindMessage(receipt.message, queues)]))[0]
        return {state.queue: state.state for state in found.states}


def _receipt(view: SettingsView, entry: Fields) -> Receipt | Refused:
    try:
        return receipt_of_handle(text_of(entry, "ReceiptHandle"), view.number)
    except Refused as error:
        return error
