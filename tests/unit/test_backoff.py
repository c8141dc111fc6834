"""Pauses before the next try: the rule, and the count of failures in a row."""

from __future__ import annotations

import pytest

from detent.runtime.backoff import Backoff, Failures, growing


def test_each_failure_in_a_row_doubles_the_pause_up_to_the_maximum() -> None:
    backoff = Backoff(0.25, 30.0)
    assert [backoff.pause_s(failures) for failures in range(1, 5)] == [0.25, 0.5, 1.0, 2.0]
    assert backoff.pause_s(8) == 30.0


def test_factor_says_how_much_longer_each_pause_is() -> None:
    assert [Backoff(1.0, 100.0, factor=3.0).pause_s(failures) for failures in (1, 2, 3)] == [1.0, 3.0, 9.0]


@pytest.mark.parametrize("failures", [100, 10**6, 10**30])
def test_many_failures_pause_for_the_maximum(failures: int) -> None:
    assert Backoff(0.001, 60.0).pause_s(failures) == 60.0


def test_first_pause_is_never_above_the_maximum() -> None:
    assert Backoff(5.0, 1.0).pause_s(1) == 1.0


@pytest.mark.parametrize(("jitter", "least"), [(1.0, 0.0), (True, 0.0), (0.5, 4.0)])
def test_jitter_is_the_share_of_a_pause_that_chance_decides(jitter: float, least: float) -> None:
    shortest = Backoff(2.0, 8.0, jitter=jitter, uniform=lambda low, high: low)
    longest = Backoff(2.0, 8.0, jitter=jitter, uniform=lambda low, high: high)
    assert (shortest.pause_s(9), longest.pause_s(9)) == (least, 8.0)


def test_whole_numbers_stay_whole() -> None:
    pauses = [growing(1_000, 300_000, failures) for failures in (1, 2, 9, 10, 1_000)]
    assert pauses == [1_000, 2_000, 256_000, 300_000, 300_000]
    assert {type(pause) for pause in pauses} == {int}


def test_success_makes_the_next_failure_the_first_one() -> None:
    failures = Failures(Backoff(1.0, 60.0))
    assert [failures.failed(), failures.failed(), failures.in_a_row] == [1.0, 2.0, 2]
    failures.worked()
    assert [failures.in_a_row, failures.failed()] == [0, 1.0]


def test_life_that_was_steady_counts_its_failure_as_the_first_one() -> None:
    now = 0.0
    failures = Failures(Backoff(1.0, 60.0), steady_s=30.0, clock=lambda: now)
    pauses = []
    for life_s in (1.0, 29.0, 30.0, 1.0):
        failures.began()
        now += life_s
        pauses.append(failures.failed())
    assert pauses == [1.0, 2.0, 1.0, 2.0]
