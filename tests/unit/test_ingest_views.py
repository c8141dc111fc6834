"""How a pipeline shows what it does."""

from __future__ import annotations

import json
import socket
import urllib.request

import pytest

from detent.cli._views import JsonTaskView, LineTaskView
from detent.cli.kinds.ingest import Shown, line_of, metrics_view, report_of, summary_of
from detent.ingest.progress import Counters, IngestProgress


def progress(**counters: int) -> IngestProgress:
    return IngestProgress(Counters(**counters), ready=2, in_progress=3, lag_s=1.5, seconds=2.0)


def test_a_line_says_files_rows_bytes_lag_and_quarantine() -> None:
    line = line_of(report_of("orders", progress(files=4, rows=2_000, bytes=3_000_000, quarantined=1)))
    for part in ("4 files", "2,000 rows (1,000/s)", "2.9 MiB", "5 waiting", "lag 2 s", "1 in quarantine"):
        assert part in line


def test_unreadable_messages_are_said_to_be_left_to_the_queue() -> None:
    assert "unreadable: 2 left to the queue" in line_of(report_of("orders", progress(unreadable=2)))
    assert summary_of(Counters(received=3, unreadable=2, rows=1)) == {
        "received": "3",
        "unreadable": "2 left to the queue",
        "rows": "1",
    }
    assert summary_of(Counters(rows=1)) == {"rows": "1"}


def test_json_is_an_object_a_line_when_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    view = Shown(JsonTaskView(), "orders")
    view.show(progress(files=1))
    view.show(progress(files=1))
    view.end(Counters(files=7))
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["event"], first["files"], first["ready"], first["lag_s"]) == ("progress", 1, 2, 1.5)
    assert (last["event"], last["files"]) == ("summary", 7)


def test_a_log_has_a_line_when_something_was_committed(capsys: pytest.CaptureFixture[str]) -> None:
    view = Shown(LineTaskView(), "orders")
    view.show(progress())
    view.show(progress(batches=1, files=3))
    view.show(progress(batches=2, files=4))  # too soon after the last one
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["orders: 3 files"]


def test_metrics_are_served_on_the_loopback_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shown: list[IngestProgress] = []
    show = metrics_view(port, "orders", shown.append)
    show(progress(files=4, quarantined=1))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for line in ('files{ingest="orders"} 4.0', 'quarantined{ingest="orders"} 1.0', 'lag_seconds{ingest="orders"} 1.5'):
        assert f"detent_ingest_{line}" in text
    assert len(shown) == 1
