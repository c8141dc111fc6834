"""SendMessage and SendMessageBatch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5, sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from detent import spans
from detent.errors import DetentError, Invalid
from detent.queue import calls
from detent.queue import operations as ops
from detent.queue.message import Published
from detent.remote import rights
from detent.server.access import Caller
from detent.server.sqs import attributes
from detent.server.sqs.attributes import ADDRESS, DEDUP, GROUP, SENDER, TRACE
from detent.server.sqs.call import Fields, SqsCall, batch_answer, entries_of, missing, number_of, text_of
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import BATCH_TOO_LONG, UNSUPPORTED, Refused, invalid_value, refused
from detent.server.sqs.names import check_token, message_id, sequence_number
from detent.server.sqs.settings import MESSAGE_BYTES_MAX, SettingsView

if TYPE_CHECKING:
    from detent.store import AsyncStore

DELAY_S_MAX: Final = 900
SENDER_MAX: Final = 128
"""Characters of a sender's name that travel with each message."""

NO_DEDUP_ID: Final = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)

DEDUP_ATTRIBUTE: Final = "DetentDedupKey"
"""The message attribute that gives a message of a standard queue a dedup key."""


class SentMessage(NamedTuple):
    """A message that is ready to be published, and what its sender is told of it."""

    content: bytes
    headers: dict[str, str]
    delay_ms: int
    dedup_key: str | None
    digests: dict[str, str]


