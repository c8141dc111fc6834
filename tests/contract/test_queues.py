"""What every queue promises, whatever is below it: on memory, file, a client of the owner, a server, s3."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import detent
from contract.backends import OWNERS
from detent import AsyncStore, AsyncWorker, Delivery, Outgoing, Queue, Receipt, StaleReceipt, Store, Worker
from detent.codec import published as published_records
from detent.codec import queue as queue_records
from detent.codec.keys import Prefix
from detent.queue.operations import Fail, LeaseExtended, PublishedMessages
from processes import PATIENCE_S, eventually

WAIT = f"{PATIENCE_S:.0f}s"
"""How long a claim waits for what must come."""


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue whose messages come back at once when they fail."""
    made = store.queue("q")
    made.create(backoff="0s")
    return made


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


def claim_one(queue: Queue, **options: Any) -> Delivery:
    (message,) = queue.claim(wait=WAIT, **options)
    return message


def refused(call: Callable[[], Any], kind: type[Exception] = StaleReceipt) -> None:
    with pytest.raises(kind):
        call()


def contents(queue: Queue) -> tuple[int, int, int, int]:
    """Available, delayed, in flight, failed."""
    info = queue.info()
    return info.available, info.delayed, info.in_flight, info.failed


def records(store: Store, prefix: Prefix) -> list[tuple[bytes, bytes]]:
    with OWNERS.get(store.url, store)._kv.view() as view:
        return list(view.scan(*prefix.range()))


def everything(store: Store) -> list[tuple[bytes, bytes]]:
    with OWNERS.get(store.url, store)._kv.view() as view:
        return list(view.scan(b"", None))


def checkpoint(store: Store) -> None:
    """Any change of a queue's settings ends its group with a checkpoint; what nobody holds goes with that."""
    store.queue("checkpoint").create(exist_ok=True)
    store.queue("checkpoint").configure(description=str(time.time_ns()))


def expired(queue: Queue) -> tuple[Delivery, Delivery]:
    """A delivery whose lease is over, and the one that came after it."""
    queue.publish(b"slow")
    stale = claim_one(queue, lease="1ms")
    return stale, claim_one(queue)


@contextlib.contextmanager
def in_thread(target: Callable[[], Any]) -> Iterator[list[Any]]:
    """Something that happens meanwhile; what it returned is there after the block."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(target())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        thread.join(2 * PATIENCE_S)
    assert not thread.is_alive()


def waiting(store: Store, name: str = "q") -> int:
    """How many consumers stand in the owner's list of those that wait for a queue."""
    owner: Any = OWNERS.get(store.url, store)._connection.current
    return len(owner.queues.watch._waiters.get(name, ()))


# -- queues and their settings -----------------------------------------------------------------------------------


class TestSettings:
    def test_made_listed_described_deleted(self, store: Store) -> None:
        """A queue is new once; what is deleted is gone from the list, and can be made anew under another number."""
        assert store.queues() == []
        assert store.queue("b").create() is True
        assert store.queue("a/1").create(description="first") is True
        assert store.queue("a/2").create() is True
        refused(store.queue("b").create, detent.Exists)
        assert store.queue("b").create(exist_ok=True) is False
        assert [info.name for info in store.queues()] == ["a/1", "a/2", "b"]
        assert [(info.name, info.description) for info in store.queues("a/")] == [("a/1", "first"), ("a/2", "")]
        old = store.queue("b").info()
        store.queue("b").publish_many([b"x"] * 5)
        store.queue("b").delete()
        refused(store.queue("b").info, detent.NotFound)
        store.queue("b").create()
        info = store.queue("b").info()
        assert info.number > old.number
        assert (info.available, info.total_routed) == (0, 0)

    def test_defaults(self, queue: Queue) -> None:
        """What a queue has when nobody says anything."""
        info = queue.info()
        assert (info.filter, info.max_attempts, info.failed_policy) == ('headers.queue == "q"', 5, "keep")
        assert (info.lease, info.max_lease) == (timedelta(seconds=30), timedelta(hours=12))
        assert info.max_backoff == timedelta(minutes=5)
        assert (info.done_retention, info.priority_header) == (timedelta(hours=1), "priority")
        assert (info.paused, info.catching_up, info.oldest, info.available_by_priority) == (False, False, None, {})
        assert abs(info.created - datetime.now(UTC)) < timedelta(minutes=5)

    def test_all_settings_are_kept_and_changed_one_by_one(self, store: Store) -> None:
        """What `configure` does not name stays as it was."""
        queue = store.queue("q")
        queue.create(
            filter='headers.tier == "gold"', max_attempts=7, lease="5s", max_lease="1m", backoff="2s", max_backoff="3s",
            done_retention=None, failed="discard", priority_header="urgency", paused=True, description="ü",
            labels={"team": "mail", "ü": ""},
        )  # fmt: skip
        before = queue.info()
        assert (before.filter, before.max_attempts, before.failed_policy) == ('headers.tier == "gold"', 7, "discard")
        assert (before.lease, before.max_lease) == (timedelta(seconds=5), timedelta(minutes=1))
        assert (before.backoff, before.max_backoff) == (timedelta(seconds=2), timedelta(seconds=3))
        assert (before.done_retention, before.priority_header) == (None, "urgency")
        assert (before.paused, before.description, before.labels) == (True, "ü", {"team": "mail", "ü": ""})
        queue.configure(max_attempts=0, done_retention="0s")
        after = queue.info()
        assert (after.max_attempts, after.done_retention) == (0, timedelta())
        same = ("filter", "lease", "max_lease", "backoff", "max_backoff", "failed_policy", "paused", "description")
        assert [getattr(after, name) for name in (*same, "labels")] == [getattr(before, n) for n in (*same, "labels")]

    def test_labels_are_replaced_all_together(self, queue: Queue) -> None:
        """Nobody reads them but their owner; a new set takes the place of the old one."""
        assert queue.info().labels == {}
        queue.configure(labels={"a": "1", "b": "2"})
        queue.configure(labels={"b": "3"})
        assert queue.info().labels == {"b": "3"}
        queue.configure(labels={})
        assert queue.info().labels == {}

    @pytest.mark.parametrize(
        "settings",
        [
            {"filter": "headers.tier =="}, {"max_attempts": -1}, {"max_attempts": 70_000}, {"lease": "0s"},
            {"lease": "13h"}, {"max_lease": "8d"}, {"backoff": "soon"}, {"backoff": "10s", "max_backoff": "5s"},
            {"failed": "explode"}, {"nonsense": 1}, {"description": "x" * 5000}, {"backoff": "366d"},
            {"group_header": "x" * 256}, {"dead_letter": "no name"}, {"group_header": 7}, {"dead_letter": b"q"},
            {"labels": {"": "x"}}, {"labels": {"x" * 256: ""}}, {"labels": {"x": "y" * 4097}}, {"labels": "x=y"},
            {"labels": {str(n): "" for n in range(129)}}, {"labels": {str(n): "x" * 4096 for n in range(16)}},
        ],
    )  # fmt: skip
    def test_settings_that_cannot_be(self, store: Store, queue: Queue, settings: dict[str, Any]) -> None:
        """They are refused, for a new queue and for one that is there, and nothing is changed."""
        before = queue.info()
        with pytest.raises((detent.Invalid, detent.LimitExceeded)):
            queue.configure(**settings)
        with pytest.raises((detent.Invalid, detent.LimitExceeded)):
            store.queue("other").create(**settings)
        assert store.queues() == [before]

    def test_a_queue_that_does_not_exist(self, store: Store) -> None:
        """Everything but publishing needs the queue to be there."""
        queue = store.queue("nothing")
        calls: list[Callable[[], Any]] = [
            queue.info, queue.claim, queue.pause, queue.resume, queue.delete, queue.redrive, queue.purge,
            lambda: list(queue.failed()), lambda: queue.claim(wait=WAIT),
        ]  # fmt: skip
        for call in calls:
            refused(call, detent.NotFound)
        for name in ("", "/", "a b", "ä", "a" * 201, "-a", "a//b", None, 7):
            refused(lambda name=name: store.queue(name), detent.Invalid)

    def test_reopening_finds_everything(self, url: str) -> None:
        """Settings, what is available, delayed, in flight and failed, receipts, attempts and counters."""
        if url == "memory:":
            pytest.skip("a memory store ends with its last user")
        with detent.open(url) as store:
            queue = store.queue("q")
            queue.create(max_attempts=1, description="kept")
            queue.publish_many([b"done", b"failed", b"held", b"waits"])
            queue.publish(b"later", delay="1h")
            done, failed, held = queue.claim(3, consumer="me")
            done.ack()
            failed.fail("broken")
            before = queue.info()
        with detent.open(url) as store:
            queue = store.queue("q")
            assert queue.info() == before
            assert contents(queue) == (1, 1, 1, 1)
            assert [(one.reason, one.body) for one in queue.failed()] == [("broken", b"failed")]
            queue.ack([held.receipt])
            assert bodies(queue.claim(10)) == [b"waits"]
            refused(lambda: queue.ack([done.receipt]))
            assert queue.info().total_acked == 2

    def test_closing_leaves_nothing_to_replay(self, url: str) -> None:
        """An owner that is closed writes a checkpoint, and lets go of what nobody holds."""
        if url == "memory:" or url in OWNERS:
            pytest.skip("the owner is not closed, or nothing of it is left")
        with detent.open(url) as store:
            queue = store.queue("q")
            queue.create()
            queue.publish_many([b"done", b"held"])
            queue.claim(2)[0].ack()
            assert records(store, queue_records.STATE_LOG)
        with detent.open(url) as store:
            assert records(store, queue_records.STATE_LOG) == []
            assert len(records(store, queue_records.DONE)) == 2, "an empty record, and one of the message"


