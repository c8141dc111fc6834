"""DeleteMessage and ChangeMessageVisibility, alone and in batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from detent.engine import Operation
from detent.errors import DetentError, StaleReceipt
from detent.queue import operations as ops
from detent.queue.message import Receipt, ack_operations
from detent.server.sqs.call import Call, Fields, batch_answer, entries_of, missing, number_of, text_of
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import NOT_IN_FLIGHT, Refused, invalid_value, refused
from detent.server.sqs.names import receipt_handle, receipt_of_handle
from detent.server.sqs.receiving import VISIBILITY_S_MAX
from detent.server.sqs.settings import View

if TYPE_CHECKING:
    from detent.store import AsyncStore

GIVEN_BACK: Final = "given back with a visibility timeout of 0"
HELD_AGAIN: Final = "in flight"


class Settling:
    """Takes what became of messages. Only the delivery that a handle was given out for can be settled with it."""

    def __init__(self, store: AsyncStore, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def delete(self, call: Call) -> None:
        """DeleteMessage."""
        view = await self._directory.find(call.queue("consume"))
        await self._delete(view, receipt_of_handle(text_of(call.fields, "ReceiptHandle"), view.number))

    async def delete_batch(self, call: Call) -> dict[str, Any]:
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

    async def change(self, call: Call) -> None:
        """ChangeMessageVisibility."""
        view = await self._directory.find(call.queue("consume"))
        await self._change(view, call.fields)

    async def change_batch(self, call: Call) -> dict[str, Any]:
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

    async def _delete(self, view: View, receipt: Receipt) -> None:
        try:
            await self._store.commit(ack_operations([receipt]))
        except StaleReceipt:
            await self._after_stale_delete(view, receipt)

    async def _after_stale_delete(self, view: View, receipt: Receipt) -> None:
        """A handle that is not the latest deletes nothing. That is an error only if the caller has to know it: the
        message is there, and will come again."""
        state = await self._state(view, receipt)
        if state is None or state.state == "done":
            return  # deleted before, or its retention is over: there is nothing left to delete
        if state.state == HELD_AGAIN and not view.is_fifo:
            return  # somebody else has it now, and SQS says nothing
        raise invalid_value(
            f"Value {receipt_handle(receipt)} for parameter ReceiptHandle is invalid. Reason: The receipt handle has "
            "expired: the message was not deleted, and is given out again. Use a longer visibility timeout."
        )

    async def _change(self, view: View, fields: Fields) -> None:
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

    async def _after_stale_change(self, view: View, receipt: Receipt) -> None:
        state = await self._state(view, receipt)
        if state is None or state.state == "done":
            raise invalid_value(
                f"Value {receipt_handle(receipt)} for parameter ReceiptHandle is invalid. Reason: Message does not "
                "exist or is not available for visibility timeout change."
            )
        raise Refused(NOT_IN_FLIGHT, "The specified message isn't in flight under this receipt handle.")

    async def _state(self, view: View, receipt: Receipt) -> ops.MessageState | None:
        """Where a message is in this queue; None if nowhere."""
        found: ops.MessageFound = (await self._store.commit([ops.FindMessage(receipt.message)]))[0]
        return next((state for state in found.states if state.queue == view.name), None)


def _receipt(view: View, entry: Fields) -> Receipt | Refused:
    try:
        return receipt_of_handle(text_of(entry, "ReceiptHandle"), view.number)
    except Refused as error:
        return error
