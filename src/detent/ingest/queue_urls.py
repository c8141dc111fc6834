"""Queues by URL, for the command line and for settings.

sqs:NAME?region=eu-west-1&endpoint=http://localhost:4566     a queue of SQS by name
sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/NAME    the same by its URL
detent:file:./data#QUEUE                                     a queue of a Detent store, by the store's URL
redis://HOST:PORT/DATABASE?group=detent#STREAM               a stream of Redis; rediss:// for TLS
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from detent.errors import Invalid
from detent.ingest.queues import FileQueue

FORMS: Final = (
    "sqs:NAME-or-URL?region=REGION&endpoint=URL",
    "detent:STORE-URL#QUEUE",
    "redis://HOST:PORT/DATABASE?group=GROUP#STREAM",
)


def open_queue(url: str) -> FileQueue:
    """The queue that a URL names; `Invalid` says what URLs there are. Errors repeat nothing of the URL but its scheme,
    because the rest may hold a password."""
    scheme, colon, rest = url.partition(":")
    match scheme.lower() if colon else "":
        case "sqs":
            return _open_sqs(rest)
        case "detent":
            return _open_detent(rest)
        case "redis" | "rediss":
            return _open_redis(url)
    shown = f"{scheme!r} is no kind of queue" if colon and scheme.isalnum() else "that is no URL of a queue"
    raise Invalid(f"{shown}: write {', or '.join(FORMS)}")


def _open_sqs(rest: str) -> FileQueue:
    from detent.ingest.queue_sqs import SqsQueue

    named, _, query = rest.removeprefix("//").partition("?")
    options = _options(query, "sqs")
    unknown = options.keys() - {"region", "endpoint"}
    if unknown or not named:
        raise Invalid(f"a queue of SQS is {FORMS[0]}: it has a name, and no options but region and endpoint")
    return SqsQueue(named, region=options.get("region"), endpoint=options.get("endpoint"))


def _open_detent(rest: str) -> FileQueue:
    from detent.ingest.queue_detent import DetentQueue

    store, _, queue = rest.rpartition("#")
    if not store or not queue:
        raise Invalid(f"a queue of Detent is {FORMS[1]}, as in detent:file:./data#orders")
    return DetentQueue(store, queue)


def _open_redis(url: str) -> FileQueue:
    from detent.ingest.queue_redis import RedisQueue

    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or not parts.hostname or not parts.fragment:
        raise Invalid(f"a queue of Redis is {FORMS[2]}; encode special characters of a password")
    options = _options(parts.query, "redis")
    group, consumer = options.pop("group", "detent"), options.pop("consumer", None)
    server = parts._replace(query=urlencode(options), fragment="").geturl()
    return RedisQueue(server, unquote(parts.fragment), group=group, consumer=consumer)


def _options(query: str, scheme: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError:
        raise Invalid(f"what follows the ? of a URL of {scheme} is NAME=VALUE, with & between several") from None
    return dict(pairs)