# -- publishing -------------------------------------------------------------------------------------------------


class TestPublishing:
    def test_one_after_another(self, queue: Queue) -> None:
        """Messages are numbered as they come, and come out with all that was said of them."""
        first = queue.publish(b"one", headers={"a": "ü", "b": ""})
        second = queue.publish(b"")
        assert (second.message, second.duplicate_of) == (first.message + 1, None)
        one, two = queue.claim(10)
        assert [one.id, two.id] == [first.message, second.message]
        assert (one.body, one.uri, one.attempts, one.priority) == (b"one", None, 1, 128)
        assert one.headers == {"a": "ü", "b": "", "queue": "q"}
        assert (two.body, two.headers) == (b"", {"queue": "q"})
        assert abs(one.received - datetime.now(UTC)) < timedelta(minutes=5)
        assert one.created == one.received
        assert one.lease_until > one.received

    def test_many_at_once(self, queue: Queue) -> None:
        """They have consecutive numbers; several records hold them, and each comes out as it went in."""
        bodies = [b"%d" % number * (number % 7) for number in range(700)]
        found = queue.publish_many(bodies, headers={"of": "many"})
        assert [one.message for one in found] == list(range(found[0].message, found[0].message + 700))
        messages = queue.claim(1000)
        assert [(m.id, m.body) for m in messages] == [(f.message, b) for f, b in zip(found, bodies, strict=True)]
        assert {m.headers["of"] for m in messages} == {"many"}
        queue.ack(messages)
        assert queue.info().total_acked == 700

    def test_each_with_its_own_words(self, queue: Queue) -> None:
        """A list of messages that differ in all that can be said of one."""
        created = datetime(2001, 2, 3, 4, 5, 6, 789000, UTC)
        found = queue.publish_many(
            [Outgoing(b"bare", {"n": "0"}), Outgoing(b"full", {"n": "1"}, created=created, retention="2d"),
             Outgoing(uri="s3://bucket/key"), Outgoing(b"late", delay="1h"), b"bare too"],
        )  # fmt: skip
        refused(lambda: queue.publish_many([b"bare", Outgoing(b"full")], headers={"n": "0"}), detent.Invalid)
        assert list(queue.publish_many([])) == []
        assert len({one.message for one in found}) == 5
        bare, full, uri, last = queue.claim(10)
        assert (bare.body, bare.headers["n"]) == (b"bare", "0")
        assert (full.body, full.headers["n"], full.created) == (b"full", "1", created)
        assert full.retention_s == 2 * 86_400
        assert (uri.body, uri.uri, uri.headers) == (b"", "s3://bucket/key", {"queue": "q"})
        assert last.body == b"bare too"
        assert contents(queue) == (0, 1, 4, 0)

    def test_a_body_may_be_elsewhere(self, store: Store, queue: Queue) -> None:
        """A URI travels as it is, and only where it is one."""
        number = queue.publish(b"", uri="https://host/ä?x=1").message
        assert store.message(number).uri == "https://host/ä?x=1"
        assert claim_one(queue).uri == "https://host/ä?x=1"
        for wrong in ("", "no scheme", "a b:c", "x:\n", ":", "s3://" + "x" * 9000):
            with pytest.raises((detent.Invalid, detent.LimitExceeded)):
                queue.publish(b"", uri=wrong)
        refused(lambda: queue.publish(b"both", uri="s3://bucket/key"), detent.Invalid)
        assert contents(queue) == (0, 0, 1, 0)

    def test_visible_later(self, queue: Queue) -> None:
        """A delayed message is counted apart, is nobody's until its time, and then stands at its old place."""
        queue.publish(b"delayed", delay="200ms")
        soon = datetime.now(UTC) + timedelta(milliseconds=200)
        queue.publish(b"from then on", visible_at=soon)
        queue.publish(b"far away", visible_at=soon + timedelta(days=1))
        assert queue.info().delayed >= 1
        found: list[bytes] = []
        while len(found) < 2:
            for message in queue.claim(10, wait=WAIT):
                assert datetime.now(UTC) >= message.visible > message.received
                found.append(message.body)
        assert sorted(found) == [b"delayed", b"from then on"]
        assert contents(queue) == (0, 1, 2, 0)
        refused(lambda: queue.publish(b"x", delay="1s", visible_at=soon), detent.Invalid)
        refused(lambda: queue.publish(b"x", visible_at=datetime(2030, 1, 1)), detent.Invalid)

    def test_retention_and_dedup_keys_end(self, store: Store, queue: Queue) -> None:
        """After its retention a message is gone, whether it waited or failed or comes back from flight; and its dedup
        key is free again, where the window is no longer than that."""
        store.set_dedup_window("0s")
        first = queue.publish(b"waits", retention="1s", dedup_key="k")
        queue.publish(b"held", retention="1s", headers={"priority": "0"})
        queue.publish(b"failed", retention="1s", headers={"priority": "0"})
        queue.publish(b"stays", retention="0s", delay="1h")
        held, failed = queue.claim(2)
        failed.fail(final=True)
        assert queue.publish(b"again", dedup_key="k") == (first.message, first.message)
        eventually(lambda: queue.info().total_expired == 2, what="the end of the retention")
        assert contents(queue) == (0, 1, 1, 0)
        held.fail(delay="0s")
        eventually(lambda: queue.info().total_expired == 3, what="the end of what was in flight")
        assert contents(queue) == (0, 1, 0, 0)
        refused(lambda: store.message(first.message), detent.NotFound)
        again = queue.publish(b"again", dedup_key="k")
        assert again.duplicate_of is None
        assert again.message > first.message
        checkpoint(store)
        assert len(records(store, published_records.PAYLOAD)) == 2

    def test_to_a_queue_means_to_that_queue(self, store: Store, queue: Queue) -> None:
        """One that does not exist, or does not take the message, is an error and not a message that nobody gets."""
        refused(lambda: store.queue("nowhere").publish(b"x"), detent.NotFound)
        gold = store.queue("gold")
        gold.create(filter='headers.tier == "gold"')
        refused(lambda: gold.publish(b"x"), detent.Invalid)
        refused(lambda: gold.publish_many([b"x", Outgoing(b"y", {"tier": "gold"})]), detent.Invalid)
        with pytest.raises(detent.NotFound), store.transaction() as transaction:
            transaction.publish(b"here", queue="q")
            transaction.publish(b"nowhere", queue="nowhere")
        assert (store.unmatched(), contents(queue), contents(gold)) == (0, (0, 0, 0, 0), (0, 0, 0, 0))
        gold.publish(b"x", headers={"tier": "gold"})
        gold.configure(filter=None)
        gold.publish(b"by name")
        assert bodies(gold.claim(5)) == [b"x", b"by name"]

    def test_the_error_of_a_block_is_the_one_to_see(self, queue: Queue) -> None:
        """Also when the lease was over by then, and when the error cannot even say what it is."""
        queue.configure(backoff="0s")
        queue.publish(b"x")
        (message,) = queue.claim(lease="1ms")
        time.sleep(0.01)
        with pytest.raises(KeyError, match="mine"), message:
            raise KeyError("mine")

        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        (again,) = queue.claim(wait="5s")
        with pytest.raises(Silent), again:
            raise Silent
        (last,) = queue.claim(wait="5s")
        last.fail("done with it", final=True)
        assert [attempt.reason for attempt in next(queue.failed()).history][1] == "Silent"

    def test_dedup_keys(self, store: Store, queue: Queue) -> None:
        """A key is published to a queue once: within one call, in a later one, and after it is done. Another queue has
        keys of its own, and so has the store."""
        first = queue.publish(b"a", dedup_key="a")
        assert queue.publish(b"other", dedup_key="a") == (first.message, first.message)
        keys = ["b", "a", None, "b"]
        many = queue.publish_many([Outgoing((key or "none").encode(), dedup_key=key) for key in keys])
        b, none = many[0].message, many[2].message
        assert many == [(b, None), (first.message, first.message), (none, None), (b, b)]
        assert none == b + 1, "a duplicate takes no number"
        store.queue("r").create()
        elsewhere = store.queue("r").publish(b"elsewhere", dedup_key="a")
        assert (elsewhere.duplicate_of, store.queue("r").info().total_routed) == (None, 1)
        anywhere = store.publish(b"nowhere", dedup_key="a")
        assert anywhere.duplicate_of is None
        assert store.publish(b"nowhere", dedup_key="a").duplicate_of == anywhere.message
        messages = queue.claim(10)
        assert bodies(messages) == [b"a", b"b", b"none"]
        queue.ack(messages)
        assert queue.publish(b"after the ack", dedup_key="a").duplicate_of == first.message
        checkpoint(store)
        assert queue.publish(b"and later", dedup_key="a").duplicate_of == first.message
        assert (contents(queue), store.queue("r").info().total_routed) == ((0, 0, 0, 0), 1)
        assert queue.publish(b"long", dedup_key="ü" * 127).duplicate_of is None
        refused(lambda: queue.publish(b"x", dedup_key="ü" * 128), detent.LimitExceeded)
        refused(lambda: queue.publish(b"x", dedup_key=""), detent.Invalid)
        refused(lambda: queue.publish(b"x", dedup_key="a\0b"), detent.Invalid)

    def test_filters_send_one_message_to_many_queues(self, store: Store) -> None:
        """Each queue gets what its filter takes, has its own progress, and the body is stored once and goes with the
        last of them."""
        queues = {
            name: store.queue(name)
            for name, filter in (
                ("all", "true"), ("gold", 'headers.tier == "gold"'), ("rest", '!(headers.tier == "gold")'),
                ("both", 'headers.tier in ["gold", "tin"] && !has(headers.test)'),
            )
            if store.queue(name).create(filter=filter)
        }  # fmt: skip
        queues["named"] = store.queue("named")
        queues["named"].create()
        store.publish(b"gold", headers={"tier": "gold"})
        store.publish_many([b"tin", b"tin 2"], headers={"tier": "tin"})
        store.publish(b"test", headers={"tier": "tin", "test": "1"})
        queues["named"].publish(b"to named")
        assert len(records(store, published_records.PAYLOAD)) == 4, "stored once, whatever queues it goes to"
        held = {name: queue.claim(10) for name, queue in queues.items()}
        assert {name: bodies(messages) for name, messages in held.items()} == {
            "all": [b"gold", b"tin", b"tin 2", b"test", b"to named"], "gold": [b"gold"],
            "rest": [b"tin", b"tin 2", b"test"], "both": [b"gold", b"tin", b"tin 2"], "named": [b"to named"],
        }  # fmt: skip
        assert len({message.id for messages in held.values() for message in messages}) == 5
        left = {"all": 4, "gold": 3, "rest": 3, "both": 1, "named": 0}
        for name in ("rest", "gold", "all", "both", "named"):
            queues[name].ack(held[name])
            if name in ("both", "named"):
                checkpoint(store)
                assert len(records(store, published_records.PAYLOAD)) == left[name]
        assert store.unmatched() == 0

    def test_what_matches_no_queue_is_kept(self, store: Store) -> None:
        """It is counted, can be looked at, and goes to the first queue that asks for what was there before it."""
        assert store.unmatched() == 0
        number = store.publish(b"lonely", headers={"kind": "odd"}).message
        store.publish(b"named", headers={"queue": "later"})
        assert store.unmatched() == 2
        info = store.message(number)
        assert (info.stored, info.body, info.headers, info.places) == (True, b"lonely", {"kind": "odd"}, [])
        store.queue("none").create(filter="true")
        assert store.unmatched() == 2, "without `earliest` a queue begins with what comes after it"
        odd = store.queue("odd")
        odd.create(filter='headers.kind == "odd"', earliest=True)
        later = store.queue("later")
        later.create(earliest=True)
        assert (claim_one(odd).body, claim_one(later).body) == (b"lonely", b"named")
        assert store.unmatched() == 0
        store.publish(b"next", headers={"kind": "odd"})
        assert bodies(odd.claim(10, wait=WAIT)) == [b"next"]

    def test_a_changed_filter_is_for_what_comes_after_it(self, store: Store) -> None:
        queue = store.queue("q")
        queue.create(filter='headers.n == "1"')
        store.publish_many([Outgoing(b"a1", {"n": "1"}), Outgoing(b"a2", {"n": "2"})])
        queue.configure(filter='headers.n == "2"')
        store.publish_many([Outgoing(b"b1", {"n": "1"}), Outgoing(b"b2", {"n": "2"})])
        assert bodies(queue.claim(10)) == [b"a1", b"b2"]


