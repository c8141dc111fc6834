"""The SQS endpoint as boto3 sees it, over a real server and a real store."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

import detent
from processes import PATIENCE_S, eventually
from sqsserver import PATIENT, SqsServer, running

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with running(tmp_path_factory.mktemp("sqs") / "store") as started:
        yield started


@pytest.fixture(scope="module")
def sqs(server: SqsServer) -> Any:
    return server.client(config=PATIENT)


@pytest.fixture
def make(sqs: Any) -> Callable[..., str]:
    """Makes queues with names of their own; their URLs."""

    def create(fifo: bool = False, **attributes: str) -> str:
        name = f"queue-{next(NUMBERS)}" + (".fifo" if fifo else "")
        given = {"FifoQueue": "true", **attributes} if fifo else attributes
        url: str = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
        return url

    return create


@pytest.fixture
def store(server: SqsServer) -> Iterator[detent.Store]:
    """The same store, through Detent's own API."""
    with detent.open(f"file:{server.store}", role="client") as opened:
        yield opened


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return str(caught.value.response["Error"]["Code"])


def receive(sqs: Any, url: str, count: int = 10, **options: Any) -> list[dict[str, Any]]:
    """What can be received now."""
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=count, AttributeNames=["All"], MessageAttributeNames=["All"], **options
    ).get("Messages", [])
    return found


