"""Ledgers: which batches of a query have taken effect, entered in the transaction that makes them do so.

A row keeps the highest batch of its query and which run of the driver entered it. A pin keeps where a stream began.
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
