"""Queue attributes of SQS as Detent's settings and labels, and what FIFO queues ask of a message."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest

from detent.server.sqs import sending
from detent.server.sqs.attributes import DEDUP, GROUP
from detent.server.sqs.errors import Refused
from detent.server.sqs.settings import SettingsView, read_allow_policy, read_attributes, same

ARN = "arn:aws:sqs:us-east-1:000000000000:"

REFUSED = {
    "an unknown attribute": ("q", {"Colour": "red"}),
    "an attribute that cannot be set": ("q", {"ApproximateNumberOfMessages": "1"}),
    "all of them": ("q", {"All": "1"}),
    "a delay that is no number": ("q", {"DelaySeconds": "soon"}),
    "a delay in other digits": ("q", {"DelaySeconds": "٣"}),
    "a delay that is too long": ("q", {"DelaySeconds": "901"}),
    "a retention that is too short": ("q", {"MessageRetentionPeriod": "59"}),
    "a message size that is too large": ("q", {"MaximumMessageSize": "1048577"}),
    "a wait that is too long": ("q", {"ReceiveMessageWaitTimeSeconds": "21"}),
    "a visibility timeout that is too long": ("q", {"VisibilityTimeout": "43201"}),
    "a policy": ("q", {"Policy": "{}"}),
    "a key": ("q", {"KmsMasterKeyId": "alias/aws/sqs"}),
    "encryption that is neither on nor off": ("q", {"SqsManagedSseEnabled": "perhaps"}),
    "deduplication in a standard queue": ("q", {"ContentBasedDeduplication": "true"}),
    "an order in a queue of another name": ("q", {"FifoQueue": "true"}),
    "no order in a FIFO queue": ("q.fifo", {"FifoQueue": "false"}),
    "no order, said": ("q", {"FifoQueue": "false"}),
    "deduplication that is neither": ("q.fifo", {"ContentBasedDeduplication": "yes"}),
    "a limit by group without its scope": ("q.fifo", {"FifoThroughputLimit": "perMessageGroupId"}),
    "a redrive policy that is no JSON": ("q", {"RedrivePolicy": "x"}),
    "a redrive policy without a target": ("q", {"RedrivePolicy": '{"maxReceiveCount": 1}'}),
    "an allow policy that allows something else": ("q", {"RedriveAllowPolicy": '{"redrivePermission": "some"}'}),
    "an allow policy that allows a list": ("q", {"RedriveAllowPolicy": '{"redrivePermission": []}'}),
    "a redrive policy without a count": ("q", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN + "d"})}),
    "a redrive policy with a list": ("q", {"RedrivePolicy": '{"deadLetterTargetArn": [], "maxReceiveCount": {}}'}),
    "the number of failed messages": ("q", {"DetentFailedMessages": "0"}),
    "an allow policy without its queues": ("q", {"RedriveAllowPolicy": '{"redrivePermission": "byQueue"}'}),
    "a pause that is neither": ("q", {"DetentPaused": "maybe"}),
    "a lease that is too long": ("q", {"DetentMaxLease": "604801"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attributes_that_cannot_be_set_are_refused(case: str) -> None:
    queue, attributes = REFUSED[case]
    with pytest.raises(Refused):
        read_attributes(queue, attributes, None, fifo=queue.endswith(".fifo"))


def test_attributes_become_settings_and_labels() -> None:
    given = {
        "VisibilityTimeout": "0",
        "DelaySeconds": "007",
        "DetentBackoff": "5",
        "DetentFilter": "true",
        "Policy": "",
    }
    changes = read_attributes("q", given, {}, fifo=False)
    assert changes.settings == {
        "lease": timedelta(milliseconds=1),
        "backoff": timedelta(seconds=5),
        "filter": "true",
    }
    assert changes.filters
    assert changes.laid_over({"tag:a": "b", "sqs:DelaySeconds": "1"}) == {"tag:a": "b", "sqs:DelaySeconds": "7"}


def test_a_limit_by_group_goes_with_the_scope_that_the_queue_has() -> None:
    limit = {"FifoThroughputLimit": "perMessageGroupId"}
    read_attributes("q.fifo", limit, {"sqs:DeduplicationScope": "messageGroup"}, fifo=True)
    read_attributes("q.fifo", {**limit, "DeduplicationScope": "messageGroup"}, {}, fifo=True)
    with pytest.raises(Refused):
        known = {"sqs:FifoThroughputLimit": "perMessageGroupId"}
        read_attributes("q.fifo", {"DeduplicationScope": "queue"}, known, fifo=True)


def test_an_allow_policy_names_its_queues() -> None:
    policy = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN + "a", ARN + "b"]})
    assert read_allow_policy(policy) == ("byQueue", ["a", "b"])
    assert read_allow_policy('{"redrivePermission": "denyAll"}') == ("denyAll", [])


def test_the_same_value_can_be_written_in_several_ways() -> None:
    assert same("DelaySeconds", "05", "5")
    assert not same("DelaySeconds", "5", "6")
    assert same("Policy", "", None)
    assert not same("RedrivePolicy", "{}", None)
    first = json.dumps({"deadLetterTargetArn": ARN + "d", "maxReceiveCount": "3"})
    second = json.dumps({"maxReceiveCount": 3, "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123456789012:d"})
    assert same("RedrivePolicy", first, second)
    assert not same("RedrivePolicy", first, first.replace('"3"', "4"))


def test_the_same_allow_policy_can_be_written_in_several_ways() -> None:
    odd = json.dumps({"redrivePermission": "allowAll", "deadLetterTargetArn": 5})
    assert same("RedriveAllowPolicy", odd, odd)
    assert same("RedriveAllowPolicy", odd, '{"redrivePermission": "allowAll"}')
    assert not same("RedriveAllowPolicy", odd, '{"redrivePermission": "denyAll"}')
    chosen = [
        json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": arns}) for arns in (["a", "b"], ["b", "a"])
    ]
    first, second = (text.replace('"a"', f'"{ARN}a"').replace('"b"', f'"{ARN}b"') for text in chosen)
    assert same("RedriveAllowPolicy", first, second)


def view(**changes: Any) -> SettingsView:
    """A FIFO queue."""
    fields: dict[str, Any] = {
        "name": "q.fifo",
        "number": 1,
        "is_fifo": True,
        "delay_ms": 7_000,
        "retention_s": 60,
        "message_bytes_max": 1 << 20,
        "wait_s": 0,
        "content_dedup": False,
        "group_dedup": False,
        "retry_dedup": False,
        "info": None,
        "labels": {},
        "dedup_window_ms": 0,
    }
    return SettingsView(**{**fields, **changes})


def letter(of: SettingsView, **fields: Any) -> sending.SentMessage:
    return sending._letter(of, {"MessageBody": "body", **fields}, "me", "")


def test_a_message_of_a_fifo_queue_carries_its_group_and_its_deduplication_id() -> None:
    found = letter(view(), MessageGroupId="g", MessageDeduplicationId="d")
    assert (found.headers[GROUP], found.headers[DEDUP], found.dedup_key) == ("g", "d", "d")
    assert found.delay_ms == 7_000


def test_a_fifo_queue_has_a_delay_and_its_messages_have_none_of_their_own() -> None:
    assert letter(view(), MessageGroupId="g", MessageDeduplicationId="d", DelaySeconds=0).delay_ms == 7_000
    standard = view(name="q", is_fifo=False)
    assert letter(standard, DelaySeconds=0).delay_ms == 0
    assert letter(standard).delay_ms == 7_000


def test_content_names_a_message_unless_it_has_a_name() -> None:
    digest = hashlib.sha256(b"body").hexdigest()
    assert letter(view(content_dedup=True), MessageGroupId="g").dedup_key == digest
    named = letter(view(content_dedup=True), MessageGroupId="g", MessageDeduplicationId="d")
    assert named.dedup_key == "d"


def test_within_groups_a_deduplication_id_is_the_groups_own() -> None:
    of = view(group_dedup=True)
    pairs = [("g", "d"), ("h", "d"), ("g", "e"), ("gd", "d"), ("g", "dd"), ("x" * 128, "y" * 128)]
    keys = {letter(of, MessageGroupId=group, MessageDeduplicationId=dedup).dedup_key for group, dedup in pairs}
    assert len(keys) == len(pairs)
    assert all(key is not None and len(key) <= 255 for key in keys)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"MessageDeduplicationId": "d"},
        {"MessageGroupId": "g"},
        {"MessageGroupId": "a b", "MessageDeduplicationId": "d"},
        {"MessageGroupId": "g", "MessageDeduplicationId": "d" * 129},
        {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 1},
    ],
)
def test_a_fifo_queue_refuses_what_it_cannot_order(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        letter(view(), **fields)