def arn_of(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


# -- messages ---------------------------------------------------------------------------------------------------


def test_a_message_is_sent_received_and_deleted(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    body = "an order\r\n\t<&> ü 🎉"
    sent = sqs.send_message(QueueUrl=url, MessageBody=body)
    assert sent["MD5OfMessageBody"] == hashlib.md5(body.encode()).hexdigest()
    (message,) = receive(sqs, url)
    assert message["Body"] == body
    assert message["MessageId"] == sent["MessageId"] == str(uuid.UUID(sent["MessageId"]))
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert abs(int(message["Attributes"]["SentTimestamp"]) / 1000 - time.time()) < 3600
    assert message["Attributes"]["SenderId"]
    assert receive(sqs, url) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # again: nothing is wrong with that
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_attributes_of_all_types_come_back_and_can_be_chosen(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    given = {
        "tier": {"DataType": "String", "StringValue": "gold"},
        "number": {"DataType": "Number", "StringValue": "-12.50"},
        "own.type": {"DataType": "String.colour", "StringValue": "ü\r\n"},
        "binary": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
        "queue": {"DataType": "String", "StringValue": "not an address"},
        "large": {"DataType": "String", "StringValue": "x" * 20_000},
    }
    sqs.send_message(
        QueueUrl=url,
        MessageBody="body",
        MessageAttributes=given,
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}},
    )
    (message,) = receive(sqs, url, VisibilityTimeout=0)
    assert message["MessageAttributes"] == given
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"
    assert message["Body"] == "body"

    def chosen(*names: str) -> set[str]:
        found = eventually(
            lambda: sqs.receive_message(
                QueueUrl=url,
                MessageAttributeNames=list(names),
                MessageSystemAttributeNames=["SentTimestamp"],
                VisibilityTimeout=0,
            ).get("Messages")
        )
        assert set(found[0]["Attributes"]) == {"SentTimestamp"}
        return set(found[0].get("MessageAttributes", {}))

    assert chosen() == set()
    assert chosen("tier", "none") == {"tier"}
    assert chosen("own.*") == {"own.type"}
    assert chosen(".*") == set(given)


def test_the_largest_message_fits_and_one_byte_more_does_not(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    sqs.send_message(QueueUrl=url, MessageBody="x" * (1 << 20))
    assert len(receive(sqs, url)[0]["Body"]) == 1 << 20
    with pytest.raises(ClientError) as caught:
        sqs.send_message(QueueUrl=url, MessageBody="x" * ((1 << 20) + 1))
    assert code_of(caught) == "InvalidParameterValue"
    small = make(MaximumMessageSize="1024")
    with pytest.raises(ClientError) as caught:
        sqs.send_message(QueueUrl=small, MessageBody="x" * 1025)
    assert code_of(caught) == "InvalidParameterValue"


def test_each_entry_of_a_batch_has_an_answer_of_its_own(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    entries = [{"Id": f"e{index}", "MessageBody": f"m{index}"} for index in range(8)]
    entries += [{"Id": "bad", "MessageBody": "\x01"}, {"Id": "late", "MessageBody": "later", "DelaySeconds": 900}]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == [f"e{index}" for index in range(8)] + ["late"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("bad", "InvalidMessageContents", True)
    ]
    found = receive(sqs, url)
    assert [message["Body"] for message in found] == [f"m{index}" for index in range(8)]
    handles = [{"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]} for index, message in enumerate(found)]
    change = [{**entry, "VisibilityTimeout": 60} for entry in handles] + [
        {"Id": "bad", "ReceiptHandle": "nonsense", "VisibilityTimeout": 60}
    ]
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=change)
    assert len(answer["Successful"]) == 8
    assert [entry["Code"] for entry in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[*handles, {"Id": "bad", "ReceiptHandle": "nonsense"}])
    assert len(answer["Successful"]) == 8
    assert [entry["Code"] for entry in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert len(answer["Successful"]) == 8
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "0"
    assert attributes["ApproximateNumberOfMessagesDelayed"] == "1"


def test_a_visibility_of_zero_gives_a_message_back_at_once(sqs: Any, make: Callable[..., str]) -> None:
    url = make(VisibilityTimeout="43200")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (second,) = receive(sqs, url)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    received = int(second["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert int(second["Attributes"]["SentTimestamp"]) <= received


def test_an_old_handle_never_deletes_a_newer_delivery(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (old,) = receive(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"], VisibilityTimeout=0)
    (new,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])  # SQS says nothing, and deletes nothing
    with pytest.raises(ClientError) as caught:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"], VisibilityTimeout=0)
    assert code_of(caught) == "AWS.SimpleQueueService.MessageNotInflight"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=new["ReceiptHandle"], VisibilityTimeout=0)
    with pytest.raises(ClientError) as caught:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=new["ReceiptHandle"])  # nobody has it: the caller must know
    assert code_of(caught) == "InvalidParameterValue"
    (newest,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=newest["ReceiptHandle"])
    with pytest.raises(ClientError) as caught:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=newest["ReceiptHandle"], VisibilityTimeout=5)
    assert code_of(caught) == "InvalidParameterValue"


def test_a_message_whose_visibility_ends_comes_again(sqs: Any, make: Callable[..., str]) -> None:
    url = make(VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url)
    (second,) = receive(sqs, url, WaitTimeSeconds=20)
    assert second["MessageId"] == first["MessageId"]


def test_delays_of_messages_and_of_queues_hold_messages_back(sqs: Any, make: Callable[..., str]) -> None:
    url = make(DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="later")
    sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=1)
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert [message["Body"] for message in receive(sqs, url)] == ["now"]
    assert [message["Body"] for message in receive(sqs, url, WaitTimeSeconds=20)] == ["soon"]
    assert receive(sqs, url) == []


def test_a_long_poll_ends_when_a_message_comes(server: SqsServer, sqs: Any, make: Callable[..., str]) -> None:
    url = make(ReceiveMessageWaitTimeSeconds="20")
    found: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: found.extend(receive(server.client(config=PATIENT), url, 1))) for _ in range(5)
    ]
    for thread in waiting:
        thread.start()
    for index in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=str(index))
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert sorted(message["Body"] for message in found) == ["0", "1", "2", "3", "4"]


def test_a_consumer_that_hangs_up_takes_no_message_along(server: SqsServer, sqs: Any, make: Callable[..., str]) -> None:
    import httpx

    url = make()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, data={"Action": "ReceiveMessage", "WaitTimeSeconds": "20"}, timeout=0.5)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# -- queues -----------------------------------------------------------------------------------------------------


