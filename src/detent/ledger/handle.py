"""What a store can say and do of ledgers and pins, sync and async."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from detent.durations import at_1970_ms
from detent.engine import Operation
from detent.engine.twins import AwaitedStore, PlainStore, Twin, both
from detent.errors import Invalid
from detent.ledger import operations as ops


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger: the highest batch that its query has entered, -1 if it has entered none since the ledger was reset.

    `run` is the run of the driver that entered last, `replaced` those before it, oldest first. `entries` counts the
    batches of this query, `generation` how often the ledger was reset.
    """

    name: str
    query: str
    batch: int
    run: str
    replaced: tuple[str, ...]
    entries: int
    generation: int
    created: datetime
    updated: datetime


@dataclass(frozen=True, slots=True)
class PinInfo:
    """Where a stream began: the offsets of its journals, and when they were pinned."""

    name: str
    offsets: dict[str, int]
    created: datetime


def ledger_info(found: ops.LedgerDescription) -> LedgerInfo:
    """A description as users see it."""
    return LedgerInfo(
        name=found.name,
        query=found.query,
        batch=found.batch,
        run=found.run,
        replaced=tuple(found.replaced),
        entries=found.entries,
        generation=found.generation,
        created=at_1970_ms(found.created_ms),
        updated=at_1970_ms(found.updated_ms),
    )


def pin_info(found: ops.PinDescription) -> PinInfo:
    """A description as users see it."""
    return PinInfo(found.name, found.offsets, at_1970_ms(found.created_ms))


class _LedgerCalls(Twin):
    """The ledgers of a store: which batches of a query have taken effect. Batches are entered in a transaction, with
    `enter_ledger`. A pin keeps where a stream began."""

    @both
    async def ledger(self, name: str) -> LedgerInfo:
        """A ledger by name. `NotFound` if nothing was ever entered under it."""
        return ledger_info(await self._described(name))

    @both
    async def describe_ledger(self, name: str) -> ops.LedgerDescription:
        """A ledger by name, with what its newest batches were made from."""
        return await self._described(name)

    async def _described(self, name: str) -> ops.LedgerDescription:
        ops.check_name(name)  # without a name it would be the question for all of them
        found: ops.LedgerDescription = (await self._do(ops.DescribeLedgers(name=name))).ledgers[0]
        return found

    @both
    async def ledgers(self, prefix: str = "") -> list[LedgerInfo]:
        """The ledgers, by name."""
        return list(map(ledger_info, await self._listed(partial(ops.DescribeLedgers, prefix), "ledgers")))

    @both
    async def reset_ledger(self, name: str) -> None:
        """Forget query, batch and run of a ledger, so that another query may use its name. The run that entered last
        stays out, should it still live. Whatever was written under this name remains: a query that starts over writes
        it again. What is kept of the stream of this name is forgotten, also if it has entered no batch yet."""
        await self._do(ops.ResetLedger(name))

    @both
    async def delete_ledger(self, name: str) -> None:
        """Forget a ledger altogether, with the runs that were replaced. Only for names that are not used any more."""
        await self._do(ops.DeleteLedger(name))

    @both
    async def pin(self, name: str, offsets: Mapping[str, int]) -> dict[str, int]:
        """Keep offsets under a name and answer them; if there are some already, those: the first caller decides."""
        found: dict[str, int] = (await self._do(_pinning(name, offsets))).offsets
        return found

    @both
    async def plan(self, step: ops.PlanOffsets) -> ops.Planned:
        """Keep what a reader of journals has planned; or, if it has planned from there before, answer that."""
        planned: ops.Planned = await self._do(step)
        return planned

    @both
    async def declare_stream(self, name: str, reads: Mapping[str, int], writes: Mapping[str, int]) -> None:
        """Keep what a stream reads and writes, under the name of its ledger."""
        await self._do(ops.DeclareStream(name, dict(reads), dict(writes)))

    @both
    async def declared_streams(self) -> list[ops.StreamDescription]:
        """What streams read and write, by name."""
        return await self._listed(ops.DescribeStreams, "streams")

    @both
    async def pins(self, prefix: str = "") -> list[PinInfo]:
        """The pins, by name."""
        return list(map(pin_info, await self._listed(partial(ops.DescribePins, prefix), "pins")))

    @both
    async def unpin(self, name: str) -> None:
        """Forget a pin. `NotFound` if there is none."""
        await self._do(ops.Unpin(name))


class Ledgers(_LedgerCalls, PlainStore):
    """What a store can do with its ledgers and pins."""


class AsyncLedgers(_LedgerCalls, AwaitedStore):
    """The same, for asyncio."""


def _pinning(name: str, offsets: Mapping[str, int]) -> Operation:
    if not isinstance(offsets, Mapping):
        raise Invalid(f"a pin keeps an offset for each journal, in a dictionary, not {type(offsets).__name__}")
    operation = ops.PinOffsets(name, dict(offsets))
    ops.check_pin(operation)  # here too: what cannot be written down cannot be sent to an owner elsewhere
    return operation
