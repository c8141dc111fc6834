"""The consumer as `detent consume` loads it, in a process of its own. What it is like comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from bench.consumer.job import consumer

ROOT = Path(__file__).parents[2]
TARGET = "bench.consumer.app:app"
_KIND, _PLACE = "DETENT_BENCH_STATE", "DETENT_BENCH_PLACE"


def settings(kind: str, place: str) -> dict[str, str]:
    """The environment for a process that runs the consumer with this state."""
    return {_KIND: kind, _PLACE: place}


app = consumer(os.environ.get(_KIND, "engine"), os.environ.get(_PLACE, ""))
