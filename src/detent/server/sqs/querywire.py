"""The older of SQS's two protocols: forms in, XML out, or JSON for those who accept that. No XML is ever read."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from detent.server.http import HttpRequest, Response
from detent.server.sqs import shapes
from detent.server.sqs.attributes import NOT_XML, Attribute
from detent.server.sqs.errors import INVALID_ACTION, NO_ACTION, NO_QUEUE, Refused
from detent.server.sqs.jsonwire import NUMBER_MAX, binary, malformed
from detent.server.sqs.shapes import ACTIONS, XML_LISTS, XML_MAPS, Field

TYPE: Final = "text/xml"
JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
NOT_OF_QUEUES: Final = frozenset({"CreateQueue", "ListQueues"})
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
FIELDS_MAX: Final = 2_000
"""A full batch has ten entries of at most ten attributes of three fields each, and some more."""

FIELD_DEPTH_MAX: Final = 7
"""The deepest name is SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue."""

ITEMS_MAX: Final = 99_999
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}
_SPECIAL: Final = re.compile('[&<>"\r]')

Tree = dict[str, Any]


def read_form(request: HttpRequest, body: bytes) -> dict[str, str]:
    """The fields of a request: those of its address, and of its body if that is a form."""
    fields = _pairs(request.raw_query)
    if body and request.content_type == FORM_TYPE:
        for name, value in _pairs(body).items():
            if name in fields:
                raise malformed(f"the field {name[:100]} is there twice")
            fields[name] = value
    elif body:
        raise malformed(f"the body is not a form: its type is {request.content_type[:100] or 'not given'}")
    return fields


def _pairs(text: bytes) -> dict[str, str]:
    if not text:
        return {}
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict", separator="&"
        )
    except ValueError as error:
        raise malformed(f"it is not a form: {error}") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise malformed("a field is there twice")
    return fields


def action_of(form: dict[str, str], path: str) -> str:
    """Which action a form is for; at a queue's address it is one about that queue."""
    name = form.get("Action", "")
    if not name:
        raise Refused(NO_ACTION, "The request must contain the parameter Action.")
    if name not in ACTIONS or (name in NOT_OF_QUEUES and path.strip("/")):
        raise Refused(INVALID_ACTION, f"The action {name[:100]} is not valid for this endpoint.")
    return name


def read(action: str, form: dict[str, str], path: str) -> dict[str, Any]:
    """The fields of a form, each of its type. A queue may be named by the request's address alone."""
    spec = ACTIONS[action].fields
    tree: Tree = {}
    for name, value in form.items():
        _plant(tree, name, value)
    found = _structure(spec, tree)
    if "QueueUrl" in spec and not found.get("QueueUrl") and path.strip("/"):
        found["QueueUrl"] = path
    return found


def _plant(tree: Tree, name: str, value: str) -> None:
    """Put a field with a dotted name at its place among the others."""
    *branches, leaf = name.split(".", FIELD_DEPTH_MAX)
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if type(tree) is not dict:
            raise malformed(f"{name[:100]} is a field and a part of another one")
    if leaf in tree:
        raise malformed(f"{name[:100]} is a field and has parts")
    tree[leaf] = value


