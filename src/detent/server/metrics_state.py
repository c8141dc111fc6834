"""What is in the store at the moment of a scrape, for Prometheus: queues, journals, consumers, graphs, ledgers and
schedules.

A scrape shows the queues with the longest backlogs and the first `OBJECTS_MAX` of the other kinds, and reads at most
`AGES_MAX` messages, whatever is in the store. What all queues hold together is exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from detent.engine import Operation
from detent.errors import NotFound
from detent.journal import JournalExtent, JournalReader
from detent.ledger import operations as ledgers
from detent.queue import operations as queues
from detent.queue.surveying import SURVEY_MAX, QueueTotals, SurveyQueues
from detent.schedule import operations as schedules
from detent.shard import operations as shards

if TYPE_CHECKING:
    from detent.store import AsyncStore

OBJECTS_MAX: Final = 1_000
"""Journals, consumers and ledgers that one page has, of each kind; the first ones by name. It is the most that the
store lists at a time, and about as many series as a dashboard can show."""

QUEUES_SHOWN: Final = 500
"""Queues that one page has, unless the operator says otherwise: those with the longest backlogs. Each has 12 series, so
these are 6,000, about as many as a scraper takes from one process without being asked to."""

QUEUES_MAX: Final = SURVEY_MAX
"""The most queues that a page can have."""

LABEL: Final = "metrics"
"""The label of a queue that says ``always`` if it shall be on every page, or ``never``."""

AGES_MAX: Final = 100
"""Messages that are read for one page, to say how old they are; those of the longest lags."""

AGES_S: Final = 1.0
"""How long a page reads messages: those on an object store take a request each."""

GRAPH: Final = "graph/"
"""What the names of consumers begin with that are processors of graphs: ``graph/GRAPH/PROCESSOR``."""

KINDS: Final = ("queue", "journal", "consumer", "ledger", "schedule")


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind in a journal: messages, and how old the first of them is, where that was read."""

    consumer: str
    journal: str
    position: int
    messages: int
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is in the store. Times are the owner's, in milliseconds."""

    now_ms: int = 0
    unmatched: int = 0
    totals: QueueTotals = field(default_factory=QueueTotals)
    queues: Sequence[queues.QueueDescription] = ()
    journals: Sequence[JournalExtent] = ()
    consumers: Sequence[shards.ConsumerDescription] = ()
    ledgers: Sequence[ledgers.LedgerDescription] = ()
    schedules: Sequence[schedules.ScheduleDescription] = ()
    lags: Sequence[Lag] = ()
    left_out: frozenset[str] = field(default_factory=frozenset)
    """Kinds of which there are more."""


def questions(queues_shown: int = QUEUES_SHOWN) -> list[Operation]:
    """What a page asks the owner: one transaction that changes nothing."""
    return [
        SurveyQueues(order="backlog", limit=queues_shown, label=LABEL),
        shards.DescribeConsumers(limit=OBJECTS_MAX),
        ledgers.DescribeLedgers(limit=OBJECTS_MAX),
        schedules.DescribeSchedules(limit=OBJECTS_MAX),
    ]


async def look(store: AsyncStore, now_ms: int, queues_shown: int = QUEUES_SHOWN) -> StoreState:
    """The store as it is now. Journals are read in a thread, because they may be far away."""
    import asyncio

    found_queues, found_consumers, found_ledgers, found_schedules = await store.commit(questions(queues_shown))
    consumers = found_consumers.consumers
    listed, lags = await asyncio.to_thread(_journals, store.reader, consumers, now_ms)
    more = {
        "queue": len(found_queues.queues) < found_queues.totals.queues,
        "journal": len(listed) > OBJECTS_MAX,
        "consumer": found_consumers.more,
        "ledger": found_ledgers.more,
        "schedule": found_schedules.more,
    }
    return StoreState(
        now_ms,
        found_queues.unmatched,
        found_queues.totals,
        found_queues.queues,
        listed[:OBJECTS_MAX],
        consumers,
        found_ledgers.ledgers,
        found_schedules.schedules,
        lags,
        frozenset(kind for kind, is_more in more.items() if is_more),
    )


def _journals(
    reader: JournalReader, consumers: Sequence[shards.ConsumerDescription], now_ms: int
) -> tuple[list[JournalExtent], list[Lag]]:
    listed = reader.extents_listed(OBJECTS_MAX + 1)
    known = {extent.name: extent for extent in listed}
    lags = [lag for consumer in consumers for lag in _lags_of(reader, consumer, known)]
    lags.sort(key=lambda lag: -lag.messages)
    deadline = time.monotonic() + AGES_S
    aged = [
        lag if at >= AGES_MAX or time.monotonic() > deadline else _with_age(reader, lag, now_ms)
        for at, lag in enumerate(lags[:OBJECTS_MAX])
    ]
    return listed, aged


