"""What a pipeline has done since it began."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Numbers that only grow."""

    received: int = 0
    """Messages that the queue delivered."""

    unreadable: int = 0
    """Messages that announce nothing one can understand; left to the queue's own rule for such."""

    duplicates: int = 0
    """Files that were announced and found finished."""

    held: int = 0
    """Files that were announced and are another pipeline's."""

    batches: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    """What was committed: batches, the files in them, and the rows and bytes that came of them."""

    failures: int = 0
    """Attempts at files that failed."""

    quarantined: int = 0
    """Files, and records of notifications, that were put into quarantine."""

    superseded: int = 0
    lost: int = 0
    """Files that were taken by another pipeline before this one could commit them."""

    acknowledged: int = 0
    unextended: int = 0
    """Messages whose visibility could not be extended."""

    too_old: int = 0
    """Files that a backfill found and left, because it is not known any more whether they were ingested."""

    pruned: int = 0
    swept: int = 0

    def as_json(self) -> dict[str, int]:
        """All of them."""
        return asdict(self)
