"""The two protocols of SQS as bytes: what is read, what is refused and in which form, whatever comes in."""

from __future__ import annotations

import asyncio
import json
import logging
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import detent
from detent.server.access import Caller, Grant
from detent.server.app import ServerApplication
from detent.server.http import HttpRequest
from detent.server.keys import KeyRing, new_key
from detent.server.sqs import jsonwire, querywire
from detent.server.sqs.errors import Refused
from detent.server.sqs.shapes import ACTIONS
from sqsendpoint import URL, Endpoint, json_error, xml_error


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as started:
        yield started


READS = {"ListQueues"}
"""What answers even to an empty request."""


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ACTIONS)), st.binary(max_size=300))
@example("SendMessage", b"[" * 100_000)
@example("SendMessage", b'{"QueueUrl": "\\ud800", "MessageBody": "\\udfff"}')
@example("SendMessage", b'{"QueueUrl": "orders", "MessageBody": "\\ud800"}')
@example("ReceiveMessage", b'{"QueueUrl": "orders", "WaitTimeSeconds": 1e400}')
@example("ReceiveMessage", b'{"QueueUrl": "orders", "WaitTimeSeconds": 99999999999999999999999}')
@example("SendMessage", b'{"QueueUrl": "orders", "MessageBody": true}')
def test_any_bytes_in_json_are_refused_in_json_and_change_nothing(endpoint: Endpoint, action: str, body: bytes) -> None:
    before = endpoint.contents()
    response = endpoint.json(action, body)
    if not (response.status == 200 and action in READS):
        status, name, code = json_error(response)
        assert 400 <= status < 500
        assert name
        assert code
    assert endpoint.contents() == before


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["", *sorted(ACTIONS)]), st.binary(max_size=300))
@example("SendMessage", b"&" * 5_000)
@example("SendMessage", b"a.b=1&a=2")
@example("SendMessage", b"a=1&a.b=2")
@example("SendMessage", b"QueueUrl=orders&MessageBody=%FF")
@example("SendMessage", b"MessageAttribute.1.Name.x=1&QueueUrl=orders&MessageBody=x")
@example("SendMessageBatch", b"QueueUrl=orders&SendMessageBatchRequestEntry.1=x")
def test_any_bytes_in_a_form_are_refused_in_xml_and_change_nothing(
    endpoint: Endpoint, action: str, body: bytes
) -> None:
    before = endpoint.contents()
    response = endpoint.form(f"Action={action}&".encode() + body if action else body)
    if not (response.status == 200 and action in READS):
        status, code = xml_error(response)
        assert 400 <= status < 500
        assert code
    assert endpoint.contents() == before


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(URL)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
FIELDS = sorted({name for action in ACTIONS.values() for name in action.fields} | {"Id", "DataType", "StringValue"})


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ACTIONS)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8))
def test_any_fields_of_any_type_are_answered_or_refused_and_never_break_the_server(
    endpoint: Endpoint, action: str, fields: dict[str, Any]
) -> None:
    fields.pop("WaitTimeSeconds", None)
    response = endpoint.json(action, json.dumps(fields).encode())
    if response.status != 200:
        assert json_error(response)[0] < 500


