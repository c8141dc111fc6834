"""Journals: append-only logs of messages, read by committed offset.

Blocks hold the messages in columns. The committed index says which of them count, and in which
order. Registers are small values that change together with an append. Fragments bring in bulk data
by reference.

An append, in the order in which things happen:

    handle.py         `store.journal(name)`: the journal as a user holds it, sync and async
    publisher.py      a publisher: messages with UUIDs, at once or pending until acknowledged
    producers.py      gives producers to publishers, and refuses those that others use
    calls.py          the user's arguments become operations; the same for all of the above
    operations.py     the operations themselves, and what each answers
    memory.py         what the owner remembers of all journals, what the group adds, which readers wait
    machine.py        in the owner: applies operations to that memory, writes a group's changes
    appending.py      stamps, sequences and indexes the messages of an append
    chunks.py         packs the appends of many callers into few blocks
    spans.py          which open transactions are not rolled back yet, what of them is refused
    state.py          what the owner remembers of a journal, and how a refused change is undone

A read, from any process, without the owner:

    reader.py         finds the range in the committed index, then walks runs and blocks
    columns.py        what was read, column by column, without making an object a message
    message.py        one message as a reader sees it
    fragments.py      Arrow files beside the store: written here, adopted by reference, swept

What is forgotten, and what is checked:

    housekeeping.py   retention, overdue transactions, idle producers, deleted journals
    verify.py         the journals' part of `store verify`
    verify_journal.py the records of one journal, and whether they agree
    verify_order.py   works the committed index out again from the stored rows, and compares
"""

from detent.journal.handle import AsyncJournal, Journal
from detent.journal.machine import JournalMachine
from detent.journal.message import Message
from detent.journal.operations import Appended, FragmentRef
from detent.journal.publisher import AckIntent, AsyncPublisher, Publisher
from detent.journal.reader import JournalExtent, JournalInfo, JournalReader

__all__ = [
    "AckIntent",
    "Appended",
    "AsyncJournal",
    "AsyncPublisher",
    "FragmentRef",
    "Journal",
    "JournalExtent",
    "JournalInfo",
    "JournalMachine",
    "JournalReader",
    "Message",
    "Publisher",
]