def _structure(fields: dict[str, Field], tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in fields.items():
        given = tree.get(field.form_name or name)
        if given is not None:
            found[name] = _field(field, given, name)
    return found


def _field(field: Field, given: Any, where: str) -> Any:
    kind = field.kind
    if kind == shapes.TEXT:
        return _text(given, where)
    if kind == shapes.NUMBER:
        return _number(given, where)
    if kind == shapes.TEXTS:
        return [_text(item, where) for item in _items(given)]
    if kind == shapes.ENTRIES:
        return [_structure(field.fields, _branch(item, where)) for item in _items(given)]
    pairs: dict[str, Any] = {}
    for item in _items(given):
        entry = _branch(item, where)
        key, value = _text(entry.get(field.form_key), where), entry.get(field.form_value, "")
        if key in pairs:
            raise malformed(f"{key[:100]} is there twice")
        pairs[key] = _text(value, key) if kind == shapes.MAP else _attribute(_branch(value, key))
    return pairs


def _items(given: Any) -> list[Any]:
    """The items of a list, by their numbers. One alone may have none."""
    if type(given) is str or not all(key.isascii() and key.isdigit() for key in given):
        return [given]
    if any(len(key) > len(str(ITEMS_MAX)) for key in given):
        raise malformed("the items of a list are numbered from 1 on")
    return [given[key] for key in sorted(given, key=int)]


def _branch(given: Any, where: str) -> Tree:
    if type(given) is not dict:
        raise malformed(f"{where[:100]} has no parts")
    return given


def _text(given: Any, where: str) -> str:
    if type(given) is not str:
        raise malformed(f"{where[:100]} is not text")
    return given


def _number(given: Any, where: str) -> int:
    text = _text(given, where)
    if not _NUMBER.fullmatch(text) or abs(int(text)) > NUMBER_MAX:
        raise malformed(f"{where[:100]} is not an integer")
    return int(text)


def _attribute(tree: Tree) -> Attribute:
    text, data = tree.get("StringValue"), tree.get("BinaryValue")
    return Attribute(
        _text(tree.get("DataType", ""), "DataType"),
        None if text is None else _text(text, "StringValue"),
        None if data is None else binary(_text(data, "BinaryValue")),
        "StringListValue" in tree or "BinaryListValue" in tree,
    )


# -- answers ----------------------------------------------------------------------------------------------------


def wants_json(request: HttpRequest) -> bool:
    """Whether the caller would rather have JSON."""
    return request.headers.get("accept", "").partition(";")[0].strip().lower() == JSON_TYPE


def answer(action: str, result: dict[str, Any] | None, request_id: str, as_json: bool) -> Response:
    """What an action answers."""
    headers = {"x-amzn-requestid": request_id}
    if as_json:
        told = {} if result is None else {f"{action}Result": _listed(result)}
        told["ResponseMetadata"] = {"RequestId": request_id}
        return Response(_encode({f"{action}Response": told}), type=JSON_TYPE, headers=headers)
    out = [f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">']
    if result:
        out.append(f"<{action}Result>")
        _write(out, result, action)
        out.append(f"</{action}Result>")
    elif result is not None:
        out.append(f"<{action}Result/>")
    out.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>")
    return Response("".join(out).encode(), type=TYPE, headers=headers)


def refuse(error: Refused, request_id: str, as_json: bool) -> Response:
    """An error."""
    fault, headers = error.fault, {"x-amzn-requestid": request_id}
    side = "Sender" if fault.by_sender else "Receiver"
    message = _WSDL if fault is NO_QUEUE else error.message
    if as_json:
        told = {"Code": fault.code, "Message": message, "Type": side, "Detail": None}
        body = _encode({"Error": told, "RequestId": request_id})
        return Response(body, status=fault.status, type=JSON_TYPE, headers=headers)
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{side}</Type><Code>{fault.code}</Code>'
        f"<Message>{escape(message)}</Message><Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    if fault is NO_ACTION:  # SQS says nothing more, because it does not know the operation that an error would be of
        text = "<UnknownOperationException/>"
    return Response(text.encode(), status=fault.status, type=TYPE, headers=headers)


_WSDL: Final = "The specified queue does not exist for this wsdl version."
_encode: Final = msgspec.json.Encoder().encode


def _listed(result: dict[str, Any]) -> dict[str, Any]:
    """An answer as JSON: like the XML, with maps as lists of their pairs."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if name in XML_MAPS:
            _, key_name, value_name = XML_MAPS[name]
            pairs = value.items()
            found[name] = [{key_name: key, value_name: _listed(x) if type(x) is dict else x} for key, x in pairs]
        elif type(value) is list:
            found[name] = [_listed(item) if type(item) is dict else item for item in value]
        else:
            found[name] = value
    return found


def escape(text: str) -> str:
    """Text as XML holds it. A carriage return is written as a number, or its reader would make a line feed of it; what
    XML cannot hold at all is replaced."""
    escaped = _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)
    return NOT_XML.sub("\ufffd", escaped)


def _write(out: list[str], result: dict[str, Any], action: str) -> None:
    for name, value in result.items():
        if name in XML_MAPS:
            element, key_name, value_name = XML_MAPS[name]
            for key, item in value.items():
                out.append(f"<{element}><{key_name}>{escape(key)}</{key_name}>")
                _element(out, value_name, item, action)
                out.append(f"</{element}>")
        elif type(value) is list:
            element = XML_LISTS.get(name) or f"{action}ResultEntry"
            for item in value:
                _element(out, element, item, action)
        else:
            _element(out, name, value, action)


def _element(out: list[str], name: str, value: Any, action: str) -> None:
    out.append(f"<{name}>")
    if type(value) is dict:
        _write(out, value, action)
    elif type(value) is bool:
        out.append("true" if value else "false")
    elif type(value) is bytes:
        out.append(b64encode(value).decode())
    else:
        out.append(escape(str(value)))
    out.append(f"</{name}>")
