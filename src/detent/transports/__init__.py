"""Queues that carry messages, of Detent and of other systems: one contract for ingest and for the bus.

>>> from detent.transports import open_queue
>>> queue = open_queue("redis://localhost:6379/0#orders")

A class that fulfils the contract is named in a URL, and ingests and apps take it:
``pubsub:orders?project=shop`` for one that a package offers, ``shop_queues:RabbitQueue:orders`` for one of yours.

    contract.py      what a queue has to do: receive, extend, settle, and send
    checked.py       checks what a foreign queue answers
    urls.py          queues by URL
    named.py         finds the class that a URL names
    queue_detent.py  a queue of Detent
    queue_sqs.py     SQS
    sqs_client.py    a client of SQS, the URLs of its queues, and what its errors mean
    sqs_message.py   how a message is written for SQS, and read from it
    queue_redis.py   a stream of Redis
    queue_pubsub.py  a topic of Google Pub/Sub
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.transports.checked import CheckedQueue
    from detent.transports.contract import (
        Delivery,
        FailedDeliveries,
        FailingQueue,
        MessageQueue,
        NewMessage,
        SendingQueue,
    )
    from detent.transports.queue_detent import DetentQueue
    from detent.transports.queue_pubsub import PubSubQueue
    from detent.transports.queue_redis import RedisQueue
    from detent.transports.queue_sqs import SqsQueue
    from detent.transports.urls import open_queue

_HOMES = {
    "detent.transports.checked": ("CheckedQueue",),
    "detent.transports.contract": (
        "Delivery",
        "FailedDeliveries",
        "FailingQueue",
        "MessageQueue",
        "NewMessage",
        "SendingQueue",
    ),
    "detent.transports.queue_detent": ("DetentQueue",),
    "detent.transports.queue_pubsub": ("PubSubQueue",),
    "detent.transports.queue_redis": ("RedisQueue",),
    "detent.transports.queue_sqs": ("SqsQueue",),
    "detent.transports.urls": ("open_queue",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CheckedQueue",
    "Delivery",
    "DetentQueue",
    "FailedDeliveries",
    "FailingQueue",
    "MessageQueue",
    "NewMessage",
    "PubSubQueue",
    "RedisQueue",
    "SendingQueue",
    "SqsQueue",
    "open_queue",
]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
