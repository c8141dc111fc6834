"""The HTTP API's transaction: several operations that take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from detent.engine import Operation
from detent.errors import Invalid
from detent.journal import calls as journal_calls
from detent.journal.operations import check_name as check_journal
from detent.ledger import operations as ledgers
from detent.queue import Receipt
from detent.queue import calls as queue_calls
from detent.queue.message import ack_operations, extend_operation, fail_operation
from detent.queue.operations import check_name as check_queue
from detent.server import tracing
from detent.server.limits import NAMED_MAX, OPERATIONS_MAX, check_count
from detent.server.models import (
    AnswerModel,
    DurationText,
    Number,
    RequestModel,
    TimeText,
    duration_text,
    time_text,
)
from detent.server.models_journals import AppendedEntries, JournalEntry
from detent.server.models_queues import AckRequest, ExtendRequest, FailRequest, OutgoingMessage, PublishedMessage
from detent.server.route import ApiCall, Route, may_everywhere

AnyCall = ApiCall[Any, Any]
Built = list[Operation]


# -- what can be done, and what each answers ------------------------------------------------------------------------

# Each `build` sees that the caller may, and makes the library's operations; each `result` is what their results mean.


class PublishOperation(OutgoingMessage, tag_field="op", tag="publish", kw_only=True):
    """Publish a message, to a queue by name or to all that match."""

    queue: str | None = None

    async def build(self, call: AnyCall) -> Built:
        if self.queue is None:
            call.caller.require_everywhere("publish")
        else:
            check_queue(self.queue)
            call.caller.require("publish", "queue", self.queue)
        return [*queue_calls.publish([self.outgoing()], self.queue)]

    def result(self, results: list[Any]) -> AnswerModel:
        (done,) = queue_calls.published(results)
        return PublishDone(id=done.message, duplicate_of=done.duplicate_of)


class AckOperation(AckRequest, tag_field="op", tag="ack"):
    """Messages are done. One stale receipt refuses the whole transaction."""

    async def build(self, call: AnyCall) -> Built:
        check_count(len(self.receipts), NAMED_MAX, "receipts")
        receipts = list(dict.fromkeys(map(Receipt.parse, self.receipts)))
        if not receipts:
            raise Invalid("there is nothing to acknowledge")
        await _require_consume(call, receipts)
        return ack_operations(receipts)

    def result(self, results: list[Any]) -> AnswerModel:
        del results
        return AckDone()


class FailOperation(FailRequest, tag_field="op", tag="fail"):
    """An attempt came to nothing."""

    async def build(self, call: AnyCall) -> Built:
        receipt = Receipt.parse(self.receipt)
        await _require_consume(call, [receipt])
        return [fail_operation(receipt, self.reason, self.delay, self.final)]

    def result(self, results: list[Any]) -> AnswerModel:
        del results
        return FailDone()


class ExtendOperation(ExtendRequest, tag_field="op", tag="extend"):
    """Hold a message for longer."""

    async def build(self, call: AnyCall) -> Built:
        receipt = Receipt.parse(self.receipt)
        await _require_consume(call, [receipt])
        return [extend_operation(receipt, self.lease)]

    def result(self, results: list[Any]) -> AnswerModel:
        return ExtendDone(lease=duration_text(results[0].length_ms), lease_until=time_text(results[0].lease_ms))


class AppendOperation(JournalEntry, tag_field="op", tag="append", kw_only=True):
    """Append a message to a journal."""

    journal: str

    async def build(self, call: AnyCall) -> Built:
        _require_publish(call, self.journal)
        return [journal_calls.append(self.journal, *self.parts())]

    def result(self, results: list[Any]) -> AnswerModel:
        (done,) = results
        return AppendDone(position=done.position, count=done.count, offset=done.offset, committed=done.committed)


class CheckRegistersOperation(RequestModel, tag_field="op", tag="check_registers", kw_only=True):
    """Refuse the whole transaction with 409 unless the registers are as expected (null: absent)."""

    journal: str
    expect: dict[str, str | None]

    async def build(self, call: AnyCall) -> Built:
        _require_publish(call, self.journal)
        return [journal_calls.check_registers(self.journal, self.expect)]

    def result(self, results: list[Any]) -> AnswerModel:
        del results
        return RegistersChecked()


class SetRegistersOperation(RequestModel, tag_field="op", tag="set_registers", kw_only=True):
    """Set registers (null removes one)."""

    journal: str
    set: dict[str, str | None]

    async def build(self, call: AnyCall) -> Built:
        _require_publish(call, self.journal)
        return [journal_calls.set_registers(self.journal, self.set)]

    def result(self, results: list[Any]) -> AnswerModel:
        del results
        return RegistersSet()


class CheckNextOffsetOperation(RequestModel, tag_field="op", tag="check_next_offset", kw_only=True):
    """Refuse the whole transaction with 409 unless the journal's next offset is this."""

    journal: str
    offset: Number

    async def build(self, call: AnyCall) -> Built:
        _require_publish(call, self.journal)
        return [journal_calls.check_next_offset(self.journal, self.offset)]

    def result(self, results: list[Any]) -> AnswerModel:
        del results
        return NextOffsetChecked()


