"""Finding the consumer that a command was told to run: in a module, or in a file.

Every process of a consumer loads it by itself, so that its functions need not travel.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from detent.consumer.application import LEASE_MS_MIN, STANDBYS_MAX, Consumer, checked_number
from detent.durations import Duration, milliseconds
from detent.errors import Invalid, NotFound
from detent.shard.operations import SHARDS_MAX
from detent.user_file import UserFile, explained

DEFAULT: Final = "app"
"""The name that is taken where several consumers are declared and none is named."""

MODULE: Final = "__detent_consumer__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""

_EXAMPLE: Final = "orders.py:app or shop.orders:app"


def load_consumer(target: str) -> Consumer:
    """The consumer that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there
    is one consumer, or one called `app`. Modules are looked for in the current folder too."""
    place, _, name = target.partition(":")
    if not place:
        raise Invalid(f"{target!r} names no module and no file: write {_EXAMPLE}")
    names = _run_file(Path(place)) if _is_path(place) else _import(place)
    found = _named(names, target, place, name) if name else _only(names, place)
    _ = found.consume_function  # which says what to do if there is none
    return found


def adjust(
    consumer: Consumer, *, shards: int | None = None, standbys: int | None = None, lease: Duration | None = None
) -> None:
    """Replace what was declared by what the person who runs it says."""
    if shards is not None:
        consumer.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
    if standbys is not None:
        consumer.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
    if lease is not None:
        consumer.lease_ms = milliseconds(lease)
        if consumer.lease_ms < LEASE_MS_MIN:
            raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _run_file(path: Path) -> Mapping[str, object]:
    return UserFile(path, "declares a consumer").run(kept_as=MODULE)


def _import(module: str) -> Mapping[str, object]:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    origin = _origin(module)
    with explained(origin):
        return vars(importlib.import_module(module))


def _origin(module: str) -> Path:
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
                f"there is no module {name!r}, neither in {os.getcwd()} nor where Python looks: write {_EXAMPLE}"
            )
        origin = Path(spec.origin or name)
        if depth < len(parents):
            with explained(origin):
                importlib.import_module(name)
    return origin


def _named(names: Mapping[str, object], target: str, place: str, name: str) -> Consumer:
    if name not in names:
        raise NotFound(f"{place} has no {name!r}; {_listed(names, place)}")
    found = names[name]
    if not isinstance(found, Consumer):
        raise Invalid(f"{target} is no Consumer but a {type(found).__name__}; {_listed(names, place)}")
    return found


def _only(names: Mapping[str, object], place: str) -> Consumer:
    found = {id(one): one for one in names.values() if isinstance(one, Consumer)}
    if len(found) == 1:
        return next(iter(found.values()))
    usual = names.get(DEFAULT)
    if isinstance(usual, Consumer):
        return usual
    if found:
        raise Invalid(f"{place} declares {len(found)} consumers: say which one; {_listed(names, place)}")
    raise Invalid(f"{place} declares no consumer; {_listed(names, place)}")


def _listed(names: Mapping[str, object], place: str) -> str:
    """The consumers that could have been meant."""
    found = sorted(name for name, value in names.items() if isinstance(value, Consumer))
    if found:
        return "there is " + ", ".join(f"{place}:{name}" for name in found)
    return 'it needs lines such as from detent.consumer import Consumer; app = Consumer("orders", read="orders")'
