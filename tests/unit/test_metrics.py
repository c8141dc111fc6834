"""Metrics: what the store holds, who may read it, what it costs, and that docs/metrics.md lists all of them."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import detent
from busworld import Books, Invoiced, OrderPlaced, app
from detent.bus import Outcome, SqlOutbox
from detent.bus.messages import Incoming
from detent.cli.bus import bus as bus_commands
from detent.cli.kinds import bus as bus_kind
from detent.cli.kinds.bus import AppTally, BusCollector, serve_bus_metrics
from detent.engine import Trouble
from detent.errors import Denied, Invalid
from detent.queue.surveying import ALWAYS, NEVER
from detent.server import metrics_state, operators
from detent.server.access import Caller
from detent.server.keys import parse_grant
from detent.server.metrics import Metrics
from detent.server.metrics_state import StoreState, look
from detent.shard import operations as shards
from shownmetrics import shown_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def looked(store: detent.Store, now_ms: int | None = None, queues: int = 500) -> dict[tuple[str, ...], float]:
    """The page of a store."""
    metrics = Metrics(store._connection.current.engine.time)  # type: ignore[union-attr]

    class Asked:
        reader = store.reader

        @staticmethod
        async def commit(operations: Any) -> Any:
            return store.commit(operations)

    state = asyncio.run(look(cast("detent.AsyncStore", Asked()), metrics.now_ms if now_ms is None else now_ms, queues))
    return samples(metrics.page(state).decode())


# -- the page and the code --------------------------------------------------------------------------------------------


def listed_metrics() -> dict[str, tuple[str, frozenset[str]]]:
    """The same as docs/metrics.md lists them."""
    rows = re.findall(r"^\| `(detent_\w+)` \| (\w+) \|([^|]*)\| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}


def test_page_in_the_docs_lists_every_metric_with_its_type_and_labels_and_no_other() -> None:
    assert listed_metrics() == shown_metrics()
    assert all(row.count("|") == 6 for row in PAGE.read_text().splitlines() if row.startswith("| `detent_"))


def test_docs_name_the_limits_that_the_code_has() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"at most {metrics_state.OBJECTS_MAX:,} journals" in text
    assert f"at most {metrics_state.QUEUES_SHOWN} queues" in text
    assert f"up to {metrics_state.QUEUES_MAX:,}" in text
    assert f"label `{metrics_state.LABEL}` is `{ALWAYS}`" in text
    assert f"each of the {metrics_state.AGES_MAX} longest lags" in text
    assert (metrics_state.AGES_S, bus_kind.LOOK_EVERY_S) == (1.0, 5.0)


# -- what the store holds ---------------------------------------------------------------------------------------------


def test_blocked_messages_of_a_queue_are_counted() -> None:
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create(group_header="group")
        queue.publish_many([b"1", b"2", b"3"], headers={"group": "a"})
        found = looked(store)
        assert [found["detent_queue_messages", "q", state] for state in ("available", "blocked")] == [1, 2]


def test_schedules_say_what_they_published_and_how_late_they_are() -> None:
    with detent.open("memory:") as store:
        store.schedule("daily", every="1d", journal="j")
        store.schedule("rests", every="1m", journal="j", paused=True)
        found = looked(store)
        for event in ("published", "skipped"):
            assert found[f"detent_schedule_{event}_total", "daily"] == 0
        assert found["detent_schedule_late_seconds", "daily"] == 0
        next_day = store._connection.current.engine.time.now_ms() + 25 * 3_600_000  # type: ignore[union-attr]
        found = looked(store, next_day)
        assert 3_590 < found["detent_schedule_late_seconds", "daily"] < 3_700
        assert found["detent_schedule_late_seconds", "rests"] == 0


def test_journals_and_ledgers_have_sizes_and_ages() -> None:
    with detent.open("memory:") as store:
        store.journal("log").append_many([b"a", b"b", b"c"])
        store.journal("log").trim(1)
        with store.transaction() as transaction:
            transaction.enter_ledger("nightly", 7)
        in_an_hour = store._connection.current.engine.time.now_ms() + 3_600_000  # type: ignore[union-attr]
        found = looked(store, in_an_hour)
        assert found["detent_journal_messages", "log"] == store.journal("log").info().messages
        assert found["detent_journal_committed_messages_total", "log"] == 3
        assert found["detent_journal_bytes", "log"] > 0
        assert 3_590 < found["detent_journal_idle_seconds", "log"] < 3_700
        assert (found["detent_ledger_batch", "nightly"], found["detent_ledger_entries_total", "nightly"]) == (7, 1)
        assert 3_590 < found["detent_ledger_age_seconds", "nightly"] < 3_700


def work(store: detent.Store, consumer: str, processed: dict[str, int], status: str = "running") -> None:
    """A process has come so far with a consumer."""
    store.commit([shards.RegisterConsumer(consumer, 1, sorted(processed))])
    store.commit([shards.Heartbeat(consumer, "me", 600_000)])
    generation = store.commit([shards.LeaseShard(consumer, 0, "me", 600_000)])[0].generation
    store.commit([shards.ReportShard(consumer, 0, generation, status, "", processed)])


def test_consumers_and_graphs_have_lag_and_age() -> None:
    with detent.open("memory:") as store:
        store.journal("log").append_many([b"a", b"b", b"c"])
        work(store, "totals", {"log": 1})
        work(store, "idle", {"log": 3})
        work(store, "graph/shop/receipt", {"log": 2}, "failed")
        store.commit([shards.RegisterConsumer("unknown", 2, ["log"])])
        now_ms = store.reader.time_at("log", 1) + 5_000
        found = looked(store, now_ms)
    for consumer, messages, seconds in (("totals", 2, 5), ("idle", 0, 0)):
        assert found["detent_consumer_lag_messages", consumer, "log"] == messages
        assert found["detent_consumer_lag_seconds", consumer, "log"] == seconds
    assert found["detent_graph_lag_messages", "shop", "log", "receipt"] == 1
    assert found["detent_graph_lag_seconds", "shop", "log", "receipt"] > 4
    assert (found["detent_graph_running", "shop", "receipt"], found["detent_graph_failed", "shop", "receipt"]) == (1, 1)
    assert (found["detent_consumer_shards", "totals"], found["detent_consumer_free_shards", "unknown"]) == (1, 2)
    assert ("detent_consumer_lag_messages", "unknown", "log") not in found  # it is not known, and not 0
    assert not any("graph/" in label for sample in found for label in sample)


# -- what a scrape costs ----------------------------------------------------------------------------------------------


def test_page_has_a_limited_number_of_each_kind_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_state, "OBJECTS_MAX", 3)
    with detent.open("memory:") as store:
        for number in range(5):
            store.queue(f"q{number}").create()
            store.journal(f"j{number}").append(b"x")
            store.commit([shards.RegisterConsumer(f"c{number}", 1, ["j0"])])
        with store.transaction() as transaction:
            transaction.enter_ledger("nightly", 7)
        found = looked(store, queues=3)
    shown = {sample[1] for sample in found if sample[0] in ("detent_queue_messages", "detent_journal_messages")}
    assert shown == {"q0", "q1", "q2", "j0", "j1", "j2"}
    left_out = {kind: found["detent_metrics_left_out", kind] for kind in metrics_state.KINDS}
    assert left_out == {"queue": 1, "journal": 1, "consumer": 1, "ledger": 0, "schedule": 0}


def test_page_has_the_queues_with_the_longest_backlogs_and_the_sums_of_all() -> None:
    with detent.open("memory:") as store:
        for number in range(6):
            store.queue(f"q{number}").create(paused=number == 0)
            store.queue(f"q{number}").publish_many([b"x"] * number)
        store.queue("q0").configure(labels={metrics_state.LABEL: ALWAYS})
        store.queue("q5").configure(labels={metrics_state.LABEL: NEVER})
        found = looked(store, queues=3)
    assert {sample[1] for sample in found if sample[0] == "detent_queue_messages"} == {"q0", "q4", "q3"}
    assert found["detent_all_queues_messages", "available"] == 0 + 1 + 2 + 3 + 4 + 5
    assert (found["detent_queues",], found["detent_paused_queues",]) == (6, 1)
    assert (found["detent_queue_paused", "q0"], found["detent_queue_paused", "q4"]) == (1, 0)
    assert found["detent_metrics_left_out", "queue"] == 1


def test_page_says_that_the_store_does_not_answer_and_shows_what_the_server_counts() -> None:
    page = Metrics().page(None, Trouble(True, 0.0, "fenced"), is_full=True)
    found = samples(page.decode())
    assert (found["detent_store_up",], found["detent_store_fenced",], found["detent_store_full",]) == (0, 1, 1)
    assert ("detent_published_messages_total",) in found
    assert not any(sample[0] == "detent_queues" for sample in found)
    stuck = samples(Metrics().page(StoreState(), Trouble(False, 12.0, "no bucket")).decode())
    assert (stuck["detent_store_up",], stuck["detent_store_stuck_seconds",]) == (1, 12)


def test_page_reads_a_limited_number_of_messages_for_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_state, "AGES_MAX", 2)
    with detent.open("memory:") as store:
        store.journal("log").append_many([b"x"] * 9)
        for number in range(4):
            work(store, f"c{number}", {"log": number})
        read: list[int] = []
        real = store.reader.time_at
        monkeypatch.setattr(store.reader, "time_at", lambda name, offset: (read.append(offset), real(name, offset))[1])
        found = looked(store)
    assert read == [0, 1]  # of the longest lags
    assert ("detent_consumer_lag_seconds", "c3", "log") not in found
    assert found["detent_consumer_lag_messages", "c3", "log"] == 6


# -- who may read it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("read:metrics:*", True),
        ("read:*:*", True),
        ("consume:metrics:*", True),
        ("consume:*:*", True),
        ("admin:*:*", True),
        ("read:queue:*", False),
        ("consume:queue:*", False),
        ("publish:metrics:*", False),
        ("publish:*:*", False),
    ],
)
def test_metrics_take_a_grant_of_their_own(grant: str, allowed: bool) -> None:
    caller = Caller("prometheus", (parse_grant(grant),))
    if allowed:
        operators._require_metrics(caller)
        return
    with pytest.raises(Denied, match=r"read:metrics:.*--preset metrics"):
        operators._require_metrics(caller)


def test_metrics_grant_allows_nothing_else() -> None:
    caller = Caller("prometheus", (parse_grant("consume:metrics:*"),))
    assert not any(caller.may("consume", kind, "store") for kind in ("queue", "journal", "ledger", "consumer"))
    with pytest.raises(Denied):
        caller.require_everywhere("consume")


# -- apps -------------------------------------------------------------------------------------------------------------


def test_outboxes_and_deliveries_of_apps_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_kind, "LOOK_EVERY_S", 0.0)
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")
    with app(name="billing", **books.options(outbox=SqlOutbox())) as bus:
        bus.handler(OrderPlaced)(lambda order: bus.send(Invoiced(1), to="later", delay="1h"))
        bus.prepare()
        tally = AppTally([bus], cast(Any, None))
        tally.see(bus, cast(Incoming, None), Outcome.HANDLED)
        bus.send_local(OrderPlaced(1))
        (incoming,) = bus.transport.receive(1, 5)
        assert bus.handle(incoming) is Outcome.HANDLED
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        serve_bus_metrics(port, [bus], tally)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            found = samples(answer.read().decode())
        with pytest.raises(Invalid, match="cannot be served on port"):
            serve_bus_metrics(port, [bus], tally)
    books.close()
    assert found["detent_bus_deliveries_total", "billing", "handled"] == 1
    assert found["detent_outbox_messages", "billing", "pending"] == 1
    assert found["detent_outbox_messages", "billing", "failed"] == 0
    assert found["detent_outbox_oldest_age_seconds", "billing"] == 0


def test_metrics_port_is_refused_for_a_run_that_ends(tmp_path: Path) -> None:
    shop = tmp_path / "metered.py"
    shop.write_text("from detent.bus import Bus\nbilling = Bus('billing', 'file:./bus')\n")
    said = CliRunner().invoke(bus_commands, ["run", str(shop), "--once", "--metrics-port", "9100"])
    assert said.exit_code == 2
    assert "--metrics-port is for apps that go on running" in said.output


def test_outbox_is_counted_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr("detent.cli.kinds.bus.outbox_of", looks.append)
    with app(outbox=None) as bus:
        bus.outbox = cast(Any, object())
        collector = BusCollector([bus], AppTally([bus], cast(Any, None)))
        for _ in range(3):
            assert list(collector.collect())
        bus.outbox = None
    assert looks == [bus]
