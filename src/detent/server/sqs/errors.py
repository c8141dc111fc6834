"""What SQS calls it when something is wrong: the code in each protocol, and the HTTP status."""

from __future__ import annotations

from typing import Final, NamedTuple

from detent.errors import (
    Busy,
    Denied,
    DetentError,
    Exists,
    Invalid,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from detent.server.http import WrongEncoding


class Fault(NamedTuple):
    """One kind of error: its name in the JSON protocol, its code in the Query protocol, its status."""

    name: str
    code: str
    status: int

    @property
    def by_sender(self) -> bool:
        """Whether the caller is to blame, and not the server."""
        return self.status < 500


_SERVICE: Final = "com.amazonaws.sqs#"
_COMMON: Final = "com.amazon.coral.service#"
_PREFIX: Final = "AWS.SimpleQueueService."


def _own(name: str, code: str = "", status: int = 400) -> Fault:
    """An error of SQS itself; older ones have a code with a prefix."""
    return Fault(_SERVICE + name, code or name, status)


def _prefixed(name: str, status: int = 400) -> Fault:
    return Fault(_SERVICE + name, _PREFIX + name, status)


BATCH_IDS_NOT_DISTINCT: Final = _prefixed("BatchEntryIdsNotDistinct")
BATCH_TOO_LONG: Final = _prefixed("BatchRequestTooLong")
EMPTY_BATCH: Final = _prefixed("EmptyBatchRequest")
INVALID_ADDRESS: Final = _own("InvalidAddress", status=404)
INVALID_ATTRIBUTE_NAME: Final = _own("InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE: Final = _own("InvalidAttributeValue")
INVALID_BATCH_ID: Final = _prefixed("InvalidBatchEntryId")
INVALID_CONTENTS: Final = _own("InvalidMessageContents")
NOT_IN_FLIGHT: Final = _prefixed("MessageNotInflight")
OVER_LIMIT: Final = _own("OverLimit", status=403)
PURGE_IN_PROGRESS: Final = _prefixed("PurgeQueueInProgress", 403)
NO_QUEUE: Final = _own("QueueDoesNotExist", _PREFIX + "NonExistentQueue")
QUEUE_EXISTS: Final = _own("QueueNameExists", "QueueAlreadyExists")
INVALID_HANDLE: Final = _own("ReceiptHandleIsInvalid", status=404)
THROTTLED: Final = _own("RequestThrottled", status=403)
NO_SOURCE: Final = _own("CouldNotDetermineMessageSource")
NOT_FOUND: Final = _own("ResourceNotFoundException", status=404)
TOO_MANY_ENTRIES: Final = _prefixed("TooManyEntriesInBatchRequest")
UNSUPPORTED: Final = _prefixed("UnsupportedOperation")

ACCESS_DENIED: Final = Fault(_COMMON + "AccessDeniedException", "AccessDenied", 403)
INVALID_ACTION: Final = Fault(_COMMON + "UnknownOperationException", "InvalidAction", 400)
INVALID_VALUE: Final = Fault(_COMMON + "InvalidParameterValueException", "InvalidParameterValue", 400)
NO_ACTION: Final = Fault(_COMMON + "UnknownOperationException", "UnknownOperationException", 404)
MISSING_PARAMETER: Final = Fault(_COMMON + "MissingRequiredParameterException", "MissingParameter", 400)
MALFORMED: Final = Fault(_COMMON + "SerializationException", "MalformedInput", 400)
TOO_LARGE: Final = Fault(_COMMON + "RequestEntityTooLargeException", "RequestEntityTooLarge", 413)
NOT_ALLOWED: Final = Fault(_COMMON + "MethodNotAllowedException", "MethodNotAllowed", 405)
WRONG_TYPE: Final = Fault(_COMMON + "UnsupportedMediaTypeException", "UnsupportedMediaType", 415)
UNAVAILABLE: Final = Fault(_COMMON + "ServiceUnavailableException", "ServiceUnavailable", 503)
NO_CREDENTIALS: Final = Fault(_COMMON + "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
UNKNOWN_KEY: Final = Fault(_COMMON + "UnrecognizedClientException", "InvalidClientTokenId", 403)
BAD_SIGNATURE: Final = Fault(_COMMON + "InvalidSignatureException", "SignatureDoesNotMatch", 403)
INTERNAL: Final = Fault(_COMMON + "InternalFailureException", "InternalFailure", 500)


class Refused(DetentError):
    """A request that SQS would refuse as well, with the error that it gives."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


def no_queue() -> Refused:
    """There is no such queue."""
    return Refused(NO_QUEUE, "The specified queue does not exist.")


def invalid_value(message: str) -> Refused:
    """A parameter has a value that it cannot have."""
    return Refused(INVALID_VALUE, message)


_FAULTS: Final[tuple[tuple[type[DetentError], Fault], ...]] = (
    (Denied, ACCESS_DENIED),
    (Exists, QUEUE_EXISTS),
    (Busy, THROTTLED),
    (LimitExceeded, OVER_LIMIT),
    (WrongEncoding, WRONG_TYPE),
    (Invalid, INVALID_VALUE),
    (Unavailable, UNAVAILABLE),
)


def refused(error: DetentError) -> Refused:
    """Any error of Detent's, as SQS would call it. What has no name there is the server's own failure."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, NotFound):
        return no_queue()
    fault = next((fault for kind, fault in _FAULTS if isinstance(error, kind)), INTERNAL)
    return Refused(fault, str(error))
