"""Amazon SQS, or a server that speaks like it: a client with limits of its own, and what its errors mean here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from detent.errors import DetentError, Invalid, NotFound, Unavailable
from detent.extras import install_command

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
_NO_MEANINGS: Final[Mapping[str, type[DetentError]]] = MappingProxyType({})


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
    meanings: Mapping[str, type[DetentError]] = _NO_MEANINGS,
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