# -- claiming ---------------------------------------------------------------------------------------------------


class TestClaiming:
    def test_by_priority_then_age(self, queue: Queue) -> None:
        """Lower numbers first, then older ones; without one it is the middle; `available_by_priority` says it."""
        for number, priority in enumerate(["200", "5", None, "5", "0", "255", None, "128", None, "200"]):
            queue.publish(b"%d" % number, headers={} if priority is None else {"priority": priority})
        assert queue.info().available_by_priority == {0: 1, 5: 2, 128: 4, 200: 2, 255: 1}
        assert bodies(queue.claim(3)) == [b"4", b"1", b"3"]
        messages = queue.claim(10)
        assert bodies(messages) == [b"2", b"6", b"7", b"8", b"0", b"9", b"5"]
        assert [message.priority for message in messages] == [128] * 4 + [200, 200, 255]
        messages[5].fail(delay="0s")
        messages[1].fail(delay="0s")
        assert bodies(queue.claim(10)) == [b"6", b"9"], "what comes back stands at its old place"

    def test_a_stream_of_urgent_messages_leaves_room(self, queue: Queue) -> None:
        """Each sixteenth delivery is the oldest, whatever its priority."""
        queue.publish_many([b"slow"] * 4, headers={"priority": "9"})
        queue.publish_many([b"fast"] * 100, headers={"priority": "1"})
        found = [message.body for _ in range(64) for message in queue.claim(1)]
        assert found.count(b"slow") == 4
        assert set(found[:15]) == {b"fast"}

    def test_wrong_priority_is_refused(self, store: Store, queue: Queue) -> None:
        for headers in ({"priority": "high"}, {"priority": "256"}):
            with pytest.raises(detent.Invalid, match=r"the header 'priority' is a priority, a number from 0 .* to 255"):
                queue.publish(b"x", headers=headers)
            with pytest.raises(detent.Invalid, match="is a priority"):
                queue.publish_many([b"x", Outgoing(b"y", headers)])
            with pytest.raises(detent.Invalid, match="is a priority"), store.transaction() as transaction:
                transaction.publish(b"x", queue=queue.name, headers=headers)
        assert queue.info().available == 0

    def test_another_header_says_the_priority(self, store: Store) -> None:
        queue = store.queue("u")
        queue.create(priority_header="urgency")
        queue.publish(b"b", headers={"urgency": "2", "priority": "1"})
        queue.publish(b"a", headers={"urgency": "1", "priority": "2"})
        assert bodies(queue.claim(2)) == [b"a", b"b"]

    def test_no_more_than_asked_for(self, queue: Queue) -> None:
        """A claim takes what there is, up to its count; what is claimed is nobody else's."""
        queue.publish_many([b"%d" % number for number in range(5)])
        assert bodies(queue.claim()) == [b"0"]
        assert bodies(queue.claim(2)) == [b"1", b"2"]
        assert bodies(queue.claim(10)) == [b"3", b"4"]
        assert queue.claim(10) == []
        assert queue.claim(10, wait="20ms") == []
        assert contents(queue) == (0, 0, 5, 0)
        for wrong in (0, -1, 10_001, True, 1.5, "1"):
            refused(lambda wrong=wrong: queue.claim(wrong), detent.Invalid)

    def test_many_consumers_never_share_a_message(self, queue: Queue) -> None:
        queue.publish_many([b"%d" % number for number in range(200)])
        found: list[int] = []

        def consume() -> None:
            while messages := queue.claim(7):
                found.extend(message.id for message in messages)
                queue.ack(messages)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == len(set(found)) == 200
        assert queue.info().total_acked == 200

    def test_who_has_it(self, store: Store, queue: Queue) -> None:
        """A consumer's label is what it gives, or its machine and process."""
        queue.publish_many([b"a", b"b"])
        named = claim_one(queue, consumer="worker ü")
        nameless = claim_one(queue)
        assert store.message(named.id).places[0].consumer == "worker ü"
        assert store.message(nameless.id).places[0].consumer.endswith(f":{os.getpid()}")
        refused(lambda: queue.claim(consumer="ü" * 128), detent.LimitExceeded)

    def test_a_lease_is_as_long_as_asked_for_up_to_the_maximum(self, store: Store) -> None:
        queue = store.queue("l")
        queue.create(lease="10s", max_lease="1m")
        queue.publish_many([b"a", b"b", b"c"])
        now = datetime.now(UTC)
        leases = [(claim_one(queue, lease=lease).lease_until - now).total_seconds() for lease in (None, "20s", "2h")]
        assert leases == sorted(leases)
        assert 5 < leases[0] < 40 < leases[2] < 120 - 20
        refused(lambda: queue.claim(lease="0s"), detent.Invalid)

    def test_iterating(self, queue: Queue) -> None:
        """A claim is a list; `messages` goes on until nothing has come for its timeout."""
        queue.publish_many([b"%d" % number for number in range(25)])
        for message in queue.claim(3):
            with message:
                assert message.attempts == 1
        seen = []
        for message in queue.messages(batch=4, timeout="50ms", lease="1h"):
            seen.append(message.body)
            message.ack()
        assert seen == [b"%d" % number for number in range(3, 25)]
        assert contents(queue) == (0, 0, 0, 0)


