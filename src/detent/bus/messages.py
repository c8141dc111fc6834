"""Messages: what their classes are called, how they become bytes and are read back, and the envelope they travel in.

An address is text with a kind: ``queue:billing`` is the input of one app, ``topic:|OrderPlaced|`` all queues that have
subscribed to one of the names, ``reply:shop`` the process of the app ``shop`` that waits for that answer.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

import msgspec

from detent.errors import Invalid
from detent.finite import encode_json, refuse_infinite

ID: Final = "detent-id"
TYPE: Final = "detent-type"
TOPICS: Final = "detent-topics"
SENT_AT: Final = "detent-sent-at"
CORRELATION: Final = "detent-correlation-id"
CAUSATION: Final = "detent-causation-id"
REPLY_TO: Final = "detent-reply-to"
IN_REPLY_TO: Final = "detent-in-reply-to"
CONTENT_TYPE: Final = "content-type"
"""Headers that the bus writes; whatever else a message has is the sender's own."""

ID_BYTES_MAX: Final = 200
"""A message's id is a part of keys: of a tracker's row, of a queue's dedup key."""


def is_id(text: object) -> bool:
    """Whether this can be the id of a message."""
    return isinstance(text, str) and text.isprintable() and 0 < len(text.encode(errors="replace")) <= ID_BYTES_MAX


SHOWN_MAX: Final = 200
"""Characters of a sender's text in a message of ours."""

QUEUE: Final = "queue"
TOPIC: Final = "topic"
REPLY: Final = "reply"
KINDS: Final = (QUEUE, TOPIC, REPLY)


def address(kind: str, name: str) -> str:
    """The text of an address."""
    assert kind in KINDS, kind
    return f"{kind}:{name}"


def parts_of(to: str) -> tuple[str, str]:
    """The kind and the name of an address; `Invalid` for what is none."""
    kind, _, name = to.partition(":")
    if kind not in KINDS or not name:
        raise Invalid(f"{to[:SHOWN_MAX]!r} is not an address, which begins with one of {', '.join(KINDS)}, and a colon")
    return kind, name


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way out. Its id stays the same however often it is sent, so that receivers see it once."""

    id: str
    to: str
    headers: Mapping[str, str]
    body: bytes
    visible_ms: int | None = None
    """When it may be delivered, in milliseconds since 1970; at once if it is not said."""


@dataclass(slots=True, eq=False)
class Incoming:
    """One delivery of a message by a transport."""

    transport_id: str
    """What the transport calls the message: the same at each delivery."""
    headers: dict[str, str]
    body: bytes
    attempts: int
    """How often it was delivered, with this time. The transport keeps count, so that it survives a process."""
    fencing_token: int | None
    """Higher at each delivery, where a transport has such a number."""
    receipt: Any = None
    """The transport's own."""
    lost: bool = field(default=False, compare=False)
    """Whether the lease was found gone while the handler runs: what it does is not to be committed."""
    error: Exception | None = field(default=None, compare=False)
    """What went wrong at this attempt, for what watches; None while nothing has."""


# -- names of classes -----------------------------------------------------------------------------------------------

TYPE_NAME_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_ATTRIBUTE: Final = "__detent_message__"

Class = TypeVar("Class", bound=type)


def message(name: str) -> Callable[[Class], Class]:
    """Give a class of messages a name of its own on the wire, which stays when the class is renamed or moved.

    >>> @message("shop.order-placed")
    ... @dataclass
    ... class OrderPlaced: ...
    """
    _check_name(name)

    def named(cls: Class) -> Class:
        setattr(cls, _ATTRIBUTE, name)
        return cls

    return named


def name_of(cls: type) -> str:
    """What a class of messages is called: as `message` says, or as the class is called."""
    own: str | None = cls.__dict__.get(_ATTRIBUTE)
    return own or cls.__name__


