"""The wire protocol: what a request and its answer look like between a client and an owner.

HTTP carries it, on a Unix socket or TCP. Transactions are MessagePack; everything else is JSON.

    POST /v1/sessions                                     a session for this client
    POST /v1/producers                                    a producer for one publisher, and what proves that it is its
    POST /v1/transactions[?contents=1]                    apply transactions, or answer them again, each by itself
    GET  /v1/status                                       who answers here
    GET  /v1/native/size                                  roughly what the store's records occupy
    GET  /v1/native/wait/journal?journal&offset&timeout_ms   answer when the journal has grown past an offset
    GET  /v1/native/wait/queue?queue&timeout_ms           answer when the queue has something to claim
    GET  /v1/native/journals?prefix                       the names of journals; extents: where each begins and ends
    GET  /v1/native/journals/info?journal                 one journal; so too: number, extent, offset-at (&time_ms)
    GET  /v1/native/journals/committed?journal&start&end[&number]      messages, as an Arrow stream; so too: uncommitted
    PUT  /v1/native/objects/NAME                          write a fragment; GET reads it, HEAD says how large it is

A client on the owner's machine reads journals and bodies from the files. One that is elsewhere asks for `contents`,
and reads through the last five. (Other paths under /v1 are the server's REST API.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Union

import msgspec

from detent.engine import MALFORMED, Done, Request, operation_union
from detent.engine.operation import OPERATIONS_MAX
from detent.errors import BY_NAME, Corrupt, DetentError, Invalid, LimitExceeded
from detent.journal import JournalMachine
from detent.ledger import LedgerMachine
from detent.queue import QueueMachine
from detent.schedule import ScheduleMachine
from detent.shard import ShardMachine

SMALL_BYTES: Final = 4 << 10
"""A transaction of no more bytes than this needs no counting: all that fit into a request become a few hundred
megabytes at most."""

LIST_MAX: Final = 1 << 20
"""In one list or map of an operation; no operation takes more."""

ELEMENTS_MAX: Final = 6 << 20
"""In the lists and maps of one HTTP request, whose transactions are decoded together: room for the largest append of
messages with ids, keys and headers. In memory that is up to 1.5 GB, if all of them are maps."""

OPERATION_ELEMENTS: Final = 8
"""What an operation counts by itself."""

_FIELDS_MAX: Final = 32
_WIDTHS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}

_Operations = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=2 * OPERATIONS_MAX)]
_Shape = msgspec.defstruct(
    "Shape",
    [("session", msgspec.Raw), ("sequence", msgspec.Raw), ("answered", msgspec.Raw), ("operations", _Operations)],
    array_like=True,
)
_shape_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(_Shape)
_fields_decoder = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_FIELDS_MAX)])


class Elements:
    """What the transactions of one HTTP request hold together."""

    def __init__(self) -> None:
        self._left = ELEMENTS_MAX

    def take(self, transaction: msgspec.Raw) -> None:
        """Count a transaction; `LimitExceeded` if it is too much, msgspec's errors if it is none."""
        if memoryview(transaction).nbytes <= SMALL_BYTES:
            return
        count = 0
        for operation in _shape_decoder.decode(transaction).operations:
            count += OPERATION_ELEMENTS
            for field in _fields_decoder.decode(operation):
                size = _length(memoryview(field))
                if size > LIST_MAX:
                    raise LimitExceeded(f"an operation has lists of at most {LIST_MAX} values, not {size}")
                count += size
        if count > self._left:
            raise LimitExceeded(f"one request holds at most {ELEMENTS_MAX} values: send its transactions apart")
        self._left -= count


def _length(value: memoryview) -> int:
    """How long a list or map is; 0 for anything else."""
    first = value[0]
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    width = _WIDTHS.get(first)
    return 0 if width is None else int.from_bytes(value[1 : 1 + width], "big")


BODY_BYTES_MAX = 160 << 20
"""Above the largest append, with room for its envelope."""

WAIT_MS_MAX = 60_000

BODY_WAIT_S = 60.0
"""How long a client may take to send one request."""

TRANSACTION_TYPE = "application/vnd.detent.transaction+msgpack"
PROBLEM_TYPE = "application/problem+json"

MACHINES = (JournalMachine, QueueMachine, LedgerMachine, ShardMachine, ScheduleMachine)
"""The layers whose operations travel on the wire."""

_WireRequest = msgspec.defstruct(
    "WireRequest",
    [
        ("session", bytes),
        ("sequence", int),
        ("answered", int),
        ("operations", list[operation_union(MACHINES)]),  # type: ignore[misc, arg-type]
    ],
    array_like=True,
    frozen=True,
)
_results = {Done, *(kind for machine in MACHINES for kind in machine.results)}
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda batch: batch.serialize().to_pybytes())  # Arrow batches only

REQUESTS_MAX = 1024
"""Transactions in one HTTP request: those of one client that waited together."""