CASES: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("SendMessage", {"MessageBody": "x"}, 400, "MissingRequiredParameterException", "MissingParameter"),
    ("SendMessage", {"QueueUrl": URL, "MessageBody": ""}, 400, "MissingRequiredParameterException", "MissingParameter"),
    ("SendMessage", {"QueueUrl": URL, "MessageBody": "\x01"}, 400, "InvalidMessageContents", "InvalidMessageContents"),
    (
        "SendMessage",
        {"QueueUrl": URL, "MessageBody": "\ufffe"},
        400,
        "InvalidMessageContents",
        "InvalidMessageContents",
    ),
    (
        "SendMessage",
        {"QueueUrl": URL, "MessageBody": "x", "DelaySeconds": 901},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "SendMessage",
        {"QueueUrl": URL, "MessageBody": "x", "MessageDeduplicationId": "1"},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "SendMessage",
        {"QueueUrl": URL, "MessageBody": "x" * (1 << 20) + "x"},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "SendMessage",
        {"QueueUrl": "http://h/0/none", "MessageBody": "x"},
        400,
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
    ),
    ("SendMessage", {"QueueUrl": "http://h/a b", "MessageBody": "x"}, 404, "InvalidAddress", "InvalidAddress"),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": []},
        400,
        "EmptyBatchRequest",
        "AWS.SimpleQueueService.EmptyBatchRequest",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": str(i), "MessageBody": "x"} for i in range(11)]},
        400,
        "TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": "a", "MessageBody": "x"}] * 2},
        400,
        "BatchEntryIdsNotDistinct",
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": "a b", "MessageBody": "x"}]},
        400,
        "InvalidBatchEntryId",
        "AWS.SimpleQueueService.InvalidBatchEntryId",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": str(i), "MessageBody": "x" * 600_000} for i in range(2)]},
        400,
        "BatchRequestTooLong",
        "AWS.SimpleQueueService.BatchRequestTooLong",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": "a", "MessageBody": "x" * 1_100_000}, {"Id": "b", "MessageBody": "x"}]},
        400,
        "BatchRequestTooLong",
        "AWS.SimpleQueueService.BatchRequestTooLong",
    ),
    (
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{}] * 1_000},
        400,
        "TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    ),
    (
        "DeleteMessage",
        {"QueueUrl": URL, "ReceiptHandle": "nonsense"},
        404,
        "ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
    ),
    (
        "ChangeMessageVisibility",
        {"QueueUrl": URL, "ReceiptHandle": "nonsense", "VisibilityTimeout": 1},
        404,
        "ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": URL, "MaxNumberOfMessages": 11},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": URL, "MaxNumberOfMessages": 0},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": URL, "WaitTimeSeconds": 21},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": URL, "AttributeNames": ["Colour"]},
        400,
        "InvalidAttributeName",
        "InvalidAttributeName",
    ),
    (
        "GetQueueAttributes",
        {"QueueUrl": URL, "AttributeNames": ["Colour"]},
        400,
        "InvalidAttributeName",
        "InvalidAttributeName",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"Colour": "red"}},
        400,
        "InvalidAttributeName",
        "InvalidAttributeName",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"QueueArn": "x"}},
        400,
        "InvalidAttributeName",
        "InvalidAttributeName",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"DelaySeconds": "901"}},
        400,
        "InvalidAttributeValue",
        "InvalidAttributeValue",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"DelaySeconds": "-1"}},
        400,
        "InvalidAttributeValue",
        "InvalidAttributeValue",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"ContentBasedDeduplication": "true"}},
        400,
        "InvalidAttributeName",
        "InvalidAttributeName",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"RedriveAllowPolicy": '{"redrivePermission": "maybe"}'}},
        400,
        "InvalidAttributeValue",
        "InvalidAttributeValue",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"Policy": "{}"}},
        400,
        "UnsupportedOperation",
        "AWS.SimpleQueueService.UnsupportedOperation",
    ),
    ("CreateQueue", {"QueueName": "a b"}, 400, "InvalidParameterValueException", "InvalidParameterValue"),
    ("CreateQueue", {"QueueName": "x" * 81}, 400, "InvalidParameterValueException", "InvalidParameterValue"),
    ("CreateQueue", {"QueueName": "orders.fifo"}, 400, "InvalidParameterValueException", "InvalidParameterValue"),
    (
        "CreateQueue",
        {"QueueName": "orders", "Attributes": {"FifoQueue": "true"}},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "CreateQueue",
        {"QueueName": "orders", "Attributes": {"DelaySeconds": "5"}},
        400,
        "QueueNameExists",
        "QueueAlreadyExists",
    ),
    ("GetQueueUrl", {"QueueName": "none"}, 400, "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
    ("ListQueues", {"MaxResults": 1001}, 400, "InvalidParameterValueException", "InvalidParameterValue"),
    ("ListQueues", {"NextToken": "?"}, 400, "InvalidParameterValueException", "InvalidParameterValue"),
    (
        "AddPermission",
        {"QueueUrl": URL, "Label": "a", "AWSAccountIds": ["1"], "Actions": ["*"]},
        400,
        "UnsupportedOperation",
        "AWS.SimpleQueueService.UnsupportedOperation",
    ),
    ("CancelMessageMoveTask", {"TaskHandle": "0" * 32}, 404, "ResourceNotFoundException", "ResourceNotFoundException"),
    (
        "ListMessageMoveTasks",
        {"SourceArn": "arn:aws:sqs:r:0:none"},
        404,
        "ResourceNotFoundException",
        "ResourceNotFoundException",
    ),
    (
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"RedriveAllowPolicy": '{"redrivePermission": []}'}},
        400,
        "InvalidAttributeValue",
        "InvalidAttributeValue",
    ),
    ("TagQueue", {"QueueUrl": URL, "Tags": {}}, 400, "MissingRequiredParameterException", "MissingParameter"),
    (
        "TagQueue",
        {"QueueUrl": URL, "Tags": {"a\u0085": "b"}},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    (
        "TagQueue",
        {"QueueUrl": URL, "Tags": {"a": "b\n"}},
        400,
        "InvalidParameterValueException",
        "InvalidParameterValue",
    ),
    ("UntagQueue", {"QueueUrl": URL, "TagKeys": []}, 400, "MissingRequiredParameterException", "MissingParameter"),
    ("SendMessage", {"QueueUrl": 5, "MessageBody": "x"}, 400, "SerializationException", "MalformedInput"),
    ("ReceiveMessage", {"QueueUrl": URL, "MaxNumberOfMessages": "1"}, 400, "SerializationException", "MalformedInput"),
    ("Nonsense", {}, 400, "UnknownOperationException", "InvalidAction"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[4]}")
def test_errors_have_the_names_and_statuses_of_sqs(
    endpoint: Endpoint, case: tuple[str, dict[str, Any], int, str, str]
) -> None:
    action, fields, status, name, code = case
    assert json_error(endpoint.json(action, json.dumps(fields).encode())) == (status, name, code)


FORM_CASES = [
    ({"Action": "SendMessage", "QueueUrl": URL}, 400, "MissingParameter"),
    ({"Action": "SendMessage", "QueueUrl": URL, "MessageBody": "\x01"}, 400, "InvalidMessageContents"),
    ({"Action": "SendMessage", "QueueUrl": "none", "MessageBody": "x"}, 400, "AWS.SimpleQueueService.NonExistentQueue"),
    ({"Action": "SendMessage", "QueueUrl": URL, "MessageBody": "x", "DelaySeconds": "soon"}, 400, "MalformedInput"),
    ({"Action": "SendMessageBatch", "QueueUrl": URL}, 400, "AWS.SimpleQueueService.EmptyBatchRequest"),
    ({"Action": "DeleteMessage", "QueueUrl": URL, "ReceiptHandle": "x"}, 404, "ReceiptHandleIsInvalid"),
    (
        {"Action": "CreateQueue", "QueueName": "orders", "Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "5"},
        400,
        "QueueAlreadyExists",
    ),
    ({"Action": "Nonsense"}, 400, "InvalidAction"),
    ({"Version": "2012-11-05"}, 404, "UnknownOperationException"),
]


@pytest.mark.parametrize("case", FORM_CASES, ids=lambda case: case[2])
def test_errors_of_forms_are_xml(endpoint: Endpoint, case: tuple[dict[str, str], int, str]) -> None:
    fields, status, code = case
    assert xml_error(endpoint.form(urlencode(fields).encode())) == (status, code)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(endpoint: Endpoint) -> None:
    headers = {"x-amz-target": "AmazonSQS.SendMessage", "content-length": str(1 << 30)}
    assert json_error(endpoint.raw(b"{}", headers))[::2] == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("SendMessageBatch", {"Entries": [5] * 101}),
        ("ReceiveMessage", {"MessageAttributeNames": [5] * 1_001}),
        ("TagQueue", {"Tags": {str(number): 5 for number in range(101)}}),
        ("SendMessage", {"MessageAttributes": {str(number): 5 for number in range(101)}}),
    ],
)
def test_what_has_too_many_items_is_refused_before_one_of_them_is_looked_at(
    action: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match=r"101|1001"):
        jsonwire.read(action, json.dumps(fields).encode())