class TestWaiting:
    def test_for_a_publish(self, store: Store, queue: Queue) -> None:
        """A consumer that waits is woken by what another thread publishes; one for each message."""
        with in_thread(lambda: claim_one(queue).body) as one, in_thread(lambda: claim_one(queue).body) as two:
            eventually(lambda: waiting(store) == 2)
            queue.publish(b"first")
            queue.publish(b"second")
        assert sorted([*one, *two]) == [b"first", b"second"]

    def test_for_a_delayed_message(self, store: Store, queue: Queue) -> None:
        with in_thread(lambda: claim_one(queue).body) as found:
            eventually(lambda: waiting(store))
            queue.publish(b"in a moment", delay="150ms")
        assert found == [b"in a moment"]

    def test_for_a_message_that_was_there_and_hidden_before(self, queue: Queue) -> None:
        queue.publish(b"in a moment", delay="300ms")
        assert claim_one(queue).body == b"in a moment"

    def test_for_the_end_of_a_lease(self, queue: Queue) -> None:
        """What a dead consumer held comes to the one that waits, as another delivery."""
        queue.publish(b"left behind")
        first = claim_one(queue, lease="200ms", consumer="dead")
        second = claim_one(queue)
        assert (second.id, second.attempts) == (first.id, 2)
        assert second.fencing_token > first.fencing_token
        refused(first.ack)
        second.ack()

    def test_for_a_failed_attempt(self, store: Store, queue: Queue) -> None:
        queue.publish(b"x")
        held = claim_one(queue)
        with in_thread(lambda: claim_one(queue).attempts) as found:
            eventually(lambda: waiting(store))
            held.fail(delay="0s")
        assert found == [2]

    def test_for_a_redrive_and_for_a_resumed_queue(self, store: Store, queue: Queue) -> None:
        queue.publish(b"x")
        claim_one(queue).fail(final=True)
        with in_thread(lambda: claim_one(queue)) as found:
            eventually(lambda: waiting(store))
            assert queue.redrive() == 1
        found[0].fail(delay="0s")
        queue.pause()
        with in_thread(lambda: claim_one(queue).body) as found:
            eventually(lambda: waiting(store))
            queue.resume()
        assert found == [b"x"]

    def test_while_others_look(self, store: Store, queue: Queue) -> None:
        """Whoever looks at the queues when a message becomes visible does not take the wake-up from the one who waits:
        it comes with the message, and not with the next time that a waiter looks by itself."""
        looking = threading.Event()

        def look() -> None:
            while not looking.is_set():
                store.queues()

        looker = threading.Thread(target=look)
        looker.start()
        try:
            for number in range(5):
                with in_thread(lambda: claim_one(queue)) as found:
                    eventually(lambda: waiting(store))
                    published = queue.publish(b"%d" % number, delay="30ms")
                    eventually(lambda: not waiting(store), seconds=4, what="the wake-up")  # a slice is 5 s
                assert found[0].id == published.message
                found[0].ack()
        finally:
            looking.set()
            looker.join()

    def test_for_a_queue_that_is_deleted(self, store: Store, queue: Queue) -> None:
        with in_thread(lambda: claim_one(queue)) as found:
            eventually(lambda: waiting(store))
            queue.delete()
        assert isinstance(found[0], detent.NotFound)


# -- how a delivery ends ----------------------------------------------------------------------------------------


class TestEnds:
    def test_acknowledged_once(self, store: Store, queue: Queue) -> None:
        """What is acknowledged is done for good, and its receipt with it."""
        queue.publish_many([b"a", b"b", b"c", b"d"])
        a, *rest = queue.claim(4)
        a.ack()
        assert a.settled
        for again in (a.ack, a.extend, a.fail):
            refused(again)
        queue.ack([rest[0], rest[1].receipt, str(rest[2].receipt)])
        info = queue.info()
        assert (contents(queue), info.total_acked, info.total_routed, info.done) == ((0, 0, 0, 0), 4, 4, 4)
        assert queue.claim(10) == []
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []

    def test_one_stale_receipt_refuses_them_all(self, queue: Queue) -> None:
        queue.publish_many([b"a", b"b", b"c"])
        a, b, c = queue.claim(3)
        b.ack()
        refused(lambda: queue.ack([a, b, c]))
        assert contents(queue) == (0, 0, 2, 0)
        refused(lambda: queue.ack([a, a]), detent.Invalid)
        queue.ack([a, c])
        queue.ack([])

    def test_failed_and_tried_again_after_the_back_off(self, store: Store) -> None:
        """It waits longer each time; a delay of its own goes before that; after the last attempt it has failed."""
        queue = store.queue("b")
        queue.create(backoff="1h", max_backoff="90m", max_attempts=4)
        number = queue.publish(b"x").message

        def waits(**options: Any) -> float:
            claim_one(queue).fail("no", **options)
            place = store.message(number).places[0]
            assert place.state in {"delayed", "available"}
            return (place.at - datetime.now(UTC)).total_seconds()

        assert waits(delay="0s") <= 0
        assert waits(delay="10ms") <= 0.01
        assert 4800 < waits() < 5401, "the third attempt: four times the first back-off, up to the maximum"
        assert contents(queue) == (0, 1, 0, 0)
        assert [attempt.reason for attempt in store.message(number).places[0].history] == ["no"] * 3

    def test_gives_up_after_the_last_attempt(self, store: Store) -> None:
        queue = store.queue("m")
        queue.create(backoff="0s", max_attempts=2)
        queue.publish(b"x")
        for attempt in (1, 2):
            message = claim_one(queue)
            assert message.attempts == attempt
            message.fail(f"attempt {attempt}")
        assert queue.claim() == []
        assert (contents(queue), queue.info().total_failed) == ((0, 0, 0, 1), 1)
        (failed,) = queue.failed()
        assert (failed.reason, failed.attempts) == ("attempt 2", 2)

    def test_a_lease_that_expires_counts_as_an_attempt(self, store: Store) -> None:
        queue = store.queue("m")
        queue.create(backoff="0s", max_attempts=2)
        queue.publish(b"x")
        for _ in range(2):
            claim_one(queue, lease="1ms")
        eventually(lambda: contents(queue) == (0, 0, 0, 1), what="the end of the second lease")
        (failed,) = queue.failed()
        assert failed.reason == "the lease expired"
        assert [attempt.reason for attempt in failed.history] == ["the lease expired"] * 2

    def test_extended(self, store: Store, queue: Queue) -> None:
        """From now on for the given time, or the default; longer or shorter."""
        queue.publish(b"x")
        message = claim_one(queue, lease="10s")
        first = message.lease_until
        message.extend("1h")
        assert message.lease_until > first + timedelta(minutes=30)
        assert store.message(message.id).places[0].at == message.lease_until
        message.extend()
        assert message.lease_until < first + timedelta(minutes=30)
        message.extend("13h")
        assert message.lease_until < first + timedelta(hours=12, minutes=5), "the queue's maximum"
        message.extend("1ms")
        again = claim_one(queue)
        refused(message.ack)
        assert again.attempts == 2
        again.ack()

    @pytest.mark.parametrize("how", ["ack", "fail", "extend"])
    def test_stale_after_the_lease(self, store: Store, queue: Queue, how: str) -> None:
        """A consumer that comes too late is told so, changes nothing, and the later one goes on."""
        stale, current = expired(queue)
        assert current.fencing_token > stale.fencing_token
        before = store.queues(), store.message(current.id)
        refused(getattr(stale, how))
        assert not stale.settled
        assert (store.queues(), store.message(current.id)) == before
        current.ack()
        refused(getattr(stale, how))
        assert queue.info().total_acked == 1

    @pytest.mark.parametrize("how", ["ack", "fail", "extend"])
    def test_stale_though_nobody_has_claimed_it_since(self, store: Store, how: str) -> None:
        queue = store.queue("s")
        queue.create(backoff="1h")
        queue.publish(b"x")
        stale = claim_one(queue, lease="1ms")
        eventually(lambda: contents(queue) == (0, 1, 0, 0), what="the end of the lease")
        refused(getattr(stale, how))
        assert contents(queue) == (0, 1, 0, 0)

    @pytest.mark.parametrize("how", ["ack", "fail", "extend"])
    def test_stale_after_the_queue_was_deleted_and_made_anew(self, store: Store, queue: Queue, how: str) -> None:
        queue.publish(b"old")
        stale = claim_one(queue)
        queue.delete()
        refused(getattr(stale, how))
        queue.create()
        queue.publish(b"new")
        current = claim_one(queue)
        assert current.fencing_token > stale.fencing_token
        assert current.receipt.queue != stale.receipt.queue
        refused(getattr(stale, how))
        assert contents(queue) == (0, 0, 1, 0)
        current.ack()

    def test_delivery_numbers_only_grow(self, store: Store, queue: Queue) -> None:
        """In each queue and over all of them: redelivered, driven again, in a queue made anew."""
        other = store.queue("other")
        other.create()
        tokens = []

        def claim(queue: Queue) -> Delivery:
            message = claim_one(queue)
            tokens.append(message.fencing_token)
            return message

        queue.publish(b"x")
        other.publish(b"y")
        claim(queue).fail(delay="0s")
        claim(other).ack()
        claim(queue).fail(final=True)
        queue.redrive()
        claim(queue).ack()
        queue.delete()
        queue.create()
        queue.publish(b"z")
        claim(queue)
        checkpoint(store)
        queue.publish(b"z")
        claim(queue)
        assert tokens == sorted(set(tokens))

    def test_a_with_block_says_what_became_of_it(self, queue: Queue) -> None:
        """Acknowledged at its end; failed with the reason when it raises; neither when the block did it itself."""
        queue.publish_many([b"ok", b"raises", b"failed", b"acked"])
        for message in queue.claim(4):
            with contextlib.suppress(ZeroDivisionError), message:
                if message.body == b"raises":
                    raise ZeroDivisionError("ü")
                if message.body == b"failed":
                    message.fail("by hand", final=True)
                if message.body == b"acked":
                    message.ack()
            assert message.settled
        info = queue.info()
        assert (contents(queue), info.total_acked) == ((1, 0, 0, 1), 2)
        again = claim_one(queue)
        assert again.body == b"raises"
        again.fail(final=True)
        assert [(one.body, one.reason, [a.reason for a in one.history]) for one in queue.failed()] == [
            (b"raises", "", ["ZeroDivisionError: ü", ""]), (b"failed", "by hand", ["by hand"]),
        ]  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            self.interrupted(queue)
        assert contents(queue)[2] == 1, "an interrupt is no failure: the message is left to its lease"

    def interrupted(self, queue: Queue) -> None:
        queue.publish(b"x")
        with claim_one(queue):
            raise KeyboardInterrupt

    def test_receipts_as_text(self, queue: Queue) -> None:
        queue.publish(b"x")
        message = claim_one(queue)
        text = str(message.receipt)
        assert Receipt.parse(text) == message.receipt
        assert text == f"{queue.info().number}-{message.id}-{message.fencing_token}"
        for wrong in ("", "1-2", "1-2-3-4", "a-b-c", "1--2", "-1-2-3", "1-2-" + "9" * 30, "1-2-٣", " 1-2-3"):
            refused(lambda wrong=wrong: queue.ack([wrong]), detent.Invalid)
        queue.ack([text])

    def test_json(self, queue: Queue) -> None:
        queue.publish(b'{"a": [1, null]}')
        assert claim_one(queue).json() == {"a": [1, None]}


