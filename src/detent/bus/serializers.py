"""Messages as bytes and back. JSON by default, because people look into queues."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from detent.bus.message_types import is_pydantic
from detent.errors import Invalid
from detent.finite import encode_json, refuse_infinite

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
