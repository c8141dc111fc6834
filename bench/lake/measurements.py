"""What the lake suite measures."""

from __future__ import annotations

from bench.lake import pipeline, requests
from bench.lake.suite import SUITE

__all__ = ["SUITE", "pipeline", "requests"]
