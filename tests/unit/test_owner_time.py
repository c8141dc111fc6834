"""The owner's time: steady whatever the wall clock does, and never far from it for long."""

from __future__ import annotations

import logging
import random
from itertools import chain, pairwise, repeat

import pytest

from clockworld import DAY, HOUR, MINUTE, SECOND
from detent.engine.ownertime import JUMP_MS, STANDING_MS, STEP_AFTER_MS, OwnerTime, RecordedTime, ToldTime

WALL_MS = 1_700_000_000_000
SLOWEST, FASTEST = 11 / 12, 13 / 12


class Clocks:
    def __init__(self, last: RecordedTime | None = None) -> None:
        self.wall, self.steady = WALL_MS, 99_000
        self.time = OwnerTime(lambda: self.wall, lambda: self.steady)
        if last is not None:
            self.time.start(last)

    def run(self, ms: int, *, step: int = SECOND) -> list[int]:
        """What time it was at each step."""
        seen = []
        for _ in range(ms // step):
            self.wall += step
            self.steady += step
            seen.append(self.time.now_ms())
        return seen


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DAY * 3_650, -DAY * 3_650])
def test_jump_for_a_second_moves_nothing(jump: int) -> None:
    clocks = Clocks()
    for _ in range(300):
        clocks.wall += jump
        clocks.run(SECOND)
        clocks.wall -= jump
        clocks.run(SECOND)
    assert clocks.time.now_ms() == WALL_MS + 600 * SECOND
    assert clocks.time.jumps == 600
    assert not clocks.time.wants_step_back


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_jump_that_lasts_is_followed_slowly(jump: int) -> None:
    clocks = Clocks()
    clocks.run(SECOND)
    clocks.wall += jump
    first = clocks.run(STANDING_MS)
    assert first[-1] == WALL_MS + SECOND + STANDING_MS, "not before it has lasted"
    seen = clocks.run(13 * HOUR, step=MINUTE)
    steps = [after - before for before, after in pairwise(seen)]
    assert min(steps) >= MINUTE * SLOWEST - 1
    assert max(steps) <= MINUTE * FASTEST + 1
    assert abs(clocks.time.difference_ms) < JUMP_MS
    assert clocks.time.jumps == 1


def test_far_jump_ahead_that_lasts_is_followed_at_once() -> None:
    clocks = Clocks()
    clocks.wall += DAY
    assert clocks.run(STEP_AFTER_MS)[-1] < WALL_MS + STEP_AFTER_MS * FASTEST
    clocks.run(SECOND)
    assert clocks.time.now_ms() == clocks.wall


def test_far_jump_back_that_lasts_asks_for_a_step() -> None:
    clocks = Clocks()
    clocks.wall -= DAY
    seen = clocks.run(STEP_AFTER_MS)
    assert seen == sorted(seen), "it does not go back by itself"
    assert not clocks.time.wants_step_back
    clocks.run(SECOND)
    assert clocks.time.wants_step_back
    clocks.time.step_back()
    assert clocks.time.now_ms() == clocks.wall
    assert not clocks.time.wants_step_back


def test_clock_that_keeps_jumping_is_not_followed() -> None:
    clocks = Clocks()
    for count in range(2_000):
        clocks.wall += DAY if count % 2 else 2 * DAY
        clocks.run(SECOND)
    assert clocks.time.now_ms() == WALL_MS + 2_000 * SECOND


def test_small_difference_goes_away() -> None:
    clocks = Clocks()
    clocks.wall += 900
    seen = clocks.run(MINUTE)
    assert seen[-1] == WALL_MS + MINUTE + 300
    clocks.run(3 * MINUTE)
    assert clocks.time.difference_ms == 0
    assert clocks.time.jumps == 0


def test_sleep_counts() -> None:
    clocks = Clocks()
    clocks.run(8 * HOUR, step=8 * HOUR)
    assert clocks.time.now_ms() == WALL_MS + 8 * HOUR
    assert clocks.time.jumps == 0


