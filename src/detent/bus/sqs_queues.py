"""The queues of SQS that a transport talks to: by name, with connections of its own, and with errors that say what to
do."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from detent.transports.sqs_message import FIFO
from detent.errors import Denied, DetentError, Exists, Invalid, LimitExceeded, NotFound, StaleReceipt
from detent.transports.sqs_client import RECEIVE_TIMEOUT_S, ask, new_client

NAME_MAX: Final = 80
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")

_DENIED: Final = {"AccessDenied": Denied, "AccessDeniedException": Denied}

SENDING: Final[Mapping[str, type[DetentError]]] = MappingProxyType(
    {
        **_DENIED,
        "BatchRequestTooLong": LimitExceeded,
        **dict.fromkeys(
            (
                "InvalidAttributeValue",
                "InvalidMessageContents",
                "InvalidParameterValue",
                "InvalidParameterValueException",
                "MissingParameter",
                "MissingRequiredParameterException",
                "UnsupportedOperation",
            ),
            Invalid,
        ),
    }
)
"""What it means that messages are refused: the same ones will be, again."""

SETTLING: Final[Mapping[str, type[DetentError]]] = MappingProxyType(
    {
        **_DENIED,
        **dict.fromkeys(
            (
                "InvalidParameterValue",
                "InvalidParameterValueException",
                "MessageNotInflight",
                "ReceiptHandleIsInvalid",
            ),
            StaleReceipt,
        ),
    }
)
"""What it means that a receipt is refused: the message is gone, or somebody else's."""

_MAKING: Final[Mapping[str, type[DetentError]]] = MappingProxyType(
    {**SENDING, "QueueNameExists": Exists, "QueueAlreadyExists": Exists}
)

ASKING: Final[Mapping[str, type[DetentError]]] = MappingProxyType(_DENIED)


class SqsQueues:
    """Queues by name. `client` is a boto3 client of your own, which stays open."""

    def __init__(self, region: str | None, endpoint: str | None, client: Any) -> None:
        self._region, self._endpoint = region, endpoint
        self._own = client is None
        self._client = self._receiver = client
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make clients: one of them waits for messages, and for longer."""
        if self._own:
            self._client = new_client(self._region, self._endpoint)
            self._receiver = new_client(self._region, self._endpoint, timeout_s=RECEIVE_TIMEOUT_S)

    def close(self) -> None:
        """Let go of connections."""
        if self._own and self._client is not None:
            self._client.close()
            self._receiver.close()
            self._client = self._receiver = None

    @property
    def place(self) -> str:
        """Which SQS it is, without anything secret that somebody may have put into a URL."""
        url = self._endpoint or getattr(getattr(self._client, "meta", None), "endpoint_url", None)
        if not url:
            return f"sqs:{self._region or ''}"
        parts = urlsplit(url)
        return f"sqs:{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def call(
        self, action: str, queue: str, meanings: Mapping[str, type[DetentError]] = ASKING, **request: Any
    ) -> dict[str, Any]:
        """Ask SQS about a queue."""
        found = {"QueueUrl": self.url(queue), **request}
        client = self._receiver if action == "receive_message" else self._client
        return ask(getattr(_opened(client), action), queue, found, meanings)

    def url(self, queue: str) -> str:
        """The URL of a queue. It stays the same, and is asked for once."""
        with self._lock:
            known = self._urls.get(queue)
        if known is not None:
            return known
        check_name(queue)
        found: str = ask(_opened(self._client).get_queue_url, queue, {"QueueName": queue}, SENDING)["QueueUrl"]
        with self._lock:
            self._urls[queue] = found
        return found

    def make(self, queue: str, attributes: Mapping[str, str]) -> None:
        """Create a queue, unless it is there."""
        try:
            self.url(queue)
            return
        except NotFound:
            ordered = {"FifoQueue": "true"} if queue.endswith(FIFO) else {}
        request = {"QueueName": queue, "Attributes": {**attributes, **ordered}}
        try:
            made: str = ask(_opened(self._client).create_queue, queue, request, _MAKING)["QueueUrl"]
        except Exists:  # somebody was faster, with other attributes
            self.url(queue)
            return
        with self._lock:
            self._urls[queue] = made


def _opened(client: Any) -> Any:
    if client is None:
        raise Invalid("the transport is not open: start the app first")
    return client


def is_name(queue: object) -> bool:
    """Whether a queue of SQS can be called so."""
    return isinstance(queue, str) and len(queue) <= NAME_MAX and _NAME.fullmatch(queue) is not None


def check_name(queue: str) -> None:
    """`Invalid` for what no queue of SQS can be called: it would be looked for in vain, for ever."""
    if not is_name(queue):
        raise Invalid(
            f"{queue!r} is no name of a queue of SQS: use up to {NAME_MAX} ASCII letters, digits, - and _, with .fifo "
            "at the end of a FIFO queue's; an app of another name can say its queue: SqsTransport(queue=...)"
        )
