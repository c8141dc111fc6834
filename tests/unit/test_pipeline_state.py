"""What is known of a running stream, why one failed, where its store and checkpoints are, and how all that is shown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from detent.cli._views import JsonTaskView, LineTaskView, Look, picture_of
from detent.cli.kinds.pipeline import COLUMNS, notice_of, report_of
from detent.errors import Busy, Denied, Invalid, SessionExpired
from detent.runtime.report import Report
from detent.spark.pipeline import Pipeline, queue
from detent.spark.store_place import checkpoint_folder, store_url
from detent.spark.stream_failure import REASON_MAX, failure_of
from detent.spark.stream_state import RATE_S, Event, StreamState


def state_of(**options: Any) -> StreamState:
    pipeline = Pipeline("p")
    pipeline.stream(**{"read": "a", "write": "b", "name": "s", **options})(lambda frame: frame)
    return StreamState(pipeline.streams[0], clock=lambda: NOW[0])


NOW = [0.0]
LOOK = Look("pipeline/p", list, dict, COLUMNS)


def cells_of(part: Report) -> list[str]:
    """What a stream's row says."""
    return [column.cell(part) for column in COLUMNS]


def progress(number: int, *sources: dict[str, Any], done: bool = True) -> dict[str, Any]:
    times = {"addBatch": 1} if done else {}
    return {"batchId": number, "batchDuration": 7, "durationMs": times, "sources": list(sources)}


def source(start: Any, end: Any, rows: int = 0) -> dict[str, Any]:
    return {"startOffset": start, "endOffset": end, "numInputRows": rows}


def test_messages_are_counted_by_offsets() -> None:
    state = state_of()
    batch = state.absorb(progress(3, source({"a": 5}, {"a": 9}, rows=8), source('{"c": 1}', '{"c": 2}')))
    assert batch is not None
    assert (batch.number, batch.messages, batch.milliseconds) == (3, 5, 7)
    assert state.offsets == {"a": 9, "c": 2}


def test_where_the_start_is_unknown_rows_are_counted() -> None:
    state = state_of()
    assert state.absorb(progress(0, source(None, {"a": 9}, rows=9))).messages == 9  # type: ignore[union-attr]
    twice = state_of(json="id BIGINT")
    assert twice.absorb(progress(0, source("null", {"a": 9}, rows=18))).messages == 9  # type: ignore[union-attr]


def test_a_look_that_finds_nothing_is_no_batch() -> None:
    state = state_of()
    assert state.absorb(progress(4, source({"a": 9}, {"a": 9}), done=False)) is None
    assert (state.batch, state.batches, state.offsets, state.is_read) == (None, 0, {"a": 9}, True)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    state = state_of()
    NOW[0] = 100.0
    state.absorb(progress(0, source({"a": 0}, {"a": 50})))
    assert state.rate == 50 / RATE_S
    NOW[0] += RATE_S + 1
    assert state.rate == 0


# -- failures -------------------------------------------------------------------------------------------------------

TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "/x.py", line 1, in commit
    adopt()
{last}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
detent.errors.Fenced: this is part of the plan
"""


class AnalysisException(Exception):
    """Called like Spark's."""


def in_python(last: str) -> Exception:
    return RuntimeError(TRACE.format(last=last))


@pytest.mark.parametrize(
    ("error", "reason", "is_final"),
    [
        (Invalid("wrong"), "Invalid: wrong", True),
        (Denied("no"), "Denied: no", True),
        (Busy("later"), "Busy: later", False),
        (SessionExpired("gone"), "SessionExpired: gone", False),
        (in_python("detent.errors.Invalid: a row has no body"), "Invalid: a row has no body", True),
        (in_python("detent.errors.Unavailable: away"), "Unavailable: away", False),
        (in_python("ZeroDivisionError: division by zero"), "ZeroDivisionError: division by zero", False),
        (in_python("my.own.BadError: x"), "BadError: x", False),
        (AnalysisException("[X] no column SQLSTATE: 42703;\nplan"), "AnalysisException: [X] no column", True),
        (OSError(), "OSError:", False),
    ],
)
def test_a_failure_is_one_line_and_final_or_not(error: Exception, reason: str, is_final: bool) -> None:
    assert failure_of(error, starting=False)[:2] == (reason, is_final)