LARGE = {
    "objects": b"{}," * 50_000 + b"{}",
    "lists": b"[]," * 50_000 + b"[]",
    "strings": b'"",' * 50_000 + b'""',
    "numbers": b"1," * 50_000 + b"1",
    "strings with quotes and backslashes": rb'"\\\"\\",' * 50_000 + b'""',
}


@pytest.mark.parametrize("what", LARGE)
def test_a_body_of_very_many_parts_is_refused_before_it_is_taken_apart(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(body: bytes) -> None:
        raise AssertionError("it was taken apart")

    monkeypatch.setattr(jsonwire, "_decode", decode)
    with pytest.raises(Refused, match="parts"):
        jsonwire.read("SendMessageBatch", b'{"Entries": [' + LARGE[what] + b"]}")


@given(st.lists(st.text(st.sampled_from('\\"{[,:]}a\n'), max_size=20), min_size=1, max_size=10))
def test_a_body_of_few_parts_is_read_whatever_its_texts_are(texts: list[str]) -> None:
    entries = [{"Id": str(index), "MessageBody": text * 2_000 + "x" * 7_000} for index, text in enumerate(texts)]
    body = json.dumps({"QueueUrl": URL, "Entries": entries}).encode()
    jsonwire._check_parts(body)
    assert jsonwire.read("SendMessageBatch", body)["Entries"] == entries


def test_what_nobody_thought_of_is_a_failure_of_the_server_in_the_protocols_own_form(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: Any) -> None:
        raise TypeError("a mistake")

    monkeypatch.setitem(endpoint.part._handlers, "ListQueues", broken)
    with caplog.at_level(logging.ERROR):
        assert json_error(endpoint.json("ListQueues", b"{}")) == (500, "InternalFailureException", "InternalFailure")
        assert xml_error(endpoint.form(b"Action=ListQueues")) == (500, "InternalFailure")
    assert [record.exc_info is not None for record in caplog.records] == [True, True]

    async def cancelled(call: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setitem(endpoint.part._handlers, "ListQueues", cancelled)
    with pytest.raises(asyncio.CancelledError):
        endpoint.json("ListQueues", b"{}")


def test_whoever_is_not_known_is_told_so_with_the_names_of_sqs(endpoint: Endpoint) -> None:
    key = new_key("me", ["admin:*:*"], now=datetime.now(UTC))
    app = ServerApplication([endpoint.part], keys=KeyRing([key]))
    now = datetime.now(UTC)
    signature = (
        f"AWS4-HMAC-SHA256 Credential={key.id}/{now:%Y%m%d}/us-east-1/sqs/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
    )

    def code(authorization: str | None) -> tuple[int, str]:
        headers = {"x-amz-target": "AmazonSQS.ListQueues", "host": "h", "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}"}
        if authorization is not None:
            headers["authorization"] = authorization
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": encoded}
        endpoint.run(app(scope, receive, send))
        found = dict(sent[0]["headers"])[b"x-amzn-query-error"].decode()
        return sent[0]["status"], found.partition(";")[0]

    assert code(None) == (403, "MissingAuthenticationToken")
    assert code("Basic bWU6") == (403, "MissingAuthenticationToken")
    assert code("Bearer nobody.nothing") == (403, "InvalidClientTokenId")
    assert code(signature) == (403, "SignatureDoesNotMatch")
    assert code(signature.replace(key.id, "DTNOBODY")) == (403, "SignatureDoesNotMatch")


def test_callers_do_only_what_they_may(endpoint: Endpoint) -> None:
    endpoint.call("CreateQueue", {"QueueName": "hidden"})
    caller = Caller("me", (Grant("publish", "queue", "orders"),))
    denied = {
        "ReceiveMessage": {"QueueUrl": URL},
        "DeleteMessage": {"QueueUrl": URL, "ReceiptHandle": "x"},
        "PurgeQueue": {"QueueUrl": URL},
        "DeleteQueue": {"QueueUrl": URL},
        "SetQueueAttributes": {"QueueUrl": URL, "Attributes": {}},
        "TagQueue": {"QueueUrl": URL, "Tags": {}},
        "CreateQueue": {"QueueName": "new"},
        "GetQueueUrl": {"QueueName": "hidden"},
        "GetQueueAttributes": {"QueueUrl": "hidden"},
        "StartMessageMoveTask": {"SourceArn": "arn:aws:sqs:r:0:orders"},
    }
    for action, fields in denied.items():
        response = endpoint.json(action, json.dumps(fields).encode(), caller)
        assert json_error(response) == (403, "AccessDeniedException", "AccessDenied"), action
    assert endpoint.call("ListQueues", {}, caller) == {"QueueUrls": [URL]}
    assert endpoint.call("GetQueueUrl", {"QueueName": "orders"}, caller) == {"QueueUrl": URL}
    endpoint.call("DeleteQueue", {"QueueUrl": "hidden"})


def test_a_filter_needs_the_right_to_read_every_queue(endpoint: Endpoint) -> None:
    caller = Caller("me", (Grant("admin", "queue", "mine"),))
    body = json.dumps({"QueueName": "mine", "Attributes": {"DetentFilter": "true"}}).encode()
    assert json_error(endpoint.json("CreateQueue", body, caller))[2] == "AccessDenied"


def test_every_action_has_a_handler(endpoint: Endpoint) -> None:
    assert set(endpoint.part._handlers) == set(ACTIONS)


def test_requests_of_others_are_left_to_others(endpoint: Endpoint) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    def owns(method: str, path: str, headers: dict[str, str], query: bytes = b"") -> bool:
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": encoded}
        return bool(endpoint.part.owns(HttpRequest(scope, receive)))

    form = {"content-type": "application/x-www-form-urlencoded"}
    assert owns("POST", "/", form)
    assert owns("POST", "/000000000000/orders", form)
    assert owns("GET", "/000000000000/orders", {}, b"Action=DeleteQueue")
    assert owns("POST", "/anything", {"x-amz-target": "AmazonSQS.SendMessage"})
    assert not owns("GET", "/", {})
    assert not owns("POST", "/v1/queues", form)
    assert not owns("POST", "/", {"content-type": "application/json"})
    assert not owns("POST", "/", {"x-amz-target": "DynamoDB_20120810.GetItem"})


def test_an_application_says_errors_in_the_form_of_the_part_that_they_are_of(endpoint: Endpoint) -> None:
    assert isinstance(ServerApplication([endpoint.part]), ServerApplication)
    refused = endpoint.part.refuse(
        HttpRequest(
            {"method": "POST", "path": "/", "query_string": b"", "headers": [(b"x-amz-target", b"AmazonSQS.X")]},
            lambda: None,  # type: ignore[arg-type, return-value]
        ),
        detent.Unavailable("not now"),
    )
    assert json_error(refused) == (503, "ServiceUnavailableException", "ServiceUnavailable")


@given(st.text())
def test_any_text_survives_xml_as_far_as_xml_has_it(text: str) -> None:
    shown = ET.fromstring(f"<a>{querywire.escape(text)}</a>").text or ""
    assert len(shown) == len(text)
    assert all(a == b or b == "\ufffd" for a, b in zip(text, shown, strict=True))
