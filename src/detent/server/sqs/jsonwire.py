"""The newer of SQS's two protocols: AWS JSON 1.0, with the action in the header X-Amz-Target."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

import msgspec

from detent.server.http import HttpRequest, Response
from detent.server.sqs import shapes
from detent.server.sqs.attributes import Attribute
from detent.server.sqs.errors import INVALID_ACTION, MALFORMED, NO_ACTION, TOO_MANY_ENTRIES, Refused
from detent.server.sqs.shapes import ACTIONS, Field

TYPE: Final = "application/x-amz-json-1.0"
TARGET: Final = "x-amz-target"
TARGET_PREFIX: Final = "AmazonSQS."
NUMBER_MAX: Final = (1 << 31) - 1
"""The integers of the protocol have 32 bits."""

ITEMS_MAX: Final = 100
"""Entries and pairs that are looked at; actions take 50 at most, and say themselves what is too much."""

TEXTS_MAX: Final = 1_000
"""The same for names, of which a consumer may list more than any message has."""

SMALL_BYTES: Final = 64 << 10
PARTS_MAX: Final = 20_000
"""How many parts a body over `SMALL_BYTES` may have; a full batch has about a thousand."""

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def action_of(request: HttpRequest) -> str:
    """Which action a request is for."""
    target = request.headers.get(TARGET, "")
    if not target:
        raise Refused(NO_ACTION, "The request must have the header X-Amz-Target, as in AmazonSQS.SendMessage.")
    name = target.removeprefix(TARGET_PREFIX)
    if name not in ACTIONS:
        raise Refused(INVALID_ACTION, f"The action {name[:100]} is not valid for this endpoint.")
    return name


def read(action: str, body: bytes) -> dict[str, Any]:
    """The fields of a request's body, each of its type."""
    if len(body) > SMALL_BYTES:
        _check_parts(body)
    try:
        value = _decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise malformed(f"the body is not JSON: {error}") from error
    return _structure(ACTIONS[action].fields, value, "the body")


def _check_parts(body: bytes) -> None:
    """Refuse a large body that has more strings, lists and objects than any request before they are made: millions of
    them take seconds, in which no other caller is answered. What is not JSON at all is left to the decoder, which stops
    there."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # now each quote begins or ends a string
    parts = plain.count(b'"')
    if parts <= PARTS_MAX:
        between = b"".join(plain.split(b'"')[::2])
        parts += between.count(b",") + between.count(b"[") + between.count(b"{")
    if parts > PARTS_MAX:
        raise malformed("it has more parts than any request")


def malformed(what: str) -> Refused:
    """The request is not of the form that the protocol asks for."""
    return Refused(MALFORMED, f"The request could not be read: {what}.")


def _structure(fields: dict[str, Field], value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise malformed(f"{where} is not a JSON object")
    found: dict[str, Any] = {}
    for name, field in fields.items():
        given = value.get(name)
        if given is not None:
            found[name] = _field(field, given, name)
    return found


def _field(field: Field, value: Any, where: str) -> Any:
    kind = field.kind
    if kind == shapes.TEXT:
        return _text(value, where)
    if kind == shapes.NUMBER:
        if type(value) is not int or abs(value) > NUMBER_MAX:
            raise malformed(f"{where[:100]} is not an integer")
        return value
    if kind == shapes.TEXTS:
        return [_text(item, where) for item in _list(value, TEXTS_MAX, where)]
    if kind == shapes.ENTRIES:
        return [_structure(field.fields, item, where) for item in _list(value, ITEMS_MAX, where)]
    if type(value) is not dict:
        raise malformed(f"{where[:100]} is not a JSON object")
    _check_count(len(value), ITEMS_MAX, where)
    if kind == shapes.MAP:
        return {name: _text(item, name) for name, item in value.items()}
    return {name: _attribute(item, name) for name, item in value.items()}


def _text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise malformed(f"{where[:100]} is not a string")
    return value


def _list(value: Any, most: int, where: str) -> list[Any]:
    if type(value) is not list:
        raise malformed(f"{where[:100]} is not a list")
    _check_count(len(value), most, where)
    return value


def _check_count(count: int, most: int, where: str) -> None:
    """Refuse what has more items than any action takes before one of them is looked at."""
    if count <= most:
        return
    if where == "Entries":
        raise Refused(TOO_MANY_ENTRIES, f"Maximum number of entries per request are 10. You have sent {count}.")
    raise malformed(f"{where[:100]} has {count} items")


def _attribute(value: Any, where: str) -> Attribute:
    if type(value) is not dict:
        raise malformed(f"the attribute {where[:100]} is not a JSON object")
    data_type, text, data = value.get("DataType"), value.get("StringValue"), value.get("BinaryValue")
    return Attribute(
        "" if data_type is None else _text(data_type, "DataType"),
        None if text is None else _text(text, "StringValue"),
        None if data is None else binary(_text(data, "BinaryValue")),
        bool(value.get("StringListValues") or value.get("BinaryListValues")),
    )


def binary(text: str) -> bytes:
    """Bytes that travel as base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise malformed(f"a binary value is not base64: {error}") from error


def answer(result: dict[str, Any] | None, request_id: str) -> Response:
    """What an action answers."""
    body = b"" if result is None else _encode(result)
    return Response(body, type=TYPE, headers={"x-amzn-requestid": request_id})


def refuse(error: Refused, request_id: str) -> Response:
    """An error, with the code of the older protocol in a header, for clients that still go by it."""
    fault = error.fault
    side = "Sender" if fault.by_sender else "Receiver"
    headers = {"x-amzn-requestid": request_id, "x-amzn-query-error": f"{fault.code};{side}"}
    body = _encode({"__type": fault.name, "message": error.message})
    return Response(body, status=fault.status, type=TYPE, headers=headers)
