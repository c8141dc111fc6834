"""The HTTP API's routes for queues and their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from detent.errors import Conflict, DetentError, Invalid, NotFound
from detent.names import NAME_MAX
from detent.queue import AsyncDelivery, FailedMessage, MessageInfo, Outgoing, Published, Receipt, calls, surveying
from detent.queue import operations as ops
from detent.queue.handle import BODY_BYTES
from detent.queue.info import MessagePlace, failed_message, queue_info
from detent.queue.message import ack_operations, extend_operation, fail_operation
from detent.queue.peeking import BODY_BYTES_MAX, PEEKED_MAX
from detent.queue.unclaiming import undoing_deliveries
from detent.remote import rights
from detent.remote.contents import AnswerRoom
from detent.server.access import Caller
from detent.server.http import Response
from detent.server.limits import (
    ANSWER_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    CLAIM_MESSAGES_MAX,
    FAILED_MAX,
    FAILED_PAGE,
    LARGE_BYTES,
    LIST_MAX,
    NAMED_MAX,
    PEEK_PAGE,
    check_count,
    claim_step,
)
from detent.server.models import (
    NewQueue,
    QueueSettings,
    RequestModel,
    duration_text,
    given_settings,
    time_text,
)
from detent.server.models_queues import (
    Acknowledged,
    AckRequest,
    ClaimedList,
    ClaimRequest,
    Extended,
    ExtendRequest,
    FailedReceipts,
    FailRequest,
    FailureList,
    MessageDescription,
    OutgoingMessage,
    PublishedList,
    Purged,
    PurgeRequest,
    QueueDescription,
    QueuedList,
    QueueList,
    QueueTotals,
    Redriven,
    RedriveRequest,
    answer_bytes,
    claimed_message,
    describe_message,
    describe_queue,
    failure,
    published_message,
    queued_list,
)
from detent.server.route import ApiCall, Route, may_everywhere, patterns_of

_encode: Final = msgspec.json.Encoder().encode


RANK_CHARS_MAX: Final = 20
"""No count or time has more digits."""


class QueueListQuery(RequestModel, kw_only=True):
    """Which queues to list, in which order, and after what the page before said is `next`."""

    prefix: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    contains: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    state: surveying.Having = ""
    sort: surveying.SurveyOrder = "name"
    after: Annotated[str, Meta(max_length=NAME_MAX + RANK_CHARS_MAX + 1)] = ""
    limit: Annotated[int, Meta(ge=1)] = LIST_MAX


class FailedQuery(RequestModel, kw_only=True):
    """Which page of the failed messages: those after a message."""

    after: Annotated[int, Meta(ge=-1, le=(1 << 62) - 1)] = -1
    limit: Annotated[int, Meta(ge=1)] = FAILED_PAGE


class PeekQuery(RequestModel, kw_only=True):
    """Which messages to show: of some states (separated by commas), that match a filter, of a priority, published
    longer or less long ago; how many, how many bytes of each body, and after which page."""

    state: str = ""
    filter: str | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    older_than: str | None = None
    newer_than: str | None = None
    limit: Annotated[int, Meta(ge=1, le=PEEKED_MAX)] = PEEK_PAGE
    body_bytes: Annotated[int, Meta(ge=0, le=BODY_BYTES_MAX)] = BODY_BYTES
    cursor: str | None = None


# -- queues ---------------------------------------------------------------------------------------------------------


async def list_queues(call: ApiCall[None, QueueListQuery]) -> QueueList:
    """The queues that the caller has any right on, with their settings and contents: by name, or sorted by what they
    hold, the largest count or the longest wait first. `contains` is a part of the name, in capitals or not; `state`
    leaves those that hold messages of it (or are `paused`)."""
    query = call.query
    check_count(query.limit, LIST_MAX, "names in an answer")
    asked = surveying.SurveyQueues(
        prefix=query.prefix,
        order=query.sort,
        limit=query.limit,
        patterns=patterns_of(call.caller, "queue"),
        contains=query.contains,
        having=query.state,
        after=_place_after(query),
    )
    found: surveying.QueueSurvey = (await call.store.commit([asked]))[0]
    following = None
    if found.after is not None:
        following = found.after[1] if query.sort == "name" else f"{found.after[0]}:{found.after[1]}"
    return QueueList(
        queues=[describe_queue(queue_info(one)) for one in found.queues],
        next=following,
        totals=QueueTotals(**msgspec.structs.asdict(found.totals)),
        matching=found.having,
    )


def _place_after(query: QueueListQuery) -> tuple[int, str] | None:
    if not query.after:
        return None
    if query.sort == "name":
        return 0, query.after
    rank, colon, name = query.after.partition(":")
    if not colon or not rank.removeprefix("-").isdigit() or not rank.isascii() or len(rank) > RANK_CHARS_MAX:
        raise Invalid(f"after is what `next` said in the page before, not {query.after[:100]!r}")
    return int(rank), name


def check_settings(caller: Caller, queue: str, given: Mapping[str, Any]) -> None:
    """`Denied` for settings that reach beyond the queue itself, and that the caller may not reach."""
    target = given.get("dead_letter")
    if target:
        ops.check_name(target)
    rights.require_settings(caller, queue, given.get("filter"), target)


async def create_queue(call: ApiCall[Any, None]) -> Response:
    """Create a queue: 201. One that exists is left as it is: 200 if the settings that were given are its own, else
    409; `PATCH` changes them. A `filter` also needs the right `consume` on all queues."""
    named = given_settings(call.body)
    check_settings(call.caller, call.name, named)
    given = calls.settings(call.name, named)
    create = ops.CreateQueue(call.name, given, call.body.earliest, exist_ok=True)
    done: ops.QueueCreated = (await call.store.commit([create]))[0]
    found = await _description(call)
    if not done.new:
        for name in given.__struct_fields__:
            wanted, known = getattr(given, name), getattr(found.settings, name)
            if wanted is not None and wanted != known:
                raise Conflict(f"the queue {call.name!r} exists, and its {name} is {known!r}, not {wanted!r}")
    return Response.json(describe_queue(queue_info(found)), 201 if done.new else 200)


async def _description(call: ApiCall[Any, Any]) -> ops.QueueDescription:
    found: ops.QueueDescriptions = (await call.store.commit([ops.DescribeQueues(call.name)]))[0]
    return found.queues[0]


async def configure_queue(call: ApiCall[Any, None]) -> Any:
    """Change settings; what is not named stays. A new filter applies to what the queue has not read yet; `paused` stops
    and resumes it. A `filter` also needs the right `consume` on all queues."""
    given = given_settings(call.body)
    check_settings(call.caller, call.name, given)
    await call.store.queue(call.name).configure(**given)
    return describe_queue(queue_info(await _description(call)))


async def show_queue(call: ApiCall[None, None]) -> Any:
    """Settings, contents, counters."""
    return describe_queue(queue_info(await _description(call)))


async def delete_queue(call: ApiCall[None, None]) -> Response:
    """Delete the queue and all that is in it. Its receipts are stale from now on."""
    await call.store.queue(call.name).delete()
    return Response(status=204)


# -- publishing -----------------------------------------------------------------------------------------------------


def _outgoing(call: ApiCall[OutgoingMessage | list[OutgoingMessage], None]) -> list[Outgoing]:
    """The messages of a request; an Idempotency-Key is the dedup key of one that has none."""
    key = call.idempotency_key()
    if isinstance(call.body, OutgoingMessage):
        return [call.body.outgoing(key)]
    check_count(len(call.body), BATCH_MESSAGES_MAX, "messages")
    if not call.body:
        raise Invalid("there is nothing to publish")
    if key is not None and len(call.body) > 1:
        raise Invalid("an Idempotency-Key is for one message: give each of several a dedup_key of its own")
    return [message.outgoing(key) for message in call.body]


def _published(done: Iterable[Published]) -> PublishedList:
    return PublishedList(messages=[published_message(one) for one in done])


async def publish(call: ApiCall[OutgoingMessage | list[OutgoingMessage], None]) -> PublishedList:
    """Publish one message, or an array of them, all or none, to this queue. When the answer comes they are durable and
    can be claimed. 400 if the queue's filter does not match the headers. The header `Idempotency-Key` is the dedup key
    of one message that has none."""
    messages = _outgoing(call)
    call.traced(len(messages))
    queue = call.store.queue(call.name)
    if len(messages) == 1:
        return _published([await queue.publish(messages[0])])
    return _published(await queue.publish_many(messages))


async def publish_anywhere(call: ApiCall[OutgoingMessage | list[OutgoingMessage], None]) -> PublishedList:
    """Publish one message, or an array of them, to every queue whose filter matches their headers. What matches none is
    kept until its retention ends, for queues that are created with `earliest`."""
    messages = _outgoing(call)
    call.traced(len(messages))
    return _published(await call.store.publish_many(messages))


# -- claiming -------------------------------------------------------------------------------------------------------


async def claim(call: ApiCall[ClaimRequest, None]) -> Response:
    """Claim up to `count` messages, most urgent first, then oldest first; fewer when their bodies are large. With
    `wait` an empty queue is waited for that long. Each message is the caller's until its lease ends: acknowledge it,
    fail it or extend the lease before that."""
    wanted = call.body
    check_count(wanted.count, CLAIM_MESSAGES_MAX, "messages in a claim")
    wait_ms = call.wait_ms(wanted.wait)
    found = await _claim(call)
    if not found and wait_ms:
        queue = call.store.queue(call.name)
        async with call.poll(wait_ms) as poll:
            while not found and (left_ms := poll.left_ms):
                await poll.race(queue.wait(timedelta(milliseconds=left_ms)))
                await call.still_allowed()
                if not poll.abandoned:  # a client that has gone acknowledges nothing
                    found = await _claim(call)
    call.traced(len(found))
    if not found:
        return Response.json(ClaimedList(messages=[]))
    call.service.numbers.note(found[0].receipt.queue, call.name)
    undo = partial(call.store.undo, undoing_deliveries(found))
    try:
        if sum(map(answer_bytes, found)) >= LARGE_BYTES:
            return Response(_in_parts(found), undo=undo)
        return Response(_encode(ClaimedList(messages=list(map(claimed_message, found)))), undo=undo)
    except BaseException:
        undo()
        raise


async def _claim(call: ApiCall[ClaimRequest, None]) -> list[AsyncDelivery]:
    """Claim in steps, each a commit of its own, until there are enough, no more, or enough bytes. How many are claimed
    at once goes by the bodies that this claim has met, and at first by those of the last one."""
    sizes = call.service.sizes
    largest, size = 0, 0
    found: list[AsyncDelivery] = []
    while len(found) < call.body.count and size < ANSWER_BYTES_MAX:
        guess = largest if found else sizes.largest(call.name)
        step = claim_step(call.body.count - len(found), ANSWER_BYTES_MAX - size, guess)
        try:
            came = await _claim_step(call, step)
        except DetentError:
            if not found:
                raise
            break  # what was claimed before is the caller's, and has to reach it
        except BaseException:
            call.store.undo(undoing_deliveries(found))
            raise
        found += came
        size += sum(map(answer_bytes, came))
        largest = max([largest, *(len(message.body) for message in came)])
        if len(came) < step:
            break
    if found:
        sizes.note(call.name, largest)
    return found


async def _in_parts(found: list[AsyncDelivery]) -> AsyncIterator[bytes]:
    """Claimed messages as an answer has them, one after another: of large ones, only one at a time is in memory twice,
    and it is put into words in a thread."""
    begin = b'{"messages":['
    for message in _taken(found):
        yield begin + await asyncio.to_thread(_in_words, message)
        begin = b","
    yield b"]}"


def _in_words(message: AsyncDelivery) -> bytes:
    return _encode(claimed_message(message))


def _taken(found: list[AsyncDelivery]) -> Iterable[AsyncDelivery]:
    """What is in a list, which gets shorter: what is on its way need not be kept."""
    found.reverse()
    while found:
        yield found.pop()


async def _claim_step(call: ApiCall[ClaimRequest, None], count: int) -> list[AsyncDelivery]:
    wanted = call.body
    consumer = wanted.consumer
    if consumer is None:
        consumer = f"{call.caller.name} at {call.request.client}"[: ops.CONSUMER_BYTES_MAX // 4]
    queue = call.store.queue(call.name)
    return await queue.claim(count, lease=wanted.lease, consumer=consumer)


async def _receipts(call: ApiCall[Any, None], texts: list[str]) -> list[Receipt]:
    """Receipts, each once, if they are of this queue."""
    check_count(len(texts), NAMED_MAX, "receipts")
    receipts = list(dict.fromkeys(map(Receipt.parse, texts)))
    if not receipts:
        raise Invalid("there is nothing to acknowledge")
    await call.service.numbers.require(receipts, call.name)
    return receipts


async def ack(call: ApiCall[AckRequest, None]) -> Acknowledged:
    """Messages are done, all or none: one stale receipt refuses them all with 410, and nothing is changed."""
    receipts = await _receipts(call, call.body.receipts)
    call.traced(len(receipts))
    await call.store.commit(ack_operations(receipts))
    return Acknowledged(acknowledged=list(map(str, receipts)))


async def fail(call: ApiCall[FailRequest, None]) -> FailedReceipts:
    """It did not work: the message is tried again after the queue's back-off, or after `delay`; or, with `final`,
    never."""
    (receipt,) = await _receipts(call, [call.body.receipt])
    delay = call.body.delay
    await call.store.commit([fail_operation(receipt, call.body.reason, delay, call.body.final)])
    return FailedReceipts(failed=[str(receipt)])


async def extend(call: ApiCall[ExtendRequest, None]) -> Extended:
    """Hold a message for longer: from now on for `lease`, or the queue's default."""
    (receipt,) = await _receipts(call, [call.body.receipt])
    done = await call.store.commit([extend_operation(receipt, call.body.lease)])
    length, until = duration_text(done[0].length_ms), time_text(done[0].lease_ms)
    return Extended(receipt=str(receipt), lease=length, lease_until=until)


