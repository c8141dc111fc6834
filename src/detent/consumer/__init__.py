"""Consumers: applications that read journals, keep state and publish, each message taking effect exactly once.

>>> from detent.consumer import Consumer
>>> app = Consumer("words", store="file:./data", read="lines")
>>> @app.consume
... def count(message, state, publish):
...     for word in message.body.decode().split():
...         state[word] = state.get(word, 0) + 1
>>> app.run(once=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.consumer.application import Application, Consumer, Publish, Source
    from detent.consumer.transaction import ConsumerTransaction
    from detent.consumer.worker import Worker

_HOME = {
    "Application": "detent.consumer.application",
    "Consumer": "detent.consumer.application",
    "ConsumerTransaction": "detent.consumer.transaction",
    "Publish": "detent.consumer.application",
    "Source": "detent.consumer.application",
    "Worker": "detent.consumer.worker",
}

__all__ = ["Application", "Consumer", "ConsumerTransaction", "Publish", "Source", "Worker"]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
