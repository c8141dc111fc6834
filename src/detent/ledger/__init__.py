"""Ledgers: which batches of a query have taken effect, entered in the transaction that makes them do so.

A row keeps the highest batch of its query and which run of the driver entered it; beside it is what the newest batches
were made from. A pin keeps where a stream began, a plan what a reader of journals has planned.

    handle.py       what a store can say and do of ledgers and pins, for plain callers and asyncio
    operations.py   the operations themselves, and what each answers
    machine.py      the state machine in the owner
    entering.py     the rule, pure: a batch is entered if it is above the highest, by a run not replaced; or it is the
                    one that was entered before; or it has another input, and is refused
    planning.py     what streams read and write, and the newest steps that each has planned
    shelf.py        records by name, in memory, and how a refused change is undone
    verify.py       the ledgers' part of `store verify`
"""

from detent.ledger.handle import AsyncLedgers, LedgerInfo, Ledgers, PinInfo
from detent.ledger.machine import LedgerMachine
from detent.ledger.operations import Entered, EnterLedger, Pinned, Planned, PlanOffsets

__all__ = [
    "AsyncLedgers",
    "EnterLedger",
    "Entered",
    "LedgerInfo",
    "LedgerMachine",
    "Ledgers",
    "PinInfo",
    "Pinned",
    "PlanOffsets",
    "Planned",
]
