"""Packages whose names are imported when they are first used: importing the package then costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, of which `package` are the globals. `homes` says which module has a name."""

    def attribute(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(home), name)
        return value

    return attribute
