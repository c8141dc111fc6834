"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.processor import latency, throughput, kinds
from bench.processor.suite import SUITE

__all__ = ["SUITE", "kinds", "latency", "throughput"]
