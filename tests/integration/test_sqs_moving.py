"""Message move tasks: what they hold, what they wait for, when they end, and what is remembered of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from detent.errors import NotFound
from detent.queue import Outgoing
from detent.queue import operations as ops
from detent.server.access import Caller, Grant
from detent.server.sqs import moving
from sqsendpoint import Endpoint

GROUP = {"MessageGroupId": "g"}


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def start(endpoint: Endpoint, source: str, destination: str | None = None, **fields: Any) -> str:
    """Start a task; its handle."""
    given = {"SourceArn": arn(source), **({} if destination is None else {"DestinationArn": arn(destination)})}
    return str(endpoint.call("StartMessageMoveTask", {**given, **fields})["TaskHandle"])


def tasks(endpoint: Endpoint, source: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = endpoint.call("ListMessageMoveTasks", {"SourceArn": arn(source), "MaxResults": 10})[
        "Results"
    ]
    return found


def ended(endpoint: Endpoint, source: str) -> dict[str, Any]:
    """The newest task of a queue, once it is over."""
    task = endpoint.eventually(lambda: next((t for t in tasks(endpoint, source)[:1] if t["Status"] != "RUNNING"), None))
    assert task is not None
    return task


def send(endpoint: Endpoint, url: str, body: str, **fields: Any) -> None:
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": body, **fields})


def give_up(endpoint: Endpoint, url: str) -> None:
    """Receive a message, and give it back at once."""
    (message,) = endpoint.receive(url, 1)
    fields = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    endpoint.call("ChangeMessageVisibility", fields)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as started:
        yield started


def test_a_task_holds_a_few_large_messages_at_a_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = endpoint.create("from.fifo", ContentBasedDeduplication="true"), endpoint.create("to.fifo")
    bodies = [str(index) * 400 for index in range(9)]
    for body in bodies:
        send(endpoint, source, body, **GROUP)
    send(endpoint, source, "x" * 5_000, **GROUP)
    monkeypatch.setattr(moving, "STEP_BYTES", 2_000)
    sizes: list[int] = []
    commit = endpoint.store.commit

    async def watched(operations: list[Any]) -> list[Any]:
        published = [operation for operation in operations if isinstance(operation, ops.Publish)]
        sizes.extend(sum(map(len, operation.bodies)) for operation in published)
        results: list[Any] = await commit(operations)
        return results

    monkeypatch.setattr(endpoint.store, "commit", watched)
    start(endpoint, "from.fifo", "to.fifo")
    done = ended(endpoint, "from.fifo")
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 10)
    assert len(sizes) > 3
    assert all(size <= 2_000 for size in sizes[:-1])
    assert sizes[-1] == 5_000
    assert [message["Body"] for message in endpoint.receive(destination)] == [*bodies, "x" * 5_000]


def test_a_task_waits_for_groups_that_are_in_flight(endpoint: Endpoint) -> None:
    source, destination = endpoint.create("from.fifo", ContentBasedDeduplication="true"), endpoint.create("to.fifo")
    for body in "abc":
        send(endpoint, source, body, **GROUP)
    (held,) = endpoint.receive(source, 1)
    start(endpoint, "from.fifo", "to.fifo")
    endpoint.run(asyncio.sleep(0.3))
    assert tasks(endpoint, "from.fifo")[0]["Status"] == "RUNNING"
    endpoint.call("DeleteMessage", {"QueueUrl": source, "ReceiptHandle": held["ReceiptHandle"]})
    done = ended(endpoint, "from.fifo")
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    assert [message["Body"] for message in endpoint.receive(destination)] == ["b", "c"]


def test_a_task_that_waits_can_be_cancelled(endpoint: Endpoint) -> None:
    source = endpoint.create("from.fifo", ContentBasedDeduplication="true")
    endpoint.create("to.fifo")
    for body in "ab":
        send(endpoint, source, body, **GROUP)
    endpoint.receive(source, 1)
    handle = start(endpoint, "from.fifo", "to.fifo")
    endpoint.call("CancelMessageMoveTask", {"TaskHandle": handle})
    cancelled = endpoint.eventually(
        lambda: next((task for task in tasks(endpoint, "from.fifo") if task["Status"] == "CANCELLED"), None)
    )
    assert cancelled is not None
    assert cancelled["ApproximateNumberOfMessagesMoved"] == 0


@pytest.mark.parametrize("readable", [True, False])
def test_a_task_ends_when_its_key_is_revoked(readable: bool) -> None:
    revoked: set[Caller] = set()

    def still(caller: Caller) -> bool:
        if caller in revoked and not readable:
            raise NotFound("there is no file of keys")
        return caller not in revoked

    with Endpoint(still=still) as endpoint:
        source = endpoint.create("from")
        endpoint.create("to")
        for index in range(5):
            send(endpoint, source, str(index))
        caller = Caller("me", (Grant("consume", "queue", "from"), Grant("publish", "queue", "to")))
        fields = {"SourceArn": arn("from"), "DestinationArn": arn("to"), "MaxNumberOfMessagesPerSecond": 4}
        endpoint.call("StartMessageMoveTask", fields, caller)
        endpoint.eventually(lambda: tasks(endpoint, "from")[0]["ApproximateNumberOfMessagesMoved"])
        revoked.add(caller)
        failed = ended(endpoint, "from")
        assert (failed["Status"], failed["FailureReason"]) == ("FAILED", "AccessDenied")
        assert failed["ApproximateNumberOfMessagesMoved"] < 5


def test_tasks_are_those_of_a_queue_and_go_with_it(endpoint: Endpoint) -> None:
    source = endpoint.create("from")
    endpoint.create("to")
    for _ in range(12):
        send(endpoint, source, "x")
        start(endpoint, "from", "to")
        ended(endpoint, "from")
    assert len(tasks(endpoint, "from")) == len(endpoint.part._moving._tasks) == moving.TASKS_KEPT
    endpoint.call("DeleteQueue", {"QueueUrl": source})
    assert endpoint.part._moving._tasks == {}
    endpoint.create("from")
    assert tasks(endpoint, "from") == []


def test_a_task_does_not_go_on_in_a_new_queue_of_the_same_name(endpoint: Endpoint) -> None:
    source, destination = endpoint.create("from"), endpoint.create("to")
    for _ in range(10):
        send(endpoint, source, "old")
    start(endpoint, "from", "to", MaxNumberOfMessagesPerSecond=5)
    endpoint.eventually(lambda: tasks(endpoint, "from")[0]["ApproximateNumberOfMessagesMoved"])

    async def anew() -> None:
        queue = endpoint.store.queue("from")
        await queue.delete()
        await queue.create()
        await queue.publish_many([b"new"] * 10)

    endpoint.run(anew())
    endpoint.eventually(lambda: not endpoint.part._moving._running)
    assert {message["Body"] for message in endpoint.receive(destination)} == {"old"}
    assert endpoint.attributes(source)["ApproximateNumberOfMessages"] == "10"


def test_old_tasks_of_all_queues_are_forgotten(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "TASKS_MAX", 3)
    endpoint.create("to")
    for index in range(5):
        send(endpoint, endpoint.create(f"from-{index}"), "x")
        start(endpoint, f"from-{index}", "to")
        ended(endpoint, f"from-{index}")
    assert [bool(tasks(endpoint, f"from-{index}")) for index in range(5)] == [False, False, True, True, True]


def test_only_so_many_tasks_run_at_once(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "ACTIVE_MAX", 1)
    endpoint.create("to")
    for name in ("from-1", "from-2"):
        url = endpoint.create(name)
        for _ in range(3):
            send(endpoint, url, "x")
    start(endpoint, "from-1", "to", MaxNumberOfMessagesPerSecond=1)
    fields = {"SourceArn": arn("from-2"), "DestinationArn": arn("to")}
    assert endpoint.refused("StartMessageMoveTask", fields) == "OverLimit"


# -- messages that are refused ------------------------------------------------------------------------------------


def publish(endpoint: Endpoint, queue: str, *messages: tuple[bytes, dict[str, str]]) -> None:
    endpoint.run(endpoint.store.queue(queue).publish_many([Outgoing(body, headers) for body, headers in messages]))


def test_a_message_that_its_destination_refuses_stays_and_the_others_are_moved(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BATCH", 3)
    source, destination = endpoint.create("from"), endpoint.create("to")
    endpoint.run(endpoint.store.queue("to").configure(priority_header="urgency"))
    bad = {"urgency": "high"}
    messages = [(b"%d" % number, bad if number in {0, 1, 5} else {}) for number in range(10)]
    publish(endpoint, "from", *messages)
    for _ in range(2):  # a second task finds what the first one has left
        start(endpoint, "from", "to")
        failed = ended(endpoint, "from")
        assert failed["Status"] == "FAILED"
        assert "3 of the messages could not be moved" in failed["FailureReason"]
        assert "'urgency' is a priority" in failed["FailureReason"]
    first = tasks(endpoint, "from")[1]
    assert first["ApproximateNumberOfMessagesMoved"] == 7
    assert sorted(message["Body"] for message in endpoint.receive(destination)) == list("2346789")
    left = endpoint.receive(source, AttributeNames=["ApproximateReceiveCount"])
    assert [message["Body"] for message in left] == ["0", "1", "5"]
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in left} == {"1"}, "they count as not received"


def test_a_refused_message_of_a_group_lets_the_others_pass_in_order(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BATCH", 2)
    endpoint.create("from.fifo")
    destination = endpoint.create("to.fifo")
    group = endpoint.run(endpoint.store.queue("from.fifo").info()).group_header
    endpoint.run(endpoint.store.queue("to.fifo").configure(priority_header="urgency"))
    messages = [(body.encode(), {group: "g", **({"urgency": "high"} if body == "b" else {})}) for body in "abcde"]
    publish(endpoint, "from.fifo", *messages)
    start(endpoint, "from.fifo", "to.fifo")
    assert ended(endpoint, "from.fifo")["ApproximateNumberOfMessagesMoved"] == 4
    assert [message["Body"] for message in endpoint.receive(destination)] == list("acde")


# -- failed messages --------------------------------------------------------------------------------------------


@pytest.fixture
def failing(endpoint: Endpoint) -> str:
    """A queue whose dead-letter queue is gone, with two messages that have failed; its URL."""
    dead = endpoint.create("dead")
    policy = json.dumps({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1})
    url = endpoint.create("orders-2", RedrivePolicy=policy)
    endpoint.call("DeleteQueue", {"QueueUrl": dead})
    for body in "ab":
        send(endpoint, url, body)
        give_up(endpoint, url)
    assert endpoint.receive(url) == []
    assert endpoint.attributes(url)["DetentFailedMessages"] == "2"
    return url


def test_failed_messages_move_with_the_others_to_a_destination(endpoint: Endpoint, failing: str) -> None:
    destination = endpoint.create("to")
    send(endpoint, failing, "c")
    start(endpoint, "orders-2", "to")
    done = ended(endpoint, "orders-2")
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert sorted(message["Body"] for message in endpoint.receive(destination)) == ["a", "b", "c"]
    assert endpoint.attributes(failing)["DetentFailedMessages"] == "0"


def test_failed_messages_come_back_to_their_own_queue(endpoint: Endpoint, failing: str) -> None:
    send(endpoint, failing, "c")
    start(endpoint, "orders-2", "orders-2", MaxNumberOfMessagesPerSecond=1)
    done = ended(endpoint, "orders-2")
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    found = endpoint.receive(failing)
    assert sorted(message["Body"] for message in found) == ["a", "b", "c"]
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in found} == {"1"}
    again = {"SourceArn": arn("orders-2"), "DestinationArn": arn("orders-2")}
    assert endpoint.refused("StartMessageMoveTask", again) == "InvalidParameterValue"


def test_failed_messages_that_somebody_took_are_passed_over(endpoint: Endpoint, failing: str) -> None:
    destination = endpoint.create("to")
    commit, taken = endpoint.store.commit, []

    async def meddle(operations: list[Any]) -> list[Any]:
        results: list[Any] = await commit(operations)
        if isinstance(operations[0], ops.ListFailed) and not taken:
            taken.append(results[0].messages[0].message)
            await endpoint.store.queue("orders-2").redrive(taken)
        return results

    endpoint.store.commit = meddle
    start(endpoint, "orders-2", "to")
    done = ended(endpoint, "orders-2")
    assert done["Status"] == "COMPLETED"
    assert sorted(message["Body"] for message in endpoint.receive(destination)) == ["a", "b"]
    assert endpoint.attributes(failing)["DetentFailedMessages"] == "0"


def test_failed_messages_need_the_right_to_administer(endpoint: Endpoint, failing: str) -> None:
    endpoint.create("to")
    caller = Caller("me", (Grant("consume", "queue", "*"), Grant("publish", "queue", "*")))
    endpoint.call("StartMessageMoveTask", {"SourceArn": arn("orders-2"), "DestinationArn": arn("to")}, caller)
    assert ended(endpoint, "orders-2")["ApproximateNumberOfMessagesMoved"] == 0
    assert endpoint.attributes(failing)["DetentFailedMessages"] == "2"
