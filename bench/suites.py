"""The suites by name. A suite is a list of registered measurements; its module is imported when it is asked for."""

from __future__ import annotations

import importlib

from bench.harness import Suite

MODULES = {
    "bus": "bench.bus.measurements",
    "consumer": "bench.consumer.measurements",
    "ingest": "bench.ingest.measurements",
    "journal": "bench.journal.measurements",
    "kafka": "bench.kafka.measurements",
    "lake": "bench.lake.measurements",
    "processor": "bench.processor.measurements",
    "queue": "bench.queue.measurements",
    "server": "bench.server.measurements",
    "spark": "bench.spark.measurements",
}


def load(name: str) -> Suite:
    """A suite with all its measurements."""
    suite: Suite = importlib.import_module(MODULES[name]).SUITE
    return suite
