"""Marks of batches in tables: which batch a table has last, and what that one was made from.

A sink outside of the store is written before the ledger, so it can have the batch that comes, and no later one. If it
has that number and the batch was made from the same input, there is nothing to do. Otherwise it is refused; the rule is
the ledger's own (`detent.ledger.entering`).
"""

from __future__ import annotations

import hashlib
import shlex
from typing import NamedTuple, Protocol

from detent.errors import OtherInput
from detent.ledger.entering import ADVICE


class MarkedTable(Protocol):
    """A table as it was at one moment. Marks are looked up in the view that a commit is made from."""

    def transaction_version(self, app_id: str) -> int | None:
        """The last version of an application that the table has; None if it has none."""


class BatchKey(NamedTuple):
    """What names a batch, the same at each replay; which run of the driver has it; and a digest of what it is made
    from, empty if that is not known."""

    name: str
    query: str
    batch: int
    run: str
    input: bytes = b""

    def __str__(self) -> str:
        return f"{self.name}/{self.query}/{self.batch}"


def is_done(key: BatchKey, last: int | None, made_from: object, expected: object, where: str) -> bool:
    """Whether a sink has a batch: `last` is the one that it has, `made_from` and `expected` are what that one was made
    from, and what the one that comes is. `OtherInput` if it has another one of that number, or is ahead of it. A mark
    of an earlier release says nothing of inputs, and then the number decides."""
    if last is None or last < key.batch:
        return False
    if not key.input or made_from is None or (last == key.batch and made_from == expected):
        return True
    what = "was made from another input" if last == key.batch else f"cannot be compared, as {where} has batch {last}"
    raise OtherInput(
        f"{where} has batch {key.batch} of {key.name!r}, which {what}, so this one is not taken for done. {ADVICE} "
        f"with `detent ledger reset {shlex.quote(key.name)}`",
        where,
        key.batch,
    )


class TableMark(NamedTuple):
    """A batch as a table marks it: the number of the batch is the version of an application, and its input, as a
    number, that of a second one. A table keeps the last version of each application: Delta over checkpoints of its log,
    Iceberg as properties, which outlive snapshots."""

    key: BatchKey
    where: str
    """What the table is called in messages."""

    @property
    def _application(self) -> str:
        return f"detent:{self.key.name}:{self.key.query}"

    @property
    def _input_application(self) -> str:
        return f"{self._application}:input"

    def _input_version(self) -> int:
        """The input as a number of 63 bits."""
        mixed = hashlib.blake2b(self.key.input + self.key.batch.to_bytes(8, "big"), digest_size=8).digest()
        return int.from_bytes(mixed, "big") >> 1

    def is_in(self, view: MarkedTable) -> bool:
        """Whether a table has the batch."""
        last = view.transaction_version(self._application)
        if last is None or last < self.key.batch:
            return False
        made_from = view.transaction_version(self._input_application) if self.key.input else None
        return is_done(self.key, last, made_from, self._input_version(), self.where)

    def versions(self) -> list[tuple[str, int]]:
        """What the commit of the batch says of these applications."""
        versions = [(self._application, self.key.batch)]
        return [*versions, (self._input_application, self._input_version())] if self.key.input else versions
