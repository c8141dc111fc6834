"""The SQS endpoint as a part of the server: which requests are its own, and how each is answered."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from detent.errors import DetentError, LimitExceeded
from detent.remote import rights
from detent.server.access import Caller
from detent.server.http import HttpRequest, Response
from detent.server.keys import Unauthenticated
from detent.server.sigv4 import is_signed
from detent.server.sqs import attributes, jsonwire, querywire
from detent.server.sqs.call import Answer, Fields, SqsCall, missing
from detent.server.sqs.directory import Directory
from detent.server.sqs.errors import (
    BAD_SIGNATURE,
    INTERNAL,
    NO_CREDENTIALS,
    NOT_ALLOWED,
    TOO_LARGE,
    UNKNOWN_KEY,
    Refused,
    refused,
)
from detent.server.sqs.managing import Managing
from detent.server.sqs.moving import Moving
from detent.server.sqs.names import QueuePlace, base_url
from detent.server.sqs.receiving import Receiving
from detent.server.sqs.sending import SendCall
from detent.server.sqs.settling import Settling
from detent.server.sqs.shapes import ACTIONS, READS

if TYPE_CHECKING:
    from detent.store import AsyncStore

BODY_BYTES_MAX: Final = 8 << 20
"""A batch of 1 MiB in which every character is escaped, and some more."""

_PATH: Final = re.compile(r"/((queue/[a-z0-9-]{1,40}/)?\d{12}/[^/]{1,100}/?)?")
"""Where SQS clients send forms: the root, and queues, under an account and perhaps a region."""

_INVOCATION: Final = re.compile(r"[A-Za-z0-9-]{8,64}")

Handler = Callable[[SqsCall], Awaitable[Answer]]

logger = logging.getLogger("detent.server.sqs")


class SqsPart:
    """Answers SQS clients, in both of their protocols, from the queues of a store. What takes its time asks `still`
    whether the caller that began it may go on."""

    name = "sqs"

    def __init__(
        self,
        store: AsyncStore,
        *,
        place: QueuePlace | None = None,
        clock: Callable[[], float] = time.time,
        still: Callable[[Caller], bool] = lambda _: True,
    ) -> None:
        self._place = place or QueuePlace()
        self._closing = asyncio.Event()
        directory = Directory(store)
        sending = SendCall(store, directory)
        receiving = Receiving(store, directory, self._place, clock, still)
        settling = Settling(store, directory)
        self._moving = moving = Moving(store, directory, self._place, clock, still)
        managing = Managing(store, directory, self._place, clock, moving.forget)
        self._handlers: dict[str, Handler] = {
            "AddPermission": managing.permission,
            "CancelMessageMoveTask": moving.cancel,
            "ChangeMessageVisibility": settling.change,
            "ChangeMessageVisibilityBatch": settling.change_batch,
            "CreateQueue": managing.create,
            "DeleteMessage": settling.delete,
            "DeleteMessageBatch": settling.delete_batch,
            "DeleteQueue": managing.delete,
            "GetQueueAttributes": managing.attributes,
            "GetQueueUrl": managing.url,
            "ListDeadLetterSourceQueues": managing.sources,
            "ListMessageMoveTasks": moving.tasks,
            "ListQueueTags": managing.tags,
            "ListQueues": managing.queues,
            "PurgeQueue": managing.purge,
            "ReceiveMessage": receiving.receive,
            "RemovePermission": managing.permission,
            "SendMessage": sending.send,
            "SendMessageBatch": sending.send_batch,
            "SetQueueAttributes": managing.set_attributes,
            "StartMessageMoveTask": moving.start,
            "TagQueue": managing.tag,
            "UntagQueue": managing.untag,
        }

    async def close(self) -> None:
        """Answer those who wait, and stop what runs in the background, before the store is closed."""
        self._closing.set()
        await self._moving.close()

    def owns(self, request: HttpRequest) -> bool:
        """Whether a request is one of an SQS client: by its target, or a form (or an Action in the address) at a place
        where only queues are. What it may do by its method is said in the answer."""
        if request.headers.get(jsonwire.TARGET, "").startswith(jsonwire.TARGET_PREFIX):
            return True
        if not _PATH.fullmatch(request.path):
            return False
        if request.method == "POST":
            return request.content_type in {querywire.FORM_TYPE, jsonwire.TYPE}
        if request.method not in {"GET", "HEAD"}:
            return False
        return b"Action=" in request.raw_query or request.path != "/"

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer a request in the protocol that it came in."""
        request_id = str(uuid.uuid4())
        try:
            body = await self._body(request)
            if _is_json(request):
                action = jsonwire.action_of(request)
                _check_method(request, action)
                fields = jsonwire.read(action, body)
                return await self._run(action, fields, request, caller, partial(jsonwire.answer, request_id=request_id))
            form = querywire.read_form(request, body)
            action = querywire.action_of(form, request.path)
            _check_method(request, action)
            fields = querywire.read(action, form, request.path)
            as_json = querywire.wants_json(request)
            words = partial(querywire.answer, action, request_id=request_id, as_json=as_json)
            return await self._run(action, fields, request, caller, words)
        except DetentError as error:
            return _refuse(request, rights.told(caller, error), request_id)
        except Exception:
            logger.exception("answering an SQS client", extra={"request": request_id})
            return _refuse(request, Refused(INTERNAL, "An internal error has occurred."), request_id)

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """How an SQS client is told that something is wrong."""
        return _refuse(request, error, str(uuid.uuid4()))

    async def _body(self, request: HttpRequest) -> bytes:
        try:
            return await request.body(BODY_BYTES_MAX)
        except LimitExceeded as error:
            raise Refused(TOO_LARGE, str(error)) from error

    async def _run(
        self, action: str, fields: Fields, request: HttpRequest, caller: Caller, words: Callable[[Answer], Response]
    ) -> Response:
        """Run an action, and put its answer into words."""
        spec = ACTIONS[action]
        for name in spec.required:
            value = fields.get(name)
            if value is None or value == "":
                raise missing(name)
        base = base_url(request.scope.get("scheme", "http"), request.headers.get("host"), self._place)
        request.operation = action
        gone = partial(self._gone, request)
        call = SqsCall(action, fields, caller, base, _invocation(request), _trace(request), gone)
        result = await self._handlers[action](call)
        try:
            response = words(result if spec.answers else None)
        except BaseException:
            if call.undo is not None:
                call.undo()
            raise
        response.undo = call.undo
        return response

    async def _gone(self, request: HttpRequest) -> None:
        """Return when the client has gone away, or the server goes."""
        ends = [asyncio.create_task(request.disconnected()), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


def _invocation(request: HttpRequest) -> str:
    """What an SDK calls this call, the same when it repeats it."""
    given = request.headers.get("amz-sdk-invocation-id", "")
    return given if _INVOCATION.fullmatch(given) else ""


def _trace(request: HttpRequest) -> str:
    """The trace that a call is a part of."""
    given = request.headers.get("x-amzn-trace-id", "")
    return given if attributes.is_trace(given) else ""


def _check_method(request: HttpRequest, action: str) -> None:
    """Any page in a browser can have it send a GET: so none changes anything. (SQS itself takes all actions by GET.)"""
    if request.method == "POST" or (request.method == "GET" and action in READS):
        return
    raise Refused(NOT_ALLOWED, f"The action {action} is called with POST, not with {request.method[:20]}.")


def _is_json(request: HttpRequest) -> bool:
    return jsonwire.TARGET in request.headers or request.content_type == jsonwire.TYPE


def _unauthenticated(request: HttpRequest, error: Unauthenticated) -> Refused:
    """Why the caller could not be identified, as SQS says it. Of a signature it is not said whether its key is
    known."""
    kind = request.headers.get("authorization", "").partition(" ")[0]
    fault = UNKNOWN_KEY if kind.lower() == "bearer" else BAD_SIGNATURE if is_signed(request) else NO_CREDENTIALS
    return Refused(fault, str(error))


def _refuse(request: HttpRequest, error: DetentError, request_id: str) -> Response:
    known = _unauthenticated(request, error) if isinstance(error, Unauthenticated) else refused(error)
    if _is_json(request):
        return jsonwire.refuse(known, request_id)
    return querywire.refuse(known, request_id, querywire.wants_json(request))
