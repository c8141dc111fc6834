"""Amazon SQS, or a server that speaks like it: clients with limits of their own, the URLs of queues by their names, and
what errors mean here."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from detent.errors import Denied, DetentError, Exists, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.extras import install_command
from detent.transports.sqs_message import FIFO

BATCH_MAX: Final = 10
"""Messages in one call, of whatever kind: SQS takes no more."""

VISIBILITY_S_MAX: Final = 43_200
"""SQS hides a message for twelve hours at most, counted from when it was received; extensions beyond that fail."""

WAIT_S_MAX: Final = 20
"""SQS waits no longer in one call."""

CALLS_AT_ONCE: Final = 8
"""Receives under way at the same time, and as many extensions and deletions. Each is a round trip of some milliseconds
for ten messages, so that one after another comes to about a thousand messages a second."""

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 5
"""How long an answer may take. Extensions have a deadline, and are better tried again than waited for."""

RECEIVE_TIMEOUT_S: Final = WAIT_S_MAX + 10
"""The same of a receive: as long as SQS waits, and some more."""

ATTEMPTS_MAX: Final = 3
"""Tries of one call. A receiver asks again anyway, and what is not extended or deleted is reported as that."""

MISSING: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
"""Codes for a queue that is not there, in either of the two protocols."""

_REGION: Final = r"([a-z]{2,5}(?:-[a-z]+)+-\d+)"
_PLAIN: Final = (
    r"(?:amazonaws\.com(?:\.cn)?|amazonaws\.eu|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)"
)
_DUAL_STACK: Final = r"(?:api\.aws|api\.amazonwebservices\.(?:com\.cn|eu))"
"""What the names of AWS's hosts end with, in its partitions; the second for those that IPv6 reaches as well."""

_ORDINARY: Final = re.compile(rf"sqs\.{_REGION}\.{_PLAIN}")
_LEGACY: Final = re.compile(rf"(?:{_REGION}\.)?queue\.{_PLAIN}")
_CHOSEN: Final = re.compile(
    rf"sqs(?:-fips)?\.{_REGION}\.(?:{_PLAIN}|{_DUAL_STACK})|[a-z0-9.-]+\.sqs\.{_REGION}\.vpce\.{_PLAIN}"
)
"""Hosts that are chosen on purpose: with FIPS, over IPv6, in a network of one's own."""

LEGACY_REGION: Final = "us-east-1"
"""That of the oldest host, which does not say it."""

_PREFIX: Final = "AWS.SimpleQueueService."

NAME_MAX: Final = 80
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")

Meanings = Mapping[str, type[DetentError]]
"""What codes mean for one kind of call; others may pass."""

PASSING: Final[Meanings] = MappingProxyType({})
ASKING: Final[Meanings] = MappingProxyType({"AccessDenied": Denied, "AccessDeniedException": Denied})

_WRONG: Final = ("InvalidParameterValue", "InvalidParameterValueException")

SENDING: Final[Meanings] = MappingProxyType(
    {
        **ASKING,
        "BatchRequestTooLong": LimitExceeded,
        **dict.fromkeys(_WRONG, Invalid),
        "InvalidAttributeValue": Invalid,
        "InvalidMessageContents": Invalid,
        "MissingParameter": Invalid,
        "MissingRequiredParameterException": Invalid,
        "UnsupportedOperation": Invalid,
    }
)
"""What it means that messages are refused: the same ones will be, again."""

SETTLING: Final[Meanings] = MappingProxyType(
    {
        **ASKING,
        **dict.fromkeys(_WRONG, StaleReceipt),
        "MessageNotInflight": StaleReceipt,
        "ReceiptHandleIsInvalid": StaleReceipt,
    }
)
"""What it means that a receipt is refused: the message is gone, or another holder has it."""

_MAKING: Final[Meanings] = MappingProxyType({**SENDING, "QueueNameExists": Exists, "QueueAlreadyExists": Exists})