class TestFailed:
    def fail_all(self, queue: Queue, reason: str = "broken") -> list[int]:
        messages = queue.claim(1000, consumer="c")
        for message in messages:
            message.fail(f"{reason} {message.body.decode()}", final=True)
        return [message.id for message in messages]

    def test_listed_with_their_history(self, queue: Queue) -> None:
        """Oldest first, with reason, attempts, who tried when, body and headers."""
        queue.publish_many([Outgoing(b"a", {"n": "1"}), Outgoing(uri="s3://b/k")])
        first, second = queue.claim(2, consumer="one")
        second.fail("for good", final=True)
        first.fail("once", delay="0s")
        claim_one(queue, consumer="two").fail("twice", final=True)
        a, b = queue.failed()
        assert (a.message, a.queue, a.reason, a.attempts, a.body) == (first.id, "q", "twice", 2, b"a")
        assert a.headers == {"n": "1", "queue": "q"}
        assert [(attempt.consumer, attempt.reason) for attempt in a.history] == [("one", "once"), ("two", "twice")]
        assert all(attempt.claimed <= attempt.ended <= a.failed for attempt in a.history)
        assert (b.uri, b.body, b.attempts, b.reason) == ("s3://b/k", b"", 1, "for good")

    def test_more_than_a_page(self, queue: Queue) -> None:
        queue.publish_many([b"%d" % number for number in range(600)])
        numbers = [message.id for message in queue.claim(2000)]
        deliveries = [queue._store.message(numbers[0]).places[0].delivery + index for index in range(600)]
        queue._store.commit([Fail(queue.info().number, numbers, deliveries, "all", None, True)])
        assert [one.message for one in queue.failed()] == numbers
        assert queue.redrive(filter="true") == 600

    def test_driven_again(self, queue: Queue) -> None:
        """All, some, or those that match: with no attempts counted, and behind the others."""
        queue.publish_many([Outgoing(b"%d" % n, {"n": str(n)}) for n in range(6)])
        numbers = self.fail_all(queue)
        queue.publish(b"new")
        assert queue.redrive([numbers[1], numbers[1]]) == 1
        seen: list[int] = []
        assert queue.redrive(filter='headers.n in ["3", "4"]', progress=seen.append) == 2
        assert seen[-1] == 2
        assert queue.redrive(filter='headers.n == "nothing"') == 0
        assert queue.redrive([]) == 0
        for wrong in ([numbers[1]], [numbers[0], 10**9]):
            refused(lambda wrong=wrong: queue.redrive(wrong), detent.NotFound)
        messages = queue.claim(10)
        assert bodies(messages) == [b"new", b"1", b"3", b"4"]
        assert {message.attempts for message in messages} == {1}
        queue.ack(messages)
        assert queue.redrive() == 3
        assert bodies(queue.claim(10)) == [b"0", b"2", b"5"]
        assert list(queue.failed()) == []

    def test_to_another_queue(self, store: Store, queue: Queue) -> None:
        """There it is a message like any other; a queue has each message once."""
        other = store.queue("other")
        other.create(filter='headers.queue == "other" || headers.both == "1"')
        queue.publish_many([Outgoing(b"a"), Outgoing(b"b", {"both": "1"}), Outgoing(b"c", {"priority": "1"})])
        self.fail_all(queue)
        b = next(one.message for one in queue.failed() if one.body == b"b")
        refused(lambda: queue.redrive([b], to="other"), detent.Exists)
        refused(lambda: queue.redrive(to="nowhere"), detent.NotFound)
        assert queue.redrive(to="other") == 2
        assert [one.body for one in queue.failed()] == [b"b"]
        messages = other.claim(10)
        assert bodies(messages) == [b"c", b"b", b"a"]
        other.ack(messages)
        assert queue.redrive() == 1
        claim_one(queue).ack()
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []

    def test_purged(self, store: Store, queue: Queue) -> None:
        """Available ones, failed ones, named ones; what is in flight stays with its holder."""
        queue.publish_many([b"%d" % n for n in range(4)], headers={"priority": "1"})
        numbers = self.fail_all(queue)
        queue.publish_many([b"held", b"free", b"free too"])
        queue.publish(b"late", delay="1h")
        held = claim_one(queue)
        assert queue.purge(messages=numbers[:1]) == 1
        refused(lambda: queue.purge(messages=numbers[:1]), detent.NotFound)
        assert contents(queue) == (2, 1, 1, 3)
        seen: list[int] = []
        assert queue.purge(failed=False, progress=seen.append) == 3
        assert (contents(queue), seen[-1]) == ((0, 0, 1, 3), 3)
        assert queue.purge(available=False) == 3
        assert queue.purge() == 0
        held.ack()
        info = queue.info()
        assert (contents(queue), info.total_purged, info.total_acked) == ((0, 0, 0, 0), 7, 1)
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []

    def test_not_kept_where_nobody_wants_them(self, store: Store) -> None:
        queue = store.queue("d")
        queue.create(failed="discard")
        queue.publish(b"x")
        claim_one(queue).fail(final=True)
        assert (contents(queue), queue.info().total_failed, list(queue.failed())) == ((0, 0, 0, 0), 1, [])
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []
        assert records(store, queue_records.ATTEMPTS) == []


class TestPeek:
    def test_look_shows_every_message_and_changes_nothing(self, store: Store, queue: Queue) -> None:
        queue.publish_many([detent.Outgoing(b"%d" % n * 100, {"n": str(n)}) for n in range(5)])
        queue.publish(b"late", delay="1h")
        one, two = queue.claim(2, lease="1h", consumer="me")
        two.fail("boom", final=True)
        checkpoint(store)
        before = everything(store)
        page = queue.peek(3, body_bytes=10)
        rest = queue.peek(cursor=page.cursor)
        found = [*page.messages, *rest.messages]
        states = ["in flight", "available", "available", "available", "delayed", "failed"]
        assert ([message.state for message in found], rest.cursor) == (states, None)
        assert [message.body for message in page.messages] == [b"0" * 10, b"2" * 10, b"3" * 10]
        assert (page.messages[0].size, page.messages[0].consumer, page.messages[0].attempts) == (100, "me", 1)
        assert (found[-1].message, found[-1].reason, found[-1].headers["n"]) == (two.id, "boom", "1")
        chosen = queue.peek(filter="has(headers.n) && int(headers.n) > 2", states="available").messages
        assert [message.headers["n"] for message in chosen] == ["3", "4"]
        assert everything(store) == before
        one.ack()

    def test_async_look_is_the_same(self, url: str) -> None:
        async def scenario(store: AsyncStore) -> None:
            queue = store.queue("q")
            await queue.create()
            await queue.publish_many([b"one", b"two"])
            page = await queue.peek(1)
            rest = await queue.peek(cursor=page.cursor, older_than="0s")
            assert [message.body for message in (*page.messages, *rest.messages)] == [b"one", b"two"]
            assert (await queue.peek(newer_than="1h", states=["done"])).messages == []

        run(url, scenario)


