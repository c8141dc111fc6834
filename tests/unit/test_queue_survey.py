"""Surveys: the sums of all queues, and the ones that are picked, whatever is in the store."""

from __future__ import annotations

import random

import pytest

import detent
from detent.errors import Invalid
from detent.queue.info import queue_info
from detent.queue.surveying import SURVEY_MAX, QueueSurvey, SurveyQueues


def survey(store: detent.Store, op: SurveyQueues) -> QueueSurvey:
    (found,) = store.commit([op])
    assert isinstance(found, QueueSurvey)
    return found


def names(store: detent.Store, op: SurveyQueues) -> list[str]:
    return [queue.name for queue in survey(store, op).queues]


def test_totals_are_the_sums_of_what_each_queue_says() -> None:
    chance = random.Random(7)
    with detent.open("memory:") as store:
        for number in range(8):
            queue = store.queue(f"q{number}")
            queue.create(max_attempts=1, paused=number == 3, group_header="group" if number % 2 else "")
            queue.publish_many([b"x"] * chance.randrange(1, 9), headers={"group": "a"} if number % 2 else {})
            if number != 3:
                claimed = queue.claim(3)
                for delivery in claimed[:1]:
                    delivery.ack()
                for delivery in claimed[1:2]:
                    delivery.fail("no")
        store.queue("q0").publish(b"later", delay="1h")
        found = survey(store, SurveyQueues())
        infos = store.queues()
        assert [queue_info(one) for one in found.queues] == infos
        totals = found.totals
        assert (totals.queues, totals.paused) == (8, 1)
        for field in ("available", "delayed", "blocked", "in_flight", "failed", "done"):
            assert getattr(totals, field) == sum(getattr(info, field) for info in infos), field
        for field, name in (("routed", "total_routed"), ("acked", "total_acked"), ("failures", "total_failed"),
                            ("expired", "total_expired"), ("purged", "total_purged")):  # fmt: skip
            assert getattr(totals, field) == sum(getattr(info, name) for info in infos), field
        assert found.unmatched == store.unmatched()


def test_orders_pick_the_highest_and_then_by_name() -> None:
    with detent.open("memory:") as store:
        for name, count in (("c", 2), ("a", 2), ("b", 5), ("d", 0)):
            store.queue(name).create(max_attempts=1)
            if count:
                store.queue(name).publish_many([b"x"] * count)
        assert names(store, SurveyQueues(order="backlog", limit=3)) == ["b", "a", "c"]
        assert names(store, SurveyQueues(order="name")) == ["a", "b", "c", "d"]
        (delivery,) = store.queue("c").claim()
        assert names(store, SurveyQueues(order="in_flight", limit=1)) == ["c"]
        delivery.fail("no")
        assert names(store, SurveyQueues(order="failed", limit=1)) == ["c"]
        assert names(store, SurveyQueues(order="routed", limit=2)) == ["b", "a"]
        assert names(store, SurveyQueues(prefix="c", order="backlog")) == ["c"]
        assert survey(store, SurveyQueues(prefix="c")).totals.queues == 1
        assert survey(store, SurveyQueues(limit=0)).queues == []


def test_label_puts_a_queue_first_or_leaves_it_out() -> None:
    with detent.open("memory:") as store:
        for name, labels in (("a", {}), ("b", {"metrics": "never"}), ("z", {"metrics": "always"})):
            store.queue(name).create(labels=labels)
        op = SurveyQueues(label="metrics")
        assert names(store, op) == ["z", "a"]
        assert survey(store, op).totals.queues == 3


def test_survey_of_an_empty_store_is_empty() -> None:
    with detent.open("memory:") as store:
        found = survey(store, SurveyQueues())
        assert (found.queues, found.totals.queues, found.unmatched) == ([], 0, 0)


def test_survey_describes_a_limited_number_and_knows_its_orders() -> None:
    with detent.open("memory:") as store:
        with pytest.raises(Invalid, match=f"at most {SURVEY_MAX}"):
            store.commit([SurveyQueues(limit=SURVEY_MAX + 1)])
        with pytest.raises(Invalid):
            store.commit([SurveyQueues(order="colour")])  # type: ignore[arg-type]
