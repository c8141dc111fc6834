"""Ledgers: which batches of a query have taken effect, entered in the transaction that makes them do so.

A row keeps the highest batch of its query and which run of the driver entered it; beside it is what the newest batches
were made from. A pin keeps where a stream began, a plan what a reader of journals has planned.

    handle.py       what a store can say and do of ledgers and pins, sync and async
    info.py         what these answer
    transaction.py  the ledger operations of `store.transaction()`
    operations.py   the operations themselves, and what each answers
    machine.py      the state machine in the owner
    entering.py     the rule, pure: a batch is entered if it is above the highest, by a run not replaced; or it is the
                    one that was entered before; or it has another input, and is refused
    planning.py     what readers of journals have planned, the newest steps of each
    streams.py      what streams read and write, to know them again under another name
    shelf.py        records by name, in memory, and how a refused change is undone
    verify.py       the ledgers' part of `store verify`
"""

from detent.ledger.handle import AsyncLedgers, Ledgers
from detent.ledger.info import LedgerInfo, PinInfo
from detent.ledger.machine import LedgerMachine
from detent.ledger.operations import Entered, EnterLedger, Pinned, Planned, PlanOffsets
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
    "PlanOffsets",
    "Planned",
]
