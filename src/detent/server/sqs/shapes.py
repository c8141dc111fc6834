"""What each action takes and answers, in both protocols: field by field, as the service's own model has it."""

from __future__ import annotations

from typing import Final, NamedTuple

TEXT: Final = "text"
NUMBER: Final = "number"
TEXTS: Final = "texts"
MAP: Final = "map"
ATTRIBUTES: Final = "attributes"
ENTRIES: Final = "entries"


class Field(NamedTuple):
    """A field of a request. In a form, lists and maps are numbered under a name of their own, and a map's keys and
    values have names too."""

    kind: str
    form_name: str = ""
    form_key: str = "Name"
    form_value: str = "Value"
    fields: dict[str, Field] = {}  # noqa: RUF012 - shared and never changed


class Action(NamedTuple):
    """An action: its fields, those that must be there, and whether it answers anything."""

    fields: dict[str, Field]
    required: tuple[str, ...]
    answers: bool = True


_TEXT: Final = Field(TEXT)
_NUMBER: Final = Field(NUMBER)
_QUEUE: Final = {"QueueUrl": _TEXT}

_SEND: Final = {
    "MessageBody": _TEXT,
    "DelaySeconds": _NUMBER,
    "MessageAttributes": Field(ATTRIBUTES, "MessageAttribute"),
    "MessageSystemAttributes": Field(ATTRIBUTES, "MessageSystemAttribute"),
    "MessageDeduplicationId": _TEXT,
    "MessageGroupId": _TEXT,
}
_DELETE: Final = {"ReceiptHandle": _TEXT}
_CHANGE: Final = {"ReceiptHandle": _TEXT, "VisibilityTimeout": _NUMBER}
_QUEUE_ATTRIBUTES: Final = Field(MAP, "Attribute")
_PAGE: Final = {"NextToken": _TEXT, "MaxResults": _NUMBER}


def _batch(name: str, entry: dict[str, Field]) -> Action:
    entries = Field(ENTRIES, f"{name}RequestEntry", fields={"Id": _TEXT, **entry})
    return Action({**_QUEUE, "Entries": entries}, ("QueueUrl",))


ACTIONS: Final[dict[str, Action]] = {
    "AddPermission": Action(
        {
            **_QUEUE,
            "Label": _TEXT,
            "AWSAccountIds": Field(TEXTS, "AWSAccountId"),
            "Actions": Field(TEXTS, "ActionName"),
        },
        ("QueueUrl",),
        answers=False,
    ),
    "CancelMessageMoveTask": Action({"TaskHandle": _TEXT}, ("TaskHandle",)),
    "ChangeMessageVisibility": Action(
        {**_QUEUE, **_CHANGE}, ("QueueUrl", "ReceiptHandle", "VisibilityTimeout"), answers=False
    ),
    "ChangeMessageVisibilityBatch": _batch("ChangeMessageVisibilityBatch", _CHANGE),
    "CreateQueue": Action(
        {"QueueName": _TEXT, "Attributes": _QUEUE_ATTRIBUTES, "tags": Field(MAP, "Tag", "Key")}, ("QueueName",)
    ),
    "DeleteMessage": Action({**_QUEUE, **_DELETE}, ("QueueUrl", "ReceiptHandle"), answers=False),
    "DeleteMessageBatch": _batch("DeleteMessageBatch", _DELETE),
    "DeleteQueue": Action(_QUEUE, ("QueueUrl",), answers=False),
    "GetQueueAttributes": Action({**_QUEUE, "AttributeNames": Field(TEXTS, "AttributeName")}, ("QueueUrl",)),
    "GetQueueUrl": Action({"QueueName": _TEXT, "QueueOwnerAWSAccountId": _TEXT}, ("QueueName",)),
    "ListDeadLetterSourceQueues": Action({**_QUEUE, **_PAGE}, ("QueueUrl",)),
    "ListMessageMoveTasks": Action({"SourceArn": _TEXT, "MaxResults": _NUMBER}, ("SourceArn",)),
    "ListQueueTags": Action(_QUEUE, ("QueueUrl",)),
    "ListQueues": Action({"QueueNamePrefix": _TEXT, **_PAGE}, ()),
    "PurgeQueue": Action(_QUEUE, ("QueueUrl",), answers=False),
    "ReceiveMessage": Action(
        {
            **_QUEUE,
            "AttributeNames": Field(TEXTS, "AttributeName"),
            "MessageSystemAttributeNames": Field(TEXTS, "MessageSystemAttributeName"),
            "MessageAttributeNames": Field(TEXTS, "MessageAttributeName"),
            "MaxNumberOfMessages": _NUMBER,
            "VisibilityTimeout": _NUMBER,
            "WaitTimeSeconds": _NUMBER,
            "ReceiveRequestAttemptId": _TEXT,
        },
        ("QueueUrl",),
    ),
    "RemovePermission": Action({**_QUEUE, "Label": _TEXT}, ("QueueUrl",), answers=False),
    "SendMessage": Action({**_QUEUE, **_SEND}, ("QueueUrl", "MessageBody")),
    "SendMessageBatch": _batch("SendMessageBatch", _SEND),
    "SetQueueAttributes": Action(
        {**_QUEUE, "Attributes": _QUEUE_ATTRIBUTES}, ("QueueUrl", "Attributes"), answers=False
    ),
    "StartMessageMoveTask": Action(
        {"SourceArn": _TEXT, "DestinationArn": _TEXT, "MaxNumberOfMessagesPerSecond": _NUMBER}, ("SourceArn",)
    ),
    "TagQueue": Action({**_QUEUE, "Tags": Field(MAP, "Tag", "Key")}, ("QueueUrl", "Tags"), answers=False),
    "UntagQueue": Action({**_QUEUE, "TagKeys": Field(TEXTS, "TagKey")}, ("QueueUrl", "TagKeys"), answers=False),
}

XML_LISTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
"""What the elements of a list are called in XML, where lists are flat; those of `Successful` are called by action."""

XML_MAPS: Final = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}
"""The same for maps: the element, its key, its value."""

READS: Final = frozenset(
    {
        "GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMessageMoveTasks", "ListQueueTags",
        "ListQueues",
    }
)  # fmt: skip
"""Actions that change nothing."""
