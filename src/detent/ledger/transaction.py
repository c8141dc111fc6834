"""The ledgers' part of a transaction."""

from __future__ import annotations

from detent.engine import Operation
from detent.ledger import operations as ops


class LedgerOperations:
    """Ledger operations gathered into a transaction. Each call answers the index of its result in `results`."""

    def add(self, operation: Operation) -> int:
        """Add any operation."""
        raise NotImplementedError

    def enter_ledger(self, name: str, batch: int, query: str = "", run: str = "", input: bytes = b"") -> int:
        """Enter a batch of a query under a name, with everything else in this transaction. Its result is an `Entered`.

        A batch that is not above the highest one entered refuses the whole transaction with `AlreadyEntered`: it took
        effect before, and there is nothing to do. So batches rise, as Spark's do; they need not be dense. Another
        query than the ledger's, or a `run` that a later one has replaced, is `Fenced`.

        `input` is a digest of 16 bytes of what the batch is made from. With one, a batch that is not above the highest
        is `AlreadyEntered` only if it had the same input then, and `OtherInput` if not.
        """
        operation = ops.EnterLedger(name, query, batch, run, input)
        ops.check_enter(operation)
        return self.add(operation)
