"""Journals: append-only logs of messages, read by committed offset.

Blocks hold the messages in columns, the committed index says which of them count and in which order, registers carry
small values that change with an append, fragments bring in bulk data by reference.
"""

from detent.journal.handle import AsyncJournal, Journal
from detent.journal.machine import JournalMachine
from detent.journal.message import Message
from detent.journal.operations import Appended, FragmentRef
from detent.journal.publisher import AckIntent, AsyncPublisher, Publisher
from detent.journal.reader import JournalInfo, JournalReader
from detent.journal.transaction import JournalOperations

__all__ = [
    "AckIntent",
    "Appended",
    "AsyncJournal",
    "AsyncPublisher",
    "FragmentRef",
    "Journal",
    "JournalInfo",
    "JournalMachine",
    "JournalOperations",
    "JournalReader",
    "Message",
    "Publisher",
]
