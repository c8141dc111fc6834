"""The HTTP API's routes for consumers: whatever reads journals on its own, graphs and bridges among them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from detent.errors import Corrupt, NotFound
from detent.journal import JournalReader
from detent.journal.message import messages_of
from detent.processor.provenance import provenance_of
from detent.server.limits import ListQuery, page_of
from detent.server.models import AnswerModel, Number, RequestModel, TimeText, duration_text, time_text
from detent.server.route import ApiCall, Route
from detent.shard import ConsumerInfo, ShardInfo

KINDS: Final = {"graph/": "processor", "bridge/": "bridge", "pipeline/": "pipeline"}
"""What the names of consumers begin with that are parts of something else, and what they are."""


class ShardAnswer(AnswerModel, kw_only=True):
    """A part of a consumer. `holder` is the member that works on it; none, if it is empty. `lag` says how many messages
    of each journal wait, `processed` the offset after the last one that is done."""

    index: int
    holder: str
    lease: str
    status: str
    error: str
    lag: dict[str, int]
    processed: dict[str, int]
    published: dict[str, int]
    resets: dict[str, int]


class MemberAnswer(AnswerModel, kw_only=True):
    """A process that works for a consumer, and until when it counts as alive."""

    member: str
    info: str
    expires: TimeText


class ConsumerAnswer(AnswerModel, kw_only=True):
    """A consumer. `kind` is consumer, processor (of a graph), bridge or pipeline; `state` is running, paused, failed
    (and tried again) or stopped; `lag` counts the messages that wait. `writes` are journals that it has
    written: as it says, or as their newest messages say."""

    name: str
    kind: str
    state: str
    paused: bool
    partition: str
    created: TimeText
    journals: list[str]
    writes: list[str]
    lag: int
    error: str
    members: list[MemberAnswer]
    shards: list[ShardAnswer]


class ConsumerList(AnswerModel, kw_only=True):
    """Consumers by name; `next` is the name to go on `after`, if there are more."""

    consumers: list[ConsumerAnswer]
    next: str | None


class ConsumerChange(RequestModel, kw_only=True):
    """Whether its members rest."""

    paused: bool


class ConsumerReset(RequestModel, kw_only=True):
    """From which offset each journal is read again, or on."""

    offsets: dict[str, Number]


WRITERS_MAX: Final = 200
WRITERS_S: Final = 1.0
"""Journals whose newest message is read to see which processor wrote it, and for how long at most."""


def kind_of(name: str) -> str:
    """What a consumer of a name is."""
    return next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), "consumer")


def _state(info: ConsumerInfo) -> str:
    held = [shard for shard in info.shards if shard.holder]
    if any(shard.status == "failed" for shard in held):
        return "failed"
    if info.paused:
        return "paused"
    return "running" if held else "stopped"


async def list_consumers(call: ApiCall[None, ListQuery]) -> ConsumerList:
    """The consumers that the caller may look at, by name, with their lag."""
    found = {info.name: info for info in await call.store.consumers(call.query.prefix)}
    visible = [name for name in found if call.caller.may("read", "consumer", name)]
    page, following = page_of(visible, call.query)
    written = await _written(call, page)
    return ConsumerList(consumers=[await _described(call, found[name], written) for name in page], next=following)


async def _written(call: ApiCall[Any, Any], names: Iterable[str]) -> dict[str, set[str]]:
    """The journals that processors of graphs have written, by the consumer that each is."""
    if not any(kind_of(name) == "processor" for name in names):
        return {}
    return await asyncio.to_thread(_writers, call.store.reader)


def _writers(reader: JournalReader) -> dict[str, set[str]]:
    """Who wrote the newest message of each journal, as far as it says so; of the first journals by name."""
    found: dict[str, set[str]] = defaultdict(set)
    deadline = time.monotonic() + WRITERS_S
    for extent in reader.extents_listed(WRITERS_MAX):
        if time.monotonic() > deadline:
            break
        newest = extent.next_offset - 1
        with suppress(NotFound, Corrupt):
            for number, batch in reader.committed(extent.name, max(newest, extent.first_offset), newest + 1):
                for message in messages_of(batch, journal=extent.name, offset=number):
                    said = provenance_of(message)
                    if said is not None:
                        found[f"graph/{said.processor}"].add(extent.name)
    return found


async def _described(call: ApiCall[Any, Any], info: ConsumerInfo, written: Mapping[str, set[str]]) -> ConsumerAnswer:
    lags = await call.store.consumer(info.name).lag()
    return ConsumerAnswer(
        name=info.name,
        kind=kind_of(info.name),
        state=_state(info),
        paused=info.paused,
        partition=info.partition,
        created=time_text(info.created),
        journals=sorted(info.sources),
        writes=sorted({*written.get(info.name, ()), *(name for shard in info.shards for name in shard.published)}),
        lag=sum(sum(lag.values()) for lag in lags.values()),
        error=next((shard.error for shard in info.shards if shard.error), ""),
        members=[
            MemberAnswer(member=one.member, info=one.info, expires=time_text(one.expires)) for one in info.members
        ],
        shards=[_shard(shard, lags.get(shard.index, {})) for shard in info.shards],
    )


def _shard(shard: ShardInfo, lag: dict[str, int]) -> ShardAnswer:
    return ShardAnswer(
        index=shard.index,
        holder=shard.holder,
        lease=duration_text(shard.lease),
        status=shard.status,
        error=shard.error,
        lag=lag,
        processed=shard.processed,
        published=shard.published,
        resets=shard.resets,
    )


async def show_consumer(call: ApiCall[None, None]) -> ConsumerAnswer:
    """One consumer: its shards, its members, its lag."""
    info = await call.store.consumer(call.name).info()
    return await _described(call, info, await _written(call, [call.name]))


async def change_consumer(call: ApiCall[ConsumerChange, None]) -> ConsumerAnswer:
    """Let its members rest once they have finished what is under way, or go on."""
    handle = call.store.consumer(call.name)
    await (handle.pause() if call.body.paused else handle.resume())
    return await show_consumer(call)  # type: ignore[arg-type]  # the name is all that it looks at


async def reset_consumer(call: ApiCall[ConsumerReset, None]) -> ConsumerAnswer:
    """Read journals again, or on, from these offsets. The state that the consumer has made of them stays."""
    await call.store.consumer(call.name).reset(call.body.offsets)
    return await show_consumer(call)  # type: ignore[arg-type]


CONSUMER: Final = "/v1/consumers/{consumer}"

ROUTES: Final = (
    Route(
        "GET", "/v1/consumers", list_consumers, "List consumers", None, ConsumerList, query=ListQuery, errors=(),
    ),
    Route("GET", CONSUMER, show_consumer, "Show a consumer", "read", ConsumerAnswer),
    Route(
        "PATCH", CONSUMER, change_consumer, "Pause or resume a consumer", "admin", ConsumerAnswer, body=ConsumerChange,
    ),
    Route(
        "POST", f"{CONSUMER}/reset", reset_consumer, "Have journals read again", "admin", ConsumerAnswer,
        body=ConsumerReset,
    ),
)  # fmt: skip
"""What can be asked of consumers."""
