"""Ledgers: which batches of a query have taken effect, entered in the transaction that makes them do so.

A row keeps the highest batch of its query and which run of the driver entered it. A pin keeps where a stream began.

    handle.py       what a store can say and do of ledgers and pins, sync and async
    info.py         what these answer
    transaction.py  the ledger operations of `store.transaction()`
    operations.py   the operations themselves, and what each answers
    machine.py      the state machine in the owner
    entering.py     the rule, pure: a batch is entered if it is above the highest, by a run not replaced
    shelf.py        records by name, in memory, and how a refused change is undone
    verify.py       the ledgers' part of `store verify`
"""

from detent.ledger.handle import AsyncLedgers, Ledgers
from detent.ledger.info import LedgerInfo, PinInfo
from detent.ledger.machine import LedgerMachine
from detent.ledger.operations import Entered, EnterLedger, Pinned
from detent.ledger.transaction import LedgerOperations

__all__ = [
    "AsyncLedgers",
    "EnterLedger",
    "Entered",
    "LedgerInfo",
    "LedgerMachine",
    "LedgerOperations",
    "Ledgers",
    "PinInfo",
    "Pinned",
]
