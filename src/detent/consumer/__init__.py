"""Consumers: applications that read journals, keep state and publish, each message taking effect once.

>>> from detent.consumer import Consumer
>>> app = Consumer("words", store="file:./data", read="lines")
>>> @app.consume
... def count(message, state, publish):
...     for word in message.body.decode().split():
...         state[word] = state.get(word, 0) + 1
>>> app.run(once=True)

Where the state is kept is in `detent.state`; which process has which shard is recorded by
`detent.shard`. From `detent run` to one message:

    application.py  what it is declared with: journals, functions, state
    consumer.py     `Consumer`, and how it runs in this process
    supervisor.py   or in several processes: started, watched, started again, ended together
    worker.py       one process: says that it is alive, takes free shards, gives up surplus ones
    task.py         one shard in a process: a life after another, or a standby

A shard's transaction, in the order in which things happen:

    shard.py        restores state behind the fence; then consumes, appends, commits, acknowledges
    sources.py      reads the shard's journals in turns, each in order
    outbox.py       what it publishes: in the engine's commit, or pending and acknowledged
    progress.py     how far the shard is, for calls that wait for it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.consumer.application import Application, Publish, Source
    from detent.consumer.consumer import Consumer
    from detent.consumer.shard import ConsumerTransaction
    from detent.consumer.worker import Worker

_HOME = {
    "Application": "detent.consumer.application",
    "Consumer": "detent.consumer.consumer",
    "ConsumerTransaction": "detent.consumer.shard",
    "Publish": "detent.consumer.application",
    "Source": "detent.consumer.application",
    "Worker": "detent.consumer.worker",
}

__all__ = ["Application", "Consumer", "ConsumerTransaction", "Publish", "Source", "Worker"]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
