"""ReceiveMessage: claims, waits and answers."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from detent.codec.origin import Move, OriginRecord
from detent.codec.published import URI, Metadata
from detent.engine import Operation
from detent.errors import Corrupt, Denied, StaleReceipt
from detent.queue import calls
from detent.queue import operations as ops
from detent.queue.message import Receipt
from detent.queue.reader import QueueReader
from detent.queue.unclaiming import undoing, undoing_readable
from detent.server.access import Caller
from detent.server.sqs import attributes
from detent.server.sqs.attributes import ADDRESS, DEDUP, GROUP, SENDER, TRACE, Attribute
from detent.server.sqs.call import SqsCall
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import INVALID_ATTRIBUTE_NAME, Refused, invalid_value
from detent.server.sqs.names import QueuePlace, check_token, message_id, receipt_handle, sequence_number
from detent.server.sqs.settings import NAMES, SettingsView

if TYPE_CHECKING:
    from detent.store import AsyncStore

MESSAGES_MAX: Final = 10
WAIT_S_MAX: Final = 20
VISIBILITY_S_MAX: Final = 43_200
WAIT_SLICE_S: Final = 5.0
"""A call that waits looks again this often, whatever it hears: the owner may have been replaced."""

ATTEMPT_S: Final = 300.0
"""How long a FIFO queue's consumer may ask again under the same attempt id, as in SQS."""

ATTEMPTS_MAX: Final = 10_000
"""Attempt ids that are remembered; of more than that, the newest ones."""

ENCODING: Final = "DetentEncoding"
"""A message attribute of bodies that are not text of SQS's: how they are written here."""

SYSTEM_NAMES: Final = frozenset(
    {
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    }
)


class Wish(NamedTuple):
    """What a consumer asks for."""

    messages: int
    lease_ms: int | None
    wait_s: int
    system: frozenset[str]
    attributes: list[str]


class ReceivedMessage(NamedTuple):
    """One claimed message with its content; `earlier` is how often it was claimed in the queues that gave it up
    before, which `moves` names."""

    message: int
    delivery: int
    attempts: int
    earlier: int
    moves: Sequence[Move]
    kind: int
    content: bytes
    about: Metadata


class Undo:
    """Takes back what an answer gives away, unless the same messages were given to a second call meanwhile."""

    def __init__(self, store: AsyncStore, result: ops.ClaimedMessages) -> None:
        self._store = store
        self._result = result
        self.is_void = False

    def __call__(self) -> None:
        """The consumer has hung up without the answer."""
        if not self.is_void:
            self._store.undo(undoing([self._result]))