class TestDeadLetters:
    def test_a_dead_letter_queue_keeps_what_comes_for_its_own_time(self, store: Store) -> None:
        dead, queue = store.queue("dead"), store.queue("q")
        dead.create(dead_letter_retention="1h")
        queue.create(dead_letter="dead", max_attempts=1)
        queue.publish(b"x", retention="1s")
        claimed = queue.claim()[0]
        time.sleep(1.1)
        claimed.fail()
        assert [message.body for message in dead.claim()] == [b"x"]
        assert dead.info().dead_letter_retention == timedelta(hours=1)
        refused(lambda: dead.configure(dead_letter_retention="0s"), detent.Invalid)
        refused(lambda: dead.configure(dead_letter_retention="200y"), detent.DetentError)
        dead.configure(dead_letter_retention=None)
        assert dead.info().dead_letter_retention is queue.info().dead_letter_retention is None

    def test_dead_letter_says_where_it_came_from_and_why(self, store: Store) -> None:
        dead, queue = store.queue("dead"), store.queue("q")
        dead.create(max_attempts=1)
        queue.create(dead_letter="dead", max_attempts=2, backoff="0s")
        dead.publish(b"no dead letter")
        published = queue.publish(b"x").message
        claim_one(queue, consumer="ann").fail("KeyError: a")
        claim_one(queue, consumer="ben").fail("ValueError: boom")
        other, found = dead.claim(2)
        assert (other.dead_letters, other.total_attempts) == ([], 1)
        assert (found.id, found.attempts, found.earlier_attempts, found.total_attempts) == (published, 1, 2, 3)
        (move,) = found.dead_letters
        assert (move.queue, move.number, move.attempts, move.reason) == ("q", 1, 2, "ValueError: boom")
        assert [(one.consumer, one.outcome, one.reason) for one in move.history] == [
            ("ann", "failed", "KeyError: a"),
            ("ben", "failed", "ValueError: boom"),
        ]
        (place,) = store.message(published).places
        assert place.dead_letters == [move]
        found.fail("again")
        (failed,) = dead.failed()
        assert (failed.reason, failed.attempts, failed.dead_letters) == ("again", 1, [move])
        dead.redrive([published])
        assert claim_one(dead).dead_letters == [move]

    def test_what_is_given_up_goes_on_in_the_dead_letter_queue(self, store: Store) -> None:
        """It leaves its queue for the other one in the transaction that gave it up, with all that it is."""
        dead, queue = store.queue("dead"), store.queue("q")
        dead.create()
        queue.create(dead_letter="dead", max_attempts=2, backoff="0s")
        queue.publish(b"poison", headers={"a": "b"})
        for _ in range(2):
            claim_one(queue).fail("no")
        (found,) = dead.claim()
        assert (found.body, found.headers["a"], found.attempts) == (b"poison", "b", 1)
        info, other = queue.info(), dead.info()
        assert (info.dead_letter, info.failed, info.total_failed) == ("dead", 0, 1)
        assert (other.in_flight, other.total_routed, info.total_dead_lettered) == (1, 1, 1)
        found.ack()
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []

    def test_without_a_place_to_go_it_is_kept(self, store: Store) -> None:
        """A dead letter queue must be there when it is named; once it is deleted, failed messages stay."""
        queue = store.queue("q")
        refused(lambda: queue.create(dead_letter="dead"), detent.NotFound)
        store.queue("dead").create()
        queue.create(dead_letter="dead", failed="discard")
        refused(lambda: queue.configure(dead_letter="q"), detent.Invalid)
        store.queue("dead").delete()
        queue.publish(b"poison")
        claim_one(queue).fail("no", final=True)
        assert bodies(queue.failed()) == [b"poison"]
        queue.configure(dead_letter=None)
        assert queue.info().dead_letter == ""


class TestGroups:
    def test_a_group_is_given_out_in_order_one_after_another(self, store: Store) -> None:
        """Whatever the priority; other groups, and messages in none, go on meanwhile."""
        queue = store.queue("q")
        queue.create(group_header="customer", backoff="0s")
        for name, priority in (("a", "200"), ("a", "1"), ("b", "9")):
            queue.publish(f"{name}{priority}".encode(), headers={"customer": name, "priority": priority})
        queue.publish(b"alone")
        first, second, third = queue.claim(), queue.claim(), queue.claim()
        assert [bodies(found) for found in (first, second, third)] == [[b"b9"], [b"alone"], [b"a200"]]
        assert queue.claim(5) == []
        info = queue.info()
        assert (info.group_header, info.available, info.blocked, info.in_flight) == ("customer", 0, 1, 3)
        third[0].fail("again")
        assert bodies(queue.claim(5)) == [b"a200", b"a1"]

    def test_whoever_waits_is_woken_when_the_group_is_free(self, store: Store) -> None:
        """A blocked message is nothing to claim, until the one before it is done."""
        queue = store.queue("q")
        queue.create(group_header="g")
        queue.publish_many([b"1", b"2"], headers={"g": "x"})
        first = claim_one(queue)
        with in_thread(lambda: bodies(queue.claim(wait=WAIT))) as results:
            eventually(lambda: waiting(store) == 1)
            first.ack()
        assert results == [[b"2"]]

    def test_groups_are_refused_where_they_cannot_be(self, store: Store) -> None:
        """A name that is too long, and another header for a queue that holds messages."""
        queue = store.queue("q")
        queue.create(group_header="g")
        refused(lambda: queue.publish(b"x", headers={"g": "x" * 129}), detent.Invalid)
        queue.publish(b"x", headers={"g": "x" * 128})
        refused(lambda: queue.configure(group_header=None), detent.Invalid)
        claim_one(queue).ack()
        queue.configure(group_header=None)
        assert queue.info().group_header == ""


class TestPausing:
    def test_gives_nothing_and_takes_up_where_it_was(self, store: Store, queue: Queue) -> None:
        """While it is paused, what is in flight can end, and what is published meanwhile is there afterwards."""
        queue.publish_many([b"a", b"b"])
        held = claim_one(queue)
        queue.pause()
        assert queue.info().paused
        assert queue.claim(10) == []
        assert queue.claim(10, wait="20ms") == []
        queue.publish_many([b"c", b"d"])
        held.extend()
        held.ack()
        assert queue.info().total_acked == 1
        queue.resume()
        found: list[bytes] = []
        while len(found) < 3:
            found += bodies(queue.claim(10, wait=WAIT))
        assert found == [b"b", b"c", b"d"]
        assert (queue.info().paused, queue.info().catching_up, store.unmatched()) == (False, False, 0)

    def test_nothing_is_lost_that_another_queue_is_done_with(self, store: Store) -> None:
        """A message that is done everywhere else is kept for a queue that is paused."""
        slow, fast = store.queue("slow"), store.queue("fast")
        slow.create(filter="true", paused=True)
        fast.create(filter="true")
        store.publish_many([b"a", b"b"])
        fast.ack(fast.claim(10))
        checkpoint(store)
        slow.resume()
        found: list[bytes] = []
        while len(found) < 2:
            messages = slow.claim(10, wait=WAIT)
            found += bodies(messages)
            slow.ack(messages)
        assert found == [b"a", b"b"]
        checkpoint(store)
        assert records(store, published_records.PAYLOAD) == []


# -- transactions -----------------------------------------------------------------------------------------------


def journal_bodies(store: Store, name: str) -> list[bytes]:
    return [message.body for message in store.journal(name).read()] if name in store.journals() else []


