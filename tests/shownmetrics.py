"""What the code shows as metrics: `shown_metrics()["detent_queue_messages"] == ("gauge", {"queue", "state"})`."""

from __future__ import annotations

from typing import Any, cast

from detent.cli.kinds.bus import AppTally, BusCollector
from detent.ingest.progress import Counters
from detent.server.metrics import Metrics, _SampleClock, _StoreHealth
from detent.server.metrics_state import StateCollector, StoreState


def shown_metrics() -> dict[str, tuple[str, frozenset[str]]]:
    """The type and the labels of every metric that the code shows, by its name as Prometheus stores it."""
    metrics = Metrics()
    families: list[Any] = [
        *StateCollector(StoreState()).collect(),
        *_StoreHealth(True, None, False).collect(),
        *_SampleClock(metrics._time).collect(),
        *BusCollector([], AppTally([], cast(Any, None))).collect(),
    ]
    found = {one.name: (one.type, frozenset(getattr(one, "_labelnames", ()))) for one in families}
    for own in metrics.registry._collector_to_names:
        if name := getattr(own, "_name", ""):
            found[name] = (own._type, frozenset(own._labelnames))  # type: ignore[attr-defined]
    waits = ("ready", "in_progress", "lag_seconds")
    found |= {f"detent_ingest_{name}": ("gauge", frozenset({"ingest"})) for name in (*Counters().as_json(), *waits)}
    return {f"{name}_total" if kind == "counter" else name: (kind, labels) for name, (kind, labels) in found.items()}