def test_pause_between_two_clocks_is_no_jump() -> None:
    steady = chain(
        [0, 0, 1_000, 61_000], repeat(61_000)
    )  # the first two at the start, then with a pause after the third
    wall = chain([WALL_MS], repeat(WALL_MS + 61_000))
    time = OwnerTime(lambda: next(wall), lambda: next(steady))
    assert time.now_ms() == WALL_MS + 61_000
    assert time.jumps == 0


@pytest.mark.parametrize("seed", range(20))
def test_time_goes_at_nearly_the_right_speed_whatever_the_wall_clock_does(seed: int) -> None:
    rng = random.Random(seed)
    clocks = Clocks()
    before = clocks.time.now_ms()
    for _ in range(300):
        if rng.random() < 0.1:
            clocks.wall += rng.choice([1, 100, 7 * SECOND, HOUR // 50]) * rng.choice([1, -1])
        step = rng.choice([1, 40, SECOND, 20 * SECOND])
        now = clocks.run(step, step=step)[-1]
        assert step * SLOWEST - 1 <= now - before <= step * FASTEST + 1
        before = now


def test_steady_clock_of_another_machine_is_gone_on_with() -> None:
    clocks = Clocks()
    clocks.run(MINUTE)
    clocks.steady = 5
    clocks.run(SECOND)
    assert clocks.run(MINUTE)[-1] >= WALL_MS + 2 * MINUTE


def test_jump_is_told_once_in_plain_words(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    with caplog.at_level(logging.WARNING, "detent.clock"):
        clocks.wall += HOUR
        clocks.run(STANDING_MS)
        assert [record.getMessage()[:41] for record in caplog.records] == ["the wall clock jumped ahead by 3600 s; le"]
        clocks.run(STANDING_MS)
    assert len(caplog.records) == 2, "and once more when it has lasted"


# -- over restarts --------------------------------------------------------------------------------------------------


def test_start_is_not_below_what_was_recorded() -> None:
    clocks = Clocks(RecordedTime(WALL_MS + HOUR, WALL_MS + HOUR, 0))
    assert clocks.time.now_ms() == WALL_MS + HOUR
    assert clocks.run(30 * SECOND)[-1] == WALL_MS + HOUR + 30 * SECOND
    assert clocks.time.jumps == 1


def test_owner_that_was_ahead_counts_the_time_between() -> None:
    clocks = Clocks(RecordedTime(WALL_MS + HOUR, WALL_MS - 10 * MINUTE, 0))
    assert clocks.time.now_ms() == WALL_MS + HOUR + 10 * MINUTE


def test_wall_clock_that_has_caught_up_is_taken() -> None:
    clocks = Clocks(RecordedTime(WALL_MS - HOUR, WALL_MS - 56 * 365 * DAY, 0))
    assert clocks.time.now_ms() == WALL_MS
    assert Clocks(RecordedTime(WALL_MS - HOUR, WALL_MS - HOUR, 0)).time.now_ms() == WALL_MS


def test_difference_lasts_over_restarts() -> None:
    """Processes that live for a second each would otherwise never put it right."""
    clocks = Clocks(RecordedTime(WALL_MS + DAY, WALL_MS + DAY, 0))
    for _ in range(20):
        clocks.run(SECOND)
        last = RecordedTime.decode(clocks.time.recorded(clocks.time.now_ms()).encode())
        clocks.wall += MINUTE
        clocks.time.start(last)
    assert clocks.time.wants_step_back


def test_time_that_is_told_is_followed_as_it_is() -> None:
    now = [WALL_MS]
    time = ToldTime(lambda: now[0])
    seen = []
    for told in (WALL_MS + 9 * DAY, WALL_MS, WALL_MS + DAY, WALL_MS + 10 * DAY):
        now[0] = told
        seen.append(time.now_ms() - WALL_MS)
    assert seen == [9 * DAY, 9 * DAY, 9 * DAY, 10 * DAY]
    assert time.jumps == time.difference_ms == 0
    now[0] = WALL_MS
    assert time.start(RecordedTime(WALL_MS + DAY, WALL_MS + DAY, 0)) is False
    assert time.now_ms() == WALL_MS
