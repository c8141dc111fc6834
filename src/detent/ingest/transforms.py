"""The user's function from DataFrame to DataFrame, from wherever the configuration says that it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from detent.errors import Invalid
from detent.ingest.config import IngestConfig, Transform
from detent.runtime.target import UserFile, find_function

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
    if not isinstance(wanted, str):
        raise Invalid(f'transform is "file.py:function" or "module:function", not {wanted!r}')
    load = find_function(wanted, "transform", path_of=config.path)
    return lambda spark: cast(Transform, load(lambda file: _run(file, spark)))


def _run(file: UserFile, spark: SparkSession) -> dict[str, object]:
    """The names of a file. What lies beside it can be imported by it, and so by its functions in Spark's workers."""
    environment = spark.sparkContext.environment
    paths = [str(file.path.resolve().parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return file.run()
