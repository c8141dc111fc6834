"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.bus import throughput, engine, latency, inbox, forwarding, marks
from bench.bus.suite import SUITE

__all__ = ["SUITE", "engine", "forwarding", "inbox", "latency", "marks", "throughput"]