# -- what failed ----------------------------------------------------------------------------------------------------


async def list_failed(call: ApiCall[None, FailedQuery]) -> Response:
    """The failed messages, oldest first, with their reasons, attempts and bodies. A page ends early when its bodies
    are large; `next` says where to go on."""
    check_count(call.query.limit, FAILED_MAX, "failed messages in an answer")
    asked = ops.ListFailed(call.name, call.query.after, call.query.limit)
    page: ops.FailedMessages = (await call.store.commit([asked]))[0]
    return await asyncio.to_thread(_failed_page, call, page)


def _failed_page(call: ApiCall[Any, Any], page: ops.FailedMessages) -> Response:
    """The page, read and put into words in a thread; as many of its messages as find room."""
    entries = page.messages
    room = AnswerRoom(ANSWER_BYTES_MAX)
    rows = call.store.messages.leading([one.message for one in entries], [one.record for one in entries], room.fits)
    found: list[FailedMessage] = []
    for entry, (kind, body, about) in zip(entries, rows, strict=False):
        content = None if body is None or about is None else (kind, body, about)
        found.append(failed_message(call.name, entry, content))
    more = page.more or len(found) < len(entries)
    return Response.json(FailureList(messages=list(map(failure, found)), next=found[-1].message if more else None))


async def peek(call: ApiCall[None, PeekQuery]) -> QueuedList:
    """Look into the queue without claiming: nothing changes, and no attempt is counted. A page shows headers and the
    first bytes of bodies; `cursor` says where the next one begins, and stays good while the queue changes. First come
    messages that are available, delayed, blocked, in flight or assigned, in the order in which they came; then failed
    ones, then done ones. Ages count from when a message was published."""
    query = call.query
    page = await call.store.queue(call.name).peek(
        query.limit,
        states=[state.strip() for state in query.state.split(",")] if query.state else None,
        filter=query.filter,
        priority=query.priority,
        older_than=query.older_than,
        newer_than=query.newer_than,
        body_bytes=query.body_bytes,
        cursor=query.cursor,
    )
    return queued_list(call.name, page)


