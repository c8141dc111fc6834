"""The owner's housekeeper: whatever one round of it meets, the next round comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

import detent
from detent.errors import Corrupt, Fenced, LimitExceeded, Unavailable
from detent.remote import LocalOwner
from detent.remote import owner as owner_module
from processes import eventually


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalOwner]:
    """An owner whose seconds are short, and whose hours too."""
    monkeypatch.setattr(owner_module, "TICK_S", 0.002)
    monkeypatch.setattr(owner_module, "SWEEP_EVERY_S", 0.0)
    with detent.open("memory:") as store:
        current = store._connection.current
        assert isinstance(current, LocalOwner)
        yield current


class Rounds:
    """Stands in for one step of housekeeping: the first call fails, the others are counted and go through."""

    def __init__(self, error: BaseException, step: Callable[[], object]) -> None:
        self.failed = threading.Event()
        self.later = 0
        self._error = error
        self._step = step

    def __call__(self) -> object:
        if not self.failed.is_set():
            self.failed.set()
            raise self._error
        self.later += 1
        return self._step()


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(one.levelno, one.getMessage()) for one in caplog.records if one.name == "detent.owner"]


@pytest.mark.parametrize("step", ["tick", "sweep"])
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), KeyError("a bug"), OSError(5, "a broken disk"), MemoryError(), AssertionError("a bug"),
     Corrupt("a broken record"), LimitExceeded("too many wait")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_goes_on_after_any_error_and_reports_it_with_its_trace(
    owner: LocalOwner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    holder = owner.engine if step == "tick" else owner
    rounds = Rounds(error, getattr(holder, step))
    monkeypatch.setattr(holder, step, rounds)
    eventually(lambda: rounds.later >= 3, what="rounds after the one that failed")
    assert reports(caplog) == [(logging.ERROR, "housekeeping failed and will be tried again")]
    (record,) = (one for one in caplog.records if one.name == "detent.owner")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_goes_on_when_the_store_is_not_available_and_says_so_in_a_line(
    owner: LocalOwner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds(Unavailable("the disk is full"), owner.engine.tick)
    monkeypatch.setattr(owner.engine, "tick", rounds)
    eventually(lambda: rounds.later >= 3, what="rounds after the one that failed")
    assert reports(caplog) == [(logging.WARNING, "housekeeping will be tried again: the disk is full")]


def test_a_tick_that_fails_does_not_keep_the_sweeper_from_its_hour(
    owner: LocalOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = Rounds(RuntimeError("a bug"), owner.engine.tick)
    sweeps = Rounds(RuntimeError("a bug too"), owner.sweep)
    monkeypatch.setattr(owner.engine, "tick", ticks)
    monkeypatch.setattr(owner, "sweep", sweeps)
    eventually(lambda: ticks.later >= 3 and sweeps.later >= 3, what="rounds after those that failed")


def test_ends_when_the_owner_was_replaced(
    owner: LocalOwner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The next owner keeps house now. This one must not write another line about it every second, for ever.
    rounds = Rounds(Fenced("there is a newer owner"), owner.engine.tick)
    monkeypatch.setattr(owner.engine, "tick", rounds)
    eventually(lambda: not owner._housekeeper._supervised.is_alive, what="the end of housekeeping")
    assert rounds.later == 0
    assert reports(caplog) == [(logging.WARNING, "housekeeping ends: there is a newer owner")]


def test_waits_for_the_next_tick_after_a_failure_however_much_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full is not asked a thousand times a second."""
    monkeypatch.setattr(owner_module, "TICK_S", 0.2)
    with detent.open("memory:") as store:
        current = store._connection.current
        assert isinstance(current, LocalOwner)
        tried: list[float] = []

        def fail(**_: object) -> None:
            tried.append(time.monotonic())
            raise Unavailable("the disk is full")

        monkeypatch.setattr(current.engine, "keep_house", fail)
        monkeypatch.setattr(current.engine, "next_due_ms", lambda: 0)
        eventually(lambda: len(tried) >= 4, what="four tries")
        monkeypatch.undo()
    assert min(later - earlier for earlier, later in pairwise(tried[1:])) > 0.05
