"""Metrics of apps that run: what became of their messages, and what waits in their outboxes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from detent.bus.app import Bus
    from detent.bus.outbox import OutboxCounts
    from detent.cli.kinds.bus import Tally

LOOK_EVERY_S: Final = 5.0
"""An outbox is counted no more often than this: the count reads every message that waits."""


def serve_bus_metrics(port: int, buses: Sequence[Bus], tally: Tally) -> None:
    """Show the metrics on a port of the loopback address."""
    from detent.scraped import new_registry, serve_metrics

    registry = new_registry()
    registry.register(BusCollector(buses, tally))
    serve_metrics(port, registry)


class BusCollector:
    """Looks at the apps when the page is asked for."""

    def __init__(self, buses: Sequence[Bus], tally: Tally) -> None:
        self._buses = buses
        self._tally = tally
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._outboxes: dict[str, OutboxCounts] = {}

    def describe(self) -> list[Metric]:
        """Nothing: what there is to show is not looked for before the page is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        done = CounterMetricFamily(
            "detent_bus_deliveries", "Deliveries of messages, by what became of them.", labels=["app", "outcome"]
        )
        for bus in self._buses:
            for outcome, count in self._tally.counts(bus).items():
                done.add_metric([bus.name, outcome.replace(" ", "_")], count)
        yield done
        held: Any = GaugeMetricFamily("detent_outbox_messages", "Messages in an outbox.", labels=["app", "state"])
        age: Any = GaugeMetricFamily(
            "detent_outbox_oldest_age_seconds", "How long the oldest message has waited since it was due.",
            labels=["app"],
        )  # fmt: skip
        for name, counts in self._counts().items():
            held.add_metric([name, "pending"], counts.pending)
            held.add_metric([name, "failed"], counts.failed)
            age.add_metric([name], counts.oldest_s)
        yield held
        yield age

    def _counts(self) -> dict[str, OutboxCounts]:
        """What is in the outboxes, as it was a few seconds ago at most; without those that cannot be seen now."""
        from detent.cli.kinds.bus import outbox_of

        with self._lock:
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                found = {bus.name: outbox_of(bus) for bus in self._buses if bus.outbox is not None}
                self._outboxes = {name: counts for name, counts in found.items() if counts is not None}
                self._looked_s = time.monotonic()
            return self._outboxes
