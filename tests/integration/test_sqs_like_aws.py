"""What AWS answers where servers like it often answer otherwise, through botocore in both protocols."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from processes import eventually
from sqsserver import SqsServer, running

NUMBERS = itertools.count()
PLAIN = Config(retries={"max_attempts": 0}, read_timeout=60, parameter_validation=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with running(tmp_path_factory.mktemp("sqs") / "store") as started:
        yield started


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: SqsServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client that speaks one of the protocols, and checks nothing by itself."""
    if request.param == "json":
        return server.client(config=PLAIN)
    return server.older_client(tmp_path_factory.mktemp("models"), config=PLAIN)


@pytest.fixture
def make(sqs: Any) -> Callable[..., str]:
    """Makes queues with names of their own; their URLs."""

    def create(fifo: bool = False, **attributes: str) -> str:
        name = f"aws-{next(NUMBERS)}" + (".fifo" if fifo else "")
        given = {"FifoQueue": "true", **attributes} if fifo else attributes
        return str(sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"])

    return create


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names or ["All"])["Attributes"]
    return found


def arn_of(sqs: Any, url: str) -> str:
    return attributes_of(sqs, url, "QueueArn")["QueueArn"]


def send(sqs: Any, url: str, body: str, group: str = "", **options: Any) -> dict[str, Any]:
    """Send a message; in a FIFO queue its body is its deduplication id, unless another one is said."""
    if group:
        options = {"MessageGroupId": group, "MessageDeduplicationId": body, **options}
    sent: dict[str, Any] = sqs.send_message(QueueUrl=url, MessageBody=body, **options)
    return sent