def test_queues_are_created_found_listed_and_deleted(sqs: Any) -> None:
    urls = [sqs.create_queue(QueueName=f"listed-{index}")["QueueUrl"] for index in range(5)]
    assert sqs.get_queue_url(QueueName="listed-0")["QueueUrl"] == urls[0]
    assert sqs.list_queues(QueueNamePrefix="listed-")["QueueUrls"] == urls
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="listed-", PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="none-")
    sqs.delete_queue(QueueUrl=urls[0])
    for call in (sqs.delete_queue, sqs.receive_message, sqs.purge_queue):
        with pytest.raises(sqs.exceptions.QueueDoesNotExist) as caught:
            call(QueueUrl=urls[0])
        assert code_of(caught) == "AWS.SimpleQueueService.NonExistentQueue"
    assert sqs.create_queue(QueueName="listed-0")["QueueUrl"] == urls[0]


def test_creating_a_queue_again_needs_the_same_attributes(sqs: Any, make: Callable[..., str]) -> None:
    url = make(DelaySeconds="5", VisibilityTimeout="7")
    name = name_of(url)
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "5"})["QueueUrl"] == url
    with pytest.raises(sqs.exceptions.QueueNameExists) as caught:
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "8"})
    assert code_of(caught) == "QueueAlreadyExists"


def test_attributes_are_set_and_asked_for(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    asked = ["VisibilityTimeout", "DelaySeconds", "MaximumMessageSize", "MessageRetentionPeriod", "RedrivePolicy"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
    assert attributes == {
        "VisibilityTimeout": "30",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
    }
    changes = {"VisibilityTimeout": "0", "DelaySeconds": "3", "MessageRetentionPeriod": "60", "KmsMasterKeyId": ""}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changes)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"ReceiveMessageWaitTimeSeconds": "1"})
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["VisibilityTimeout"] == "0"
    assert attributes["DelaySeconds"] == "3"
    assert attributes["MessageRetentionPeriod"] == "60"
    assert attributes["ReceiveMessageWaitTimeSeconds"] == "1"
    assert attributes["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name_of(url)}"
    assert int(attributes["LastModifiedTimestamp"]) >= int(attributes["CreatedTimestamp"])
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)


def test_a_purge_removes_what_waits(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    for delay in (0, 0, 900):
        sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    sqs.purge_queue(QueueUrl=url)
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesDelayed"] == "0"


def test_tags_are_kept_with_the_queue(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="tagged", tags={"team": "a", "cost": "1"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "new": ""})
    sqs.untag_queue(QueueUrl=url, TagKeys=["cost", "none"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "new": ""}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "new": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "new"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


# -- Detent's own queues ----------------------------------------------------------------------------------------


def test_detents_consumers_see_body_and_attributes(sqs: Any, make: Callable[..., str], store: detent.Store) -> None:
    url = make()
    given = {"tier": {"DataType": "String", "StringValue": "gold"}}
    sqs.send_message(QueueUrl=url, MessageBody="ü", MessageAttributes=given)
    (message,) = store.queue(name_of(url)).claim()
    assert message.body == "ü".encode()
    assert message.headers["tier"] == "gold"
    message.ack()


def test_sqs_consumers_see_what_detents_producers_publish(sqs: Any, store: detent.Store) -> None:
    queue = store.queue("made-by-detent")
    queue.create()
    queue.publish(b"text", headers={"tier": "gold"})
    queue.publish(b"\xff\x00")
    queue.publish(detent.Outgoing(uri="s3://bucket/key"))
    url = sqs.get_queue_url(QueueName="made-by-detent")["QueueUrl"]
    found = receive(sqs, url)
    assert [message["Body"] for message in found] == ["text", "/wA=", "s3://bucket/key"]
    assert found[0]["MessageAttributes"] == {"tier": {"DataType": "String", "StringValue": "gold"}}
    assert [message["MessageAttributes"]["DetentEncoding"]["StringValue"] for message in found[1:]] == ["base64", "uri"]


def test_a_queue_that_somebody_else_makes_anew_is_the_new_one(
    sqs: Any, make: Callable[..., str], store: detent.Store
) -> None:
    url = make()
    queue = store.queue(name_of(url))
    sqs.send_message(QueueUrl=url, MessageBody="old")
    queue.delete()
    queue.create()
    queue.publish(b"new")
    (message,) = receive(sqs, url)
    assert message["Body"] == "new"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert queue.info().in_flight == 0


def test_filters_priorities_and_dedup_are_a_matter_of_attributes(sqs: Any) -> None:
    name = f"orders-{uuid.uuid4().hex}"
    gold = f'headers.queue == "{name}" && headers.tier == "gold"'
    url = sqs.create_queue(QueueName=name, Attributes={"DetentPriorityHeader": "urgency"})["QueueUrl"]
    filtered = sqs.create_queue(QueueName=f"{name}-gold", Attributes={"DetentFilter": gold})["QueueUrl"]

    def send(body: str, urgency: str, tier: str, key: str) -> str:
        attributes = {
            "urgency": {"DataType": "Number", "StringValue": urgency},
            "tier": {"DataType": "String", "StringValue": tier},
            "DetentDedupKey": {"DataType": "String", "StringValue": key},
        }
        return str(sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)["MessageId"])

    first = send("slow", "200", "iron", "1")
    send("fast", "1", "gold", "2")
    assert send("slow again", "200", "iron", "1") == first
    with pytest.raises(ClientError, match="the header 'urgency' is a priority, a number from 0"):
        send("never", "256", "iron", "3")
    assert [message["Body"] for message in receive(sqs, url)] == ["fast", "slow"]
    assert [message["Body"] for message in receive(sqs, filtered)] == ["fast"]


def test_settings_of_detents_are_attributes(sqs: Any, make: Callable[..., str]) -> None:
    given = {
        "DetentMaxLease": "600",
        "DetentBackoff": "2",
        "DetentMaxBackoff": "60",
        "DetentDoneRetention": "30",
        "DetentMaxAttempts": "4",
        "DetentPriorityHeader": "urgency",
        "DetentPaused": "true",
        "DetentDedupRetries": "true",
        "DetentDedupWindow": "90000",
    }
    url = make(**given)
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(given))["Attributes"] == given
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DetentPaused": "false", "DetentDedupWindow": "86400"})
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DetentAll"])["Attributes"]
    assert attributes["DetentPaused"] == "false"
    assert attributes["DetentMaxAttempts"] == "4"
    with pytest.raises(ClientError) as caught:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "601"})
    assert code_of(caught) == "InvalidParameterValue"