def _lags_of(
    reader: JournalReader, consumer: shards.ConsumerDescription, known: dict[str, JournalExtent]
) -> Iterator[Lag]:
    """The lag in each journal of which it is known how far the consumer is; of several shards, that of the last."""
    positions: dict[str, int] = {}
    for shard in consumer.states:
        for journal in {*shard.processed, *consumer.journals_of(shard.index)}:
            position = shard.processed.get(journal, shard.resets.get(journal))
            if position is not None:
                positions[journal] = min(position, positions.get(journal, position))
    for journal, position in positions.items():
        if journal not in known:
            found = reader.whereabouts(journal)
            if found is None:
                continue
            first, end = found[1], found[2]
        else:
            first, end = known[journal].first_offset, known[journal].next_offset
        begin = max(first, position)
        yield Lag(consumer.name, journal, begin, max(0, end - begin))


def _with_age(reader: JournalReader, lag: Lag, now_ms: int) -> Lag:
    """With the age of the first message that is not processed. One that is trimmed meanwhile has none."""
    age_s: float | None = 0.0
    if lag.messages:
        age_s = None
        with suppress(NotFound):
            age_s = max(0, now_ms - reader.time_at(lag.journal, lag.position)) / 1000
    return Lag(lag.consumer, lag.journal, lag.position, lag.messages, age_s)


# -- as Prometheus reads it -----------------------------------------------------------------------------------------


