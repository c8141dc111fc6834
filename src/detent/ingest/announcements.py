"""What a message of a queue announces, whatever it is wrapped in: files, or the data itself.

A file that comes into an object store is announced in one of four shapes: the notification that S3 writes itself, as do
stores that speak like it; the same inside a message of an SNS topic; an event of EventBridge; or just the URI. Or the
message announces nothing, and is the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote, unquote_plus

import msgspec

from detent.errors import Invalid
from detent.sizes import SIZE_MAX

BODY_BYTES_MAX: Final = 1 << 20
"""The largest message of SQS. What announces files is far below it, and all of it is parsed at once."""

DATA_BYTES_MAX: Final = 64 << 20
"""The largest message that a queue of Detent takes; data in messages is held in memory until it is written."""

RECORDS_MAX: Final = 1_000
"""Files in one message. All must be finished before it is acknowledged, and S3 sends one at a time."""

URI_BYTES_MAX: Final = 8 << 10
"""A key of S3 has up to 1024 bytes and a path of Linux up to 4096, so only something that is not a name is longer."""

VERSION_MAX: Final = 1_024
"""Characters of an etag, a version or a sequencer. Those of S3 have up to a hundred."""

SNS_DEPTH_MAX: Final = 2
"""A topic that forwards to a topic wraps a message twice. Deeper nesting only keeps a reader busy."""

SHOWN_MAX: Final = 80
"""Characters of a message that an error repeats."""

KINDS: Final = ("auto", "s3", "sns", "eventbridge", "uri", "data")

SCHEMES: Final = ("s3", "file", "gs", "az", "abfss", "https")
_SAME_AS_S3: Final = ("s3a", "s3n")
"""What Hadoop calls S3: another name for the same file would let it in twice."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""In a name these are fine where it comes encoded, as in JSON. In plain text they are a mistake, such as two names."""


class Announced(NamedTuple):
    """A file that is to be ingested, with what its announcement says of it; empty or None is not said.

    `uri` is the file as it is called everywhere (``s3://bucket/key``, ``file:///path``), decoded. Of data that came in
    the message itself, `data` has the bytes and `uri` is a name made of the queue and the message.
    """

    uri: str
    size: int | None = None
    etag: str = ""
    version: str = ""
    sequencer: str = ""
    data: bytes | None = None
    modified_ms: int | None = None


class Malformed(NamedTuple):
    """A record of a notification that cannot be understood: why, and the record itself, as JSON."""

    reason: str
    record: str


class Announcement(NamedTuple):
    """What a message announces: its files, each of them once, and the records that are malformed."""

    files: list[Announced]
    malformed: list[Malformed]

    is_notification: bool = False
    """Whether it is a list of records, each of which has an outcome of its own."""


def announced(body: bytes, *, kind: str = "auto", name: str) -> Announcement:
    """The files that a message announces; none if there is nothing to do for it, as for S3's test event, or for a file
    that was removed. Then the message can be acknowledged. `Invalid` if it cannot be understood. Of a notification that
    can be, a record that cannot be is malformed, and says nothing about its neighbours.

    `kind` is what messages look like: "s3", "sns" (any of the others in an envelope, or without one, as SNS delivers
    them raw), "eventbridge", "uri", or "auto" for whichever of these it is; with "data" the message is the data, which
    is then called `name`.

    URIs are decoded: ``s3://bucket/a b``, and ``file:///a b`` for both the path ``/a b`` and the URI ``file:///a%20b``.
    Take what follows ``s3://bucket/`` or ``file://`` as it is.
    """
    if kind not in KINDS:
        raise Invalid(f"messages are of a kind out of {', '.join(KINDS)}, not {kind!r}")
    if kind == "data":
        return Announcement([_data(body, name)], [])
    if len(body) > BODY_BYTES_MAX:
        raise Invalid(f"a message of {len(body)} bytes announces no file: there are at most {BODY_BYTES_MAX}")
    found = _PARSERS[kind](body, 0)
    return found._replace(files=list(dict.fromkeys(found.files)), malformed=list(dict.fromkeys(found.malformed)))


def _data(body: bytes, name: str) -> Announced:
    if not name:
        raise Invalid("data in a message needs a name: that of the queue and the message")
    if len(body) > DATA_BYTES_MAX:
        raise Invalid(f"{len(body)} bytes of data in one message are over the limit of {DATA_BYTES_MAX}: send a file")
    return Announced(name, size=len(body), data=body)


# -- shapes --------------------------------------------------------------------------------------------------------


def _of_any(body: bytes, depth: int) -> Announcement:
    """Of a message that shows by its shape what it is."""
    if not body.lstrip().startswith((b"{", b"[")):
        return _of_uri(body, depth)
    message = _json(body)
    if _is_sns(message):
        return _in_sns(message, depth)
    if "Records" in message or "Event" in message:
        return _in_notification(message)
    if "detail-type" in message:
        return _in_event(message)
    raise Invalid(
        "the message is JSON, and neither a notification of S3, nor one of SNS, nor an event of EventBridge: "
        f"its fields are {_shown(', '.join(map(str, message)))}"
    )


