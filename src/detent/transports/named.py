"""Finding the class of a queue by name: of an installed package, of a module, or of a Python file.

A package offers a class as an entry point, and its name is the scheme of a URL:

    [project.entry-points."detent.transports"]
    rabbit = "detent_rabbit:RabbitQueue"
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from detent.errors import Invalid
from detent.runtime.target import Sought, Target
from detent.transports.checked import CheckedQueue, check_members

GROUP: Final = "detent.transports"
"""The group of entry points."""

_SOUGHT: Final = Sought(
    type,
    noun="class",
    plural="classes",
    article="a",
    example="shop_queues:RabbitQueue:orders or path/to/shop_queues.py:RabbitQueue:orders",
    lines="class RabbitQueue: ...",
)


def offered() -> list[str]:
    """The names that installed packages offer."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def class_of_package(name: str) -> type | None:
    """The class that an installed package offers under a name; None if there is none."""
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        return None
    if len(found) > 1:
        raise Invalid(
            f"several packages offer queues as {name!r} ({', '.join(sorted(found))}): uninstall one of them, or write "
            "MODULE:CLASS:NAME"
        )
    return _loaded(next(iter(found.values())))


def _loaded(point: EntryPoint) -> type:
    try:
        found = point.load()
    except Exception as error:
        raise Invalid(
            f"the queues {point.name!r} are {point.value}, which cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return _checked(found, point.value)


def class_of_place(place: str, attribute: str) -> type:
    """The class of that name in a module or a file."""
    target = Target(place, attribute)
    kept_as = f"__detent_transport_{abs(hash(place))}__" if target.is_file else None
    return _checked(target.load(_SOUGHT, kept_as=kept_as).named(attribute), f"{place}:{attribute}")


def _checked(found: object, shown: str) -> type:
    if not isinstance(found, type):
        raise Invalid(f"{shown} is a {type(found).__name__}: it is to be a class, made as {shown}(name, **options)")
    check_members(found, shown)
    return found


def make(cls: type, name: str, options: Mapping[str, Any]) -> CheckedQueue:
    """A queue of a class by its name, with the options of a URL; checked from now on."""
    check_options(cls, name, options)
    return CheckedQueue(cls(name, **options))


def check_options(cls: type, name: str, options: Mapping[str, Any]) -> None:
    """`Invalid` says which options there are. Values are not repeated: they may be passwords."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):  # written in C: it says so itself
        return
    try:
        signature.bind(name, **options)
    except TypeError as error:
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = [one.name for one in list(signature.parameters.values())[1:] if one.kind in kinds]
        meant = [close for option in options for close in difflib.get_close_matches(option, known, 1)]
        unknown = set(options) - set(known)
        hint = f"; did you mean {', '.join(meant)}?" if unknown and meant else ""
        raise Invalid(
            f"{cls.__name__} cannot be made like that: {error}; it is made with a name and the options "
            f"{', '.join(known) or 'none'}{hint}"
        ) from error
