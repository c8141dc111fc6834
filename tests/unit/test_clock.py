"""Clock values: their layout, their laws, and threads that share a clock."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Invalid, LimitExceeded
from detent.message import TICK, Clock, as_unix_ns, clock_of, clock_of_ns
from detent.message.clock import CLOCK_MAX

SECOND = 1_000_000_000


def test_the_unix_epoch_and_known_values() -> None:
    assert clock_of(0) == 0x1B21DD2138140000
    assert clock_of(10) == 0x1B21DD2197721000
    assert clock_of(12, 300) == 0x1B21DD21AA84E030


def test_two_ticks_after_the_epoch() -> None:
    clock = Clock(clock_of(0))
    clock.tick()
    assert clock.tick() == 0x1B21DD2138140140


def test_a_tick_is_one_microsecond_and_returns_the_new_value() -> None:
    clock = Clock()
    assert TICK == 160
    assert clock.tick() == 160
    assert clock.tick() == 320
    assert clock.value == 320


def test_times_are_cut_to_100_ns() -> None:
    clock = Clock()
    assert clock.update(12 * SECOND + 300) == clock_of(12, 399)
    assert clock_of(12, 299) < clock.value < clock_of(12, 400)


def test_update_never_goes_back() -> None:
    clock = Clock()
    clock.update(12 * SECOND + 300)
    clock.tick()
    assert as_unix_ns(clock.value) == 12 * SECOND + 1300
    before = clock.value
    assert clock.update(11 * SECOND + 100) == before
    assert clock.update(12 * SECOND + 5000) == clock_of(12, 5000)


def test_update_clears_the_counter_only_when_it_moves() -> None:
    clock = Clock(clock_of(12) | 0xD)
    assert clock.update(12 * SECOND) == clock_of(12) | 0xD
    assert clock.update(12 * SECOND + 100) == clock_of(12, 100)


def test_reserve_takes_many_ticks_at_once() -> None:
    clock = Clock(1000)
    first = clock.reserve(3)
    assert [first + i * TICK for i in range(3)] == [1160, 1320, 1480]
    assert clock.tick() == 1640


@pytest.mark.parametrize("count", [0, -1])
def test_reserving_nothing_is_invalid(count: int) -> None:
    with pytest.raises(Invalid):
        Clock().reserve(count)


def test_the_end_of_the_clock_changes_nothing() -> None:
    clock = Clock(CLOCK_MAX - 200)
    clock.tick()
    value = clock.value
    with pytest.raises(LimitExceeded):
        clock.tick()
    assert clock.value == value


@pytest.mark.parametrize("value", [-1, CLOCK_MAX + 1])
def test_values_outside_64_bits_are_invalid(value: int) -> None:
    with pytest.raises(Invalid):
        Clock(value)
    with pytest.raises(Invalid):
        as_unix_ns(value)


def test_times_before_the_calendar_or_after_the_timestamp_are_invalid() -> None:
    with pytest.raises(Invalid):
        clock_of(-20_000_000_000)
    with pytest.raises(Invalid):
        clock_of(200_000_000_000)


@given(st.integers(0, 10**19))
def test_a_time_survives_the_round_trip_to_100_ns(unix_ns: int) -> None:
    assert as_unix_ns(clock_of_ns(unix_ns)) == unix_ns // 100 * 100


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**13))))
def test_ticks_strictly_grow_whatever_the_wall_clock_does(steps: list[int | None]) -> None:
    clock, seen = Clock(), [0]
    for now in steps:
        if now is None:
            seen.append(clock.tick())
        else:
            clock.update(now)
    assert all(a < b for a, b in pairwise(seen))


def test_threads_never_get_the_same_value() -> None:
    clock, seen = Clock(), []

    def work() -> None:
        seen.extend([clock.tick() for _ in range(2000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 8000
    assert clock.value == 8000 * TICK
