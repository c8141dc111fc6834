"""A world whose engine keeps ledgers too, and short ways to enter them."""

from __future__ import annotations

from detent.codec import ledger as records
from detent.codec.ledger import Pin, Row
from detent.engine import Engine
from detent.ledger import LedgerMachine
from detent.ledger import operations as ops
from world import World


class LedgerWorld(World):
    """One store with journals, queues and ledgers."""

    def _open(self) -> None:
        super()._open()
        self.ledgers = LedgerMachine()
        machines = [self.machine, self.queues, self.ledgers]
        self.engine = Engine(self.writer, machines, now_ms=lambda: self.now_ms, random=self.random.randbytes)
        self.session = self.engine.new_session()

    def enter(self, batch: int, *, name: str = "l", query: str = "q", run: str = "") -> int:
        """Enter a batch; the highest one before it."""
        entered: ops.Entered = self.commit(ops.EnterLedger(name, query, batch, run))[0]
        assert entered.name == name
        return entered.previous_batch

    def row(self, name: str = "l") -> ops.LedgerDescription:
        return self.commit(ops.DescribeLedgers(name=name))[0].ledgers[0]

    def names(self, prefix: str = "") -> list[str]:
        return [found.name for found in self.commit(ops.DescribeLedgers(prefix))[0].ledgers]

    def pin_names(self, prefix: str = "") -> list[str]:
        return [found.name for found in self.commit(ops.DescribePins(prefix))[0].pins]

    def stored(self) -> tuple[dict[str, Row], dict[str, Pin]]:
        """All records, as they are durable."""
        with self.writer.view() as view:
            rows = {
                records.name_of(records.ROW, key): Row.decode(value) for key, value in view.scan(*records.ROW.range())
            }
            pins = {
                records.name_of(records.PIN, key): Pin.decode(value) for key, value in view.scan(*records.PIN.range())
            }
        return rows, pins
