"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.queue import single, batches, backlog, reopen, threads, syncs
from bench.queue.suite import SUITE

__all__ = ["SUITE", "backlog", "batches", "reopen", "single", "syncs", "threads"]
