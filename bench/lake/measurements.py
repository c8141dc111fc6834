"""What the lake suite measures."""

from __future__ import annotations

from bench.lake import giant, ingest, merging, names, pipeline, requests
from bench.lake.suite import SUITE

__all__ = ["SUITE", "giant", "ingest", "merging", "names", "pipeline", "requests"]