class SendCall:
    """Publishes what SQS clients send."""

    def __init__(self, store: AsyncStore, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def send(self, call: SqsCall) -> dict[str, Any]:
        """SendMessage."""
        view = await self._directory.find(call.queue("publish"))
        check_order(view)
        letter = _letter(view, call.fields, call.caller.name, call.invocation, call.trace)
        published = await self._publish(view, [letter])
        return _sent(view, letter, published[0])

    async def send_batch(self, call: SqsCall) -> dict[str, Any]:
        """SendMessageBatch: what is wrong with one entry does not touch the others."""
        view = await self._directory.find(call.queue("publish"))
        check_order(view)
        entries = entries_of(call)
        if view.is_fifo:
            _check_fifo_entries(view, entries)
        outcomes: list[Any] = [_try_letter(view, entry, call) for entry in entries]
        letters = [outcome for outcome in outcomes if isinstance(outcome, SentMessage)]
        size = sum(map(_size, entries))  # of all of them: what is refused singly was sent as well
        if size > MESSAGE_BYTES_MAX:
            raise Refused(
                BATCH_TOO_LONG,
                f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have sent {size} bytes.",
            )
        sent = iter(await self._publish_each(view, letters, call.caller))
        return batch_answer(entries, [next(sent) if isinstance(one, SentMessage) else one for one in outcomes])

    async def _publish_each(
        self, view: SettingsView, letters: list[SentMessage], caller: Caller
    ) -> list[dict[str, Any] | Refused]:
        """All in one transaction; one by one if it is refused, to learn which of them it was."""
        if not letters:
            return []
        try:
            published = await self._publish(view, letters)
        except Invalid as error:
            if len(letters) == 1:
                return [refused(rights.told(caller, error))]
            return [(await self._publish_each(view, [letter], caller))[0] for letter in letters]
        return [_sent(view, letter, one) for letter, one in zip(letters, published, strict=True)]

    async def _publish(self, view: SettingsView, letters: Sequence[SentMessage]) -> list[Published]:
        """Publish letters in order: neighbours with the same delay share an operation."""
        operations: list[Any] = []
        group: list[SentMessage] = []
        for letter in letters:
            if group and group[0].delay_ms != letter.delay_ms:
                operations.append(_operation(view, group))
                group = []
            group.append(letter)
        operations.append(_operation(view, group))
        return calls.published(await self._store.commit(operations))


def check_order(view: SettingsView) -> None:
    """Refuse to send to a queue that is a FIFO queue by its name alone: what is sent there would not be in order."""
    if view.lacks_order:
        raise Refused(
            UNSUPPORTED,
            f"The queue {view.name} is called a FIFO queue and keeps no order: it was made without the group header "
            f"{GROUP}. Delete it, and create it with CreateQueue.",
        )


def _operation(view: SettingsView, letters: list[SentMessage]) -> ops.Publish:
    keys = [letter.dedup_key for letter in letters]
    return ops.Publish(
        bodies=[letter.content for letter in letters],
        headers=[dict(spans.with_trace(letter.headers) or {}) for letter in letters],
        delay_ms=letters[0].delay_ms,
        retention_s=view.retention_s,
        dedup_keys=None if all(key is None for key in keys) else keys,
        to=view.name,
    )


def _sent(view: SettingsView, letter: SentMessage, published: Published) -> dict[str, Any]:
    """What a sender is told; of a duplicate, what the sender of the first one was told."""
    answer: dict[str, Any] = {**letter.digests, "MessageId": message_id(published.message)}
    if view.is_fifo:
        answer["SequenceNumber"] = sequence_number(published.message)
    return answer


def _check_fifo_entries(view: SettingsView, entries: list[Fields]) -> None:
    """A batch in which the order of a message or its duplicates are not told apart is refused whole, as in SQS."""
    for entry in entries:
        if not entry.get("MessageGroupId"):
            raise missing("MessageGroupId")
        if not entry.get("MessageDeduplicationId") and not view.content_dedup:
            raise invalid_value(NO_DEDUP_ID)


def _try_letter(view: SettingsView, entry: Fields, call: SqsCall) -> SentMessage | Refused:
    invocation = call.invocation and f"{call.invocation}-{entry['Id']}"
    try:
        return _letter(view, entry, call.caller.name, invocation, call.trace)
    except DetentError as error:
        return refused(error)


def _size(fields: Fields) -> int:
    """How many bytes an entry counts: its body and its attributes."""
    body = fields.get("MessageBody") or ""
    return (len(body) if body.isascii() else len(body.encode())) + attributes.size(
        fields.get("MessageAttributes") or {}
    )


def _letter(view: SettingsView, fields: Fields, sender: str, invocation: str, trace: str = "") -> SentMessage:
    body = attributes.check_body(text_of(fields, "MessageBody"))
    headers = {ADDRESS: view.name, SENDER: sender[:SENDER_MAX]}
    if trace:
        headers[TRACE] = trace
    digests = {"MD5OfMessageBody": md5(body, usedforsecurity=False).hexdigest()}
    system = fields.get("MessageSystemAttributes")
    if system:
        headers[TRACE] = attributes.check_system(system) or ""
        digests["MD5OfMessageSystemAttributes"] = attributes.digest(system)
    given = fields.get("MessageAttributes")
    if given:
        attributes.check(given)
        digests["MD5OfMessageAttributes"] = attributes.digest(given)
    size = _size(fields)
    if size > view.message_bytes_max:
        raise invalid_value(
            f"One or more parameters are invalid. Reason: Message must be shorter than {view.message_bytes_max} bytes."
        )
    delay_s = number_of(fields, "DelaySeconds", 0, DELAY_S_MAX)
    key = _fifo_key(view, fields, body, delay_s, headers) if view.is_fifo else _standard_key(fields, given, headers)
    if key is None and view.retry_dedup and invocation:
        key = f"sdk-{invocation}"
    content = attributes.pack(body, given, headers) if given else body
    # In a FIFO queue the delay is the queue's own: a 0 that is sent along says nothing.
    delay_ms = view.delay_ms if delay_s is None or view.is_fifo else delay_s * 1000
    return SentMessage(content, headers, delay_ms, key, digests)


def _fifo_key(view: SettingsView, fields: Fields, body: bytes, delay_s: int | None, headers: dict[str, str]) -> str:
    """The dedup key of a message of a FIFO queue, whose group and deduplication id go into its headers."""
    group, dedup = fields.get("MessageGroupId"), fields.get("MessageDeduplicationId")
    if not group:
        raise missing("MessageGroupId")
    check_token(group, "MessageGroupId")
    if delay_s:
        raise _wrong_queue_type("DelaySeconds", delay_s)
    if dedup:
        check_token(dedup, "MessageDeduplicationId")
    elif view.content_dedup:
        dedup = sha256(body).hexdigest()
    else:
        raise invalid_value(NO_DEDUP_ID)
    headers[GROUP], headers[DEDUP] = group, dedup
    # Within a group, both together name the message; their digest fits into a dedup key, which they need not.
    return sha256(f"{len(group)} {group} {dedup}".encode()).hexdigest() if view.group_dedup else str(dedup)


def _standard_key(fields: Fields, given: attributes.Attributes | None, headers: dict[str, str]) -> str | None:
    group = fields.get("MessageGroupId")
    if group is not None:
        check_token(group, "MessageGroupId")
        headers[GROUP] = group
    if fields.get("MessageDeduplicationId"):
        raise _wrong_queue_type("MessageDeduplicationId", fields["MessageDeduplicationId"])
    key = None if given is None else given.get(DEDUP_ATTRIBUTE)
    if key is None:
        return None
    if key.text is None or len(key.text.encode()) > ops.DEDUP_KEY_BYTES_MAX:
        raise invalid_value(
            f"The message attribute {DEDUP_ATTRIBUTE} is a String of {ops.DEDUP_KEY_BYTES_MAX} bytes at most."
        )
    return key.text


def _wrong_queue_type(name: str, value: object) -> Refused:
    return invalid_value(
        f"Value {str(value)[:200]} for parameter {name} is invalid. Reason: The request include parameter that is "
        "not valid for this queue type."
    )
