"""Loading the file that declares a pipeline: what it finds, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.cli.kinds import PIPELINE, find_all
from detent.cli.kinds.pipeline import only_pipeline
from detent.errors import Exists, Invalid, NotFound
from detent.extras import install_command
from detent.spark import Pipeline

GOOD = """
from detent.spark import Pipeline
pipeline = Pipeline("shop")
same = pipeline
@pipeline.stream(read="orders", write="paid")
def paid(orders):
    return orders
"""


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline that `detent run` would run."""
    found = find_all([str(path)], PIPELINE)[PIPELINE.noun]
    return only_pipeline([one.what for one in found], str(path))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(text)
    return path


def test_a_file_declares_one_pipeline(tmp_path: Path) -> None:
    pipeline = load_pipeline(written(tmp_path, GOOD))
    assert (pipeline.name, [stream.name for stream in pipeline.streams]) == ("shop", ["paid"])


def test_functions_travel_by_value(tmp_path: Path) -> None:
    """Spark's workers cannot import the file, so its module must not be one that pickling would name."""
    import sys

    (stream,) = load_pipeline(written(tmp_path, GOOD)).streams
    assert stream.function.__module__ not in sys.modules


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_the_pipeline.py").write_text("NAME = 'helped'")
    text = "from beside_the_pipeline import NAME\nfrom detent.spark import Pipeline\np = Pipeline(NAME)"
    assert load_pipeline(written(tmp_path, text)).name == "helped"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("x = 1", Invalid, "declares no pipeline"),
        (GOOD + 'other = Pipeline("other")', Invalid, "2 pipelines (shop, other)"),
        ("x = (", Invalid, "shop.py:1: this is not Python"),
        ("\nx = y", Invalid, "shop.py:2: NameError: name 'y' is not defined"),
        ("import pyspark.nothing", Invalid, install_command("spark")),
        ("import deltalake.nothing", Invalid, install_command("delta")),
        ("import nothing_at_all", Invalid, "there is no module nothing_at_all: install it"),
        (GOOD.replace('"orders"', '"paid"'), Invalid, "shop.py:5: the stream 'paid' reads paid"),
        (GOOD + GOOD.split("same = pipeline")[1], Exists, "shop.py:9: the pipeline 'shop' has a stream"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as refused:
        load_pipeline(written(tmp_path, text))
    assert says in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        load_pipeline(tmp_path / "none.py")
    with pytest.raises(Invalid, match="is a folder"):
        load_pipeline(tmp_path)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="this is not Python"):
        load_pipeline(tmp_path / "binary.py")