def receive(sqs: Any, url: str, count: int = 10, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=count, AttributeNames=["All"], **options
    ).get("Messages", [])
    return found


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in found]


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    """Code and text with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        call()
    error = caught.value.response["Error"]
    return error["Code"].rpartition("#")[2], error["Message"]


# -- deduplication --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scopes", [("queue", "messageGroup"), ("messageGroup", "queue")], ids="-then-".join)
def test_deduplication_ids_survive_a_change_of_scope(sqs: Any, make: Any, scopes: tuple[str, str]) -> None:
    first, second = scopes
    url = make(fifo=True, DeduplicationScope=first)
    sent = send(sqs, url, "a", "g1")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": second})
    assert attributes_of(sqs, url)["DeduplicationScope"] == second
    assert send(sqs, url, "a", "g1")["MessageId"] == sent["MessageId"]
    assert attributes_of(sqs, url)["ApproximateNumberOfMessages"] == "1"


def test_purge_forgets_deduplication_ids_and_what_is_in_flight(sqs: Any, make: Any) -> None:
    url = make(fifo=True)
    send(sqs, url, "a", "g")
    send(sqs, url, "b", "g")
    (held,) = receive(sqs, url, 1)
    sqs.purge_queue(QueueUrl=url)
    counts = attributes_of(sqs, url)
    assert {counts[f"ApproximateNumberOfMessages{name}"] for name in ("", "NotVisible", "Delayed")} == {"0"}
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])  # as of one that was deleted before
    send(sqs, url, "a", "g")
    assert bodies(receive(sqs, url)) == ["a"]


# -- groups ---------------------------------------------------------------------------------------------------------


def test_receive_takes_as_many_of_one_group_as_it_can(sqs: Any, make: Any) -> None:
    url = make(fifo=True)
    for group, body in (("g1", "g1-1"), ("g2", "g2-1"), ("g1", "g1-2"), ("g1", "g1-3")):
        send(sqs, url, body, group)
    assert bodies(receive(sqs, url)) == ["g1-1", "g1-2", "g1-3", "g2-1"]


def test_first_message_given_back_is_receivable_while_the_second_is_in_flight(sqs: Any, make: Any) -> None:
    url = make(fifo=True)
    for body in ("m1", "m2", "m3"):
        send(sqs, url, body, "g")
    first, _ = receive(sqs, url, 2)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, url)) == ["m1"]
    assert receive(sqs, url) == []


def test_first_message_is_receivable_when_only_the_second_was_extended(sqs: Any, make: Any) -> None:
    url = make(fifo=True, VisibilityTimeout="1")
    send(sqs, url, "m1", "g")
    send(sqs, url, "m2", "g")
    _, second = receive(sqs, url, 2)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=300)
    eventually(lambda: bodies(receive(sqs, url)) == ["m1"])


def test_quiet_tenant_of_a_standard_queue_is_not_starved_by_a_noisy_one(sqs: Any, make: Any) -> None:
    url = make()
    for number in range(12):
        send(sqs, url, f"noisy-{number}", "", MessageGroupId="noisy")
    send(sqs, url, "quiet", "", MessageGroupId="quiet")
    first, second = receive(sqs, url, 2)
    assert bodies([first, second]) == ["noisy-0", "quiet"]
    assert second["Attributes"]["MessageGroupId"] == "quiet"
    assert len(receive(sqs, url)) == 10  # a tenant's messages hold nothing back


# -- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", ["MessageGroupId", "MessageDeduplicationId"])
def test_batch_with_an_entry_that_has_no_place_in_a_fifo_queue_is_refused_whole(
    sqs: Any, make: Any, lacks: str
) -> None:
    url = make(fifo=True)
    whole = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    entries = [{"Id": "1", **whole}, {"Id": "2", **{name: whole[name] for name in whole if name != lacks}}]
    expected = {
        "MessageGroupId": ("MissingParameter", "The request must contain the parameter MessageGroupId."),
        "MessageDeduplicationId": (
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        ),
    }
    assert refusal(lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries)) == expected[lacks]
    assert attributes_of(sqs, url)["ApproximateNumberOfMessages"] == "0"


@pytest.mark.parametrize("given", ["", "in:valid", "x" * 81], ids=["empty", "colon", "long"])
def test_batch_entry_ids_are_checked(sqs: Any, make: Any, given: str) -> None:
    url = make()
    entries = [{"Id": given, "MessageBody": "x"}]
    code, says = refusal(lambda: sqs.send_message_batch(QueueUrl=url, Entries=entries))
    assert code == "AWS.SimpleQueueService.InvalidBatchEntryId"
    assert says == (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
        "letters long."
    )


# -- attributes -----------------------------------------------------------------------------------------------------


def test_booleans_are_taken_in_any_case(sqs: Any, make: Any) -> None:
    url = make(fifo=True, FifoQueue="True", ContentBasedDeduplication="TRUE", SqsManagedSseEnabled="False")
    found = attributes_of(sqs, url)
    names = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")
    assert [found[name] for name in names] == ["true", "true", "false"]
    name = url.rpartition("/")[2]
    again = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "True", "ContentBasedDeduplication": "True"})
    assert again["QueueUrl"] == url


def test_all_attributes_are_those_of_aws(sqs: Any, make: Any) -> None:
    standard = {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "DelaySeconds",
        "LastModifiedTimestamp",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
        "QueueArn",
        "ReceiveMessageWaitTimeSeconds",
        "SqsManagedSseEnabled",
        "VisibilityTimeout",
    }
    fifo = {"ContentBasedDeduplication", "DeduplicationScope", "FifoQueue", "FifoThroughputLimit"}
    url = make()
    assert attributes_of(sqs, url).keys() == standard
    assert attributes_of(sqs, make(fifo=True)).keys() == standard | fifo
    assert attributes_of(sqs, url)["SqsManagedSseEnabled"] == "true"
    assert {"DetentPaused", "DetentFailedMessages"} <= attributes_of(sqs, url, "DetentAll").keys()
    assert attributes_of(sqs, url, "DetentPaused", "VisibilityTimeout") == {
        "DetentPaused": "false",
        "VisibilityTimeout": "30",
    }


def test_queue_may_be_its_own_dead_letter_queue(sqs: Any, make: Any) -> None:
    url = make(VisibilityTimeout="0")
    policy = {"deadLetterTargetArn": arn_of(sqs, url), "maxReceiveCount": 1}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    assert json.loads(attributes_of(sqs, url)["RedrivePolicy"]) == policy
    assert sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == [url]
    send(sqs, url, "x")
    counts: list[str] = []

    def received() -> bool:
        counts.extend(message["Attributes"]["ApproximateReceiveCount"] for message in receive(sqs, url))
        return len(counts) == 3

    eventually(received)
    assert counts == ["1", "2", "3"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes_of(sqs, url)


def test_receive_count_goes_on_in_the_dead_letter_queue(sqs: Any, make: Any) -> None:
    dead = make(VisibilityTimeout="0")
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    url = make(VisibilityTimeout="0", RedrivePolicy=policy)
    send(sqs, url, "x")
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in receive(sqs, url)] == ["1"]
    eventually(lambda: receive(sqs, url) == [] and attributes_of(sqs, dead)["ApproximateNumberOfMessages"] == "1")
    (moved,) = receive(sqs, dead)
    assert moved["Attributes"]["ApproximateReceiveCount"] == "2"
    assert moved["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)


POLICIES = {
    "no JSON": ("x", "Redrive policy is not a valid JSON map."),
    "no count": (
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:d"}',
        "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
    ),
    "no target": (
        '{"maxReceiveCount": 1}',
        "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
    ),
    "no ARN": (
        '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}',
        "Invalid value for deadLetterTargetArn.",
    ),
    "a count of none": (
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:d", "maxReceiveCount": 0}',
        "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive.",
    ),
    "no such queue": (
        '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:none", "maxReceiveCount": 1}',
        "Dead letter target does not exist.",
    ),
}


@pytest.mark.parametrize("case", POLICIES)
def test_bad_redrive_policy_is_an_invalid_parameter_value(sqs: Any, make: Any, case: str) -> None:
    policy, reason = POLICIES[case]
    url = make()
    said = refusal(lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy}))
    assert said == ("InvalidParameterValue", f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}")


# -- messages -------------------------------------------------------------------------------------------------------


def test_attribute_names_may_have_latin_letters_with_accents(sqs: Any, make: Any) -> None:
    url, name = make(), "attr.1øßä"
    send(sqs, url, "x", MessageAttributes={name: {"DataType": "String", "StringValue": "v"}})
    (message,) = receive(sqs, url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {name: {"DataType": "String", "StringValue": "v"}}


def test_trace_header_of_the_request_travels_with_the_message(server: SqsServer, make: Any, sqs: Any) -> None:
    url, trace = make(), "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    client = server.client(config=PLAIN)
    client.meta.events.register(
        "before-sign.sqs", lambda request, **_: request.headers.add_header("X-Amzn-Trace-Id", trace)
    )
    client.send_message(QueueUrl=url, MessageBody="x")
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-own"}}
    client.send_message(QueueUrl=url, MessageBody="y", MessageSystemAttributes=own)
    found = {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in receive(sqs, url)}
    assert found == {"x": trace, "y": "Root=1-own"}


INVALID = (
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)

MESSAGES = {
    "a body with a control character": ({"MessageBody": "\x01"}, "InvalidMessageContents", INVALID),
    "an attribute with a control character": (
        {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "String", "StringValue": "\x01"}}},
        "InvalidParameterValue",
        INVALID,
    ),
    "an empty group": (
        {"MessageBody": "x", "MessageGroupId": ""},
        "InvalidParameterValue",
        "Value  for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include alphanumeric and "
        "punctuation characters. 1 to 128 in length.",
    ),
    "an empty body": ({"MessageBody": ""}, "MissingParameter", "The request must contain the parameter MessageBody."),
    "a body that is too long": (
        {"MessageBody": "x" * 1_025},
        "InvalidParameterValue",
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_messages_are_refused_in_the_words_of_aws(sqs: Any, make: Any, case: str) -> None:
    fields, *said = MESSAGES[case]
    url = make(MaximumMessageSize="1024")
    assert refusal(lambda: sqs.send_message(QueueUrl=url, **fields)) == tuple(said)


def test_delay_of_a_fifo_message_is_refused_in_the_words_of_aws(sqs: Any, make: Any) -> None:
    url = make(fifo=True)
    assert refusal(lambda: send(sqs, url, "x", "g", DelaySeconds=2)) == (
        "InvalidParameterValue",
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type.",
    )


# -- queues ---------------------------------------------------------------------------------------------------------


def test_fifo_attribute_of_a_standard_queue_is_unknown(sqs: Any, make: Any) -> None:
    url = make()
    said = refusal(lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"}))
    assert said == ("InvalidAttributeName", "Unknown Attribute FifoQueue.")


def test_missing_queue_is_told_in_the_words_of_the_protocol(server: SqsServer, sqs: Any) -> None:
    ending = {"json": ".", "query": " for this wsdl version."}[sqs.meta.service_model.protocol]
    expected = ("AWS.SimpleQueueService.NonExistentQueue", f"The specified queue does not exist{ending}")
    for url in (f"{server.url}/000000000000/none", server.url, f"{server.url}/"):
        assert refusal(lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])) == expected  # noqa: B023
    assert refusal(lambda: sqs.get_queue_url(QueueName="none")) == expected


def test_url_of_another_region_and_account_means_the_queue(sqs: Any, make: Any, server: SqsServer) -> None:
    name = make().rpartition("/")[2]
    for path in (f"123456789012/{name}", f"queue/eu-west-1/000000000000/{name}"):
        send(sqs, f"{server.url}/{path}", "x")
    assert attributes_of(sqs, f"{server.url}/000000000000/{name}")["ApproximateNumberOfMessages"] == "2"


# -- the older protocol at a queue's address --------------------------------------------------------------------------


def test_form_at_a_queue_is_about_that_queue(server: SqsServer) -> None:
    url = server.client(config=PLAIN).create_queue(QueueName="at-its-address")["QueueUrl"]
    for action in ("CreateQueue", "ListQueues"):
        answer = httpx.post(url, data={"Action": action, "QueueName": "x"})
        assert answer.status_code == 400
        assert f"<Code>InvalidAction</Code><Message>The action {action} is not valid for this endpoint." in answer.text
    for answer in (httpx.get(url), httpx.post(url, data={"Version": "2012-11-05"})):
        assert (answer.status_code, answer.text) == (404, "<UnknownOperationException/>")
    assert "<ReceiveMessageResult/>" in httpx.post(url, data={"Action": "ReceiveMessage"}).text
    assert "<GetQueueAttributesResult/>" in httpx.get(url, params={"Action": "GetQueueAttributes"}).text


def test_form_is_answered_in_json_where_that_is_accepted(server: SqsServer) -> None:
    url = server.client(config=PLAIN).create_queue(QueueName="in-json")["QueueUrl"]
    accept = {"Accept": "application/json"}
    asked = {"Action": "GetQueueAttributes", "AttributeName.1": "VisibilityTimeout"}
    answer = httpx.get(url, params=asked, headers=accept)
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()["GetQueueAttributesResponse"]
    assert found["GetQueueAttributesResult"] == {"Attributes": [{"Name": "VisibilityTimeout", "Value": "30"}]}
    assert found["ResponseMetadata"]["RequestId"] == answer.headers["x-amzn-requestid"]
    attribute = {"MessageAttribute.1.Name": "a", "MessageAttribute.1.Value.DataType": "String"}
    attribute |= {"MessageAttribute.1.Value.StringValue": "b"}
    httpx.post(url, data={"Action": "SendMessage", "MessageBody": "x", **attribute}, headers=accept).raise_for_status()
    answer = httpx.post(url, data={"Action": "ReceiveMessage", "MessageAttributeName.1": "All"}, headers=accept)
    (message,) = answer.json()["ReceiveMessageResponse"]["ReceiveMessageResult"]["Messages"]
    assert message["Body"] == "x"
    assert message["MessageAttributes"] == [{"Name": "a", "Value": {"StringValue": "b", "DataType": "String"}}]
    error = httpx.post(f"{server.url}/000000000000/none", data={"Action": "PurgeQueue"}, headers=accept)
    assert error.status_code == 400
    assert error.json()["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
