"""Pipelines: streams of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from detent.errors import Invalid
from detent.runtime.target import UserFile

if TYPE_CHECKING:
    from detent.spark.pipeline import Pipeline


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline that a file declares. The file is run, as `python FILE` would run it, and not kept among the
    imported modules: so its functions travel to Spark's workers by value."""
    from detent.spark.pipeline import Pipeline

    names = UserFile(path, "declares a pipeline").run()
    found = {id(value): value for value in names.values() if isinstance(value, Pipeline)}
    if not found:
        raise Invalid(
            f'{path} declares no pipeline: it needs a line such as pipeline = Pipeline("shop"), after '
            "from detent.spark import Pipeline"
        )
    if len(found) > 1:
        all_names = ", ".join(pipeline.name for pipeline in found.values())
        raise Invalid(f"{path} declares {len(found)} pipelines ({all_names}): put each one into a file of its own")
    return next(iter(found.values()))
