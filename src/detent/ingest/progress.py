"""What a pipeline says of itself: its counters, how far it is, and its log."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Final

from detent.runtime.report import Report

log: Final = logging.getLogger("detent.ingest")


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


@dataclass(frozen=True)
class IngestProgress:
    """How far a pipeline is: what it has done, what waits in it, and how old the oldest of that is."""

    counters: Counters
    ready: int
    in_progress: int
    lag_s: float
    seconds: float
    """How long ago the first batch began; 0 before it."""

    def told(self, so_far: Report) -> Report:
        """The same in the report of a pipeline."""
        rate = self.counters.rows / self.seconds if self.seconds else 0.0
        about = {"rows/s": f"{rate:,.0f}", "lag": f"{self.lag_s:.0f} s"}
        return replace(so_far, progress=self.counters.as_json(), lag=self.ready + self.in_progress, about=about)


class _OneLine(logging.Filter):
    """Writes out what is not printable. Names of files come from others, and with a line break in one they could write
    a line of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.isprintable():
            shown = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
            record.msg, record.args = "".join(shown), None
        return True


log.addFilter(_OneLine())
