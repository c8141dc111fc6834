"""Where the function of an ingest is found, and what is known to be wrong with it before Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Invalid, NotFound
from detent.ingest.config import IngestConfig
from detent.ingest.transforms import find_transform


def config(folder: Path, transform: Any) -> IngestConfig:
    return IngestConfig(name="orders", queue="sqs:orders", table="lake", transform=transform, folder=str(folder))


def test_none_and_a_function_are_what_they_are(tmp_path: Path) -> None:
    assert find_transform(config(tmp_path, None))() is None
    assert find_transform(config(tmp_path, config))() is config


def test_a_function_of_a_module(tmp_path: Path) -> None:
    import json

    assert find_transform(config(tmp_path, "json:loads"))() is json.loads


def test_a_file_is_run_when_it_is_loaded_and_no_module_is_hidden_by_it(tmp_path: Path) -> None:
    import json

    (tmp_path / "json.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\ndef clean(x): pass\n")
    load = find_transform(config(tmp_path, "json.py:clean"))
    assert not (tmp_path / "json.py.ran").exists()
    found = load()
    assert (tmp_path / "json.py.ran").exists()
    assert callable(found)
    assert sys.modules["json"] is json
    assert sys.modules.get(found.__module__) is None  # workers of Spark get it by value: they could not import it


@pytest.mark.parametrize("wanted", ["", "clean", "a:b:c", ":", "clean.py", 7])
def test_what_names_no_function(tmp_path: Path, wanted: Any) -> None:
    with pytest.raises(Invalid):
        find_transform(config(tmp_path, wanted))


def test_what_is_wrong_is_known_before_spark_runs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file .*clean\.py"):
        find_transform(config(tmp_path, "clean.py:clean"))
    (tmp_path / "clean.py").write_text("def clean(:\n")
    with pytest.raises(Invalid, match=r"clean\.py:1: this is no Python"):
        find_transform(config(tmp_path, "clean.py:clean"))
    (tmp_path / "clean.py").write_bytes(b"x = 1\0")
    with pytest.raises(Invalid, match=r"no Python"):
        find_transform(config(tmp_path, "clean.py:clean"))
    for module in ("no_such_module", "no_such_package.module", "json.no_such", ".."):
        with pytest.raises(Invalid, match="there is no module"):
            find_transform(config(tmp_path, f"{module}:clean"))


def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("clean = 1\n")
    with pytest.raises(Invalid, match=r"no function clean in clean\.py"):
        find_transform(config(tmp_path, "clean.py:clean"))()
    (tmp_path / "clean.py").write_text("x = 1\nimport no_such_module\n")
    with pytest.raises(Invalid, match=r"clean\.py:2: there is no module no_such_module"):
        find_transform(config(tmp_path, "clean.py:clean"))()
    (tmp_path / "clean.py").write_text("x = 1\n\nx / 0\n")
    with pytest.raises(Invalid, match=r"clean\.py:3: ZeroDivisionError"):
        find_transform(config(tmp_path, "clean.py:clean"))()
