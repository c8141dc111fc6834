"""Loading the file that declares a pipeline."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from detent.errors import DetentError, Invalid, NotFound
from detent.spark.pipeline import Pipeline

MODULE: Final = "__detent_pipeline__"
"""The file's name as a module. It is not among the imported ones, so that its functions travel to Spark's workers by
value: there, nobody could import them."""

_EXTRAS: Final = {"pyspark": "spark", "pandas": "spark", "deltalake": "delta", "sqlalchemy": "sql"}


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline that a file declares. The file is run, as `python FILE` would run it."""
    if path.is_dir():
        raise Invalid(f"{path} is a folder: give the Python file that declares the pipeline")
    try:
        source = path.read_text()
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}: give a Python file that declares a pipeline") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error
    namespace = _run(path, source)
    found = {id(value): value for value in namespace.values() if isinstance(value, Pipeline)}
    if not found:
        raise Invalid(
            f'{path} declares no pipeline: it needs a line such as pipeline = Pipeline("shop"), after '
            "from detent.spark import Pipeline"
        )
    if len(found) > 1:
        names = ", ".join(pipeline.name for pipeline in found.values())
        raise Invalid(f"{path} declares {len(found)} pipelines ({names}): put each one into a file of its own")
    return next(iter(found.values()))


def _run(path: Path, source: str) -> dict[str, object]:
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # what lies beside the file can be imported, as by a script
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # the user's own program
    except DetentError as error:
        raise type(error)(f"{_place(path, error)}{error}") from error
    except ModuleNotFoundError as error:
        raise Invalid(_missing(path, error)) from error
    except SyntaxError as error:
        raise Invalid(f"{error.filename}:{error.lineno}: this is no Python: {error.msg}") from error
    except Exception as error:
        raise Invalid(f"{_place(path, error)}{type(error).__name__}: {error}") from error
    return vars(module)


def _place(path: Path, error: BaseException) -> str:
    """The line of the user's file in which something went wrong."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}: " if lines else f"{path}: "


def _missing(path: Path, error: ModuleNotFoundError) -> str:
    package = (error.name or "").split(".")[0]
    extra = _EXTRAS.get(package)
    advice = f"pip install 'detent[{extra}]'" if extra else "install it, or correct the name"
    return f"{_place(path, error)}there is no module {error.name}: {advice}"
