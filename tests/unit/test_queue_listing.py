"""Lists of what a queue has, page by page: nothing twice, nothing missing, whatever a checkpoint does in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from detent.codec import queue as records
from detent.codec.published import FOREVER
from detent.errors import Invalid, NotFound
from detent.queue import listing
from detent.queue import operations as ops
from detent.queue.listing import ListAttempts, ListDone, ListedMessage, ListMessages
from queueworld import Queues, used


def listed(world: Queues, limit: int = listing.LISTED_MAX) -> Iterator[ListedMessage]:
    after, more = -1, True
    while more:
        page = world.commit(ListMessages("q", after, limit))[0]
        assert len(page.messages) <= limit
        yield from page.messages
        after, more = page.messages[-1].place if page.messages else -1, page.more


def done(world: Queues, between: Any = None) -> list[tuple[int, int, int]]:
    page = world.commit(ListDone("q"))[0]
    found = [page.rows]
    while page.more:
        if between is not None:
            between()
        page = world.commit(ListDone("q", page.after, page.below))[0]
        found.append(page.rows)
    return np.frombuffer(b"".join(found), records.DONE_MESSAGE).tolist()


def tried(world: Queues, limit: int = listing.LISTED_MAX) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    after, more = -1, True
    while more:
        page = world.commit(ListAttempts("q", after, limit))[0]
        for entry in page.messages:
            assert entry.message > after, "in order, each once"
            after = entry.message
            found[entry.message] = [reason for _, _, _, reason in entry.attempts]
        more = page.more
    return found


def test_each_state() -> None:
    world = Queues()
    world.create(lease_ms=5_000, group_header="order")
    (first, second) = world.publish(2, headers=[{"queue": "q", "order": "1"}], retention_s=60)
    (later,) = world.publish(delay_ms=9_000, retention_s=0)
    (free,) = world.urgent(7)
    claimed = world.claim(consumer="me")
    assert claimed.messages == [free]
    world.commit(used(ops.Fail, claimed, delay_ms=0))
    held = world.claim(consumer="me")
    found = {entry.message: entry for entry in listed(world)}
    assert {message: entry.state for message, entry in found.items()} == {
        first: "available",
        second: "blocked",
        later: "delayed",
        free: "in flight",
    }
    assert found[first].deadline_ms == world.now_ms + 60_000
    assert found[first].lease_ms == FOREVER
    assert found[first].record == found[second].record == first
    assert (found[later].visible_ms, found[later].deadline_ms) == (world.now_ms + 9_000, FOREVER)
    flying = found[free]
    assert (flying.consumer, flying.attempts, flying.priority) == ("me", 2, 7)
    assert (flying.claimed_ms, flying.lease_ms) == (world.now_ms, world.now_ms + 5_000)
    assert flying.delivery == held.first_delivery


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_pages_go_through_buckets_and_their_holes(limit: int) -> None:
    world = Queues()
    world.create()
    messages = [message for _ in range(14) for message in world.publish(250)]
    claimed = world.claim(2_400)
    kept = {0, 1_999, 2_200}  # the second bucket keeps one message, the first one too, the third one some
    world.commit(used(ops.Ack, claimed, *(index for index in range(2_400) if index not in kept)))
    expected = [messages[index] for index in (0, 1_999, 2_200, *range(2_400, 3_500))]
    if limit == 1:
        expected = expected[:5]
    found = [entry.message for entry, _ in zip(listed(world, limit), expected, strict=False)]
    assert found == expected
    if limit > 1:
        assert [entry.message for entry in listed(world, limit)] == expected
    world.reopen()
    assert [entry.message for entry in listed(world)][:3] == expected[:3]


def test_whole_buckets_that_are_gone_are_passed_over() -> None:
    world = Queues()
    world.create()
    for _ in range(20):
        world.publish(250)
    claimed = world.claim(4_500)
    kept = set(range(2_000, 3_000))  # of five buckets the third, and half of the last one, are left
    world.commit(used(ops.Ack, claimed, *(index for index in range(4_500) if index not in kept)))
    world.commit(ops.WriteCheckpoint())
    places = [entry.place for entry in listed(world, 400)]
    assert places == [*range(2_000, 3_000), *range(4_500, 5_000)]


def test_done_messages_are_listed_once_whether_written_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "DONE_BYTES", 1)  # one record on each page
    world = Queues()
    number = world.create()
    assert done(world) == []
    expected = []
    for _ in range(3):
        messages = world.publish(5)
        world.commit(used(ops.Ack, world.claim(5)))
        expected += [(message, world.now_ms, 1) for message in messages]
        world.commit(ops.WriteCheckpoint())
        world.later(10)
    lately = world.publish(4)
    world.commit(used(ops.Ack, world.claim(4)))
    expected += [(message, world.now_ms, 1) for message in lately]

    def go_on() -> None:
        """Between two pages more is done, and all of it written."""
        world.later(1)
        world.publish(2)
        world.commit(used(ops.Ack, world.claim(2)))
        world.commit(ops.WriteCheckpoint())

    page = world.commit(ListDone("q"))[0]
    assert (page.queue, page.more) == (number, True)
    assert sorted(done(world, go_on)) == sorted(expected)
    world.reopen()
    assert set(done(world)) > set(expected)


def test_attempts_of_failed_messages_and_of_others() -> None:
    world = Queues()
    world.create(max_attempts=3)
    messages = world.publish(6)
    for reason in ("first", "second", "third"):
        world.commit(used(ops.Fail, world.claim(6), reason=reason, delay_ms=0))
        if reason == "first":
            world.commit(ops.WriteCheckpoint())
        if reason == "second":
            world.commit(used(ops.Ack, world.claim(1)))  # forgets what came to nothing before
    expected = {message: ["first", "second", "third"] for message in messages[1:]}
    assert tried(world) == tried(world, 1) == tried(world, 2) == expected
    world.commit(ops.Redrive("q", [messages[3]]))
    world.commit(used(ops.Fail, world.claim(), reason="again"))
    expected[messages[3]] = ["again"]
    assert tried(world) == tried(world, 2) == expected
    world.commit(ops.WriteCheckpoint())
    world.reopen()
    assert tried(world, 2) == expected


def test_a_page_of_attempts_ends_when_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ATTEMPTS_BYTES", 100)
    world = Queues()
    world.create()
    messages = world.publish(5)
    world.commit(used(ops.Fail, world.claim(5), reason="x" * 60, delay_ms=0))
    page = world.commit(ListAttempts("q"))[0]
    assert ([entry.message for entry in page.messages], page.more) == (messages[:2], True)
    assert list(tried(world)) == messages


def test_lists_change_nothing() -> None:
    world = Queues()
    world.create()
    world.publish(3)
    world.claim()
    before, commits = world.memory(), world.writer.commits
    for operation in (ListMessages("q"), ListDone("q"), ListAttempts("q")):
        world.commit(operation)
    assert (world.memory(), world.writer.commits) == (before, commits)


@pytest.mark.parametrize("kind", [ListMessages, ListDone, ListAttempts])
def test_a_queue_that_is_not_there(kind: Any) -> None:
    with pytest.raises(NotFound, match="no queue 'q'"):
        Queues().commit(kind("q"))


@pytest.mark.parametrize("kind", [ListMessages, ListAttempts])
@pytest.mark.parametrize(("after", "limit"), [(-2, 10), (-1, 0), (-1, 1_001), (1 << 64, -1)])
def test_what_is_no_page(kind: Any, after: int, limit: int) -> None:
    world = Queues()
    world.create()
    with pytest.raises(Invalid):
        world.commit(kind("q", after, limit))
