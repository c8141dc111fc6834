"""The older protocol of SQS: forms and XML, by hand and by a botocore that is given the older model of the service."""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from sqsserver import NAMESPACE, PATIENT, SqsServer, running

NS = {"q": NAMESPACE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with running(tmp_path_factory.mktemp("sqs") / "store") as started:
        yield started


def post(url: str, **fields: str) -> ET.Element:
    """Send a form that is answered; the answer."""
    answer = httpx.post(url, data={"Version": "2012-11-05", **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/xml"
    root = ET.fromstring(answer.content)
    assert root.tag == f"{{{NS['q']}}}{fields['Action']}Response"
    assert root.findtext("q:ResponseMetadata/q:RequestId", None, NS) == answer.headers["x-amzn-requestid"]
    return root


def text(root: ET.Element, path: str) -> str:
    found = root.findtext("/".join(f"q:{part}" for part in path.split("/")), None, NS)
    assert found is not None, ET.tostring(root)
    return found


def every(root: ET.Element, path: str) -> list[ET.Element]:
    return root.findall("/".join(f"q:{part}" for part in path.split("/")), NS)


def test_a_message_is_sent_received_and_deleted_by_form(server: SqsServer) -> None:
    created = post(
        server.url,
        Action="CreateQueue",
        QueueName="by-hand",
        **{"Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": "60", "Tag.1.Key": "team", "Tag.1.Value": "a"},
    )
    url = text(created, "CreateQueueResult/QueueUrl")
    body = "a&b <c>\r\n\t ü 🎉"
    sent = post(
        url,  # the queue is named by the address
        Action="SendMessage",
        MessageBody=body,
        **{
            "MessageAttribute.2.Name": "binary",
            "MessageAttribute.2.Value.DataType": "Binary",
            "MessageAttribute.2.Value.BinaryValue": base64.b64encode(b"\x00\xff").decode(),
            "MessageAttribute.1.Name": "text",
            "MessageAttribute.1.Value.DataType": "String",
            "MessageAttribute.1.Value.StringValue": "a\rb",
        },
    )
    assert text(sent, "SendMessageResult/MD5OfMessageBody") == hashlib.md5(body.encode()).hexdigest()
    received = post(
        url,
        Action="ReceiveMessage",
        MaxNumberOfMessages="10",
        **{"AttributeName.1": "ApproximateReceiveCount", "MessageAttributeName.1": "All"},
    )
    (message,) = every(received, "ReceiveMessageResult/Message")
    assert text(message, "Body") == body
    assert text(message, "MessageId") == text(sent, "SendMessageResult/MessageId")
    assert text(message, "MD5OfMessageAttributes") == text(sent, "SendMessageResult/MD5OfMessageAttributes")
    assert [(text(one, "Name"), text(one, "Value")) for one in every(message, "Attribute")] == [
        ("ApproximateReceiveCount", "1")
    ]
    attributes = {text(one, "Name"): one for one in every(message, "MessageAttribute")}
    assert text(attributes["text"], "Value/StringValue") == "a\rb"
    assert text(attributes["binary"], "Value/BinaryValue") == "AP8="
    assert text(attributes["binary"], "Value/DataType") == "Binary"
    deleted = post(url, Action="DeleteMessage", ReceiptHandle=text(message, "ReceiptHandle"))
    assert [child.tag.rpartition("}")[2] for child in deleted] == ["ResponseMetadata"]
    assert every(post(url, Action="ReceiveMessage"), "ReceiveMessageResult/Message") == []


def test_batches_are_flat_lists(server: SqsServer) -> None:
    url = text(post(server.url, Action="CreateQueue", QueueName="batches"), "CreateQueueResult/QueueUrl")
    fields = {}
    for number, body in ((1, "one"), (2, "\x01"), (10, "ten")):
        fields[f"SendMessageBatchRequestEntry.{number}.Id"] = f"e{number}"
        fields[f"SendMessageBatchRequestEntry.{number}.MessageBody"] = body
    sent = post(server.url, Action="SendMessageBatch", QueueUrl=url, **fields)
    assert [text(one, "Id") for one in every(sent, "SendMessageBatchResult/SendMessageBatchResultEntry")] == [
        "e1",
        "e10",
    ]
    (failed,) = every(sent, "SendMessageBatchResult/BatchResultErrorEntry")
    assert (text(failed, "Id"), text(failed, "Code"), text(failed, "SenderFault")) == (
        "e2",
        "InvalidMessageContents",
        "true",
    )


def test_an_action_can_be_asked_for_in_the_address(server: SqsServer) -> None:
    post(server.url, Action="CreateQueue", QueueName="by-address")
    answer = httpx.get(f"{server.url}/000000000000/by-address?Action=GetQueueAttributes&AttributeName=QueueArn")
    root = ET.fromstring(answer.content)
    assert text(root, "GetQueueAttributesResult/Attribute/Name") == "QueueArn"
    assert text(root, "GetQueueAttributesResult/Attribute/Value").endswith(":by-address")


def test_errors_are_xml_with_the_older_codes(server: SqsServer) -> None:
    answer = httpx.post(server.url + "/000000000000/none", data={"Action": "ReceiveMessage"})
    assert answer.status_code == 400
    root = ET.fromstring(answer.content)
    assert text(root, "Error/Code") == "AWS.SimpleQueueService.NonExistentQueue"
    assert text(root, "Error/Type") == "Sender"


# -- botocore, with the older model -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def older(server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client of an older botocore."""
    return server.older_client(tmp_path_factory.mktemp("models"), config=PATIENT)


def test_an_older_botocore_does_the_same(older: Any) -> None:
    assert older.meta.service_model.protocol == "query"
    url = older.create_queue(QueueName="older", Attributes={"DelaySeconds": "0"}, tags={"team": "a"})["QueueUrl"]
    assert older.list_queues(QueueNamePrefix="older")["QueueUrls"] == [url]
    assert older.get_queue_url(QueueName="older")["QueueUrl"] == url
    assert older.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a"}
    older.untag_queue(QueueUrl=url, TagKeys=["team"])
    older.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "50", "MaximumMessageSize": "2048"})
    attributes = older.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", "MaximumMessageSize"])
    assert attributes["Attributes"] == {"VisibilityTimeout": "50", "MaximumMessageSize": "2048"}
    given = {
        "text": {"DataType": "String", "StringValue": "ü\r\n<&>"},
        "binary": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    entries = [{"Id": str(index), "MessageBody": f"m{index}\r", "MessageAttributes": given} for index in range(10)]
    assert len(older.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    messages = older.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    assert [message["Body"] for message in messages] == [f"m{index}\r" for index in range(10)]
    assert all(message["MessageAttributes"] == given for message in messages)
    assert all(message["Attributes"]["ApproximateReceiveCount"] == "1" for message in messages)
    handles = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(messages)]
    changed = older.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**handle, "VisibilityTimeout": 100} for handle in handles]
    )
    assert len(changed["Successful"]) == 10
    assert len(older.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10
    older.purge_queue(QueueUrl=url)
    older.delete_queue(QueueUrl=url)
    with pytest.raises(ClientError) as caught:
        older.get_queue_url(QueueName="older")
    assert caught.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


def test_an_older_botocore_moves_messages(older: Any) -> None:
    source, destination = (older.create_queue(QueueName=name)["QueueUrl"] for name in ("move-from", "move-to"))
    older.send_message(QueueUrl=source, MessageBody="x")
    arns = [
        older.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for url in (source, destination)
    ]
    older.start_message_move_task(SourceArn=arns[0], DestinationArn=arns[1])
    assert older.receive_message(QueueUrl=destination, WaitTimeSeconds=20)["Messages"][0]["Body"] == "x"
    (task,) = older.list_message_move_tasks(SourceArn=arns[0])["Results"]
    assert task["ApproximateNumberOfMessagesToMove"] == 1
