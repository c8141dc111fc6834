"""Detent: each message takes effect exactly once.

>>> import detent
>>> with detent.open("file:./data") as store:
...     store.journal("orders").append(b"hello")
"""

from detent.errors import (
    Conflict,
    Corrupt,
    DetentError,
    Exists,
    Fenced,
    Invalid,
    LimitExceeded,
    NotFound,
    SessionExpired,
    StaleReceipt,
    Unavailable,
)
from detent.journal import (
    AckIntent,
    Appended,
    AsyncJournal,
    FragmentRef,
    Journal,
    JournalInfo,
    Message,
    Publisher,
)
from detent.store import AsyncStore, AsyncTransaction, Store, Transaction, open, open_async

__version__ = "0.1.0"

__all__ = [
    "AckIntent",
    "Appended",
    "AsyncJournal",
    "AsyncStore",
    "AsyncTransaction",
    "Conflict",
    "Corrupt",
    "DetentError",
    "Exists",
    "Fenced",
    "FragmentRef",
    "Invalid",
    "Journal",
    "JournalInfo",
    "LimitExceeded",
    "Message",
    "NotFound",
    "Publisher",
    "SessionExpired",
    "StaleReceipt",
    "Store",
    "Transaction",
    "Unavailable",
    "__version__",
    "open",
    "open_async",
]