def place_of(url: str) -> tuple[str | None, str | None]:
    """The region and the endpoint of a URL at an SQS; None for what boto3 finds by itself, or the host does not say."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ordinary := _ORDINARY.fullmatch(host):
        return ordinary[1], None
    if legacy := _LEGACY.fullmatch(host):  # the same queues as at the ordinary host
        return legacy[1] or LEGACY_REGION, None
    chosen = _CHOSEN.fullmatch(host)
    return (chosen[1] or chosen[2] if chosen else None), f"{parts.scheme}://{parts.netloc}"


def new_client(region: str | None, endpoint: str | None, *, timeout_s: int = READ_TIMEOUT_S) -> Any:
    """A boto3 client of SQS, with limits of its own for time, and as many connections as there are calls. The region in
    an endpoint of AWS goes before that of the environment."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError as error:
        raise Invalid(f"a queue of SQS needs the package boto3: {install_command('sqs')}") from error
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        max_pool_connections=2 * CALLS_AT_ONCE,
        tcp_keepalive=True,
    )
    try:
        region = region or (place_of(endpoint)[0] if endpoint else None)
        return boto3.client("sqs", region_name=region, endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise Invalid(f"there is no SQS like that: {error}; check the region and the endpoint") from error


def ask(
    call: Callable[..., Any],
    queue: str,
    request: Mapping[str, Any],
    meanings: Meanings = PASSING,
) -> dict[str, Any]:
    """The answer of a call about a queue. `meanings` says which error a code is, without its prefix; of the others, one
    for a queue that is not there is `NotFound`, and all else may pass."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = call(**request)
    except ClientError as error:
        codes = codes_of(error.response.get("Error", {}))
        if codes & MISSING:
            raise NotFound(
                f"SQS has no queue {queue!r}: create it, or check its name, the region and the account"
            ) from error
        meant = next((meanings[code] for code in sorted(codes) if code in meanings), Unavailable)
        raise meant(f"SQS refuses to work on {queue!r}: {error}") from error
    except BotoCoreError as error:
        raise Unavailable(f"SQS does not answer for {queue!r}: {error}") from error
    return answer


def codes_of(said: Mapping[str, Any]) -> set[str]:
    """The codes of an error, without their prefix: a server may give one for each of its two protocols."""
    return {str(said[key]).removeprefix(_PREFIX) for key in ("Code", "QueryErrorCode") if said.get(key)}


def seconds(given: float, most: int) -> int:
    """Whole seconds, rounded up: hidden for a little longer is better than delivered twice."""
    return min(max(math.ceil(given), 0), most)


class SqsConnection:
    """Clients for all queues of one SQS, and the URLs of these. `client` is a boto3 client of your own, which stays
    open."""

    def __init__(self, region: str | None, endpoint: str | None, client: Any = None) -> None:
        self._region, self._endpoint = region, endpoint
        self._own = client is None
        self._client = self._receiver = client
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make clients: one of them waits for messages, and for longer."""
        if self._own:
            self._receiver = new_client(self._region, self._endpoint, timeout_s=RECEIVE_TIMEOUT_S)
            self._client = new_client(self._region, self._endpoint)

    def close(self) -> None:
        """Let go of connections."""
        if self._own and self._client is not None:
            self._client.close()
            self._receiver.close()
            self._client = self._receiver = None

    @property
    def place(self) -> str:
        """Which SQS it is, without a secret that may be in a URL."""
        url = self._endpoint or getattr(getattr(self._client, "meta", None), "endpoint_url", None)
        if not url:
            return f"sqs:{self._region or ''}"
        parts = urlsplit(url)
        return f"sqs:{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def call(self, action: str, queue: str, meanings: Meanings = ASKING, **request: Any) -> dict[str, Any]:
        """Ask SQS about a queue."""
        found = {"QueueUrl": self.url(queue), **request}
        client = self._receiver if action == "receive_message" else self._client
        return ask(getattr(_opened(client), action), queue, found, meanings)

    def know(self, queue: str, url: str) -> None:
        """A queue is at this URL, which need not be asked for."""
        with self._lock:
            self._urls[queue] = url

    def url(self, queue: str) -> str:
        """The URL of a queue. It stays the same, and is asked for once."""
        with self._lock:
            known = self._urls.get(queue)
        if known is not None:
            return known
        check_name(queue)
        found: str = ask(_opened(self._client).get_queue_url, queue, {"QueueName": queue}, SENDING)["QueueUrl"]
        self.know(queue, found)
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
        except Exists:  # another process was faster, with other attributes
            self.url(queue)
            return
        self.know(queue, made)


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
            f"{queue!r} cannot be the name of a queue of SQS: use up to {NAME_MAX} ASCII letters, digits, - and _, "
            "with .fifo at the end of a FIFO queue's; an app of another name can say its queue: SqsTransport(queue=...)"
        )