class TestTransactions:
    def test_all_of_it(self, store: Store, queue: Queue) -> None:
        """Acknowledged, published, appended, failed, extended and registered in one commit, each with its result."""
        queue.publish_many([b"a", b"b", b"c"])
        a, b, c = queue.claim(3)
        with store.transaction() as t:
            acked = t.ack(a)
            published = t.publish(b"next", queue="q", headers={"from": "a"})
            appended = t.append("log", b"a was done")
            t.fail(b, "not today", final=True)
            extended = t.extend(c, "1h")
            t.set_registers("log", {"last": str(a.id)})
            t.publish_many([b"x", b"y"], queue="q")
            t.publish(b"to whom it may concern")
        assert (a.settled, b.settled, c.settled) == (True, True, False)
        assert type(t.results[acked]).__name__ == "Done"
        assert isinstance(t.results[published], PublishedMessages)
        assert t.results[appended].offset == 0
        assert isinstance(t.results[extended], LeaseExtended)
        assert store.message(c.id).places[0].at.timestamp() * 1000 == pytest.approx(t.results[extended].lease_ms)
        assert journal_bodies(store, "log") == [b"a was done"]
        assert store.journal("log").registers() == {"last": str(a.id)}
        assert bodies(queue.claim(10)) == [b"next", b"x", b"y"]
        assert ([one.reason for one in queue.failed()], store.unmatched()) == (["not today"], 1)

    @pytest.mark.parametrize("last", [True, False])
    def test_nothing_of_it_when_a_receipt_is_stale(self, store: Store, queue: Queue, last: bool) -> None:
        """Wherever the stale one stands: no journal, no message, no register, no key, no acknowledgement."""
        stale, current = expired(queue)
        queue.publish_many([b"other", b"failing", b"extended"])
        other, failing, extended = queue.claim(3)
        before = store.queues(), store.unmatched(), store.journals()
        transaction = store.transaction()
        if not last:
            transaction.ack(stale)
        transaction.publish(b"no", queue="q", dedup_key="k")
        transaction.publish(b"no", headers={"to": "nobody"})
        transaction.ack(other)
        transaction.fail(failing, delay="0s")
        transaction.extend(extended, "1ms")
        transaction.append("log", b"no")
        transaction.set_registers("log", {"a": "1"})
        if last:
            transaction.ack(stale)
        refused(transaction.commit)
        assert not other.settled
        assert (store.queues(), store.unmatched(), store.journals()) == before
        assert queue.claim(10) == []
        assert queue.publish(b"yes", dedup_key="k").duplicate_of is None
        queue.ack([current, other, failing, extended, claim_one(queue)])

    def test_nothing_of_it_when_the_lease_ends_just_then(self, url: str) -> None:
        """The refused transaction is the first to see the end of the lease, after it has published: what the clock did
        stays, what the transaction did goes, now and after the store was opened again."""
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(detent.open(url))
            queue = store.queue("q")
            queue.create(backoff="0s")
            for _ in range(5):
                queue.publish(b"x")
                message = claim_one(queue, lease="1ms")
                until = message.lease_ms / 1000
                while time.time() < until + 0.001:
                    pass
                transaction = store.transaction()
                transaction.publish(b"no", queue="q")
                transaction.append("log", b"no")
                transaction.ack(message)
                refused(transaction.commit)
                again = claim_one(queue)
                assert (again.id, again.attempts) == (message.id, 2)
                again.ack()
            before = queue.info()
            assert (before.total_routed, before.total_acked, before.available) == (5, 5, 0)
            if url == "memory:":
                return
            store.close()
            with detent.open(url) as store:
                assert store.queue("q").info() == before
                assert store.journals() == []

    def test_nothing_of_it_when_another_check_fails(self, store: Store, queue: Queue) -> None:
        """A refused transaction leaves no trace on what it had claimed, failed or acknowledged: it all can be done
        again, and each message comes out once."""
        queue.publish_many([b"a", b"b", b"c"])
        message = claim_one(queue)
        for _ in range(3):
            transaction = store.transaction()
            transaction.fail(message, delay="0s")
            transaction.publish(b"no", queue="q")
            transaction.check_registers("log", {"a": "1"})
            refused(transaction.commit, detent.Conflict)
        message.fail(delay="0s")
        found = queue.claim(10)
        assert bodies(found) == [b"a", b"b", b"c"]
        transaction = store.transaction()
        transaction.ack(*found)
        transaction.check_next_offset("log", 5)
        refused(transaction.commit, detent.Conflict)
        queue.ack(found)
        assert (contents(queue), queue.info().total_acked) == ((0, 0, 0, 0), 3)

    def test_an_exception_in_the_block_applies_nothing(self, store: Store, queue: Queue) -> None:
        queue.publish(b"x")
        message = claim_one(queue)
        with pytest.raises(ZeroDivisionError), store.transaction() as t:
            t.ack(message)
            raise ZeroDivisionError
        assert contents(queue) == (0, 0, 1, 0)
        message.ack()

    def test_of_several_queues(self, store: Store, queue: Queue) -> None:
        other = store.queue("other")
        other.create()
        queue.publish(b"a")
        other.publish(b"b")
        a, b = claim_one(queue), claim_one(other)
        with store.transaction() as t:
            t.ack(a, b)
        assert (queue.info().total_acked, other.info().total_acked) == (1, 1)

    def test_through_a_with_block_and_not_twice(self, store: Store, queue: Queue) -> None:
        """A message that its own transaction has acknowledged is settled: the block does not do it again."""
        queue.publish(b"x")
        with claim_one(queue) as message, store.transaction() as t:
            t.ack(message)
            t.append("log", message.body)
        assert (queue.info().total_acked, journal_bodies(store, "log")) == (1, [b"x"])

    def test_a_duplicate_in_a_transaction(self, store: Store, queue: Queue) -> None:
        """The rest of it is applied all the same; its result says which message was first."""
        first = queue.publish(b"x", dedup_key="k").message
        with store.transaction() as t:
            index = t.publish(b"x", queue="q", dedup_key="k")
            t.append("log", b"yes")
        assert t.results[index].duplicates == [(0, first)]
        assert (contents(queue), journal_bodies(store, "log")) == ((1, 0, 0, 0), [b"yes"])


class TestMessages:
    def test_where_a_message_is(self, store: Store, queue: Queue) -> None:
        """Its state in each queue, from its publication to the end, and what is known of it afterwards."""
        store.queue("all").create(filter="true")
        number = queue.publish(b"x", headers={"priority": "3"}, delay="150ms", retention="1d").message

        def states() -> dict[str, str]:
            return {place.queue: place.state for place in store.message(number).places}

        info = store.message(number)
        assert (info.message, info.stored, info.body, info.headers["priority"]) == (number, True, b"x", "3")
        assert info.retention == timedelta(days=1)
        assert info.received is not None
        assert info.visible == info.received + timedelta(milliseconds=150)
        assert set(states()) == {"q", "all"}
        message = claim_one(queue, consumer="me")
        assert states() == {"q": "in flight", "all": "available"}
        place = next(place for place in store.message(number).places if place.queue == "q")
        assert (place.consumer, place.attempts, place.priority) == ("me", 1, 3)
        assert (place.delivery, place.at) == (message.fencing_token, message.lease_until)
        message.fail("later", delay="1h")
        assert states()["q"] == "delayed"
        claim_one(store.queue("all")).fail("never", final=True)
        assert states() == {"q": "delayed", "all": "failed"}
        place = next(place for place in store.message(number).places if place.queue == "all")
        assert (place.reason, [attempt.reason for attempt in place.history]) == ("never", ["never"])
        store.queue("all").redrive()
        claim_one(store.queue("all")).ack()
        assert states() == {"q": "delayed", "all": "done"}
        checkpoint(store)
        assert states() == {"q": "delayed", "all": "done"}
        queue.purge()
        checkpoint(store)
        info = store.message(number)
        assert (info.stored, states()) == (False, {"all": "done"})
        for unknown in (number + 1, 10**15):
            refused(lambda unknown=unknown: store.message(unknown), detent.NotFound)


# -- workers ----------------------------------------------------------------------------------------------------


