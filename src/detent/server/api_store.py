"""The HTTP API's route for the store as a whole."""

from __future__ import annotations

import asyncio
import platform
from importlib.metadata import version
from typing import Final

from detent.queue.surveying import QueueSurvey, SurveyQueues
from detent.server.models import AnswerModel
from detent.server.route import ApiCall, Route


class StoreAnswer(AnswerModel, kw_only=True):
    """A store: its `epoch`, which rises with each owner; about how many `bytes` its records take, fragments not
    counted; the messages that no queue has taken; how much there is of each
    kind; and the versions of what answers."""

    epoch: int
    bytes: int
    unmatched: int
    queues: int
    journals: int
    consumers: int
    ledgers: int
    detent: str
    python: str


async def show_store(call: ApiCall[None, None]) -> StoreAnswer:
    """How much is in the store, and who owns it. It takes the right to read all of it."""
    store = call.store
    plain = store._store
    found: QueueSurvey = (await store.commit([SurveyQueues(limit=0)]))[0]
    return StoreAnswer(
        epoch=await asyncio.to_thread(lambda: plain.epoch),
        bytes=await asyncio.to_thread(plain.size_bytes),
        unmatched=found.unmatched,
        queues=found.totals.queues,
        journals=len(await store.journals()),
        consumers=len(await store.consumers()),
        ledgers=len(await store.ledgers()),
        detent=version("detent"),
        python=platform.python_version(),
    )


ROUTES: Final = (Route("GET", "/v1/store", show_store, "Show the store", "read", StoreAnswer, errors=()),)
"""What can be asked of the store."""