class EnterLedgerOperation(RequestModel, tag_field="op", tag="enter_ledger", kw_only=True):
    """Enter a batch of a query in a ledger. Refuses the whole transaction with 409 `AlreadyEntered` if it, or a higher
    one, was entered before; with 410 if the ledger is another query's, or a later run has replaced this one."""

    ledger: str
    batch: ledgers.Batch
    query: str = ""
    run: str = ""

    async def build(self, call: AnyCall) -> Built:
        operation = ledgers.EnterLedger(self.ledger, self.query, self.batch, self.run)
        ledgers.check_enter(operation)
        call.caller.require("publish", "ledger", self.ledger)
        return [operation]

    def result(self, results: list[Any]) -> AnswerModel:
        before: int = results[0].previous_batch
        return LedgerEntered(previous_batch=None if before < 0 else before)


class PublishDone(PublishedMessage, tag_field="op", tag="publish"):
    """What became of a published message."""


class AckDone(AnswerModel, tag_field="op", tag="ack"):
    """Messages are done."""


class FailDone(AnswerModel, tag_field="op", tag="fail"):
    """An attempt came to nothing."""


class ExtendDone(AnswerModel, tag_field="op", tag="extend"):
    """How long the lease lasts now, and when it ends by the server's clock."""

    lease: DurationText
    lease_until: TimeText


class AppendDone(AppendedEntries, tag_field="op", tag="append"):
    """Where an append went."""


class RegistersChecked(AnswerModel, tag_field="op", tag="check_registers"):
    """The registers were as expected."""


class RegistersSet(AnswerModel, tag_field="op", tag="set_registers"):
    """The registers are set."""


class NextOffsetChecked(AnswerModel, tag_field="op", tag="check_next_offset"):
    """The journal ended where it was expected to."""


class LedgerEntered(AnswerModel, tag_field="op", tag="enter_ledger"):
    """The batch is entered; the highest one before it, null if there was none."""

    previous_batch: int | None


Step = (
    PublishOperation
    | AckOperation
    | FailOperation
    | ExtendOperation
    | AppendOperation
    | CheckRegistersOperation
    | SetRegistersOperation
    | CheckNextOffsetOperation
    | EnterLedgerOperation
)
StepResult = (
    PublishDone
    | AckDone
    | FailDone
    | ExtendDone
    | AppendDone
    | RegistersChecked
    | RegistersSet
    | NextOffsetChecked
    | LedgerEntered
)


class TransactionRequest(RequestModel, kw_only=True):
    """Operations, in order; a check sees what those before it have done."""

    operations: list[Step]


class TransactionResults(AnswerModel, kw_only=True):
    """What each operation answers, in order."""

    results: list[StepResult]


# -- rights ---------------------------------------------------------------------------------------------------------


def _require_publish(call: AnyCall, journal: str) -> None:
    check_journal(journal)
    call.caller.require("publish", "journal", journal)


async def _require_consume(call: AnyCall, receipts: Iterable[Receipt]) -> None:
    """The receipts' queues are asked for only if it matters: their numbers say nothing of their names."""
    if not may_everywhere(call.caller, "consume"):
        await call.service.numbers.require_consume(receipts, call.caller)


# -- the route ------------------------------------------------------------------------------------------------------


async def commit(call: ApiCall[TransactionRequest, None]) -> TransactionResults:
    """Apply operations together, or none of them: a failed check (409), a stale receipt (410) or a right that the
    caller does not have (403) refuses them all. Each needs its own right: `publish` on the queue, journal or ledger
    that it writes or checks, `consume` on the queue of a receipt (410 without it, as for a queue that is not there)."""
    call.refuse_idempotency_key("a transaction")
    steps = call.body.operations
    check_count(len(steps), OPERATIONS_MAX, "operations")
    if not steps:
        raise Invalid("there is nothing to do: name an operation")
    built = [await step.build(call) for step in steps]
    every = [operation for operations in built for operation in operations]
    tracing.note_operations(call.request, every)
    results = await call.store.commit(every)
    answers: list[Any] = []
    at = 0
    for step, operations in zip(steps, built, strict=True):
        answers.append(step.result(results[at : at + len(operations)]))
        at += len(operations)
    return TransactionResults(results=answers)


ROUTES: Final = (
    Route(
        "POST", "/v1/transaction", commit, "Several operations in one atomic commit", None, TransactionResults,
        body=TransactionRequest, errors=(404, 409, 410),
    ),
)  # fmt: skip
"""The transaction."""
