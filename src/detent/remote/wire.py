"""The wire protocol: what a request and its answer look like between a client and an owner.

HTTP carries it, on a Unix socket or TCP. Transactions are MessagePack; everything else is JSON.

    POST /v1/sessions                                   a session for this client
    POST /v1/transactions                               apply a transaction, or answer it again
    GET  /v1/journals/NAME/wait?offset=N&timeout_ms=N   answer when the journal has grown past an offset
    GET  /v1/status                                     who answers here
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from detent.engine import MALFORMED, Done, Request, operation_union
from detent.errors import BY_NAME, Corrupt, DetentError, Invalid
from detent.journal import JournalMachine

BODY_BYTES_MAX = 160 << 20
"""Above the largest append, with room for its envelope."""

WAIT_MS_MAX = 60_000

BODY_WAIT_S = 60.0
"""How long a client may take to send one request."""

TRANSACTION_TYPE = "application/vnd.detent.transaction+msgpack"
PROBLEM_TYPE = "application/problem+json"

MACHINES = (JournalMachine,)
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
_request_decoder = msgspec.msgpack.Decoder(_WireRequest)
_results_decoder = msgspec.msgpack.Decoder(list[Union[tuple(_results)]])  # type: ignore[misc]  # noqa: UP007
_encoder = msgspec.msgpack.Encoder()


class Problem(msgspec.Struct):
    """An error on the wire."""

    error: str
    message: str


STATUS = {
    "Invalid": 400,
    "NotFound": 404,
    "Exists": 409,
    "Conflict": 409,
    "Fenced": 410,
    "SessionExpired": 410,
    "StaleReceipt": 410,
    "LimitExceeded": 413,
    "Corrupt": 500,
    "Unavailable": 503,
    "OutcomeUnknown": 503,
}


def encode_request(request: Request) -> bytes:
    return _encoder.encode(request)


def decode_request(data: bytes) -> Request:
    """A request from bytes; what is malformed or of a wrong type is `Invalid`."""
    try:
        wire: Any = _request_decoder.decode(data)
    except MALFORMED as error:
        raise Invalid(f"this is no transaction: {error}") from error
    request = Request(wire.session, wire.sequence, wire.answered, wire.operations)
    request.check()
    return request


def encode_results(results: list[Any]) -> bytes:
    return _encoder.encode(results)


def decode_results(data: bytes) -> list[Any]:
    try:
        results: list[Any] = _results_decoder.decode(data)
    except MALFORMED as error:
        raise Corrupt(f"the owner's answer cannot be read: {error}") from error
    return results


def encode_problem(error: DetentError) -> tuple[int, bytes]:
    """The HTTP status and body for an error."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BY_NAME)
    return STATUS.get(name, 500), msgspec.json.encode(Problem(name, str(error)))


def decode_problem(data: bytes) -> DetentError:
    """The exception that an error body stands for."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except MALFORMED as error:
        return Corrupt(f"the owner's error cannot be read: {error}")
    return BY_NAME.get(problem.error, DetentError)(problem.message)
