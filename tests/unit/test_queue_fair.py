"""Groups that are tenants: each rule of sharing a queue by itself."""

from __future__ import annotations

from typing import Any

import pytest

from detent.errors import Invalid
from detent.queue import operations as ops
from queueworld import Queues, used


class Shared(Queues):
    """A queue q that the tenants of the header g share."""

    def __init__(self) -> None:
        super().__init__()
        self.create(group_header="g", group_fair=True, backoff_ms=0)

    def tenants(self, *names: str, **options: Any) -> list[int]:
        """One message of each of these tenants; "" is a message of none."""
        headers = [{"queue": "q"} | ({"g": name} if name else {}) for name in names]
        return self.publish(len(names), headers=headers, **options)


@pytest.fixture
def world() -> Shared:
    return Shared()


def test_quiet_tenant_is_not_behind_the_backlog_of_a_noisy_one(world: Shared) -> None:
    noisy = world.tenants(*["noisy"] * 8)
    quiet = world.tenants("quiet")
    assert world.claim(3).messages == [noisy[0], quiet[0], noisy[1]]
    world.survives()


def test_tenant_with_fewer_messages_in_flight_comes_first(world: Shared) -> None:
    noisy = world.tenants(*["noisy"] * 4)
    assert world.claim(3).messages == noisy[:3]
    quiet = world.tenants(*["quiet"] * 4)
    assert world.claim(4).messages == [*quiet[:3], noisy[3]]


def test_acknowledged_messages_count_no_more(world: Shared) -> None:
    a, b = world.tenants(*"aaaa"), world.tenants(*"bbbb")
    assert world.claim(2).messages == [a[0], b[0]]
    both = world.claim(2)
    assert both.messages == [a[1], b[1]]
    world.commit(used(ops.Ack, both, 0))
    assert world.claim(1).messages == [a[2]]
    world.survives()


def test_messages_of_one_tenant_hold_nothing_back(world: Shared) -> None:
    first, second = world.tenants("a", "a")
    claimed = world.claim(1)
    assert claimed.messages == [first]
    assert world.claim(1).messages == [second]
    world.commit(used(ops.Fail, claimed))
    assert world.claim(1).messages == [first]


def test_messages_of_no_tenant_are_one_tenant_together(world: Shared) -> None:
    none = world.tenants("", "", "")
    quiet = world.tenants("quiet")
    assert world.claim(2).messages == [none[0], quiet[0]]


def test_every_sixteenth_message_is_the_oldest_of_all(world: Shared) -> None:
    noisy = world.tenants(*["noisy"] * 60)
    world.claim(16)  # the turns begin anew
    quiet = world.tenants(*["quiet"] * 60)
    assert world.claim(16).messages == [*quiet[:15], noisy[16]]


def test_priority_comes_before_fairness(world: Shared) -> None:
    low = world.publish(1, headers=[{"queue": "q", "g": "quiet", "priority": "200"}])
    high = world.tenants(*["noisy"] * 3)
    assert world.claim(4).messages == [*high, *low]


def test_undone_claim_counts_for_no_tenant(world: Shared) -> None:
    a, b = world.tenants("a", "a"), world.tenants("b", "b")
    claimed = world.claim(1)
    world.commit(ops.Unclaim(claimed.queue, claimed.messages, [claimed.first_delivery]))
    world.survives()
    assert world.claim(4).messages == [a[0], b[0], a[1], b[1]]


def test_what_is_in_flight_counts_after_a_restart(world: Shared) -> None:
    noisy = world.tenants(*["noisy"] * 4)
    world.claim(2)
    quiet = world.tenants(*["quiet"] * 2)
    world.reopen()
    assert world.claim(4).messages == [*quiet, noisy[2], noisy[3]]


def test_delayed_messages_take_part_when_their_time_comes(world: Shared) -> None:
    late = world.tenants("a", delay_ms=500)
    now = world.tenants("a")
    assert world.claim(9).messages == now
    world.later(500)
    assert world.claim(9).messages == late


def test_fairness_is_changed_while_the_queue_is_empty(world: Shared) -> None:
    world.tenants("a")
    with pytest.raises(Invalid, match="holds messages"):
        world.commit(ops.ConfigureQueue("q", ops.Settings(group_fair=False)))
    world.commit(ops.Purge("q"))
    world.commit(ops.ConfigureQueue("q", ops.Settings(group_fair=False)))
    first, second = world.tenants("a", "a")
    assert world.claim(1).messages == [first]
    assert world.claim(1).messages == []
    assert world.about().blocked == 1
    assert second > first


def test_what_cannot_be_claimed_any_more_is_forgotten(world: Shared) -> None:
    for _ in range(40):
        world.tenants(*"abcdefgh")
        world.commit(used(ops.Ack, world.claim(8)))
    world.tenants("a")
    (offers,) = world.queues.queues["q"].fair.values()  # type: ignore[attr-defined]
    assert max(len(offers._ages), len(offers._turns), len(offers._groups)) < 200
