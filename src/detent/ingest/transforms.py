"""The user's function from DataFrame to DataFrame, from wherever the configuration says that it is."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from detent.errors import Invalid
from detent.ingest.config import IngestConfig, Transform
from detent.user_file import UserFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_transform(config: IngestConfig) -> Callable[[SparkSession], Transform | None]:
    """What loads the function that the configuration names: itself, "file.py:function" or "module:function".

    What can be known to be wrong is raised here. The file is run later, when there is a Spark session: functions of
    Spark's, such as a UDF whose type is a text, cannot be made before.
    """
    wanted = config.transform
    if wanted is None or callable(wanted):
        return lambda _spark: wanted
    if not isinstance(wanted, str) or wanted.count(":") != 1:
        raise Invalid(f'transform is "file.py:function" or "module:function", not {wanted!r}')
    place, _, name = wanted.partition(":")
    if place.endswith(".py"):
        file = UserFile(Path(config.path(place)), f"has the transform {name} in it")
        return lambda spark: _function(_run(file, spark).get(name), place, name)
    if not _is_found(place):
        raise Invalid(f"there is no module {place}, which the transform is to be in")
    return lambda _spark: _function(getattr(_imported(place), name, None), place, name)


def _run(file: UserFile, spark: SparkSession) -> dict[str, object]:
    """The names of a file. What lies beside it can be imported by it, and so by its functions in Spark's workers."""
    environment = spark.sparkContext.environment
    paths = [str(file.path.resolve().parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return file.run()


def _imported(module: str) -> object:
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise Invalid(
            f"the module {module}, which the transform is in, cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _is_found(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package of its is not there, or it is no name
        return False


def _function(found: object, place: str, name: str) -> Transform:
    if not callable(found):
        raise Invalid(f"there is no function {name} in {place}")
    return cast(Transform, found)