def _of_s3(body: bytes, _depth: int) -> Announcement:
    return _in_notification(_json(body))


def _of_eventbridge(body: bytes, _depth: int) -> Announcement:
    return _in_event(_json(body))


def _of_uri(body: bytes, _depth: int) -> Announcement:
    try:
        text = body.decode().strip()
    except UnicodeDecodeError as error:
        raise Invalid(f"the message is neither JSON nor a URI: it is not UTF-8 ({error.reason})") from error
    return Announcement([Announced(canonical_uri(text))], [])


_PARSERS: Final[Mapping[str, Callable[[bytes, int], Announcement]]] = {
    "auto": _of_any,
    "sns": _of_any,  # raw delivery leaves the envelope out, so either way the shape decides
    "s3": _of_s3,
    "eventbridge": _of_eventbridge,
    "uri": _of_uri,
}


def _json(body: bytes) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(body)
    except RecursionError as error:
        raise Invalid("the message is JSON that is nested too deeply") from error
    except ValueError as error:
        raise Invalid(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise Invalid(f"the message is JSON, and no object: {_shown(body[:SHOWN_MAX].decode(errors='replace'))}")
    return message


# -- SNS -----------------------------------------------------------------------------------------------------------


def _is_sns(message: dict[str, Any]) -> bool:
    return message.get("Type") in ("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation")


def _in_sns(envelope: dict[str, Any], depth: int) -> Announcement:
    if envelope["Type"] == "UnsubscribeConfirmation":
        return Announcement([], [])
    if envelope["Type"] == "SubscriptionConfirmation":
        raise Invalid("an SNS topic asks whether it may send to this queue: confirm the subscription, and delete this")
    if depth == SNS_DEPTH_MAX:
        raise Invalid(f"the message is in more than {SNS_DEPTH_MAX} envelopes of SNS")
    return _of_any(_text(envelope, "Message", "the SNS envelope").encode(), depth + 1)


# -- notifications of S3 -------------------------------------------------------------------------------------------


def _in_notification(message: dict[str, Any]) -> Announcement:
    records = message.get("Records")
    if records is None and message.get("Event") == "s3:TestEvent":
        return Announcement([], [])  # S3 sends it once, when notifications are switched on
    if not isinstance(records, list):
        raise Invalid("the message is not a notification of S3: it has no list of Records")
    if len(records) > RECORDS_MAX:
        raise Invalid(f"a notification has at most {RECORDS_MAX} records, not {len(records)}")
    found = Announcement([], [], is_notification=True)
    for record in records:
        try:
            file = _in_record(record)
        except Invalid as error:
            found.malformed.append(_malformed(record, error))
        else:
            found.files.extend([] if file is None else [file])
    return found


def _malformed(record: Any, error: Invalid) -> Malformed:
    try:
        return Malformed(str(error), json.dumps(record))
    except RecursionError:
        raise Invalid("a record of the notification is nested too deeply") from error


def _in_record(record: Any) -> Announced | None:
    """The file of one record; None if the event made none."""
    if not isinstance(record, dict):
        raise Invalid("a record of the notification is not an object")
    source = record.get("eventSource", ":s3")
    if not isinstance(source, str) or not source.endswith(":s3"):  # MinIO and Ceph put their own name in front
        raise Invalid(f"a record is of {_shown(source)}, and not of S3")
    event = _text(record, "eventName", "a record of the notification").removeprefix("s3:")  # MinIO's have it
    if not event.startswith("ObjectCreated:"):
        return None
    about = _object(record, "s3", "a record of the notification")
    bucket = _text(_object(about, "bucket", "a record's s3"), "name", "a record's bucket")
    entry = _object(about, "object", "a record's s3")
    try:
        key = unquote_plus(_text(entry, "key", "a record's object"), errors="strict")
    except UnicodeDecodeError as error:
        raise Invalid(f"the key {_shown(entry['key'])} of a record is not UTF-8 once decoded") from error
    return _file(bucket, key, entry, etag="eTag", version="versionId")


# -- events of EventBridge -----------------------------------------------------------------------------------------


def _in_event(message: dict[str, Any]) -> Announcement:
    kind = _text(message, "detail-type", "the event")
    if kind != "Object Created":
        if message.get("source") != "aws.s3":  # what other programs mean by their events is not known here
            raise Invalid(f"the event {_shown(kind)} is of {_shown(message.get('source'))}, and not of S3")
        return Announcement([], [])
    detail = _object(message, "detail", "the event")
    bucket = _text(_object(detail, "bucket", "the event's detail"), "name", "the event's bucket")
    entry = _object(detail, "object", "the event's detail")
    key = _text(entry, "key", "the event's object")  # as it is: only notifications encode it
    found = _file(bucket, key, entry, etag="etag", version="version-id")
    return Announcement([] if found is None else [found], [])


# -- what a record or an event says of a file ----------------------------------------------------------------------


def _file(bucket: str, key: str, entry: dict[str, Any], *, etag: str, version: str) -> Announced | None:
    size = entry.get("size")
    if size is not None and (type(size) is not int or not 0 <= size <= SIZE_MAX):
        raise Invalid(f"the size of a file is a number of bytes, not {_shown(size)}")
    if key.endswith("/") and not size:
        return None  # the console's folders: objects of no bytes that hold a place
    if "/" in bucket:
        raise Invalid(f"{_shown(bucket)} is not a bucket's name")
    uri = object_uri(bucket, key)
    named = _maybe(entry, version)
    # A bucket whose versioning was suspended calls every new content "null": that tells none from another.
    return Announced(
        uri, size, _maybe(entry, etag).strip('"'), "" if named == "null" else named, _maybe(entry, "sequencer")
    )


def _text(holder: dict[str, Any], field: str, where: str) -> str:
    found = holder.get(field)
    if not isinstance(found, str) or not found:
        raise Invalid(f"{where} has no {field}")
    return found


def _object(holder: dict[str, Any], field: str, where: str) -> dict[str, Any]:
    found = holder.get(field)
    if not isinstance(found, dict):
        raise Invalid(f"{where} has no {field}")
    return found


def _maybe(holder: dict[str, Any], field: str) -> str:
    found = holder.get(field)
    if found is not None and not isinstance(found, str):
        raise Invalid(f"the {field} of a file is text, not {_shown(found)}")
    if found and (len(found) > VERSION_MAX or _CONTROL.search(found)):
        raise Invalid(f"the {field} of a file is a short text without control characters, not {_shown(found)}")
    return found or ""


# -- URIs ----------------------------------------------------------------------------------------------------------


def object_uri(bucket: str, key: str) -> str:
    """The URI of an object of S3; its key may have any character but NUL, which no database keeps in a text."""
    text = f"s3://{bucket}/{key}"
    _check_text(text)
    if not bucket or not key or "\0" in text:
        _refuse(text, "a bucket and a key are named, without NUL")
    return text


def path_uri(path: str) -> str:
    """The URI of an absolute path, which may have any character but NUL, as the system has it. `Invalid` for a name
    that is not UTF-8, which the system allows."""
    _check_text(path)
    return _file_uri(path, path)


def _check_text(text: str) -> None:
    """`Invalid` for a name that is too long, or has bytes that are not UTF-8, which no database keeps in a text."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        _refuse(text, "it is not UTF-8: rename the file")
    if size > URI_BYTES_MAX:
        raise Invalid(f"a URI has at most {URI_BYTES_MAX} bytes: {_shown(text)}")


def canonical_uri(text: str) -> str:
    """A file's URI as it is called everywhere, of a URI or an absolute path in plain text; `Invalid` if it names no
    file."""
    if not text:
        raise Invalid("the message is empty: a URI such as s3://bucket/key is expected")
    _check_text(text)
    if _CONTROL.search(text):
        _refuse(text, "it has control characters, which are percent-encoded in the URI of a local file")
    if text.startswith("/"):
        return _file_uri(text, text)
    match = _SCHEME.match(text)
    if match is None:
        _refuse(text, "write a URI such as s3://bucket/key, or an absolute path")
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "file":
        return _file_uri(_path_of(rest, text), text)
    scheme = "s3" if scheme in _SAME_AS_S3 else scheme
    if scheme not in SCHEMES:
        _refuse(text, f"its scheme is none of {', '.join(SCHEMES)}")
    place, slash, key = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not place or not slash or not key:
        _refuse(text, f"write {scheme}://BUCKET/KEY")
    return f"{scheme}:{rest}"


def _path_of(rest: str, text: str) -> str:
    """The path of a file URI, decoded."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            _refuse(text, "the file is on another machine")
        rest = slash + path
    try:
        return unquote(rest, errors="strict")
    except UnicodeDecodeError:
        _refuse(text, "its path is not UTF-8 once decoded")


def _file_uri(path: str, text: str) -> str:
    """A path has one name here: ``/a//b`` and ``/a/./b`` are ``/a/b``. What ``..`` means depends on links."""
    if "\0" in path:
        _refuse(text, "it has a NUL")
    if not path.startswith("/") or path.endswith("/"):
        _refuse(text, "a file has an absolute path, which does not end with /")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not parts or ".." in parts:
        _refuse(text, "write the path without '..'")
    return "file:///" + "/".join(parts)


def _refuse(text: str, why: str) -> NoReturn:
    # What follows a question mark may be a signature that opens the file.
    raise Invalid(f"{_shown(text.partition('?')[0])} is not a file's URI: {why}")


def _shown(value: object) -> str:
    """Something of a message, for an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
