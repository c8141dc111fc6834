"""Queues by URL, for the command line and for settings.

sqs:NAME?region=eu-west-1&endpoint=http://localhost:4566     a queue of SQS by name
sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/NAME    the same by its URL
detent:file:./data#QUEUE                                     a queue of a Detent store, by the store's URL
redis://HOST:PORT/DATABASE?group=detent#STREAM               a stream of Redis; rediss:// for TLS
pubsub:NAME?project=shop                                     Google Pub/Sub; and so what other packages offer
MODULE:CLASS:NAME?OPTION=VALUE                               a class of your own, in a module or in FILE.py
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from detent.errors import Invalid
from detent.transports import named
from detent.transports.contract import MessageQueue

FORMS: Final = (
    "sqs:NAME-or-URL?region=REGION&endpoint=URL",
    "detent:STORE-URL#QUEUE",
    "redis://HOST:PORT/DATABASE?group=GROUP#STREAM",
    "pubsub:NAME?project=PROJECT",
    "MODULE:CLASS:NAME?OPTION=VALUE",
)

_PLACE: Final = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:?#]+\.py)", re.ASCII)


class Named(NamedTuple):
    """What a URL says of queues that a class makes."""

    cls: type
    name: str
    """Empty if it is not said."""
    options: dict[str, str]


def open_queue(url: str) -> MessageQueue:
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
    found = find_named(url)
    if found is None:
        shown = f"{scheme!r} is not a kind of queue" if colon and scheme.isalnum() else "that is not the URL of a queue"
        also = sorted(set(named.offered()) - {"pubsub"})
        raise Invalid(
            f"{shown}: write {', or '.join(FORMS)}" + (f"; installed packages offer {', '.join(also)}" if also else "")
        )
    if not found.name:
        raise Invalid(f"{scheme}: names no queue: write {scheme}:NAME, or MODULE:CLASS:NAME")
    return named.make(found.cls, found.name, found.options)


def find_named(url: str) -> Named | None:
    """The class that a URL names, by the name that a package offers it under or by its place; None if it names none."""
    place, first, rest = url.partition(":")
    cls = named.class_of_package(place) if place and first else None
    if cls is None:
        attribute, second, after = rest.partition(":")
        if not second or not attribute.isidentifier() or not _PLACE.fullmatch(place):
            return None
        cls, rest = named.class_of_place(place, attribute), after
    name, _, query = rest.partition("?")
    return Named(cls, unquote(name), options_of(query, place))


def _open_sqs(rest: str) -> MessageQueue:
    from detent.transports.queue_sqs import SqsQueue

    name, _, query = rest.removeprefix("//").partition("?")
    options = options_of(query, "sqs")
    unknown = options.keys() - {"region", "endpoint"}
    if unknown or not name:
        raise Invalid(f"a queue of SQS is {FORMS[0]}: it has a name, and no options but region and endpoint")
    return SqsQueue(name, region=options.get("region"), endpoint=options.get("endpoint"))


def _open_detent(rest: str) -> MessageQueue:
    from detent.transports.queue_detent import DetentQueue

    store, _, queue = rest.rpartition("#")
    if not store or not queue:
        raise Invalid(f"a queue of Detent is {FORMS[1]}, as in detent:file:./data#orders")
    return DetentQueue(store, queue)


def _open_redis(url: str) -> MessageQueue:
    from detent.transports.queue_redis import RedisQueue

    stream, options = redis_parts(url)
    return RedisQueue(stream=stream, **options)


def redis_parts(url: str, *, needs_stream: bool = True) -> tuple[str, dict[str, Any]]:
    """The stream that a URL of Redis names, and what `RedisQueue` takes besides."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or not parts.hostname or (needs_stream and not parts.fragment):
        raise Invalid(f"a queue of Redis is {FORMS[2]}; encode special characters of a password")
    options = options_of(parts.query, "redis")
    own: dict[str, Any] = {name: options.pop(name) for name in ("group", "consumer") if name in options}
    server = parts._replace(query=urlencode(options), fragment="").geturl()
    return unquote(parts.fragment), {"url": server, **own}


def options_of(query: str, scheme: str) -> dict[str, str]:
    """The options behind the question mark of a URL."""
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError:
        raise Invalid(f"what follows the ? of a URL of {scheme} is NAME=VALUE, with & between several") from None
    return dict(pairs)
