"""What the lake suite measures."""

from __future__ import annotations

from bench.lake import ingest, names, pipeline, requests
from bench.lake.suite import SUITE

__all__ = ["SUITE", "ingest", "names", "pipeline", "requests"]
