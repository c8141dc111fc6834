"""All measurements of the suite. Importing a module registers its own; the order here is the order of the table."""

# ruff: noqa: I001
from bench.ingest import files, shards, commits
from bench.ingest.suite import SUITE

__all__ = ["SUITE", "commits", "files", "shards"]
