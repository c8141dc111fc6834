"""Our server against Redis and PostgreSQL: the same messages, one after another and 100 in flight, and the bars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from bench.harness import INFORMATIVE, Plan, Row, Size, ratio_at_least
from bench.server.load import Call, rate_of

WAYS = {"publish": "publish", "consume": "claim + ack"}
LOADS = {"one": ("one after another", 1), "many": ("100 in flight", 100)}
"""By name: how it reads, and how many callers there are."""

PEERS = ("redis", "postgres")
BARS = {
    "one": ratio_at_least(0.5, "within 2 x of the better of Redis and PostgreSQL"),
    "many": ratio_at_least(1, "at least level with the better of Redis and PostgreSQL"),
}


class System(Protocol):
    """A server and one way to call it."""

    async def prepare(self) -> None: ...

    def callers(self, count: int) -> AbstractAsyncContextManager[Mapping[str, list[Call]]]:
        """So many callers, and what each does, by the name of the way."""
        ...


def plan(systems: Mapping[str, System], size: Size, *, through: str = "", note: str = "") -> Plan:
    """The rates of "ours" and of the peers; `through` ends the text of each row, to tell one plan's from another's."""
    totals = {"one": size.of(1_500, 200), "many": size.of(6_000, 600)}
    for system in systems.values():
        asyncio.run(system.prepare())

    def in_all(callers: int, total: int) -> Callable[[], Mapping[str, float]]:
        """All sides in one round, and the better of the peers, which is what the bars are about."""

        def measure() -> Mapping[str, float]:
            found = {name: _round(system, callers, total) for name, system in systems.items()}
            better = {what: max(found[peer][what] for peer in PEERS) for what in WAYS}
            return {f"{name}.{what}": found[name][what] for name in found for what in WAYS} | {
                f"better.{what}": rate for what, rate in better.items()
            }

        return measure

    rows: list[Row] = []
    for key, (label, _) in LOADS.items():
        for what, verb in WAYS.items():
            ours = f"{key}.ours.{what}"
            text = f"{verb}, 1 KiB, {label}{through}"
            rows.append(Row(text, "msg/s", ours, BARS[key], f"{key}.better.{what}", note))
            for peer in PEERS:
                text = f"{verb}, {label}, against {peer}{through}"
                rows.append(Row(text, "msg/s", ours, INFORMATIVE, f"{key}.{peer}.{what}", note))
    return Plan({key: in_all(callers, totals[key]) for key, (_, callers) in LOADS.items()}, rows)


def _round(system: System, callers: int, total: int) -> dict[str, float]:
    """So many messages published, then consumed, with one kind of client."""

    async def work() -> dict[str, float]:
        async with system.callers(callers) as calls:
            return {what: await rate_of(calls[what], total) for what in WAYS}

    return asyncio.run(work())
