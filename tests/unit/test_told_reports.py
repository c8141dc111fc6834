"""What a task without shards says of itself: kept by the store's owner, heard elsewhere, gone when it says no more."""

from __future__ import annotations

from pathlib import Path

import pytest

import detent
from detent.cli.kinds import PIPELINE
from detent.cli.kinds.kind import VerbOptions
from detent.errors import Denied, Invalid, Unavailable
from detent.runtime.report import Report, State, Trouble
from detent.shard.operations import INFO_BYTES_MAX
from detent.stream.told import EVERY_S, ToldReports, heard_of, heard_reports, told_of


def part(name: str = "paid", lag: int = 0, error: str = "", about: str = "x") -> Report:
    trouble = Trouble(error, 1.0) if error else None
    return Report("stream", name, State.RUNNING, {"messages": 7}, lag, trouble, about={"read up to": about})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += EVERY_S
        return self.now


def test_report_is_heard_by_another_handle_of_store(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'data'}") as store, detent.open(store.url) as other:
        telling = ToldReports(store, "pipeline/shop", clock=Clock())
        assert heard_reports(other, "pipeline/shop", "stream") == {}
        telling.tell([part(), part("late", lag=3, error="no answer")])
        telling.tell([part(), part("late", lag=2, error="no answer")])
        heard = heard_reports(other, "pipeline/shop", "stream")
        assert (heard["paid"].report, heard["paid"].times) == (part(), 2)
        assert (heard["late"].report.lag, heard["late"].report.error) == (2, "no answer")
        telling.close()
        heard = heard_reports(other, "pipeline/shop", "stream")
        assert [one.report.state for one in heard.values()] == [State.STOPPED] * 2


def test_pipeline_is_shown_waited_for_and_forgotten(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path / 'data'}") as store:
        for stream in ("paid", "late"):
            store.declare_stream(f"shop/{stream}", {"journal orders": 1}, {f"journal {stream}": 2})
        (known,) = PIPELINE.stored(store)
        assert known.report().state is State.UNKNOWN
        with pytest.raises(Invalid, match="pipeline/shop does not run"):
            known.wait(50, {})
        telling = ToldReports(store, "pipeline/shop", clock=Clock())
        telling.tell([part(lag=1), part("late", lag=3)])
        found = known.report()
        assert (found.state, found.lag, found.progress) == (State.RUNNING, 4, {"messages": 14})
        telling.tell([part(), part("late")])
        with pytest.raises(Unavailable, match="has not said so yet"):
            known.wait(50, {})  # nothing was said since the command began
        telling.close()
        assert known.report().state is State.STOPPED
        known.remove(VerbOptions())
        assert store.consumers("pipeline/") == []


def test_wait_ends_when_it_was_said_twice_that_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with detent.open(f"file:{tmp_path / 'data'}") as store:
        store.declare_stream("shop/paid", {"journal orders": 1}, {"journal paid": 2})
        (known,) = PIPELINE.stored(store)
        telling, lags = ToldReports(store, "pipeline/shop", clock=Clock()), [0, 5, 0, 0]
        telling.tell([part(lag=0)])
        monkeypatch.setattr("detent.cli.kinds.pipeline.time.sleep", lambda _: telling.tell([part(lag=lags.pop(0))]))
        assert known.wait(60_000, {}) == {}
        assert lags == [0], "it has waited for what was counted after it began, and for the five messages"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "odd", "lag": "many", "progress": [], "about": 3}'])
def test_text_of_another_release_is_no_trouble(text: str) -> None:
    assert heard_of(text, "stream", "paid").report == Report("stream", "paid", State.UNKNOWN)


@pytest.mark.parametrize(
    "long", [part(error="€" * 5_000), part(about="x" * 5_000), part(error='"' * 999, about="é" * 99)]
)
def test_text_is_as_short_as_a_member_may_say(long: Report) -> None:
    text = told_of(long, 17)
    assert len(text.encode()) <= INFO_BYTES_MAX
    heard = heard_of(text, "stream", "paid")
    assert (heard.report.state, heard.times) == (State.RUNNING, 17)


def test_task_that_may_not_say_it_says_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(operations: object) -> None:
        asked.append(operations)
        raise Denied("not with this token")

    with detent.open(f"file:{tmp_path / 'data'}") as store:
        monkeypatch.setattr(store, "commit", refuse)
        telling = ToldReports(store, "pipeline/shop", clock=Clock())
        telling.tell([part()])
        telling.tell([part()])
        telling.close()
    assert len(asked) == 1
