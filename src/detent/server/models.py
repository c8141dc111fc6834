"""What travels in the JSON of the HTTP API, both ways: bytes, durations, times and settings.

The types that requests are held to and answers are made of are in :mod:`detent.server.models_queues` and
:mod:`detent.server.models_journals`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Union, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from detent.errors import Invalid
from detent.settings.journal import JOURNAL
from detent.settings.journal import JournalSettings as JournalSettingNames
from detent.settings.queue import QUEUE
from detent.settings.queue import QueueSettings as QueueSettingNames
from detent.settings.setting import Settings

NUMBER_MAX: Final = (1 << 62) - 1
"""Messages and offsets are numbered below this."""

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, Meta(ge=0)]
GivenText = Annotated[
    str, Meta(extra_json_schema={"pattern": r"^ *[0-9]+(\.[0-9]+)? *(ms|s|m|h|d|w)? *$", "examples": ["30s"]})
]
GivenDuration = GivenText | Seconds
"""A duration as a request has it: text such as "30s", or a number of seconds."""

ReceiptText = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9]{1,19}-[0-9]{1,19}-[0-9]{1,19}$"})]
DurationText = Annotated[str, Meta(description='A duration such as "30s"; see the settings for what "0s" means.')]
Time = Annotated[datetime, Meta(tz=True)]
TimeText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class RequestModel(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request carries. An unknown field is refused: it may be a setting with a slip of the pen."""


class AnswerModel(msgspec.Struct, kw_only=True):
    """What an answer carries."""


# -- bytes, durations and times -------------------------------------------------------------------------------------


class Encoded(RequestModel, kw_only=True):
    """Bytes that are not given as text: in `base64`, or as any `json` value, which is stored as it stands."""

    base64: str | UnsetType = UNSET
    json: msgspec.Raw | UnsetType = UNSET


class Base64Text(AnswerModel, kw_only=True):
    """Bytes that are not UTF-8 text."""

    base64: str


def to_bytes(value: str | Encoded, what: str) -> bytes:
    """The bytes that a request means."""
    if isinstance(value, str):
        return value.encode()
    if (value.base64 is UNSET) == (value.json is UNSET):
        raise Invalid(f'{what} is text, or {{"base64": "AAEC"}}, or {{"json": ...}}: one of the two in the object')
    if isinstance(value.json, msgspec.Raw):
        return bytes(value.json)
    assert isinstance(value.base64, str)
    try:
        return base64.b64decode(value.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"{what} is not base64: {error}") from error


def to_text(value: bytes) -> str | Base64Text:
    """Bytes as an answer has them: text if they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Base64Text(base64=base64.b64encode(value).decode())


def duration_text(value: timedelta | int) -> str:
    """A duration (a number is of milliseconds) as requests take it."""
    left = round(value.total_seconds() * 1000) if isinstance(value, timedelta) else value
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if left and left % size == 0:
            return f"{left // size}{unit}"
    return f"{left}ms" if left else "0s"


def time_text(time: datetime | int) -> str:
    """A time (a number is of milliseconds since 1970) in UTC."""
    when = datetime.fromtimestamp(time / 1000, UTC) if isinstance(time, int) else time
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- settings -------------------------------------------------------------------------------------------------------


def _settings_type(name: str, names: Any, doc: str, extra: list[Any]) -> Any:
    """A struct with the settings that a `TypedDict` of the library names, each of which may be left out. A setting that
    the library gets, the API has."""
    members: list[Any] = []
    for setting, kind in get_type_hints(names).items():
        kinds: Sequence[Any] = [kind]
        if timedelta in get_args(kind):  # a duration
            kinds = [*(one for one in get_args(kind) if one not in {timedelta, float}), Seconds]
        members.append((setting, Union[(*kinds, UnsetType)], UNSET))
    return msgspec.defstruct(
        name, members + extra, bases=(RequestModel,), namespace={"__doc__": doc}, kw_only=True, module=__name__
    )


def _doc(settings: Settings, end: str) -> str:
    notes = [f"`{one.name}` {one.note}. " for one in settings if one.note]
    return f"A {settings.owner}'s settings; what is left out keeps its default or its value. {''.join(notes)}{end}"


_QUEUE_DOC: Final = _doc(QUEUE, 'Durations are text such as "30s", or seconds.')
_JOURNAL_DOC: Final = _doc(
    JOURNAL, 'A retention of "0s", or of 0 bytes, means: no limit. Durations are text such as "7d", or seconds.'
)

QueueSettings = _settings_type("QueueSettings", QueueSettingNames, _QUEUE_DOC, [])
NewQueue = _settings_type(
    "NewQueue",
    QueueSettingNames,
    _QUEUE_DOC + " With `earliest` a new queue also gets what is stored already.",
    [("earliest", bool, False)],
)
JournalSettings = _settings_type("JournalSettings", JournalSettingNames, _JOURNAL_DOC, [])


def given_settings(body: Any) -> Any:
    """The settings that a request names, as the library takes them."""
    found = {name: getattr(body, name) for name in body.__struct_fields__ if name != "earliest"}
    return {name: value for name, value in found.items() if value is not UNSET}