REQUEST_BYTES_MAX = BODY_BYTES_MAX - (16 << 20)
"""One transaction's share of a body: those that travel with it find room too."""

_request_decoder = msgspec.msgpack.Decoder(_WireRequest)
# Many more than allowed are refused before they are taken apart, the others by the limit's own error.
_parts_decoder = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=16 * REQUESTS_MAX)])


class Problem(msgspec.Struct, omit_defaults=True):
    """An error on the wire, with what it carries besides its message."""

    error: str
    message: str
    details: dict[str, str | int] = {}


class RequestAnswer(msgspec.Struct, array_like=True):
    """What became of one transaction: its results, or a problem."""

    results: list[Union[tuple(_results)]] | None  # type: ignore[valid-type]  # noqa: UP007
    problem: Problem | None = None


_answers_decoder = msgspec.msgpack.Decoder(list[RequestAnswer])

STATUS = {
    "Invalid": 400,
    "ClockAhead": 400,
    "NotFound": 404,
    "Exists": 409,
    "Conflict": 409,
    "AlreadyEntered": 409,
    "RollBackHeld": 409,
    "OtherInput": 409,
    "Fenced": 410,
    "SessionExpired": 410,
    "Restored": 410,
    "ProducerTaken": 410,
    "ClockBehind": 410,
    "ShardsLost": 409,
    "StaleReceipt": 410,
    "LimitExceeded": 413,
    "Busy": 429,
    "Denied": 403,
    "Corrupt": 500,
    "Unavailable": 503,
    "NotOwner": 503,
    "OutcomeUnknown": 503,
}


def encode_request(request: Request) -> msgspec.Raw:
    """One transaction, by itself: what cannot travel is refused before it is among others."""
    try:
        data = _encoder.encode(request)
    except Exception as error:  # whatever a user has put into it
        raise Invalid(f"this transaction cannot be sent: {error}") from error
    if len(data) > REQUEST_BYTES_MAX:
        raise LimitExceeded(f"a transaction of {len(data)} bytes is over the limit of {REQUEST_BYTES_MAX}")
    return msgspec.Raw(data)


def encode_requests(requests: Sequence[Request | msgspec.Raw]) -> bytes:
    """Several transactions, encoded before or not."""
    return _encoder.encode(requests)


def decode_requests(data: bytes) -> list[Request | DetentError]:
    """Requests from bytes; in the place of one that is malformed or too large, what is wrong with it."""
    try:
        parts = _parts_decoder.decode(data)
    except MALFORMED as error:
        raise Invalid(f"these are no transactions: {error}") from error
    if not 1 <= len(parts) <= REQUESTS_MAX:
        raise LimitExceeded(f"one request holds 1 to {REQUESTS_MAX} transactions, not {len(parts)}")
    elements = None if len(data) <= SMALL_BYTES else Elements()
    return [_decode_request(part, elements) for part in parts]


def _decode_request(part: msgspec.Raw, elements: Elements | None) -> Request | DetentError:
    try:
        if elements is not None:
            elements.take(part)
        wire: Any = _request_decoder.decode(part)
    except MALFORMED as error:
        return Invalid(f"this is no transaction: {error}")
    except LimitExceeded as error:
        return error
    return Request(wire.session, wire.sequence, wire.answered, wire.operations)


def encode_answers(outcomes: list[list[Any] | DetentError]) -> bytes:
    """One answer for each transaction, in order."""
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, DetentError):
            answers.append(RequestAnswer(None, _problem(outcome)))
        else:
            answers.append(RequestAnswer(outcome))
    return _encoder.encode(answers)


def decode_answers(data: bytes, count: int) -> list[list[Any] | DetentError]:
    """The outcomes of `count` transactions."""
    try:
        answers = _answers_decoder.decode(data)
    except MALFORMED as error:
        raise Corrupt(f"the owner's answer cannot be read: {error}") from error
    if len(answers) != count:
        raise Corrupt(f"the owner gave {len(answers)} answers to {count} transactions")
    return [_exception(a.problem) if a.problem is not None else a.results or [] for a in answers]


def encode_problem(error: DetentError) -> tuple[int, bytes]:
    """The HTTP status and body for an error."""
    problem = _problem(error)
    return STATUS.get(problem.error, 500), msgspec.json.encode(problem)


def _problem(error: DetentError) -> Problem:
    return Problem(_name(error), str(error), {field: getattr(error, field) for field in error.details})


def _name(error: DetentError) -> str:
    """The name that an error goes by on the wire: its own, or that of the nearest kind both sides know."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BY_NAME)


def _exception(problem: Problem) -> DetentError:
    kind = BY_NAME.get(problem.error, DetentError)
    details = {field: problem.details[field] for field in kind.details if field in problem.details}
    return kind(problem.message, **details)


def decode_problem(data: bytes) -> DetentError:
    """The exception that an error body stands for."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except MALFORMED as error:
        return Corrupt(f"the owner's error cannot be read: {error}")
    return _exception(problem)
