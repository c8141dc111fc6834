"""What a store can say and do of ledgers and pins, sync and async."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from detent.engine import Operation
from detent.engine.twins import AwaitedStore, PlainStore
from detent.errors import Invalid
from detent.ledger import operations as ops
from detent.ledger.info import LedgerInfo, PinInfo, ledger_info, pin_info
from detent.runtime.ground import drive


class Ledgers(PlainStore):
    """The ledgers of a store: which batches of a query have taken effect. Batches are entered in a transaction, with
    :meth:`LedgerOperations.enter_ledger`. A pin keeps where a stream began."""

    def ledger(self, name: str) -> LedgerInfo:
        """A ledger by name. `NotFound` if nothing was ever entered under it."""
        return ledger_info(self.describe_ledger(name))

    def describe_ledger(self, name: str) -> ops.LedgerDescription:
        """A ledger by name, with what its newest batches were made from."""
        found: ops.LedgerDescription = self.commit([_asking(name)])[0].ledgers[0]
        return found

    def ledgers(self, prefix: str = "") -> list[LedgerInfo]:
        """The ledgers, by name."""
        return list(map(ledger_info, drive(self._listed(partial(ops.DescribeLedgers, prefix), "ledgers"))))

    def reset_ledger(self, name: str) -> None:
        """Forget query, batch and run of a ledger, so that another query may use its name. The run that entered last
        stays out, should it still live. Whatever was written under this name remains: a query that starts over writes
        it again. What is kept of the stream of this name is forgotten, also if it has entered no batch yet."""
        self.commit([ops.ResetLedger(name)])

    def delete_ledger(self, name: str) -> None:
        """Forget a ledger altogether, with the runs that were replaced. Only for names that are not used any more."""
        self.commit([ops.DeleteLedger(name)])

    def pin(self, name: str, offsets: Mapping[str, int]) -> dict[str, int]:
        """Keep offsets under a name and answer them; if there are some already, those: the first caller decides."""
        found: dict[str, int] = self.commit([_pinning(name, offsets)])[0].offsets
        return found

    def plan(self, step: ops.PlanOffsets) -> ops.Planned:
        """Keep what a reader of journals has planned; or, if it has planned from there before, answer that."""
        planned: ops.Planned = self.commit([step])[0]
        return planned

    def declare_stream(self, name: str, reads: Mapping[str, int], writes: Mapping[str, int]) -> None:
        """Keep what a stream reads and writes, under the name of its ledger."""
        self.commit([ops.DeclareStream(name, dict(reads), dict(writes))])

    def declared_streams(self) -> list[ops.StreamDescription]:
        """What streams read and write, by name."""
        return drive(self._listed(ops.DescribeStreams, "streams"))

    def pins(self, prefix: str = "") -> list[PinInfo]:
        """The pins, by name."""
        return list(map(pin_info, drive(self._listed(partial(ops.DescribePins, prefix), "pins"))))

    def unpin(self, name: str) -> None:
        """Forget a pin. `NotFound` if there is none."""
        self.commit([ops.Unpin(name)])


class AsyncLedgers(AwaitedStore):
    """`Ledgers` for asyncio: the same calls, awaited."""

    async def ledger(self, name: str) -> LedgerInfo:
        """A ledger by name. `NotFound` if nothing was ever entered under it."""
        return _one(await self.commit([_asking(name)]))

    async def ledgers(self, prefix: str = "") -> list[LedgerInfo]:
        """The ledgers, by name."""
        return list(map(ledger_info, await self._listed(partial(ops.DescribeLedgers, prefix), "ledgers")))

    async def reset_ledger(self, name: str) -> None:
        """Forget query, batch and run of a ledger, so that another query may use its name."""
        await self.commit([ops.ResetLedger(name)])

    async def delete_ledger(self, name: str) -> None:
        """Forget a ledger altogether, with the runs that were replaced."""
        await self.commit([ops.DeleteLedger(name)])

    async def pin(self, name: str, offsets: Mapping[str, int]) -> dict[str, int]:
        """Keep offsets under a name and answer them; if there are some already, those."""
        found: dict[str, int] = (await self.commit([_pinning(name, offsets)]))[0].offsets
        return found

    async def pins(self, prefix: str = "") -> list[PinInfo]:
        """The pins, by name."""
        return list(map(pin_info, await self._listed(partial(ops.DescribePins, prefix), "pins")))

    async def unpin(self, name: str) -> None:
        """Forget a pin. `NotFound` if there is none."""
        await self.commit([ops.Unpin(name)])


def _asking(name: str) -> Operation:
    """The question for one ledger. Without a name it would be the one for all of them."""
    ops.check_name(name)
    return ops.DescribeLedgers(name=name)


def _one(results: list[Any]) -> LedgerInfo:
    return ledger_info(results[0].ledgers[0])


def _pinning(name: str, offsets: Mapping[str, int]) -> Operation:
    if not isinstance(offsets, Mapping):
        raise Invalid(f"a pin keeps an offset for each journal, in a dictionary, not {type(offsets).__name__}")
    operation = ops.PinOffsets(name, dict(offsets))
    ops.check_pin(operation)  # here too: what cannot be written down cannot be sent to an owner elsewhere
    return operation