async def redrive(call: ApiCall[RedriveRequest, None]) -> Redriven:
    """Try failed messages again, as if they had never been tried. In another queue, the caller needs the right to
    publish there too."""
    wanted = call.body
    if (wanted.messages is not None) + (wanted.filter is not None) + wanted.all != 1:
        raise Invalid("say which failed messages: their numbers in messages, a filter, or all")
    if wanted.to is not None:
        ops.check_name(wanted.to)
        call.caller.require("publish", "queue", wanted.to)
    check_count(len(wanted.messages or ()), NAMED_MAX, "messages")
    queue = call.store.queue(call.name)
    if wanted.messages == []:
        await queue.info()  # nothing is done, but not to a queue that is not there
    done = await queue.redrive(wanted.messages, filter=wanted.filter, to=wanted.to)
    return Redriven(queue=call.name, to=wanted.to or call.name, messages=done)


async def purge(call: ApiCall[PurgeRequest, None]) -> Purged:
    """Remove messages for good. What is in flight stays."""
    wanted = call.body
    if (wanted.messages is not None) == (wanted.available or wanted.failed):
        raise Invalid("say what goes: available, failed, or both; or the numbers of failed messages")
    check_count(len(wanted.messages or ()), NAMED_MAX, "messages")
    queue = call.store.queue(call.name)
    if wanted.messages == []:
        await queue.info()
    done = await queue.purge(available=wanted.available, failed=wanted.failed, messages=wanted.messages)
    return Purged(queue=call.name, messages=done)


