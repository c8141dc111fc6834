"""Where a processor reads and writes: a journal of the graph's own store, or ``journal@store`` for one of another."""

from __future__ import annotations

from typing import NamedTuple

from detent import names
from detent.errors import Invalid


class Place(NamedTuple):
    """A journal, and the name that the graph has for its store; "" is the graph's own."""

    journal: str
    store: str = ""

    def __str__(self) -> str:
        return f"{self.journal}@{self.store}" if self.store else self.journal


def place(text: str) -> Place:
    """From ``orders`` or ``orders@archive``."""
    if not isinstance(text, str):
        raise Invalid(f"a journal is named by text such as 'orders' or 'orders@archive', not by {text!r}")
    journal, at, store = text.partition("@")
    names.check_name(journal, "journal")
    if at:
        names.check_name(store, "store")
    return Place(journal, store)
