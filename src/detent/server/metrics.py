"""What the server counts, for Prometheus.

Counters of the engine are fed by the committing thread, one group at a time. What the store holds is looked at when the
page is asked for (`metrics_state`). docs/metrics.md lists every metric; a test compares it with the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from detent.engine import Operation, OwnerTime, Ticket, Trouble
from detent.errors import StaleReceipt
from detent.queue import operations as ops
from detent.server.metrics_state import StateCollector, StoreState

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Commits take from a tenth of a millisecond on a local disk to a good part of a second on an object store."""

GROUPS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class Metrics:
    """Counters and histograms, and the page that shows them."""

    def __init__(self, time: OwnerTime | None = None) -> None:
        self._time = OwnerTime() if time is None else time
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._commit_s = Histogram(
            "detent_commit_seconds", "From taking a group to having answered it.", registry=registry, buckets=SECONDS
        )
        self._sync_s = Histogram("detent_sync_seconds", "Making a group durable.", registry=registry, buckets=SECONDS)
        self._group_size = Histogram(
            "detent_group_transactions", "Transactions that shared a commit.", registry=registry, buckets=GROUPS
        )
        self._published = _counter("published_messages", "Messages published, duplicates not counted.", registry)
        self._duplicates = _counter("dedup_hits", "Publishes whose dedup key was known.", registry)
        self._claimed = _counter("claimed_messages", "Messages given out.", registry)
        self._redelivered = _counter("redeliveries", "Messages given out that had been given out before.", registry)
        self._acked = _counter("acknowledged_messages", "Messages acknowledged.", registry)
        self._failed = _counter("failed_attempts", "Claimed messages handed back as failed.", registry)
        self._stale = _counter("stale_receipts_refused", "Requests refused for a stale receipt.", registry)
        self._refused = Counter("detent_refused_transactions", "Transactions refused.", ["error"], registry=registry)
        self._requests = Counter(
            "detent_http_requests", "Requests answered.", ["part", "method", "status"], registry=registry
        )
        self._request_s = Histogram(
            "detent_http_request_seconds", "Answering requests, long polls included.", ["part"], registry=registry,
            buckets=SECONDS,
        )  # fmt: skip

        # Looking a metric up by its labels costs more than counting with it.
        self._known: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    # -- counting -----------------------------------------------------------------------------------------------

    def group(self, group: Sequence[Ticket], seconds: float, sync_seconds: float) -> None:
        """The engine has answered a group."""
        if sync_seconds:
            self._commit_s.observe(seconds)
            self._sync_s.observe(sync_seconds)
            self._group_size.observe(len(group))
        for ticket in group:
            if ticket.error is not None:
                self._refused.labels(type(ticket.error).__name__).inc()
                if isinstance(ticket.error, StaleReceipt):
                    self._stale.inc()
            if ticket.results is not None:
                for operation, result in zip(ticket.request.operations, ticket.results, strict=False):
                    self._count(operation, result)

    def _count(self, operation: Operation, result: Any) -> None:
        if isinstance(operation, ops.Ack):
            self._acked.inc(len(operation.messages))
        elif isinstance(operation, ops.Fail):
            self._failed.inc(len(operation.messages))
        elif isinstance(result, ops.PublishedMessages):
            self._published.inc(result.count)
            self._duplicates.inc(len(result.duplicates))
        elif isinstance(result, ops.ClaimedMessages):
            self._claimed.inc(len(result.messages))
            self._redelivered.inc(sum(attempts > 1 for attempts in result.attempts))

    def commits(self) -> tuple[float, float]:
        """How many commits there were, and the seconds that they took."""
        (family,) = self._commit_s.collect()
        found = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
        return found["count"], found["sum"]

    def stale_receipt(self) -> None:
        """A receipt was refused as stale before the engine saw it."""
        self._stale.inc()

    def request(self, part: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        key = (part, method if method in _METHODS else "other", status)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._requests.labels(*key), self._request_s.labels(part)
        known[0].inc()
        known[1].observe(seconds)

    # -- showing ------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The owner's time, as the messages' times are."""
        return self._time.now_ms()

    def page(self, state: StoreState | None, trouble: Trouble | None = None, *, is_full: bool = False) -> bytes:
        """All of it, as Prometheus reads it; without a state where the store does not answer."""
        now = CollectorRegistry()
        if state is not None:
            now.register(StateCollector(state))
        now.register(_StoreHealth(state is not None, trouble, is_full))
        now.register(_SampleClock(self._time))
        page: bytes = generate_latest(self.registry) + generate_latest(now)
        return page


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def _counter(name: str, text: str, registry: CollectorRegistry) -> Counter:
    return Counter(f"detent_{name}", text, registry=registry)


class _StoreHealth:
    """Whether the store can be read and written."""

    def __init__(self, is_up: bool, trouble: Trouble | None, is_full: bool) -> None:
        self._is_up = is_up
        self._trouble = trouble
        self._is_full = is_full

    def collect(self) -> Iterator[Metric]:
        trouble = self._trouble
        yield GaugeMetricFamily("detent_store_up", "1 if the store answers this server.", value=self._is_up)
        yield GaugeMetricFamily(
            "detent_store_fenced", "1 if another process owns the store: this server commits no more.",
            value=trouble is not None and trouble.is_final,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "detent_store_stuck_seconds", "For how long commits have failed, or one has taken; 0 if they go through.",
            value=0.0 if trouble is None else trouble.seconds,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "detent_store_full", "1 if the disk is full, so that new messages are refused.", value=self._is_full
        )


class _SampleClock:
    """The owner's time and the wall clock, at one moment."""

    def __init__(self, time: OwnerTime) -> None:
        self._time = time

    def collect(self) -> Iterator[Metric]:
        ahead_s = self._time.difference_ms / 1000  # first: it looks at the clocks, and may see a jump
        yield CounterMetricFamily(
            "detent_clock_jumps", "How often the wall clock has jumped since the store was opened.",
            value=self._time.jumps,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "detent_clock_difference_seconds", "By how much the wall clock is ahead of the store's time.", value=ahead_s
        )
