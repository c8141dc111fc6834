"""Queues of the SQS endpoint beside the ordinary: late deletions, FIFO queues by name alone, tags, dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sqsendpoint import Endpoint, json_error


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as started:
        yield started


def redrive_to(name: str, count: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{name}", "maxReceiveCount": count})


def give_up(endpoint: Endpoint, url: str) -> dict[str, Any]:
    """Receive a message, and give it back at once; the message."""
    (message,) = endpoint.receive(url, 1)
    fields = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    endpoint.call("ChangeMessageVisibility", fields)
    return message


def late_delete(endpoint: Endpoint, url: str, message: dict[str, Any]) -> str:
    """Delete a message with a handle that is over; the code of the error, alone and in a batch, or nothing."""
    handle = {"ReceiptHandle": message["ReceiptHandle"]}
    batch = endpoint.call("DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", **handle}]})
    response = endpoint.json("DeleteMessage", json.dumps({"QueueUrl": url, **handle}).encode())
    code = "" if response.status == 200 else json_error(response)[2]
    assert [entry["Code"] for entry in batch.get("Failed", [])] == ([code] if code else [])
    return code


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_late_deletion_of_a_dead_letter_is_an_error(endpoint: Endpoint, suffix: str) -> None:
    deadest, dead = endpoint.create("deadest" + suffix), ""
    dead = endpoint.create("dead" + suffix, RedrivePolicy=redrive_to("deadest" + suffix))
    url = endpoint.create("alive" + suffix, RedrivePolicy=redrive_to("dead" + suffix))
    group = {"MessageGroupId": "g", "MessageDeduplicationId": "1"} if suffix else {}
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x", **group})
    message = give_up(endpoint, url)
    assert late_delete(endpoint, url, message) == "InvalidParameterValue"
    give_up(endpoint, dead)
    assert late_delete(endpoint, url, message) == "InvalidParameterValue"
    (last,) = endpoint.receive(deadest)
    assert last["MessageId"] == message["MessageId"]
    endpoint.call("DeleteMessage", {"QueueUrl": deadest, "ReceiptHandle": last["ReceiptHandle"]})
    assert late_delete(endpoint, url, message) == ""


def test_a_late_deletion_of_a_message_that_has_failed_is_an_error(endpoint: Endpoint) -> None:
    url = endpoint.create("alive", DetentMaxAttempts="1")
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    message = give_up(endpoint, url)
    assert late_delete(endpoint, url, message) == "InvalidParameterValue"
    endpoint.call("PurgeQueue", {"QueueUrl": url})
    assert late_delete(endpoint, url, message) == ""


def test_a_deletion_is_repeated_whatever_other_queues_have(endpoint: Endpoint) -> None:
    url = endpoint.create("alive", DetentDoneRetention="3600")
    copies = endpoint.create("copies", DetentFilter='headers.queue == "alive"')
    endpoint.call("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"RedrivePolicy": redrive_to("copies")}})
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    (message,) = endpoint.receive(url)
    assert late_delete(endpoint, url, message) == ""
    assert late_delete(endpoint, url, message) == ""
    assert len(endpoint.receive(copies)) == 1


def test_a_dead_letter_keeps_its_id_when_its_queue_is_deleted(endpoint: Endpoint) -> None:
    dead = endpoint.create("dead")
    url = endpoint.create("alive", RedrivePolicy=redrive_to("dead"))
    sent = endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    give_up(endpoint, url)
    endpoint.call("DeleteQueue", {"QueueUrl": url})
    (message,) = endpoint.receive(dead)
    assert message["MessageId"] == sent["MessageId"]


def test_receives_of_a_dead_letter_are_counted_on(endpoint: Endpoint) -> None:
    dead = endpoint.create("dead")
    url = endpoint.create("alive", RedrivePolicy=redrive_to("dead", 2))
    endpoint.create("other", RedrivePolicy=redrive_to("dead"))
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    give_up(endpoint, url)
    before = give_up(endpoint, url)["Attributes"]
    found = give_up(endpoint, dead)["Attributes"]
    assert found["ApproximateReceiveCount"] == "3"
    assert found["DeadLetterQueueSourceArn"].endswith(":alive")
    assert found["ApproximateFirstReceiveTimestamp"] == before["ApproximateFirstReceiveTimestamp"]
    assert give_up(endpoint, dead)["Attributes"]["ApproximateReceiveCount"] == "4"


def test_message_from_anywhere_goes_back_to_the_queue_that_gave_it_up(endpoint: Endpoint) -> None:
    """It was sent to a queue that has no dead-letter queue, and came by a filter to the one that gave it up."""
    dead, plain = endpoint.create("dead"), endpoint.create("plain")
    url = endpoint.create("copies", DetentFilter="true", RedrivePolicy=redrive_to("dead"))
    endpoint.create("other", RedrivePolicy=redrive_to("dead"))
    endpoint.call("SendMessage", {"QueueUrl": plain, "MessageBody": "x"})
    give_up(endpoint, url)
    assert endpoint.attributes(dead)["ApproximateNumberOfMessages"] == "1"
    source = "arn:aws:sqs:us-east-1:000000000000:dead"
    endpoint.call("StartMessageMoveTask", {"SourceArn": source})
    task = endpoint.eventually(
        lambda: next(
            (
                one
                for one in endpoint.call("ListMessageMoveTasks", {"SourceArn": source})["Results"]
                if one["Status"] != "RUNNING"
            ),
            None,
        )
    )
    assert task["Status"] == "COMPLETED", task
    assert len(endpoint.receive(url)) == 1


def test_a_dead_letter_queue_keeps_what_came_for_its_own_retention(endpoint: Endpoint) -> None:
    dead = endpoint.create("dead", MessageRetentionPeriod="1209600")
    url = endpoint.create("alive", MessageRetentionPeriod="60", RedrivePolicy=redrive_to("dead"))
    kept = {"alive": 60.0, "dead": 1_209_600.0}
    for name, seconds in kept.items():
        info = endpoint.run(endpoint.store.queue(name).info())
        assert info.dead_letter_retention.total_seconds() == seconds
    endpoint.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    give_up(endpoint, url)
    endpoint.call("SetQueueAttributes", {"QueueUrl": dead, "Attributes": {"MessageRetentionPeriod": "600"}})
    assert endpoint.run(endpoint.store.queue("dead").info()).dead_letter_retention.total_seconds() == 600
    assert endpoint.attributes(dead)["ApproximateNumberOfMessages"] == "1"


def test_delayed_messages_of_one_group_all_count_as_delayed(endpoint: Endpoint) -> None:
    url = endpoint.create("slow.fifo", DelaySeconds="900")
    for number in range(5):
        sent = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": str(number)}
        endpoint.call("SendMessage", {"QueueUrl": url, **sent})
    found = endpoint.attributes(url)
    counts = [found["ApproximateNumberOfMessages" + which] for which in ("", "Delayed", "NotVisible")]
    assert counts == ["0", "5", "0"]


def test_a_queue_that_is_fifo_by_name_alone_is_no_fifo_queue(endpoint: Endpoint) -> None:
    endpoint.run(endpoint.store.queue("named.fifo").create())
    create = json.dumps({"QueueName": "named.fifo", "Attributes": {"FifoQueue": "true"}}).encode()
    response = endpoint.json("CreateQueue", create)
    assert json_error(response) == (400, "QueueNameExists", "QueueAlreadyExists")
    assert b"group header sqs-group" in bytes(response.body)  # type: ignore[arg-type]
    url = endpoint.call("GetQueueUrl", {"QueueName": "named.fifo"})["QueueUrl"]
    assert "FifoQueue" not in endpoint.attributes(url)
    unsupported = "AWS.SimpleQueueService.UnsupportedOperation"
    group = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"}
    assert endpoint.refused("SendMessage", {"QueueUrl": url, **group}) == unsupported
    assert endpoint.refused("SendMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", **group}]}) == unsupported
    scope = {"QueueUrl": url, "Attributes": {"DeduplicationScope": "queue"}}
    assert endpoint.refused("SetQueueAttributes", scope) == "InvalidAttributeName"
    policy = {"QueueUrl": url, "Attributes": {"RedrivePolicy": redrive_to("orders.fifo")}}
    endpoint.create("orders.fifo")
    assert endpoint.refused("SetQueueAttributes", policy) == "InvalidParameterValue"
    arns = {
        f"{which}Arn": f"arn:aws:sqs:r:0:{name}"
        for which, name in (("Source", "orders"), ("Destination", "named.fifo"))
    }
    assert endpoint.refused("StartMessageMoveTask", arns) == unsupported


def test_the_delay_of_a_fifo_queue_is_that_of_all_its_messages(endpoint: Endpoint) -> None:
    url = endpoint.create("late.fifo", DelaySeconds="900")
    fields = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"}
    assert endpoint.refused("SendMessage", {**fields, "DelaySeconds": 1}) == "InvalidParameterValue"
    endpoint.call("SendMessage", {**fields, "DelaySeconds": 0})
    assert endpoint.receive(url) == []


def test_an_odd_allow_policy_is_the_same_when_it_is_given_again(endpoint: Endpoint) -> None:
    odd = '{"redrivePermission": "allowAll", "deadLetterTargetArn": 5}'
    assert endpoint.create("odd", RedriveAllowPolicy=odd) == endpoint.create("odd", RedriveAllowPolicy=odd)


def test_tags_have_keys_of_any_alphabet(endpoint: Endpoint) -> None:
    long = {"é" * 128: "v", "日" * 100: "w" * 256, "🎉" * 128: "🎉" * 256}
    url = endpoint.call("CreateQueue", {"QueueName": "tagged", "tags": {"a": "b", **long}})["QueueUrl"]
    assert endpoint.call("ListQueueTags", {"QueueUrl": url})["Tags"] == {"a": "b", **long}
    endpoint.call("TagQueue", {"QueueUrl": url, "Tags": {"é" * 128: "new"}})
    endpoint.call("UntagQueue", {"QueueUrl": url, "TagKeys": ["日" * 100, "a"]})
    assert endpoint.call("ListQueueTags", {"QueueUrl": url})["Tags"] == {"é" * 128: "new", "🎉" * 128: "🎉" * 256}
