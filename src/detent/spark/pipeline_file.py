"""Loading the file that declares a pipeline."""

from __future__ import annotations

from pathlib import Path

from detent.errors import Invalid
from detent.spark.pipeline import Pipeline
from detent.user_file import UserFile


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline that a file declares. The file is run, as `python FILE` would run it."""
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
