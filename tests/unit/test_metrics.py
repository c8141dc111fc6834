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
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import detent
from busworld import Books, Invoiced, OrderPlaced, app
from detent.bus import Outcome, SqlOutbox
from detent.bus.messages import Incoming
from detent.cli.bus import bus as bus_commands
from detent.cli.kinds import bus as bus_kind
from detent.cli.kinds.bus import AppTally, BusCollector, serve_bus_metrics
from detent.errors import Denied, Invalid
from detent.ingest.progress import Counters
from detent.server import metrics_state, operators
from detent.server.access import Caller
from detent.server.keys import parse_grant
from detent.server.metrics import Metrics
from detent.server.metrics_state import StoreState, look
from detent.shard import operations as shards

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def looked(store: detent.Store, now_ms: int | None = None) -> dict[tuple[str, ...], float]:
    """The page of a store."""
    metrics = Metrics(store._connection.current.engine.time)  # type: ignore[union-attr]

    class Asked:
        reader = store.reader

        @staticmethod
        async def commit(operations: Any) -> Any:
            return store.commit(operations)

    state = asyncio.run(look(cast("detent.AsyncStore", Asked()), metrics.now_ms if now_ms is None else now_ms))
    return samples(metrics.page(state).decode())


# -- the page and the code --------------------------------------------------------------------------------------------


def shown_metrics() -> set[str]:
    """Every name that the code shows, as Prometheus stores it."""
    metrics = Metrics()
    registry = CollectorRegistry()
    registry.register(BusCollector([], AppTally([], cast(Any, None))))
    families = [*text_string_to_metric_families(metrics.page(StoreState()).decode()), *registry.collect()]
    found = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    found = {name for name in found if not name.endswith("_created")}  # which each counter and histogram has beside it
    waits = ("ready", "in_progress", "lag_seconds")
    return found | {f"detent_ingest_{name}" for name in (*Counters().as_json(), *waits)}


def test_page_in_the_docs_lists_every_metric_and_no_other() -> None:
    listed = re.findall(r"^\| `(detent_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in shown_metrics() if name.startswith("detent_")}


def test_docs_name_the_limits_that_the_code_has() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"at most {metrics_state.OBJECTS_MAX:,} queues" in text
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
        found = looked(store)
    shown = {sample[1] for sample in found if sample[0] in ("detent_queue_messages", "detent_journal_messages")}
    assert shown == {"q0", "q1", "q2", "j0", "j1", "j2"}
    left_out = {kind: found["detent_metrics_left_out", kind] for kind in metrics_state.KINDS}
    assert left_out == {"queue": 1, "journal": 1, "consumer": 1, "ledger": 0}


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
