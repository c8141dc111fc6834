"""How many times a server syncs the disk for 1,000 publishes, and for 1,000 claims with their acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench import syncs as counters
from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.place import Place
from bench.server import peers
from bench.server.comparison import LOADS, PEERS, WAYS, System
from bench.server.load import rate_of
from bench.server.native import Ours, Postgres, Redis
from bench.server.suite import SUITE

STARTS = {"ours": (peers.detent, Ours), "redis": (peers.redis, Redis), "postgres": (peers.postgres, Postgres)}
COUNTED = "counted by strace: fsync + fdatasync + msync calls and O_DSYNC writes of all processes of the server"
NOTES = {
    "one": COUNTED,
    "many": f"{COUNTED}; tracing slows each call of a server down, and with it changes how many callers share a sync "
    "(Redis syncs far less often than by itself, PostgreSQL somewhat more), so these are orders of magnitude only",
}


@SUITE.measurement("syncs")
@contextmanager
def syncs(place: Place, size: Size) -> Iterator[Plan]:
    total = size.of(1_000, 200)
    with ExitStack() as stack:
        directory = stack.enter_context(place.fresh())
        counters.Strace(directory)
        sides: dict[str, Callable[[], Mapping[str, float]]] = {}
        for name, (start, system_of) in STARTS.items():
            server = stack.enter_context(start(directory))
            system: System = system_of(server)
            asyncio.run(system.prepare())
            for key, (_, callers) in LOADS.items():
                counting = counters.Attached(server.pid, directory / f"{name}.strace")
                sides[f"{name}-{key}"] = _side(system, counting, callers, total)
        rows = [
            Row(f"syncs per 1,000 times {verb}, {label}, against {peer}", "syncs", f"ours-{key}.{what}", INFORMATIVE,
                f"{peer}-{key}.{what}", NOTES[key])
            for key, (label, _) in LOADS.items() for what, verb in WAYS.items() for peer in PEERS
        ]  # fmt: skip
        yield Plan(sides, rows, warm_up=False)


def _side(system: System, counting: counters.Attached, callers: int, total: int) -> Callable[[], Mapping[str, float]]:
    async def work() -> dict[str, float]:
        numbers = {}
        async with system.callers(callers) as calls:
            for what in WAYS:
                with counting:  # after connecting, so that every process that serves a caller is there
                    await rate_of(calls[what], total)
                numbers[what] = counting.syncs().per(total, 1_000)["all"]
        return numbers

    return lambda: asyncio.run(work())
