"""The user's function from DataFrame to DataFrame, from wherever the configuration says that it is."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import cast

from detent.errors import Invalid
from detent.ingest.config import IngestConfig, Transform
from detent.spark.user_file import UserFile


def find_transform(config: IngestConfig) -> Callable[[], Transform | None]:
    """What loads the function that the configuration names: itself, "file.py:function" or "module:function".

    What can be known to be wrong is raised here. The file is run later, when there is a Spark session: functions of
    Spark's, such as a UDF whose type is a text, cannot be made before.
    """
    wanted = config.transform
    if wanted is None or callable(wanted):
        return lambda: wanted
    if not isinstance(wanted, str) or wanted.count(":") != 1:
        raise Invalid(f'transform is "file.py:function" or "module:function", not {wanted!r}')
    place, _, name = wanted.partition(":")
    if place.endswith(".py"):
        file = UserFile(Path(config.path(place)), f"has the transform {name} in it")
        return lambda: _function(file.run().get(name), place, name)
    if not _is_found(place):
        raise Invalid(f"there is no module {place}, which the transform is to be in")
    return lambda: _function(getattr(importlib.import_module(place), name, None), place, name)


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package of its is not there, or it is no name
        return False


def _function(found: object, place: str, name: str) -> Transform:
    if not callable(found):
        raise Invalid(f"there is no function {name} in {place}")
    return cast(Transform, found)
