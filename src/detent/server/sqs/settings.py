"""A queue's attributes, from what SQS calls them to Detent's settings and back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec

from detent.queue.info import QueueInfo
from detent.server.sqs.attributes import GROUP, is_text
from detent.server.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    UNSUPPORTED,
    Refused,
    invalid_value,
)
from detent.server.sqs.labels import ATTRIBUTE, Labels
from detent.server.sqs.names import QueuePlace, is_fifo, is_queue_arn, queue_of_arn
from detent.settings.queue import QUEUE
from detent.settings.setting import Flag, Milliseconds, Number, Seconds, Setting, Text

MESSAGE_BYTES_MAX: Final = 1 << 20
"""The largest message, its attributes included, and the largest batch: 1 MiB, as in SQS."""

RECEIVES_MAX: Final = 1_000
SOURCES_MAX: Final = 10
DETENT_SECONDS_MAX: Final = 7 * 24 * 3600

RETENTION: Final = "MessageRetentionPeriod"
KEPT_NUMBERS: Final = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1_024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    RETENTION: (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
"""Numbers that Detent's queues do not have, with their range and what they are unless said."""

SSE: Final = "SqsManagedSseEnabled"
CONTENT_DEDUP: Final = "ContentBasedDeduplication"
SCOPE: Final = "DeduplicationScope"
FIFO_CHOICES: Final = {
    CONTENT_DEDUP: ("false", "true"),
    SCOPE: ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
"""What only FIFO queues have, its values, the first of which it has unless said."""

OWN: Final[dict[str, Setting]] = {
    "Detent" + setting.name.title().replace("_", ""): setting for setting in QUEUE if setting.sqs
}
"""Settings of Detent's own, such as DetentMaxLease. Those that are a duration are a time in seconds."""

COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
    "DetentFailedMessages",
)
"""What can be asked for and not set."""

DETENT_ALL: Final = "DetentAll"
"""Asks for the attributes that SQS does not have."""

RETRIES: Final = "DetentDedupRetries"
"""Whether a call that an SDK repeats, because it heard no answer, sends its messages once."""

NAMES: Final = frozenset(
    {
        "All",
        "Policy",
        "VisibilityTimeout",
        "RedrivePolicy",
        "RedriveAllowPolicy",
        "FifoQueue",
        "KmsMasterKeyId",
        SSE,
        DETENT_ALL,
        "DetentDedupWindow",
        RETRIES,
        *KEPT_NUMBERS,
        *FIFO_CHOICES,
        *OWN,
        *COUNTS,
    }
)

MODIFIED: Final = ATTRIBUTE + "LastModifiedTimestamp"
FIRST_SCOPE: Final = ATTRIBUTE + "FirstDeduplicationScope"
"""The scope that a queue was made with. As in SQS, it is the one that counts, whatever the attribute says later: else
the ids that are remembered would mean nothing after a change, and a duplicate would be taken for new."""

OWN_DEAD_LETTER: Final = ATTRIBUTE + "OwnDeadLetter"
"""The `maxReceiveCount` of a queue that is its own dead-letter queue: its messages stay, and are received again."""

