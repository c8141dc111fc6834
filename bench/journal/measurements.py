"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.journal import single, inflight, syncs, batches, scan, sequencing, reopen, backlog, wakeup, backup
from bench.journal.suite import SUITE

__all__ = [
    "SUITE",
    "backlog",
    "backup",
    "batches",
    "inflight",
    "reopen",
    "scan",
    "sequencing",
    "single",
    "syncs",
    "wakeup",
]
