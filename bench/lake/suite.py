"""The suite object that the measurements register with."""

from __future__ import annotations

from bench.harness import Suite

SUITE = Suite("lake")
