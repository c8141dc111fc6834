"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.consumer import throughput, latency, failover
from bench.consumer.suite import SUITE

__all__ = ["SUITE", "failover", "latency", "throughput"]