class Receiving:
    """Gives messages to consumers."""

    def __init__(
        self,
        store: AsyncStore,
        directory: Directory,
        place: QueuePlace,
        clock: Callable[[], float],
        still: Callable[[Caller], bool],
    ) -> None:
        self._store = store
        self._directory = directory
        self._place = place
        self._clock = clock
        self._still = still
        self._attempts: dict[tuple[str, str], tuple[float, ops.ClaimedMessages, Undo]] = {}

    async def receive(self, call: SqsCall) -> dict[str, Any]:
        """ReceiveMessage."""
        view = await self._directory.find(call.queue("consume"))
        wish = _wish(view, call)
        attempt = _attempt(view, call)
        result = await self._again(view, attempt, wish)
        found = [] if result is None else await self._contents(result)
        if found and result is not None:
            return await self._messages(view, result, found, wish)
        result, found = await self._claim(view, wish, call)
        if not found or result is None:
            return {}
        undo = Undo(self._store, result)
        try:
            if attempt is not None:
                self._remember(attempt, result, undo)
            answer = await self._messages(view, result, found, wish)
        except BaseException:
            undo()
            raise
        call.undo = undo
        return answer

    async def _messages(
        self, view: SettingsView, result: ops.ClaimedMessages, found: list[ReceivedMessage], wish: Wish
    ) -> dict[str, Any]:
        """The answer that hands these messages over."""
        if result.queue != view.number:  # another caller deleted it and made it anew, a moment ago
            view = await self._directory.look(view.name)
        firsts = await self._first_receives(view, found, wish)
        return {"Messages": [await self._answer(view, one, wish, firsts) for one in found]}

    async def _claim(
        self, view: SettingsView, wish: Wish, call: SqsCall
    ) -> tuple[ops.ClaimedMessages | None, list[ReceivedMessage]]:
        """Claim messages; while there are none, wait for them as long as the consumer wants and is there."""
        operation = ops.Claim(view.name, wish.messages, wish.lease_ms, call.caller.name[: ops.CONSUMER_BYTES_MAX // 4])
        deadline = time.monotonic() + wish.wait_s
        gone: asyncio.Future[None] | None = None
        try:
            while True:
                result: ops.ClaimedMessages = (await self._store.commit([operation]))[0]
                found = await self._read(result)
                if result.messages and gone is not None and gone.done():
                    self._store.undo(undoing([result]))
                    return None, []
                left_s = deadline - time.monotonic()
                if found or left_s <= 0:
                    return result, found
                gone = gone or asyncio.ensure_future(call.gone())
                if not await self._wait(view.name, min(left_s, WAIT_SLICE_S), gone):
                    return None, []
                if not self._still(call.caller):
                    raise Denied(f"the key of {call.caller.name} was revoked or changed while it waited")
        finally:
            if gone is not None:
                gone.cancel()

    async def _wait(self, queue: str, seconds: float, gone: asyncio.Future[None]) -> bool:
        """Wait until there may be messages; False if the consumer has gone meanwhile and could not get them."""
        waiting = asyncio.ensure_future(self._store.wait_claimable(queue, int(seconds * 1000) + 1))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            waiting.result()
        return not gone.done()

    async def _read(self, result: ops.ClaimedMessages) -> list[ReceivedMessage]:
        """The contents of a claim, which is undone if they cannot be read, except of a message that is damaged."""
        try:
            return await self._contents(result) if result.messages else []
        except Corrupt:
            self._store.undo(await asyncio.to_thread(undoing_readable, result, self._store.messages))
            raise
        except BaseException:
            self._store.undo(undoing([result]))
            raise

    async def _contents(self, result: ops.ClaimedMessages) -> list[ReceivedMessage]:
        """What was claimed, with its content; what has ended its retention meanwhile is left out."""
        if self._store.objects.local:  # a look at a local file does not block
            return _read(self._store.messages, result)
        return await asyncio.to_thread(_read, self._store.messages, result)

    # -- the same messages again --------------------------------------------------------------------------------

    def _remember(self, attempt: tuple[str, str], result: ops.ClaimedMessages, undo: Undo) -> None:
        """Keep what an attempt got. The newest one stands last, so those that are over stand first."""
        now, known = time.monotonic(), self._attempts
        known.pop(attempt, None)
        while known and (len(known) >= ATTEMPTS_MAX or next(iter(known.values()))[0] < now):
            del known[next(iter(known))]
        known[attempt] = (now + ATTEMPT_S, result, undo)

    async def _again(
        self, view: SettingsView, attempt: tuple[str, str] | None, wish: Wish
    ) -> ops.ClaimedMessages | None:
        """What an earlier call under the same attempt id got, if nothing became of it yet; its leases start anew."""
        known = None if attempt is None else self._attempts.get(attempt)
        if known is None or known[0] < time.monotonic() or known[1].queue != view.number:
            return None
        _, result, undo = known
        undo.is_void = True  # from here on the consumer may get this answer, whatever became of the first one
        deliveries = list(range(result.first_delivery, result.first_delivery + len(result.messages)))
        try:
            await self._store.commit([ops.Extend(result.queue, result.messages, deliveries, wish.lease_ms)])
        except StaleReceipt:
            return None
        return result

    # -- answers ------------------------------------------------------------------------------------------------

    async def _first_receives(self, view: SettingsView, found: list[ReceivedMessage], wish: Wish) -> dict[int, int]:
        """When messages were received first, in milliseconds: the owner knows it of those that come again."""
        if not wish.system & {"All", "ApproximateFirstReceiveTimestamp"}:
            return {}
        firsts = {one.message: one.moves[0].history[0].claimed_ms for one in found if one.moves}
        again = [one.message for one in found if one.attempts > 1 and one.message not in firsts]
        if not again:
            return firsts
        questions: list[Operation] = [ops.FindMessage(message, [view.name]) for message in again]
        results: list[ops.MessageFound] = await self._store.commit(questions)
        return firsts | {
            message: min(claimed_ms for claimed_ms, *_ in state.history)
            for message, result in zip(again, results, strict=True)
            for state in result.states
            if state.history
        }

    async def _answer(
        self, view: SettingsView, one: ReceivedMessage, wish: Wish, firsts: Mapping[int, int]
    ) -> dict[str, Any]:
        headers = one.about.headers
        content, given = attributes.unpack(one.content, headers)
        body, encoding = _body(one.kind, content)
        if encoding:
            given[ENCODING] = Attribute("String", encoding)
        answer: dict[str, Any] = {
            "MessageId": message_id(one.message),
            "ReceiptHandle": receipt_handle(Receipt(view.number, one.message, one.delivery)),
            "MD5OfBody": md5(body.encode(), usedforsecurity=False).hexdigest(),
            "Body": body,
        }
        if wish.system:
            found = self._system(view, one, await self._origin(view, headers), firsts)
            shown = found if "All" in wish.system else {name: found[name] for name in found if name in wish.system}
            if shown:
                answer["Attributes"] = shown
        wanted = attributes.wanted(given, wish.attributes)
        if wanted:
            answer["MD5OfMessageAttributes"] = attributes.digest(wanted)
            answer["MessageAttributes"] = {name: attribute.answer() for name, attribute in wanted.items()}
        return answer

    async def _origin(self, view: SettingsView, headers: Mapping[str, str]) -> SettingsView:
        """The queue that a message was sent to: of a dead letter another one than that which has it."""
        name = headers.get(ADDRESS, view.name)
        if name == view.name:
            return view
        try:
            return await self._directory.find(name)
        except Refused:
            return view  # that queue is gone

    def _system(
        self, view: SettingsView, one: ReceivedMessage, origin: SettingsView, firsts: Mapping[int, int]
    ) -> dict[str, str]:
        headers = one.about.headers
        first_ms = firsts.get(one.message, int(self._clock() * 1000))
        found = {
            "SenderId": headers.get(SENDER, self._place.account),
            "SentTimestamp": str(one.about.received_ms),
            "ApproximateReceiveCount": str(one.earlier + one.attempts),
            "ApproximateFirstReceiveTimestamp": str(first_ms),
        }
        if view.is_fifo:
            found["SequenceNumber"] = sequence_number(one.message)
        for name, header in _FROM_HEADERS.items():
            if header in headers:
                found[name] = headers[header]
        if one.moves:
            found["DeadLetterQueueSourceArn"] = self._place.arn(one.moves[-1].source)
        elif origin is not view and origin.dead_letter == view.name:  # it was moved by an earlier release
            found["DeadLetterQueueSourceArn"] = self._place.arn(origin.name)
        return found


def _read(reader: QueueReader, result: ops.ClaimedMessages) -> list[ReceivedMessage]:
    """The contents of a claim, and where its dead letters came from."""
    columns = reader.columns(result.messages, result.records)
    earlier = result.earlier or [0] * len(result.messages)
    stored = reader.origins(result.queue, calls.named_origins(result)) if result.earlier else {}
    moves = {message: OriginRecord.decode(value).moves for message, value in stored.items()}
    rows = zip(result.messages, result.attempts, earlier, columns.kinds, columns.bodies, columns.about, strict=True)
    return [
        ReceivedMessage(
            message, result.first_delivery + index, attempts, before, moves.get(message, ()), kind, content, about
        )
        for index, (message, attempts, before, kind, content, about) in enumerate(rows)
        if content is not None and about is not None
    ]


_FROM_HEADERS: Final = {"MessageGroupId": GROUP, "MessageDeduplicationId": DEDUP, "AWSTraceHeader": TRACE}


def _wish(view: SettingsView, call: SqsCall) -> Wish:
    fields = call.fields
    system = frozenset([*fields.get("AttributeNames", ()), *fields.get("MessageSystemAttributeNames", ())])
    unknown = system - SYSTEM_NAMES - NAMES
    if unknown:
        raise Refused(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:100]}.")
    visibility_s = call.number("VisibilityTimeout", 0, VISIBILITY_S_MAX)
    wait_s = call.number("WaitTimeSeconds", 0, WAIT_S_MAX)
    return Wish(
        call.number("MaxNumberOfMessages", 1, MESSAGES_MAX) or 1,
        # A lease lasts a millisecond at least: as good as the zero that SQS allows.
        None if visibility_s is None else max(1, visibility_s * 1000),
        view.wait_s if wait_s is None else wait_s,
        system,
        fields.get("MessageAttributeNames", []),
    )


def _attempt(view: SettingsView, call: SqsCall) -> tuple[str, str] | None:
    given = call.fields.get("ReceiveRequestAttemptId")
    if not given:
        return None
    check_token(given, "ReceiveRequestAttemptId")
    if not view.is_fifo:
        raise invalid_value(
            "The parameter ReceiveRequestAttemptId is not valid for this queue type: it is for FIFO queues."
        )
    return view.name, given


def _body(kind: int, content: bytes) -> tuple[str, str]:
    """The content as text, and how it is written if it was not text that SQS allows."""
    if kind == URI:
        return content.decode(), "uri"
    try:
        body = content.decode()
    except UnicodeDecodeError:
        return b64encode(content).decode(), "base64"
    return (body, "") if attributes.is_text(body) else (b64encode(content).decode(), "base64")
