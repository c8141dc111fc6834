"""Finding the apps that a command was told to run or to show."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Final

from detent.bus.app import Bus
from detent.errors import Invalid
from detent.loading import Place, Sought, is_path, load, split

_SOUGHT: Final = Sought(
    Bus,
    noun="app",
    plural="apps",
    article="an",
    example="shop.py:billing or shop.apps:billing",
    lines='from detent.bus import Bus; billing = Bus("billing", "file:./data")',
)


def load_bus(target: str) -> Bus:
    """The app that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there is
    one app, or one called `app`."""
    place, name = split(target, _SOUGHT)
    loaded = _load(place)
    return loaded.named(name) if name else loaded.only()


def load_buses(targets: Iterable[str]) -> list[Bus]:
    """The apps that targets mean, each once; all apps of a module or a file where no name is given.

    A file that is named twice is run once, so that its apps are the same ones. What it does under
    ``if __name__ == "__main__"`` is not done.
    """
    loaded: dict[str, Place[Bus]] = {}
    found: dict[int, Bus] = {}
    for target in targets:
        place, name = split(target, _SOUGHT)
        key = str(Path(place).resolve()) if is_path(place) else place
        if key not in loaded:
            loaded[key] = _load(place)
        for bus in [loaded[key].named(name)] if name else loaded[key].all():
            found[id(bus)] = bus
    by_name: dict[str, Bus] = {}
    for bus in found.values():
        if by_name.setdefault(bus.name, bus) is not bus:
            raise Invalid(
                f"two of these apps are called {bus.name!r}: each would take messages that the other has handled for "
                "its own. Give one of them another name, or run one of them"
            )
    return list(found.values())


def _load(place: str) -> Place[Bus]:
    """Run a file or import a module. Files that import each other, and are run together, are to have the same apps and
    the same classes of messages: so a file is kept under its own name, and one that another has imported is not run
    again."""
    if not is_path(place):
        return load(place, _SOUGHT, kept_as=place)
    path = Path(place)
    known = sys.modules.get(path.stem)
    origin = getattr(known, "__file__", None)
    if known is not None and origin is not None and Path(origin).resolve() == path.resolve():
        return Place(_SOUGHT, place, vars(known))
    return load(place, _SOUGHT, kept_as=_module_of(path.stem))


def _module_of(stem: str) -> str:
    """The name of a file as a module: its own where that is free, and nobody else's."""
    if stem.isidentifier() and stem not in {"__main__", *sys.stdlib_module_names, *sys.modules}:
        return stem
    return next(name for number in count() if (name := f"__detent_bus_{stem}_{number}__") not in sys.modules)
