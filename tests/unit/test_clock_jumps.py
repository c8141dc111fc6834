"""A wall clock that jumps, under a store of this process: leases and delays last as long as they are to last."""

from __future__ import annotations

import time

import pytest

from detent import Store

HOUR_NS = 3600 * 10**9
PATIENCE_S = 30.0


class Wall:
    """`time.time_ns`, with a part that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_ns = 0
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self.ahead_ns)


def claimed_again(store: Store) -> bool:
    """Whether a message comes back within the patience of the test."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if store.queue("q").claim(lease="10m"):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("first_ns", [HOUR_NS, -HOUR_NS], ids=["ahead", "back"])
def test_leases_end_after_a_jump_and_back(monkeypatch: pytest.MonkeyPatch, first_ns: int) -> None:
    wall = Wall(monkeypatch)
    with Store("memory:") as store:
        store.queue("q").create()
        store.queue("q").publish(b"one")
        assert store.queue("q").claim(lease="300ms")
        wall.ahead_ns = first_ns
        store.queue("q").publish(b"two", delay="10m")  # the owner looks at its clock
        wall.ahead_ns = 0
        assert claimed_again(store)


def test_leases_do_not_end_with_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    with Store("memory:") as store:
        store.queue("q").create(backoff="0s")
        store.queue("q").publish(b"one")
        (message,) = store.queue("q").claim(lease="10m")
        wall.ahead_ns = HOUR_NS
        assert not store.queue("q").claim()
        message.ack()
