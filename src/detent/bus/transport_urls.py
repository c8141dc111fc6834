"""Transports by URL, for `Bus("billing", "...")` and ``detent run --transport``.

file:./data, s3://bucket/prefix, https://host:7410           queues of a Detent store
redis://HOST:PORT/DATABASE#QUEUE                             streams of Redis
sqs:QUEUE?region=eu-west-1                                   queues of SQS
pubsub:QUEUE?project=shop                                    Google Pub/Sub; and so what other packages offer
MODULE:CLASS:QUEUE?OPTION=VALUE                              a class of your own, in a module or in FILE.py

QUEUE is the app's own queue; left out, it is called like the app. Options that are the transport's and not the class's:
failed, replies, lease, create=true, and topic.NAME=QUEUE,QUEUE for what is published as NAME.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from detent.bus.transport import Transport
from detent.bus.transport_queue import QueueTransport
from detent.errors import Invalid
from detent.kv.urls import OBJECT_STORE_SCHEMES
from detent.remote import server_address
from detent.transports import named, urls

FORMS: Final = (
    "file:./data or another store's URL",
    "redis://HOST:PORT/DATABASE#QUEUE",
    "sqs:QUEUE?region=REGION",
    "pubsub:QUEUE?project=PROJECT",
    "MODULE:CLASS:QUEUE?OPTION=VALUE",
)

_OF_STORES: Final = {"memory", "file", *OBJECT_STORE_SCHEMES}
_OWN: Final = ("failed", "replies", "lease", "create")
_TOPIC: Final = "topic."


def open_transport(url: str) -> Transport:
    """The transport that a URL names. Errors repeat nothing of it but its scheme: the rest may hold a password."""
    scheme, colon, rest = url.partition(":")
    kind = scheme.lower()
    is_path = not colon or len(scheme) == 1 or ("/" in scheme and not scheme.endswith(".py"))
    if is_path or kind in _OF_STORES or server_address(url) is not None:
        return QueueTransport(url)
    if kind == "detent":
        store, _, queue = rest.rpartition("#")
        return QueueTransport(store or rest, queue or None) if "#" in rest else QueueTransport(rest)
    if kind in {"redis", "rediss"}:
        return _redis(url)
    if kind == "sqs":
        return _sqs(rest)
    found = urls.find_named(url)
    if found is None:
        shown = (
            f"{scheme!r} is not a kind of transport"
            if colon and scheme.isalnum()
            else "that is not the URL of a transport"
        )
        raise Invalid(f"{shown}: write {', or '.join(FORMS)}")
    own, options = _split(found.options)
    named.check_options(found.cls, found.name or "NAME", options)
    make = partial(named.make, found.cls, options=options)
    return _external(make, found.name, own, scheme)


def _external(make: Any, queue: str, own: dict[str, Any], place: str) -> Transport:
    from detent.bus.transport_external import ExternalTransport

    return ExternalTransport(make, queue or None, place=place, **own)


def _redis(url: str) -> Transport:
    from detent.transports.queue_redis import RedisQueue

    place, _, fragment = url.partition("#")
    server, _, query = place.partition("?")
    own, options = _split(urls.options_of(query, "redis"))
    stream, given = urls.redis_parts(f"{server}?{urlencode(options)}#{fragment}", needs_stream=False)
    return _external(lambda name: RedisQueue(stream=name, **given), stream, own, "redis")


def _sqs(rest: str) -> Transport:
    from detent.bus.transport_external import SqsTransport

    queue, _, query = rest.partition("?")
    own, options = _split(urls.options_of(query, "sqs"))
    unknown = options.keys() - {"region", "endpoint"}
    if unknown or "/" in queue:
        raise Invalid(
            f"queues of SQS are {FORMS[2]}: a name and no URL, and the options region, endpoint, {', '.join(_OWN)} and "
            "topic.NAME"
        )
    return SqsTransport(queue or None, region=options.get("region"), endpoint=options.get("endpoint"), **own)


def _split(options: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Which options are the transport's, as it takes them, and which those of the class."""
    own: dict[str, Any] = {name: options[name] for name in _OWN if name in options}
    if "create" in own:
        if own["create"] not in ("true", "false"):
            raise Invalid("create is true or false: create=true has the app's queues made")
        own["create"] = own["create"] == "true"
    topics = {name: value for name, value in options.items() if name.startswith(_TOPIC)}
    if topics:
        own["topics"] = {
            name.removeprefix(_TOPIC): [queue for queue in value.split(",") if queue] for name, value in topics.items()
        }
    return own, {name: value for name, value in options.items() if name not in _OWN and name not in topics}
