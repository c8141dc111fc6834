"""Looking into a queue without claiming: each rule by itself, on one engine with a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from detent.codec import queue as records
from detent.errors import Conflict, Invalid, NotFound
from detent.queue import calls, peeking
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.queue.info import QueuedMessage, QueuePage
from detent.queue.reader import QueueReader
from queueworld import Queues, used


@pytest.fixture
def world() -> Queues:
    made = Queues()
    made.create()
    return made


def peek(world: Queues, queue: str = "q", **options: Any) -> QueuePage:
    given: dict[str, Any] = dict.fromkeys(("states", "filter", "priority", "older_than", "newer_than", "cursor"))
    operation = calls.peek(queue, **{**given, "limit": 100, "body_bytes": 256, **options})
    return calls.queue_page(queue, QueueReader(world.writer), operation, world.commit(operation)[0])


def all_pages(world: Queues, **options: Any) -> list[QueuedMessage]:
    found: list[QueuedMessage] = []
    cursor = None
    for _ in range(1_000):
        page = peek(world, cursor=cursor, **options)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages have no end")


def numbers(page: QueuePage | list[QueuedMessage]) -> list[int]:
    return [one.message for one in (page.messages if isinstance(page, QueuePage) else page)]


def everything(world: Queues) -> list[tuple[bytes, bytes]]:
    with world.writer.view() as view:
        return list(view.scan(b"", None))


def one_of_each(world: Queues) -> dict[str, int]:
    """A message in each state that a queue may have it in."""
    world.create("g", group_header="group", max_attempts=1)
    done, failed, assigned, flying, _ = world.publish(5, "g", headers=[{"queue": "g"}])[:5]
    world.commit(used(ops.Ack, world.claim(queue="g")))
    world.commit(used(ops.Fail, world.claim(queue="g"), reason="boom"))
    generation = world.commit(reader_ops.OpenReader("g", "spark"))[0].generation
    world.commit(reader_ops.Assign("g", "spark", generation, 0, 1))
    world.claim(queue="g", consumer="me")
    first, blocked = world.publish(2, "g", headers=[{"queue": "g", "group": "a"}])
    delayed = world.publish(1, "g", delay_ms=60_000)[0]
    return {
        "done": done,
        "failed": failed,
        "assigned": assigned,
        "in flight": flying,
        "available": first,
        "blocked": blocked,
        "delayed": delayed,
    }


def test_every_state_is_shown_and_can_be_asked_for(world: Queues) -> None:
    expected = one_of_each(world)
    seen = {one.state: one.message for one in all_pages(world, queue="g", limit=3)}
    assert {state: seen[state] for state in expected} == expected
    for state, message in expected.items():
        assert message in numbers(all_pages(world, queue="g", states=state))
        assert {one.state for one in all_pages(world, queue="g", states=[state])} == {state}
    held = next(one for one in all_pages(world, queue="g") if one.state == "in flight")
    failed = next(one for one in all_pages(world, queue="g") if one.state == "failed")
    assert (held.consumer, held.attempts, failed.reason, failed.attempts) == ("me", 1, "boom", 1)


def test_look_changes_nothing_and_costs_no_attempt(world: Queues) -> None:
    one_of_each(world)
    world.commit(ops.WriteCheckpoint())
    before, memory, commits = everything(world), world.memory(), world.writer.commits
    for options in ({}, {"filter": "true"}, {"older_than": "0s"}, {"states": "done"}, {"body_bytes": 0}):
        assert all_pages(world, queue="g", limit=2, **options)
    assert everything(world) == before
    assert world.writer.commits == commits
    assert world.memory() == memory


def test_pages_follow_each_other_while_the_queue_changes(world: Queues) -> None:
    stays = world.publish(10)
    first = peek(world, limit=4)
    assert numbers(first) == stays[:4]
    world.commit(used(ops.Ack, world.claim(6)))
    later = world.publish(3)
    world.commit(ops.WriteCheckpoint())
    world.survives()
    rest = peek(world, cursor=first.cursor, states="available")
    assert (numbers(rest), rest.cursor) == ([*stays[6:], *later], None)


def test_done_messages_are_on_one_page_each_whatever_a_checkpoint_does(world: Queues) -> None:
    messages = world.publish(7)
    for _ in range(7):
        world.commit(used(ops.Ack, world.claim()))
    first = peek(world, limit=2)
    world.commit(ops.WriteCheckpoint())
    second = peek(world, limit=2, cursor=first.cursor)
    more = world.publish(2)
    world.commit(used(ops.Ack, world.claim(2)))
    third = peek(world, cursor=second.cursor)
    assert numbers(first) + numbers(second) + numbers(third) == [*messages, *more]


def test_failed_messages_come_by_number(world: Queues) -> None:
    messages = world.publish(5)
    world.commit(used(ops.Fail, world.claim(5), 4, 0, 2, final=True))
    world.commit(ops.WriteCheckpoint())
    assert numbers(all_pages(world, states="failed", limit=1)) == [messages[0], messages[2], messages[4]]


def test_filter_priority_and_age_choose(world: Queues) -> None:
    old = world.publish(headers=[{"queue": "q", "tier": "gold"}])[0]
    world.later(60_000)
    new = world.publish(headers=[{"queue": "q", "tier": "gold", "priority": "3"}])[0]
    tin = world.publish(headers=[{"queue": "q", "tier": "tin", "priority": "3"}])[0]
    gold = 'headers.tier == "gold"'
    assert numbers(peek(world, filter=gold)) == [old, new]
    assert numbers(peek(world, priority=3)) == [new, tin]
    assert numbers(peek(world, filter=gold, priority=3)) == [new]
    assert numbers(peek(world, older_than="30s")) == [old]
    assert numbers(peek(world, newer_than="30s")) == [new, tin]
    assert numbers(peek(world, older_than="60s", newer_than="60s")) == [old]
    assert numbers(all_pages(world, filter=gold, limit=1)) == [old, new]


def test_headers_and_the_first_bytes_are_shown(world: Queues) -> None:
    message = world.commit(ops.Publish([b"x" * 500], [{"queue": "q", "a": "b"}]))[0].first
    uri = world.commit(ops.Publish([b"s3://bucket/key"], [{"queue": "q"}], uri=True))[0].first
    (found, other) = peek(world, body_bytes=10).messages
    assert (found.message, found.body, found.size) == (message, b"x" * 10, 500)
    assert found.headers == {"queue": "q", "a": "b"}
    assert (other.message, other.body, other.uri) == (uri, b"", "s3://bucket/key")
    (found, _) = peek(world, body_bytes=0).messages
    assert (found.body, found.size, found.headers["a"]) == (b"", None, "b")


def test_dead_letter_shows_who_gave_it_up(world: Queues) -> None:
    world.create("dead")
    world.commit(ops.ConfigureQueue("q", ops.Settings(dead_letter="dead")))
    message = world.publish()[0]
    world.commit(used(ops.Fail, world.claim(), reason="boom", final=True))
    (found,) = peek(world, "dead").messages
    assert found.dead_letter is not None
    assert (found.message, found.state, found.attempts, found.total_attempts) == (message, "available", 0, 1)
    assert (found.dead_letter.queue, found.dead_letter.reason) == ("q", "boom")


def test_page_looks_at_a_bounded_number_of_messages(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "LOOKED_MAX", 50)
    messages = world.publish(200)
    last = world.publish(headers=[{"queue": "q", "priority": "1"}])[0]
    page = peek(world, priority=1)
    assert (page.messages, page.cursor is None) == ([], False)
    assert numbers(all_pages(world, priority=1)) == [last]
    world.commit(used(ops.Ack, world.claim(100)))
    assert sorted(numbers(all_pages(world))) == [*messages, last]


def test_page_ends_once_it_has_read_much(world: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "READ_BYTES_MAX", 2_000)
    messages = [world.commit(ops.Publish([bytes(1_500)], [{"queue": "q"}]))[0].first for _ in range(5)]
    assert numbers(peek(world)) == messages[:2]
    assert numbers(all_pages(world)) == messages


def test_cursor_of_an_earlier_queue_is_refused(world: Queues) -> None:
    world.publish(3)
    cursor = peek(world, limit=1).cursor
    world.commit(ops.DeleteQueue("q"))
    world.create()
    world.publish(3)
    with pytest.raises(Conflict):
        peek(world, cursor=cursor)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0}, {"limit": 1_001}, {"limit": "1"}, {"states": "lost"}, {"states": [3]}, {"filter": "("},
        {"body_bytes": 4_097}, {"body_bytes": -1}, {"priority": -1}, {"older_than": "soon"}, {"cursor": "x"},
        {"cursor": "1.9.0.0."}, {"cursor": "1.0.0"}, {"cursor": 7},
    ],
)  # fmt: skip
def test_wrong_question_is_refused(world: Queues, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        peek(world, **options)


def test_missing_queue_is_not_found(world: Queues) -> None:
    with pytest.raises(NotFound):
        peek(world, "none")
    assert records.DONE_PER_RECORD > peeking.PEEKED_MAX