_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class SettingsView:
    """A queue as the hot paths need it, and all that is known of it beside."""

    name: str
    number: int
    is_fifo: bool
    delay_ms: int
    retention_s: int
    message_bytes_max: int
    wait_s: int
    content_dedup: bool
    group_dedup: bool
    retry_dedup: bool
    info: QueueInfo
    labels: Labels
    dedup_window_ms: int

    @classmethod
    def of(cls, info: QueueInfo, dedup_window_ms: int) -> SettingsView:
        """The view of a queue that was described just now."""
        labels = info.labels
        numbers = {name: _kept_number(labels, name) for name in KEPT_NUMBERS}
        return cls(
            name=info.name,
            number=info.number,
            is_fifo=is_fifo(info.name) and info.group_header == GROUP,
            delay_ms=numbers["DelaySeconds"] * 1000,
            retention_s=numbers[RETENTION],
            message_bytes_max=numbers["MaximumMessageSize"],
            wait_s=numbers["ReceiveMessageWaitTimeSeconds"],
            content_dedup=labels.get(ATTRIBUTE + CONTENT_DEDUP) == "true",
            group_dedup=labels.get(FIRST_SCOPE, labels.get(ATTRIBUTE + SCOPE)) == "messageGroup",
            retry_dedup=labels.get(ATTRIBUTE + RETRIES) == "true",
            info=info,
            labels=labels,
            dedup_window_ms=dedup_window_ms,
        )

    @property
    def dead_letter(self) -> str:
        """The queue to which messages go that were received too often; none if empty."""
        return self.info.dead_letter or (self.name if OWN_DEAD_LETTER in self.labels else "")

    @property
    def lacks_order(self) -> bool:
        """Whether this is a FIFO queue by its name alone: its maker did not ask for an order."""
        return is_fifo(self.name) and not self.is_fifo

    @property
    def visible(self) -> int:
        """Messages that are neither delayed nor in flight, those that wait for others of their group included."""
        return self.info.available + self.info.blocked - self.info.blocked_delayed

    def attributes(self, place: QueuePlace) -> dict[str, str]:
        """All attributes that SQS has, as it writes them."""
        info, labels = self.info, self.labels
        lease_ms = info.lease // timedelta(milliseconds=1)
        found = {name: str(_kept_number(labels, name)) for name in KEPT_NUMBERS if name[:3] != "Kms"}
        found |= {
            "VisibilityTimeout": str(lease_ms // 1000),
            "ApproximateNumberOfMessages": str(self.visible),
            "ApproximateNumberOfMessagesNotVisible": str(info.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(info.delayed + info.blocked_delayed),
            "CreatedTimestamp": str(int(info.created.timestamp())),
            "LastModifiedTimestamp": labels.get(MODIFIED, str(int(info.created.timestamp()))),
            "QueueArn": place.arn(self.name),
            SSE: labels.get(ATTRIBUTE + SSE, "true"),
        }
        if self.dead_letter:
            count = int(labels.get(OWN_DEAD_LETTER, info.max_attempts))
            policy = {"deadLetterTargetArn": place.arn(self.dead_letter), "maxReceiveCount": count}
            found["RedrivePolicy"] = msgspec.json.encode(policy).decode()
        if ATTRIBUTE + "RedriveAllowPolicy" in labels:
            found["RedriveAllowPolicy"] = labels[ATTRIBUTE + "RedriveAllowPolicy"]
        if self.is_fifo:
            found["FifoQueue"] = "true"
            found |= {name: labels.get(ATTRIBUTE + name, FIFO_CHOICES[name][0]) for name in FIFO_CHOICES}
        return found

    def detent_attributes(self) -> dict[str, str]:
        """What Detent's queues have beyond SQS."""
        shown = {name: getattr(self.info, setting.shown_as) for name, setting in OWN.items()}
        return {
            **{name: _text(value) for name, value in shown.items() if value is not None},
            "DetentFailedMessages": str(self.info.failed),
            RETRIES: str(self.retry_dedup).lower(),
            "DetentDedupWindow": str(self.dedup_window_ms // 1000),
        }


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return str(value // timedelta(seconds=1))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kept_number(labels: Labels, name: str) -> int:
    text = labels.get(ATTRIBUTE + name, "")
    return int(text) if _NUMBER.fullmatch(text) else KEPT_NUMBERS[name][2]


@dataclass(slots=True)
class Changes:
    """What attributes ask of a queue: Detent's settings, labels (None takes one away), and things to check."""

    queue: str
    settings: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)
    dead_letter: str = ""
    filters: bool = False
    dedup_window_s: int | None = None

    def laid_over(self, labels: Labels) -> Labels:
        """Labels with the changes."""
        changed: dict[str, str | None] = {**labels, **self.labels}
        return {name: value for name, value in changed.items() if value is not None}


def read_attributes(queue: str, attributes: dict[str, str], known: Labels | None, *, fifo: bool) -> Changes:
    """Attributes that a caller sets on a queue with these labels (None: it is new), a FIFO queue or a standard one;
    refused if SQS would, or if a queue here cannot do what they say."""
    changes = Changes(queue)
    for name, value in attributes.items():
        if name == "FifoQueue":
            _check_fifo(value, fifo, is_new=known is None)
        else:
            _read_one(changes, name, value, fifo)
    labels = changes.laid_over(known or {})
    if fifo:
        first = labels if known is None else known
        changes.labels[FIRST_SCOPE] = labels.get(FIRST_SCOPE) or first.get(ATTRIBUTE + SCOPE, FIFO_CHOICES[SCOPE][0])
    by_group = labels.get(ATTRIBUTE + SCOPE) == "messageGroup"
    if labels.get(ATTRIBUTE + "FifoThroughputLimit") == "perMessageGroupId" and not by_group:
        raise _bad("FifoThroughputLimit", "perMessageGroupId needs the DeduplicationScope messageGroup")
    if changes.dead_letter and "DetentMaxAttempts" in attributes:
        raise _bad("DetentMaxAttempts", "the RedrivePolicy says how often a message is tried")
    return changes


def _read_one(changes: Changes, name: str, value: str, fifo: bool) -> None:
    if name in COUNTS or name not in NAMES or name in {"All", DETENT_ALL}:
        raise Refused(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")
    if not is_text(value):
        raise _bad(name, "it has characters that XML cannot hold")
    if name in KEPT_NUMBERS:
        low, high, _ = KEPT_NUMBERS[name]
        number = _sqs_number(name, value, low, high)
        changes.labels[ATTRIBUTE + name] = str(number)
        if name == RETENTION:
            changes.settings["dead_letter_retention"] = timedelta(seconds=number)
    elif name == "VisibilityTimeout":
        # A lease lasts a millisecond at least: as good as the zero that SQS allows.
        changes.settings["lease"] = timedelta(milliseconds=max(1, 1000 * _sqs_number(name, value, 0, 43_200)))
    elif name in FIFO_CHOICES:
        if not fifo:
            only = name == CONTENT_DEDUP
            why = (
                f"Unknown Attribute {name}."
                if only
                else f"You can specify the {name} only when FifoQueue is set to true."
            )
            raise Refused(INVALID_ATTRIBUTE_NAME, why)
        changes.labels[ATTRIBUTE + name] = _choice(name, value)
    elif name == SSE:
        changes.labels[ATTRIBUTE + name] = str(_truth(name, value)).lower() if value else None
    elif name == "RedrivePolicy":
        _read_redrive_policy(changes, value)
    elif name == "RedriveAllowPolicy":
        if value:
            read_allow_policy(value)
        changes.labels[ATTRIBUTE + name] = value or None
    elif name.startswith("Detent"):
        _read_detent(changes, name, value)
    else:
        _refuse_security(name, value)


def _choice(name: str, value: str) -> str:
    """One of the values that an attribute of FIFO queues can have; those that say yes or no in any case."""
    chosen = value.lower() if name == CONTENT_DEDUP else value
    if chosen not in FIFO_CHOICES[name]:
        raise _invalid_value(name)
    return chosen


def is_true(value: str) -> bool:
    """Whether an attribute says yes, in whatever case."""
    return value.lower() == "true"


def _check_fifo(value: str, fifo: bool, *, is_new: bool) -> None:
    """A queue is a FIFO queue or is not from the first, and by its name."""
    if fifo and not is_true(value):
        raise _bad("FifoQueue", "Modifying queue type is not supported")
    if not fifo and is_new and is_true(value):
        raise invalid_value(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
            ".fifo suffix and be 1 to 80 in length."
        )
    if not fifo:
        raise Refused(INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue.")


def _refuse_security(name: str, value: str) -> None:
    """Policies and keys of KMS are promises that this server would not keep: they are refused, not stored."""
    if not value:
        return
    instead = {
        "Policy": "who may do what is said by the server's own credentials and their grants",
        "KmsMasterKeyId": "encrypt the disk under the store",
    }[name]
    raise Refused(UNSUPPORTED, f"The attribute {name} is not supported here: {instead}.")


def _read_redrive_policy(changes: Changes, value: str) -> None:
    target, count = _redrive_policy(value) if value else ("", 0)
    changes.labels[OWN_DEAD_LETTER] = None
    if target == changes.queue:
        changes.labels[OWN_DEAD_LETTER] = str(count)
        target, count = "", 0
    changes.dead_letter = target
    changes.settings |= {"dead_letter": target, "max_attempts": count}


def _redrive_policy(value: str) -> tuple[str, int]:
    """A RedrivePolicy: the dead-letter queue, and how often a message is received before it goes there."""
    try:
        policy = msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_policy(value, "Redrive policy is not a valid JSON map.") from error
    for name in ("deadLetterTargetArn", "maxReceiveCount"):
        if policy.get(name) is None:
            raise bad_policy(value, f"Redrive policy does not contain mandatory attribute: {name}.")
    target, count = policy["deadLetterTargetArn"], policy["maxReceiveCount"]
    if type(target) is not str or not is_queue_arn(target):
        raise bad_policy(value, "Invalid value for deadLetterTargetArn.")
    if type(count) is str and _NUMBER.fullmatch(count):
        count = int(count)
    if type(count) is not int or not 1 <= count <= RECEIVES_MAX:
        wanted = f"valid values are from 1 to {RECEIVES_MAX} both inclusive."
        raise bad_policy(value, f"Invalid value for maxReceiveCount: {str(count)[:100]}, {wanted}")
    return queue_of_arn(target, "RedrivePolicy"), count


def bad_policy(value: str, reason: str) -> Refused:
    """A RedrivePolicy that SQS refuses."""
    return invalid_value(f"Value {value[:1000]} for parameter RedrivePolicy is invalid. Reason: {reason}")


def read_allow_policy(value: str) -> tuple[str, list[str]]:
    """A RedriveAllowPolicy: who may use a queue as a dead-letter queue, and the sources that it names, if any."""
    policy = _json("RedriveAllowPolicy", value)
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns", [])
    if type(permission) is not str or permission not in {"allowAll", "denyAll", "byQueue"}:
        raise _bad("RedriveAllowPolicy", "redrivePermission is one of allowAll, denyAll, byQueue")
    if type(arns) is not list or not all(type(arn) is str for arn in arns) or len(arns) > SOURCES_MAX:
        raise _bad("RedriveAllowPolicy", f"sourceQueueArns are up to {SOURCES_MAX} ARNs")
    if bool(arns) != (permission == "byQueue"):
        raise _bad("RedriveAllowPolicy", "sourceQueueArns go with byQueue, and only with it")
    return permission, [queue_of_arn(arn, "RedriveAllowPolicy") for arn in arns]


def _read_detent(changes: Changes, name: str, value: str) -> None:
    if name == RETRIES:
        changes.labels[ATTRIBUTE + name] = str(_truth(name, value)).lower()
    elif name == "DetentDedupWindow":
        changes.dedup_window_s = _number(name, value, 0, 365 * 24 * 3600)
    else:
        setting = OWN[name]
        changes.settings[setting.name] = _own(name, setting, value)
        if name == "DetentFilter":
            changes.filters = bool(value)


def _own(name: str, setting: Setting, value: str) -> Any:
    if isinstance(setting, Milliseconds | Seconds):
        return timedelta(seconds=_number(name, value, 0, DETENT_SECONDS_MAX))
    if isinstance(setting, Number):
        return _number(name, value, 0, setting.most)
    if isinstance(setting, Flag):
        return _truth(name, value)
    return (value or None) if isinstance(setting, Text) and setting.unset else value


def _truth(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise _bad(name, "it is true or false")
    return is_true(value)


def new_queue_settings(queue: str) -> dict[str, Any]:
    """What a queue has that an SQS client creates: a message that was not deleted in time is there again at once, for
    as long as it is retained, and one that was deleted leaves nothing."""
    found: dict[str, Any] = {"max_attempts": 0, "lease": "30s", "backoff": "0s", "done_retention": "0s"}
    found["dead_letter_retention"] = timedelta(seconds=KEPT_NUMBERS[RETENTION][2])
    found["group_header"] = GROUP
    found["group_overlap" if is_fifo(queue) else "group_fair"] = True
    return found


def same(name: str, given: str, known: str | None) -> bool:
    """Whether an attribute has the value that a caller gives it."""
    if known is None:
        return given in {"", "false"}
    if name == "RedrivePolicy" and given:
        return _redrive_policy(given) == _redrive_policy(known)
    if name == "RedriveAllowPolicy" and given:
        (first, sources), (second, others) = read_allow_policy(given), read_allow_policy(known)
        return first == second and set(sources) == set(others)
    if _NUMBER.fullmatch(given) and _NUMBER.fullmatch(known):
        return int(given) == int(known)
    return (given.lower() if known in {"true", "false"} else given) == known


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(name, "it is not a JSON object") from error


def _number(name: str, value: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
        raise _bad(name, f"it is a number from {low} to {high}")
    return int(value)


def _sqs_number(name: str, value: str, low: int, high: int) -> int:
    """A number of SQS's own, refused in its words."""
    if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
        raise _invalid_value(name)
    return int(value)


def _invalid_value(name: str) -> Refused:
    return Refused(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.")


def _bad(name: str, reason: str) -> Refused:
    return Refused(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}.")
