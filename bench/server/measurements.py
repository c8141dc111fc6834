"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.server import native, clients, sqs, limits, syncs
from bench.server.suite import SUITE

__all__ = ["SUITE", "clients", "limits", "native", "sqs", "syncs"]