def test_a_call_that_is_repeated_sends_once_where_the_queue_says_so(
    server: SqsServer, make: Callable[..., str]
) -> None:
    import httpx

    url = make(DetentDedupRetries="true")
    form = {"Action": "SendMessageBatch"}
    for number in (1, 2):
        form[f"SendMessageBatchRequestEntry.{number}.Id"] = f"e{number}"
        form[f"SendMessageBatchRequestEntry.{number}.MessageBody"] = "the same"
    headers = {"amz-sdk-invocation-id": str(uuid.uuid4())}
    first, again = (httpx.post(url, data=form, headers=headers).text for _ in range(2))
    assert first.partition("<ResponseMetadata>")[0] == again.partition("<ResponseMetadata>")[0]
    assert len(receive(server.client(config=PATIENT), url)) == 2


# -- move tasks, dead letters -----------------------------------------------------------------------------------


def test_messages_move_to_another_queue_once_each(sqs: Any, make: Callable[..., str]) -> None:
    source, destination = make(), make()
    given = {"b": {"DataType": "Binary", "BinaryValue": b"\x00"}, "n": {"DataType": "Number", "StringValue": "1"}}
    for index in range(25):
        sqs.send_message(QueueUrl=source, MessageBody=str(index), MessageAttributes=given)
    arns = {"SourceArn": arn_of(sqs, source), "DestinationArn": arn_of(sqs, destination)}
    handle = sqs.start_message_move_task(**arns)["TaskHandle"]

    def task() -> dict[str, Any]:
        found: dict[str, Any] = sqs.list_message_move_tasks(SourceArn=arns["SourceArn"])["Results"][0]
        return found

    done = eventually(lambda: task() if task()["Status"] != "RUNNING" else None)
    assert done["Status"] == "COMPLETED"
    assert done["ApproximateNumberOfMessagesMoved"] == done["ApproximateNumberOfMessagesToMove"] == 25
    assert done["DestinationArn"] == arns["DestinationArn"]
    with pytest.raises(ClientError) as caught:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert code_of(caught) == "AWS.SimpleQueueService.UnsupportedOperation"
    found = [message for _ in range(3) for message in receive(sqs, destination)]
    assert sorted(int(message["Body"]) for message in found) == list(range(25))
    assert all(message["MessageAttributes"] == given for message in found)
    assert receive(sqs, source) == []


