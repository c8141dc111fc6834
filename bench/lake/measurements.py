"""What the lake suite measures."""

from __future__ import annotations

from bench.lake import giant, ingest, names, pipeline, requests
from bench.lake.suite import SUITE

__all__ = ["SUITE", "giant", "ingest", "names", "pipeline", "requests"]
