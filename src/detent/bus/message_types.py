"""What messages are called, so that each app finds the class for the bytes that it is sent."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from detent.errors import Invalid

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
        raise Invalid(f"{cls!r} is no class of messages: give a dataclass, a msgspec.Struct or a pydantic model")
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or is_pydantic(cls)):
        raise Invalid(
            f"{cls.__name__} is no class of messages: make it a dataclass, a msgspec.Struct or a pydantic model, so "
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
