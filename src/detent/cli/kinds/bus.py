"""Apps that handle typed messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from detent.errors import Invalid
from detent.runtime.target import Loaded, Sought, Target, find

if TYPE_CHECKING:
    from detent.bus import Bus


def sought() -> Sought[Bus]:
    """What a file is to declare."""
    from detent.bus import Bus

    return Sought(
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
    return find(target, sought())


def load_buses(targets: Iterable[str]) -> list[Bus]:
    """The apps that targets mean, each once; all apps of a module or a file where no name is given.

    A file that is named twice is run once, so that its apps are the same ones. What it does under
    ``if __name__ == "__main__"`` is not done.
    """
    wanted = sought()
    loaded: dict[str, Loaded[Bus]] = {}
    found: dict[int, Bus] = {}
    for text in targets:
        target = Target.parse(text, wanted.example)
        key = str(Path(target.place).resolve()) if target.is_file else target.place
        if key not in loaded:
            loaded[key] = target.load(wanted)
        for bus in [loaded[key].named(target.name)] if target.name else loaded[key].all():
            found[id(bus)] = bus
    refuse_twins(found.values())
    return list(found.values())


def refuse_twins(buses: Iterable[Bus]) -> None:
    """`Invalid` if two apps have one name."""
    by_name: dict[str, Bus] = {}
    for bus in buses:
        if by_name.setdefault(bus.name, bus) is not bus:
            raise Invalid(
                f"two of these apps are called {bus.name!r}: each would take messages that the other has handled for "
                "its own. Give one of them another name, or run one of them"
            )