def test_a_move_task_keeps_to_its_rate_and_can_be_cancelled(sqs: Any, make: Callable[..., str]) -> None:
    source, destination = make(), make()
    for first in range(0, 100, 10):
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(first, first + 10)]
        sqs.send_message_batch(QueueUrl=source, Entries=entries)
    arns = {"SourceArn": arn_of(sqs, source), "DestinationArn": arn_of(sqs, destination)}
    handle = sqs.start_message_move_task(**arns, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    with pytest.raises(ClientError):
        sqs.start_message_move_task(**arns)
    eventually(lambda: receive(sqs, destination))
    assert sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] < 100

    def status() -> str:
        return str(sqs.list_message_move_tasks(SourceArn=arns["SourceArn"])["Results"][0]["Status"])

    eventually(lambda: status() == "CANCELLED")
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    found = [
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"] for url in (source, destination)
    ]
    assert sum(int(attributes[name]) for attributes in found for name in names) == 100


def test_a_move_needs_a_destination_or_sources(sqs: Any, make: Callable[..., str]) -> None:
    url = make()
    with pytest.raises(ClientError) as caught:
        sqs.start_message_move_task(SourceArn=arn_of(sqs, url))
    assert code_of(caught) == "InvalidParameterValue"


def test_a_message_received_too_often_goes_to_the_dead_letter_queue_and_back(
    sqs: Any, make: Callable[..., str]
) -> None:
    dead = make()
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": "2"})
    url = make(RedrivePolicy=policy)
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
    assert json.loads(attributes["RedrivePolicy"]) == {"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 2}
    assert sqs.create_queue(QueueName=name_of(url), Attributes={"RedrivePolicy": policy})["QueueUrl"] == url
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sent = sqs.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(2):
        (message,) = receive(sqs, url)
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert receive(sqs, url) == []
    (message,) = receive(sqs, dead)
    assert message["Body"] == "poison"
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)
    sqs.change_message_visibility(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    (message,) = receive(sqs, url, WaitTimeSeconds=20)
    assert message["Body"] == "poison"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []


def test_dead_letters_of_several_queues_go_back_each_to_its_own(sqs: Any, make: Callable[..., str]) -> None:
    dead = make()
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    urls = [make(RedrivePolicy=policy) for _ in range(2)]
    for url in urls:
        sqs.send_message(QueueUrl=url, MessageBody=name_of(url))
        (message,) = receive(sqs, url)
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    for url in urls:
        (message,) = receive(sqs, url, WaitTimeSeconds=20)
        assert message["Body"] == name_of(url)
    sqs.send_message(QueueUrl=dead, MessageBody="sent to the dead letter queue itself")

    def task() -> dict[str, Any]:
        found: dict[str, Any] = sqs.list_message_move_tasks(SourceArn=arn_of(sqs, dead))["Results"][0]
        return found

    eventually(lambda: task()["Status"] == "COMPLETED")
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    failed = eventually(lambda: task() if task()["Status"] == "FAILED" else None)
    assert failed["FailureReason"] == "CouldNotDetermineMessageSource"
    assert len(receive(sqs, dead)) == 1


def test_dead_letter_queues_say_who_may_use_them(sqs: Any, make: Callable[..., str]) -> None:
    denied = make(RedriveAllowPolicy='{"redrivePermission": "denyAll"}')
    allowed = f"arn:aws:sqs:us-east-1:000000000000:queue-allowed-{uuid.uuid4().hex}"
    chosen = make(RedriveAllowPolicy=json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [allowed]}))
    for dead in (denied, chosen):
        policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
        with pytest.raises(ClientError) as caught:
            make(RedrivePolicy=policy)
        assert code_of(caught) == "InvalidParameterValue"
    sqs.create_queue(QueueName=allowed.rpartition(":")[2], Attributes={"RedrivePolicy": policy})