def is_pydantic(cls: type) -> bool:
    """Whether a class is one of pydantic's; without importing it for those who do not use it."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def check_class(cls: Any) -> None:
    """`Invalid` unless instances of this can be messages."""
    if not isinstance(cls, type):
        raise Invalid(f"{cls!r} is not a class of messages: give a dataclass, a msgspec.Struct or a pydantic model")
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic(cls)):
        raise Invalid(
            f"{cls.__name__} is not a class of messages: make it a dataclass, a msgspec.Struct or a pydantic model, so "
            "that its fields can be written and read back"
        )
    _check_name(name_of(cls))


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or len(name) > TYPE_NAME_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a message: use up to {TYPE_NAME_MAX} letters, digits and any of _ . : -; "
            "@message('...') gives a class a name"
        )


class Types:
    """The classes that an app knows, by name."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def add(self, cls: type) -> str:
        """Know a class; its name. `Invalid` if another class has it."""
        check_class(cls)
        name = name_of(cls)
        known = self._classes.setdefault(name, cls)
        if known is not cls:
            raise Invalid(
                f"two classes of messages are called {name!r}, {_place(known)} and {_place(cls)}: give one of them "
                "another name with @message('...')"
            )
        return name

    def find(self, names: list[str]) -> type | None:
        """The class of the first name that is known."""
        return next((self._classes[name] for name in names if name in self._classes), None)

    def topics(self, cls: type) -> list[str]:
        """The names under which a message of this class is published: its own, and those of the classes it is derived
        from that the app knows or that were given a name."""
        known = set(self._classes.values())
        bases = [base for base in cls.__mro__[1:] if base in known or _ATTRIBUTE in base.__dict__]
        return [name_of(cls), *map(name_of, bases)]


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# -- bytes ----------------------------------------------------------------------------------------------------------

_TRACES: Final = ("null", "NaN", "Infinity")

CLASSES_MAX: Final = 4_096
"""Decoders that are kept; each class of messages has one."""


class Serializer(Protocol):
    """How messages become bytes. `content_type` is written into a header, by which receivers find the same one."""

    @property
    def content_type(self) -> str:
        """What the bytes are, such as ``application/json``."""

    def encode(self, message: Any) -> bytes:
        """The bytes of a message; `Invalid` if it has something in it that cannot be written."""

    def decode(self, body: bytes, cls: type) -> Any:
        """The message of a class; `Invalid` if the bytes are none."""


@lru_cache(maxsize=CLASSES_MAX)
def _json_decoder(cls: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls)


@lru_cache(maxsize=CLASSES_MAX)
def _msgpack_decoder(cls: type) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cls)


class JsonSerializer:
    """JSON: dataclasses and structs through msgspec, pydantic's models through pydantic. It has no infinity and no NaN:
    a message with one of them is `Invalid`."""

    content_type: Final = "application/json"

    def encode(self, message: Any) -> bytes:
        try:
            if is_pydantic(type(message)):
                return _pydantic_json(message)
            return encode_json(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unwritable(message, error) from error

    def decode(self, body: bytes, cls: type) -> Any:
        try:
            if is_pydantic(cls):
                msgspec.json.decode(body)  # pydantic reads NaN and Infinity, which are not JSON
                return cls.model_validate_json(body)  # type: ignore[attr-defined]
            return _json_decoder(cls).decode(body)
        except (ValueError, RecursionError) as error:  # msgspec's and pydantic's own errors are ValueErrors
            raise _unreadable(cls, error) from error


class MsgpackSerializer:
    """MessagePack: smaller than JSON; bytes, infinity and NaN stay what they are. For dataclasses and structs; models
    of pydantic travel as the plain values that they dump."""

    content_type: Final = "application/x-msgpack"

    def encode(self, message: Any) -> bytes:
        try:
            plain = message.model_dump() if is_pydantic(type(message)) else message
            return msgspec.msgpack.encode(plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unwritable(message, error) from error

    def decode(self, body: bytes, cls: type) -> Any:
        try:
            if is_pydantic(cls):
                return cls.model_validate(msgspec.msgpack.decode(body))  # type: ignore[attr-defined]
            return _msgpack_decoder(cls).decode(body)
        except (ValueError, RecursionError) as error:
            raise _unreadable(cls, error) from error


def _pydantic_json(message: Any) -> bytes:
    """A model as JSON. Unless the model says that such numbers are text, pydantic writes null, or what is not JSON."""
    text: str = message.model_dump_json()
    if message.model_config.get("ser_json_inf_nan") != "strings" and any(trace in text for trace in _TRACES):
        refuse_infinite(message.model_dump())
    return text.encode()


def _unwritable(message: Any, error: Exception) -> Invalid:
    return Invalid(f"this {type(message).__name__} cannot be written: {error}")


def _unreadable(cls: type, error: Exception) -> Invalid:
    return Invalid(f"the bytes are no {cls.__name__}: {error}")