# -- one message ----------------------------------------------------------------------------------------------------


async def show_message(call: ApiCall[None, None]) -> MessageDescription | Response:
    """A message, and where it is in each queue that the caller may read."""
    number = _number(call.name)
    info: MessageInfo | None
    try:
        info = await call.store.message(number)
    except NotFound:
        info = None
    places = [] if info is None else [p for p in info.places if call.caller.may("read", "queue", p.queue)]
    if info is None or not (places or may_everywhere(call.caller, "read")):
        raise NotFound(
            f"there is no message {number}: it is done, expired, was never published, or is in no queue of yours"
        )
    if len(info.body) >= LARGE_BYTES:
        return await asyncio.to_thread(_described, info, places)
    return describe_message(info, places)


def _described(info: MessageInfo, places: list[MessagePlace]) -> Response:
    return Response.json(describe_message(info, places))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(f"{text[:100]!r} is not a message number")
    return int(text)


QUEUE: Final = "/v1/queues/{queue}"

ROUTES: Final = (
    Route("GET", "/v1/queues", list_queues, "List queues", None, QueueList, query=QueueListQuery, errors=()),
    Route(
        "PUT", QUEUE, create_queue, "Create a queue", "admin", QueueDescription,
        body=NewQueue, status=201, other_statuses=(200,), errors=(404, 409),
    ),
    Route("PATCH", QUEUE, configure_queue, "Change a queue's settings", "admin", QueueDescription, body=QueueSettings),
    Route("GET", QUEUE, show_queue, "Show a queue", "any", QueueDescription),
    Route("DELETE", QUEUE, delete_queue, "Delete a queue", "admin", None, status=204),
    Route(
        "POST", f"{QUEUE}/messages", publish, "Publish messages to a queue", "publish", PublishedList,
        body=OutgoingMessage | list[OutgoingMessage],
    ),
    Route("POST", f"{QUEUE}/claim", claim, "Claim messages", "consume", ClaimedList, body=ClaimRequest),
    Route(
        "POST", f"{QUEUE}/ack", ack, "Acknowledge messages", "consume", Acknowledged,
        body=AckRequest, errors=(404, 410),
    ),
    Route(
        "POST", f"{QUEUE}/fail", fail, "Say that an attempt came to nothing", "consume", FailedReceipts,
        body=FailRequest, errors=(404, 410),
    ),
    Route(
        "POST", f"{QUEUE}/extend", extend, "Hold a message for longer", "consume", Extended,
        body=ExtendRequest, errors=(404, 410),
    ),
    Route("GET", f"{QUEUE}/messages", peek, "Look at a queue's messages", "read", QueuedList, query=PeekQuery),
    Route("GET", f"{QUEUE}/failed", list_failed, "List failed messages", "read", FailureList, query=FailedQuery),
    Route(
        "POST", f"{QUEUE}/redrive", redrive, "Try failed messages again", "admin", Redriven,
        body=RedriveRequest, errors=(404, 409),
    ),
    Route("POST", f"{QUEUE}/purge", purge, "Remove messages", "admin", Purged, body=PurgeRequest),
    Route(
        "POST", "/v1/messages", publish_anywhere, "Publish messages to whichever queues match", "publish",
        PublishedList, body=OutgoingMessage | list[OutgoingMessage], errors=(),
    ),
    Route("GET", "/v1/messages/{message}", show_message, "Show a message", None, MessageDescription),
)  # fmt: skip
"""What can be asked of queues."""