def test_what_fails_while_starting_is_wrong_in_itself() -> None:
    class Py4JNetworkError(Exception):
        """Called like py4j's."""

    assert failure_of(TypeError("x"), starting=True).is_final
    assert not failure_of(Py4JNetworkError("x"), starting=True).is_final
    assert not failure_of(Busy("x"), starting=True).is_final


def test_a_reason_is_bounded() -> None:
    assert len(failure_of(RuntimeError("x" * 10_000), starting=False).reason) == REASON_MAX


# -- where ----------------------------------------------------------------------------------------------------------


def test_the_store_is_the_given_one_the_pipelines_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_URL", "file:/c")
    assert store_url(Pipeline("p", store="file:/b"), "file:/a") == "file:/a"
    assert store_url(Pipeline("p", store="file:/b"), None) == "file:/b"
    assert store_url(Pipeline("p"), None) == "file:/c"
    assert store_url(Pipeline("p"), "http://127.0.0.1:7410") == "http://127.0.0.1:7410"
    monkeypatch.delenv("DETENT_URL")
    with pytest.raises(Invalid, match="--store"):
        store_url(Pipeline("p"), None)
    with pytest.raises(Invalid, match="memory"):
        store_url(Pipeline("p", store="memory:"), None)


def test_checkpoints_lie_beside_a_store_on_disk_unless_told() -> None:
    pipeline = Pipeline("p")
    assert checkpoint_folder(pipeline, None, "file:/data/store") == "/data/store.checkpoints"
    assert checkpoint_folder(pipeline, "s3a://bucket/cp/", "file:/data/store") == "s3a://bucket/cp"
    assert checkpoint_folder(pipeline, "/cp", "file:/data/store") == "/cp"
    assert checkpoint_folder(Pipeline("p", checkpoints="/mine"), None, "s3://bucket/store") == "/mine"
    for url in ("s3://bucket/store", "http://127.0.0.1:7410"):
        with pytest.raises(Invalid, match="--checkpoints"):
            checkpoint_folder(pipeline, None, url)


# -- views ----------------------------------------------------------------------------------------------------------


def test_events_as_lines_and_as_json() -> None:
    events = [
        Event("note", text="two\nlines\x1b[31m"),
        Event("progress", "s", fields={"batch": 1}),
        Event("failed", "s", "away; trying again in 1 s", {"retry_s": 1.0}),
    ]
    lines, objects = io.StringIO(), io.StringIO()
    for view in (LineTaskView(lines), JsonTaskView(objects)):
        with view:
            for event in events:
                view.tell(notice_of(event))
            view.show(Look("pipeline/p", list, dict))
    assert lines.getvalue().splitlines() == ["note two\\nlines\\x1b[31m", "s: failed away; trying again in 1 s"]
    assert [json.loads(line) for line in objects.getvalue().splitlines()] == [
        {"event": "note", "text": "two\nlines\x1b[31m"},
        {"event": "progress", "stream": "s", "batch": 1},
        {"event": "failed", "stream": "s", "text": "away; trying again in 1 s", "retry_s": 1.0},
    ]
    assert notice_of(Event("gave_up", "s")).text == "s: gave up"


def test_a_row_says_how_a_stream_is() -> None:
    state = state_of(read=queue("q"))
    assert cells_of(state.report()) == ["s", "starting", "0", "-", "-", "-", "-", "-", "-"]
    NOW[0] = 500.0
    state.absorb(progress(12, source(None, {"queue": "q", "generation": 3, "assignment": 7}, rows=20)))
    state.offsets, state.lag, state.failures, state.phase = {"a": 12_345}, 1_000, 2, "running"
    assert cells_of(state.report()) == ["s", "running", "2", "1,000", "12", "7 ms", "a 12,345, queue q #7", "-", "2"]


def test_the_live_table_shows_every_stream() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    console.print(picture_of(report_of("[p]", [state_of()]), LOOK))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "starting" in shown
    assert "waiting" in shown
