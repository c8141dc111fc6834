"""The HTTP API's routes for consumers: whatever reads journals on its own, graphs and bridges among them."""

from __future__ import annotations

from typing import Any, Final

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
    (and tried again) or stopped; `lag` counts the messages that wait."""

    name: str
    kind: str
    state: str
    paused: bool
    partition: str
    created: TimeText
    journals: list[str]
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
    return ConsumerList(consumers=[await _described(call, found[name]) for name in page], next=following)


async def _described(call: ApiCall[Any, Any], info: ConsumerInfo) -> ConsumerAnswer:
    lags = await call.store.consumer(info.name).lag()
    return ConsumerAnswer(
        name=info.name,
        kind=kind_of(info.name),
        state=_state(info),
        paused=info.paused,
        partition=info.partition,
        created=time_text(info.created),
        journals=sorted(info.sources),
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
    return await _described(call, await call.store.consumer(call.name).info())


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