# -- FIFO queues ------------------------------------------------------------------------------------------------


def test_a_fifo_queue_keeps_the_order_of_each_group(sqs: Any, make: Callable[..., str]) -> None:
    url = make(fifo=True, ContentBasedDeduplication="true")
    numbers = [
        sqs.send_message(QueueUrl=url, MessageBody=f"{group}{index}", MessageGroupId=group)["SequenceNumber"]
        for index in range(3)
        for group in ("a", "b")
    ]
    assert numbers == sorted(numbers)
    (first,) = receive(sqs, url, 1)
    assert first["Body"] == "a0"
    assert first["Attributes"]["MessageGroupId"] == "a"
    assert first["Attributes"]["SequenceNumber"] == numbers[0]
    assert first["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"a0").hexdigest()
    others = receive(sqs, url)
    assert [message["Body"] for message in others] == ["b0", "b1", "b2"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert [message["Body"] for message in receive(sqs, url)] == ["a1", "a2"]


def test_a_fifo_queue_knows_duplicates(sqs: Any, make: Callable[..., str]) -> None:
    url = make(fifo=True)

    def send(body: str, dedup: str, group: str = "g") -> tuple[str, str]:
        sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=dedup)
        return sent["MessageId"], sent["SequenceNumber"]

    first = send("one", "1")
    assert send("another", "1", "other") == first
    assert send("two", "2") != first
    assert [message["Body"] for message in receive(sqs, url)] == ["one", "two"]
    grouped = make(fifo=True, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in ("a", "b", "a"):
        sqs.send_message(QueueUrl=grouped, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="1")
    assert [message["Body"] for message in receive(sqs, grouped)] == ["a", "b"]


def test_a_fifo_queue_refuses_what_it_cannot_order(sqs: Any, make: Callable[..., str]) -> None:
    url = make(fifo=True)
    for fields, code in (
        ({"MessageDeduplicationId": "1"}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 5}, "InvalidParameterValue"),
        ({"MessageGroupId": "g h", "MessageDeduplicationId": "1"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "1" * 129}, "InvalidParameterValue"),
    ):
        with pytest.raises(ClientError) as caught:
            sqs.send_message(QueueUrl=url, MessageBody="x", **fields)
        assert code_of(caught) == code
    assert receive(sqs, url) == []


def test_the_same_attempt_gets_the_same_messages(sqs: Any, make: Callable[..., str]) -> None:
    url = make(fifo=True, ContentBasedDeduplication="true")
    for body in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    first = receive(sqs, url, ReceiveRequestAttemptId="try")
    assert [message["Body"] for message in first] == ["a", "b"]
    again = receive(sqs, url, ReceiveRequestAttemptId="try")
    assert [message["ReceiptHandle"] for message in again] == [message["ReceiptHandle"] for message in first]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert receive(sqs, url, ReceiveRequestAttemptId="try") == []


def test_an_expired_handle_of_a_fifo_queue_is_an_error(sqs: Any, make: Callable[..., str]) -> None:
    url = make(fifo=True, ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    (old,) = receive(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"], VisibilityTimeout=0)
    receive(sqs, url)
    with pytest.raises(ClientError) as caught:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    assert code_of(caught) == "InvalidParameterValue"


def test_dead_letters_of_a_fifo_queue_come_back_in_their_order(sqs: Any, make: Callable[..., str]) -> None:
    dead = make(fifo=True)
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    url = make(fifo=True, ContentBasedDeduplication="true", RedrivePolicy=policy)
    with pytest.raises(ClientError):
        make(RedrivePolicy=policy)  # a standard queue has a standard one
    for index in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=str(index), MessageGroupId="g")
    found = receive(sqs, url)
    entries = [
        {"Id": message["Body"], "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0} for message in found
    ]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)["Successful"]) == 5
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    back = receive(sqs, url, WaitTimeSeconds=20)
    assert [message["Body"] for message in back] == ["0", "1", "2", "3", "4"]
    assert {message["Attributes"]["MessageGroupId"] for message in back} == {"g"}
