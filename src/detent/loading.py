"""Finding what a command was told to run, an app, a consumer or a graph: in a module, or in a file.

Every process that runs it loads it by itself, so that its functions need not travel.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from detent.errors import Invalid, NotFound
from detent.user_file import UserFile, explained

DEFAULT: Final = "app"
"""What most people call the one that they declare."""

Kind = TypeVar("Kind")

_is_loading: Final[ContextVar[bool]] = ContextVar("detent_is_loading", default=False)


@dataclass(frozen=True, slots=True)
class Sought(Generic[Kind]):
    """A class whose objects are looked for, and the words in which it is said that there is none."""

    cls: type[Kind]
    noun: str
    """What people call it, as in "declares a consumer"."""
    plural: str
    article: str
    example: str
    """How targets are written."""
    lines: str
    """What a file needs to have one."""
    usual: str = DEFAULT
    """The name of the one that is meant where several are declared and none is named."""


@dataclass(frozen=True, slots=True)
class Place(Generic[Kind]):
    """A module or a file that was run, and the names that are in it."""

    sought: Sought[Kind]
    shown: str
    """How the person called it."""
    names: Mapping[str, object]

    def named(self, name: str) -> Kind:
        """The object of that name."""
        if name not in self.names:
            raise NotFound(f"{self.shown} has no {name!r}; {self._listed()}")
        found = self.names[name]
        if not isinstance(found, self.sought.cls):
            wrong = f"is no {self.sought.cls.__name__} but a {type(found).__name__}"
            raise Invalid(f"{self.shown}:{name} {wrong}; {self._listed()}")
        return found

    def all(self) -> list[Kind]:
        """All of them, in the order in which they were declared, and one at least. One that has two names is one."""
        found = {id(one): one for one in self.names.values() if isinstance(one, self.sought.cls)}
        if not found:
            raise Invalid(f"{self.shown} declares no {self.sought.noun}; {self._listed()}")
        return list(found.values())

    def only(self) -> Kind:
        """The only one, or the one that has the usual name."""
        found = self.all()
        if len(found) == 1:
            return found[0]
        usual = self.names.get(self.sought.usual)
        if isinstance(usual, self.sought.cls):
            return usual
        many = f"{len(found)} {self.sought.plural}"
        raise Invalid(f"{self.shown} declares {many}: say which one; {self._listed()}")

    def _listed(self) -> str:
        """Those that could have been meant."""
        found = sorted(name for name, value in self.names.items() if isinstance(value, self.sought.cls))
        if found:
            return "there is " + ", ".join(f"{self.shown}:{name}" for name in found)
        return f"it needs lines such as {self.sought.lines}"


def split(target: str, sought: Sought[Kind]) -> tuple[str, str]:
    """The place and the name in ``place:name``; the name may be missing."""
    place, _, name = target.partition(":")
    if not place:
        raise Invalid(f"{target!r} names no module and no file: write {sought.example}")
    return place, name


def is_path(place: str) -> bool:
    """Whether a place is a file, and no module."""
    return place.endswith(".py") or os.sep in place


def refuse_while_loading(what: str) -> None:
    """`Invalid` in a file that is being loaded: a command that only looks would run it, and never come to look."""
    if _is_loading.get():
        raise Invalid(f'{what} runs whenever the file is loaded: put it under if __name__ == "__main__":')


def load(place: str, sought: Sought[Kind], *, kept_as: str) -> Place[Kind]:
    """Run the file, or import the module. A file stays imported as `kept_as`: classes that are declared in it may look
    for their module at any time. Modules are looked for in the current folder too."""
    token = _is_loading.set(True)
    try:
        if is_path(place):
            file = UserFile(Path(place), f"declares {sought.article} {sought.noun}")
            names: Mapping[str, object] = file.run(kept_as=kept_as)
        else:
            names = _import(place, sought.example)
    finally:
        _is_loading.reset(token)
    return Place(sought, place, names)


def _import(module: str, example: str) -> Mapping[str, object]:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    if (known := sys.modules.get(module)) is not None:  # also a file that was run under this name, which has no spec
        return vars(known)
    origin = _origin(module, example)
    with explained(origin):
        return vars(importlib.import_module(module))


def _origin(module: str, example: str) -> Path:
    """The file of a module. The packages that it is in are imported for that, and may be what is wrong."""
    parents = module.split(".")[:-1]
    for depth in range(len(parts := [*parents, module.rpartition(".")[2]])):
        name = ".".join(parts[: depth + 1])
        try:
            spec = importlib.util.find_spec(name)
        except (ModuleNotFoundError, ValueError):  # what is before the dot is no package; a name such as "..x"
            spec = None
        if spec is None:
            raise NotFound(
                f"there is no module {name!r}, neither in {os.getcwd()} nor where Python looks: write {example}"
            )
        origin = Path(spec.origin or name)
        if depth < len(parents):
            with explained(origin):
                importlib.import_module(name)
    return origin