class TestWorkers:
    def test_handles_what_comes_until_it_is_stopped(self, store: Store, queue: Queue) -> None:
        """Each message once; an exception fails it with its reason; what the handler settled is left alone."""
        queue.publish_many([b"ok", b"raises", b"acks", b"transaction", b"fails", b"last"])
        seen: list[bytes] = []

        def handle(message: Delivery) -> None:
            seen.append(message.body)
            if message.body == b"raises":
                raise ZeroDivisionError("by zero")
            if message.body == b"acks":
                message.ack()
            if message.body == b"transaction":
                with store.transaction() as t:
                    t.append("log", b"done")
                    t.ack(message)
            if message.body == b"fails":
                message.fail("by hand", final=True)
            if message.body == b"last":
                worker.stop()

        queue.configure(max_attempts=1)
        worker = Worker(queue, handle, consumer="worker 1")
        worker.run()
        assert seen == [b"ok", b"raises", b"acks", b"transaction", b"fails", b"last"]
        assert (worker.handled, worker.failed) == (5, 1)
        info = queue.info()
        assert (contents(queue), info.total_acked) == ((0, 0, 0, 2), 4)
        failed = {one.body: (one.reason, one.history[0].consumer) for one in queue.failed()}
        assert failed == {b"raises": ("ZeroDivisionError: by zero", "worker 1"), b"fails": ("by hand", "worker 1")}
        assert journal_bodies(store, "log") == [b"done"]

    def test_several_at_once_and_no_more_than_that(self, queue: Queue) -> None:
        """As many handlers run as it may have; a stopped worker claims nothing more."""
        together = threading.Barrier(3)
        running, most, lock = 0, 0, threading.Lock()

        def handle(message: Delivery) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            if message.body == b"together":
                together.wait(PATIENCE_S)
            with lock:
                running -= 1

        worker = Worker(queue, handle, concurrency=3)
        queue.publish_many([b"together"] * 6 + [b"alone"] * 20)
        with in_thread(worker.run) as result:
            eventually(lambda: worker.handled == 26)
            worker.stop()
        assert result == [None]
        assert (most, queue.info().total_acked) == (3, 26)
        queue.publish(b"after")
        assert contents(queue) == (1, 0, 0, 0)

    def test_holds_a_message_for_as_long_as_its_handler_runs(self, store: Store, queue: Queue) -> None:
        """Its lease is extended meanwhile, so that nobody else gets it."""
        queue.publish_many([b"slow", b"last"])
        first_lease: list[datetime] = []

        def handle(message: Delivery) -> None:
            if message.body == b"slow":
                first_lease.append(message.lease_until)

                def outlived() -> bool:
                    now = datetime.now(UTC)
                    return now > first_lease[0] and store.message(message.id).places[0].at > now

                eventually(outlived, what="a second lease")
                assert not message.lost
                assert message.lease_until > first_lease[0]
            else:
                worker.stop()

        worker = Worker(queue, handle, lease="1s")
        worker.run()
        assert (worker.handled, worker.failed, queue.info().total_acked) == (2, 0, 2)
        assert [attempt.reason for one in queue.failed() for attempt in one.history] == []

    def test_a_handler_sees_that_its_lease_is_lost(self, store: Store, queue: Queue) -> None:
        """Somebody ended it from outside: the handler can look, and what it returns is not counted against anybody."""
        queue.publish(b"x")
        lost: list[bool] = []

        def handle(message: Delivery) -> None:
            queue.ack([message.receipt])
            eventually(lambda: message.lost, what="the loss")
            lost.append(message.lost)
            worker.stop()

        worker = Worker(queue, handle, lease="300ms")
        worker.run()
        assert lost == [True]
        assert (contents(queue), queue.info().total_acked) == ((0, 0, 0, 0), 1)

    def test_does_not_wait_for_ever_for_a_handler(self, queue: Queue) -> None:
        """After `grace` it returns, and the message is left to its lease."""
        queue.publish(b"x")
        begun, go_on = threading.Event(), threading.Event()

        def handle(message: Delivery) -> None:
            begun.set()
            go_on.wait(PATIENCE_S)

        worker = Worker(queue, handle, grace="50ms")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert begun.wait(PATIENCE_S)
            worker.stop()
            thread.join(PATIENCE_S / 6)
            assert not thread.is_alive(), "it waits for its handler, long after the grace"
        finally:
            go_on.set()
            thread.join()

    def test_a_queue_that_goes_away_ends_it(self, queue: Queue) -> None:
        queue.publish(b"x")
        worker = Worker(queue, lambda message: queue.delete())
        refused(worker.run, detent.NotFound)
        for wrong in (0, 1001, "2"):
            refused(lambda wrong=wrong: Worker(queue, print, concurrency=wrong), detent.Invalid)


# -- asyncio ----------------------------------------------------------------------------------------------------


def run(url: str, scenario: Callable[[AsyncStore], Any]) -> None:
    async def whole() -> None:
        async with detent.open_async(url) as store:
            await asyncio.wait_for(scenario(store), 4 * PATIENCE_S)

    asyncio.run(whole())


class TestAsync:
    def test_queues_and_messages(self, url: str) -> None:
        """The same calls, awaited."""

        async def scenario(store: AsyncStore) -> None:
            queue = store.queue("q")
            assert await queue.create(backoff="0s") is True
            assert await queue.create(exist_ok=True) is False
            await queue.configure(description="d")
            assert [(info.name, info.description) for info in await store.queues()] == [("q", "d")]
            await store.set_dedup_window("1h")
            one = await queue.publish(b"one", headers={"n": "1"}, dedup_key="k")
            assert (await queue.publish(b"one", dedup_key="k")).duplicate_of == one.message
            await asyncio.gather(*(queue.publish(b"%d" % n) for n in range(20)))
            assert len(await queue.publish_many([b"x", Outgoing(uri="s3://b/k")])) == 2
            assert len(await store.publish_many([b"y", b"z"], headers={"queue": "q"})) == 2
            await store.publish(b"nobody's")
            assert await store.unmatched() == 1
            messages = await queue.claim(100, lease="1h", consumer="me")
            assert len(messages) == 25
            assert (messages[0].body, messages[0].headers["n"], messages[0].attempts) == (b"one", "1", 1)
            place = (await store.message(one.message)).places[0]
            assert (place.state, place.consumer) == ("in flight", "me")
            await messages[0].extend("2h")
            await messages[0].ack()
            with pytest.raises(StaleReceipt):
                await messages[0].ack()
            await messages[1].fail("no", final=True)
            await queue.ack(messages[2:])
            failed = [entry async for entry in queue.failed()]
            assert [(entry.reason, entry.attempts) for entry in failed] == [("no", 1)]
            assert await queue.redrive([failed[0].message]) == 1
            assert await queue.purge() == 1
            await queue.pause()
            await queue.publish(b"later")
            assert await queue.claim() == []
            await queue.resume()
            (message,) = await queue.claim(wait=WAIT)
            async with message:
                assert message.body == b"later"
            info = await queue.info()
            assert (info.total_acked, info.available, info.in_flight) == (25, 0, 0)
            await queue.delete()
            with pytest.raises(detent.NotFound):
                await queue.info()

        run(url, scenario)

    def test_waiting(self, url: str) -> None:
        """For a publish by another task, for a delay, for the end of a lease; a cancelled wait leaves nothing."""

        async def scenario(store: AsyncStore) -> None:
            queue = store.queue("q")
            await queue.create(backoff="0s")
            waiting = [asyncio.create_task(queue.claim(wait=WAIT)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await queue.publish(b"a")
            await queue.publish(b"b", delay="100ms")
            found = [(await task)[0] for task in waiting[1:]]
            assert sorted(bodies(found)) == [b"a", b"b"]
            await queue.ack(found)
            await queue.publish(b"c")
            (first,) = await queue.claim(lease="100ms")
            (second,) = await queue.claim(wait=WAIT)
            assert (second.id, second.attempts) == (first.id, 2)
            for call in (first.ack, first.fail, first.extend):
                with pytest.raises(StaleReceipt):
                    await call()
            await second.ack()
            await queue.publish_many([b"0", b"1", b"2"])
            seen = []
            async for message in queue.messages(batch=2, timeout="30ms"):
                async with message:
                    seen.append(message.body)
            assert seen == [b"0", b"1", b"2"]

        run(url, scenario)

    def test_transactions(self, url: str) -> None:
        async def scenario(store: AsyncStore) -> None:
            queue = store.queue("q")
            await queue.create(backoff="0s")
            await queue.publish_many([b"a", b"b"])
            a, b = await queue.claim(2)
            async with store.transaction() as t:
                t.ack(a)
                index = t.publish(b"next", queue="q")
                t.append("log", b"a")
            assert (a.settled, t.results[index].count) == (True, 1)
            with pytest.raises(StaleReceipt):
                async with store.transaction() as t:
                    t.publish(b"no", queue="q")
                    t.append("log", b"no")
                    t.ack(b)
                    t.ack(a)
            assert not b.settled
            assert [message.body async for message in store.journal("log").read()] == [b"a"]
            assert bodies(await queue.claim(10)) == [b"next"]
            with pytest.raises(ZeroDivisionError):
                async with b:
                    raise ZeroDivisionError
            (again,) = await queue.claim(10, wait=WAIT)
            assert (again.body, again.attempts) == (b"b", 2)

        run(url, scenario)

    def test_workers(self, url: str) -> None:
        """Several handlers at once, leases kept, exceptions failed, nothing settled twice."""

        async def scenario(store: AsyncStore) -> None:
            queue = store.queue("q")
            await queue.create(max_attempts=1)
            await queue.publish_many([b"slow", b"raises", b"transaction", b"together", b"together"])
            together = asyncio.Event()
            waiting = 0

            async def handle(message: Any) -> None:
                nonlocal waiting
                if message.body == b"raises":
                    raise ZeroDivisionError("by zero")
                if message.body == b"transaction":
                    async with store.transaction() as t:
                        t.append("log", b"done")
                        t.ack(message)
                if message.body == b"together":
                    waiting += 1
                    if waiting == 2:
                        together.set()
                    await asyncio.wait_for(together.wait(), PATIENCE_S)
                if message.body == b"slow":
                    first = message.lease_until
                    while not (first < datetime.now(UTC) < (await store.message(message.id)).places[0].at):
                        await asyncio.sleep(0.02)
                    worker.stop()

            worker = AsyncWorker(queue, handle, concurrency=3, lease="1s")
            await worker.run()
            info = await queue.info()
            assert (info.total_acked, info.failed, info.in_flight, info.available) == (4, 1, 0, 0)
            assert (worker.handled, worker.failed) == (4, 1)
            assert [entry.reason async for entry in queue.failed()] == ["ZeroDivisionError: by zero"]

        run(url, scenario)
