"""Detent: each message takes effect exactly once.

>>> import detent
>>> with detent.open("file:./data") as store:
...     store.journal("orders").append(b"hello")

Everything public is here. Names are loaded when they are first used, so that `detent --help` need not import Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent.errors import (
        Conflict,
        Corrupt,
        DetentError,
        Exists,
        Fenced,
        Invalid,
        LimitExceeded,
        NotFound,
        OutcomeUnknown,
        SessionExpired,
        StaleReceipt,
        Unavailable,
    )
    from detent.journal import (
        AckIntent,
        Appended,
        AsyncJournal,
        AsyncPublisher,
        AsyncTransaction,
        FragmentRef,
        Journal,
        JournalInfo,
        Message,
        Publisher,
        Transaction,
    )
    from detent.store import AsyncStore, Store, open, open_async

__version__ = "0.1.0"

_HOMES = {
    "detent.errors": (
        "Conflict",
        "Corrupt",
        "DetentError",
        "Exists",
        "Fenced",
        "Invalid",
        "LimitExceeded",
        "NotFound",
        "OutcomeUnknown",
        "SessionExpired",
        "StaleReceipt",
        "Unavailable",
    ),
    "detent.journal": (
        "AckIntent",
        "Appended",
        "AsyncJournal",
        "AsyncPublisher",
        "AsyncTransaction",
        "FragmentRef",
        "Journal",
        "JournalInfo",
        "Message",
        "Publisher",
        "Transaction",
    ),
    "detent.store": ("AsyncStore", "Store", "open", "open_async"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AckIntent",
    "Appended",
    "AsyncJournal",
    "AsyncPublisher",
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
    "OutcomeUnknown",
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


if not TYPE_CHECKING:  # a checker that saw this would believe every name

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'detent' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
