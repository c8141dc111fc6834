"""How things are called on the wire: queue URLs and ARNs, message ids, sequence numbers, receipt handles."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from detent.errors import Invalid
from detent.queue.message import Receipt
from detent.server.sqs.errors import INVALID_ADDRESS, INVALID_HANDLE, Refused, invalid_value, no_queue

NAME_MAX: Final = 80
"""The longest name of a queue in SQS, the suffix .fifo included."""

FIFO_SUFFIX: Final = ".fifo"
HANDLE_MAX: Final = 1_024
HANDLE_VERSION: Final = "A"
"""Every receipt handle begins with it, so that another form can be told from this one."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.fifo)?")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")
_UUID_VERSION: Final = 8 << 76
_UUID_VARIANT: Final = 2 << 62


class QueuePlace(NamedTuple):
    """Where this server pretends to be, for those who take URLs and ARNs apart."""

    region: str = "us-east-1"
    account: str = "000000000000"

    def arn(self, queue: str) -> str:
        """The ARN of a queue."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{queue}"


def is_fifo(queue: str) -> bool:
    """Whether this is the name of a FIFO queue."""
    return queue.endswith(FIFO_SUFFIX)


def is_name(queue: str) -> bool:
    """Whether SQS clients can name a queue like this."""
    return len(queue) <= NAME_MAX and _NAME.fullmatch(queue) is not None


def check_name(queue: str) -> None:
    """Refuse what cannot be the name of a queue."""
    if not is_name(queue):
        raise invalid_value("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")


def check_token(text: str, parameter: str) -> None:
    """Refuse what cannot be a group, a deduplication id or an attempt id."""
    if not _TOKEN.fullmatch(text):
        raise invalid_value(
            f"Value {text[:200]} for parameter {parameter} is invalid. Reason: {parameter} can only include "
            "alphanumeric and punctuation characters. 1 to 128 in length."
        )


def queue_of_url(url: str) -> str:
    """The queue that a URL names: the last part of its path, whatever the host, the region and the account."""
    try:
        path = urlsplit(url).path
    except ValueError as error:
        raise Refused(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.") from error
    if not path.strip("/"):
        raise no_queue()
    name = path.rstrip("/").rpartition("/")[2]
    if not is_name(name):
        raise Refused(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
    return name


def is_queue_arn(arn: str) -> bool:
    """Whether an ARN names a queue."""
    parts = arn.split(":")
    return len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and is_name(parts[5])


def queue_of_arn(arn: str, parameter: str) -> str:
    """The queue that an ARN names."""
    if not is_queue_arn(arn):
        raise invalid_value(
            f"Value {arn[:200]} for parameter {parameter} is invalid. Reason: it is not an ARN of a queue."
        )
    return arn.rpartition(":")[2]


def base_url(scheme: str, host: str | None, place: QueuePlace) -> str:
    """What the URLs of queues begin with, for a client that reached the server under this host."""
    if host is None or not _HOST.fullmatch(host):
        host = "localhost"
    return f"{'https' if scheme == 'https' else 'http'}://{host}/{place.account}/"


def message_id(message: int) -> str:
    """A message's id: a UUID of version 8 whose last 62 bits are the message's number. It is the same at each delivery
    and in each queue that the message comes to, and two messages of a store never share one."""
    digits = f"{_UUID_VERSION | _UUID_VARIANT | message:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def sequence_number(message: int) -> str:
    """What orders the messages of a FIFO queue: their numbers, with as many digits as those of SQS."""
    return f"{message:020d}"


def receipt_handle(receipt: Receipt) -> str:
    """A receipt as text that says nothing to its reader."""
    return HANDLE_VERSION + urlsafe_b64encode(str(receipt).encode()).decode().rstrip("=")


def receipt_of_handle(handle: str, queue: int) -> Receipt:
    """The receipt behind a handle; refused if it is none, or one of another queue."""
    try:
        if not 1 < len(handle) <= HANDLE_MAX or not handle.startswith(HANDLE_VERSION):
            raise Invalid("it is not a handle")
        text = urlsafe_b64decode(handle[1:] + "=" * (-(len(handle) - 1) % 4)).decode("ascii")
        receipt = Receipt.parse(text)
        if receipt.queue != queue or receipt_handle(receipt) != handle:
            raise Invalid("it is a handle of another queue, or not as it was given out")
    except ValueError as error:  # Invalid is one of them, and so is what base64 and ASCII raise
        raise Refused(
            INVALID_HANDLE, f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.'
        ) from error
    if max(receipt) >> 62:
        raise Refused(INVALID_HANDLE, "The input receipt handle is not a valid receipt handle.")
    return receipt