class StateCollector:
    """The metrics of what is in the store."""

    def __init__(self, state: StoreState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._all_queues()
        yield from self._queues()
        yield from self._journals()
        yield from self._consumers()
        yield from self._lags()
        yield from self._ledgers()
        yield from self._schedules()
        left_out = _gauge("metrics_left_out", "1 where there are more of a kind than the page shows.", "kind")
        for kind in KINDS:
            left_out.add_metric([kind], kind in self._state.left_out)
        yield left_out

    def _all_queues(self) -> Iterator[Metric]:
        all_of = self._state.totals  # no totals of events: where a queue is deleted they would fall, and count as new
        held = _gauge("all_queues_messages", "Messages in all queues, by state.", "state")
        for state in ("available", "delayed", "blocked", "in_flight", "failed", "done"):
            held.add_metric([state], getattr(all_of, state))
        yield GaugeMetricFamily("detent_queues", "Queues in the store.", value=all_of.queues)
        yield GaugeMetricFamily("detent_paused_queues", "Queues that are paused.", value=all_of.paused)
        yield held

    def _queues(self) -> Iterator[Metric]:
        paused = _gauge("queue_paused", "1 while the queue is paused.", "queue")
        held = _gauge("queue_messages", "Messages in a queue, by state.", "queue", "state")
        age = _gauge("queue_oldest_age_seconds", "How long the oldest available message has waited.", "queue")
        total = CounterMetricFamily(
            "detent_queue_events", "Messages that came or went since the queue was created.", labels=["queue", "event"]
        )
        for queue in self._state.queues:
            states = {
                "available": queue.available, "delayed": queue.delayed, "blocked": queue.blocked,
                "in_flight": queue.in_flight, "failed": queue.failed, "done": queue.done_kept,
            }  # fmt: skip
            events = {
                "routed": queue.routed, "acked": queue.acked, "failed": queue.failures, "expired": queue.expired,
                "purged": queue.purged,
            }  # fmt: skip
            for state, count in states.items():
                held.add_metric([queue.name, state], count)
            age.add_metric([queue.name], self._age_s(queue.oldest_ms))
            paused.add_metric([queue.name], bool(queue.settings.paused))
            for event, count in events.items():
                total.add_metric([queue.name, event], count)
        yield held
        yield age
        yield paused
        yield total
        yield GaugeMetricFamily(
            "detent_unmatched_messages", "Stored messages in no queue.", value=self._state.unmatched
        )

    def _journals(self) -> Iterator[Metric]:
        messages = _gauge("journal_messages", "Committed messages that can be read.", "journal")
        size = _gauge("journal_bytes", "Bytes of a journal's blocks and fragments.", "journal")
        committed = CounterMetricFamily(
            "detent_journal_committed_messages", "Messages committed since the journal was created.", labels=["journal"]
        )
        idle = _gauge("journal_idle_seconds", "How long ago the journal last changed.", "journal")
        for journal in self._state.journals:
            messages.add_metric([journal.name], journal.next_offset - journal.first_offset)
            size.add_metric([journal.name], journal.bytes)
            committed.add_metric([journal.name], journal.next_offset)
            idle.add_metric([journal.name], self._age_s(journal.updated_ms))
        yield messages
        yield size
        yield committed
        yield idle

    def _consumers(self) -> Iterator[Metric]:
        held = _gauge("consumer_shards", "Shards of a consumer that a process works on.", "consumer")
        free = _gauge("consumer_free_shards", "Shards of a consumer that no process works on.", "consumer")
        failed = _gauge("consumer_failed_shards", "Shards of a consumer that failed, and are tried again.", "consumer")
        working = _gauge("graph_running", "1 while a process runs the processor.", "graph", "processor")
        broken = _gauge("graph_failed", "1 while the processor has failed, and is tried again.", "graph", "processor")
        for consumer in self._state.consumers:
            holders = sum(bool(shard.holder) for shard in consumer.states)
            errors = sum(shard.status == "failed" for shard in consumer.states if shard.holder)
            where = _graph_labels(consumer.name)
            if where:
                working.add_metric(where, min(1, holders))
                broken.add_metric(where, min(1, errors))
            else:
                held.add_metric([consumer.name], holders)
                free.add_metric([consumer.name], len(consumer.states) - holders)
                failed.add_metric([consumer.name], errors)
        yield held
        yield free
        yield failed
        yield working
        yield broken

    def _lags(self) -> Iterator[Metric]:
        behind = "Messages of a journal that are not processed."
        old = "How old the first message is that is not processed; 0 if there is none."
        lag = _gauge("consumer_lag_messages", behind, "consumer", "journal")
        age = _gauge("consumer_lag_seconds", old, "consumer", "journal")
        graph_lag = _gauge("graph_lag_messages", behind, "graph", "processor", "journal")
        graph_age = _gauge("graph_lag_seconds", old, "graph", "processor", "journal")
        for one in self._state.lags:
            where = _graph_labels(one.consumer)
            labels = [*(where or [one.consumer]), one.journal]
            (graph_lag if where else lag).add_metric(labels, one.messages)
            if one.age_s is not None:
                (graph_age if where else age).add_metric(labels, one.age_s)
        yield lag
        yield age
        yield graph_lag
        yield graph_age

    def _ledgers(self) -> Iterator[Metric]:
        batch = _gauge("ledger_batch", "The highest batch that the ledger's query has entered; -1 for none.", "ledger")
        entries = CounterMetricFamily(
            "detent_ledger_entries", "Batches that the ledger's query has entered.", labels=["ledger"]
        )
        age = _gauge("ledger_age_seconds", "How long ago a batch was entered.", "ledger")
        for ledger in self._state.ledgers:
            batch.add_metric([ledger.name], ledger.batch)
            entries.add_metric([ledger.name], ledger.entries)
            age.add_metric([ledger.name], self._age_s(ledger.updated_ms))
        yield batch
        yield entries
        yield age

    def _schedules(self) -> Iterator[Metric]:
        published = CounterMetricFamily(
            "detent_schedule_published", "Messages that the schedule has published.", labels=["schedule"]
        )
        skipped = CounterMetricFamily(
            "detent_schedule_skipped", "Ticks that were missed and not made up for.", labels=["schedule"]
        )
        late = _gauge("schedule_late_seconds", "How long a message has been due; 0 if none is.", "schedule")
        for schedule in self._state.schedules:
            state = schedule.state
            published.add_metric([schedule.name], state.published)
            skipped.add_metric([schedule.name], state.skipped)
            next_ms = 0 if schedule.definition.paused else state.next_ms
            late.add_metric([schedule.name], self._age_s(min(filter(None, (next_ms, *state.asked)), default=0)))
        yield published
        yield skipped
        yield late

    def _age_s(self, since_ms: int | None) -> float:
        return max(0, self._state.now_ms - since_ms) / 1000 if since_ms else 0.0


def _gauge(name: str, text: str, *labels: str) -> Any:
    return GaugeMetricFamily(f"detent_{name}", text, labels=labels)


def _graph_labels(consumer: str) -> list[str]:
    """The graph and the processor that a consumer is; none for one that is not a processor."""
    if not consumer.startswith(GRAPH):
        return []
    graph, _, processor = consumer.removeprefix(GRAPH).rpartition("/")
    return [graph, processor]
